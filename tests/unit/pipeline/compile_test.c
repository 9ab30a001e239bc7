/* The pure compile, through public headers alone: what comes out for stages that exist only as descriptions. */
#include "unit/pipeline/chain.h"

/* Programs of all ranks as text; the caller frees it. */
static char *dump(const sl_pipeline *pipeline)
{
    char *text = NULL;
    size_t length = 0;
    FILE *file = open_memstream(&text, &length);
    for (int r = 0; r < sl_pipeline_ranks(pipeline); r++)
        assert_int_equal(sl_pipeline_dump(pipeline, r, file), SL_OK);
    fclose(file);
    return text;
}

/* ---- Purity ---------------------------------------------------------------------------------- */

static void the_same_input_gives_the_same_programs(void **state)
{
    (void)state;
    for (int i = 0; i < SCHEDULES; i++) {
        chain c;
        sl_schedule *schedule = make_schedule(i, &c);
        sl_pipeline_options options = chain_options(&c, schedule);
        sl_pipeline *first = compile(&options), *second = compile(&options);
        char *texts[2] = { dump(first), dump(second) };
        assert_true(strlen(texts[0]) > 1000);
        assert_string_equal(texts[0], texts[1]);
        assert_true(sl_schedule_equal(sl_pipeline_schedule(first), sl_pipeline_schedule(second)));
        for (int r = 0; r < RANKS; r++) {
            sl_pipeline_memory a = sl_pipeline_get_memory(first, r), b = sl_pipeline_get_memory(second, r);
            assert_memory_equal(&a, &b, sizeof a);
        }
        free(texts[0]);
        free(texts[1]);
        sl_pipeline_destroy(first);
        sl_pipeline_destroy(second);
        sl_schedule_destroy(schedule);
    }
}

/* Both messages come before the halves and both go after them, so that neither half waits for more than the other. */
static void halves_that_run_at_the_same_time_share_nothing(void **state)
{
    (void)state;
    chain c;
    sl_schedule *schedule = make_schedule(SCHEDULES - 1, &c);
    sl_pipeline_options options = chain_options(&c, schedule);
    options.messages = SL_MESSAGES_STAGED;
    sl_pipeline *plain = compile(&options);
    options.overlaps = true;
    sl_pipeline *beside = compile(&options);
    for (int r = 0; r < RANKS; r++) {
        sl_pipeline_program program = sl_pipeline_get_program(beside, r, true);
        int pairs = 0, overlaps = 0;
        for (int64_t a = 0; a < program.action_count; a++) {
            const sl_pipeline_action *action = &program.actions[a];
            const sl_pipeline_instr *instrs = program.instrs + action->first;
            overlaps += action->action.kind == SL_KIND_OVERLAP_F_B;
            for (int64_t i = 0; i < action->count; i++) {
                bool first = instrs[i].code == SL_CODE_RUN && instrs[i].phase == SL_PHASE_F &&
                             action->action.kind == SL_KIND_OVERLAP_F_B;
                assert_int_equal(instrs[i].beside, first);
                if (!first)
                    continue;
                assert_true(instrs[i + 1].code == SL_CODE_RUN && instrs[i + 1].phase == SL_PHASE_B);
                pairs++;
            }
        }
        assert_true(pairs > 0 && pairs == overlaps);
        assert_int_equal(sl_pipeline_get_memory(plain, r).scratch, SCRATCH_BYTES);
        assert_int_equal(sl_pipeline_get_memory(beside, r).scratch, 2 * SCRATCH_BYTES);
        sl_pipeline_program evaluation = sl_pipeline_get_program(beside, r, false);
        for (int64_t i = 0; i < evaluation.instr_count; i++)
            assert_false(evaluation.instrs[i].beside);
    }
    sl_pipeline_destroy(plain);
    sl_pipeline_destroy(beside);
    sl_schedule_destroy(schedule);
}

static void a_pipeline_borrows_nothing(void **state)
{
    (void)state;
    chain *c = malloc(sizeof *c);
    assert_non_null(c);
    sl_schedule *schedule = make_schedule(1, c);
    sl_pipeline_options options = chain_options(c, schedule);
    sl_pipeline *pipeline = compile(&options);
    char *before = dump(pipeline);
    memset(c, 0xff, sizeof *c);
    free(c);
    sl_schedule_destroy(schedule);
    char *after = dump(pipeline);
    assert_string_equal(before, after);
    int count = 0;
    assert_string_equal(sl_pipeline_edges(pipeline, &count)[0].name, "h0");
    free(before);
    free(after);
    sl_pipeline_destroy(pipeline);
}

