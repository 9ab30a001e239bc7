/* A trained model as a Hugging Face folder. Everything is written into a folder beside the target, which takes its place
 * in one step: nobody sees half an export, or a new one mixed with what was there before. */
#include <sluice/train.h>

#include "base/alloc.h"
#include "base/file.h"
#include "train/tokenizer_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- What is in a folder --------------------------------------------------------------------- */

/* Whether an export writes files of this name. */
static bool is_of_model(const char *name)
{
    unsigned part, parts;
    int end = 0;
    return strcmp(name, "config.json") == 0 || strcmp(name, "model.safetensors") == 0 ||
           strcmp(name, "model.safetensors.index.json") == 0 || sl_tokenizer_is_file(name) ||
           (sscanf(name, "model-%5u-of-%5u.safetensors%n", &part, &parts, &end) == 2 && end > 0 && !name[end]);
}

/* Calls back for each entry but "." and "..", until one fails. */
static sl_status for_each_entry(const char *folder, sl_status (*visit)(void *user, const char *name), void *user)
{
    sl_status status = SL_OK;
    DIR *entries = opendir(folder);
    if (!entries)
        return sl_fail(SL_ERR_IO, "open %s: %s", folder, strerror(errno));
    for (struct dirent *entry; status == SL_OK && (entry = readdir(entries));) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            status = visit(user, entry->d_name);
    }
    closedir(entries);
    return status;
}

static sl_status refuse_model(void *user, const char *name)
{
    if (!is_of_model(name))
        return SL_OK;
    return sl_fail(SL_ERR_ARGUMENT, "%s holds a model (%s): replace it with --overwrite, or choose another folder",
                   (const char *)user, name);
}

/* ---- Taking the place ------------------------------------------------------------------------ */

typedef struct swap {
    const char *staging; /* what was in the target before */
    const char *target;
} swap;

/* Back to the target with what is no part of a model; the rest of it goes. */
static sl_status sort_out(void *user, const char *name)
{
    const swap *places = user;
    sl_status status = SL_OK;
    char *from = NULL, *to = NULL;
    SL_TRY(sl_path_join(places->staging, name, &from));
    SL_TRY(sl_path_join(places->target, name, &to));
    if (is_of_model(name) ? unlink(from) != 0 : rename(from, to) != 0)
        status = sl_fail(SL_ERR_IO, "%s: %s", from, strerror(errno));
done:
    sl_free(to);
    sl_free(from);
    return status;
}

static sl_status sync_parent(const char *path)
{
    char parent[PATH_MAX];
    snprintf(parent, sizeof parent, "%s", path);
    char *slash = strrchr(parent, '/');
    if (slash)
        slash[slash == parent] = '\0';
    return sl_folder_sync(slash ? parent : ".");
}

/* File systems that cannot exchange two names get three renames: for a moment there is no target, never half of one. */
static int exchange(const char *staging, const char *target)
{
    char aside[PATH_MAX + 8];
    if (renameat2(AT_FDCWD, staging, AT_FDCWD, target, RENAME_EXCHANGE) == 0)
        return 0;
    if (errno != EINVAL && errno != ENOSYS)
        return -1;
    snprintf(aside, sizeof aside, "%s.old", staging);
    if (rename(target, aside) != 0)
        return -1;
    if (rename(staging, target) != 0) {
        int reason = errno;
        rename(aside, target);
        errno = reason;
        return -1;
    }
    return rename(aside, staging);
}

static sl_status take_place(const char *staging, const char *target)
{
    sl_status status = SL_OK;
    swap places = { .staging = staging, .target = target };
    SL_TRY(sl_folder_sync(staging));
    if (rename(staging, target) != 0) { /* the target is not empty */
        if (exchange(staging, target) != 0)
            SL_TRY(sl_fail(SL_ERR_IO, "replace %s: %s", target, strerror(errno)));
        SL_TRY(for_each_entry(staging, sort_out, &places));
        if (rmdir(staging) != 0)
            SL_TRY(sl_fail(SL_ERR_IO, "remove %s: %s", staging, strerror(errno)));
    }
    SL_TRY(sync_parent(target));
done:
    return status;
}

static sl_status remove_written(void *user, const char *name)
{
    char *path = NULL;
    sl_status status = sl_path_join(user, name, &path);
    if (status == SL_OK && is_of_model(name))
        unlink(path);
    sl_free(path);
    return SL_OK;
}

