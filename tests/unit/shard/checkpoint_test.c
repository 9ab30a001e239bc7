/* Checkpoints: whole or not there, found by name, the newest that is undamaged. */
#include <sluice/shard.h>

#include "base/alloc.h"
#include "shard/checkpoint.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64];
static char warning[512];

static void remember_warning(void *user, sl_log_level level, const char *line)
{
    (void)user;
    if (level == SL_LOG_WARN)
        snprintf(warning, sizeof warning, "%s", line);
}

static int enter(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/sluice-checkpoint-XXXXXX");
    warning[0] = '\0';
    sl_log_set_callback(remember_warning, NULL);
    return mkdtemp(folder) ? 0 : -1;
}

static int leave(void **state)
{
    (void)state;
    char command[128];
    sl_log_set_callback(NULL, NULL);
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

static char *path_of(int64_t step, const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/step-%08" PRId64 "%s%s", folder, step, name ? "/" : "", name ? name : "");
    return path;
}

static char *aside_of(int64_t step, const char *suffix)
{
    static char path[300];
    snprintf(path, sizeof path, "%s/step-%08" PRId64 "%s", folder, step, suffix);
    return path;
}

/* Rank r has the tensors "rR.a" [2, 3] and "rR.b" [0], filled with 100 * step + r. */
static void begin(sl_checkpoint_writer *writer, int rank, int64_t step)
{
    char a[16], b[16];
    float values[6];
    for (int i = 0; i < 6; i++)
        values[i] = (float)(100 * step + rank);
    snprintf(a, sizeof a, "r%d.a", rank);
    snprintf(b, sizeof b, "r%d.b", rank);
    const sl_tensor_entry entries[] = {
        { .name = a, .dtype = SL_F32, .shape = { 2, { 2, 3 } }, .count = 6, .data = values, .bytes = sizeof values },
        { .name = b, .dtype = SL_I64, .shape = { 1, { 0 } }, .count = 0, .data = NULL, .bytes = 0 },
    };
    assert_int_equal(sl_checkpoint_writer_begin(writer, step, entries, 2), SL_OK);
    memset(values, 0xff, sizeof values); /* what was begun is a copy */
}

static void write_checkpoint(int ranks, int64_t step, int keep)
{
    sl_checkpoint_writer *writers[4];
    sl_checkpoint_part parts[4];
    const char *const attributes[] = { "model", "{\"a\": 1}", "seed", "7", NULL };
    for (int r = 0; r < ranks; r++) {
        assert_int_equal(sl_checkpoint_writer_create(folder, r, &writers[r]), SL_OK);
        begin(writers[r], r, step);
    }
    for (int r = 0; r < ranks; r++) {
        assert_int_equal(sl_checkpoint_writer_wait(writers[r], &parts[r]), SL_OK);
        assert_int_equal(parts[r].done, 1);
    }
    assert_int_equal(sl_checkpoint_writer_commit(writers[0], parts, ranks, keep, attributes), SL_OK);
    for (int r = 0; r < ranks; r++)
        sl_checkpoint_writer_destroy(writers[r]);
}

static float value_of(const sl_checkpoint *checkpoint, const char *name)
{
    float values[6];
    const sl_tensor_entry *entry = sl_checkpoint_find(checkpoint, name);
    assert_non_null(entry);
    assert_int_equal(entry->bytes, sizeof values);
    assert_int_equal(sl_tensor_entry_read(entry, 0, sizeof values, values), SL_OK);
    assert_true(values[0] == values[5]);
    return values[0];
}

static int64_t newest_step(void)
{
    sl_checkpoint *checkpoint = NULL;
    assert_int_equal(sl_checkpoint_open_newest(folder, &checkpoint), SL_OK);
    int64_t step = checkpoint ? sl_checkpoint_step(checkpoint) : -1;
    sl_checkpoint_close(checkpoint);
    return step;
}

static void flip(const char *path, long at)
{
    FILE *file = fopen(path, "r+");
    assert_non_null(file);
    fseek(file, at, SEEK_SET);
    int byte = fgetc(file);
    fseek(file, at, SEEK_SET);
    fputc(byte ^ 1, file);
    fclose(file);
}

/* Changes the last byte of the file. */
static void damage(const char *path)
{
    struct stat about;
    assert_int_equal(stat(path, &about), 0);
    flip(path, about.st_size - 1);
}

static void what_several_ranks_wrote_is_found_by_name(void **state)
{
    (void)state;
    sl_checkpoint *checkpoint = NULL;
    write_checkpoint(3, 20, 2);
    assert_int_equal(sl_checkpoint_open_newest(folder, &checkpoint), SL_OK);
    assert_non_null(checkpoint);
    assert_int_equal(sl_checkpoint_step(checkpoint), 20);
    assert_int_equal(sl_checkpoint_file_count(checkpoint), 3);
    assert_int_equal(sl_checkpoint_count(checkpoint), 6);
    for (int i = 0; i < 6; i++)
        assert_ptr_equal(sl_checkpoint_find(checkpoint, sl_checkpoint_at(checkpoint, i)->name),
                         sl_checkpoint_at(checkpoint, i));
    assert_null(sl_checkpoint_at(checkpoint, 6));
    assert_true(value_of(checkpoint, "r2.a") == 2002.0f);
    assert_null(sl_checkpoint_find(checkpoint, "r3.a"));
    assert_string_equal(sl_checkpoint_attribute(checkpoint, "model"), "{\"a\": 1}");
    assert_null(sl_checkpoint_attribute(checkpoint, "nothing"));
    sl_checkpoint_close(checkpoint);
}

static void old_ones_are_pruned(void **state)
{
    (void)state;
    for (int64_t step = 1; step <= 5; step++)
        write_checkpoint(2, step, 2);
    assert_int_equal(newest_step(), 5);
    assert_int_equal(access(path_of(4, "manifest.json"), F_OK), 0);
    assert_int_not_equal(access(path_of(3, NULL), F_OK), 0);
}

static void a_damaged_newest_is_reported_and_the_one_before_is_used(void **state)
{
    (void)state;
    static const char *const files[] = { "rank-00001.safetensors", "manifest.json" };
    write_checkpoint(2, 10, 9);
    for (int i = 0; i < 2; i++) {
        write_checkpoint(2, 20, 9);
        damage(path_of(20, files[i]));
        if (i == 1)
            assert_int_equal(truncate(path_of(20, files[i]), 30), 0);
        assert_int_equal(newest_step(), 10);
        assert_non_null(strstr(warning, "step-00000020 is damaged"));
        assert_non_null(strstr(warning, files[i]));
        assert_int_equal(sl_checkpoint_clean(folder, 10), SL_OK);
    }
    assert_int_equal(access(aside_of(20, ".damaged"), F_OK), 0); /* the first is not lost for the second */
    assert_int_equal(access(aside_of(20, ".damaged-2"), F_OK), 0);
    sl_checkpoint *checkpoint = NULL;
    assert_int_equal(unlink(path_of(10, "rank-00000.safetensors")), 0);
    assert_int_equal(sl_checkpoint_open_newest(folder, &checkpoint), SL_ERR_FORMAT); /* never "there is none" */
    assert_non_null(strstr(sl_error_message(), "not one of its checkpoints (1) is whole"));
    write_checkpoint(2, 30, 9);
    assert_int_equal(truncate(path_of(30, "rank-00000.safetensors"), 20), 0);
    assert_int_equal(sl_checkpoint_open_newest(folder, &checkpoint), SL_ERR_FORMAT);
    assert_int_equal(sl_checkpoint_open(path_of(30, NULL), false, &checkpoint), SL_ERR_FORMAT);
    assert_non_null(strstr(sl_error_message(), "20 bytes, the manifest says"));
}

static void what_a_crash_left_never_counts_and_never_blocks(void **state)
{
    (void)state;
    sl_checkpoint_writer *writer = NULL;
    write_checkpoint(1, 10, 9);
    assert_int_equal(sl_checkpoint_writer_create(folder, 0, &writer), SL_OK);
    begin(writer, 0, 20); /* and never committed */
    sl_checkpoint_writer_destroy(writer);
    assert_int_equal(access(aside_of(20, ".partial/rank-00000.safetensors"), F_OK), 0);
    FILE *file = fopen(aside_of(20, ".partial/rank-00001.safetensors.77.tmp"), "w");
    assert_non_null(file);
    fclose(file);
    assert_int_equal(newest_step(), 10);
    assert_int_equal(sl_checkpoint_clean(folder, 10), SL_OK);
    assert_int_not_equal(access(aside_of(20, ".partial"), F_OK), 0);
    assert_int_not_equal(access(aside_of(20, ".damaged"), F_OK), 0);
    write_checkpoint(1, 20, 9);
    assert_int_equal(newest_step(), 20);
}

static void a_checkpoint_that_lost_its_manifest_is_set_aside_not_removed(void **state)
{
    (void)state;
    write_checkpoint(1, 10, 9);
    write_checkpoint(1, 20, 9);
    assert_int_equal(unlink(path_of(20, "manifest.json")), 0);
    assert_int_equal(newest_step(), 10);
    assert_non_null(strstr(warning, "step-00000020 is damaged and not used: it has no manifest"));
    assert_int_equal(sl_checkpoint_clean(folder, 10), SL_OK);
    assert_int_equal(access(aside_of(20, ".damaged/rank-00000.safetensors"), F_OK), 0);
}

/* A checkpoint that cannot be read now is not damaged: nothing is passed over, nothing is renamed. */
static void what_cannot_be_read_is_an_error_and_stays(void **state)
{
    (void)state;
    static const char future[] = "{\"format\":\"sluice-checkpoint\",\"version\":3,\"step\":20";
    sl_checkpoint *checkpoint = NULL;
    char part[256];
    write_checkpoint(1, 10, 9);
    write_checkpoint(1, 20, 9);
    snprintf(part, sizeof part, "%s", path_of(20, "rank-00000.safetensors"));

    struct rlimit old, none = { 0 }; /* no descriptor is left */
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    none.rlim_max = old.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    sl_status status = sl_checkpoint_open(path_of(20, NULL), true, &checkpoint);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    assert_int_equal(status, SL_ERR_IO);

    assert_int_equal(unlink(part), 0); /* a link to itself cannot be opened, whoever asks */
    assert_int_equal(symlink("rank-00000.safetensors", part), 0);
    assert_int_equal(sl_checkpoint_open_newest(folder, &checkpoint), SL_ERR_IO);
    assert_non_null(strstr(sl_error_message(), "rank-00000.safetensors: Too many levels of symbolic links"));
    assert_non_null(strstr(sl_error_message(), "step-00000020 cannot be read"));

    assert_int_equal(sl_checkpoint_seal(path_of(20, "manifest.json"), future, strlen(future)), SL_OK);
    assert_int_equal(sl_checkpoint_open_newest(folder, &checkpoint), SL_ERR_UNSUPPORTED);
    assert_non_null(strstr(sl_error_message(), "version 3 is not known"));
    assert_int_equal(access(path_of(20, "manifest.json"), F_OK), 0);
}

static void removal_follows_no_link(void **state)
{
    (void)state;
    char outside[96], inside[128];
    snprintf(outside, sizeof outside, "%s/outside", folder);
    snprintf(inside, sizeof inside, "%s/precious", outside);
    assert_int_equal(mkdir(outside, 0777), 0);
    FILE *file = fopen(inside, "w");
    assert_non_null(file);
    fclose(file);
    assert_int_equal(symlink(outside, path_of(2, NULL)), 0);
    assert_int_equal(symlink(outside, aside_of(3, ".partial")), 0);
    write_checkpoint(1, 4, 1);
    assert_int_equal(symlink(path_of(4, NULL), aside_of(1, "")), 0); /* the name is a checkpoint's, the folder is not */
    write_checkpoint(1, 5, 1);
    assert_int_equal(sl_checkpoint_clean(folder, 5), SL_OK);
    assert_int_equal(access(inside, F_OK), 0);
    assert_int_not_equal(access(path_of(4, NULL), F_OK), 0); /* pruned in its own right */
    struct stat about;
    assert_int_not_equal(lstat(aside_of(3, ".partial"), &about), 0);
}

/* What a disk makes of the bytes is not what is sealed. */
static void the_hash_is_that_of_the_memory(void **state)
{
    (void)state;
    sl_checkpoint_writer *writer = NULL;
    sl_checkpoint_part part;
    sl_checkpoint *checkpoint = NULL;
    assert_int_equal(sl_checkpoint_writer_create(folder, 0, &writer), SL_OK);
    begin(writer, 0, 1);
    assert_int_equal(sl_checkpoint_writer_wait(writer, &part), SL_OK);
    uint64_t hash = 0;
    int64_t bytes = 0;
    assert_int_equal(sl_checkpoint_hash(aside_of(1, ".partial/rank-00000.safetensors"), &hash, &bytes), SL_OK);
    assert_true(hash == part.hash && bytes == part.bytes);
    damage(aside_of(1, ".partial/rank-00000.safetensors")); /* between the write and the manifest */
    assert_int_equal(sl_checkpoint_writer_commit(writer, &part, 1, 9, NULL), SL_OK);
    sl_checkpoint_writer_destroy(writer);
    assert_int_equal(sl_checkpoint_open(path_of(1, NULL), true, &checkpoint), SL_ERR_FORMAT);
}

static void a_value_that_is_not_finite_is_not_saved(void **state)
{
    (void)state;
    static const struct {
        sl_dtype dtype;
        uint64_t bits;
    } cases[] = { { SL_F32, 0x7f800000 },
                  { SL_F32, 0xffc00001 },
                  { SL_BF16, 0x7fc0 },
                  { SL_F16, 0xfc00 },
                  { SL_F64, UINT64_C(0x7ff8000000000000) } };
    enum { COUNT = 40000 }; /* several blocks */
    static unsigned char data[COUNT * 8];
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        sl_checkpoint_writer *writer = NULL;
        size_t size = sl_dtype_size(cases[c].dtype);
        sl_tensor_entry entry = { .name = "w",
                                  .dtype = cases[c].dtype,
                                  .shape = { 1, { COUNT } },
                                  .count = COUNT,
                                  .data = data,
                                  .bytes = COUNT * size };
        assert_int_equal(sl_checkpoint_writer_create(folder, 0, &writer), SL_OK);
        memset(data, 0, sizeof data);
        assert_int_equal(sl_find_nonfinite(cases[c].dtype, data, COUNT), -1);
        memcpy(data + 39998 * size, &cases[c].bits, size);
        assert_int_equal(sl_checkpoint_writer_begin(writer, 3, &entry, 1), SL_ERR_NUMERIC);
        assert_non_null(strstr(sl_error_message(), "step 3: element 39998 of w is infinite or not a number"));
        sl_checkpoint_writer_destroy(writer);
        assert_int_not_equal(access(aside_of(3, ".partial"), F_OK), 0);
    }
    assert_int_equal(sl_find_nonfinite(SL_I64, data, COUNT), -1);
}

