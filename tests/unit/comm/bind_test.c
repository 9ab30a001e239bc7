/* Which cores ranks run on. */
#include "comm/launch/launch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MOST_RANKS = 64, TEXT = 256 };

/* "3,5 7 - " for a rank on cores 3 and 5, one on core 7 and one that is not bound. */
static void masks_text(const cpu_set_t *masks, int ranks, char text[TEXT])
{
    size_t used = 0;
    for (int r = 0; r < ranks; r++) {
        const char *comma = "";
        for (int core = 0; core < CPU_SETSIZE; core++) {
            if (CPU_ISSET((size_t)core, &masks[r])) {
                used += (size_t)snprintf(text + used, TEXT - used, "%s%d", comma, core);
                comma = ",";
            }
        }
        used += (size_t)snprintf(text + used, TEXT - used, "%s ", *comma ? "" : "-");
    }
}

static void cores_are_shared_as_the_header_says(void **state)
{
    (void)state;
    static const struct {
        sl_launch_bind bind;
        int ranks, threads;
        int cores[8], count;
        bool are_all;
        const char *expected;
    } rows[] = {
        { SL_BIND_AUTO, 2, 0, { 0, 1, 2, 3 }, 4, true, "0,1 2,3 " },
        { SL_BIND_AUTO, 3, 1, { 0, 2, 1, 3 }, 4, true, "0 2 1,3 " },
        { SL_BIND_AUTO, 2, 0, { 4, 5 }, 2, true, "4 5 " },
        { SL_BIND_AUTO, 2, 0, { 4, 5 }, 2, false, "- - " }, /* somebody else has chosen */
        { SL_BIND_AUTO, 2, 2, { 0, 1, 2, 3 }, 4, true, "0,1 2,3 " },
        { SL_BIND_AUTO, 2, 2, { 0, 1 }, 2, true, "- - " }, /* threads of a rank can use cores that others do not */
        { SL_BIND_AUTO, 4, 0, { 0, 1 }, 2, true, "0 1 0 1 " },
        { SL_BIND_AUTO, 4, 1, { 6, 9 }, 2, false, "6 9 6 9 " }, /* within what may be used */
        { SL_BIND_AUTO, 6, 0, { 0, 2, 1 }, 3, true, "0 2 1 0 2 1 " },
        { SL_BIND_AUTO, 3, 0, { 5 }, 1, false, "5 5 5 " },
        { SL_BIND_AUTO, 3, 0, { 0, 1 }, 2, true, "- - - " }, /* not evenly */
        { SL_BIND_AUTO, 4, 2, { 0, 1 }, 2, true, "- - - - " },
        { SL_BIND_AUTO, 2, 0, { 0 }, 0, false, "- - " }, /* the system does not say */
        { SL_BIND_CORE, 3, 2, { 3, 4 }, 2, false, "3 4 3 " },
        { SL_BIND_CORE, 1, 0, { 3, 4 }, 2, true, "3 " },
        { SL_BIND_NONE, 4, 0, { 0, 1 }, 2, true, "- - - - " },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const sl_launch_sharing sharing = { .bind = rows[i].bind, .ranks = rows[i].ranks, .threads = rows[i].threads };
        cpu_set_t masks[MOST_RANKS];
        char text[TEXT];
        memset(masks, 0, sizeof masks);
        sl_launch_share_cores(&sharing, rows[i].cores, rows[i].count, rows[i].are_all, masks);
        masks_text(masks, rows[i].ranks, text);
        assert_string_equal(text, rows[i].expected);
    }
}

/* ---- Ranks that run -------------------------------------------------------------------------- */

static int note_mask(void *user, int rank)
{
    cpu_set_t *masks = user;
    return sched_getaffinity(0, sizeof *masks, &masks[rank]) == 0 ? 0 : 1;
}

