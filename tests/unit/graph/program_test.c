/* Stage programs: what they compute, what they leave alone, and that cuts change nothing. */
#include "unit/graph/transformer.h"

#include "graph/program.h"

#include <float.h>
#include <stdio.h>

static int count_ops(const sl_stage_program *program, sl_phase phase, sl_op op)
{
    int count = 0;
    for (int i = 0; i < program->plan.phases[phase].count; i++)
        count += program->plan.phases[phase].items[i].op == op;
    return count;
}

/* How many instructions of a phase write to a port. */
static int count_writes(const sl_stage_program *program, sl_phase phase, sl_home home, int index)
{
    const sl_program_place *places = phase == SL_PHASE_B ? program->plan.whole : program->plan.split;
    int count = 0;
    for (int i = 0; i < program->plan.phases[phase].count; i++) {
        const sl_instruction *step = &program->plan.phases[phase].items[i];
        for (int o = 0; o < step->output_count; o++) {
            const sl_program_place *place = &places[step->outputs[o].storage];
            count += place->home == home && place->index == index;
        }
    }
    return count;
}

static int find_port(const sl_port *ports, int count, const char *name)
{
    for (int i = 0; i < count; i++) {
        if (strcmp(ports[i].name, name) == 0)
            return i;
    }
    fail_msg("no port %s", name);
    return -1;
}

/* ---- Work ------------------------------------------------------------------------------------ */

static void b_is_i_and_w_and_nothing_is_computed_twice(void **state)
{
    (void)state;
    sl_graph *g = transformer(B, 3, false, 0.1);
    sl_stage_program *program = program_of(g, NULL, 0, NULL);
    for (int op = 0; op < SL_OP_COUNT; op++) {
        int b = count_ops(program, SL_PHASE_B, (sl_op)op), i = count_ops(program, SL_PHASE_I, (sl_op)op);
        if (op != SL_OP_COPY) /* copies keep what W still needs from what I adds to */
            assert_int_equal(b, i + count_ops(program, SL_PHASE_W, (sl_op)op));
    }
    assert_int_equal(count_ops(program, SL_PHASE_B, SL_OP_LINEAR_GRAD_X), 3 * 4 + 1);
    assert_int_equal(count_ops(program, SL_PHASE_B, SL_OP_LINEAR_GRAD_W), 3 * 4 + 1);
    assert_int_equal(count_ops(program, SL_PHASE_W, SL_OP_LINEAR_GRAD_X), 0);
    assert_int_equal(count_ops(program, SL_PHASE_I, SL_OP_LINEAR_GRAD_W), 0);
    assert_int_equal(count_ops(program, SL_PHASE_B, SL_OP_ATTENTION_GRAD), 3);
    sl_stage_program_destroy(program);
    sl_graph_destroy(g);
}

/* What lies below the first parameter that is trained is not differentiated. */
static void frozen_parameters_cost_no_gradients(void **state)
{
    (void)state;
    sl_graph *g = transformer(B, 3, false, 0);
    sl_stage_program *whole = program_of(g, NULL, 0, NULL);
    const sl_program_info *info = sl_stage_program_info(whole);
    const char *names[64];
    int count = 0;
    for (int i = 0; i < info->param_count; i++) {
        assert_false(info->params[i].frozen);
        if (strncmp(info->params[i].name, "h.2.", 4) != 0 && strncmp(info->params[i].name, "lm_head", 7) != 0)
            names[count++] = info->params[i].name;
    }
    assert_true(count > 10 && count < info->param_count);
    assert_int_equal(sl_graph_freeze(g, names, count), SL_OK);
    sl_stage_program *program = program_of(g, NULL, 0, NULL);
    const sl_program_info *frozen = sl_stage_program_info(program);
    int kept = 0;
    for (int i = 0; i < frozen->param_count; i++) {
        kept += !frozen->params[i].frozen;
        assert_true(frozen->params[i].has_grad == !frozen->params[i].frozen);
    }
    assert_int_equal(kept, info->param_count - count);
    assert_int_equal(count_ops(program, SL_PHASE_B, SL_OP_ATTENTION_GRAD), 1);
    assert_int_equal(count_ops(program, SL_PHASE_B, SL_OP_EMBEDDING_GRAD), 0);
    assert_int_equal(count_ops(program, SL_PHASE_B, SL_OP_LINEAR_GRAD_W), 4 + 1);
    assert_int_equal(count_ops(program, SL_PHASE_B, SL_OP_LINEAR_GRAD_X), 4 + 1);
    assert_true(frozen->saved_i_bytes + frozen->saved_w_bytes < info->saved_i_bytes + info->saved_w_bytes);
    assert_int_equal(sl_graph_freeze(g, (const char *const[]){ "h.2.none" }, 1), SL_ERR_ARGUMENT);
    assert_non_null(strstr(sl_error_message(), "no parameter 'h.2.none'"));
    sl_stage_program_destroy(program);
    sl_stage_program_destroy(whole);
    sl_graph_destroy(g);
}

