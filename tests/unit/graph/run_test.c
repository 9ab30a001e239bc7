/* Running stage programs: memory as planned, errors with their place, measured and predicted costs, caches. */
#include "unit/graph/transformer.h"

#include "base/alloc.h"
#include "graph/program.h"

static void memory_is_what_the_plan_says(void **state)
{
    (void)state;
    sl_graph *g = transformer(B, 3, true, 0.1);
    for (int split = 0; split < 2; split++) {
        sl_device *device = open_cpu();
        test_runner_options options = { .microbatches = 2,
                                        .split_backward = split,
                                        .programs = { .pack_weights = split } };
        test_runner *runner = new_runner(g, &(sl_split_spec){ .kind = SL_SPLIT_EQUAL, .stages = 2 }, device, &options);
        assert_int_equal(sl_device_get_memory(device).in_use, test_runner_bytes(runner));
        ASSERT_OK(test_runner_step(runner, &test_rng, NULL)); /* kernels may set up what they keep */
        sl_device_reset_peak(device);
        ASSERT_OK(test_runner_step(runner, &test_rng, NULL));
        assert_int_equal(sl_device_get_memory(device).peak, test_runner_bytes(runner));
        test_runner_destroy(runner);
        assert_int_equal(sl_device_get_memory(device).in_use, 0);
        sl_device_close(device);
    }
    sl_graph_destroy(g);
}

/* Weights that are packed before the first of three microbatches serve all of them, in forward, backward and what is
 * computed again; one that two stages share is packed by both. */
static void packed_weights_change_no_bit(void **state)
{
    (void)state;
    sl_graph *g = transformer(B, 2, true, 0.1);
    const char *const modules[] = { "h.1" };
    for (int i = 0; i < 8; i++) {
        test_runner_options options = { .microbatches = 3, .split_backward = i & 1 };
        const sl_split_spec spec = { .kind = SL_SPLIT_EQUAL, .stages = 1 + (i >> 1 & 1) };
        options.programs.recompute = modules;
        options.programs.recompute_count = i >> 2;
        results plain = run_and_collect(g, &spec, options);
        options.programs.pack_weights = true;
        results packed = run_and_collect(g, &spec, options);
        assert_same_bits(&plain, &packed, "packed weights");
        free(plain.bytes);
        free(packed.bytes);
    }
    sl_graph_destroy(g);
}

/* Of a program: each parameter of a product once for F and once for I, whatever recomputes. */
static void every_weight_is_packed_once(void **state)
{
    (void)state;
    sl_graph *g = transformer(B, 2, true, 0);
    const char *const modules[] = { "h.*" };
    sl_program_options options = { .recompute = modules, .recompute_count = 1 };
    sl_stage_program *program = program_of(g, NULL, 0, &options);
    assert_int_equal(sl_stage_program_info(program)->packed_bytes, 0);
    sl_stage_program_destroy(program);
    options.pack_weights = true;
    program = program_of(g, NULL, 0, &options);
    const sl_program_plan *plan = &program->plan;
    size_t bytes = 0;
    int forward = 0;
    for (int i = 0; i < plan->pack_count; i++) {
        assert_int_equal(plan->packs[i].packed_offset, bytes);
        bytes += plan->packs[i].packed_bytes;
        forward += plan->packs[i].phase == SL_PHASE_F;
    }
    assert_int_equal(plan->pack_count, 2 * 9); /* four of each block, and the head */
    assert_int_equal(forward, 9);
    assert_int_equal(bytes, sl_stage_program_info(program)->packed_bytes);
    sl_stage_program_destroy(program);
    options = (sl_program_options){ .forward_only = true, .pack_weights = true };
    program = program_of(g, NULL, 0, &options);
    assert_int_equal(program->plan.pack_count, 9);
    sl_stage_program_destroy(program);
    sl_graph_destroy(g);
}

/* The phase that writes a storage first. */
static sl_phase first_writer(const sl_program_plan *plan, int storage)
{
    for (int phase = SL_PHASE_F; phase <= SL_PHASE_W; phase++) {
        for (int i = 0; i < plan->phases[phase].count; i++) {
            const sl_instruction *step = &plan->phases[phase].items[i];
            for (int o = 0; o < step->output_count; o++) {
                if (step->outputs[o].storage == storage)
                    return (sl_phase)phase;
            }
        }
    }
    return SL_PHASE_COUNT;
}

