/* The GPU's memory taken in advance, and its streams in the hands of code that knows CUDA alone. */
#include "gpu/gpu.h"

#include <dlfcn.h>

/* A stream can be handed to code that knows CUDA alone, and stays in order with it. */
static void work_of_others_goes_to_the_native_stream(void **state)
{
    (void)state;
    enum { COUNT = 1 << 20 };
    typedef int (*fill_function)(uint64_t to, unsigned value, size_t count, void *stream);
    uint32_t *block = NULL, value = 0;
    fill_function fill = NULL;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    assert_non_null(driver);
    *(void **)&fill = dlsym(driver, "cuMemsetD32Async");
    assert_non_null(fill);
    assert_non_null(sl_stream_native(gpu_stream));
    assert_int_equal(sl_device_alloc(gpu, COUNT * sizeof *block, (void **)&block), SL_OK);
    for (unsigned round = 0; round < 20; round++) {
        assert_int_equal(sl_stream_memset(gpu_stream, block, 0xff, COUNT * sizeof *block), SL_OK);
        assert_int_equal(fill((uintptr_t)block, 1000 + round, COUNT, sl_stream_native(gpu_stream)), 0);
        assert_int_equal(sl_stream_copy(gpu_stream, SL_COPY_DEVICE_TO_HOST, &value, block + COUNT - 1, sizeof value),
                         SL_OK);
        assert_int_equal(sl_stream_synchronize(gpu_stream), SL_OK);
        assert_int_equal(value, 1000 + round);
    }
    sl_device_free(gpu, block);
    dlclose(driver);
}

/* Blocks come out of one allocation; what does not fit is refused at once. */
static void memory_is_reserved_at_once(void **state)
{
    (void)state;
    void *blocks[3] = { NULL };
    size_t before = sl_device_get_memory(gpu).in_use, total = sl_device_get_memory(gpu).total;
    assert_int_equal(sl_device_reserve(gpu, 3 << 20, 3), SL_OK);
    assert_int_equal(sl_device_get_memory(gpu).in_use, before);
    for (int i = 0; i < 3; i++)
        assert_int_equal(sl_device_alloc(gpu, 1 << 20, &blocks[i]), SL_OK);
    assert_int_equal((char *)blocks[1] - (char *)blocks[0], 1 << 20);
    assert_int_equal((char *)blocks[2] - (char *)blocks[1], 1 << 20);
    assert_int_equal(sl_device_reserve(gpu, total, 1), SL_ERR_MEMORY);
    assert_non_null(strstr(sl_error_message(), "were asked for"));
    for (int i = 0; i < 3; i++)
        sl_device_free(gpu, blocks[i]);
    assert_int_equal(sl_device_get_memory(gpu).in_use, before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(work_of_others_goes_to_the_native_stream),
        cmocka_unit_test(memory_is_reserved_at_once),
    };
    if (!open_gpu())
        return SKIPPED;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    close_gpu();
    return failed;
}
