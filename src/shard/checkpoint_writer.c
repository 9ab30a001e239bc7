/* Writing a checkpoint beside the training: a snapshot is copied, a thread writes it and later the manifest. */
#include "shard/checkpoint.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/thread.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* SNAPSHOT: a stream is copying it, and gives the thread its part then. */
typedef enum writer_job { JOB_NONE, JOB_SNAPSHOT, JOB_PART, JOB_COMMIT, JOB_QUIT } writer_job;

struct sl_checkpoint_writer {
    char *folder;
    int rank;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock; /* guards job, status, message and part */
    pthread_cond_t changed;
    writer_job job; /* JOB_NONE: the thread waits, all else belongs to the caller */
    sl_status status;
    char message[1024];
    sl_checkpoint_part part;

    /* The snapshot. Buffers are kept from checkpoint to checkpoint. */
    sl_tensor_entry *entries; /* their names and data are ours */
    size_t entry_capacity;
    int entry_count;
    bool unchecked; /* nobody has looked for values that are not finite */
    char *names, *data;
    size_t names_capacity, data_capacity;

    /* The commit. */
    sl_checkpoint_part *parts;
    size_t part_capacity;
    int part_count, keep;
    int64_t protected_step; /* -1: none */
    char **attributes;      /* pairs, NULL at the end */
};

/* ---- The thread ------------------------------------------------------------------------------ */

static sl_status fail_nonfinite(int64_t step, const char *name, int64_t element)
{
    return sl_fail(SL_ERR_NUMERIC,
                   "step %" PRId64 ": element %" PRId64 " of %s is infinite or not a number: this state is not saved",
                   step, element, name);
}

/* Of a snapshot that a stream has copied. */
static sl_status check_snapshot(const sl_checkpoint_writer *writer, int64_t step)
{
    for (int i = 0; writer->unchecked && i < writer->entry_count; i++) {
        const sl_tensor_entry *entry = &writer->entries[i];
        int64_t bad = sl_find_nonfinite(entry->dtype, entry->data, entry->count);
        if (bad >= 0)
            return fail_nonfinite(step, entry->name, bad);
    }
    return SL_OK;
}

/* What other ranks have written of it is no use either. */
static void discard_step(const sl_checkpoint_writer *writer, int64_t step)
{
    char *partial = NULL;
    if (sl_checkpoint_make_partial_path(writer->folder, step, NULL, &partial) == SL_OK)
        sl_folder_discard(partial);
    sl_free(partial);
}

static sl_status write_part(sl_checkpoint_writer *writer, sl_checkpoint_part *part)
{
    sl_status status = check_snapshot(writer, part->step);
    if (status != SL_OK) {
        discard_step(writer, part->step);
        return status;
    }
    return sl_checkpoint_write_part(writer->folder, part->step, writer->rank, writer->entries, writer->entry_count,
                                    part);
}

static sl_status commit(sl_checkpoint_writer *writer)
{
    sl_status status = sl_checkpoint_write_manifest(writer->folder, writer->parts, writer->part_count,
                                                    (const char *const *)writer->attributes);
    return status == SL_OK ? sl_checkpoint_prune(writer->folder, writer->keep, writer->protected_step) : status;
}

static void *writer_main(void *argument)
{
    sl_checkpoint_writer *writer = argument;
    pthread_mutex_lock(&writer->lock);
    while (writer->job != JOB_QUIT) {
        if (writer->job == JOB_NONE || writer->job == JOB_SNAPSHOT) {
            pthread_cond_wait(&writer->changed, &writer->lock);
            continue;
        }
        writer_job job = writer->job;
        sl_checkpoint_part part = writer->part;
        pthread_mutex_unlock(&writer->lock);
        sl_status status = job == JOB_PART ? write_part(writer, &part) : commit(writer);
        pthread_mutex_lock(&writer->lock);
        writer->job = JOB_NONE;
        if (status != SL_OK) {
            writer->status = status;
            snprintf(writer->message, sizeof writer->message, "%s", sl_error_message());
        } else if (job == JOB_PART) {
            writer->part = part;
        }
        pthread_cond_broadcast(&writer->changed);
    }
    pthread_mutex_unlock(&writer->lock);
    return NULL;
}

/* Waits until the thread has nothing to do, then leaves the lock held. */
static void lock_idle(sl_checkpoint_writer *writer)
{
    pthread_mutex_lock(&writer->lock);
    while (writer->job != JOB_NONE)
        pthread_cond_wait(&writer->changed, &writer->lock);
}