static void a_commit_needs_parts_that_are_done(void **state)
{
    (void)state;
    sl_checkpoint_writer *writer = NULL;
    sl_checkpoint_part parts[2];
    assert_int_equal(sl_checkpoint_writer_create(folder, 0, &writer), SL_OK);
    assert_int_equal(sl_checkpoint_writer_commit(writer, NULL, 0, 1, NULL), SL_ERR_ARGUMENT);
    assert_int_equal(sl_checkpoint_writer_commit(writer, parts, 0, 1, NULL), SL_ERR_ARGUMENT);
    begin(writer, 0, 1);
    assert_int_equal(sl_checkpoint_writer_wait(writer, &parts[0]), SL_OK);
    parts[1] = parts[0];
    parts[1].step = 2;
    assert_int_equal(sl_checkpoint_writer_commit(writer, parts, 2, 1, NULL), SL_ERR_ARGUMENT);
    parts[0].done = 0;
    assert_int_equal(sl_checkpoint_writer_commit(writer, parts, 1, 1, NULL), SL_ERR_ARGUMENT);
    sl_checkpoint_writer_destroy(writer);
}

/* A tensor is read from the file that was opened, or not at all. */
static void a_file_that_changes_under_the_reader_is_an_error(void **state)
{
    (void)state;
    sl_checkpoint *checkpoint = NULL;
    float values[6];
    write_checkpoint(1, 1, 9);
    assert_int_equal(sl_checkpoint_open(path_of(1, NULL), true, &checkpoint), SL_OK);
    const sl_tensor_entry *entry = sl_checkpoint_find(checkpoint, "r0.a");
    assert_int_equal(truncate(path_of(1, "rank-00000.safetensors"), 100), 0);
    assert_int_equal(sl_tensor_entry_read(entry, 0, sizeof values, values), SL_ERR_IO);
    assert_non_null(strstr(sl_error_message(), "rank-00000.safetensors: another file has taken its place"));
    sl_checkpoint_close(checkpoint);
}

