/* Snapshots in memory: what goes in comes out, nobody can change it, and what is not whole is refused. */
#include "shard/snapshot.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const float weights[6] = { 1, 2, 3, 4, 5, 6 };
static const int32_t steps[2] = { 7, 8 };

static const sl_tensor_entry entries[] = {
    { .name = "h.0.weight", .dtype = SL_F32, .shape = { 2, { 2, 3 } }, .count = 6, .bytes = sizeof weights },
    { .name = "steps", .dtype = SL_I32, .shape = { 1, { 2 } }, .count = 2, .bytes = sizeof steps },
    { .name = "empty", .dtype = SL_F32, .shape = { 1, { 0 } }, .count = 0, .bytes = 0 },
};

/* Descriptor of a snapshot with entries [first, first + count). */
static int make(int first, int count)
{
    const void *const data[] = { weights, steps, "" };
    sl_snapshot_writer *writer = NULL;
    int memory = -1;
    assert_int_equal(sl_snapshot_writer_create(entries + first, count, &writer), SL_OK);
    for (int i = 0; i < count; i++)
        assert_int_equal(sl_snapshot_writer_write(writer, i, data[first + i]), SL_OK);
    assert_int_equal(sl_snapshot_writer_seal(writer, &memory), SL_OK);
    sl_snapshot_writer_destroy(writer);
    return memory;
}

/* A private copy of the memory, which a test may spoil. */
static void *map(int memory, size_t *bytes)
{
    struct stat about;
    assert_int_equal(fstat(memory, &about), 0);
    *bytes = (size_t)about.st_size;
    void *data = mmap(NULL, *bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, memory, 0);
    assert_ptr_not_equal(data, MAP_FAILED);
    close(memory);
    return data;
}

/* Each rank's part of a tensor that they share; the first has nothing of it. */
static int make_slice(int64_t first, int64_t count)
{
    const sl_tensor_entry slice = { .name = "shared",
                                    .dtype = SL_F32,
                                    .shape = { 1, { count } },
                                    .count = count,
                                    .bytes = (size_t)count * sizeof *weights,
                                    .whole = { 2, { 2, 3 } },
                                    .offsets = { first } };
    sl_snapshot_writer *writer = NULL;
    int memory = -1;
    assert_int_equal(sl_snapshot_writer_create(&slice, 1, &writer), SL_OK);
    assert_int_equal(sl_snapshot_writer_write(writer, 0, weights + first), SL_OK);
    assert_int_equal(sl_snapshot_writer_seal(writer, &memory), SL_OK);
    sl_snapshot_writer_destroy(writer);
    return memory;
}

static void slices_of_several_ranks_are_read_as_one_tensor(void **state)
{
    (void)state;
    size_t bytes[3];
    void *data[3] = { map(make_slice(0, 0), &bytes[0]), map(make_slice(4, 2), &bytes[1]),
                      map(make_slice(0, 4), &bytes[2]) };
    sl_snapshot *snapshot = NULL;
    float read[3];
    assert_int_equal(sl_snapshot_open(data, bytes, 3, &snapshot), SL_OK);
    const sl_tensor_entry *found = sl_snapshot_find(snapshot, "shared");
    assert_non_null(found);
    assert_true(sl_shape_equal(&found->shape, &entries[0].shape));
    assert_int_equal(sl_tensor_entry_read(found, 3 * sizeof *read, sizeof read, read), SL_OK);
    assert_memory_equal(read, weights + 3, sizeof read);
    sl_snapshot_close(snapshot);
    assert_int_equal(sl_snapshot_open(data, bytes, 2, &snapshot), SL_ERR_FORMAT);
    assert_non_null(strstr(sl_error_message(), "shared: the shards have 2 of the 6 elements"));
    for (int i = 0; i < 3; i++)
        munmap(data[i], bytes[i]);
}

