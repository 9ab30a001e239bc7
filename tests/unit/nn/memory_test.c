/* Memory of whole models: a step allocates nothing, and programs live in what their info predicts, no byte more and no
 * phase longer. */
#include "support/model_bench.h"

#include "base/alloc.h"

#include <stdlib.h>

enum { WORDS = 50, WIDTH = 24, LAYERS = 2, HEADS = 4, TOKENS = 16 };

/* Of gpt2 and llama. */
static const char *const modules[] = { "transformer.h.*", "model.layers.*" };

/* Sizes for which nothing is a multiple of anything; every dropout that the family has. */
static sl_model small_model(int family)
{
    sl_model model = sl_model_default(family == 0 ? &sl_model_gpt2 : &sl_model_llama);
    if (family == 0)
        model.gpt2 = (sl_gpt2_config){ .vocab_size = WORDS,
                                       .n_positions = TOKENS,
                                       .n_embd = WIDTH,
                                       .n_layer = LAYERS,
                                       .n_head = HEADS,
                                       .layer_norm_epsilon = 1e-5,
                                       .initializer_range = 0.2,
                                       .embd_pdrop = 0.1,
                                       .resid_pdrop = 0.1,
                                       .attn_pdrop = 0.1,
                                       .tie_word_embeddings = true };
    else
        model.decoder = (sl_decoder_config){ .vocab_size = WORDS,
                                             .max_position_embeddings = TOKENS,
                                             .hidden_size = WIDTH,
                                             .intermediate_size = 35,
                                             .num_hidden_layers = LAYERS,
                                             .num_attention_heads = HEADS,
                                             .num_key_value_heads = 2,
                                             .rms_norm_eps = 1e-6,
                                             .initializer_range = 0.2,
                                             .rope = { .theta = 10000 },
                                             .attention_dropout = 0.1 };
    return model;
}

static sl_partition *cut(const sl_model *model, int stages)
{
    sl_graph *graph = NULL;
    sl_partition *partition = NULL;
    ok(sl_model_build(model, SL_MODE_TRAIN, &(sl_model_shape){ .batch = 3, .seq = TOKENS - 1 }, &graph));
    ok(sl_graph_partition(graph, &(sl_split_spec){ .kind = SL_SPLIT_EQUAL, .stages = stages }, &partition));
    sl_graph_destroy(graph);
    return partition;
}

static const sl_rng rng = { .seed = 1, .training = true };

static void a_step_allocates_nothing(void **state)
{
    (void)state;
    for (int round = 0; round < 8; round++) {
        int family = round % 2, threads = 1 + round / 2 % 2;
        bool recompute = round / 4 % 2;
        sl_model model = small_model(family);
        sl_partition *partition = cut(&model, 2);
        sl_device *device = NULL;
        test_runner *runner = NULL;
        test_runner_options options = { .microbatches = 2, .split_backward = !recompute };
        options.programs = (sl_program_options){ .recompute = &modules[family], .recompute_count = recompute };
        ok(sl_device_open("cpu", &(sl_device_options){ .threads = threads }, &device));
        ok(test_runner_create(partition, device, &options, &runner));
        for (int m = 0; m < 4; m++) {
            sl_view ids = test_runner_input(runner, m / 2, m % 2 ? "tokens" : "targets");
            memset(ids.data, 0, sl_meta_bytes(&ids.meta));
        }
        ok(test_runner_step(runner, &rng, NULL)); /* kernels may set up what they keep */
        int64_t allocations = sl_alloc_count();
        size_t in_use = sl_device_get_memory(device).in_use;
        ok(test_runner_step(runner, &rng, NULL));
        assert_int_equal(sl_alloc_count(), allocations);
        assert_int_equal(sl_device_get_memory(device).peak, in_use);
        assert_int_equal(in_use, test_runner_bytes(runner));
        test_runner_destroy(runner);
        sl_device_close(device);
        sl_partition_destroy(partition);
    }
}

/* ---- Regions --------------------------------------------------------------------------------- */

enum { GUARD = 64, POISON = 0xFF, MOST_BLOCKS = 256 }; /* poison: NaN as floats, -1 as indices */

/* Every block between two guards, and poisoned if nothing is to be found in it. */
typedef struct blocks {
    unsigned char *start[MOST_BLOCKS];
    size_t bytes[MOST_BLOCKS];
    int count;
} blocks;

static void *block(blocks *all, size_t bytes)
{
    void *start = NULL;
    assert_true(all->count < MOST_BLOCKS);
    assert_int_equal(posix_memalign(&start, GUARD, bytes + 2 * GUARD), 0);
    memset(start, 0xA5, bytes + 2 * GUARD);
    memset((char *)start + GUARD, POISON, bytes);
    all->start[all->count] = start;
    all->bytes[all->count++] = bytes;
    return (char *)start + GUARD;
}

static void close_blocks(blocks *all)
{
    for (int i = 0; i < all->count; i++) {
        for (int g = 0; g < GUARD; g++)
            assert_true(all->start[i][g] == 0xA5 && all->start[i][GUARD + all->bytes[i] + (size_t)g] == 0xA5);
        free(all->start[i]);
    }
}