static void a_folder_that_is_not_there_has_no_checkpoint(void **state)
{
    (void)state;
    sl_checkpoint *checkpoint = (sl_checkpoint *)state;
    assert_int_equal(sl_checkpoint_open_newest("/nowhere/checkpoints", &checkpoint), SL_OK);
    assert_null(checkpoint);
    assert_int_equal(sl_checkpoint_clean("/nowhere/checkpoints", 0), SL_OK);
}

static void an_error_of_the_thread_reaches_the_next_call(void **state)
{
    (void)state;
    sl_checkpoint_writer *writer = NULL;
    sl_checkpoint_part part;
    char inside[128];
    snprintf(inside, sizeof inside, "%s/file", folder);
    FILE *file = fopen(inside, "w");
    assert_non_null(file);
    fclose(file);
    assert_int_equal(sl_checkpoint_writer_create(inside, 0, &writer), SL_OK);
    begin(writer, 0, 1);
    assert_int_equal(sl_checkpoint_writer_wait(writer, &part), SL_ERR_IO);
    assert_non_null(strstr(sl_error_message(), inside));
    assert_int_equal(sl_checkpoint_writer_poll(writer, &part), SL_ERR_IO);
    assert_int_equal(sl_checkpoint_writer_begin(writer, 2, NULL, 0), SL_ERR_IO);
    sl_checkpoint_writer_destroy(writer);
}

