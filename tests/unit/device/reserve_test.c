/* Memory taken in advance: blocks come out of it, none overlap, neighbors join again, what does not fit is refused. */
#include "device/backend.h"
#include "device/region.h"

#include "base/alloc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

/* ---- Regions --------------------------------------------------------------------------------- */

enum { UNITS = 64, BLOCKS = 24 };
#define UNIT ((size_t)SL_REGION_ALIGNMENT)

static char *const start = (char *)(uintptr_t)(1 << 20); /* never touched */

static sl_region *new_region(void)
{
    sl_region *region = NULL;
    assert_int_equal(sl_region_create(start, UNITS * UNIT, &region), SL_OK);
    return region;
}

static char *taken(sl_region *region, size_t bytes)
{
    void *block = NULL;
    assert_int_equal(sl_region_take(region, bytes, &block), SL_OK);
    return block;
}

static void blocks_are_aligned_and_the_range_is_used_to_its_end(void **state)
{
    (void)state;
    sl_region *region = new_region();
    size_t bytes = 0;
    assert_true(sl_region_is_empty(region));
    assert_ptr_equal(taken(region, 1), start);
    assert_ptr_equal(taken(region, 0), start + UNIT);
    assert_ptr_equal(taken(region, UNIT + 1), start + 2 * UNIT);
    assert_int_equal(sl_region_free_bytes(region), (UNITS - 4) * UNIT);
    assert_null(taken(region, (UNITS - 4) * UNIT + 1));
    assert_null(taken(region, SIZE_MAX));
    assert_ptr_equal(taken(region, (UNITS - 4) * UNIT), start + 4 * UNIT);
    assert_null(taken(region, 0));
    assert_true(sl_region_give(region, start + 2 * UNIT, &bytes));
    assert_int_equal(bytes, UNIT + 1);
    assert_false(sl_region_give(region, start + 2 * UNIT, &bytes)); /* twice */
    assert_false(sl_region_give(region, start + 5 * UNIT, &bytes)); /* inside one */
    assert_false(sl_region_give(region, start - UNIT, &bytes));
    sl_region_destroy(region);
    sl_region_destroy(NULL);
}

/* Against a map of units, with blocks that come and go. */
static void any_order_of_blocks_leaves_no_overlap_and_no_loss(void **state)
{
    (void)state;
    sl_region *region = new_region();
    char owner[UNITS] = { 0 }, *blocks[BLOCKS] = { NULL };
    size_t sizes[BLOCKS] = { 0 }, bytes = 0, used = 0;
    uint64_t random = 7;
    for (int round = 0; round < 20000; round++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        size_t n = (random >> 33) % BLOCKS, units = 1 + (random >> 50) % 9;
        if (blocks[n]) {
            assert_true(sl_region_give(region, blocks[n], &bytes));
            assert_int_equal(bytes, sizes[n] * UNIT);
            memset(owner + (size_t)(blocks[n] - start) / UNIT, 0, sizes[n]);
            used -= sizes[n];
            blocks[n] = NULL;
        } else if ((blocks[n] = taken(region, units * UNIT))) {
            size_t first = (size_t)(blocks[n] - start) / UNIT;
            sizes[n] = units;
            for (size_t i = first; i < first + units; i++) {
                assert_true(i < UNITS && owner[i] == 0);
                owner[i] = 1;
            }
            used += units;
        }
        assert_int_equal(sl_region_free_bytes(region), (UNITS - used) * UNIT);
    }
    for (int n = 0; n < BLOCKS; n++)
        assert_true(!blocks[n] || sl_region_give(region, blocks[n], &bytes));
    assert_true(sl_region_is_empty(region));
    assert_ptr_equal(taken(region, UNITS * UNIT), start); /* one gap again */
    sl_region_destroy(region);
}

/* ---- Devices --------------------------------------------------------------------------------- */

/* The cpu, as a device whose memory is taken in advance; it has a megabyte and counts what is taken. */
static const size_t megabyte = 1 << 20;
static sl_device_backend backend;
static int calls;
static size_t held;

static sl_status small_alloc(sl_device *device, size_t bytes, void **out)
{
    if (held + bytes > megabyte)
        return sl_fail(SL_ERR_MEMORY, "out of memory: %zu bytes were asked for", bytes);
    sl_status status = sl_device_cpu.alloc(device, bytes, out);
    if (status == SL_OK) {
        calls++;
        held += bytes;
    }
    return status;
}