/* Breaks one thing in a plan after another; the verifier must notice each. */
static void the_verifier_notices_a_broken_plan(void **state)
{
    (void)state;
    sl_graph *g = transformer(B, 1, false, 0.1);
    sl_partition *partition = NULL;
    sl_device *device = open_cpu();
    ASSERT_OK(sl_graph_partition(g, NULL, &partition));
    sl_lowering lowering = { .graph = partition->graph, .part = &partition->parts[0] };
    sl_program_plan plan = { 0 };
    ASSERT_OK(sl_lower_stage(&lowering));
    ASSERT_OK(sl_program_plan_make(&lowering, device, &plan));
    int broken = 0;
    for (int s = 0; s < plan.storage_count; s++) {
        sl_program_place *place = &plan.split[s], saved = *place;
        if (saved.home < SL_HOME_SAVED_I || lowering.storages[s].bytes == 0)
            continue;
        place->offset = (size_t)1 << 40;
        assert_int_equal(sl_program_plan_verify(&lowering, &plan), SL_ERR_INTERNAL);
        if (first_writer(&plan, s) < plan.last_use[s]) { /* dead after the phase, but read in a later one */
            *place = (sl_program_place){ SL_HOME_SCRATCH, 0, 0 };
            assert_int_equal(sl_program_plan_verify(&lowering, &plan), SL_ERR_INTERNAL);
        }
        *place = saved;
        broken++;
    }
    assert_true(broken > 10);
    sl_instruction *items = plan.phases[SL_PHASE_B].items, first = items[0]; /* run one instruction too late */
    items[0] = items[1];
    items[1] = first;
    assert_int_equal(sl_program_plan_verify(&lowering, &plan), SL_ERR_INTERNAL);
    sl_program_plan_clear(&plan);
    sl_lowering_clear(&lowering);
    sl_partition_destroy(partition);
    sl_device_close(device);
    sl_graph_destroy(g);
}

static void survives_running_out_of_memory_anywhere(void **state)
{
    (void)state;
    sl_graph *g = transformer(B, 1, true, 0.1);
    sl_partition *partition = NULL;
    sl_device *device = open_cpu();
    ASSERT_OK(sl_graph_partition(g, &(sl_split_spec){ .kind = SL_SPLIT_EQUAL, .stages = 2 }, &partition));
    const char *const modules[] = { "h.*" };
    test_runner_options options = { .programs = { .recompute = modules, .recompute_count = 1 } };
    for (int64_t n = 0;; n++) {
        test_runner *runner = NULL;
        sl_alloc_fail_after(n);
        sl_status status = test_runner_create(partition, device, &options, &runner);
        sl_alloc_fail_after(-1);
        if (status == SL_OK) {
            test_runner_destroy(runner);
            break;
        }
        assert_int_equal(status, SL_ERR_MEMORY);
        assert_null(runner);
    }
    assert_int_equal(sl_device_get_memory(device).in_use, 0);
    sl_partition_destroy(partition);
    sl_device_close(device);
    sl_graph_destroy(g);
}

/* ---- Running --------------------------------------------------------------------------------- */

static void errors_name_stage_phase_and_node(void **state)
{
    (void)state;
    sl_graph *g = transformer(B, 1, false, 0);
    sl_device *device = open_cpu();
    test_runner *runner = new_runner(g, NULL, device, NULL);
    ((int32_t *)test_runner_input(runner, 0, "ids").data)[3] = V;
    assert_int_not_equal(test_runner_step(runner, NULL, NULL), SL_OK);
    assert_non_null(strstr(sl_error_message(), "stage 0 F 'embedding': "));
    test_runner_destroy(runner);
    sl_device_close(device);
    sl_graph_destroy(g);
}

static void names_memory_that_was_not_bound(void **state)
{
    (void)state;
    sl_graph *g = transformer(B, 1, false, 0);
    sl_stage_program *program = program_of(g, NULL, 0, NULL);
    sl_device *device = open_cpu();
    sl_stream *stream = NULL;
    ASSERT_OK(sl_stream_create(device, &stream));
    const void *nothing[64] = { NULL };
    void *nowhere[64] = { NULL };
    sl_bindings bindings = { .params = nothing, .inputs = nothing, .outputs = nowhere };
    assert_int_equal(sl_stage_program_run(program, SL_PHASE_F, stream, &bindings), SL_ERR_ARGUMENT);
    assert_string_equal(sl_error_message(), "stage 0 F 'embedding': no memory bound for input 0");
    sl_stream_destroy(stream);
    sl_device_close(device);
    sl_stage_program_destroy(program);
    sl_graph_destroy(g);
}

