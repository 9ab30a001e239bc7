/* As many ranks as a run can have on one machine: they start, agree and leave within the memory that their number needs. */
#include "ranks/support/suite.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <sys/resource.h>

#if TEST_SANITIZED
enum { RANKS = 64 }; /* each takes a multiple of the memory */
#else
enum { RANKS = 1024 };
#endif

/* Kilobytes of this process, with its share of what it has in common with others. */
static int64_t own_kilobytes(void)
{
    char line[256];
    long long found = 0;
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "Pss: %lld kB", &found) == 1)
            break;
    }
    if (file)
        fclose(file);
    return found;
}

static sl_status sum_and_measure(sl_group *group, uint64_t seed)
{
    (void)seed;
    sl_status status = SL_OK;
    int64_t size = sl_group_size(group), me = sl_group_rank(group), sum = me, large[2000];
    for (int i = 0; i < 2000; i++)
        large[i] = me + i;
    SL_TRY(sl_group_all_reduce(group, &sum, 1, SL_I64, SL_REDUCE_SUM));
    CHECK(sum == size * (size - 1) / 2);
    SL_TRY(sl_group_all_reduce(group, large, 2000, SL_I64, SL_REDUCE_SUM));
    for (int i = 0; i < 2000; i++)
        CHECK(large[i] == size * (size - 1) / 2 + size * i);
    SL_TRY(sl_group_barrier(group));
    int64_t kilobytes = own_kilobytes();
    SL_TRY(sl_group_all_reduce(group, &kilobytes, 1, SL_I64, SL_REDUCE_SUM));
    if (me == 0)
        printf("%lld ranks: %.1f MiB, %.2f MiB each\n", (long long)size, (double)kilobytes / 1024,
               (double)kilobytes / 1024 / (double)size);
#if !TEST_SANITIZED
    CHECK(kilobytes > 0 && kilobytes <= size * 1024); /* a quarter of 4 GiB for all */
#endif
done:
    return status;
}

static void many_ranks_take_little_memory(void **state)
{
    (void)state;
    struct rlimit files = { 0 };
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    double start = sl_now();
    const sl_group_options options = { .hang_timeout = 300 };
    if (suite_run_local(sum_and_measure, RANKS, &options, 1) != SL_OK)
        fail_msg("%s", sl_error_message());
    printf("%.1f s\n", sl_now() - start);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(many_ranks_take_little_memory) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