static void hostile_manifests_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        { "{\"format\":\"other\"", "not the manifest" },
        { "{\"format\":\"sluice-checkpoint\",\"version\":3", "version 3 is not known" },
        { "{\"format\":\"sluice-checkpoint\",\"version\":1", "'step' is missing" },
        { "{\"format\":\"sluice-checkpoint\",\"version\":1,\"step\":-1", "'step' is missing" },
        { "{\"format\":\"sluice-checkpoint\",\"version\":1,\"step\":1", "'files' is missing" },
        { "{\"format\":\"sluice-checkpoint\",\"version\":1,\"step\":1,\"files\":[3]", "lacks name, bytes or xxh3" },
        { "{\"format\":\"sluice-checkpoint\",\"version\":1,\"step\":1,\"files\":[{\"name\":\"../../etc/passwd\","
          "\"bytes\":1,\"xxh3\":\"0\"}]",
          "is not a plain file name" },
        { "{\"format\":\"sluice-checkpoint\",\"version\":1,\"step\":1,\"files\":[{\"name\":\"a\","
          "\"bytes\":1,\"xxh3\":\"0\"}]",
          "is missing, the manifest names it" },
    };
    write_checkpoint(1, 1, 9);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sl_checkpoint *checkpoint = NULL;
        assert_int_equal(sl_checkpoint_seal(path_of(1, "manifest.json"), cases[i].text, strlen(cases[i].text)), SL_OK);
        assert_int_not_equal(sl_checkpoint_open(path_of(1, NULL), true, &checkpoint), SL_OK);
        assert_non_null(strstr(sl_error_message(), cases[i].message));
    }
}

