/* The memory of every rank, counted by hand: weights, what is kept between F and W, messages, shards, uneven sizes. */
#include "unit/pipeline/chain.h"

/* Saved regions of one microbatch; inputs and outputs lie in messages or in the batch. */
#define RESIDENT_BYTES ((size_t)(SAVED_I_BYTES + SAVED_W_BYTES))

static size_t message_bytes(const sl_pipeline *pipeline, int rank)
{
    int count = 0;
    size_t bytes = 0;
    const sl_route *routes = sl_pipeline_routes(pipeline, &count);
    for (int i = 0; i < count; i++)
        bytes += routes[i].dst == rank ? (size_t)routes[i].capacity * routes[i].bytes : 0;
    return bytes;
}

static void memory_is_what_the_descriptions_add_up_to(void **state)
{
    (void)state;
    chain c;
    for (int i = 0; i < SCHEDULES; i++) {
        sl_schedule *schedule = make_schedule(i, &c);
        sl_pipeline_options options = chain_options(&c, schedule);
        sl_pipeline *pipeline = compile(&options);
        size_t stages = (size_t)schedules[i].stages_per_rank;
        for (int r = 0; r < RANKS; r++) {
            sl_pipeline_memory memory = sl_pipeline_get_memory(pipeline, r);
            assert_int_equal(memory.params, stages * WEIGHT_BYTES);
            assert_int_equal(memory.grads, stages * WEIGHT_BYTES);
            assert_int_equal(memory.constants, stages * CONSTANT_BYTES);
            assert_int_equal(memory.scratch, SCRATCH_BYTES); /* shared by the rank's stages */
            assert_int_equal(memory.inputs, 0);
            assert_int_equal(memory.messages, message_bytes(pipeline, r));
            assert_int_equal(memory.device, memory.params + memory.grads + memory.constants + memory.slots +
                                                memory.scratch + memory.inputs);
        }
        sl_pipeline_destroy(pipeline);
        sl_schedule_destroy(schedule);
    }
}

static void slots_are_those_of_the_microbatches_that_are_resident(void **state)
{
    (void)state;
    static const char *const names[] = { "GPipe", "1F1B" };
    for (int i = 0; i < 2; i++) {
        chain c;
        int resident[RANKS];
        sl_schedule *schedule = make_schedule(i, &c);
        sl_pipeline_options options = chain_options(&c, schedule);
        sl_pipeline *pipeline = compile(&options);
        assert_string_equal(schedules[i].name, names[i]);
        assert_int_equal(sl_schedule_count_slots(schedule, resident, NULL), SL_OK);
        for (int r = 0; r < RANKS - 1; r++) { /* the last one has the losses, too */
            assert_int_equal(resident[r], i == 0 ? MICROBATCHES : RANKS - r);
            assert_int_equal(sl_pipeline_get_memory(pipeline, r).slots, (size_t)resident[r] * RESIDENT_BYTES);
        }
        sl_pipeline_destroy(pipeline);
        sl_schedule_destroy(schedule);
    }
}

static void memory_of_the_caller_is_not_counted(void **state)
{
    (void)state;
    chain c;
    sl_schedule *schedule = make_schedule(1, &c);
    sl_pipeline_options options = chain_options(&c, schedule);
    c.weights[0][0].own_data = true;
    c.weights[1][0].own_grad = true;
    c.weights[2][0].frozen = true;
    sl_pipeline *pipeline = compile(&options);
    sl_pipeline_memory own_data = sl_pipeline_get_memory(pipeline, 0), own_grad = sl_pipeline_get_memory(pipeline, 1);
    sl_pipeline_memory frozen = sl_pipeline_get_memory(pipeline, 2);
    assert_int_equal(own_data.params, 0);
    assert_int_equal(own_data.grads, WEIGHT_BYTES);
    assert_int_equal(own_grad.params, WEIGHT_BYTES);
    assert_int_equal(own_grad.grads, 0);
    assert_int_equal(frozen.params, WEIGHT_BYTES);
    assert_int_equal(frozen.grads, 0);
    sl_pipeline_destroy(pipeline);
    sl_schedule_destroy(schedule);
}

