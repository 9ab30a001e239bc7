/* Hugging Face folders of weights: one file, or shards behind an index that cannot reach outside the folder. */
#include "support/scratch.h"
#include "support/tensors.h"

#include <sluice/shard.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include <sys/stat.h>

static const float values[6] = { 1, 2, 3, 4, 5, 6 };

/* Three tensors of 8 bytes under the folder. */
static void save(const char *folder, size_t shard_bytes)
{
    const sl_tensor_entry entries[] = {
        { .name = "b", .dtype = SL_F32, .shape = { 1, { 2 } }, .data = values },
        { .name = "a", .dtype = SL_F32, .shape = { 1, { 2 } }, .data = values + 2 },
        { .name = "c", .dtype = SL_F32, .shape = { 2, { 2, 1 } }, .data = values + 4 },
    };
    mkdir(folder, 0777);
    assert_int_equal(sl_weights_save(folder, entries, 3, shard_bytes), SL_OK);
}

static void check(const char *folder)
{
    sl_weights *weights = NULL;
    assert_int_equal(sl_weights_open(folder, &weights), SL_OK);
    assert_int_equal(sl_weights_count(weights), 3);
    assert_string_equal(sl_weights_at(weights, 0)->name, "a");
    assert_null(sl_weights_at(weights, 3));
    assert_holds(sl_weights_find(weights, "b"), values, 8);
    assert_holds(sl_weights_find(weights, "a"), values + 2, 8);
    assert_holds(sl_weights_find(weights, "c"), values + 4, 8);
    assert_null(sl_weights_find(weights, "d"));
    sl_weights_close(weights);
}

static bool present(const char *folder, const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}

static void one_file_or_shards_read_back_the_same(void **state)
{
    (void)state;
    const char *folder = scratch_path("model");
    save(folder, 0);
    check(folder);
    assert_true(present(folder, "model.safetensors"));
    save(folder, 17); /* two tensors fit */
    check(folder);
    assert_true(present(folder, "model-00002-of-00002.safetensors"));
    assert_false(present(folder, "model.safetensors")); /* or the next reader would take the old weights */
    save(folder, 1);
    check(folder);
    assert_true(present(folder, "model-00003-of-00003.safetensors"));
    save(folder, 100);
    check(folder);
    assert_false(present(folder, "model.safetensors.index.json"));
}

static void refused_index(const char *index, const char *says)
{
    const char *folder = scratch_path("bad");
    sl_weights *weights = NULL;
    char path[512];
    save(folder, 17);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
    scratch_write(path, index, strlen(index));
    assert_int_not_equal(sl_weights_open(folder, &weights), SL_OK);
    if (!strstr(sl_error_message(), says))
        fail_msg("expected '%s', the message is: %s", says, sl_error_message());
}

static void an_index_names_plain_files_only(void **state)
{
    (void)state;
    refused_index("{\"weight_map\":{\"a\":\"../model.safetensors\"}}", "no plain file name");
    refused_index("{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "no plain file name");
    refused_index("{\"weight_map\":{\"a\":\"..\"}}", "no plain file name");
    refused_index("{\"weight_map\":{\"a\":\"\"}}", "no plain file name");
    refused_index("{\"weight_map\":{\"a\":7}}", "no plain file name");
}

static void an_index_that_disagrees_with_its_files_is_refused(void **state)
{
    (void)state;
    refused_index("{", "line 1");
    refused_index("{}", "weight_map");
    refused_index("{\"weight_map\":{\"a\":\"gone.safetensors\"}}", "gone.safetensors");
    refused_index("{\"weight_map\":{\"x\":\"model-00001-of-00002.safetensors\"}}", "'x' is not in model-00001");
    refused_index("{\"weight_map\":{\"b\":\"model-00001-of-00002.safetensors\"}}", "does not list tensor 'a'");
    refused_index("{\"weight_map\":{\"a\":\"x\",\"a\":\"y\"}}", "duplicate");
}

static void a_folder_without_weights_is_named(void **state)
{
    (void)state;
    sl_weights *weights = NULL;
    assert_int_equal(sl_weights_open("/nonexistent", &weights), SL_ERR_IO);
    assert_non_null(strstr(sl_error_message(), "/nonexistent has neither model.safetensors nor"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_file_or_shards_read_back_the_same),
        cmocka_unit_test(an_index_names_plain_files_only),
        cmocka_unit_test(an_index_that_disagrees_with_its_files_is_refused),
        cmocka_unit_test(a_folder_without_weights_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