static void b_of_a_transformer_moves_no_data_around(void **state)
{
    (void)state;
    sl_graph *g = transformer(B, 3, false, 0);
    sl_stage_program *program = program_of(g, NULL, 0, NULL);
    for (int phase = 0; phase < SL_PHASE_COUNT; phase++) {
        assert_int_equal(count_ops(program, (sl_phase)phase, SL_OP_CONCAT), 0);
        assert_int_equal(count_ops(program, (sl_phase)phase, SL_OP_FILL), 0);
    }
    assert_int_equal(count_ops(program, SL_PHASE_F, SL_OP_COPY), 0);
    assert_int_equal(count_ops(program, SL_PHASE_B, SL_OP_COPY), 0);
    assert_int_equal(count_ops(program, SL_PHASE_B, SL_OP_ADD), 0); /* residual gradients are added by the norms */
    sl_stage_program_destroy(program);
    sl_graph_destroy(g);
}

/* All but that of a table that the embedding adds to as well. Sums in place go on without copies of what is still read. */
static void gradients_of_weights_can_run_beside_the_rest_of_b(void **state)
{
    (void)state;
    for (int tied = 0; tied < 2; tied++) {
        sl_graph *g = transformer(B, 3, tied, 0);
        sl_stage_program *program = program_of(g, NULL, 0, &(sl_program_options){ .beside_flops = 1 });
        int found[SL_PHASE_COUNT] = { 0 };
        for (int phase = 0; phase < SL_PHASE_COUNT; phase++) {
            const sl_instruction_list *list = &program->plan.phases[phase];
            for (int i = 0; i < list->count; i++) {
                found[phase] += list->items[i].beside;
                assert_true(!list->items[i].beside || list->items[i].op == SL_OP_LINEAR_GRAD_W);
                assert_true(list->items[i].beside == (list->items[i].until > list->items[i].time));
            }
        }
        assert_int_equal(found[SL_PHASE_F] + found[SL_PHASE_I] + found[SL_PHASE_W], 0);
        assert_int_equal(found[SL_PHASE_B], 3 * 4 + !tied);
        assert_int_equal(count_ops(program, SL_PHASE_B, SL_OP_COPY), 0);
        sl_stage_program_destroy(program);
        sl_graph_destroy(g);
    }
}

static void the_gradient_of_logits_takes_their_place(void **state)
{
    (void)state;
    sl_graph *g = NULL; /* without the output "logits", which has to stay */
    ASSERT_OK(sl_graph_create(&g));
    sl_value x = sl_graph_input(g, "x", SL_F32, DIMS(4, C)), t = sl_graph_input(g, "t", SL_I32, DIMS(4));
    sl_graph_loss(g, sl_cross_entropy(g, sl_linear(g, x, param(g, "w", DIMS(V, C)), SL_NO_VALUE), t, -100));
    ASSERT_OK(sl_graph_finish(g));
    sl_stage_program *program = program_of(g, NULL, 0, NULL);
    const sl_program_info *info = sl_stage_program_info(program);
    assert_int_equal(info->kept_bytes, 0);
    assert_int_equal(info->saved_w_bytes, 192); /* 4 x 11 floats, rounded up to 64 bytes */
    assert_int_equal(info->saved_i_bytes, 64);  /* 4 logsumexps */
    sl_stage_program_destroy(program);
    sl_graph_destroy(g);
}

