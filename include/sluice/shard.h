/* Shard: tensors in files (safetensors, sharded Hugging Face checkpoints) and tensors that lie over ranks, with their
 * data. Who holds what is an sl_sharding (sharding.h). */
#ifndef SLUICE_SHARD_H
#define SLUICE_SHARD_H

#include <sluice/comm.h>
#include <sluice/sharding.h>
#include <sluice/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- safetensors: reading ---------------------------------------------------------------------- */

typedef struct sl_safetensors sl_safetensors;
typedef struct sl_slices sl_slices; /* the places of a tensor that several ranks have written */

/* A named tensor or a slice of one, in memory or in files. The name of one that comes from a file is borrowed from that
 * file. */
typedef struct sl_tensor_entry {
    const char *name;
    sl_dtype dtype;
    sl_shape shape;
    int64_t count;    /* elements */
    const void *data; /* little-endian, contiguous, maybe misaligned; NULL if the bytes are in files: read them with
                         sl_tensor_entry_read or sl_tensor_entry_read_f32 */
    size_t bytes;
    /* A slice that a rank gives to a checkpoint: the shape of the whole tensor, and where the slice begins in it. Rank 0:
     * the entry is the whole tensor. A slice has as many dims as the tensor, or one: then it is a range of the elements
     * in row-major order, such as a shard of flat weights. */
    sl_shape whole;
    int64_t offsets[SL_MAX_DIMS];
    const sl_safetensors *file; /* set by the reader: where the bytes are if data is NULL */
    const sl_slices *slices;    /* set by the reader: the bytes are in several places */
    uint64_t offset;            /* of the first byte in that file, or in the tensor that is in slices */
} sl_tensor_entry;

/* sl_safetensors: one file, checked as a whole when it is opened; immutable, so threads may share it.
 *
 * Reads the header; the tensors are read when they are asked for. Refused, with the tensor or the offset named: a file
 * shorter than its header says, a header above 16 MiB or not a JSON object of UTF-8 text, a name given twice, unknown
 * element types, more than SL_MAX_DIMS dims, data with gaps, overlaps or left-over bytes, sizes that do not fit the
 * shape. A file that is replaced or cut later is an error of the read. */
SL_API SL_MUST_CHECK sl_status sl_safetensors_open(const char *path, sl_safetensors **out);
/* The same for bytes in memory, which are borrowed until the close; label stands in messages for the path. */
SL_API SL_MUST_CHECK sl_status sl_safetensors_open_memory(const char *label, const void *bytes, size_t size,
                                                          sl_safetensors **out);
SL_API void sl_safetensors_close(sl_safetensors *file); /* NULL is fine */

SL_API int sl_safetensors_count(const sl_safetensors *file);
/* Entry i in the order of the data. */
SL_API const sl_tensor_entry *sl_safetensors_at(const sl_safetensors *file, int i);
SL_API const sl_tensor_entry *sl_safetensors_find(const sl_safetensors *file, const char *name); /* or NULL */
/* The value that __metadata__ gives the key, or NULL. */
SL_API const char *sl_safetensors_metadata(const sl_safetensors *file, const char *key);

/* ---- Elements ---------------------------------------------------------------------------------- */

/* Bytes [offset, offset + bytes) of the tensor, and no others: from a tensor in slices only those are read that have some
 * of them; both must then be multiples of the element's size. Errors of the disk are SL_ERR_IO with the file's name. */
SL_API SL_MUST_CHECK sl_status sl_tensor_entry_read(const sl_tensor_entry *entry, size_t offset, size_t bytes,
                                                    void *out);
/* Elements [first, first + count) of a tensor as a slice of it, for a checkpoint; borrows what the tensor borrows. */
SL_API sl_tensor_entry sl_tensor_entry_range(const sl_tensor_entry *tensor, int64_t first, int64_t count);
/* Whether two tensors have the same type, shape and bits. */
SL_API SL_MUST_CHECK sl_status sl_tensor_entry_compare(const sl_tensor_entry *a, const sl_tensor_entry *b, bool *same);
/* Elements [first, first + count) as f32; from f32, bf16, f16 or f64. */
SL_API SL_MUST_CHECK sl_status sl_tensor_entry_read_f32(const sl_tensor_entry *entry, int64_t first, int64_t count,
                                                        float *out);
/* f32 to f32, bf16 or f16, rounded to nearest even; out need not be aligned and may be `from` itself. */
SL_API SL_MUST_CHECK sl_status sl_f32_convert(const float *from, int64_t count, sl_dtype dtype, void *out);
/* Index of the first element that is infinite or not a number; -1 if there is none. Types without such values have
 * none. data may be misaligned. */
