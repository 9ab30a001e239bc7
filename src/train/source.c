/* Where a trained model comes from: a Hugging Face folder or a checkpoint. */
#include <sluice/train.h>

#include "base/alloc.h"
#include "base/file.h"
#include "train/tokenizer_files.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

struct sl_model_source {
    sl_model model;
    char *path;
    char *tokenizer;
    sl_model_weights *weights; /* one of these two */
    sl_checkpoint *checkpoint;
};

static sl_status open_folder(sl_model_source *source, const char *path)
{
    sl_status status = SL_OK;
    SL_TRY(sl_model_load_config(path, &source->model));
    SL_TRY(sl_model_weights_open(&source->model, path, &source->weights));
    SL_TRY(sl_strdup(path, &source->path));
    SL_TRY(sl_strdup(sl_tokenizer_files_exist(path) ? path : "", &source->tokenizer));
done:
    return status;
}

static sl_status open_checkpoint(sl_model_source *source, const char *path)
{
    sl_status status = SL_OK;
    char *folder = NULL;
    if (sl_folder_has(path, "manifest.json")) {
        SL_TRY(sl_checkpoint_open(path, true, &source->checkpoint));
    } else {
        SL_TRY(sl_path_join(path, "checkpoints", &folder));
        SL_TRY(sl_checkpoint_open_newest(folder, &source->checkpoint));
        if (!source->checkpoint)
            SL_TRY(sl_fail(SL_ERR_IO,
                           "%s: neither a Hugging Face folder (config.json) nor a checkpoint, nor a run with "
                           "one",
                           path));
    }
    const char *model = sl_checkpoint_attribute(source->checkpoint, "model");
    const char *tokenizer = sl_checkpoint_attribute(source->checkpoint, "tokenizer");
    SL_TRY(sl_strdup(sl_checkpoint_path(source->checkpoint), &source->path));
    if (!model)
        SL_TRY(sl_fail(SL_ERR_FORMAT, "%s: it does not say which model it is", source->path));
    SL_TRY(sl_model_parse_config(source->path, model, strlen(model), &source->model));
    SL_TRY(sl_tokenizer_files_find(source->path, tokenizer ? tokenizer : "", &source->tokenizer));
done:
    sl_free(folder);
    return status;
}

sl_status sl_model_source_open(const char *path, sl_model_source **out)
{
    sl_status status = SL_OK;
    sl_model_source *source = NULL;
    if (access(path, F_OK) != 0)
        return sl_fail(SL_ERR_IO, "open %s: %s", path, strerror(errno));
    SL_TRY(SL_NEW(source));
    SL_TRY(sl_folder_has(path, "config.json") ? open_folder(source, path) : open_checkpoint(source, path));
    *out = source;
    source = NULL;
done:
    sl_model_source_close(source);
    return status;
}

void sl_model_source_close(sl_model_source *source)
{
    if (!source)
        return;
    sl_model_weights_close(source->weights);
    sl_checkpoint_close(source->checkpoint);
    sl_free(source->tokenizer);
    sl_free(source->path);
    sl_free(source);
}

const sl_model *sl_model_source_model(const sl_model_source *source)
{
    return &source->model;
}

const char *sl_model_source_path(const sl_model_source *source)
{
    return source->path;
}

const char *sl_model_source_tokenizer(const sl_model_source *source)
{
    return source->tokenizer;
}

static sl_status read_values(const sl_model_source *source, const char *param, int64_t count, float *out)
{
    if (source->weights)
        return sl_model_weights_read(source->weights, param, 0, count, out);
    const sl_tensor_entry *entry = sl_checkpoint_find(source->checkpoint, param);
    if (!entry)
        return sl_fail(SL_ERR_FORMAT, "%s: it lacks the tensor %s", source->path, param);
    if (entry->count != count)
        return sl_fail(SL_ERR_SHAPE, "%s: %s has %" PRId64 " elements, the model needs %" PRId64, source->path, param,
                       entry->count, count);
    return sl_tensor_entry_read_f32(entry, 0, count, out);
}

sl_status sl_model_source_read(const sl_model_source *source, const char *param, int64_t count, float *out)
{
    sl_status status = read_values(source, param, count, out);
    int64_t bad = status == SL_OK ? sl_find_nonfinite(SL_F32, out, count) : -1;
    if (bad >= 0)
        return sl_fail(SL_ERR_NUMERIC, "%s: element %" PRId64 " of %s is %g", source->path, bad, param,
                       (double)out[bad]);
    return status;
}
