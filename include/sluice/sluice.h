/* Sluice: pipeline-parallel training in C. Includes the public header of every layer. */
#ifndef SLUICE_SLUICE_H
#define SLUICE_SLUICE_H

#include <sluice/base.h>
#include <sluice/schedule.h>
#include <sluice/plan.h>
#include <sluice/comm.h>
#include <sluice/device.h>
#include <sluice/op.h>
#include <sluice/kernel.h>
#include <sluice/graph.h>
#include <sluice/sharding.h>
#include <sluice/pipeline.h>
#include <sluice/runtime.h>
#include <sluice/shard.h>
#include <sluice/nn.h>
#include <sluice/optim.h>
#include <sluice/data.h>
#include <sluice/tensor.h>
#include <sluice/train.h>
#include <sluice/tune.h>

#endif