static void w_recomputes_nothing(void **state)
{
    (void)state;
    sl_graph *g = transformer(B, 3, false, 0.1);
    const char *const modules[] = { "h.*" };
    const sl_program_options options = { .recompute = modules, .recompute_count = 1 };
    sl_stage_program *plain = program_of(g, NULL, 0, NULL), *again = program_of(g, NULL, 0, &options);
    static const sl_op forward[] = { SL_OP_LINEAR, SL_OP_LAYERNORM, SL_OP_ATTENTION, SL_OP_GELU_TANH };
    for (size_t i = 0; i < sizeof forward / sizeof *forward; i++) {
        assert_int_equal(count_ops(again, SL_PHASE_W, forward[i]), 0);
        assert_int_equal(count_ops(plain, SL_PHASE_I, forward[i]), 0);
        assert_true(count_ops(again, SL_PHASE_I, forward[i]) >= 3);
        assert_int_equal(count_ops(again, SL_PHASE_I, forward[i]), count_ops(again, SL_PHASE_B, forward[i]));
    }
    /* c_proj's result of the mlp is needed by no gradient: 3 of a block's 4 products run again. */
    assert_int_equal(count_ops(again, SL_PHASE_I, SL_OP_LINEAR), 3 * 3);
    const sl_program_info *a = sl_stage_program_info(plain), *b = sl_stage_program_info(again);
    assert_true(b->saved_i_bytes + b->saved_w_bytes < (a->saved_i_bytes + a->saved_w_bytes) / 3);
    assert_int_equal(a->instruction_count[SL_PHASE_W], b->instruction_count[SL_PHASE_W]);
    sl_stage_program_destroy(plain);
    sl_stage_program_destroy(again);
    sl_graph_destroy(g);
}

static void refuses_to_recompute_what_is_not_there(void **state)
{
    (void)state;
    sl_graph *g = transformer(B, 1, false, 0);
    sl_partition *partition = NULL;
    sl_stage_program *program = NULL;
    sl_device *device = open_cpu();
    const char *const modules[] = { "h.0", "blocks.*" };
    ASSERT_OK(sl_graph_partition(g, NULL, &partition));
    assert_int_equal(sl_stage_program_create(partition, 0, device,
                                             &(sl_program_options){ .recompute = modules, .recompute_count = 2 },
                                             &program),
                     SL_ERR_ARGUMENT);
    assert_string_equal(sl_error_message(), "stage 0: recompute 'blocks.*': the graph has no such module");
    assert_int_equal(sl_stage_program_create(partition, 1, device, NULL, &program), SL_ERR_ARGUMENT);
    assert_null(program);
    sl_partition_destroy(partition);
    sl_device_close(device);
    sl_graph_destroy(g);
}

/* ---- Gradients that are not there ------------------------------------------------------------ */

static void leaves_alone_what_has_no_gradient(void **state)
{
    (void)state;
    sl_graph *g = NULL;
    ASSERT_OK(sl_graph_create(&g));
    sl_value x = sl_graph_input(g, "x", SL_F32, DIMS(4, C)), mask = sl_graph_input(g, "mask", SL_F32, DIMS(4, C));
    sl_value y = sl_mul(g, sl_linear(g, x, param(g, "w", DIMS(C, C)), SL_NO_VALUE), mask);
    sl_graph_output(g, "seen", sl_add(g, y, param(g, "silent", DIMS(C)))); /* an output that is not the loss */
    sl_graph_loss(g, sl_mean(g, y, NULL, 0, false));
    ASSERT_OK(sl_graph_finish(g));
    sl_stage_program *program = program_of(g, NULL, 0, NULL);
    const sl_program_info *info = sl_stage_program_info(program);
    int w = find_port(info->params, info->param_count, "w"),
        silent = find_port(info->params, info->param_count, "silent");
    assert_true(info->params[w].has_grad);
    assert_false(info->params[silent].has_grad);
    assert_false(info->inputs[0].has_grad);
    assert_false(info->inputs[1].has_grad);
    for (int phase = 0; phase < SL_PHASE_COUNT; phase++) {
        assert_int_equal(count_writes(program, (sl_phase)phase, SL_HOME_GRAD, silent), 0);
        assert_int_equal(count_writes(program, (sl_phase)phase, SL_HOME_INPUT_GRAD, 0), 0);
        assert_int_equal(count_writes(program, (sl_phase)phase, SL_HOME_GRAD, w),
                         phase == SL_PHASE_W || phase == SL_PHASE_B);
    }
    assert_int_equal(count_ops(program, SL_PHASE_B, SL_OP_LINEAR_GRAD_X), 0);
    sl_stage_program_destroy(program);
    sl_graph_destroy(g);
}

