/* Tensors in slices: whatever boxes or ranges the ranks wrote, each range of a tensor reads as if one had written it all;
 * slices that are not the whole tensor are refused; a load costs the memory of what is loaded. `--full`: all layouts. */
#include "shard/checkpoint.h"
#include "support/layouts.h"
#include "support/sanitized.h"
#include "support/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { MOST_SLICES = 12 };

static int layouts = 600;

static void ok(sl_status status)
{
    if (status != SL_OK)
        fail_msg("%s", sl_error_message());
}

static void says(sl_status status, sl_status code, const char *text)
{
    assert_int_equal(status, code);
    if (!strstr(sl_error_message(), text))
        fail_msg("expected '%s', the message is: %s", text, sl_error_message());
}

/* The slice of a tensor as a rank gives it to a checkpoint. */
static sl_tensor_entry slice_of(const char *name, const sl_shape *whole, const sl_shard *box, const float *data)
{
    sl_tensor_entry entry = { .name = name,
                              .dtype = SL_F32,
                              .shape = box->size,
                              .count = layout_count(&box->size),
                              .data = data,
                              .bytes = (size_t)layout_count(&box->size) * sizeof *data,
                              .whole = *whole };
    memcpy(entry.offsets, box->offsets, sizeof entry.offsets);
    return entry;
}

/* ---- Any layout ------------------------------------------------------------------------------ */

static void check_ranges(const sl_tensor_entry *tensor, const sl_shape *whole, uint64_t *seed)
{
    int64_t count = layout_count(whole);
    float *values = malloc((size_t)(count + 1) * sizeof *values);
    assert_true(sl_shape_equal(&tensor->shape, whole));
    assert_int_equal(tensor->count, count);
    for (int i = 0; i < 6; i++) {
        int64_t first = i == 0 ? 0 : layout_below(seed, count + 1);
        int64_t length = i == 0 ? count : layout_below(seed, count - first + 1);
        memset(values, 0, (size_t)(count + 1) * sizeof *values);
        ok(sl_tensor_entry_read(tensor, (size_t)first * sizeof *values, (size_t)length * sizeof *values, values));
        for (int64_t e = 0; e < length; e++)
            assert_true(values[e] == layout_value(first + e));
        assert_true(values[length] == 0); /* and nothing past it */
    }
    free(values);
}

/* A tensor in up to MOST_SLICES boxes of its shape, or ranges of its elements. */
static void one_layout(uint64_t seed)
{
    const sl_shape whole = layout_shape(&seed, 4, 7);
    const bool flat = layout_below(&seed, 2) == 0;
    const sl_shape frame = flat ? (sl_shape){ 1, { layout_count(&whole) } } : whole;
    sl_held_entry held[MOST_SLICES];
    sl_shard boxes[MOST_SLICES];
    float *data[MOST_SLICES];
    sl_tensor_set *set = NULL;
    int count = 1 + (int)layout_below(&seed, MOST_SLICES), used = 0;
    layout_cut(&seed, &frame, count, 4, boxes);
    for (int i = 0; i < count; i++) {
        data[i] = layout_data(&frame, &boxes[i]);
        held[used] =
            (sl_held_entry){ .entry = slice_of("w", &whole, &boxes[i], data[i]), .rank = boxes[i].placement.rank };
        used += sl_slice_normalize(&held[used].entry);
    }
    ok(sl_tensor_set_create("test", held, used, &set));
    assert_int_equal(sl_tensor_set_count(set), 1);
    check_ranges(sl_tensor_set_find(set, "w"), &whole, &seed);
    sl_tensor_set_destroy(set);
    for (int i = 0; i < count; i++)
        free(data[i]);
}

static void every_range_of_every_layout_is_read_right(void **state)
{
    (void)state;
    for (int i = 0; i < layouts; i++)
        one_layout((uint64_t)i);
}

