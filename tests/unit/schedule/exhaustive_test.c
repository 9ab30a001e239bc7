/* The checker against exhaustive execution: every interleaving of the ranks of every small schedule and of every
 * mutation of it that swaps, drops, duplicates or alters one cell. */
#include "model.h"
#include "support/sample.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>

enum { RANKS = 2 };

/* ---- The comparison -------------------------------------------------------------------------------- */

typedef struct tally {
    int64_t compared, valid;
} tally;

static sl_schedule *schedule_of(const program *given)
{
    sl_schedule_builder *builder = NULL;
    sl_schedule *schedule = NULL;
    assert_int_equal(sl_schedule_builder_create(RANKS, &builder), SL_OK);
    for (int rank = 0; rank < RANKS; rank++) {
        for (int i = 0; i < given->count[rank]; i++)
            assert_int_equal(sl_schedule_builder_add(builder, rank, given->actions[rank][i]), SL_OK);
    }
    assert_int_equal(sl_schedule_builder_finish(builder, &schedule), SL_OK);
    sl_schedule_builder_destroy(builder);
    return schedule;
}

static void compare(const program *given, tally *seen)
{
    static const int capacities[] = { UNLIMITED, 0, 1 };
    sl_schedule *schedule = schedule_of(given);
    for (size_t i = 0; i < sizeof capacities / sizeof *capacities; i++) {
        sl_check_options options = { .limit_links = capacities[i] >= 0, .link_capacity = capacities[i] };
        sl_violation violation;
        bool expected = model_accepts(given, capacities[i]);
        sl_status status = sl_schedule_check(schedule, &options, &violation);
        if ((status == SL_OK) != expected || (status != SL_OK && status != SL_ERR_SCHEDULE)) {
            sl_status written = sl_schedule_write_csv(schedule, stderr);
            fail_msg("capacity %d: the model says %s, the checker %s (%d)", capacities[i],
                     expected ? "valid" : "invalid", status == SL_OK ? "valid" : sl_error_message(), written);
        }
        if (status == SL_ERR_SCHEDULE) { /* it points somewhere */
            assert_in_range(violation.rank, 0, RANKS - 1);
            assert_in_range(violation.cell, 0, given->count[violation.rank]);
            assert_true(violation.reason[0] != '\0');
        }
        seen->compared++;
        seen->valid += expected;
    }
    sl_schedule_destroy(schedule);
}

static void swap_cells(const program *given, tally *seen)
{
    int total = given->count[0] + given->count[1];
    for (int a = 0; a < total; a++) {
        for (int b = a + 1; b < total; b++) {
            program changed = *given;
            sl_action *left = a < given->count[0] ? &changed.actions[0][a] : &changed.actions[1][a - given->count[0]];
            sl_action *right = b < given->count[0] ? &changed.actions[0][b] : &changed.actions[1][b - given->count[0]];
            sl_action kept = *left;
            *left = *right;
            *right = kept;
            compare(&changed, seen);
        }
    }
}

static void insert_cell(program *changed, int rank, int place, sl_action action)
{
    int behind = changed->count[rank]++ - place;
    memmove(&changed->actions[rank][place + 1], &changed->actions[rank][place], (size_t)behind * sizeof action);
    changed->actions[rank][place] = action;
}

static void drop_and_duplicate_cells(const program *given, tally *seen)
{
    for (int rank = 0; rank < RANKS; rank++) {
        for (int i = 0; i < given->count[rank]; i++) {
            program changed = *given;
            int behind = --changed.count[rank] - i;
            memmove(&changed.actions[rank][i], &changed.actions[rank][i + 1],
                    (size_t)behind * sizeof *changed.actions[rank]);
            compare(&changed, seen);
            for (int to = 0; to < RANKS; to++) { /* on its own rank anywhere, on the other at the same place */
                for (int place = 0; place <= given->count[to]; place++) {
                    if (to != rank && place != i)
                        continue;
                    changed = *given;
                    insert_cell(&changed, to, place, given->actions[rank][i]);
                    compare(&changed, seen);
                }
            }
        }
    }
}

