/* What the ranks tell each other when a runtime is created. */
#ifndef SL_RUNTIME_GATHER_H
#define SL_RUNTIME_GATHER_H

#include "base/arena.h"
#include "runtime/stage.h"

/* Collective. Fills schedule, stages and args of out from what all ranks were given; they live in the arena. outcome is
 * how this rank has fared so far: if one has failed, all fail with its code and message. */
SL_MUST_CHECK sl_status sl_gather_stages(const sl_runtime_options *options, sl_status outcome, sl_arena *arena,
                                         sl_pipeline_options *out);

/* Collective: SL_OK if every member says so; else all fail with the first failing member's message. member is what they
 * are: "rank" or "replica". */
SL_MUST_CHECK sl_status sl_gather_outcomes(sl_group *group, const char *member, sl_status outcome);

#endif