static void slices_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    const sl_shape whole = { 2, { 4, 4 } }, other = { 2, { 8, 2 } };
    const float data[16] = { 0 };
    const sl_shard low = { { 0 }, { 1, { 8 } }, { 0, "cpu" } }, high = { { 8 }, { 1, { 8 } }, { 1, "cpu" } };
    const sl_shard middle = { { 7 }, { 1, { 9 } }, { 1, "cpu" } }, box = { { 2, 0 }, { 2, { 2, 4 } }, { 1, "cpu" } };
    sl_held_entry held[2] = { { slice_of("w", &whole, &low, data), 0 }, { slice_of("w", &whole, &high, data), 1 } };
    sl_tensor_set *set = NULL;
    float out[2];
    ok(sl_tensor_set_create("test", held, 2, &set));
    says(sl_tensor_entry_read(sl_tensor_set_at(set, 0), 2, 4, out), SL_ERR_ARGUMENT, "no whole elements");
    says(sl_tensor_entry_read(sl_tensor_set_at(set, 0), 60, 8, out), SL_ERR_ARGUMENT, "has 64 bytes");
    assert_null(sl_tensor_set_at(set, 1));
    sl_tensor_set_destroy(set);
    says(sl_tensor_set_create("test", held, 1, &set), SL_ERR_FORMAT, "test: w: the shards have 8 of the 16 elements");
    held[1].entry = slice_of("w", &whole, &middle, data);
    says(sl_tensor_set_create("test", held, 2, &set), SL_ERR_FORMAT,
         "shards 0 and 1 overlap: [0] + [8] on rank:0/cpu, [7] + [9] on rank:1/cpu");
    held[1].entry = slice_of("w", &whole, &box, data);
    says(sl_tensor_set_create("test", held, 2, &set), SL_ERR_FORMAT, "slices of w differ");
    held[1].entry = slice_of("w", &other, &high, data);
    says(sl_tensor_set_create("test", held, 2, &set), SL_ERR_FORMAT, "f32 of [4, 4], f32 of [8, 2]");
    held[1].entry = slice_of("w", &whole, &high, data);
    held[1].entry.dtype = SL_I32;
    says(sl_tensor_set_create("test", held, 2, &set), SL_ERR_FORMAT, "f32 of [4, 4], i32 of [4, 4]");
    const sl_shape cube = { 3, { 2, 2, 4 } };
    held[0].entry = slice_of("w", &cube, &box, data);
    says(sl_tensor_set_create("test", held, 1, &set), SL_ERR_FORMAT, "is neither a box nor a range");
}

/* ---- Through files --------------------------------------------------------------------------- */

/* Each rank writes its boxes of "w" and a tensor of its own. Returns the status of the commit's work. */
static sl_status write_ranks(int64_t step, int ranks, const sl_shape *whole, const sl_shape *frame,
                             const sl_shard *boxes, int count)
{
    sl_checkpoint_writer *writers[8];
    sl_checkpoint_part parts[8];
    for (int r = 0; r < ranks; r++) {
        sl_tensor_entry entries[MOST_SLICES + 1];
        float *data[MOST_SLICES] = { NULL }, own = (float)r;
        char name[16];
        int used = 0;
        snprintf(name, sizeof name, "own.%d", r);
        for (int i = 0; i < count; i++) {
            if (boxes[i].placement.rank != r)
                continue;
            data[used] = layout_data(frame, &boxes[i]);
            entries[used] = slice_of("w", whole, &boxes[i], data[used]);
            used++;
        }
        entries[used] = (sl_tensor_entry){ .name = name, .dtype = SL_F32, .count = 1, .data = &own, .bytes = 4 };
        ok(sl_checkpoint_writer_create(scratch_path("run"), r, &writers[r]));
        ok(sl_checkpoint_writer_begin(writers[r], step, entries, used + 1));
        ok(sl_checkpoint_writer_wait(writers[r], &parts[r]));
        for (int i = 0; i < used; i++)
            free(data[i]);
    }
    ok(sl_checkpoint_writer_commit(writers[0], parts, ranks, 99, NULL));
    sl_status status = sl_checkpoint_writer_wait(writers[0], NULL);
    for (int r = 0; r < ranks; r++)
        sl_checkpoint_writer_destroy(writers[r]);
    return status;
}