/* ---- Programs -------------------------------------------------------------------------------- */

/* The instructions of the actions lie one behind the other, up to the tail. */
static void check_actions(const sl_pipeline *pipeline, int rank, const sl_pipeline_program *program)
{
    int64_t next = 0, cells = 0;
    const sl_action *cell = sl_schedule_actions(sl_pipeline_schedule(pipeline), rank, &cells);
    for (int64_t i = 0; i < program->action_count; i++) {
        const sl_pipeline_action *action = &program->actions[i];
        assert_int_equal(action->first, next);
        assert_true(action->cell >= 0 && action->cell < cells);
        assert_true(sl_action_equal(action->action, cell[action->cell]));
        next += action->count;
    }
    assert_int_equal(program->tail, next);
    assert_true(program->tail <= program->instr_count);
    for (int64_t i = 0; i < program->instr_count; i++) {
        assert_true(program->instrs[i].cell < program->cell_count);
        assert_true(program->instrs[i].from < program->cell_count);
    }
}

static void count_runs(const sl_pipeline *pipeline, bool training, int runs[CHAIN_MAX][MICROBATCHES][SL_PHASE_COUNT])
{
    memset(runs, 0, sizeof(int) * CHAIN_MAX * MICROBATCHES * SL_PHASE_COUNT);
    for (int r = 0; r < RANKS; r++) {
        sl_pipeline_program program = sl_pipeline_get_program(pipeline, r, training);
        check_actions(pipeline, r, &program);
        for (int64_t i = 0; i < program.instr_count; i++) {
            const sl_pipeline_instr *instr = &program.instrs[i];
            if (instr->code != SL_CODE_RUN)
                continue;
            assert_int_equal(sl_schedule_rank_of(sl_pipeline_schedule(pipeline), instr->stage), r);
            runs[instr->stage][instr->microbatch][instr->phase]++;
        }
    }
}

static void each_stage_runs_each_microbatch_once(void **state)
{
    (void)state;
    for (int i = 0; i < SCHEDULES; i++) {
        chain c;
        int train[CHAIN_MAX][MICROBATCHES][SL_PHASE_COUNT], eval[CHAIN_MAX][MICROBATCHES][SL_PHASE_COUNT];
        sl_schedule *schedule = make_schedule(i, &c);
        sl_pipeline_options options = chain_options(&c, schedule);
        sl_pipeline *pipeline = compile(&options);
        assert_int_equal(sl_pipeline_ranks(pipeline), RANKS);
        assert_int_equal(sl_pipeline_stages(pipeline), c.count);
        assert_int_equal(sl_pipeline_microbatches(pipeline), MICROBATCHES);
        count_runs(pipeline, true, train);
        count_runs(pipeline, false, eval);
        for (int s = 0; s < c.count; s++) {
            for (int m = 0; m < MICROBATCHES; m++) {
                const int *of = train[s][m];
                assert_int_equal(of[SL_PHASE_F], 1);
                assert_int_equal(of[SL_PHASE_I] + of[SL_PHASE_B], 1);
                assert_int_equal(of[SL_PHASE_W] + of[SL_PHASE_B], 1);
                assert_int_equal(eval[s][m][SL_PHASE_F], 1);
                assert_int_equal(eval[s][m][SL_PHASE_I] + eval[s][m][SL_PHASE_W] + eval[s][m][SL_PHASE_B], 0);
            }
        }
        sl_pipeline_destroy(pipeline);
        sl_schedule_destroy(schedule);
    }
}

/* ---- Text and time --------------------------------------------------------------------------- */

static void the_dump_names_every_action_and_instruction(void **state)
{
    (void)state;
    chain c;
    chain_init(&c, 2);
    sl_schedule *schedule = generate("GPipe", 2, 1, 1);
    sl_pipeline_options options = chain_options(&c, schedule);
    sl_pipeline *pipeline = compile(&options);
    char *text = NULL;
    size_t length = 0;
    FILE *file = open_memstream(&text, &length);
    assert_int_equal(sl_pipeline_dump(pipeline, 0, file), SL_OK);
    fclose(file);
    static const char *const lines[] = { "rank 0, training:",
                                         "  0F0\n",
                                         "reserve      route 0 'h0'",
                                         "run          phase F",
                                         "  0SEND_F0\n",
                                         "commit       route 0 'h0'",
                                         "  0RECV_B0\n",
                                         "receive      route 1 'h0'",
                                         "  0B0\n",
                                         "run          phase B",
                                         "release      route 1 'h0'",
                                         "rank 0, evaluation:" };
    const char *at = text;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        const char *found = strstr(at, lines[i]);
        if (!found)
            fail_msg("no '%s' in order in\n%s", lines[i], text);
        at = found;
    }
    assert_null(strstr(at, "phase B"));
    free(text);
    sl_pipeline_destroy(pipeline);
    sl_schedule_destroy(schedule);
}