static void tied_weights_of_a_rank_share_their_memory(void **state)
{
    (void)state;
    chain c;
    chain_init(&c, 4);
    c.weights[0][0].tie = c.weights[3][0].tie = "embedding"; /* both on rank 0 of the V */
    sl_schedule *schedule = generate("ZBVZeroBubble", 2, 4, 2);
    sl_pipeline_options options = chain_options(&c, schedule);
    sl_pipeline *pipeline = compile(&options);
    assert_int_equal(sl_pipeline_get_memory(pipeline, 0).params, WEIGHT_BYTES);
    assert_int_equal(sl_pipeline_get_memory(pipeline, 0).grads, 2 * WEIGHT_BYTES);
    assert_int_equal(sl_pipeline_get_memory(pipeline, 1).params, 2 * WEIGHT_BYTES);
    sl_pipeline_destroy(pipeline);
    sl_schedule_destroy(schedule);
}

static void arguments_that_cannot_be_used_in_place_are_copied(void **state)
{
    (void)state;
    chain c;
    sl_schedule *schedule = make_schedule(1, &c);
    sl_pipeline_options options = chain_options(&c, schedule);
    const sl_arg_spec by_column = { .name = "x", .meta = { .shape = { .rank = -1 } }, .chunk = { .dim = 1 } };
    options.args = &by_column;
    options.arg_count = 1;
    sl_pipeline *pipeline = compile(&options);
    assert_int_equal(sl_pipeline_get_memory(pipeline, 0).inputs, MICROBATCHES * VALUE_BYTES);
    assert_int_equal(sl_pipeline_get_memory(pipeline, RANKS - 1).inputs, 0);
    sl_pipeline_destroy(pipeline);
    sl_schedule_destroy(schedule);
}

/* Before a stage runs its weights were gathered and awaited; its gradients are opened once and summed once. */
static void check_sharded_program(const sl_pipeline *pipeline, int rank)
{
    bool ready[CHAIN_MAX] = { false };
    int opened[CHAIN_MAX] = { 0 }, reduced[CHAIN_MAX] = { 0 };
    sl_pipeline_program program = sl_pipeline_get_program(pipeline, rank, true);
    for (int64_t i = 0; i < program.instr_count; i++) {
        const sl_pipeline_instr *instr = &program.instrs[i];
        int s = instr->stage;
        if (instr->code == SL_CODE_AWAIT_WEIGHTS)
            ready[s] = true;
        else if (instr->code == SL_CODE_RESHARD)
            ready[s] = false;
        else if (instr->code == SL_CODE_RUN)
            assert_true(ready[s]);
        else if (instr->code == SL_CODE_OPEN_GRADS)
            opened[s]++;
        else if (instr->code == SL_CODE_REDUCE_GRADS)
            reduced[s]++;
    }
    for (int s = 0; s < sl_pipeline_stages(pipeline); s++) {
        bool here = sl_schedule_rank_of(sl_pipeline_schedule(pipeline), s) == rank;
        assert_false(ready[s]);
        assert_int_equal(opened[s], here);
        assert_int_equal(reduced[s], here);
    }
    assert_int_equal(count_code(&program, SL_CODE_UNSHARD), count_code(&program, SL_CODE_AWAIT_WEIGHTS));
    assert_int_equal(count_code(&program, SL_CODE_UNSHARD), count_code(&program, SL_CODE_RESHARD));
    assert_int_equal(count_code(&program, SL_CODE_REDUCE_GRADS), count_code(&program, SL_CODE_AWAIT_GRADS));
}