/* Kernels that give gradients of activations and of parameters at once run in I; W adds what they gave. */
static void i_never_touches_gradients_of_parameters(void **state)
{
    (void)state;
    sl_graph *g = NULL;
    ASSERT_OK(sl_graph_create(&g));
    sl_value x = sl_graph_input_differentiable(g, "x", SL_F32, DIMS(B, T, 2, C));
    sl_value k = param(g, "k", DIMS(B, T, 2, C)), v = sl_tanh(g, param(g, "v", DIMS(B, T, 2, C)));
    sl_value y = sl_swiglu(g, sl_attention(g, x, k, v, 0, true), param(g, "up", DIMS(B, T, 2, C)));
    sl_graph_loss(g, sl_mean(g, y, NULL, 0, false));
    ASSERT_OK(sl_graph_finish(g));
    sl_stage_program *program = program_of(g, NULL, 0, NULL);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(count_writes(program, SL_PHASE_I, SL_HOME_GRAD, i), 0);
        assert_int_equal(count_writes(program, SL_PHASE_W, SL_HOME_GRAD, i), 1);
    }
    results b = run_and_collect(g, NULL, (test_runner_options){ .microbatches = 3 });
    results iw = run_and_collect(g, NULL, (test_runner_options){ .microbatches = 3, .split_backward = true });
    assert_same_bits(&b, &iw, "I and W against B");
    free(b.bytes);
    free(iw.bytes);
    sl_stage_program_destroy(program);
    sl_graph_destroy(g);
}

/* Whatever the gradients held: the first microbatch overwrites them, also those that it does not reach or reaches only
 * in part. */
static void a_step_does_not_depend_on_old_gradients(void **state)
{
    (void)state;
    sl_graph *g = NULL;
    ASSERT_OK(sl_graph_create(&g));
    sl_value x = sl_graph_input(g, "x", SL_F32, DIMS(T, C)), w = param(g, "w", DIMS(C, C));
    sl_value rows = sl_slice(g, param(g, "part", DIMS(2 * C, C)), 0, 3, 3 + C);
    sl_value y = sl_linear(g, sl_linear(g, sl_linear(g, x, w, SL_NO_VALUE), rows, SL_NO_VALUE), w, SL_NO_VALUE);
    sl_graph_output(g, "seen", sl_add(g, y, param(g, "silent", DIMS(C))));
    sl_graph_loss(g, sl_mean(g, sl_affine(g, y, sl_transpose(g, w, 0, 1), SL_NO_VALUE), NULL, 0, false));
    ASSERT_OK(sl_graph_finish(g));
    sl_device *device = open_cpu();
    for (int split = 0; split < 2; split++) {
        test_runner_options options = { .microbatches = 2, .split_backward = split };
        test_runner *runner = new_runner(g, NULL, device, &options);
        double first[3][2 * C * C];
        for (int round = 0; round < 2; round++) { /* the second finds the gradients of the first */
            ASSERT_OK(test_runner_step(runner, NULL, NULL));
            for (int i = 0; i < sl_graph_param_count(g); i++) {
                sl_view grad = test_runner_grad(runner, sl_graph_param_at(g, i).name);
                for (int64_t k = 0; k < sl_meta_count(&grad.meta); k++) {
                    if (round == 0)
                        first[i][k] = element(grad, k);
                    assert_near(element(grad, k), first[i][k], 0);
                    ((float *)grad.data)[k] = round == 0 ? NAN : 0;
                }
            }
        }
        test_runner_destroy(runner);
    }
    sl_device_close(device);
    sl_graph_destroy(g);
}

