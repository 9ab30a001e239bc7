/* A model cut into stages that run one after another in the test's process, and the reference models of tests/data. */
#ifndef TESTS_SUPPORT_MODEL_BENCH_H
#define TESTS_SUPPORT_MODEL_BENCH_H

#include "support/runner/runner.h"
#include "support/scratch.h"
#include "support/status.h"

#include <sluice/nn.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { BATCH = 8, SEQ = 32, MOST_STAGES = 4 };

static const char *const reference_names[] = { "gpt2-tiny", "llama-tiny" };

static inline const char *reference_path(const char *model, const char *file)
{
    char path[128];
    snprintf(path, sizeof path, "models/%s/%s", model, file);
    return data_path(path);
}

/* ||a - b|| / ||b|| */
static inline double relative_error(const float *a, const float *b, int64_t count)
{
    double difference = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += (double)b[i] * b[i];
    }
    return sqrt(difference / size);
}

/* Weights and gradients are the runner's, found by the names of params. */
typedef struct bench {
    sl_model model;
    sl_param_list *params;
    sl_device *device;
    test_runner *runner;
} bench;

static inline sl_view param_of(const bench *b, int i)
{
    return test_runner_param(b->runner, sl_param_list_at(b->params, i)->name);
}

static inline sl_view grad_of(const bench *b, int i)
{
    return test_runner_grad(b->runner, sl_param_list_at(b->params, i)->name);
}

static inline void set_up(bench *b, const sl_model *model, sl_model_mode mode, const sl_model_shape *shape,
                          const sl_split_spec *spec, bool split_backward)
{
    sl_graph *graph = NULL;
    sl_partition *partition = NULL;
    test_runner_options options = { .split_backward = split_backward,
                                    .programs = { .forward_only = mode != SL_MODE_TRAIN } };
    *b = (bench){ .model = *model };
    ok(sl_model_params(model, &b->params));
    ok(sl_device_open("cpu", NULL, &b->device));
    ok(sl_model_build(model, mode, shape, &graph));
    ok(sl_graph_partition(graph, spec, &partition));
    ok(test_runner_create(partition, b->device, &options, &b->runner));
    sl_partition_destroy(partition);
    sl_graph_destroy(graph);
}

static inline void tear_down(bench *b)
{
    test_runner_destroy(b->runner);
    sl_device_close(b->device);
    sl_param_list_destroy(b->params);
}

/* The weights of a reference model into the parameters of all stages. */
static inline void read_weights(const bench *b, const sl_model *model, const char *name)
{
    sl_model_weights *weights = NULL;
    ok(sl_model_weights_open(model, reference_path(name, ""), &weights));
    for (int i = 0; i < sl_param_list_count(b->params); i++) {
        sl_view view = param_of(b, i);
        ok(sl_model_weights_read(weights, sl_param_list_at(b->params, i)->name, 0, sl_meta_count(&view.meta),
                                 view.data));
    }
    sl_model_weights_close(weights);
}

/* A reference model with its weights, in 1 to 4 stages: cut before layers and, in four, inside one, too. */
static inline void open_reference(bench *b, const char *name, sl_model_mode mode, int stages,
                                  const sl_model_shape *shape, bool split_backward)
{
    static const char *const cuts[2][MOST_STAGES - 1] = {
        { "transformer.h.2", "transformer.h.1", "transformer.h.3.mlp" },
        { "model.layers.2", "model.layers.1", "model.layers.3.mlp" },
    };
    sl_model model;
    sl_split_point points[MOST_STAGES];
    ok(sl_model_load_config(reference_path(name, ""), &model));
    for (int i = 0; i + 1 < stages; i++)
        points[i] = (sl_split_point){ .module = cuts[model.family == &sl_model_llama][i] };
    sl_split_spec spec = { .kind = stages > 1 ? SL_SPLIT_POINTS : SL_SPLIT_WHOLE,
                           .points = points,
                           .point_count = stages - 1 };
    set_up(b, &model, mode, shape, &spec, split_backward);
    read_weights(b, &model, name);
}

static inline void set_input(const bench *b, const char *name, const void *data, size_t bytes)
{
    sl_view view = test_runner_input(b->runner, 0, name);
    assert_non_null(view.data);
    assert_int_equal(sl_meta_bytes(&view.meta), bytes);
    memcpy(view.data, data, bytes);
}

static inline const float *output(const bench *b, const char *name)
{
    sl_view view = test_runner_output(b->runner, 0, name);
    assert_non_null(view.data);
    return view.data;
}

static inline void run(const bench *b, bool train)
{
    const sl_rng rng = { .training = train };
    ok(train ? test_runner_step(b->runner, &rng, NULL) : test_runner_forward(b->runner, &rng, NULL));
    ok(sl_stream_synchronize(test_runner_stream(b->runner)));
}

/* Copies of all parameters or gradients, for comparing bits. */
typedef struct snapshot {
    float *data[64];
    size_t bytes[64];
    int count;
} snapshot;

static inline void snapshot_take(snapshot *shot, const bench *b, sl_view (*which)(const bench *, int), int i)
{
    sl_view view = which(b, i);
    free(shot->data[i]);
    shot->bytes[i] = sl_meta_bytes(&view.meta);
    shot->data[i] = malloc(shot->bytes[i]);
    memcpy(shot->data[i], view.data, shot->bytes[i]);
    shot->count = i + 1 > shot->count ? i + 1 : shot->count;
}

static inline void snapshot_free(snapshot *shot)
{
    for (int i = 0; i < shot->count; i++)
        free(shot->data[i]);
}

#endif
