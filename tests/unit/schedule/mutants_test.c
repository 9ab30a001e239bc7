/* The checker against exhaustive execution on random mutants: schedules of two to four ranks in which up to four cells
 * were swapped, moved, dropped, doubled or altered. SLUICE_MUTANTS says how many (the drill takes 5,000,000), SLUICE_SEED
 * which. */
#include "model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>

enum { DEFAULT_MUTANTS = 100000, MOST_PLACES = 60000 /* at which the ranks of a schedule can stand */ };

static uint64_t random_state;

static int random_below(int limit)
{
    random_state += 0x9e3779b97f4a7c15u;
    uint64_t z = random_state;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (int)((z ^ z >> 31) % (uint64_t)limit);
}

static int64_t number_from(const char *name, int64_t otherwise)
{
    int64_t number = otherwise;
    if (getenv(name))
        assert_int_equal(sl_parse_int(name, getenv(name), 0, INT64_MAX, &number), SL_OK);
    return number;
}

/* ---- Schedules to begin with ----------------------------------------------------------------------- */

static int generator_count(void)
{
    int count = 0;
    while (sl_generator_name(count))
        count++;
    return count;
}

/* False if the generator cannot make it. The forms: compute alone, with messages, with weights as well, with waits. */
static bool generate(sl_schedule **out)
{
    sl_generate_options options = { .name = sl_generator_name(random_below(generator_count())),
                                    .ranks = 2 + random_below(3),
                                    .microbatches = 1 + random_below(4) };
    sl_lower_options bare = { .no_unshard = true, .no_reduce_grad = true };
    sl_schedule *compute = NULL;
    sl_lower_options waits = { .waits = random_below(2) ? SL_WAIT_AT_ONCE : SL_WAIT_LATE };
    int form = random_below(4);
    if (sl_schedule_generate(&options, &compute) != SL_OK)
        return false;
    if (form == 0) {
        *out = compute;
        return true;
    }
    assert_int_equal(sl_schedule_lower(compute, form == 1 ? &bare : form == 2 ? NULL : &waits, out), SL_OK);
    sl_schedule_destroy(compute);
    return true;
}

/* False if the judge would take too long, or has no room for it. */
static bool take(const sl_schedule *schedule, program *out)
{
    int64_t places = 1;
    out->ranks = sl_schedule_ranks(schedule);
    if (sl_schedule_stages(schedule) >= STAGES || sl_schedule_microbatches(schedule) >= MICROBATCHES)
        return false;
    for (int rank = 0; rank < out->ranks; rank++) {
        int64_t count;
        const sl_action *actions = sl_schedule_actions(schedule, rank, &count);
        places *= count + 1;
        if (count + 4 > LENGTH || places > MOST_PLACES)
            return false;
        memcpy(out->actions[rank], actions, (size_t)count * sizeof *actions);
        out->count[rank] = (int)count;
    }
    return true;
}

/* ---- Mutations ------------------------------------------------------------------------------------- */

static void swap(sl_action *a, sl_action *b)
{
    sl_action kept = *a;
    *a = *b;
    *b = kept;
}

static sl_action take_out(program *given, int rank, int place)
{
    sl_action taken = given->actions[rank][place];
    int behind = --given->count[rank] - place;
    memmove(&given->actions[rank][place], &given->actions[rank][place + 1], (size_t)behind * sizeof taken);
    return taken;
}

static void put_in(program *given, int rank, int place, sl_action action)
{
    int behind = given->count[rank]++ - place;
    memmove(&given->actions[rank][place + 1], &given->actions[rank][place], (size_t)behind * sizeof action);
    given->actions[rank][place] = action;
}

static sl_action alter(sl_action action, int stages, int microbatches)
{
    switch (random_below(3)) {
    case 0:
        action.kind = (uint8_t)random_below(SL_KIND_OVERLAP_F_B);
        break;
    case 1:
        action.stage = (uint16_t)random_below(stages + 1);
        break;
    default:
        action.microbatch = random_below(microbatches + 1);
    }
    if (action.kind == SL_KIND_OVERLAP_F_B) {
        action.b_microbatch = action.b_microbatch < 0 ? 0 : action.b_microbatch;
        return action;
    }
    return sl_action_make((sl_kind)action.kind, action.stage, action.microbatch < 0 ? 0 : action.microbatch);
}