static void a_copy_within_the_same_memory_is_skipped(void **state)
{
    (void)state;
    sl_graph *g = NULL;
    ASSERT_OK(sl_graph_create(&g));
    sl_value x = sl_graph_input(g, "x", SL_F32, DIMS(T));
    sl_graph_output(g, "y", sl_copy(g, sl_scale(g, x, 2, 0))); /* nobody else needs what is copied */
    sl_graph_output(g, "z", sl_copy(g, x));                    /* x is the owner's */
    ASSERT_OK(sl_graph_finish(g));
    sl_device *device = open_cpu();
    test_runner *runner = new_runner(g, NULL, device, NULL);
    const sl_instruction_list *forward = &test_runner_program(runner, 0)->plan.phases[SL_PHASE_F];
    int copies = 0, skipped = 0;
    for (int i = 0; i < forward->count; i++) {
        copies += forward->items[i].op == SL_OP_COPY;
        skipped += forward->items[i].is_done;
    }
    assert_int_equal(copies, 2);
    assert_int_equal(skipped, 1);
    ASSERT_OK(test_runner_forward(runner, NULL, NULL));
    for (int i = 0; i < T; i++) {
        assert_near(element(test_runner_output(runner, 0, "y"), i), 2 * element(test_runner_input(runner, 0, "x"), i),
                    0);
        assert_near(element(test_runner_output(runner, 0, "z"), i), element(test_runner_input(runner, 0, "x"), i), 0);
    }
    test_runner_destroy(runner);
    sl_device_close(device);
    sl_graph_destroy(g);
}

static void a_graph_without_loss_takes_gradients_of_all_outputs(void **state)
{
    (void)state;
    sl_graph *g = NULL;
    ASSERT_OK(sl_graph_create(&g));
    sl_value x = sl_graph_input_differentiable(g, "x", SL_F32, DIMS(3)), w = param(g, "w", DIMS(3));
    sl_value y = sl_mul(g, x, w), z = sl_scale(g, y, 10, 0);
    sl_graph_output(g, "y", y);
    sl_graph_output(g, "y again", y);
    sl_graph_output(g, "z", z);
    sl_graph_output(g, "w", w);
    sl_graph_output(g, "x", x);
    ASSERT_OK(sl_graph_finish(g));
    for (int cut = 0; cut < 2; cut++) {
        sl_device *device = open_cpu();
        test_runner *runner = new_runner(
            g, &(sl_split_spec){ .kind = SL_SPLIT_NODES, .nodes = (int[]){ 1 }, .node_count = cut }, device, NULL);
        static const char *const names[] = { "y", "y again", "z", "w", "x" };
        static const float seeds[] = { 1, 2, 4, 8, 16 };
        for (int i = 0; i < 5; i++) {
            for (int k = 0; k < 3; k++)
                ((float *)test_runner_output_grad(runner, 0, names[i]).data)[k] = seeds[i];
        }
        ASSERT_OK(test_runner_step(runner, NULL, NULL));
        for (int k = 0; k < 3; k++) { /* dy = 1 + 2 + 10 * 4 */
            double xk = element(test_runner_input(runner, 0, "x"), k), wk = element(test_runner_param(runner, "w"), k);
            assert_near(element(test_runner_grad(runner, "w"), k), 43 * xk + 8, 1e-5);
            assert_near(element(test_runner_input_grad(runner, 0, "x"), k), 43 * wk + 16, 1e-5);
            assert_near(element(test_runner_output(runner, 0, "w"), k), wk, 0);
            assert_near(element(test_runner_output(runner, 0, "y again"), k), (float)xk * (float)wk, 0);
        }
        test_runner_destroy(runner);
        sl_device_close(device);
    }
    sl_graph_destroy(g);
}