static sl_status failure_of(const sl_checkpoint_writer *writer)
{
    return writer->status == SL_OK ? SL_OK : sl_fail(writer->status, "%s", writer->message);
}

static void give(sl_checkpoint_writer *writer, writer_job job)
{
    writer->job = job;
    pthread_cond_broadcast(&writer->changed);
}

/* ---- Life ------------------------------------------------------------------------------------ */

sl_status sl_checkpoint_writer_create(const char *folder, int rank, sl_checkpoint_writer **out)
{
    sl_status status = SL_OK;
    sl_checkpoint_writer *writer = NULL;
    SL_TRY(SL_NEW(writer));
    writer->protected_step = -1;
    pthread_mutex_init(&writer->lock, NULL);
    pthread_cond_init(&writer->changed, NULL);
    writer->rank = rank;
    writer->part = (sl_checkpoint_part){ .step = -1, .rank = rank };
    SL_TRY(sl_strdup(folder, &writer->folder));
    SL_TRY(sl_thread_start("the thread that writes checkpoints", writer_main, writer, &writer->thread));
    writer->started = true;
    *out = writer;
    writer = NULL;
done:
    sl_checkpoint_writer_destroy(writer);
    return status;
}

static void free_attributes(sl_checkpoint_writer *writer)
{
    for (char **each = writer->attributes; each && *each; each++)
        sl_free(*each);
    sl_free(writer->attributes);
    writer->attributes = NULL;
}

void sl_checkpoint_writer_destroy(sl_checkpoint_writer *writer)
{
    if (!writer)
        return;
    if (writer->started) {
        lock_idle(writer);
        give(writer, JOB_QUIT);
        pthread_mutex_unlock(&writer->lock);
        pthread_join(writer->thread, NULL);
    }
    pthread_cond_destroy(&writer->changed);
    pthread_mutex_destroy(&writer->lock);
    free_attributes(writer);
    sl_free(writer->parts);
    sl_free(writer->entries);
    sl_free(writer->names);
    sl_free(writer->data);
    sl_free(writer->folder);
    sl_free(writer);
}

/* ---- Work ------------------------------------------------------------------------------------ */

size_t sl_snapshot_bytes(size_t bytes)
{
    return (bytes + 7) & ~(size_t)7;
}

size_t sl_checkpoint_writer_bytes(const sl_checkpoint_writer *writer)
{
    return writer->data_capacity;
}

/* One tensor into the snapshot. Copies a block and looks at it while it is in the cache, so that the check costs no
 * second pass over memory. *bad: index of the first value that is not finite, or -1. */
static void copy_into_snapshot(const sl_tensor_entry *entry, char *to, int64_t *bad)
{
    enum { BLOCK = 1 << 16 };
    size_t size = sl_dtype_size(entry->dtype);
    *bad = -1;
    for (size_t at = 0; at < entry->bytes && *bad < 0; at += BLOCK) {
        size_t bytes = entry->bytes - at < BLOCK ? entry->bytes - at : BLOCK;
        memcpy(to + at, (const char *)entry->data + at, bytes);
        int64_t found = sl_find_nonfinite(entry->dtype, to + at, (int64_t)(bytes / size));
        if (found >= 0)
            *bad = (int64_t)(at / size) + found;
    }
}

/* Room for the copies of the entries. */
static sl_status reserve_snapshot(sl_checkpoint_writer *writer, const sl_tensor_entry *entries, int count)
{
    sl_status status = SL_OK;
    size_t name_bytes = 0, data_bytes = 0;
    for (int i = 0; i < count; i++) {
        name_bytes += strlen(entries[i].name) + 1;
        data_bytes += sl_snapshot_bytes(entries[i].bytes);
    }
    SL_TRY(SL_GROW(writer->entries, &writer->entry_capacity, count));
    SL_TRY(SL_GROW(writer->names, &writer->names_capacity, name_bytes));
    if (data_bytes > writer->data_capacity) { /* exact: this is the size of the model */
        SL_TRY(sl_realloc((void **)&writer->data, data_bytes, 1));
        writer->data_capacity = data_bytes;
    }
done:
    return status;
}