static void any_byte_of_a_manifest_that_changes_is_noticed(void **state)
{
    (void)state;
    struct stat about;
    sl_checkpoint *checkpoint = NULL;
    write_checkpoint(1, 1, 9);
    assert_int_equal(stat(path_of(1, "manifest.json"), &about), 0);
    for (long at = 0; at < about.st_size; at++) {
        flip(path_of(1, "manifest.json"), at);
        assert_int_equal(sl_checkpoint_open(path_of(1, NULL), false, &checkpoint), SL_ERR_FORMAT);
        flip(path_of(1, "manifest.json"), at);
    }
    assert_int_equal(sl_checkpoint_open(path_of(1, NULL), false, &checkpoint), SL_OK);
    sl_checkpoint_close(checkpoint);
    assert_int_equal(truncate(path_of(1, "manifest.json"), 0), 0);
    assert_int_equal(sl_checkpoint_open(path_of(1, NULL), false, &checkpoint), SL_ERR_FORMAT);
    assert_non_null(strstr(sl_error_message(), "manifest.json: it does not have the bytes"));
}

/* Every bit of every file: whatever flips, the checkpoint is damaged, never another one. */
static void any_bit_that_flips_is_noticed(void **state)
{
    (void)state;
    static const char *const files[] = { "manifest.json", "rank-00000.safetensors", "rank-00001.safetensors" };
    write_checkpoint(2, 1, 9);
    for (int f = 0; f < 3; f++) {
        struct stat about;
        sl_checkpoint *checkpoint = NULL;
        FILE *file = fopen(path_of(1, files[f]), "r+");
        assert_non_null(file);
        assert_int_equal(fstat(fileno(file), &about), 0);
        for (long at = 0; at < about.st_size; at++) {
            unsigned char byte;
            assert_int_equal(pread(fileno(file), &byte, 1, at), 1);
            for (int bit = 0; bit < 8; bit++) {
                unsigned char flipped = byte ^ (unsigned char)(1 << bit);
                assert_int_equal(pwrite(fileno(file), &flipped, 1, at), 1);
                if (sl_checkpoint_open(path_of(1, NULL), true, &checkpoint) != SL_ERR_FORMAT)
                    fail_msg("%s: bit %d of byte %ld: %s", files[f], bit, at, sl_error_message());
            }
            assert_int_equal(pwrite(fileno(file), &byte, 1, at), 1);
        }
        fclose(file);
    }
    assert_int_equal(newest_step(), 1);
}