static void several_parts_are_read_as_one(void **state)
{
    (void)state;
    size_t bytes[2];
    void *data[2] = { map(make(0, 1), &bytes[0]), map(make(1, 2), &bytes[1]) };
    sl_snapshot *snapshot = NULL;
    assert_int_equal(sl_snapshot_open(data, bytes, 2, &snapshot), SL_OK);
    const sl_tensor_entry *found = sl_snapshot_find(snapshot, "h.0.weight");
    assert_non_null(found);
    assert_true(sl_shape_equal(&found->shape, &entries[0].shape));
    assert_int_equal(found->dtype, SL_F32);
    assert_int_equal(found->count, 6);
    assert_memory_equal(found->data, weights, sizeof weights);
    assert_int_equal((uintptr_t)found->data % 64, 0);
    found = sl_snapshot_find(snapshot, "steps");
    assert_memory_equal(found->data, steps, sizeof steps);
    assert_int_equal(sl_snapshot_find(snapshot, "empty")->bytes, 0);
    assert_null(sl_snapshot_find(snapshot, "h.0.bias"));
    sl_snapshot_close(snapshot);
    for (int i = 0; i < 2; i++)
        munmap(data[i], bytes[i]);
}

static void sealed_memory_cannot_change(void **state)
{
    (void)state;
    int memory = make(0, 3);
    assert_int_equal(pwrite(memory, "x", 1, 0), -1);
    assert_int_equal(errno, EPERM);
    assert_int_equal(ftruncate(memory, 0), -1);
    assert_int_equal(ftruncate(memory, 1 << 20), -1);
    assert_ptr_equal(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0), MAP_FAILED);
    close(memory);
}

static void half_a_snapshot_is_not_sealed(void **state)
{
    (void)state;
    sl_snapshot_writer *writer = NULL;
    int memory = -1;
    assert_int_equal(sl_snapshot_writer_create(entries, 2, &writer), SL_OK);
    assert_int_equal(sl_snapshot_writer_write(writer, 1, steps), SL_OK);
    assert_int_equal(sl_snapshot_writer_seal(writer, &memory), SL_ERR_ARGUMENT);
    assert_int_equal(memory, -1);
    sl_snapshot_writer_destroy(writer);
}

/* No byte of the head or the table can be another without a refusal, or an entry that still lies inside the memory. */
static void no_change_of_a_byte_leads_outside(void **state)
{
    (void)state;
    size_t bytes;
    char *data = map(make(0, 3), &bytes);
    unsigned sum = 0;
    for (size_t at = 0; at < bytes; at++) {
        for (int bit = 0; bit < 8; bit++) {
            sl_snapshot *snapshot = NULL;
            data[at] ^= (char)(1 << bit);
            if (sl_snapshot_open((void *const *)&data, &bytes, 1, &snapshot) == SL_OK) {
                for (int i = 0; i < 3; i++) {
                    const sl_tensor_entry *found = sl_snapshot_find(snapshot, entries[i].name);
                    for (size_t b = 0; found && b < found->bytes; b++)
                        sum += ((const unsigned char *)found->data)[b];
                }
            }
            sl_snapshot_close(snapshot);
            data[at] ^= (char)(1 << bit);
        }
    }
    assert_true(sum > 0); /* most changes are to the values themselves */
    munmap(data, bytes);
}

static void a_snapshot_that_is_cut_short_is_refused(void **state)
{
    (void)state;
    size_t bytes;
    void *data = map(make(0, 3), &bytes);
    for (size_t shorter = 0; shorter < bytes; shorter++) {
        sl_snapshot *snapshot = NULL;
        assert_int_not_equal(sl_snapshot_open(&data, &shorter, 1, &snapshot), SL_OK);
        assert_null(snapshot);
    }
    munmap(data, bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(several_parts_are_read_as_one),
        cmocka_unit_test(slices_of_several_ranks_are_read_as_one_tensor),
        cmocka_unit_test(sealed_memory_cannot_change),
        cmocka_unit_test(half_a_snapshot_is_not_sealed),
        cmocka_unit_test(no_change_of_a_byte_leads_outside),
        cmocka_unit_test(a_snapshot_that_is_cut_short_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