static void alter_cell(const program *given, int rank, int i, sl_action altered, tally *seen)
{
    program changed = *given;
    if (sl_kind_class_of((sl_kind)altered.kind) != SL_CLASS_WEIGHTS && altered.microbatch < 0)
        altered.microbatch = 0;
    changed.actions[rank][i] = altered;
    compare(&changed, seen);
}

static void alter_cells(const program *given, int stages, int microbatches, tally *seen)
{
    for (int rank = 0; rank < RANKS; rank++) {
        for (int i = 0; i < given->count[rank]; i++) {
            sl_action was = given->actions[rank][i];
            for (int kind = 0; kind < SL_KIND_COUNT; kind++) {
                sl_action altered = was;
                altered.kind = (uint8_t)kind;
                if (kind == SL_KIND_OVERLAP_F_B && was.kind != SL_KIND_OVERLAP_F_B)
                    altered = sl_action_overlap(was.stage, was.microbatch, was.stage,
                                                was.microbatch < 0 ? 0 : was.microbatch);
                alter_cell(given, rank, i, altered, seen);
            }
            for (int s = 0; s <= stages; s++) { /* one past the last too */
                sl_action altered = was;
                altered.stage = (uint16_t)s;
                alter_cell(given, rank, i, altered, seen);
                altered = was;
                altered.b_stage = (uint16_t)s;
                if (was.kind == SL_KIND_OVERLAP_F_B)
                    alter_cell(given, rank, i, altered, seen);
            }
            for (int m = 0; m <= microbatches && was.microbatch >= 0; m++) {
                sl_action altered = was;
                altered.microbatch = m;
                alter_cell(given, rank, i, altered, seen);
                altered = was;
                altered.b_microbatch = m;
                if (was.kind == SL_KIND_OVERLAP_F_B)
                    alter_cell(given, rank, i, altered, seen);
            }
        }
    }
}

static program program_of(const sl_schedule *schedule)
{
    program made = { .ranks = RANKS };
    for (int rank = 0; rank < RANKS; rank++) {
        int64_t count;
        const sl_action *actions = sl_schedule_actions(schedule, rank, &count);
        assert_true(count < LENGTH);
        memcpy(made.actions[rank], actions, (size_t)count * sizeof *actions);
        made.count[rank] = (int)count;
    }
    return made;
}

static void compare_all(const sl_schedule *schedule, tally *seen)
{
    program given = program_of(schedule);
    compare(&given, seen);
    swap_cells(&given, seen);
    drop_and_duplicate_cells(&given, seen);
    alter_cells(&given, sl_schedule_stages(schedule), sl_schedule_microbatches(schedule), seen);
}

static void compare_forms(const sl_schedule *compute, tally *seen)
{
    sl_schedule *messages = NULL;
    sl_schedule *lowered = NULL;
    sl_lower_options bare = { .no_unshard = true, .no_reduce_grad = true };
    compare_all(compute, seen);
    assert_int_equal(sl_schedule_lower(compute, &bare, &messages), SL_OK);
    compare_all(messages, seen);
    sl_schedule_destroy(messages);
    assert_int_equal(sl_schedule_lower(compute, NULL, &lowered), SL_OK);
    compare_all(lowered, seen);
    sl_schedule_destroy(lowered);
    if (sl_schedule_size(compute) > 16)
        return; /* no new kind of mistake, many more of each */
    sl_lower_options waits = { .waits = sl_schedule_microbatches(compute) == 1 ? SL_WAIT_AT_ONCE : SL_WAIT_LATE };
    assert_int_equal(sl_schedule_lower(compute, &waits, &lowered), SL_OK);
    compare_all(lowered, seen);
    sl_schedule_destroy(lowered);
}