/* Neighbors change places most often: what comes of it is as often right as wrong. */
static void mutate(program *given, int stages, int microbatches)
{
    int rank = random_below(given->ranks), other = random_below(given->ranks);
    if (given->count[rank] < 2 || given->count[other] < 1)
        return;
    int place = random_below(given->count[rank] - 1), far = random_below(given->count[other]);
    switch (random_below(12)) {
    case 0:
        swap(&given->actions[rank][place], &given->actions[other][far]);
        break;
    case 1:
        take_out(given, rank, place);
        break;
    case 2:
        put_in(given, other, far, given->actions[rank][place]);
        break;
    case 3:
        given->actions[rank][place] = alter(given->actions[rank][place], stages, microbatches);
        break;
    case 4:
    case 5: {
        sl_action moved = take_out(given, rank, place);
        put_in(given, rank, random_below(given->count[rank] + 1), moved);
        break;
    }
    default:
        swap(&given->actions[rank][place], &given->actions[rank][place + 1]);
    }
}

/* ---- The comparison -------------------------------------------------------------------------------- */

typedef struct tally {
    int64_t mutants, valid, invalid;
    int64_t by_ranks[MOST_RANKS + 1];
} tally;

static sl_schedule *schedule_of(const program *given)
{
    sl_schedule_builder *builder = NULL;
    sl_schedule *schedule = NULL;
    assert_int_equal(sl_schedule_builder_create(given->ranks, &builder), SL_OK);
    for (int rank = 0; rank < given->ranks; rank++) {
        for (int i = 0; i < given->count[rank]; i++)
            assert_int_equal(sl_schedule_builder_add(builder, rank, given->actions[rank][i]), SL_OK);
    }
    assert_int_equal(sl_schedule_builder_finish(builder, &schedule), SL_OK);
    sl_schedule_builder_destroy(builder);
    return schedule;
}

static void compare(const program *given, tally *seen)
{
    static const int capacities[] = { UNLIMITED, 0, 1, 2 };
    sl_schedule *schedule = schedule_of(given);
    int capacity = capacities[random_below(4)];
    sl_check_options options = { .limit_links = capacity >= 0, .link_capacity = capacity };
    sl_violation violation;
    bool expected = model_accepts(given, capacity);
    sl_status status = sl_schedule_check(schedule, &options, &violation);
    if ((status == SL_OK) != expected || (status != SL_OK && status != SL_ERR_SCHEDULE)) {
        sl_status written = sl_schedule_write_csv(schedule, stderr);
        fail_msg("mutant %lld, capacity %d: the judge says %s, the checker %s (%d)", (long long)seen->mutants, capacity,
                 expected ? "valid" : "invalid", status == SL_OK ? "valid" : sl_error_message(), (int)written);
    }
    if (status == SL_ERR_SCHEDULE) { /* it points somewhere */
        assert_in_range(violation.rank, 0, given->ranks - 1);
        assert_in_range(violation.cell, 0, given->count[violation.rank]);
        assert_true(violation.reason[0] != '\0');
    }
    seen->mutants++;
    seen->valid += expected;
    seen->invalid += !expected;
    seen->by_ranks[given->ranks]++;
    sl_schedule_destroy(schedule);
}

static void agrees_with_the_judge_on_mutants(void **state)
{
    (void)state;
    int64_t wanted = number_from("SLUICE_MUTANTS", DEFAULT_MUTANTS);
    tally seen = { 0 };
    random_state = (uint64_t)number_from("SLUICE_SEED", 1);
    while (seen.mutants < wanted) {
        static program base, mutant; /* large */
        sl_schedule *schedule = NULL;
        if (!generate(&schedule))
            continue;
        for (int i = 0; i < 20 && take(schedule, &base); i++) {
            mutant = base;
            for (int changes = random_below(5); changes > 0; changes--)
                mutate(&mutant, sl_schedule_stages(schedule), sl_schedule_microbatches(schedule));
            compare(&mutant, &seen);
        }
        sl_schedule_destroy(schedule);
    }
    print_message("%lld mutants, %lld valid, %lld invalid; of 2, 3, 4 ranks: %lld, %lld, %lld\n",
                  (long long)seen.mutants, (long long)seen.valid, (long long)seen.invalid, (long long)seen.by_ranks[2],
                  (long long)seen.by_ranks[3], (long long)seen.by_ranks[4]);
    /* Both answers and all numbers of ranks are well represented. */
    assert_true(seen.valid > wanted / 10 && seen.invalid > wanted / 10);
    assert_true(seen.by_ranks[2] > wanted / 50 && seen.by_ranks[3] > wanted / 50 && seen.by_ranks[4] > wanted / 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(agrees_with_the_judge_on_mutants) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
