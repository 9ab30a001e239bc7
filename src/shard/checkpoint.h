/* Inside checkpoints: names and folders. */
#ifndef SL_SHARD_CHECKPOINT_H
#define SL_SHARD_CHECKPOINT_H

#include <sluice/shard.h>

#include <jansson.h>

#define CHECKPOINT_FORMAT "sluice-checkpoint"
enum { CHECKPOINT_VERSION = 1, CHECKPOINT_FILE_LIMIT = 1 << 16 };

/* "FOLDER/step-00000020", or "FOLDER/step-00000020/NAME" where name is not NULL. The caller frees *out. */
SL_MUST_CHECK sl_status sl_checkpoint_make_path(const char *folder, int64_t step, const char *name, char **out);
/* "rank-00003.safetensors" */
char *sl_checkpoint_part_name(int rank, char *text, size_t size);

/* Steps of the folder's "step-N" entries, newest first; the caller frees *out. A folder that does not exist has none.
 */
SL_MUST_CHECK sl_status sl_checkpoint_list(const char *folder, int64_t **out, int *count);
bool sl_checkpoint_has_manifest(const char *folder, int64_t step);

/* The folder and the plain files in it; the manifest goes first, so that no half of a checkpoint looks whole. */
SL_MUST_CHECK sl_status sl_checkpoint_remove(const char *path);
/* Removes complete checkpoints but the newest `keep`. */
SL_MUST_CHECK sl_status sl_checkpoint_prune(const char *folder, int keep);

/* XXH3 64 and size of a file. */
SL_MUST_CHECK sl_status sl_checkpoint_hash(const char *path, uint64_t *hash, int64_t *bytes);

/* Writes the manifest of a checkpoint whose parts are on disk. */
SL_MUST_CHECK sl_status sl_checkpoint_write_manifest(const char *folder, const sl_checkpoint_part *parts,
                                                     int part_count, const char *const *attributes);
/* The manifest of a checkpoint's folder: whole, of our format and version, with a step. The caller releases *out. */
SL_MUST_CHECK sl_status sl_checkpoint_read_manifest(const char *step_folder, json_t **out);
/* Writes a JSON object whose last brace is missing, with the member that seals it. */
SL_MUST_CHECK sl_status sl_checkpoint_seal(const char *path, const char *text, size_t length);

#endif
