/* Fused programs of models: the same bits as plain ones, wherever the model is cut, with I and W apart or together, and
 * with activations that are computed again; and they are indeed fused. */
#include "nn/family.h"
#include "support/runner/runner.h"
#include "support/scratch.h"
#include "support/status.h"
#include "support/tensors.h"

#include <sluice/nn.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One way to run a model. */
typedef struct SL_NAMED_FIELDS variant {
    const char *name;
    int stages; /* 0: two, cut between a sum and its norm */
    bool split_backward, recompute, plain;
    bool joined; /* one product for linears of the same input */
} variant;

static sl_model model_of(int which)
{
    sl_model model;
    ok(sl_model_load_config(data_path(which == 0 ? "models/gpt2-tiny" : "models/llama-tiny"), &model));
    /* Gradients of a weight that is tied across a cut add up in another order. */
    if (which == 0)
        model.gpt2.tie_word_embeddings = false;
    else
        model.decoder.tie_word_embeddings = false;
    return model;
}

/* The second norm that follows a sum: a cut right before it parts the two. */
static int norm_after_sum(const sl_graph *graph)
{
    int found = 0;
    for (int i = 1; i < sl_graph_node_count(graph); i++) {
        const char *name = sl_graph_node_name(graph, i);
        if ((strstr(name, "ln_2") || strstr(name, "post_attention_layernorm")) && ++found == 2)
            return i;
    }
    fail_msg("no norm to cut before");
    return -1;
}

static test_runner *run(const sl_model *model, sl_dtype dtype, sl_device *device, const variant *v)
{
    static const sl_dtype f32 = SL_F32;
    const char *const layers[] = { model->family == &sl_model_gpt2 ? "transformer.h.*" : "model.layers.*" };
    sl_graph *graph = NULL;
    sl_partition *partition = NULL;
    test_runner *runner = NULL;
    ok(sl_model_build(model, SL_MODE_TRAIN,
                      &(sl_model_shape){ .batch = 2, .seq = 8, .dtype = dtype, .joined = v->joined }, &graph));
    int cut = norm_after_sum(graph);
    const sl_split_spec equal = { .kind = SL_SPLIT_EQUAL, .stages = v->stages };
    const sl_split_spec before = { .kind = SL_SPLIT_NODES, .nodes = &cut, .node_count = 1 };
    ok(sl_graph_partition(graph, v->stages == 0 ? &before : v->stages > 1 ? &equal : NULL, &partition));
    const test_runner_options options = { .microbatches = 2,
                                          .split_backward = v->split_backward,
                                          .programs = { .grad_dtype = &f32,
                                                        .recompute = layers,
                                                        .recompute_count = v->recompute,
                                                        .fusion = v->plain ? SL_FUSION_NONE : SL_FUSION_ALL } };
    ok(test_runner_create(partition, device, &options, &runner));
    for (int i = 0; i < sl_graph_param_count(graph); i++) {
        const sl_param_info info = sl_graph_param_at(graph, i);
        const sl_view view = test_runner_param(runner, info.name);
        int64_t count = sl_meta_count(&view.meta);
        float *values = malloc((size_t)count * sizeof *values);
        sl_param_init(&info, 3, 0, count, values);
        ok(sl_f32_convert(values, count, dtype, view.data));
        free(values);
    }
    for (int m = 0; m < 2; m++) {
        const sl_view tokens = test_runner_input(runner, m, "tokens"),
                      targets = test_runner_input(runner, m, "targets");
        for (int i = 0; i < 16; i++) {
            ((int32_t *)tokens.data)[i] = (7 * i + 3 * m) % 50;
            ((int32_t *)targets.data)[i] = (5 * i + m) % 50;
        }
    }
    ok(test_runner_step(runner, &(sl_rng){ .seed = 1, .training = true }, NULL));
    sl_partition_destroy(partition);
    sl_graph_destroy(graph);
    return runner;
}