static void a_checkpoint_of_many_ranks_reads_as_one(void **state)
{
    (void)state;
    sl_checkpoint *checkpoint = NULL;
    for (int64_t step = 1; step <= 6; step++) {
        uint64_t seed = (uint64_t)step * 977;
        const bool flat = step % 2;
        const sl_shape whole = { 3, { 5, 4, 6 } }, frame = flat ? (sl_shape){ 1, { 120 } } : whole;
        sl_shard boxes[MOST_SLICES];
        int ranks = 1 + (int)step % 5, count = (int)step + 2;
        layout_cut(&seed, &frame, count, ranks, boxes);
        ok(write_ranks(step, ranks, &whole, &frame, boxes, count));
        ok(sl_checkpoint_open_newest(scratch_path("run"), &checkpoint));
        assert_int_equal(sl_checkpoint_step(checkpoint), step);
        assert_int_equal(sl_checkpoint_count(checkpoint), ranks + 1);
        assert_string_equal(sl_checkpoint_at(checkpoint, ranks)->name, "w");
        check_ranges(sl_checkpoint_find(checkpoint, "w"), &whole, &seed);
        const sl_sharding *sharding = sl_checkpoint_sharding(checkpoint, ranks);
        assert_true(sl_shape_equal(&sharding->size, sharding->count > 1 ? &frame : &whole));
        ok(sl_sharding_check(sharding));
        assert_null(sl_checkpoint_sharding(checkpoint, ranks + 1));
        sl_checkpoint_close(checkpoint);
    }
    const sl_shape whole = { 1, { 8 } };
    const sl_shard half = { { 0 }, { 1, { 4 } }, { 0, "cpu" } };
    says(write_ranks(9, 1, &whole, &whole, &half, 1), SL_ERR_FORMAT, "w: the shards have 4 of the 8 elements");
    ok(sl_checkpoint_open_newest(scratch_path("run"), &checkpoint)); /* it never got its name */
    assert_int_equal(sl_checkpoint_step(checkpoint), 6);
    sl_checkpoint_close(checkpoint);
}

/* As an older version of the library wrote it. */
static void a_checkpoint_of_the_first_version_is_read(void **state)
{
    (void)state;
    const float values[4] = { 1, 2, 3, 4 };
    const sl_tensor_entry entries[] = {
        { .name = "b", .dtype = SL_F32, .shape = { 2, { 2, 2 } }, .count = 4, .data = values, .bytes = 16 },
        { .name = "a@1", .dtype = SL_F32, .shape = { 1, { 1 } }, .count = 1, .data = values, .bytes = 4 }
    };
    char text[512];
    uint64_t hash;
    int64_t bytes;
    float read[2];
    sl_checkpoint *checkpoint = NULL;
    ok(sl_checkpoint_make_partial(scratch_path("old"), 3));
    ok(sl_safetensors_save(scratch_path("old/step-00000003.partial/rank-00000.safetensors"), entries, 2, NULL));
    ok(sl_checkpoint_hash(scratch_path("old/step-00000003.partial/rank-00000.safetensors"), &hash, &bytes));
    snprintf(text, sizeof text,
             "{\"format\":\"sluice-checkpoint\",\"version\":1,\"step\":3,\"attributes\":{\"a\":\"b\"},\"files\":["
             "{\"name\":\"rank-00000.safetensors\",\"bytes\":%lld,\"xxh3\":\"%016llx\",\"tensors\":[\"b\",\"a@1\"]}]",
             (long long)bytes, (unsigned long long)hash);
    ok(sl_checkpoint_seal(scratch_path("old/step-00000003.partial/manifest.json"), text, strlen(text)));
    ok(sl_checkpoint_publish(scratch_path("old"), 3));
    ok(sl_checkpoint_open_newest(scratch_path("old"), &checkpoint));
    assert_int_equal(sl_checkpoint_count(checkpoint), 2);
    assert_non_null(sl_checkpoint_find(checkpoint, "a@1"));
    ok(sl_tensor_entry_read(sl_checkpoint_find(checkpoint, "b"), 4, 8, read));
    assert_true(read[0] == 2 && read[1] == 3);
    assert_int_equal(sl_checkpoint_sharding(checkpoint, 1)->count, 1);
    sl_checkpoint_close(checkpoint);
}