static void run_phase(const sl_stage_program *program, sl_stream *stream, sl_phase phase, sl_bindings *bindings,
                      blocks *all)
{
    bindings->scratch = block(all, sl_stage_program_info(program)->scratch_bytes[phase]); /* a fresh one */
    ok(sl_stage_program_run(program, phase, stream, bindings));
    ok(sl_stream_synchronize(stream));
}

/* A whole step in blocks of its own; returns the gradients one after another, *size bytes. */
static char *gradients_of(const sl_stage_program *program, sl_stream *stream, bool split, size_t *size)
{
    const sl_program_info *info = sl_stage_program_info(program);
    const void *params[64], *inputs[8], *output_grads[1];
    void *grads[64], *outputs[1], *input_grads[8] = { NULL };
    blocks all = { .count = 0 };
    assert_int_equal(info->output_count, 1); /* the loss */
    for (int i = 0; i < info->param_count; i++) {
        const sl_port *port = &info->params[i];
        sl_param_info param = { port->name, port->dtype, port->shape, port->init };
        params[i] = block(&all, port->bytes);
        grads[i] = block(&all, port->bytes);
        sl_param_init(&param, 1, 0, (int64_t)(port->bytes / sizeof(float)), (float *)params[i]);
    }
    for (int i = 0; i < info->input_count; i++) {
        int32_t *ids = block(&all, info->inputs[i].bytes);
        for (size_t k = 0; k < info->inputs[i].bytes / sizeof *ids; k++)
            ids[k] = (int32_t)(k * 7 % WORDS);
        inputs[i] = ids;
    }
    outputs[0] = block(&all, sizeof(float));
    float *seed = block(&all, sizeof(float)), loss;
    *seed = 1;
    output_grads[0] = seed;
    void *constants = block(&all, info->constant_bytes);
    sl_stage_program_constants(program, constants);
    sl_bindings bindings = { .params = params,
                             .grads = grads,
                             .overwrite_grads = true,
                             .inputs = inputs,
                             .outputs = outputs,
                             .output_grads = output_grads,
                             .input_grads = input_grads,
                             .constants = constants,
                             .saved_i = block(&all, info->saved_i_bytes),
                             .saved_w = block(&all, info->saved_w_bytes),
                             .kept = split ? block(&all, info->kept_bytes) : NULL,
                             .rng = rng };
    run_phase(program, stream, SL_PHASE_F, &bindings, &all);
    memcpy(&loss, outputs[0], sizeof loss);
    assert_true(isfinite(loss));
    run_phase(program, stream, split ? SL_PHASE_I : SL_PHASE_B, &bindings, &all);
    if (split) { /* what the info says is dead is gone before W */
        memset(bindings.saved_i, POISON, info->saved_i_bytes);
        for (int i = 0; i < info->input_count; i++) {
            if (info->inputs[i].last_use < SL_PHASE_W)
                memset((void *)inputs[i], POISON, info->inputs[i].bytes);
        }
        if (info->outputs[0].grad_last_use < SL_PHASE_W)
            memset(seed, POISON, sizeof *seed);
        run_phase(program, stream, SL_PHASE_W, &bindings, &all);
    }
    char *result = malloc(info->param_bytes);
    *size = 0;
    for (int i = 0; i < info->param_count; *size += info->params[i++].bytes)
        memcpy(result + *size, grads[i], info->params[i].bytes);
    close_blocks(&all);
    return result;
}

static void programs_stay_within_the_memory_that_was_predicted(void **state)
{
    (void)state;
    for (int family = 0; family < 2; family++) {
        sl_model model = small_model(family);
        sl_partition *partition = cut(&model, 1);
        sl_device *device = NULL;
        sl_stream *stream = NULL;
        char *first = NULL;
        size_t saved[2] = { 0 };
        ok(sl_device_open("cpu", NULL, &device));
        ok(sl_stream_create(device, &stream));
        for (int round = 0; round < 4; round++) { /* B, I and W; with recomputation B, I and W */
            sl_stage_program *program = NULL;
            sl_program_options options = { .recompute = &modules[family], .recompute_count = round / 2 };
            size_t size;
            ok(sl_stage_program_create(partition, 0, device, &options, &program));
            const sl_program_info *info = sl_stage_program_info(program);
            saved[round / 2] = info->saved_i_bytes + info->saved_w_bytes;
            char *gradients = gradients_of(program, stream, round % 2, &size);
            if (!first)
                first = gradients;
            else
                assert_memory_equal(gradients, first, size);
            for (size_t i = 0; i < size / sizeof(float); i++)
                assert_true(isfinite(((const float *)(const void *)gradients)[i]));
            if (gradients != first)
                free(gradients);
            sl_stage_program_destroy(program);
        }
        assert_true(saved[1] < saved[0] / 2); /* recomputation is for this */
        free(first);
        sl_stream_destroy(stream);
        sl_device_close(device);
        sl_partition_destroy(partition);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_allocates_nothing),
        cmocka_unit_test(programs_stay_within_the_memory_that_was_predicted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