SL_API int64_t sl_find_nonfinite(sl_dtype dtype, const void *data, int64_t count);

/* ---- safetensors: writing ---------------------------------------------------------------------- */

/* Declares tensors, then takes their bytes in any order and in pieces, so that no copy of the model is needed. The file
 * appears under its name only when it is complete and on disk. */
typedef struct sl_safetensors_writer sl_safetensors_writer;

SL_API SL_MUST_CHECK sl_status sl_safetensors_writer_create(const char *path, sl_safetensors_writer **out);
/* Before the first write. The last value of a key counts. */
SL_API SL_MUST_CHECK sl_status sl_safetensors_writer_metadata(sl_safetensors_writer *writer, const char *key,
                                                              const char *value);
/* *index stands for the tensor in later calls. Before the first write, which fails if a name was given twice. */
SL_API SL_MUST_CHECK sl_status sl_safetensors_writer_add(sl_safetensors_writer *writer, const char *name,
                                                         sl_dtype dtype, const sl_shape *shape, int *index);
/* Bytes [offset, offset + bytes) of the tensor's data. Each byte of a tensor is to be written once. */
SL_API SL_MUST_CHECK sl_status sl_safetensors_writer_write(sl_safetensors_writer *writer, int index, size_t offset,
                                                           const void *data, size_t bytes);
/* Checks that all data came, syncs and renames. The writer can then only be destroyed. */
SL_API SL_MUST_CHECK sl_status sl_safetensors_writer_finish(sl_safetensors_writer *writer);
/* Without a finish before it, no file appears. NULL is fine. */
SL_API void sl_safetensors_writer_destroy(sl_safetensors_writer *writer);

/* Writes the entries (name, dtype, shape, data) in one go. metadata: pairs key, value, …, NULL; or NULL for none. */
SL_API SL_MUST_CHECK sl_status sl_safetensors_save(const char *path, const sl_tensor_entry *entries, int count,
                                                   const char *const *metadata);

/* ---- Folders ----------------------------------------------------------------------------------- */

/* The weights of a Hugging Face folder: model.safetensors, or the files that model.safetensors.index.json names (plain
 * names only, nothing outside the folder). */
typedef struct sl_weights sl_weights;

SL_API SL_MUST_CHECK sl_status sl_weights_open(const char *folder, sl_weights **out);
SL_API void sl_weights_close(sl_weights *weights); /* NULL is fine */
SL_API int sl_weights_count(const sl_weights *weights);
SL_API const sl_tensor_entry *sl_weights_at(const sl_weights *weights, int i);              /* sorted by name */
SL_API const sl_tensor_entry *sl_weights_find(const sl_weights *weights, const char *name); /* or NULL */

/* Writes model.safetensors into an existing folder; or, if the entries hold more than shard_bytes (0: no limit),
 * model-00001-of-0000N.safetensors ... and the index. A tensor is never cut. What the folder held before stays readable
 * until everything is written; a process killed in the middle leaves the old weights, the new ones or none, never a
 * mixture. */
SL_API SL_MUST_CHECK sl_status sl_weights_save(const char *folder, const sl_tensor_entry *entries, int count,
                                               size_t shard_bytes);

/* ---- Checkpoints ------------------------------------------------------------------------------- */

/* A checkpoint is FOLDER/step-NNNNNNNN: one safetensors file for each writer, and manifest.json with their hashes and
 * the sharding of each tensor. It is written as step-NNNNNNNN.partial and gets its name when everything is on disk.
 * Tensors are found by name and read by elements, whoever wrote which slice, so that any number of ranks can read what
 * any other number wrote, and each reads only what it needs. */
typedef struct sl_checkpoint sl_checkpoint; /* immutable; threads may share it */

/* path is the folder with the manifest. Sizes are always compared with the manifest; verify hashes every file, too.
 * SL_ERR_FORMAT: the checkpoint is damaged (bytes are missing, or not those that were written). Any other error says
 * that it could not be read, now or by this version, and nothing about its bytes. */
SL_API SL_MUST_CHECK sl_status sl_checkpoint_open(const char *path, bool verify, sl_checkpoint **out);
/* The newest of folder that is whole (verified). Damaged ones are reported with sl_log at SL_LOG_WARN and passed over;
 * it fails at the first one that cannot be read, and with SL_ERR_FORMAT if all are damaged. *out becomes NULL only if
 * there is none, or no such folder. */
SL_API SL_MUST_CHECK sl_status sl_checkpoint_open_newest(const char *folder, sl_checkpoint **out);
SL_API void sl_checkpoint_close(sl_checkpoint *checkpoint); /* NULL is fine */

