/* Inside checkpoints: names and folders. */
#ifndef SL_SHARD_CHECKPOINT_H
#define SL_SHARD_CHECKPOINT_H

#include "base/arena.h"
#include "shard/slices.h"

#include <jansson.h>

#define CHECKPOINT_FORMAT "sluice-checkpoint"
enum {
    CHECKPOINT_VERSION = 2,
    CHECKPOINT_WHOLE_TENSORS = 1, /* the version in which every tensor is whole in one file, and in no manifest */
    CHECKPOINT_FILE_LIMIT = 1 << 16
};
#define CHECKPOINT_WHOLE_KEY "whole" /* of a part's metadata: the shapes of the tensors that its slices are of */

/* "FOLDER/step-00000020", or "FOLDER/step-00000020/NAME" if name is not NULL. The caller frees *out. */
SL_MUST_CHECK sl_status sl_checkpoint_make_path(const char *folder, int64_t step, const char *name, char **out);
/* The same in "FOLDER/step-00000020.partial": a checkpoint that is being written, or removed. */
SL_MUST_CHECK sl_status sl_checkpoint_make_partial_path(const char *folder, int64_t step, const char *name, char **out);
/* "rank-00003.safetensors" */
char *sl_checkpoint_part_name(int rank, char *text, size_t size);

/* Steps of the folder's "step-N" entries, newest first; the caller frees *out. A folder that does not exist has none.
 */
SL_MUST_CHECK sl_status sl_checkpoint_list(const char *folder, int64_t **out, int *count);
SL_MUST_CHECK sl_status sl_checkpoint_has_manifest(const char *folder, int64_t step, bool *out);

/* Makes the folder in which a checkpoint is written. */
SL_MUST_CHECK sl_status sl_checkpoint_make_partial(const char *folder, int64_t step);
/* Gives a checkpoint whose parts and manifest are on disk its name. */
SL_MUST_CHECK sl_status sl_checkpoint_publish(const char *folder, int64_t step);
/* Removes checkpoints with a manifest, but not the newest `keep`, not that of the protected step (-1: none) and not those
 * that are links. */
SL_MUST_CHECK sl_status sl_checkpoint_prune(const char *folder, int keep, int64_t protected_step);

/* XXH3 64 and size of a file. */
SL_MUST_CHECK sl_status sl_checkpoint_hash(const char *path, uint64_t *hash, int64_t *bytes);

/* Parts that are done, of one step, in the order of their ranks. */
SL_MUST_CHECK sl_status sl_checkpoint_check_parts(const sl_checkpoint_part *parts, int part_count);
/* Writes the manifest of a checkpoint whose parts are on disk, and publishes it. */
SL_MUST_CHECK sl_status sl_checkpoint_write_manifest(const char *folder, const sl_checkpoint_part *parts,
                                                     int part_count, const char *const *attributes);
/* The files of a checkpoint and the ranks that wrote them, in rising order. */
typedef struct checkpoint_files {
    sl_safetensors **files;
    int *ranks;
    int count;
} checkpoint_files;

/* The tensors of the files as their headers say; names are kept in the arena. */
SL_MUST_CHECK sl_status sl_checkpoint_collect(const char *label, const checkpoint_files *files, sl_arena *arena,
                                              sl_tensor_set **out);
/* The tensors as the manifest says: each shard must be in its file, and nothing else may be. Names are borrowed from
 * the manifest. */
SL_MUST_CHECK sl_status sl_checkpoint_match(const char *label, const json_t *manifest, const checkpoint_files *files,
                                            sl_tensor_set **out);

/* The manifest of a checkpoint's folder: whole, of our format and version, with a step. The caller releases *out. */
SL_MUST_CHECK sl_status sl_checkpoint_read_manifest(const char *step_folder, json_t **out);
/* The same for the manifest's bytes; label stands in messages for the path. */
SL_MUST_CHECK sl_status sl_checkpoint_parse_manifest(const char *label, const char *text, size_t length, json_t **out);
/* Writes a JSON object whose last brace is missing, with the member that seals it. */
SL_MUST_CHECK sl_status sl_checkpoint_seal(const char *path, const char *text, size_t length);

#endif