/* The masks that ranks see; the caller unmaps them. */
static cpu_set_t *launch(int ranks, int threads)
{
    sl_launch_result result;
    cpu_set_t *masks =
        mmap(NULL, MOST_RANKS * sizeof *masks, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(masks != MAP_FAILED && ranks <= MOST_RANKS);
    assert_int_equal(
        sl_launch(&(sl_launch_options){ .ranks = ranks, .threads = threads, .run = note_mask, .user = masks }, &result),
        SL_OK);
    assert_int_equal(result.exit_code, 0);
    return masks;
}

/* Whether each of the cores has as many of the ranks, which run on one each and go round: neighbors are on two. */
static bool go_round(const cpu_set_t *masks, int ranks, const cpu_set_t *cores)
{
    int count = CPU_COUNT(cores);
    bool round = true;
    cpu_set_t seen;
    CPU_ZERO(&seen);
    for (int r = 0; r < ranks; r++) {
        CPU_OR(&seen, &seen, &masks[r]);
        round = round && CPU_COUNT(&masks[r]) == 1 && CPU_EQUAL(&masks[r], &masks[r % count]);
    }
    return round && CPU_EQUAL(&seen, cores);
}

static bool are_free(const cpu_set_t *masks, int ranks, const cpu_set_t *cores)
{
    for (int r = 0; r < ranks; r++) {
        if (!CPU_EQUAL(&masks[r], cores))
            return false;
    }
    return true;
}

static void check_ranks(int ranks, int threads, const cpu_set_t *cores,
                        bool (*holds)(const cpu_set_t *masks, int ranks, const cpu_set_t *cores))
{
    cpu_set_t *masks = launch(ranks, threads);
    bool held = holds(masks, ranks, cores);
    munmap(masks, MOST_RANKS * sizeof *masks);
    assert_true(held);
}

static void twice_as_many_ranks_as_cores_have_one_each(void **state)
{
    (void)state;
    cpu_set_t cores;
    int shared = 0;
    assert_int_equal(sched_getaffinity(0, sizeof cores, &cores), 0);
    int count = CPU_COUNT(&cores);
    if (2 * count > MOST_RANKS)
        skip();
    check_ranks(2 * count, 0, &cores, go_round);
    check_ranks(2 * count, 2, &cores, are_free);
    assert_int_equal(sl_launch_count_shared(2 * count, 1, &shared), SL_OK);
    assert_int_equal(shared, count);
    assert_int_equal(sl_launch_count_shared(count, 1, &shared), SL_OK);
    assert_int_equal(shared, 0);
    if (count < 2)
        return;
    check_ranks(2 * count - 1, 0, &cores, are_free);
    assert_int_equal(sl_launch_count_shared(2 * count - 1, 1, &shared), SL_OK);
    assert_int_equal(shared, 0);
}

static void ranks_stay_on_the_cores_that_their_launcher_may_use(void **state)
{
    (void)state;
    cpu_set_t before, chosen;
    int shared = 0;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    for (int few = 1; few < 3 && few <= CPU_COUNT(&before); few++) {
        CPU_ZERO(&chosen);
        for (size_t core = CPU_SETSIZE; core-- > 0 && CPU_COUNT(&chosen) < few;) { /* the last ones */
            if (CPU_ISSET(core, &before))
                CPU_SET(core, &chosen);
        }
        assert_int_equal(sched_setaffinity(0, sizeof chosen, &chosen), 0);
        check_ranks(2 * few, 0, &chosen, go_round);
        assert_int_equal(sl_launch_count_shared(2 * few, 1, &shared), SL_OK);
        assert_int_equal(shared, few);
        assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    }
}

static void the_environment_decides_for_auto(void **state)
{
    (void)state;
    cpu_set_t cores;
    sl_launch_bind bind = SL_BIND_AUTO;
    int shared = 0;
    assert_int_equal(sched_getaffinity(0, sizeof cores, &cores), 0);
    int count = CPU_COUNT(&cores);
    setenv("SLUICE_BIND", "none", 1);
    if (2 * count <= MOST_RANKS)
        check_ranks(2 * count, 0, &cores, are_free);
    assert_int_equal(sl_launch_count_shared(2 * count, 1, &shared), SL_OK);
    assert_int_equal(shared, 0);
    setenv("SLUICE_BIND", "core", 1);
    assert_int_equal(sl_launch_count_shared(2 * count, 2, &shared), SL_OK);
    assert_int_equal(shared, count);
    bind = SL_BIND_NONE;
    assert_int_equal(sl_launch_resolve_bind(&bind), SL_OK);
    assert_int_equal(bind, SL_BIND_NONE);
    bind = SL_BIND_AUTO;
    setenv("SLUICE_BIND", "auto", 1);
    assert_int_equal(sl_launch_resolve_bind(&bind), SL_OK);
    assert_int_equal(bind, SL_BIND_AUTO);
    setenv("SLUICE_BIND", "socket", 1);
    assert_int_equal(sl_launch_resolve_bind(&bind), SL_ERR_ARGUMENT);
    assert_non_null(strstr(sl_error_message(), "SLUICE_BIND is \"socket\"; auto, none or core are possible"));
    unsetenv("SLUICE_BIND");
}

/* ---- Turns ----------------------------------------------------------------------------------- */

static int note_policy(void *user, int rank)
{
    int *policies = user;
    policies[rank] = sched_getscheduler(0);
    return 0;
}

/* Whether all ranks have this policy of the scheduler. */
static bool ranks_have_policy(int ranks, int policy)
{
    sl_launch_result result = { .exit_code = 1 };
    int *policies =
        mmap(NULL, MOST_RANKS * sizeof *policies, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(policies != MAP_FAILED && ranks <= MOST_RANKS);
    sl_status status = sl_launch(&(sl_launch_options){ .ranks = ranks, .run = note_policy, .user = policies }, &result);
    bool have = status == SL_OK && result.exit_code == 0;
    for (int r = 0; r < ranks; r++)
        have = have && policies[r] == policy;
    munmap(policies, MOST_RANKS * sizeof *policies);
    return have;
}

static void ranks_of_a_core_do_not_interrupt_each_other(void **state)
{
    (void)state;
    cpu_set_t cores;
    assert_int_equal(sched_getaffinity(0, sizeof cores, &cores), 0);
    int count = CPU_COUNT(&cores);
    if (2 * count > MOST_RANKS || sched_getscheduler(0) != SCHED_OTHER)
        skip();
    assert_true(ranks_have_policy(2 * count, SCHED_BATCH));
    assert_true(ranks_have_policy(count, SCHED_OTHER)); /* a core each */
    setenv("SLUICE_BIND", "none", 1);
    bool have = ranks_have_policy(2 * count, SCHED_OTHER);
    unsetenv("SLUICE_BIND");
    assert_true(have);
}

static void *bind_idle_thread(void *user)
{
    int *policy = user;
    cpu_set_t masks[2];
    memset(masks, 0, sizeof masks);
    CPU_SET((size_t)sched_getcpu(), &masks[0]);
    masks[1] = masks[0];
    if (sched_setscheduler(0, SCHED_IDLE, &(struct sched_param){ 0 }) != 0)
        return NULL;
    sl_launch_take_cores(masks, 2, 0);
    *policy = sched_getscheduler(0);
    return NULL;
}

static void a_policy_that_somebody_has_chosen_stays(void **state)
{
    (void)state;
    int policy = -1;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, bind_idle_thread, &policy), 0);
    pthread_join(thread, NULL);
    assert_int_equal(policy, SCHED_IDLE);
}