/* A manifest of version 2 whose one file holds "w" [2]; what differs from this is said of the manifest, not of the file. */
static void manifests_that_lie_about_slices_are_refused(void **state)
{
    (void)state;
#define SHARD(place) "{\"offsets\":[0],\"size\":[2],\"placement\":\"" place "\"}"
#define SHARDING(version, size, shards)                                                                                \
    "{\"version\":" version ",\"size\":[" size "],\"dtype\":\"f32\",\"layout\":\"strided\",\"memory_format\":"         \
    "\"contiguous\",\"requires_grad\":false,\"pinned\":false,\"shards\":[" shards "]}"
#define TENSOR(name, shape, sharding) "{\"name\":\"" name "\",\"shape\":[" shape "],\"sharding\":" sharding "}"
#define GOOD SHARDING("1", "2", SHARD("rank:5/cpu"))
    static const struct {
        const char *rank, *tensors, *message;
    } cases[] = {
        { "5", "[" TENSOR("w", "2", GOOD) "]", NULL },
        { "-1", "[]", "the ranks of the files do not rise" },
        { "5", "{}", "'tensors' is missing" },
        { "5", "[]", "it has 0 shards, the files 1 tensors" },
        { "5", "[3]", "a tensor lacks its name" },
        { "5", "[" TENSOR("w", "-2", GOOD) "]", "entry 0 of 'shape' is no number from 0 on" },
        { "5", "[" TENSOR("v", "2", GOOD) "]", "'v' is not in the file of rank 5" },
        { "6", "[" TENSOR("w", "2", GOOD) "]", "'w' is not in the file of rank 5" },
        { "5", "[" TENSOR("w", "2,1", GOOD) "]", "the one shard of 'w' does not have its shape" },
        { "5", "[" TENSOR("w", "2", SHARDING("2", "2", SHARD("rank:5/cpu"))) "]", "version 2 of a sharding" },
        { "5", "[" TENSOR("w", "3", SHARDING("1", "3", SHARD("rank:5/cpu"))) "]", "2 of the 3 elements" },
        { "5", "[" TENSOR("w", "2", SHARDING("1", "2", SHARD("rank:x/cpu"))) "]", "placement 'rank:x/cpu'" },
        { "5", "[" TENSOR("w", "2", SHARDING("1", "2", "")) "]", "without shards" },
        { "5", "[" TENSOR("w", "2", "7") "]", "this is not a sharding" },
        { "5", "[" TENSOR("w", "2", GOOD) "," TENSOR("w", "2", GOOD) "]", "more shards than the files have tensors" },
    };
    const float values[2] = { 1, 2 };
    const sl_tensor_entry entry = { .name = "w", .dtype = SL_F32, .shape = { 1, { 2 } }, .data = values };
    uint64_t hash;
    int64_t bytes;
    ok(sl_checkpoint_make_partial(scratch_path("lies"), 1));
    ok(sl_checkpoint_publish(scratch_path("lies"), 1));
    ok(sl_safetensors_save(scratch_path("lies/step-00000001/a"), &entry, 1, NULL));
    ok(sl_checkpoint_hash(scratch_path("lies/step-00000001/a"), &hash, &bytes));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[1024];
        sl_checkpoint *checkpoint = NULL;
        snprintf(text, sizeof text,
                 "{\"format\":\"sluice-checkpoint\",\"version\":2,\"step\":1,\"files\":[{\"name\":\"a\",\"rank\":%s,"
                 "\"bytes\":%lld,\"xxh3\":\"%016llx\"}],\"tensors\":%s",
                 cases[i].rank, (long long)bytes, (unsigned long long)hash, cases[i].tensors);
        ok(sl_checkpoint_seal(scratch_path("lies/step-00000001/manifest.json"), text, strlen(text)));
        sl_status status = sl_checkpoint_open(scratch_path("lies/step-00000001"), true, &checkpoint);
        if (cases[i].message) {
            assert_int_not_equal(status, SL_OK);
            if (!strstr(sl_error_message(), cases[i].message))
                fail_msg("expected '%s', the message is: %s", cases[i].message, sl_error_message());
        } else {
            ok(status);
            sl_checkpoint_close(checkpoint);
        }
    }
}

/* ---- Memory ---------------------------------------------------------------------------------- */

enum { MEGABYTE = 1 << 20, TENSOR_BYTES = 96 * MEGABYTE, WRITERS = 4, READERS = 3 };

/* Of an element of the large tensor, which each writer fills from the same buffer. */
static float large_value(int64_t element)
{
    return (float)(element % (TENSOR_BYTES / 4 / WRITERS) % 8191);
}

static long peak_kilobytes(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
}

/* Rank `reader` of READERS takes its range of the tensor; returns how much more memory the process used at its peak,
 * in percent of the range. */
static int load_range(const char *path, int reader)
{
    sl_checkpoint *checkpoint = NULL;
    const size_t first = (size_t)TENSOR_BYTES / READERS / 4 * 4 * (size_t)reader;
    const size_t bytes = (size_t)TENSOR_BYTES / READERS / 4 * 4;
    long before = peak_kilobytes();
    char *own = malloc(bytes);
    if (!own || sl_checkpoint_open(path, false, &checkpoint) != SL_OK ||
        sl_tensor_entry_read(sl_checkpoint_find(checkpoint, "w"), first, bytes, own) != SL_OK)
        return 255;
    sl_checkpoint_close(checkpoint);
    long used = peak_kilobytes() - before;
    free(own);
    return (int)(used * 1024 * 100 / (long)bytes);
}