static double makespan(const sl_pipeline *pipeline, const sl_costs *costs)
{
    sl_timeline *timeline = NULL;
    assert_int_equal(sl_pipeline_simulate(pipeline, costs, &timeline), SL_OK);
    double time = sl_timeline_makespan(timeline);
    sl_timeline_destroy(timeline);
    return time;
}

static void simulated_time_counts_the_bytes_of_messages(void **state)
{
    (void)state;
    chain c;
    double nonsense[CHAIN_MAX] = { 1e6, 1e6, 1e6, 1e6, 1e6, 1e6, 1e6, 1e6 };
    sl_costs costs;
    sl_costs_init(&costs);
    sl_schedule *schedule = make_schedule(1, &c);
    sl_pipeline_options options = chain_options(&c, schedule);
    sl_pipeline *pipeline = compile(&options);
    /* F and B take 3 together: 8 microbatches, and 3 more to fill and drain 4 ranks. */
    assert_float_equal(makespan(pipeline, NULL), 3 * (MICROBATCHES + RANKS - 1), 1e-9);
    costs.bandwidth = 1;
    sl_pipeline_destroy(pipeline);
    sl_schedule_destroy(schedule);

    /* One microbatch goes down 4 ranks and back up: 6 messages of 128 bytes, nothing beside them. */
    schedule = generate("1F1B", RANKS, 1, 1);
    options.schedule = schedule;
    pipeline = compile(&options);
    double expected = 3 * RANKS + 6 * VALUE_BYTES;
    assert_float_equal(makespan(pipeline, &costs), expected, 1e-6);
    costs.edge_sizes = nonsense;
    assert_float_equal(makespan(pipeline, &costs), expected, 1e-6);
    sl_pipeline_destroy(pipeline);
    sl_schedule_destroy(schedule);
}

/* A stage with 8 times the weights has 8 times the time: what a rank gets of them at 1 byte a second. */
static void collectives_take_the_time_of_their_bytes(void **state)
{
    (void)state;
    static const sl_stage_cost expected[] = {
        [SL_SHARD_NONE] = { .reduce_grad = WEIGHT_BYTES },
        [SL_SHARD_OPTIMIZER] = { .reduce_grad = WEIGHT_BYTES / 2.0, .gather = WEIGHT_BYTES / 2.0 },
        [SL_SHARD_FULL] = { .reduce_grad = WEIGHT_BYTES / 2.0, .unshard = WEIGHT_BYTES / 2.0 }
    };
    for (int mode = SL_SHARD_NONE; mode <= SL_SHARD_FULL; mode++) {
        chain c;
        sl_stage_cost costs[CHAIN_MAX] = { { .f = 1, .b = 2 } };
        sl_schedule *schedule = make_schedule(2, &c);
        c.weights[2][0].meta = sl_meta_make(SL_F32, 2, (int64_t[]){ 64, 8 });
        sl_pipeline_options options = chain_options(&c, schedule);
        options.replicas = 2;
        options.shard = (sl_shard_mode)mode;
        sl_pipeline *pipeline = compile(&options);
        sl_pipeline_cost_collectives(pipeline, 1, costs);
        for (int s = 0; s < c.count; s++) {
            double times = s == 2 ? 8 : 1;
            assert_true(costs[s].unshard == times * expected[mode].unshard);
            assert_true(costs[s].gather == times * expected[mode].gather);
            assert_true(costs[s].reduce_grad == times * expected[mode].reduce_grad);
        }
        assert_float_equal(costs[0].f, 1, 0);
        sl_costs all = { .stages = costs };
        assert_true(makespan(pipeline, &all) >= costs[2].reduce_grad + costs[2].unshard + costs[2].gather);
        sl_pipeline_destroy(pipeline);
        sl_schedule_destroy(schedule);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_input_gives_the_same_programs),
        cmocka_unit_test(halves_that_run_at_the_same_time_share_nothing),
        cmocka_unit_test(a_pipeline_borrows_nothing),
        cmocka_unit_test(each_stage_runs_each_microbatch_once),
        cmocka_unit_test(the_dump_names_every_action_and_instruction),
        cmocka_unit_test(simulated_time_counts_the_bytes_of_messages),
        cmocka_unit_test(collectives_take_the_time_of_their_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
