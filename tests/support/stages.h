/* Runs the stages of a partitioned model one after another in one process: what a pipeline does, without the pipeline.
 * Parameters are shared by all stages; each stage has gradients of its own, which are summed in stage order. */
#ifndef TESTS_SUPPORT_STAGES_H
#define TESTS_SUPPORT_STAGES_H

#include <sluice/nn.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_STAGES = 8 };

typedef struct stage_run {
    sl_stage_program *program;
    const sl_program_info *info;
    void **params, **grads, **inputs, **outputs, **output_grads, **input_grads, **states;
    int *param_index;                     /* in the model's list */
    bool *input_borrowed, *grad_borrowed; /* inputs and output_grads that are a neighbour's memory */
    void *constants, *saved_i, *saved_w, *kept, *scratch;
} stage_run;

typedef struct stages {
    sl_device *device;
    sl_stream *stream;
    sl_param_list *list;
    float **weights, **grads; /* of the whole model, by parameter; shared by all `stages` of one test */
    stage_run stage[MAX_STAGES];
    int count;
    bool trains;
} stages;

static inline void stages_ok(sl_status status)
{
    if (status != SL_OK)
        fail_msg("%s", sl_error_message());
}

static inline void *stages_alloc(stages *s, size_t bytes)
{
    void *block = NULL;
    stages_ok(sl_device_alloc(s->device, bytes ? bytes : 1, &block));
    stages_ok(sl_stream_memset(s->stream, block, 0, bytes));
    return block;
}

static inline int64_t stages_elements(const sl_shape *shape)
{
    int64_t count = 0;
    stages_ok(sl_shape_count(shape, &count));
    return count;
}

/* A device, and room for the parameters and gradients of the model. */
static inline void stages_open(stages *s, const sl_model *model)
{
    memset(s, 0, sizeof *s);
    stages_ok(sl_device_open("cpu", NULL, &s->device));
    stages_ok(sl_stream_create(s->device, &s->stream));
    stages_ok(sl_model_params(model, &s->list));
    int count = sl_param_list_count(s->list);
    s->weights = calloc((size_t)count, sizeof *s->weights);
    s->grads = calloc((size_t)count, sizeof *s->grads);
    for (int i = 0; i < count; i++) {
        size_t bytes = (size_t)stages_elements(&sl_param_list_at(s->list, i)->shape) * sizeof(float);
        s->weights[i] = stages_alloc(s, bytes);
        s->grads[i] = stages_alloc(s, bytes);
    }
}

static inline void **stages_ports(stages *s, const sl_port *ports, int count, bool allocate)
{
    void **blocks = calloc((size_t)count + 1, sizeof *blocks);
    for (int i = 0; allocate && i < count; i++)
        blocks[i] = stages_alloc(s, ports[i].bytes);
    return blocks;
}

static inline void stages_add(stages *s, const sl_partition *partition, int index)
{
    stage_run *run = &s->stage[index];
    sl_program_options options = { .forward_only = !s->trains };
    stages_ok(sl_stage_program_create(partition, index, s->device, &options, &run->program));
    const sl_program_info *info = run->info = sl_stage_program_info(run->program);
    run->params = stages_ports(s, info->params, info->param_count, false);
    run->grads = stages_ports(s, info->params, info->param_count, s->trains);
    run->inputs = stages_ports(s, info->inputs, info->input_count, true);
    run->outputs = stages_ports(s, info->outputs, info->output_count, true);
    run->input_grads = stages_ports(s, info->inputs, info->input_count, s->trains);
    run->output_grads = stages_ports(s, info->outputs, info->output_count, s->trains);
    run->states = stages_ports(s, info->states, info->state_count, true);
    run->input_borrowed = calloc((size_t)info->input_count + 1, sizeof *run->input_borrowed);
    run->grad_borrowed = calloc((size_t)info->output_count + 1, sizeof *run->grad_borrowed);
    run->param_index = calloc((size_t)info->param_count + 1, sizeof *run->param_index);
    for (int i = 0; i < info->param_count; i++) {
        int at = sl_param_list_find(s->list, info->params[i].name);
        assert_true(at >= 0);
        run->param_index[i] = at;
        run->params[i] = s->weights[at];
    }
    size_t scratch = 0;
    for (int phase = 0; phase < SL_PHASE_COUNT; phase++)
        scratch = info->scratch_bytes[phase] > scratch ? info->scratch_bytes[phase] : scratch;
    run->scratch = stages_alloc(s, scratch);
    run->saved_i = stages_alloc(s, info->saved_i_bytes);
    run->saved_w = stages_alloc(s, info->saved_w_bytes);
    run->kept = stages_alloc(s, info->kept_bytes);
    run->constants = stages_alloc(s, info->constant_bytes);
    sl_stage_program_constants(run->program, run->constants);
}