static void threads_are_bound_as_ranks_would_be(void **state)
{
    (void)state;
    cpu_set_t before, own;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    int count = CPU_COUNT(&before), policy = sched_getscheduler(0);
    if (2 * count > MOST_RANKS || policy != SCHED_OTHER)
        skip();
    cpu_set_t *masks = launch(2 * count, 0);
    for (int r = 0; r < 2 * count; r++) {
        sl_status status = sl_launch_bind_thread(2 * count, 1, r);
        int read = sched_getaffinity(0, sizeof own, &own), now = sched_getscheduler(0);
        sched_setaffinity(0, sizeof before, &before);
        sched_setscheduler(0, policy, &(struct sched_param){ 0 });
        assert_int_equal(status, SL_OK);
        assert_int_equal(read, 0);
        assert_int_equal(now, SCHED_BATCH);
        assert_true(CPU_EQUAL(&own, &masks[r]));
    }
    munmap(masks, MOST_RANKS * sizeof *masks);
}

int main(void)
{
    unsetenv("SLUICE_BIND");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cores_are_shared_as_the_header_says),
        cmocka_unit_test(twice_as_many_ranks_as_cores_have_one_each),
        cmocka_unit_test(ranks_stay_on_the_cores_that_their_launcher_may_use),
        cmocka_unit_test(the_environment_decides_for_auto),
        cmocka_unit_test(ranks_of_a_core_do_not_interrupt_each_other),
        cmocka_unit_test(a_policy_that_somebody_has_chosen_stays),
        cmocka_unit_test(threads_are_bound_as_ranks_would_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