/* The tensor from WRITERS files into READERS others; returns how much memory that took at its peak, in percent of it. */
static int convert_large(const char *path, const char *folder)
{
    sl_checkpoint *checkpoint = NULL;
    sl_checkpoint_part parts[READERS];
    long before = peak_kilobytes();
    if (sl_checkpoint_open(path, true, &checkpoint) != SL_OK)
        return 255;
    const sl_tensor_entry *tensor = sl_checkpoint_find(checkpoint, "w");
    for (int r = 0; r < READERS; r++) {
        int64_t share = tensor->count / READERS + 1, first = r * share;
        const sl_tensor_entry range =
            sl_tensor_entry_range(tensor, first, share < tensor->count - first ? share : tensor->count - first);
        if (sl_checkpoint_write_part(folder, 1, r, &range, 1, &parts[r]) != SL_OK)
            return 255;
    }
    if (sl_checkpoint_commit(folder, parts, READERS, 1, NULL) != SL_OK)
        return 255;
    sl_checkpoint_close(checkpoint);
    return (int)((peak_kilobytes() - before) * 1024 * 100 / TENSOR_BYTES);
}

/* Whether a part of the converted checkpoint has the bits that it had. */
static void check_converted(const char *path)
{
    sl_checkpoint *checkpoint = NULL;
    float values[4];
    ok(sl_checkpoint_open(path, true, &checkpoint));
    assert_int_equal(sl_checkpoint_file_count(checkpoint), READERS);
    const sl_tensor_entry *tensor = sl_checkpoint_find(checkpoint, "w");
    assert_int_equal(tensor->bytes, TENSOR_BYTES);
    for (int64_t e = 0; e + 4 < tensor->count; e += 99991) {
        ok(sl_tensor_entry_read(tensor, (size_t)e * 4, sizeof values, values));
        for (int i = 0; i < 4; i++)
            assert_true(values[i] == large_value(e + i));
    }
    sl_checkpoint_close(checkpoint);
}

static void write_large(void)
{
    sl_checkpoint_writer *writers[WRITERS];
    sl_checkpoint_part parts[WRITERS];
    const int64_t elements = TENSOR_BYTES / 4, share = elements / WRITERS;
    const sl_shape whole = { 2, { 1024, elements / 1024 } };
    float *data = calloc((size_t)share, sizeof *data);
    for (int64_t e = 0; e < share; e++)
        data[e] = large_value(e);
    for (int r = 0; r < WRITERS; r++) {
        const sl_shard range = { { r * share }, { 1, { share } }, { r, "cpu" } };
        const sl_tensor_entry entry = slice_of("w", &whole, &range, data);
        ok(sl_checkpoint_writer_create(scratch_path("large"), r, &writers[r]));
        ok(sl_checkpoint_writer_begin(writers[r], 1, &entry, 1));
        ok(sl_checkpoint_writer_wait(writers[r], &parts[r]));
        if (r > 0)
            sl_checkpoint_writer_destroy(writers[r]);
    }
    ok(sl_checkpoint_writer_commit(writers[0], parts, WRITERS, 1, NULL));
    sl_checkpoint_writer_destroy(writers[0]);
    free(data);
}

static void a_rank_that_loads_its_part_holds_no_more_than_that(void **state)
{
    (void)state;
#if TEST_SANITIZED
    skip();
#endif
    pid_t writer = fork(); /* what writing costs must not hide what reading does */
    if (writer == 0) {
        write_large();
        _exit(0);
    }
    int code;
    waitpid(writer, &code, 0);
    assert_int_equal(code, 0);
    for (int reader = 0; reader < READERS; reader++) {
        pid_t child = fork();
        if (child == 0)
            _exit(load_range(scratch_path("large/step-00000001"), reader));
        waitpid(child, &code, 0);
        assert_true(WIFEXITED(code));
        assert_in_range(WEXITSTATUS(code), 90, 110);
    }
    pid_t child = fork();
    if (child == 0)
        _exit(convert_large(scratch_path("large/step-00000001"), scratch_path("other")));
    waitpid(child, &code, 0);
    assert_true(WIFEXITED(code));
    assert_in_range(WEXITSTATUS(code), 0, 10);
    check_converted(scratch_path("other/step-00000001"));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_range_of_every_layout_is_read_right),
        cmocka_unit_test(slices_that_do_not_fit_are_refused),
        cmocka_unit_test(a_checkpoint_of_many_ranks_reads_as_one),
        cmocka_unit_test(a_checkpoint_of_the_first_version_is_read),
        cmocka_unit_test(manifests_that_lie_about_slices_are_refused),
        cmocka_unit_test(a_rank_that_loads_its_part_holds_no_more_than_that),
    };
    if (argc > 1 && strcmp(argv[1], "--full") == 0)
        layouts = 30000;
    scratch_path(""); /* the folder is the parent's: children must not remove it */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