/* Outputs are the next stages' inputs, and their gradients come back the same way. */
static inline void stages_connect(stages *s, const sl_partition *partition)
{
    int count = 0;
    const sl_value_edge *edges = sl_partition_edges(partition, &count);
    for (int i = 0; i < count; i++) {
        stage_run *from = &s->stage[edges[i].from], *to = &s->stage[edges[i].to];
        sl_device_free(s->device, to->inputs[edges[i].input]);
        to->inputs[edges[i].input] = from->outputs[edges[i].output];
        to->input_borrowed[edges[i].input] = true;
        if (s->trains && edges[i].differentiable) {
            sl_device_free(s->device, from->output_grads[edges[i].output]);
            from->output_grads[edges[i].output] = to->input_grads[edges[i].input];
            from->grad_borrowed[edges[i].output] = true;
        }
    }
}

/* Cuts the model and makes the programs. */
static inline void stages_build(stages *s, const sl_model *model, sl_model_mode mode, const sl_model_shape *shape,
                                const sl_split_spec *spec)
{
    sl_graph *graph = NULL;
    sl_partition *partition = NULL;
    stages_ok(sl_model_build(model, mode, shape, &graph));
    stages_ok(sl_graph_partition(graph, spec, &partition));
    s->count = sl_partition_stage_count(partition);
    s->trains = mode == SL_MODE_TRAIN;
    assert_true(s->count <= MAX_STAGES);
    for (int i = 0; i < s->count; i++)
        stages_add(s, partition, i);
    stages_connect(s, partition);
    sl_partition_destroy(partition);
    sl_graph_destroy(graph);
}

/* Copies a root input to every stage that uses it. */
static inline void stages_set_input(stages *s, const char *name, const void *data, size_t bytes)
{
    for (int i = 0; i < s->count; i++) {
        const sl_program_info *info = s->stage[i].info;
        for (int p = 0; p < info->input_count; p++) {
            if (info->inputs[p].root && strcmp(info->inputs[p].name, name) == 0) {
                assert_int_equal(info->inputs[p].bytes, bytes);
                memcpy(s->stage[i].inputs[p], data, bytes);
            }
        }
    }
}

static inline const float *stages_output(const stages *s, const char *name)
{
    for (int i = 0; i < s->count; i++) {
        const sl_program_info *info = s->stage[i].info;
        for (int p = 0; p < info->output_count; p++) {
            if (info->outputs[p].root && strcmp(info->outputs[p].name, name) == 0)
                return s->stage[i].outputs[p];
        }
    }
    fail_msg("no output %s", name);
    return NULL;
}

static inline void stages_run_phase(stages *s, int index, sl_phase phase)
{
    stage_run *run = &s->stage[index];
    const sl_bindings bindings = { .params = (const void *const *)run->params,
                                   .grads = run->grads,
                                   .inputs = (const void *const *)run->inputs,
                                   .outputs = run->outputs,
                                   .output_grads = (const void *const *)run->output_grads,
                                   .input_grads = run->input_grads,
                                   .states = run->states,
                                   .constants = run->constants,
                                   .saved_i = run->saved_i,
                                   .saved_w = run->saved_w,
                                   .kept = run->kept,
                                   .scratch = run->scratch,
                                   .rng = { .training = s->trains } };
    stages_ok(sl_stage_program_run(run->program, phase, s->stream, &bindings));
}

