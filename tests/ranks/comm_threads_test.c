/* The communication suite on one rank and on threads of one process. */
#include "ranks/support/suite.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>

static void run_on(const suite_case *cases, int size)
{
    for (const suite_case *each = cases; each->name; each++) {
        for (int round = 0; size >= each->min_ranks && (round == 0 || round < each->rounds); round++) {
            uint64_t seed = (uint64_t)round * 31 + (uint64_t)size;
            const sl_group_options options = { .checksum = round % 4 == 1, .spin_us = round % 3 == 1 ? -1 : 0 };
            sl_status status = suite_run_threads(each->run, size, &options, seed);
            if (status != SL_OK)
                fail_msg("%s, %d ranks, seed %llu: %s", each->name, size, (unsigned long long)seed, sl_error_message());
        }
    }
}

static void one_rank(void **state)
{
    (void)state;
    for (const suite_case *const *list =
             (const suite_case *const[]){ suite_patterns, suite_messages, suite_collectives, NULL };
         *list; list++) {
        for (const suite_case *each = *list; each->name; each++) {
            for (int round = 0; each->min_ranks == 1 && (round == 0 || round < each->rounds); round++) {
                sl_status status = suite_run_self(each->run, NULL, (uint64_t)round);
                if (status != SL_OK)
                    fail_msg("%s, round %d: %s", each->name, round, sl_error_message());
            }
        }
    }
}

static void patterns(void **state)
{
    (void)state;
    for (int size = 1; size <= 5; size++)
        run_on(suite_patterns, size);
}

static void messages(void **state)
{
    (void)state;
    for (int size = 1; size <= 5; size++)
        run_on(suite_messages, size);
}

static void collectives(void **state)
{
    (void)state;
    for (int size = 1; size <= 5; size++)
        run_on(suite_collectives, size);
}

static void failures(void **state)
{
    (void)state;
    for (int size = 2; size <= 4; size++)
        run_on(suite_failures, size);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank),    cmocka_unit_test(patterns), cmocka_unit_test(messages),
        cmocka_unit_test(collectives), cmocka_unit_test(failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