static void the_seed_scales_every_gradient(void **state)
{
    (void)state;
    sl_graph *g = transformer(B, 1, false, 0);
    sl_device *device = open_cpu();
    test_runner *one = new_runner(g, NULL, device, NULL), *eight = new_runner(g, NULL, device, NULL);
    *(float *)test_runner_output_grad(eight, 0, "loss").data = 8;
    ASSERT_OK(test_runner_step(one, NULL, NULL));
    ASSERT_OK(test_runner_step(eight, NULL, NULL));
    for (int i = 0; i < sl_graph_param_count(g); i++) {
        sl_view a = test_runner_grad(one, sl_graph_param_at(g, i).name);
        sl_view b = test_runner_grad(eight, sl_graph_param_at(g, i).name);
        for (int64_t k = 0; k < sl_meta_count(&a.meta); k++)
            assert_near(8 * element(a, k), element(b, k), 0);
    }
    test_runner_destroy(one);
    test_runner_destroy(eight);
    sl_device_close(device);
    sl_graph_destroy(g);
}

/* ---- Cuts ------------------------------------------------------------------------------------ */

static void one_to_four_stages_give_the_bits_of_the_whole(void **state)
{
    (void)state;
    sl_graph *g = transformer(B, 4, false, 0.2);
    results whole = run_and_collect(g, NULL, (test_runner_options){ .microbatches = 3 });
    const char *const modules[] = { "h.*" };
    for (int stages = 1; stages <= 4; stages++) {
        for (int variant = 0; variant < 8; variant++) {
            sl_split_spec spec = { .kind = SL_SPLIT_EQUAL, .stages = stages };
            test_runner_options options = { .microbatches = 3,
                                            .split_backward = variant & 1,
                                            .depth_first = variant & 2 };
            options.programs = (sl_program_options){ .recompute = modules, .recompute_count = variant & 4 ? 1 : 0 };
            results cut = run_and_collect(g, &spec, options);
            assert_same_bits(&whole, &cut, "a transformer in stages");
            free(cut.bytes);
        }
    }
    free(whole.bytes);
    sl_graph_destroy(g);
}

/* Each stage sums its uses of the table; the sums are added in stage order. */
static void a_tied_table_is_summed_per_stage_and_then_in_stage_order(void **state)
{
    (void)state;
    sl_graph *g = transformer(B, 2, true, 0), *untied = transformer(B, 2, false, 0);
    sl_split_point point = { "h.1", false };
    sl_split_spec spec = { .kind = SL_SPLIT_POINTS, .points = &point, .point_count = 1 };
    sl_device *device = open_cpu();
    test_runner_options options = { .microbatches = 3 };
    test_runner *cut = new_runner(g, &spec, device, &options), *whole = new_runner(g, NULL, device, &options);
    test_runner *parts = new_runner(untied, &spec, device, &options);
    sl_view table = test_runner_param(parts, "wte.weight"), head = test_runner_param(parts, "lm_head.weight");
    memcpy(head.data, table.data, sl_meta_bytes(&table.meta));
    ASSERT_OK(test_runner_step(cut, NULL, NULL));
    ASSERT_OK(test_runner_step(whole, NULL, NULL));
    ASSERT_OK(test_runner_step(parts, NULL, NULL));
    double largest = 0; /* rounding is relative to the terms, which may cancel */
    for (int64_t i = 0; i < V * C; i++)
        largest = fmax(largest, fabs(element(test_runner_grad(parts, "lm_head.weight"), i)));
    for (int64_t i = 0; i < V * C; i++) {
        float sum = (float)element(test_runner_grad(parts, "wte.weight"), i) +
                    (float)element(test_runner_grad(parts, "lm_head.weight"), i);
        assert_near(element(test_runner_grad(cut, "wte.weight"), i), sum, 0);
        assert_near(element(test_runner_grad(whole, "wte.weight"), i), sum, 2 * FLT_EPSILON * largest);
    }
    test_runner_destroy(cut);
    test_runner_destroy(whole);
    test_runner_destroy(parts);
    sl_device_close(device);
    sl_graph_destroy(g);
    sl_graph_destroy(untied);
}