/* A sample has one and two microbatches. */
static void agrees_on_every_mutation_of_generated_schedules(void **state)
{
    (void)state;
    tally seen = { 0 };
    const int most = test_takes_sample() ? 2 : 3, share = test_takes_sample() ? 10 : 1;
    for (int g = 0; sl_generator_name(g); g++) {
        for (int microbatches = 1; microbatches <= most; microbatches++) {
            sl_schedule *compute = NULL;
            sl_generate_options options = {
                .name = sl_generator_name(g), .ranks = RANKS, .microbatches = microbatches, .stages_per_rank = 0
            };
            assert_int_equal(sl_schedule_generate(&options, &compute), SL_OK);
            compare_forms(compute, &seen);
            sl_schedule_destroy(compute);
        }
    }
    print_message("%lld comparisons, %lld of them valid\n", (long long)seen.compared, (long long)seen.valid);
    assert_true(seen.valid > 1000 / share); /* both answers are well represented */
    assert_true(seen.compared - seen.valid > 100000 / share);
}

static void agrees_on_mappings_of_no_generator(void **state)
{
    (void)state;
    static const char *const files[] = {
        "0F0,1F0,3F0,3B0,1B0,0B0\n2F0,2B0\n",
        "1F0,2F0,1F1,2F1,2B0,1B0,2B1,1B1\n0F0,0F1,0B0,0B1\n",
        "0F1,0F0,0B0,0B1\n1F1,1F0,1I0,1I1,1W1,1W0\n",
    };
    tally seen = { 0 };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        sl_schedule *compute = NULL;
        assert_int_equal(sl_schedule_parse_csv(files[i], strlen(files[i]), "x.csv", &compute), SL_OK);
        compare_forms(compute, &seen);
        sl_schedule_destroy(compute);
    }
    assert_true(seen.valid > 30);
}

/* Every order of the rank's cells from `place` on, with every order of the next rank's. */
static void compare_orders(program *given, int rank, int place, tally *seen)
{
    if (rank == RANKS) {
        compare(given, seen);
        return;
    }
    if (place >= given->count[rank]) {
        compare_orders(given, rank + 1, 0, seen);
        return;
    }
    for (int i = place; i < given->count[rank]; i++) {
        sl_action *cells = given->actions[rank];
        sl_action kept = cells[place];
        cells[place] = cells[i];
        cells[i] = kept;
        compare_orders(given, rank, place + 1, seen);
        cells[i] = cells[place];
        cells[place] = kept;
    }
}

static void agrees_on_every_order(void **state)
{
    (void)state;
    static const char *const files[] = {
        "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n",
        "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n",
        "0F0,0SEND_F0,0F1,0SEND_F1\n1RECV_F0,1F0,1RECV_F1,1F1\n",
        "0F0,0I0,0W0,2F0,2B0\n1F0,1I0,1W0,3F0,3B0\n",
        "0F0,0SEND_F0,2RECV_F0,2F0\n1RECV_F0,1F0,1SEND_F0\n",
        "0F0,0SEND_F0,0WAIT_SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0,1WAIT_SEND_B0\n",
        "0F0,0F1,0SEND_F0,0SEND_F1,0WAIT_SEND_F0,0WAIT_SEND_F1\n1RECV_F0,1F0,1RECV_F1,1F1\n",
        "0F0,0B0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD\n1F0,1B0,1REDUCE_GRAD,1WAIT_REDUCE_GRAD\n",
        "0UNSHARD,0F0,0B0,0REDUCE_GRAD,0RESHARD\n1UNSHARD,1F0,1B0,1REDUCE_GRAD,1RESHARD\n",
    };
    tally seen = { 0 };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        sl_schedule *schedule = NULL;
        program given;
        int64_t valid_before = seen.valid;
        assert_int_equal(sl_schedule_parse_csv(files[i], strlen(files[i]), "x.csv", &schedule), SL_OK);
        given = program_of(schedule);
        compare_orders(&given, 0, 0, &seen);
        assert_true(seen.valid > valid_before);
        sl_schedule_destroy(schedule);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_on_every_mutation_of_generated_schedules),
        cmocka_unit_test(agrees_on_mappings_of_no_generator),
        cmocka_unit_test(agrees_on_every_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