static inline void stages_forward(stages *s)
{
    for (int i = 0; i < s->count; i++)
        stages_run_phase(s, i, SL_PHASE_F);
    stages_ok(sl_stream_synchronize(s->stream));
}

/* Zeroes the gradients, runs B, or I of all stages and then W of all, and sums them into s->grads in stage order. */
static inline void stages_backward(stages *s, bool split)
{
    const float seed = 1;
    for (int i = 0; i < s->count; i++) {
        const sl_program_info *info = s->stage[i].info;
        for (int p = 0; p < info->param_count; p++)
            memset(s->stage[i].grads[p], 0, info->params[p].bytes);
        if (info->loss >= 0)
            memcpy(s->stage[i].output_grads[info->loss], &seed, sizeof seed);
    }
    for (int i = s->count - 1; i >= 0; i--)
        stages_run_phase(s, i, split ? SL_PHASE_I : SL_PHASE_B);
    for (int i = 0; split && i < s->count; i++)
        stages_run_phase(s, i, SL_PHASE_W);
    stages_ok(sl_stream_synchronize(s->stream));
    for (int i = 0; i < sl_param_list_count(s->list); i++)
        memset(s->grads[i], 0, (size_t)stages_elements(&sl_param_list_at(s->list, i)->shape) * sizeof(float));
    for (int i = 0; i < s->count; i++) {
        const stage_run *run = &s->stage[i];
        for (int p = 0; p < run->info->param_count; p++) {
            float *sum = s->grads[run->param_index[p]], *part = run->grads[p];
            for (size_t e = 0; e < run->info->params[p].bytes / sizeof *part; e++)
                sum[e] += part[e];
        }
    }
}

static inline void stages_free_ports(stages *s, void **blocks, int count, const bool *borrowed)
{
    for (int i = 0; i < count; i++) {
        if (!borrowed || !borrowed[i])
            sl_device_free(s->device, blocks[i]);
    }
    free(blocks);
}

static inline void stages_drop(stages *s)
{
    for (int i = 0; i < s->count; i++) {
        stage_run *run = &s->stage[i];
        const sl_program_info *info = run->info;
        stages_free_ports(s, run->grads, s->trains ? info->param_count : 0, NULL);
        stages_free_ports(s, run->inputs, info->input_count, run->input_borrowed);
        stages_free_ports(s, run->outputs, info->output_count, NULL);
        stages_free_ports(s, run->input_grads, s->trains ? info->input_count : 0, NULL);
        stages_free_ports(s, run->output_grads, s->trains ? info->output_count : 0, run->grad_borrowed);
        stages_free_ports(s, run->states, info->state_count, NULL);
        free(run->params);
        free(run->param_index);
        free(run->input_borrowed);
        free(run->grad_borrowed);
        sl_device_free(s->device, run->constants);
        sl_device_free(s->device, run->saved_i);
        sl_device_free(s->device, run->saved_w);
        sl_device_free(s->device, run->kept);
        sl_device_free(s->device, run->scratch);
        sl_stage_program_destroy(run->program);
        memset(run, 0, sizeof *run);
    }
    s->count = 0;
}

static inline void stages_close(stages *s)
{
    stages_drop(s);
    for (int i = 0; i < sl_param_list_count(s->list); i++) {
        sl_device_free(s->device, s->weights[i]);
        sl_device_free(s->device, s->grads[i]);
    }
    free(s->weights);
    free(s->grads);
    sl_param_list_destroy(s->list);
    sl_stream_destroy(s->stream);
    sl_device_close(s->device);
}

#endif