static void a_checkpoint_under_another_step_is_not_used(void **state)
{
    (void)state;
    char from[256];
    write_checkpoint(1, 10, 9);
    write_checkpoint(1, 20, 9);
    snprintf(from, sizeof from, "%s", path_of(20, NULL));
    assert_int_equal(rename(from, path_of(30, NULL)), 0);
    assert_int_equal(newest_step(), 10);
    assert_non_null(strstr(warning, "it is that of step 20"));
}

static void what_somebody_put_into_a_checkpoint_ends_no_run(void **state)
{
    (void)state;
    write_checkpoint(1, 10, 1);
    assert_int_equal(mkdir(path_of(10, "own"), 0777), 0);
    assert_int_equal(mkdir(path_of(40, NULL), 0777), 0);
    assert_int_equal(mkdir(path_of(40, "own"), 0777), 0);
    assert_int_equal(sl_checkpoint_clean(folder, 10), SL_OK);
    assert_int_equal(access(aside_of(40, ".damaged/own"), F_OK), 0);
    write_checkpoint(1, 20, 1); /* and asserts that pruning 10 is no error */
    assert_non_null(strstr(warning, "step-00000010.partial: Directory not empty"));
    assert_int_equal(newest_step(), 20);
    assert_int_not_equal(access(path_of(10, NULL), F_OK), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_several_ranks_wrote_is_found_by_name, enter, leave),
        cmocka_unit_test_setup_teardown(old_ones_are_pruned, enter, leave),
        cmocka_unit_test_setup_teardown(a_damaged_newest_is_reported_and_the_one_before_is_used, enter, leave),
        cmocka_unit_test_setup_teardown(what_a_crash_left_never_counts_and_never_blocks, enter, leave),
        cmocka_unit_test_setup_teardown(a_checkpoint_that_lost_its_manifest_is_set_aside_not_removed, enter, leave),
        cmocka_unit_test_setup_teardown(what_cannot_be_read_is_an_error_and_stays, enter, leave),
        cmocka_unit_test_setup_teardown(removal_follows_no_link, enter, leave),
        cmocka_unit_test_setup_teardown(the_hash_is_that_of_the_memory, enter, leave),
        cmocka_unit_test_setup_teardown(a_value_that_is_not_finite_is_not_saved, enter, leave),
        cmocka_unit_test_setup_teardown(a_commit_needs_parts_that_are_done, enter, leave),
        cmocka_unit_test_setup_teardown(a_file_that_changes_under_the_reader_is_an_error, enter, leave),
        cmocka_unit_test(a_folder_that_is_not_there_has_no_checkpoint),
        cmocka_unit_test_setup_teardown(an_error_of_the_thread_reaches_the_next_call, enter, leave),
        cmocka_unit_test_setup_teardown(hostile_manifests_are_refused, enter, leave),
        cmocka_unit_test_setup_teardown(any_byte_of_a_manifest_that_changes_is_noticed, enter, leave),
        cmocka_unit_test_setup_teardown(any_bit_that_flips_is_noticed, enter, leave),
        cmocka_unit_test_setup_teardown(a_checkpoint_under_another_step_is_not_used, enter, leave),
        cmocka_unit_test_setup_teardown(what_somebody_put_into_a_checkpoint_ends_no_run, enter, leave),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
