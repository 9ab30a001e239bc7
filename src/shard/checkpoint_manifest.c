/* manifest.json: what makes a checkpoint whole. Its last member is the hash of all bytes before it. */
#include "shard/checkpoint.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/json.h"
#include "sharding/json.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

/* ---- Seal ------------------------------------------------------------------------------------ */

enum { SEAL_BYTES = 28 }; /* of the text that make_seal writes */

static void make_seal(const char *text, size_t length, char seal[SEAL_BYTES + 1])
{
    snprintf(seal, SEAL_BYTES + 1, ",\"xxh3\":\"%016" PRIx64 "\"}\n", (uint64_t)XXH3_64bits(text, length));
}

static bool is_sealed(const char *text, size_t length)
{
    char seal[SEAL_BYTES + 1];
    if (length < SEAL_BYTES)
        return false;
    make_seal(text, length - SEAL_BYTES, seal);
    return memcmp(text + length - SEAL_BYTES, seal, SEAL_BYTES) == 0;
}

sl_status sl_checkpoint_seal(const char *path, const char *text, size_t length)
{
    sl_status status = SL_OK;
    char seal[SEAL_BYTES + 1];
    sl_file *file = NULL;
    SL_TRY(sl_file_create(path, &file));
    make_seal(text, length, seal);
    fwrite(text, 1, length, sl_file_stream(file)); /* errors show in the commit */
    fwrite(seal, 1, SEAL_BYTES, sl_file_stream(file));
    SL_TRY(sl_file_commit(file));
done:
    sl_file_destroy(file);
    return status;
}

/* ---- Writing --------------------------------------------------------------------------------- */

/* Opens what a rank has written, and compares its size with what the rank says. */
static sl_status open_part(const char *folder, const sl_checkpoint_part *part, sl_safetensors **out)
{
    sl_status status = SL_OK;
    char *path = NULL, name[64];
    struct stat about;
    SL_TRY(sl_checkpoint_make_partial_path(folder, part->step, sl_checkpoint_part_name(part->rank, name, sizeof name),
                                           &path));
    if (stat(path, &about) != 0)
        SL_TRY(
            sl_fail(SL_ERR_IO, "%s: %s, although rank %" PRId32 " has written it", path, strerror(errno), part->rank));
    if (about.st_size != part->bytes)
        SL_TRY(sl_fail(SL_ERR_IO, "%s: rank %" PRId32 " wrote %" PRId64 " bytes, there are %lld", path, part->rank,
                       part->bytes, (long long)about.st_size));
    SL_TRY(sl_safetensors_open(path, out));
done:
    sl_free(path);
    return status;
}

static void put_part(sl_json *json, const sl_checkpoint_part *part)
{
    char name[64], hash[32];
    snprintf(hash, sizeof hash, "%016" PRIx64, part->hash);
    sl_json_newline(json);
    sl_json_begin(json, '{');
    sl_json_put_string(json, "name", sl_checkpoint_part_name(part->rank, name, sizeof name));
    sl_json_put_int(json, "rank", part->rank);
    sl_json_put_int(json, "bytes", part->bytes);
    sl_json_put_string(json, "xxh3", hash);
    sl_json_end(json, '}');
}

static void put_tensor(sl_json *json, const sl_tensor_entry *tensor, const sl_sharding *sharding)
{
    sl_json_newline(json);
    sl_json_begin(json, '{');
    sl_json_put_string(json, "name", tensor->name);
    sl_shape_put(json, "shape", &tensor->shape);
    sl_json_key(json, "sharding");
    sl_sharding_put(json, sharding);
    sl_json_end(json, '}');
}

/* All but the seal, which closes the object. */
static void put_manifest(FILE *stream, const sl_checkpoint_part *parts, int part_count, const sl_tensor_set *tensors,
                         const char *const *attributes)
{
    sl_json json = { .file = stream };
    sl_json_begin(&json, '{');
    sl_json_put_string(&json, "format", CHECKPOINT_FORMAT);
    sl_json_put_int(&json, "version", CHECKPOINT_VERSION);
    sl_json_put_int(&json, "step", parts[0].step);
    sl_json_key(&json, "attributes");
    sl_json_begin(&json, '{');
    for (const char *const *each = attributes; each && each[0]; each += 2)
        sl_json_put_string(&json, each[0], each[1]);
    sl_json_end(&json, '}');
    sl_json_key(&json, "files");
    sl_json_begin(&json, '[');
    for (int i = 0; i < part_count; i++)
        put_part(&json, &parts[i]);
    sl_json_end(&json, ']');
    sl_json_key(&json, "tensors");
    sl_json_begin(&json, '[');
    for (int i = 0; i < sl_tensor_set_count(tensors); i++)
        put_tensor(&json, sl_tensor_set_at(tensors, i), sl_tensor_set_sharding(tensors, i));
    sl_json_end(&json, ']');
}