SL_API const char *sl_checkpoint_path(const sl_checkpoint *checkpoint);
SL_API int64_t sl_checkpoint_step(const sl_checkpoint *checkpoint);
/* The text stored under the key when it was committed, or NULL. */
SL_API const char *sl_checkpoint_attribute(const sl_checkpoint *checkpoint, const char *key);
/* The same by number; sets *key. NULL past the last. */
SL_API const char *sl_checkpoint_attribute_at(const sl_checkpoint *checkpoint, int i, const char **key);
SL_API int sl_checkpoint_file_count(const sl_checkpoint *checkpoint);
SL_API int64_t sl_checkpoint_bytes(const sl_checkpoint *checkpoint);
/* Each tensor is one entry, also if several ranks have written slices of it. Sorted by name. */
SL_API int sl_checkpoint_count(const sl_checkpoint *checkpoint);
SL_API const sl_tensor_entry *sl_checkpoint_at(const sl_checkpoint *checkpoint, int i);
SL_API const sl_tensor_entry *sl_checkpoint_find(const sl_checkpoint *checkpoint, const char *name); /* or NULL */
/* Which rank wrote what of tensor i: boxes of its shape, or of the shape [elements] if the slices are ranges. Borrowed
 * from the checkpoint. */
SL_API const sl_sharding *sl_checkpoint_sharding(const sl_checkpoint *checkpoint, int i);

/* Clears the way for the steps that follow `step`. Folders NAME.partial, which a crash left, are removed. Checkpoints of
 * later steps and those without a manifest are renamed to NAME.damaged (NAME.damaged-2, ...) and never removed. Links
 * are not followed. A folder that does not exist is fine. */
SL_API SL_MUST_CHECK sl_status sl_checkpoint_clean(const char *folder, int64_t step);

/* Writes one rank's part in a thread of its own while training goes on. */
typedef struct sl_checkpoint_writer sl_checkpoint_writer;

/* What a rank wrote; plain data, to be sent to the rank that commits. */
typedef struct sl_checkpoint_part {
    int64_t step;
    int64_t bytes;
    uint64_t hash; /* XXH3 64 of the file, from the bytes in memory that were written */
    int32_t rank;
    int32_t done; /* 1 once the part is on disk */
} sl_checkpoint_part;

SL_API SL_MUST_CHECK sl_status sl_checkpoint_writer_create(const char *folder, int rank, sl_checkpoint_writer **out);
/* Waits for the work in progress. NULL is fine. */
SL_API void sl_checkpoint_writer_destroy(sl_checkpoint_writer *writer);
SL_API size_t sl_checkpoint_writer_bytes(const sl_checkpoint_writer *writer); /* that the last snapshot takes */
SL_API size_t sl_snapshot_bytes(size_t bytes); /* that a tensor of so many bytes takes in a snapshot */
/* Copies the entries (host memory) and returns; the copy is written meanwhile. Waits first if the work before it is
 * still going on. SL_ERR_NUMERIC if a value is infinite or not a number: nothing is written then. An entry may be a slice
 * (whole, offsets); the slices that all ranks give of a tensor must be the whole tensor, each element once. The commit
 * checks that. */
SL_API SL_MUST_CHECK sl_status sl_checkpoint_writer_begin(sl_checkpoint_writer *writer, int64_t step,
                                                          const sl_tensor_entry *entries, int count);
/* The same with memory of the stream's device: it is copied in the order of the stream, without waiting for it, and work
 * given to the stream afterwards may change it. Values that are not finite are an error of the work, not of this call. */
SL_API SL_MUST_CHECK sl_status sl_checkpoint_writer_begin_after(sl_checkpoint_writer *writer, int64_t step,
                                                                const sl_tensor_entry *entries, int count,
                                                                sl_stream *stream);
/* How far the work is: *part is the last part begun. Returns the error of the thread if it failed. */
SL_API SL_MUST_CHECK sl_status sl_checkpoint_writer_poll(sl_checkpoint_writer *writer, sl_checkpoint_part *part);
SL_API SL_MUST_CHECK sl_status sl_checkpoint_writer_wait(sl_checkpoint_writer *writer, sl_checkpoint_part *part);
/* The checkpoint of this step stays, whatever later commits remove; -1: none does. */
SL_API void sl_checkpoint_writer_protect(sl_checkpoint_writer *writer, int64_t step);
/* On one rank, once the parts of all ranks are done: writes the manifest, gives the checkpoint its name, then removes
 * all but the newest `keep` checkpoints; in the thread, too. attributes: pairs key, value, ..., NULL. Everything is
 * copied. Refused: no parts, parts that are not done, of different steps or not in the order of ranks. Slices that are
 * not whole tensors are an error of the work: the checkpoint does not get its name. */
