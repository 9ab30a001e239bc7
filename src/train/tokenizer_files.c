/* Finding, copying and keeping a tokenizer's files. */
#include "train/tokenizer_files.h"

#include "base/alloc.h"
#include "base/file.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const names[] = { "tokenizer.json", "tokenizer.model",       "vocab.json",
                                     "merges.txt",     "tokenizer_config.json", "special_tokens_map.json" };
enum { NAME_COUNT = sizeof names / sizeof *names };

bool sl_tokenizer_files_exist(const char *folder)
{
    return sl_folder_has(folder, "tokenizer.json") || sl_folder_has(folder, "tokenizer.model") ||
           (sl_folder_has(folder, "vocab.json") && sl_folder_has(folder, "merges.txt"));
}

bool sl_tokenizer_is_file(const char *name)
{
    for (int i = 0; i < NAME_COUNT; i++) {
        if (strcmp(names[i], name) == 0)
            return true;
    }
    return false;
}

static sl_status copy_file(const char *from, const char *to, const char *name)
{
    sl_status status = SL_OK;
    char *source = NULL, *target = NULL;
    sl_file_bytes file = { .data = NULL };
    SL_TRY(sl_path_join(from, name, &source));
    SL_TRY(sl_path_join(to, name, &target));
    SL_TRY(sl_file_read(source, &file));
    SL_TRY(sl_file_replace(target, file.data, file.size));
done:
    sl_file_bytes_free(&file);
    sl_free(source);
    sl_free(target);
    return status;
}

sl_status sl_tokenizer_files_copy(const char *from, const char *to)
{
    sl_status status = SL_OK;
    if (from[0] == '\0' || !sl_tokenizer_files_exist(from))
        return SL_OK;
    for (int i = 0; i < NAME_COUNT; i++) {
        if (sl_folder_has(from, names[i]))
            SL_TRY(copy_file(from, to, names[i]));
    }
done:
    return status;
}

static sl_status remove_file(const char *folder, const char *name)
{
    char *path = NULL;
    sl_status status = sl_path_join(folder, name, &path);
    if (status == SL_OK && unlink(path) != 0 && errno != ENOENT)
        status = sl_fail(SL_ERR_IO, "remove %s: %s", path, strerror(errno));
    sl_free(path);
    return status;
}

sl_status sl_tokenizer_files_keep(const char *from, const char *run)
{
    sl_status status = SL_OK;
    char *folder = NULL;
    if (!from || !sl_tokenizer_files_exist(from))
        return SL_OK;
    SL_TRY(sl_path_join(run, "tokenizer", &folder));
    SL_TRY(sl_folder_make(folder));
    for (int i = 0; i < NAME_COUNT; i++) {
        if (!sl_folder_has(from, names[i]))
            SL_TRY(remove_file(folder, names[i]));
    }
    SL_TRY(sl_tokenizer_files_copy(from, folder));
done:
    sl_free(folder);
    return status;
}

/* Cuts the last component off an absolute path. */
static void cut_last(char *path)
{
    char *slash = strrchr(path, '/');
    if (slash)
        *slash = '\0';
}

sl_status sl_tokenizer_files_find(const char *checkpoint, const char *attribute, char **out)
{
    char run[PATH_MAX];
    char *folder = NULL;
    if (strcmp(attribute, SL_TOKENIZER_BYTES) == 0)
        return sl_strdup(attribute, out);
    if (attribute[0] == '\0')
        return sl_strdup("", out);
    if (strcmp(attribute, SL_TOKENIZER_OF_RUN) != 0) {
        sl_log(SL_LOG_WARN, "%s was trained with the tokenizer in %s, which may be another by now: give it by hand",
               checkpoint, attribute);
        return sl_strdup("", out);
    }
    if (!realpath(checkpoint, run))
        return sl_fail(SL_ERR_IO, "%s: %s", checkpoint, strerror(errno));
    cut_last(run); /* run/checkpoints/step-00000100 */
    cut_last(run);
    sl_status status = sl_path_join(run, "tokenizer", &folder);
    if (status != SL_OK)
        return status;
    if (!sl_tokenizer_files_exist(folder)) {
        sl_log(SL_LOG_WARN, "%s was trained with a tokenizer whose files are not in %s", checkpoint, folder);
        folder[0] = '\0';
    }
    *out = folder;
    return SL_OK;
}
