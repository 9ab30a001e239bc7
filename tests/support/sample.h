/* Samples. What a sanitizer or the tests' device can find does not depend on every combination of what a test varies:
 * there, tests with many combinations take a sample that has each thing varied at least once. With SLUICE_TEST_FULL in
 * the environment they run everything; `./bootstrap drill` sets it for all tests that include this file. */
#ifndef TESTS_SUPPORT_SAMPLE_H
#define TESTS_SUPPORT_SAMPLE_H

#include "support/sanitized.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static inline bool test_is_full(void)
{
    return getenv("SLUICE_TEST_FULL") != NULL;
}

static inline bool test_takes_sample(void)
{
#if TEST_SANITIZED
    return !test_is_full();
#else
    const char *device = getenv("SLUICE_TEST_DEVICE");
    return device && strcmp(device, "cpu") != 0 && !test_is_full();
#endif
}

/* Whether this turn runs `variant` of `variants`: in a sample each turn runs one, the next turn the next. */
static inline bool test_in_sample(size_t turn, int variant, int variants)
{
    return !test_takes_sample() || (int)(turn % (size_t)variants) == variant;
}

#endif