static void compare(const sl_model *model, const variant *v, const test_runner *a, const test_runner *b)
{
    sl_param_list *params = NULL;
    ok(sl_model_params(model, &params));
    for (int m = 0; m < 2; m++)
        assert_memory_equal(test_runner_output(a, m, "loss").data, test_runner_output(b, m, "loss").data, 4);
    for (int i = 0; i < sl_param_list_count(params); i++) {
        const char *name = sl_param_list_at(params, i)->name;
        const sl_view x = test_runner_grad(a, name), y = test_runner_grad(b, name);
        if (memcmp(x.data, y.data, sl_meta_bytes(&x.meta)) != 0)
            fail_msg("%s: the gradient of %s has other bits than without fusion (%s)", model->family->name, name,
                     v->name);
    }
    sl_param_list_destroy(params);
}

static void fused_programs_have_the_bits_of_plain_ones(void **state)
{
    (void)state;
    static const variant variants[] = {
        { .name = "whole", .stages = 1 },
        { .name = "I and W apart", .stages = 1, .split_backward = true },
        { .name = "two stages", .stages = 2 },
        { .name = "cut between a sum and its norm", .stages = 0 },
        { .name = "cut there, I and W apart", .stages = 0, .split_backward = true },
        { .name = "computed again", .stages = 1, .recompute = true },
    };
    sl_device *device = NULL;
    ok(sl_device_open("cpu", NULL, &device));
    for (int which = 0; which < 2; which++) {
        for (int kind = 0; kind < 2; kind++) {
            const sl_dtype dtype = kind ? SL_BF16 : SL_F32;
            const sl_model model = model_of(which);
            test_runner *plain = run(&model, dtype, device, &(variant){ .stages = 1, .plain = true });
            for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
                test_runner *fused = run(&model, dtype, device, &variants[i]);
                compare(&model, &variants[i], plain, fused);
                test_runner_destroy(fused);
            }
            test_runner_destroy(plain);
        }
    }
    sl_device_close(device);
}

static double distance(const sl_view *a, const sl_view *b)
{
    const float *x = a->data, *y = b->data; /* gradients are f32 */
    double difference = 0, size = 0;
    for (int64_t i = 0; i < sl_meta_count(&a->meta); i++) {
        difference += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
        size += (double)y[i] * y[i];
    }
    return sqrt(difference / size);
}

/* The gradient of the shared input is one sum then, and not three that are added. So the bits differ from those of
 * products apart, and from each other they must not. */
static void joined_products_agree_with_products_apart(void **state)
{
    (void)state;
    static const variant variants[] = {
        { .name = "I and W apart", .stages = 1, .split_backward = true, .joined = true },
        { .name = "two stages", .stages = 2, .joined = true },
        { .name = "without fusion", .stages = 2, .plain = true, .joined = true },
        { .name = "computed again", .stages = 1, .recompute = true, .joined = true },
    };
    sl_device *device = NULL;
    sl_param_list *params = NULL;
    const sl_model model = model_of(1);
    ok(sl_device_open("cpu", NULL, &device));
    ok(sl_model_params(&model, &params));
    for (int kind = 0; kind < 2; kind++) {
        const sl_dtype dtype = kind ? SL_BF16 : SL_F32;
        test_runner *apart = run(&model, dtype, device, &(variant){ .stages = 1 });
        test_runner *joined = run(&model, dtype, device, &(variant){ .stages = 1, .joined = true });
        for (int i = 0; i < sl_param_list_count(params); i++) {
            const char *name = sl_param_list_at(params, i)->name;
            const sl_view x = test_runner_grad(joined, name), y = test_runner_grad(apart, name);
            if (!(distance(&x, &y) < (kind ? 2e-2 : 2e-6)))
                fail_msg("the gradient of %s differs by %g", name, distance(&x, &y));
        }
        for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
            test_runner *other = run(&model, dtype, device, &variants[i]);
            compare(&model, &variants[i], joined, other);
            test_runner_destroy(other);
        }
        test_runner_destroy(joined);
        test_runner_destroy(apart);
    }
    sl_param_list_destroy(params);
    sl_device_close(device);
}