/* The parts' files are read again: the manifest describes what is on disk, and only if it is whole tensors. */
static sl_status describe_parts(FILE *stream, const char *label, const char *folder, const sl_checkpoint_part *parts,
                                int part_count, const char *const *attributes)
{
    sl_status status = SL_OK;
    checkpoint_files files = { .count = 0 };
    sl_arena *names = NULL;
    sl_tensor_set *tensors = NULL;
    SL_TRY(sl_arena_create(&names));
    SL_TRY(SL_NEW_ARRAY(files.files, part_count));
    SL_TRY(SL_NEW_ARRAY(files.ranks, part_count));
    for (int i = 0; i < part_count; i++) {
        SL_TRY(open_part(folder, &parts[i], &files.files[i]));
        files.ranks[files.count++] = parts[i].rank;
    }
    SL_TRY(sl_checkpoint_collect(label, &files, names, &tensors));
    put_manifest(stream, parts, part_count, tensors, attributes);
done:
    sl_tensor_set_destroy(tensors);
    for (int i = 0; i < files.count; i++)
        sl_safetensors_close(files.files[i]);
    sl_free(files.files);
    sl_free(files.ranks);
    sl_arena_destroy(names);
    return status;
}

sl_status sl_checkpoint_write_manifest(const char *folder, const sl_checkpoint_part *parts, int part_count,
                                       const char *const *attributes)
{
    sl_status status = SL_OK;
    char *path = NULL, *partial = NULL, *text = NULL;
    size_t length = 0;
    FILE *stream = NULL;
    SL_TRY(sl_checkpoint_make_partial_path(folder, parts[0].step, NULL, &partial));
    SL_TRY(sl_checkpoint_make_partial_path(folder, parts[0].step, "manifest.json", &path));
    stream = open_memstream(&text, &length);
    if (!stream)
        SL_TRY(sl_fail(SL_ERR_MEMORY, "write %s: %s", path, strerror(errno)));
    SL_TRY(describe_parts(stream, path, folder, parts, part_count, attributes));
    if (fflush(stream) != 0 || ferror(stream))
        SL_TRY(sl_fail(SL_ERR_MEMORY, "write %s: %s", path, strerror(errno)));
    SL_TRY(sl_folder_sync(partial)); /* the parts' names are on disk before the manifest names them */
    SL_TRY(sl_checkpoint_seal(path, text, length));
    SL_TRY(sl_checkpoint_publish(folder, parts[0].step));
done:
    if (stream)
        fclose(stream);
    free(text);
    sl_free(partial);
    sl_free(path);
    return status;
}

/* ---- Reading --------------------------------------------------------------------------------- */

static sl_status check_head(const char *path, const json_t *manifest)
{
    const char *format = json_string_value(json_object_get(manifest, "format"));
    if (!format || strcmp(format, CHECKPOINT_FORMAT) != 0)
        return sl_fail(SL_ERR_FORMAT, "%s: this is not the manifest of a checkpoint", path);
    int64_t version = json_integer_value(json_object_get(manifest, "version"));
    if (version != CHECKPOINT_VERSION && version != CHECKPOINT_WHOLE_TENSORS)
        return sl_fail(SL_ERR_UNSUPPORTED, "%s: version %" PRId64 " is not known", path, version);
    const json_t *step = json_object_get(manifest, "step");
    if (!json_is_integer(step) || json_integer_value(step) < 0)
        return sl_fail(SL_ERR_FORMAT, "%s: 'step' is missing or not a count", path);
    return SL_OK;
}

/* The seal comes first: with a wrong one nothing else in the file means anything, also not its version. */
sl_status sl_checkpoint_parse_manifest(const char *label, const char *text, size_t length, json_t **out)
{
    sl_status status = SL_OK;
    json_error_t error;
    json_t *manifest = NULL;
    if (!is_sealed(text, length))
        SL_TRY(sl_fail(SL_ERR_FORMAT, "%s: it does not have the bytes that its own xxh3 says", label));
    manifest = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
    if (!manifest)
        SL_TRY(sl_fail(SL_ERR_FORMAT, "%s:%d: %s", label, error.line, error.text));
    SL_TRY(check_head(label, manifest));
    *out = manifest;
    manifest = NULL;
done:
    json_decref(manifest);
    return status;
}

sl_status sl_checkpoint_read_manifest(const char *step_folder, json_t **out)
{
    sl_status status = SL_OK;
    char *path = NULL;
    sl_file_bytes text = { .data = NULL };
    SL_TRY(sl_path_join(step_folder, "manifest.json", &path));
    SL_TRY(sl_file_read(path, &text));
    SL_TRY(sl_checkpoint_parse_manifest(path, (const char *)text.data, text.size, out));
done:
    sl_file_bytes_free(&text);
    sl_free(path);
    return status;
}