static void sharded_weights_are_gathered_for_their_stage(void **state)
{
    (void)state;
    for (int i = 0; i < SCHEDULES; i++) {
        chain c;
        sl_schedule *schedule = make_schedule(i, &c); /* which says nothing of UNSHARD */
        sl_pipeline_options options = chain_options(&c, schedule);
        options.replicas = 2;
        options.shard = SL_SHARD_FULL;
        sl_pipeline *pipeline = compile(&options);
        assert_false(sl_schedule_has_kind(schedule, SL_KIND_UNSHARD));
        assert_true(sl_schedule_has_kind(sl_pipeline_schedule(pipeline), SL_KIND_UNSHARD));
        for (int r = 0; r < RANKS; r++) {
            sl_pipeline_memory memory = sl_pipeline_get_memory(pipeline, r);
            assert_int_equal(memory.params, schedules[i].stages_per_rank * WEIGHT_BYTES / 2);
            assert_int_equal(memory.grads, schedules[i].stages_per_rank * WEIGHT_BYTES / 2);
            check_sharded_program(pipeline, r);
        }
        sl_pipeline_destroy(pipeline);
        sl_schedule_destroy(schedule);
    }
}

/* ---- Sizes ----------------------------------------------------------------------------------- */

/* Stages keep the shape of their first input. */
static sl_status keep_shape(void *user, int stage, int size, const sl_meta *inputs, int input_count, sl_meta *outputs,
                            int output_count)
{
    (void)stage, (void)size, (void)input_count, (void)output_count;
    ++*(int *)user;
    outputs[0] = inputs[0];
    return SL_OK;
}

static void a_batch_that_does_not_divide_has_two_sizes(void **state)
{
    (void)state;
    chain c;
    int asked = 0, count = 0;
    sl_schedule *schedule = generate("GPipe", 3, 2, 1);
    const sl_arg_spec args[] = { { .name = "x", .meta = value_meta(7) }, { .name = "y", .meta = value_meta(7) } };
    chain_init(&c, 3);
    for (int s = 0; s < 3; s++) {
        c.stages[s].size_count = 2;
        for (int i = 0; i < 2; i++)
            c.inputs[s][i].metas[1] = value_meta(3);
        c.outputs[s][0].metas[1] = s == 2 ? c.outputs[s][0].metas[0] : value_meta(3);
    }
    c.stages[1].can_infer = true; /* its input and output are left open */
    for (int size = 0; size < 2; size++)
        c.inputs[1][0].metas[size].shape.rank = c.outputs[1][0].metas[size].shape.rank = -1;
    sl_pipeline_options options = chain_options(&c, schedule);
    options.args = args;
    options.arg_count = 2;
    options.infer = keep_shape;
    options.user = &asked;
    sl_pipeline *pipeline = compile(&options);
    assert_int_equal(asked, 2);
    assert_int_equal(sl_pipeline_edges(pipeline, &count)[1].bytes, VALUE_BYTES); /* of the larger one */
    sl_pipeline_program program = sl_pipeline_get_program(pipeline, 1, true);
    int seen = 0;
    for (int64_t i = 0; i < program.instr_count; i++) {
        const sl_pipeline_instr *instr = &program.instrs[i];
        if (instr->code != SL_CODE_RECEIVE && instr->code != SL_CODE_RESERVE)
            continue;
        sl_meta expected = value_meta(instr->microbatch == 0 ? 4 : 3);
        assert_true(sl_meta_equal(instr->meta, &expected));
        seen++;
    }
    assert_int_equal(seen, 8); /* a value and a gradient, in and out, twice */
    sl_pipeline_destroy(pipeline);
    sl_schedule_destroy(schedule);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_what_the_descriptions_add_up_to),
        cmocka_unit_test(slots_are_those_of_the_microbatches_that_are_resident),
        cmocka_unit_test(memory_of_the_caller_is_not_counted),
        cmocka_unit_test(tied_weights_of_a_rank_share_their_memory),
        cmocka_unit_test(arguments_that_cannot_be_used_in_place_are_copied),
        cmocka_unit_test(sharded_weights_are_gathered_for_their_stage),
        cmocka_unit_test(a_batch_that_does_not_divide_has_two_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