SL_API SL_MUST_CHECK sl_status sl_checkpoint_writer_commit(sl_checkpoint_writer *writer,
                                                           const sl_checkpoint_part *parts, int part_count, int keep,
                                                           const char *const *attributes);

/* The same without a thread and without a copy, for programs that turn one checkpoint into another: entries may be in
 * files, and go from there in blocks. */
SL_API SL_MUST_CHECK sl_status sl_checkpoint_write_part(const char *folder, int64_t step, int rank,
                                                        const sl_tensor_entry *entries, int count,
                                                        sl_checkpoint_part *part);
SL_API SL_MUST_CHECK sl_status sl_checkpoint_commit(const char *folder, const sl_checkpoint_part *parts, int part_count,
                                                    int keep, const char *const *attributes);

/* ---- Pieces of a reshard ------------------------------------------------------------------------ */

/* Between a shard's data (row-major, elements of element_bytes) and a packed buffer with the piece alone. */
SL_API void sl_shard_pack(const sl_shard *shard, const sl_shard_move *move, size_t element_bytes, const void *data,
                          void *packed);
SL_API void sl_shard_unpack(const sl_shard *shard, const sl_shard_move *move, size_t element_bytes, const void *packed,
                            void *data);

/* ---- Sharded tensors --------------------------------------------------------------------------- */

/* A tensor of which each rank of a group holds some shards: a sharding and this rank's part of the data. Placements name
 * ranks as the whole run numbers them (sl_group_world_rank); those of the group alone may hold shards. Group and device
 * must outlive the tensor; device NULL: all data is memory of the host.
 *
 * A call that is collective gives the same error on all ranks, and names the rank that it comes from. */
typedef struct sl_sharded_tensor sl_sharded_tensor;

/* Collective. A tensor of zeros by a sharding, the same on every rank; its shards are this tensor's own memory. */
SL_API SL_MUST_CHECK sl_status sl_sharded_tensor_create(sl_group *group, sl_device *device, const sl_sharding *sharding,
                                                        sl_sharded_tensor **out);
/* Collective. From the shards that each rank has, maybe none; their data is borrowed until the destroy. Each rank's are
 * checked as by sl_sharding_from_local, all together as by sl_sharding_merge. */
SL_API SL_MUST_CHECK sl_status sl_sharded_tensor_from_local(sl_group *group, sl_device *device, const sl_shape *size,
                                                            const sl_local_shard *locals, int count,
                                                            sl_sharded_tensor **out);
/* Collective. The same if nobody knows offsets and size: the shards are stacked along dim in the order of ranks, as by
 * sl_sharding_stack. */
SL_API SL_MUST_CHECK sl_status sl_sharded_tensor_stack(sl_group *group, sl_device *device, int dim,
                                                       const sl_local_shard *locals, int count,
                                                       sl_sharded_tensor **out);
/* Not collective. From a sharding that is known already, and this rank's shards of it in any order: number, offsets, sizes,
 * devices and properties must be those of the sharding. */
SL_API SL_MUST_CHECK sl_status sl_sharded_tensor_from_sharding(sl_group *group, sl_device *device,
                                                               const sl_sharding *sharding,
                                                               const sl_local_shard *locals, int count,
                                                               sl_sharded_tensor **out);
SL_API void sl_sharded_tensor_destroy(sl_sharded_tensor *tensor); /* NULL is fine */

/* Borrowed from the tensor. Of all ranks. */
SL_API const sl_sharding *sl_sharded_tensor_sharding(const sl_sharded_tensor *tensor);
/* This rank's shards, in the order of the sharding. */
SL_API int sl_sharded_tensor_local_count(const sl_sharded_tensor *tensor);
SL_API const sl_local_shard *sl_sharded_tensor_local(const sl_sharded_tensor *tensor, int i);

/* Collective, all three; each rank sends only what another needs, and what stays on a rank is copied.
 *
 * The whole tensor on member root of the group: a contiguous view there, in memory of the tensor's device; NULL elsewhere. */
SL_API SL_MUST_CHECK sl_status sl_sharded_tensor_gather(const sl_sharded_tensor *tensor, int root,
                                                        const sl_view *output);
/* The whole tensor on every rank. */
SL_API SL_MUST_CHECK sl_status sl_sharded_tensor_all_gather(const sl_sharded_tensor *tensor, const sl_view *output);
/* The same tensor by another sharding over the same group, as a new one. */
SL_API SL_MUST_CHECK sl_status sl_sharded_tensor_reshard(const sl_sharded_tensor *tensor, const sl_sharding *sharding,
                                                         sl_sharded_tensor **out);

#ifdef __cplusplus
}
#endif
#endif
