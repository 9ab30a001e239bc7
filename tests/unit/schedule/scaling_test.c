/* No part is quadratic in anything. Twice the microbatches take at most 2.2 times as long. If ranks, stages or edges
 * grow sixteenfold, linear work takes 16 times as long, more if the caches no longer hold all ranks, and quadratic
 * work 256 times: the line is drawn in the middle, at 64. Measured in processor time of this process, the best of
 * several turns. */
#include <sluice/schedule.h>

#include "support/sample.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <time.h>

enum { GENERATE, LOWER, CHECK, SIMULATE, PART_COUNT, TURNS = 6 };

static const char *const parts[] = { "generate", "lower", "check", "simulate" };

typedef struct size {
    const char *name;
    int ranks, microbatches, stages_per_rank;
    int skips; /* edges from each stage to the ones after it */
} size;

static double cpu_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static double lap(double *start)
{
    double now = cpu_now();
    double seconds = now - *start;
    *start = now;
    return seconds;
}

static void keep_best(double *best, double seconds)
{
    *best = *best == 0 || seconds < *best ? seconds : *best;
}

static sl_edge *make_edges(int stages, int skips, int *count)
{
    sl_edge *edges = malloc((size_t)stages * (size_t)skips * sizeof *edges);
    *count = 0;
    for (int from = 0; from < stages; from++) {
        for (int to = from + 1; to <= from + skips && to < stages; to++)
            edges[(*count)++] = (sl_edge){ from, to };
    }
    return edges;
}

static void measure(size given, double best[PART_COUNT])
{
    sl_generate_options options = { .name = given.name,
                                    .ranks = given.ranks,
                                    .microbatches = given.microbatches,
                                    .stages_per_rank = given.stages_per_rank };
    int edge_count;
    sl_edge *edges = make_edges(given.ranks * given.stages_per_rank, given.skips, &edge_count);
    sl_lower_options lowering = { .edges = edges, .edge_count = edge_count };
    sl_check_options checking = { .edges = edges, .edge_count = edge_count };
    sl_schedule *compute = NULL;
    sl_schedule *lowered = NULL;
    sl_timeline *timeline = NULL;
    double start = cpu_now();
    assert_int_equal(sl_schedule_generate(&options, &compute), SL_OK);
    keep_best(&best[GENERATE], lap(&start));
    assert_int_equal(sl_schedule_lower(compute, &lowering, &lowered), SL_OK);
    keep_best(&best[LOWER], lap(&start));
    assert_int_equal(sl_schedule_check(lowered, &checking, NULL), SL_OK);
    keep_best(&best[CHECK], lap(&start));
    assert_int_equal(sl_schedule_simulate(lowered, NULL, edges, edge_count, &timeline), SL_OK);
    keep_best(&best[SIMULATE], lap(&start));
    sl_timeline_destroy(timeline);
    sl_schedule_destroy(lowered);
    sl_schedule_destroy(compute);
    free(edges);
}

/* The part that grew by more than the factor; -1: none. */
static int find_slow(double small[PART_COUNT], double large[PART_COUNT], double factor)
{
    for (int part = 0; part < PART_COUNT; part++) {
        if (large[part] > factor * small[part])
            return part;
    }
    return -1;
}

/* A turn that another process disturbs does not count: the test passes as soon as the best times do. A sample only runs
 * the small one, for times under a sanitizer say nothing. */
static void assert_growth(size small, size large, double factor)
{
    double best_small[PART_COUNT] = { 0 };
    double best_large[PART_COUNT] = { 0 };
    int slow = -1;
    if (test_takes_sample()) {
        measure(small, best_small);
        return;
    }
    for (int turn = 0; turn < TURNS; turn++) {
        measure(small, best_small);
        measure(large, best_large);
        slow = find_slow(best_small, best_large, factor);
        if (slow < 0)
            return;
    }
    fail_msg("%s: %.4f s, then %.4f s", parts[slow], best_small[slow], best_large[slow]);
}

static void doubles_with_microbatches(void **state)
{
    (void)state;
    assert_growth((size){ "Interleaved1F1B", 8, 2000, 4, 1 }, (size){ "Interleaved1F1B", 8, 8000, 4, 1 }, 2.2 * 2.2);
}

static void is_not_quadratic_in_ranks(void **state)
{
    (void)state;
    assert_growth((size){ "Interleaved1F1B", 500, 8, 4, 1 }, (size){ "Interleaved1F1B", 8000, 8, 4, 1 }, 64);
    assert_growth((size){ "DualPipeV", 2000, 2, 2, 1 }, (size){ "DualPipeV", 32000, 2, 2, 1 }, 64);
}

static void is_not_quadratic_in_stages(void **state)
{
    (void)state;
    assert_growth((size){ "InterleavedZeroBubble", 2, 8, 2000, 1 }, (size){ "InterleavedZeroBubble", 2, 8, 32000, 1 },
                  64);
}

/* The actions stay as many; each has sixteen times the messages. */
static void is_not_quadratic_in_edges(void **state)
{
    (void)state;
    assert_growth((size){ "1F1B", 400, 50, 1, 10 }, (size){ "1F1B", 400, 50, 1, 160 }, 64);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(doubles_with_microbatches),
        cmocka_unit_test(is_not_quadratic_in_ranks),
        cmocka_unit_test(is_not_quadratic_in_stages),
        cmocka_unit_test(is_not_quadratic_in_edges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