static void measured_seconds_serve_as_costs(void **state)
{
    (void)state;
    sl_graph *g = transformer(B, 4, false, 0);
    sl_device *device = open_cpu();
    test_runner *runner = new_runner(g, NULL, device, NULL);
    double *seconds = calloc((size_t)sl_graph_node_count(g), sizeof *seconds);
    ASSERT_OK(test_runner_step(runner, NULL, seconds));
    sl_partition *partition = NULL;
    ASSERT_OK(sl_graph_partition(g, &(sl_split_spec){ .kind = SL_SPLIT_EQUAL, .stages = 2, .node_costs = seconds },
                                 &partition));
    double sum = 0;
    for (int i = 0; i < sl_graph_node_count(g); i++)
        sum += seconds[i];
    assert_true(sum > 0);
    sl_partition_destroy(partition);
    free(seconds);
    test_runner_destroy(runner);
    sl_device_close(device);
    sl_graph_destroy(g);
}

static void costs_count_the_products(void **state)
{
    (void)state;
    sl_graph *g = transformer(B, 3, false, 0);
    sl_stage_program *program = program_of(g, NULL, 0, NULL);
    const sl_program_info *info = sl_stage_program_info(program);
    double products = 2.0 * B * T * (3 * 12 * C * C + V * C);
    assert_true(info->cost[SL_PHASE_F].flops > products && info->cost[SL_PHASE_F].flops < 2 * products);
    assert_true(info->cost[SL_PHASE_I].flops > products && info->cost[SL_PHASE_W].flops > products);
    assert_true(info->cost[SL_PHASE_B].flops <= info->cost[SL_PHASE_I].flops + info->cost[SL_PHASE_W].flops);
    sl_stage_program_destroy(program);
    sl_graph_destroy(g);
}

/* One token at a time with caches gives what attention over the whole gives. */
static void caches_give_the_attention_of_the_whole(void **state)
{
    (void)state;
    sl_graph *whole = NULL, *step = NULL;
    ASSERT_OK(sl_graph_create(&whole));
    ASSERT_OK(sl_graph_create(&step));
    sl_value q = sl_graph_input(whole, "q", SL_F32, DIMS(B, T, 2, 4));
    sl_graph_output(whole, "o", sl_attention(whole, q, q, q, 0, true));
    q = sl_graph_input(step, "q", SL_F32, DIMS(B, 1, 2, 4));
    sl_value caches[2] = { sl_graph_state(step, "k", SL_F32, DIMS(B, T, 2, 4)),
                           sl_graph_state(step, "v", SL_F32, DIMS(B, T, 2, 4)) };
    sl_value at = sl_graph_input(step, "at", SL_I32, 0, NULL);
    sl_graph_output(step, "o", sl_attention_cached(step, q, q, q, caches[0], caches[1], at, NULL));
    ASSERT_OK(sl_graph_finish(whole));
    ASSERT_OK(sl_graph_finish(step));
    sl_device *device = open_cpu();
    test_runner_options options = { .programs = { .forward_only = true } };
    test_runner *a = new_runner(whole, NULL, device, &options), *b = new_runner(step, NULL, device, &options);
    ASSERT_OK(test_runner_forward(a, NULL, NULL));
    assert_int_equal(test_runner_step(a, NULL, NULL), SL_ERR_ARGUMENT);
    for (int t = 0; t < T; t++) {
        *(int32_t *)test_runner_input(b, 0, "at").data = t;
        for (int i = 0; i < B * 8; i++)
            ((float *)test_runner_input(b, 0, "q").data)[i] =
                ((const float *)test_runner_input(a, 0, "q").data)[i / 8 * T * 8 + t * 8 + i % 8];
        ASSERT_OK(test_runner_forward(b, NULL, NULL));
        for (int i = 0; i < B * 8; i++)
            assert_near(element(test_runner_output(b, 0, "o"), i),
                        element(test_runner_output(a, 0, "o"), i / 8 * T * 8 + t * 8 + i % 8), 1e-6);
    }
    test_runner_destroy(a);
    test_runner_destroy(b);
    sl_device_close(device);
    sl_graph_destroy(whole);
    sl_graph_destroy(step);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_what_the_plan_says),
        cmocka_unit_test(packed_weights_change_no_bit),
        cmocka_unit_test(every_weight_is_packed_once),
        cmocka_unit_test(the_verifier_notices_a_broken_plan),
        cmocka_unit_test(survives_running_out_of_memory_anywhere),
        cmocka_unit_test(errors_name_stage_phase_and_node),
        cmocka_unit_test(names_memory_that_was_not_bound),
        cmocka_unit_test(measured_seconds_serve_as_costs),
        cmocka_unit_test(costs_count_the_products),
        cmocka_unit_test(caches_give_the_attention_of_the_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
