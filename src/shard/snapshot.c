/* Snapshots in memory: a head, a table of entries, their names, their data. Offsets from the start of the memory take
 * the place of pointers. Reader and writer are the same program, so the entries are kept as they are. */
#include "shard/snapshot.h"

#include "base/alloc.h"
#include "shard/slices.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum { DATA_ALIGNMENT = 64 };

typedef struct snapshot_head {
    char magic[16];
    char version[32];    /* of the library: another may lay out its entries in another way */
    uint64_t entry_size; /* bytes */
    uint64_t count;
    uint64_t bytes; /* of the whole */
} snapshot_head;

/* As it lies in the memory. */
typedef struct snapshot_entry {
    sl_dtype dtype;
    sl_shape shape, whole;
    int64_t offsets[SL_MAX_DIMS];
    int64_t count;
    uint64_t name, data, bytes; /* offsets of the first two */
} snapshot_entry;

static const char magic[16] = "sluice-snapshot";

static void fill_head(uint64_t count, uint64_t bytes, snapshot_head *head)
{
    *head = (snapshot_head){ .entry_size = sizeof(snapshot_entry), .count = count, .bytes = bytes };
    memcpy(head->magic, magic, sizeof magic);
    strncpy(head->version, sl_version(), sizeof head->version - 1);
}

/* ---- Writing --------------------------------------------------------------------------------- */

struct sl_snapshot_writer {
    int memory;
    snapshot_entry *entries;
    bool *written;
    int count;
};

static sl_status write_at(int memory, const void *data, size_t bytes, uint64_t offset)
{
    const char *from = data;
    while (bytes > 0) {
        ssize_t done = pwrite(memory, from, bytes, (off_t)offset);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return sl_fail(SL_ERR_MEMORY, "write a snapshot to memory: %s", strerror(done < 0 ? errno : ENOSPC));
        from += done;
        offset += (uint64_t)done;
        bytes -= (size_t)done;
    }
    return SL_OK;
}

/* Offsets of all names and data; returns the bytes of the whole. */
static uint64_t lay_out(const sl_tensor_entry *entries, int count, snapshot_entry *out)
{
    uint64_t at = sizeof(snapshot_head) + (uint64_t)count * sizeof *out;
    for (int i = 0; i < count; i++) {
        out[i] = (snapshot_entry){ .dtype = entries[i].dtype,
                                   .shape = entries[i].shape,
                                   .whole = entries[i].whole,
                                   .count = entries[i].count,
                                   .name = at,
                                   .bytes = entries[i].bytes };
        memcpy(out[i].offsets, entries[i].offsets, sizeof out[i].offsets);
        at += strlen(entries[i].name) + 1;
    }
    for (int i = 0; i < count; i++) {
        at = (at + DATA_ALIGNMENT - 1) / DATA_ALIGNMENT * DATA_ALIGNMENT;
        out[i].data = at;
        at += entries[i].bytes;
    }
    return at;
}

/* Memory that has a descriptor is a file to the kernel, which ends a process that makes one too large. */
static sl_status check_limit(uint64_t bytes)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && bytes > limit.rlim_cur)
        return sl_fail(SL_ERR_MEMORY, "a snapshot of %" PRIu64 " bytes is larger than a file may be here (ulimit -f)",
                       bytes);
    return SL_OK;
}