static void another_batch_size_is_cut_at_the_same_places(void **state)
{
    (void)state;
    sl_graph *large = transformer(5, 4, true, 0), *small = transformer(1, 4, true, 0);
    sl_partition *a = NULL, *b = NULL;
    int count;
    ASSERT_OK(sl_graph_partition(large, &(sl_split_spec){ .kind = SL_SPLIT_EQUAL, .stages = 3 }, &a));
    const int *cuts = sl_partition_cuts(a, &count);
    ASSERT_OK(
        sl_graph_partition(small, &(sl_split_spec){ .kind = SL_SPLIT_NODES, .nodes = cuts, .node_count = count }, &b));
    sl_device *device = open_cpu();
    for (int s = 0; s < 3; s++) {
        sl_stage_program *p = NULL, *q = NULL;
        ASSERT_OK(sl_stage_program_create(a, s, device, NULL, &p));
        ASSERT_OK(sl_stage_program_create(b, s, device, NULL, &q));
        const sl_program_info *x = sl_stage_program_info(p), *y = sl_stage_program_info(q);
        assert_int_equal(x->param_count, y->param_count);
        for (int i = 0; i < x->param_count; i++)
            assert_string_equal(x->params[i].name, y->params[i].name);
        assert_int_equal(x->output_count, y->output_count);
        for (int i = 0; i < x->output_count; i++)
            assert_string_equal(x->outputs[i].name, y->outputs[i].name);
        sl_stage_program_destroy(p);
        sl_stage_program_destroy(q);
    }
    sl_partition_destroy(a);
    sl_partition_destroy(b);
    sl_device_close(device);
    sl_graph_destroy(large);
    sl_graph_destroy(small);
}

static void a_program_outlives_its_partition_and_graph(void **state)
{
    (void)state;
    sl_graph *g = transformer(B, 2, true, 0);
    sl_stage_program *program = program_of(g, &(sl_split_spec){ .kind = SL_SPLIT_EQUAL, .stages = 2 }, 1, NULL);
    sl_graph_destroy(g);
    char *text = NULL;
    size_t size;
    FILE *file = open_memstream(&text, &size);
    sl_stage_program_dump(program, file);
    fclose(file);
    assert_non_null(strstr(text, "stage 1 of 2\n"));
    assert_non_null(strstr(text, "linear_grad_w("));
    assert_non_null(strstr(text, "# h.1.layernorm_2\n"));
    free(text);
    sl_stage_program_destroy(program);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b_is_i_and_w_and_nothing_is_computed_twice),
        cmocka_unit_test(frozen_parameters_cost_no_gradients),
        cmocka_unit_test(b_of_a_transformer_moves_no_data_around),
        cmocka_unit_test(gradients_of_weights_can_run_beside_the_rest_of_b),
        cmocka_unit_test(the_gradient_of_logits_takes_their_place),
        cmocka_unit_test(w_recomputes_nothing),
        cmocka_unit_test(refuses_to_recompute_what_is_not_there),
        cmocka_unit_test(leaves_alone_what_has_no_gradient),
        cmocka_unit_test(i_never_touches_gradients_of_parameters),
        cmocka_unit_test(a_step_does_not_depend_on_old_gradients),
        cmocka_unit_test(a_copy_within_the_same_memory_is_skipped),
        cmocka_unit_test(a_graph_without_loss_takes_gradients_of_all_outputs),
        cmocka_unit_test(the_seed_scales_every_gradient),
        cmocka_unit_test(one_to_four_stages_give_the_bits_of_the_whole),
        cmocka_unit_test(a_tied_table_is_summed_per_stage_and_then_in_stage_order),
        cmocka_unit_test(another_batch_size_is_cut_at_the_same_places),
        cmocka_unit_test(a_program_outlives_its_partition_and_graph),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
