/* What tests of stage programs share: graphs run with reproducible data, gradients against finite differences, and
 * results compared bit by bit between ways of running. */
#ifndef TEST_GRAPH_HARNESS_H
#define TEST_GRAPH_HARNESS_H

#include "support/runner/runner.h"

#include <sluice/graph.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DIMS(...)                                                                                                      \
    (int)(sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)), (int64_t[])                                           \
    {                                                                                                                  \
        __VA_ARGS__                                                                                                    \
    }

static const sl_init zeros = { SL_INIT_ZEROS, 0 };

#define ASSERT_OK(call)                                                                                                \
    do {                                                                                                               \
        sl_status status_ = (call);                                                                                    \
        if (status_ != SL_OK)                                                                                          \
            fail_msg("%s: %s", #call, sl_error_message());                                                             \
    } while (0)

static inline void assert_near(double a, double b, double tolerance)
{
    if (!(fabs(a - b) <= tolerance))
        fail_msg("%.9g is not within %g of %.9g", a, tolerance, b);
}

/* A reproducible number in -1..1 from a name and a place. */
static inline double noise(const char *name, uint64_t index)
{
    uint64_t hash = 1469598103934665603u;
    for (; *name; name++)
        hash = (hash ^ (uint8_t)*name) * 1099511628211u;
    hash += index * 0x9e3779b97f4a7c15u;
    hash = (hash ^ hash >> 30) * 0xbf58476d1ce4e5b9u;
    hash = (hash ^ hash >> 27) * 0x94d049bb133111ebu;
    return (double)((hash ^ hash >> 31) >> 11) / (double)(1ull << 52) - 1;
}

/* Fills a tensor on the (host-accessible) device; integers get 0..3. */
static inline void fill(sl_view view, const char *name, uint64_t salt)
{
    int64_t count = sl_meta_count(&view.meta);
    for (int64_t i = 0; i < count; i++) {
        double value = noise(name, (uint64_t)i + salt * 1000003);
        switch (view.meta.dtype) {
        case SL_F32:
            ((float *)view.data)[i] = (float)value;
            break;
        case SL_F64:
            ((double *)view.data)[i] = value;
            break;
        case SL_I32:
            ((int32_t *)view.data)[i] = (int32_t)((value + 1) * 2) % 4;
            break;
        default:
            fail_msg("no filling for %s", sl_dtype_name(view.meta.dtype));
        }
    }
}

static inline double element(sl_view view, int64_t i)
{
    return view.meta.dtype == SL_F64 ? ((const double *)view.data)[i] : ((const float *)view.data)[i];
}

static inline sl_device *open_cpu(void)
{
    sl_device *device = NULL;
    ASSERT_OK(sl_device_open("cpu", NULL, &device));
    return device;
}

/* A runner with parameters and inputs filled. */
static inline test_runner *new_runner(const sl_graph *graph, const sl_split_spec *spec, sl_device *device,
                                      const test_runner_options *options)
{
    sl_partition *partition = NULL;
    test_runner *runner = NULL;
    int roots;
    ASSERT_OK(sl_graph_partition(graph, spec, &partition));
    ASSERT_OK(test_runner_create(partition, device, options, &runner));
    for (int i = 0; i < sl_graph_param_count(graph); i++) {
        const char *name = sl_graph_param_at(graph, i).name;
        sl_view param = test_runner_param(runner, name);
        if (!sl_view_is_none(&param))
            fill(param, name, 0);
    }
    const sl_root_input *inputs = sl_partition_root_inputs(partition, &roots);
    for (int m = 0; m < (options && options->microbatches ? options->microbatches : 1); m++) {
        for (int i = 0; i < roots; i++) {
            sl_view input = test_runner_input(runner, m, inputs[i].name);
            if (!sl_view_is_none(&input))
                fill(input, inputs[i].name, (uint64_t)m + 1);
        }
    }
    sl_partition_destroy(partition);
    return runner;
}

static const sl_rng test_rng = { .seed = 11, .step = 5, .sample_offset = 100, .training = true };

/* Sum over microbatches of the loss. */
static inline double total_loss(test_runner *runner, int microbatches)
{
    double sum = 0;
    ASSERT_OK(test_runner_forward(runner, &test_rng, NULL));
    for (int m = 0; m < microbatches; m++)
        sum += element(test_runner_output(runner, m, "loss"), 0);
    return sum;
}

/* Compares the gradient of one f64 tensor with central differences of the loss, element by element. */
static inline void check_tensor(test_runner *runner, int microbatches, const char *name, sl_view data, sl_view grad)
{
    int64_t count = sl_meta_count(&data.meta);
    double *analytic = malloc((size_t)count * sizeof *analytic);
    for (int64_t i = 0; i < count; i++)
        analytic[i] = element(grad, i);
    for (int64_t i = 0; i < count; i++) {
        double *x = (double *)data.data + i, saved = *x, h = 1e-5;
        *x = saved + h;
        double up = total_loss(runner, microbatches);
        *x = saved - h;
        double down = total_loss(runner, microbatches);
        *x = saved;
        double numeric = (up - down) / (2 * h);
        if (!(fabs(numeric - analytic[i]) <= 2e-7 + 2e-6 * fabs(numeric)))
            fail_msg("gradient of %s[%lld] is %.10g, finite differences give %.10g", name, (long long)i, analytic[i],
                     numeric);
    }
    free(analytic);
}

/* Every parameter and differentiable input of an f64 graph. */
static inline void check_gradients(const sl_graph *graph, const sl_split_spec *spec, test_runner_options options)
{
    sl_device *device = open_cpu();
    options.microbatches = options.microbatches ? options.microbatches : 1;
    test_runner *runner = new_runner(graph, spec, device, &options);
    ASSERT_OK(test_runner_step(runner, &test_rng, NULL));
    for (int i = 0; i < sl_graph_param_count(graph); i++) {
        const char *name = sl_graph_param_at(graph, i).name;
        sl_view data = test_runner_param(runner, name);
        if (!sl_view_is_none(&data))
            check_tensor(runner, options.microbatches, name, data, test_runner_grad(runner, name));
    }
    for (int m = 0; m < options.microbatches; m++) {
        sl_view data = test_runner_input(runner, m, "x"), grad = test_runner_input_grad(runner, m, "x");
        if (!sl_view_is_none(&grad))
            check_tensor(runner, options.microbatches, "x", data, grad);
    }
    test_runner_destroy(runner);
    sl_device_close(device);
}

/* The bits that one way of running gives: losses, gradients of parameters and of the input x. */
typedef struct results {
    char *bytes;
    size_t size;
} results;

static inline void collect(results *out, sl_view view)
{
    if (sl_view_is_none(&view))
        return;
    size_t bytes = sl_meta_bytes(&view.meta);
    out->bytes = realloc(out->bytes, out->size + bytes + 1);
    memcpy(out->bytes + out->size, view.data, bytes);
    out->size += bytes;
}

static inline results run_and_collect(const sl_graph *graph, const sl_split_spec *spec, test_runner_options options)
{
    results out = { NULL, 0 };
    sl_device *device = open_cpu();
    test_runner *runner = new_runner(graph, spec, device, &options);
    ASSERT_OK(test_runner_step(runner, &test_rng, NULL));
    for (int i = 0; i < sl_graph_param_count(graph); i++)
        collect(&out, test_runner_grad(runner, sl_graph_param_at(graph, i).name));
    for (int m = 0; m < (options.microbatches ? options.microbatches : 1); m++) {
        collect(&out, test_runner_output(runner, m, "loss"));
        collect(&out, test_runner_input_grad(runner, m, "x"));
    }
    test_runner_destroy(runner);
    sl_device_close(device);
    return out;
}

static inline void assert_same_bits(const results *a, const results *b, const char *what)
{
    if (a->size != b->size)
        fail_msg("%s: %zu bytes of results instead of %zu", what, b->size, a->size);
    for (size_t i = 0; i < a->size; i++) {
        if (a->bytes[i] != b->bytes[i])
            fail_msg("%s: results differ at byte %zu of %zu", what, i, a->size);
    }
}

#endif