/* How many lines of a program's dump have the text. */
static int lines_with(const sl_stage_program *program, const char *text)
{
    char *dump = NULL;
    size_t size = 0;
    int count = 0;
    FILE *file = open_memstream(&dump, &size);
    sl_stage_program_dump(program, file);
    fclose(file);
    for (const char *at = dump; (at = strstr(at, text)); at += strlen(text))
        count++;
    free(dump);
    return count;
}

static void a_gpt_has_the_fused_ops(void **state)
{
    (void)state;
    sl_device *device = NULL;
    const sl_model model = model_of(0);
    ok(sl_device_open("cpu", NULL, &device));
    test_runner *fused = run(&model, SL_F32, device, &(variant){ .stages = 1 });
    const sl_stage_program *program = test_runner_program(fused, 0);
    int layers = (int)model.gpt2.n_layer;
    /* All but the first, whose sum stretches the positions over the batch. */
    assert_int_equal(lines_with(program, " add_layernorm("), 2 * layers);
    assert_int_equal(lines_with(program, " layernorm("), 1);
    assert_int_equal(lines_with(program, " layernorm_grad("), 2 * layers + 1); /* of B; I and W have the plain ones */
    assert_int_equal(lines_with(program, " layernorm_grad_x("), 2 * layers + 1);
    assert_int_equal(lines_with(program, " gelu_tanh_grad_sum("), layers);
    test_runner_destroy(fused);
    /* The processor has none unless asked. */
    sl_graph *graph = NULL;
    sl_partition *partition = NULL;
    sl_stage_program *plain = NULL;
    ok(sl_model_build(&model, SL_MODE_TRAIN, &(sl_model_shape){ .batch = 2, .seq = 8 }, &graph));
    ok(sl_graph_partition(graph, NULL, &partition));
    ok(sl_stage_program_create(partition, 0, device, NULL, &plain));
    assert_int_equal(lines_with(plain, "add_layernorm"), 0);
    sl_stage_program_destroy(plain);
    sl_partition_destroy(partition);
    sl_graph_destroy(graph);
    sl_device_close(device);
}

static void a_llama_has_one_product_for_linears_of_one_input(void **state)
{
    (void)state;
    sl_device *device = NULL;
    const sl_model model = model_of(1);
    int layers = (int)model.decoder.num_hidden_layers;
    ok(sl_device_open("cpu", NULL, &device));
    for (int joined = 0; joined < 2; joined++) {
        test_runner *runner = run(&model, SL_F32, device, &(variant){ .stages = 1, .joined = joined == 1 });
        const sl_stage_program *program = test_runner_program(runner, 0);
        const sl_program_info *info = sl_stage_program_info(program);
        int products = layers * (joined ? 4 : 7) + 1, followers = 0; /* and the head */
        for (int i = 0; i < info->param_count; i++)
            followers += info->params[i].follows;
        assert_int_equal(followers, joined ? 3 * layers : 0);
        assert_int_equal(lines_with(program, " linear("), products);
        assert_int_equal(lines_with(program, " linear_grad_x("), 2 * products); /* in I, and in B */
        assert_int_equal(lines_with(program, " linear_grad_w("), 2 * products); /* in W, and in B */
        assert_int_equal(lines_with(program, " copy("),
                         2 * layers); /* of priors, in I: the parts are written in place */
        assert_int_equal(lines_with(program, " concat("), 0);
        assert_int_equal(lines_with(program, " rope_pair("), 3 * layers); /* in F, in I, and in B */
        assert_int_equal(lines_with(program, " rope("), 0);
        test_runner_destroy(runner);
    }
    sl_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fused_programs_have_the_bits_of_plain_ones),
        cmocka_unit_test(joined_products_agree_with_products_apart),
        cmocka_unit_test(a_llama_has_one_product_for_linears_of_one_input),
        cmocka_unit_test(a_gpt_has_the_fused_ops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