/* The entries are memory of the stream's device, or the host's if it is NULL. */
static sl_status take_snapshot(sl_checkpoint_writer *writer, int64_t step, const sl_tensor_entry *entries, int count,
                               sl_stream *stream)
{
    sl_status status = SL_OK;
    SL_TRY(reserve_snapshot(writer, entries, count));
    char *name = writer->names, *data = writer->data;
    writer->entry_count = 0;
    for (int i = 0; i < count; i++) {
        int64_t bad = -1;
        sl_tensor_entry *entry = &writer->entries[writer->entry_count];
        *entry = entries[i];
        if (!sl_slice_normalize(entry))
            continue;
        entry->name = strcpy(name, entries[i].name);
        entry->data = data;
        if (stream)
            SL_TRY(sl_stream_copy(stream, SL_COPY_DEVICE_TO_HOST, data, entries[i].data, entries[i].bytes));
        else
            copy_into_snapshot(&entries[i], data, &bad);
        if (bad >= 0)
            SL_TRY(fail_nonfinite(step, name, bad));
        name += strlen(name) + 1;
        data += sl_snapshot_bytes(entries[i].bytes);
        writer->entry_count++;
    }
    writer->unchecked = stream != NULL;
done:
    return status;
}

/* A host function: the stream has copied the snapshot. */
static void begin_part(void *arg)
{
    sl_checkpoint_writer *writer = arg;
    pthread_mutex_lock(&writer->lock);
    give(writer, JOB_PART);
    pthread_mutex_unlock(&writer->lock);
}

sl_status sl_checkpoint_writer_begin(sl_checkpoint_writer *writer, int64_t step, const sl_tensor_entry *entries,
                                     int count)
{
    return sl_checkpoint_writer_begin_after(writer, step, entries, count, NULL);
}

sl_status sl_checkpoint_writer_begin_after(sl_checkpoint_writer *writer, int64_t step, const sl_tensor_entry *entries,
                                           int count, sl_stream *stream)
{
    sl_status status = SL_OK;
    if (stream && sl_device_is_host(sl_stream_device(stream))) {
        SL_TRY(sl_stream_synchronize(stream));
        stream = NULL;
    }
    lock_idle(writer);
    status = failure_of(writer);
    if (status == SL_OK)
        status = take_snapshot(writer, step, entries, count, stream);
    if (status == SL_OK) {
        writer->part = (sl_checkpoint_part){ .step = step, .rank = writer->rank };
        give(writer, stream ? JOB_SNAPSHOT : JOB_PART);
    }
    pthread_mutex_unlock(&writer->lock);
    if (status == SL_OK && stream)
        status = sl_stream_call(stream, begin_part, writer);
done:
    return status;
}

sl_status sl_checkpoint_writer_poll(sl_checkpoint_writer *writer, sl_checkpoint_part *part)
{
    pthread_mutex_lock(&writer->lock);
    sl_status status = failure_of(writer);
    if (status == SL_OK)
        *part = writer->part;
    pthread_mutex_unlock(&writer->lock);
    return status;
}

sl_status sl_checkpoint_writer_wait(sl_checkpoint_writer *writer, sl_checkpoint_part *part)
{
    lock_idle(writer);
    sl_status status = failure_of(writer);
    if (status == SL_OK && part)
        *part = writer->part;
    pthread_mutex_unlock(&writer->lock);
    return status;
}

static sl_status copy_attributes(sl_checkpoint_writer *writer, const char *const *attributes)
{
    sl_status status = SL_OK;
    size_t count = 0;
    while (attributes && attributes[count])
        count += 2;
    free_attributes(writer);
    SL_TRY(SL_NEW_ARRAY(writer->attributes, count + 1));
    for (size_t i = 0; i < count; i++)
        SL_TRY(sl_strdup(attributes[i], &writer->attributes[i]));
done:
    return status;
}

void sl_checkpoint_writer_protect(sl_checkpoint_writer *writer, int64_t step)
{
    lock_idle(writer);
    writer->protected_step = step;
    pthread_mutex_unlock(&writer->lock);
}

sl_status sl_checkpoint_writer_commit(sl_checkpoint_writer *writer, const sl_checkpoint_part *parts, int part_count,
                                      int keep, const char *const *attributes)
{
    sl_status status = sl_checkpoint_check_parts(parts, part_count);
    if (status != SL_OK)
        return status;
    lock_idle(writer);
    SL_TRY(failure_of(writer));
    SL_TRY(copy_attributes(writer, attributes));
    SL_TRY(SL_GROW(writer->parts, &writer->part_capacity, part_count));
    memcpy(writer->parts, parts, (size_t)part_count * sizeof *parts);
    writer->part_count = part_count;
    writer->keep = keep;
    give(writer, JOB_COMMIT);
done:
    pthread_mutex_unlock(&writer->lock);
    return status;
}
