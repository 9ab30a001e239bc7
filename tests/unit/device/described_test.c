/* GPUs by their data sheets: they can be opened and asked, and nothing can be done with them. */
#include <sluice/device.h>
#include <sluice/kernel.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

static sl_device *open_device(const char *name)
{
    sl_device *device = NULL;
    assert_int_equal(sl_device_open(name, NULL, &device), SL_OK);
    return device;
}

static void every_model_can_be_opened(void **state)
{
    (void)state;
    assert_null(sl_gpu_model_get(-1));
    int count = 0;
    for (const sl_gpu_model *model; (model = sl_gpu_model_get(count)); count++) {
        sl_device *device = open_device(model->name);
        assert_ptr_equal(sl_device_get_model(device), model);
        assert_string_equal(sl_device_name(device), model->name);
        assert_int_equal(sl_device_get_kind(device), SL_DEVICE_CUDA);
        assert_false(sl_device_is_host(device));
        assert_true((double)sl_device_get_memory(device).total == model->memory);
        assert_true(sl_kernel_measure_product_peak(device, SL_BF16) == model->bf16_flops);
        assert_true(sl_kernel_measure_product_peak(device, SL_F32) == model->f32_flops);
        assert_true(model->bf16_flops > model->f32_flops && model->f32_flops > model->bytes_per_s);
        sl_device_close(device);
    }
    assert_true(count > 3);
    sl_device *cpu = open_device("cpu");
    assert_null(sl_device_get_model(cpu));
    sl_device_close(cpu);
}

static void it_has_neither_memory_nor_streams(void **state)
{
    (void)state;
    sl_device *device = open_device("h200");
    void *block = NULL;
    sl_stream *stream = NULL;
    sl_event *event = NULL;
    assert_int_equal(sl_device_alloc(device, 64, &block), SL_ERR_UNSUPPORTED);
    assert_non_null(strstr(sl_error_message(), "NVIDIA H200 is known by its data sheet alone"));
    assert_int_equal(sl_device_alloc_host(device, 64, &block), SL_ERR_UNSUPPORTED);
    assert_int_equal(sl_stream_create(device, &stream), SL_ERR_UNSUPPORTED);
    assert_int_equal(sl_event_create(device, &event), SL_ERR_UNSUPPORTED);
    assert_null(block);
    assert_null(stream);
    assert_null(event);
    sl_device_close(device);
}

static void an_unknown_model_is_refused_with_those_there_are(void **state)
{
    (void)state;
    sl_device *device = NULL;
    assert_int_equal(sl_device_open("h201", NULL, &device), SL_ERR_ARGUMENT);
    assert_non_null(strstr(sl_error_message(), "b200, h200, h100"));
    assert_int_equal(sl_device_open("h200:1", NULL, &device), SL_ERR_ARGUMENT);
    assert_null(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_model_can_be_opened),
        cmocka_unit_test(it_has_neither_memory_nor_streams),
        cmocka_unit_test(an_unknown_model_is_refused_with_those_there_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