/* An export that failed leaves nothing behind; the error stays that of the export. */
static void abandon(const char *staging)
{
    char message[2048];
    snprintf(message, sizeof message, "%s", sl_error_message());
    sl_status status = for_each_entry(staging, remove_written, (void *)staging);
    rmdir(staging);
    sl_fail(status, "%s", message);
}

/* ---- The files ------------------------------------------------------------------------------- */

static sl_status write_weights(const sl_model_source *source, const sl_export_options *options, const char *folder)
{
    sl_status status = SL_OK;
    sl_param_list *params = NULL;
    sl_tensor_entry *entries = NULL;
    float *values = NULL;
    SL_TRY(sl_model_params(sl_model_source_model(source), &params));
    int count = sl_param_list_count(params);
    SL_TRY(SL_NEW_ARRAY(entries, count));
    SL_TRY(SL_NEW_ARRAY(values, sl_param_list_elements(params)));
    float *at = values;
    for (int i = 0; i < count; i++) {
        const sl_param_info *info = sl_param_list_at(params, i);
        sl_tensor_entry *entry = &entries[i];
        *entry = (sl_tensor_entry){ .name = info->name, .dtype = SL_F32, .shape = info->shape, .data = at };
        SL_TRY(sl_shape_count(&info->shape, &entry->count));
        entry->bytes = (size_t)entry->count * sizeof *at;
        SL_TRY(sl_model_source_read(source, info->name, entry->count, at));
        at += entry->count;
    }
    SL_TRY(sl_model_save(sl_model_source_model(source), entries, count, options->dtype, options->shard_bytes, folder));
done:
    sl_free(values);
    sl_free(entries);
    sl_param_list_destroy(params);
    return status;
}

static sl_status write_tokenizer(const char *tokenizer, const char *folder)
{
    char *path = NULL;
    if (strcmp(tokenizer, SL_TOKENIZER_BYTES) != 0)
        return sl_tokenizer_files_copy(tokenizer, folder);
    sl_status status = sl_path_join(folder, "tokenizer.json", &path);
    if (status == SL_OK)
        status = sl_tokenizer_save_bytes(path);
    sl_free(path);
    return status;
}

/* A new folder beside the target, with its permissions if it exists. */
static sl_status make_staging(const char *target, char *staging, size_t size)
{
    struct stat about;
    uint32_t number = 0;
    (void)!getrandom(&number, sizeof number, 0);
    for (int tries = 0; tries < 100; tries++) {
        if ((size_t)snprintf(staging, size, "%s.export-%08x", target, number + (unsigned)tries) >= size)
            return sl_fail(SL_ERR_ARGUMENT, "%s: the path is too long", target);
        if (mkdir(staging, 0777) == 0) {
            if (stat(target, &about) == 0)
                chmod(staging, about.st_mode & 07777);
            return SL_OK;
        }
        if (errno != EEXIST)
            break;
    }
    return sl_fail(SL_ERR_IO, "make folder %s: %s", staging, strerror(errno));
}

/* The folder itself in place of a link to it or of ".": it is what is replaced. Its parents are made. */
static sl_status find_target(const char *folder, char target[PATH_MAX], bool *made)
{
    if (!folder || !folder[0])
        return sl_fail(SL_ERR_ARGUMENT, "no folder was given to export to");
    if (realpath(folder, target))
        return SL_OK;
    if (errno != ENOENT || strlen(folder) >= PATH_MAX)
        return sl_fail(SL_ERR_IO, "%s: %s", folder, strerror(errno == ENOENT ? ENAMETOOLONG : errno));
    sl_status status = sl_folder_make(folder);
    *made = status == SL_OK;
    if (status == SL_OK && !realpath(folder, target))
        status = sl_fail(SL_ERR_IO, "%s: %s", folder, strerror(errno));
    return status;
}

sl_status sl_model_source_export(const sl_model_source *source, const sl_export_options *options, const char *folder)
{
    static const sl_export_options defaults = { .dtype = SL_F32 };
    sl_status status = SL_OK;
    char target[PATH_MAX], staging[PATH_MAX] = "";
    bool made = false;
    if (!options)
        options = &defaults;
    SL_TRY(find_target(folder, target, &made));
    if (!options->overwrite)
        SL_TRY(for_each_entry(target, refuse_model, (void *)folder));
    SL_TRY(make_staging(target, staging, sizeof staging));
    status = write_weights(source, options, staging);
    if (status == SL_OK)
        status = write_tokenizer(sl_model_source_tokenizer(source), staging);
    if (status == SL_OK)
        status = take_place(staging, target);
    if (status != SL_OK)
        abandon(staging);
done:
    if (status != SL_OK && made)
        rmdir(target);
    return status;
}