static void small_free(sl_device *device, void *block)
{
    size_t before = atomic_load(&device->in_use);
    sl_device_cpu.free(device, block);
    held -= before - atomic_load(&device->in_use);
    calls--;
}

static sl_device *open_small(void)
{
    sl_device *device = NULL;
    backend = sl_device_cpu;
    backend.name = "small";
    backend.reserves = true;
    backend.alloc = small_alloc;
    backend.free = small_free;
    sl_device_set_extra_backend(&backend);
    assert_int_equal(sl_device_open("small", NULL, &device), SL_OK);
    calls = 0;
    held = 0;
    return device;
}

static void close_small(sl_device *device)
{
    sl_device_close(device);
    assert_int_equal(calls, 0);
    assert_int_equal(held, 0);
    sl_device_set_extra_backend(NULL);
}

static void blocks_come_out_of_one_that_is_taken_in_advance(void **state)
{
    (void)state;
    sl_device *device = open_small();
    void *blocks[4] = { NULL };
    assert_int_equal(sl_device_reserve(device, 4000, 4), SL_OK);
    assert_int_equal(calls, 1);
    assert_int_equal(sl_device_get_memory(device).in_use, 0);
    assert_int_equal(sl_device_get_memory(device).peak, 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(sl_device_alloc(device, 1000, &blocks[i]), SL_OK);
    assert_int_equal(calls, 1);
    assert_int_equal(sl_device_get_memory(device).in_use, 4000);
    assert_int_equal(sl_device_get_memory(device).peak, 4000);
    sl_device_free(device, blocks[1]);
    assert_int_equal(sl_device_get_memory(device).in_use, 3000);
    assert_int_equal(sl_device_reserve(device, 500, 1), SL_OK); /* so much is left */
    assert_int_equal(calls, 1);
    assert_int_equal(sl_device_alloc(device, 5000, &blocks[1]), SL_OK); /* so much is not: a block of its own */
    assert_int_equal(calls, 2);
    for (int i = 0; i < 4; i++)
        sl_device_free(device, blocks[i]);
    assert_int_equal(calls, 0); /* given back with the last block */
    assert_int_equal(sl_device_get_memory(device).in_use, 0);
    assert_int_equal(sl_device_reserve(device, 100, 1), SL_OK); /* never used */
    close_small(device);
}

static void what_does_not_fit_is_refused_before_a_block_is_taken(void **state)
{
    (void)state;
    sl_device *device = open_small();
    void *block = NULL;
    assert_int_equal(sl_device_reserve(device, 2 * megabyte, 1), SL_ERR_MEMORY);
    assert_non_null(strstr(sl_error_message(), "device small: out of memory: 2097408 bytes were asked for"));
    assert_int_equal(calls, 0);
    assert_int_equal(sl_device_get_memory(device).in_use, 0);
    assert_int_equal(sl_device_alloc(device, 100, &block), SL_OK);
    sl_device_free(device, block);
    for (int n = 0; n < 4; n++) { /* the host has no memory */
        sl_alloc_fail_after(n);
        sl_status status = sl_device_reserve(device, 1000, 1);
        sl_alloc_fail_after(-1);
        assert_true(status == SL_ERR_MEMORY || status == SL_OK);
    }
    close_small(device);
}

static void devices_of_the_host_reserve_nothing(void **state)
{
    (void)state;
    sl_device *device = NULL;
    assert_int_equal(sl_device_open("cpu", NULL, &device), SL_OK);
    assert_int_equal(sl_device_reserve(device, SIZE_MAX / 4, 1), SL_OK);
    assert_int_equal(sl_device_get_memory(device).in_use, 0);
    sl_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_aligned_and_the_range_is_used_to_its_end),
        cmocka_unit_test(any_order_of_blocks_leaves_no_overlap_and_no_loss),
        cmocka_unit_test(blocks_come_out_of_one_that_is_taken_in_advance),
        cmocka_unit_test(what_does_not_fit_is_refused_before_a_block_is_taken),
        cmocka_unit_test(devices_of_the_host_reserve_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