sl_status sl_snapshot_writer_create(const sl_tensor_entry *entries, int count, sl_snapshot_writer **out)
{
    sl_status status = SL_OK;
    sl_snapshot_writer *writer = NULL;
    snapshot_head head;
    SL_TRY(SL_NEW(writer));
    writer->memory = -1;
    writer->count = count;
    SL_TRY(SL_NEW_ARRAY(writer->entries, count));
    SL_TRY(SL_NEW_ARRAY(writer->written, count));
    fill_head((uint64_t)count, lay_out(entries, count, writer->entries), &head);
    SL_TRY(check_limit(head.bytes));
    writer->memory = memfd_create("sluice-snapshot", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (writer->memory < 0 || ftruncate(writer->memory, (off_t)head.bytes) != 0)
        SL_TRY(sl_fail(SL_ERR_MEMORY, "memory for a snapshot of %" PRIu64 " bytes: %s", head.bytes, strerror(errno)));
    SL_TRY(write_at(writer->memory, &head, sizeof head, 0));
    SL_TRY(write_at(writer->memory, writer->entries, (size_t)count * sizeof *writer->entries, sizeof head));
    for (int i = 0; i < count; i++)
        SL_TRY(write_at(writer->memory, entries[i].name, strlen(entries[i].name) + 1, writer->entries[i].name));
    *out = writer;
    writer = NULL;
done:
    sl_snapshot_writer_destroy(writer);
    return status;
}

sl_status sl_snapshot_writer_write(sl_snapshot_writer *writer, int i, const void *data)
{
    sl_status status = write_at(writer->memory, data, writer->entries[i].bytes, writer->entries[i].data);
    writer->written[i] = status == SL_OK;
    return status;
}

sl_status sl_snapshot_writer_seal(sl_snapshot_writer *writer, int *memory)
{
    for (int i = 0; i < writer->count; i++) {
        if (!writer->written[i])
            return sl_fail(SL_ERR_ARGUMENT, "a snapshot lacks the data of entry %d of %d", i, writer->count);
    }
    if (fcntl(writer->memory, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) != 0)
        return sl_fail(SL_ERR_IO, "seal a snapshot: %s", strerror(errno));
    *memory = writer->memory;
    writer->memory = -1;
    return SL_OK;
}

void sl_snapshot_writer_destroy(sl_snapshot_writer *writer)
{
    if (!writer)
        return;
    if (writer->memory >= 0)
        close(writer->memory);
    sl_free(writer->entries);
    sl_free(writer->written);
    sl_free(writer);
}

/* ---- Reading --------------------------------------------------------------------------------- */

struct sl_snapshot {
    sl_held_entry *held; /* as the writers gave them; the pieces of memory stand for ranks */
    size_t count, capacity;
    sl_tensor_set *tensors;
};

static sl_status check_head(const void *data, size_t bytes, snapshot_head *out)
{
    snapshot_head expected;
    if (bytes < sizeof *out)
        return sl_fail(SL_ERR_FORMAT, "a snapshot in memory has %zu bytes", bytes);
    memcpy(out, data, sizeof *out);
    fill_head(out->count, bytes, &expected);
    if (memcmp(out->version, expected.version, sizeof out->version) != 0 || out->entry_size != expected.entry_size)
        return sl_fail(SL_ERR_UNSUPPORTED, "the snapshot in memory was made by another version of this program");
    if (memcmp(out, &expected, sizeof expected) != 0 || out->count > (bytes - sizeof *out) / sizeof(snapshot_entry))
        return sl_fail(SL_ERR_FORMAT, "the snapshot in memory is malformed");
    return SL_OK;
}

static sl_status add_entries(sl_snapshot *snapshot, int rank, const char *data, size_t bytes)
{
    sl_status status = SL_OK;
    snapshot_head head;
    SL_TRY(check_head(data, bytes, &head));
    SL_TRY(SL_GROW(snapshot->held, &snapshot->capacity, snapshot->count + head.count));
    for (size_t i = 0; i < head.count; i++) {
        snapshot_entry entry;
        memcpy(&entry, data + sizeof head + i * sizeof entry, sizeof entry);
        if (entry.name >= bytes || !memchr(data + entry.name, 0, bytes - entry.name) || entry.data > bytes ||
            entry.bytes > bytes - entry.data)
            SL_TRY(sl_fail(SL_ERR_FORMAT, "entry %zu of a snapshot in memory is malformed", i));
        sl_held_entry *held = &snapshot->held[snapshot->count];
        *held = (sl_held_entry){ .rank = rank,
                                 .entry = { .name = data + entry.name,
                                            .dtype = entry.dtype,
                                            .shape = entry.shape,
                                            .whole = entry.whole,
                                            .count = entry.count,
                                            .data = data + entry.data,
                                            .bytes = entry.bytes } };
        memcpy(held->entry.offsets, entry.offsets, sizeof entry.offsets);
        snapshot->count += sl_slice_normalize(&held->entry);
    }
done:
    return status;
}

sl_status sl_snapshot_open(void *const *data, const size_t *bytes, int count, sl_snapshot **out)
{
    sl_status status = SL_OK;
    sl_snapshot *snapshot = NULL;
    SL_TRY(SL_NEW(snapshot));
    for (int i = 0; i < count; i++)
        SL_TRY(add_entries(snapshot, i, data[i], bytes[i]));
    SL_TRY(sl_tensor_set_create("the snapshot in memory", snapshot->held, (int)snapshot->count, &snapshot->tensors));
    *out = snapshot;
    snapshot = NULL;
done:
    sl_snapshot_close(snapshot);
    return status;
}

void sl_snapshot_close(sl_snapshot *snapshot)
{
    if (!snapshot)
        return;
    sl_tensor_set_destroy(snapshot->tensors);
    sl_free(snapshot->held);
    sl_free(snapshot);
}

const sl_tensor_entry *sl_snapshot_find(const sl_snapshot *snapshot, const char *name)
{
    return sl_tensor_set_find(snapshot->tensors, name);
}
