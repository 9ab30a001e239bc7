/* A checkpoint as a run of another mesh would have written it. Tensors go from file to file in blocks, so that memory does
 * not grow with the model. */
#include <sluice/train.h>

#include "base/alloc.h"
#include "base/file.h"
#include "train/plan.h"
#include "train/tokenizer_files.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef struct conversion {
    const sl_convert_options *options;
    sl_checkpoint *from;
    sl_arena *arena;
    int pp, dp, writers;    /* writers: of the replicas of a stage, those that write a file */
    sl_shard_place *places; /* of the replicas */
    sl_model model;
    sl_train_config *config;
    sl_train_plan *plan; /* model, schedule and cut; no data */
    int *owners;         /* rank of the pipeline that writes parameter i of the plan */
} conversion;

/* ---- The run that wrote it ------------------------------------------------------------------- */

/* The value that the checkpoint's run had for "section.key"; NULL if it says none. */
static sl_status config_value(conversion *work, const char *key, char **out)
{
    const char *line = sl_checkpoint_attribute(work->from, "config");
    size_t length = strlen(key);
    *out = NULL;
    for (; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        if (strncmp(line, key, length) == 0 && line[length] == '=')
            return sl_arena_printf(work->arena, out, "%.*s", (int)strcspn(line + length + 1, "\n"), line + length + 1);
    }
    return SL_OK;
}

/* What decides how a model is cut; the rest of a configuration does not matter here. */
static const char *const cut_keys[] = { "data.text",          "data.tokens",
                                        "batch.size",         "batch.seq",
                                        "batch.microbatches", "precision.dtype",
                                        "parallel.schedule",  "parallel.stages_per_rank",
                                        "parallel.split",     "model.freeze" };

/* With another number of ranks the stages are others: those of the model's cost. */
static bool is_of_mesh(const char *key)
{
    return strcmp(key, "parallel.stages_per_rank") == 0 || strcmp(key, "parallel.split") == 0;
}

static sl_status read_mesh(conversion *work)
{
    sl_status status = SL_OK;
    char *pp = NULL, *dp = NULL;
    int64_t ranks = 1, replicas = 1;
    SL_TRY(config_value(work, "parallel.pp", &pp));
    SL_TRY(config_value(work, "parallel.dp", &dp));
    if (pp)
        SL_TRY(sl_parse_int("parallel.pp", pp, 1, INT32_MAX, &ranks));
    if (dp)
        SL_TRY(sl_parse_int("parallel.dp", dp, 1, INT32_MAX, &replicas));
    work->pp = work->options->pp ? work->options->pp : (int)ranks;
    work->dp = work->options->dp ? work->options->dp : (int)replicas;
    int group = work->options->shard_group ? work->options->shard_group : work->dp;
    if (work->dp % group != 0)
        SL_TRY(sl_fail(SL_ERR_ARGUMENT, "a shard group of %d does not divide %d replicas", group, work->dp));
    work->writers = work->options->shard == SL_SHARD_NONE ? 1 : group;
    SL_TRY(SL_ARENA_ARRAY(work->arena, work->places, work->dp));
    for (int r = 0; r < work->dp; r++)
        work->places[r] = (sl_shard_place){ .rank = r, .device = "cpu" };

    const char *overrides[sizeof cut_keys / sizeof *cut_keys + 1];
    int count = 0;
    for (size_t i = 0; i < sizeof cut_keys / sizeof *cut_keys; i++) {
        char *value = NULL, *override = NULL;
        SL_TRY(config_value(work, cut_keys[i], &value));
        if (!value || !*value || (work->pp != (int)ranks && is_of_mesh(cut_keys[i])))
            continue;
        SL_TRY(sl_arena_printf(work->arena, &override, "%s=%s", cut_keys[i], value));
        overrides[count++] = override;
    }
    char *mesh = NULL;
    SL_TRY(sl_arena_printf(work->arena, &mesh, "parallel.pp=%d", work->pp));
    overrides[count++] = mesh;
    SL_TRY(sl_train_config_load(NULL, overrides, count, &work->config));
done:
    return status;
}

/* ---- Who writes what ------------------------------------------------------------------------- */

static sl_status find_owners(conversion *work)
{
    sl_status status = SL_OK;
    sl_device *device = NULL;
    sl_stage *stage = NULL;
    const char *model = sl_checkpoint_attribute(work->from, "model"), *path = sl_checkpoint_path(work->from);
    if (!model)
        SL_TRY(sl_fail(SL_ERR_FORMAT, "%s: it does not say which model it is", path));
    SL_TRY(sl_model_parse_config(path, model, strlen(model), &work->model));
    SL_TRY(sl_plan_create_stages(work->config, &work->model, &work->plan));
    SL_TRY(sl_device_open("cpu", NULL, &device));
    int count = sl_param_list_count(work->plan->params);
    SL_TRY(SL_ARENA_ARRAY(work->arena, work->owners, count));
    for (int i = 0; i < count; i++)
        work->owners[i] = -1;
    for (int s = 0; s < work->plan->stage_count; s++) {
        sl_stage_desc desc;
        SL_TRY(sl_plan_build_stage(work->plan, s, device, &stage));
        sl_stage_describe(stage, &desc);
        for (int w = 0; w < desc.weight_count; w++) {
            const char *name = desc.weights[w].tie ? desc.weights[w].tie : desc.weights[w].name;
            int index = sl_param_list_find(work->plan->params, name);
            if (index >= 0 && work->owners[index] < 0) /* the first stage that uses it, as in a run */
                work->owners[index] = work->plan->stages[s].rank;
        }
        sl_stage_destroy(stage);
        stage = NULL;
    }
done:
    sl_stage_destroy(stage);
    sl_device_close(device);
    return status;
}

/* State goes where its parameter goes: "optimizer.exp_avg.NAME". What belongs to no parameter goes to the first rank. */
static int owner_of(const conversion *work, const char *tensor)
{
    const char *name = tensor;
    if (strncmp(name, "optimizer.", 10) == 0 && strchr(name + 10, '.'))
        name = strchr(name + 10, '.') + 1;
    int index = sl_param_list_find(work->plan->params, name);
    return index < 0 || work->owners[index] < 0 ? 0 : work->owners[index];
}

/* What one of the writers has of a tensor, by the sharding that a run would have. */
static sl_status cut_tensor(const conversion *work, const sl_tensor_entry *tensor, int writer, sl_tensor_entry *out)
{
    sl_status status = SL_OK;
    const sl_tensor_properties properties = { .dtype = tensor->dtype };
    sl_sharding sharding = { 0 };
    SL_TRY(sl_sharding_flat(&tensor->shape, &properties, work->writers, work->places, work->dp, &sharding));
    const sl_shard *own = &sharding.shards[sl_sharding_find(&sharding, writer)];
    *out = sl_tensor_entry_range(tensor, own->offsets[0], own->size.dims[0]);
done:
    sl_sharding_destroy(&sharding);
    return status;
}

/* The file of one rank: its share of the tensors that its stages own. */
static sl_status write_rank(const conversion *work, const char *folder, int pp_rank, int writer,
                            sl_checkpoint_part *part)
{
    sl_status status = SL_OK;
    sl_tensor_entry *entries = NULL;
    int count = sl_checkpoint_count(work->from), used = 0;
    SL_TRY(SL_NEW_ARRAY(entries, count));
    for (int i = 0; i < count; i++) {
        const sl_tensor_entry *tensor = sl_checkpoint_at(work->from, i);
        if (owner_of(work, tensor->name) == pp_rank)
            SL_TRY(cut_tensor(work, tensor, writer, &entries[used++]));
    }
    SL_TRY(sl_checkpoint_write_part(folder, sl_checkpoint_step(work->from), pp_rank * work->writers + writer, entries,
                                    used, part));
done:
    sl_free(entries);
    return status;
}

/* ---- Attributes ------------------------------------------------------------------------------ */

/* The lines of the run's configuration, with those of the mesh as they are now. */
static sl_status config_lines(conversion *work, char **out)
{
    sl_status status = SL_OK;
    static const char *const modes[] = {
        [SL_SHARD_NONE] = "none", [SL_SHARD_OPTIMIZER] = "optimizer", [SL_SHARD_FULL] = "full"
    };
    static const char *const mesh_keys[] = { "parallel.pp=", "parallel.dp=", "parallel.shard=",
                                             "parallel.shard_group=" };
    const char *line = sl_checkpoint_attribute(work->from, "config");
    char *lines = NULL;
    SL_TRY(sl_arena_strdup(work->arena, "", &lines));
    for (; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        bool replaced = false;
        for (size_t i = 0; i < sizeof mesh_keys / sizeof *mesh_keys; i++)
            replaced |= strncmp(line, mesh_keys[i], strlen(mesh_keys[i])) == 0;
        if (!replaced)
            SL_TRY(sl_arena_printf(work->arena, &lines, "%s%.*s\n", lines, (int)strcspn(line, "\n"), line));
    }
    SL_TRY(sl_arena_printf(work->arena, out,
                           "%sparallel.pp=%d\nparallel.dp=%d\nparallel.shard=%s\n"
                           "parallel.shard_group=%d\n",
                           lines, work->pp, work->dp, modes[work->options->shard], work->options->shard_group));
done:
    return status;
}

static sl_status commit(conversion *work, const char *folder, const sl_checkpoint_part *parts, int count)
{
    sl_status status = SL_OK;
    int used = 0, given = 0;
    const char *key, **pairs = NULL;
    char *lines = NULL, text[128];
    SL_TRY(config_lines(work, &lines));
    while (sl_checkpoint_attribute_at(work->from, given, &key))
        given++;
    SL_TRY(SL_ARENA_ARRAY(work->arena, pairs, 2 * (size_t)given + 3));
    for (int i = 0; i < given; i++) {
        const char *value = sl_checkpoint_attribute_at(work->from, i, &key);
        if (strcmp(key, "mesh") == 0)
            continue;
        pairs[used++] = key;
        pairs[used++] = strcmp(key, "config") == 0 ? lines : value;
    }
    const sl_mesh_facts mesh = {
        .pp = work->pp, .dp = work->dp, .shard = work->options->shard, .shard_group = work->writers
    };
    pairs[used++] = "mesh";
    pairs[used++] = sl_mesh_text(&mesh, text, sizeof text);
    SL_TRY(sl_checkpoint_commit(folder, parts, count, INT32_MAX, pairs));
done:
    return status;
}

/* ---- All of it ------------------------------------------------------------------------------- */

static sl_status open_source(const char *path, sl_checkpoint **out)
{
    sl_status status = SL_OK;
    char *folder = NULL;
    if (sl_folder_has(path, "manifest.json"))
        return sl_checkpoint_open(path, true, out);
    SL_TRY(sl_path_join(path, "checkpoints", &folder));
    SL_TRY(sl_checkpoint_open_newest(folder, out));
    if (!*out)
        SL_TRY(sl_fail(SL_ERR_IO, "%s: neither a checkpoint nor a run with one", path));
done:
    sl_free(folder);
    return status;
}

/* An older checkpoint would be the newest of the run, or the next to go: neither is what somebody wants. */
static sl_status check_unused(const char *folder, const char *run)
{
    sl_checkpoint *there = NULL;
    sl_status status = sl_checkpoint_open_newest(folder, &there);
    if (status == SL_OK && there)
        status = sl_fail(SL_ERR_ARGUMENT, "%s holds checkpoints: choose another folder", run);
    sl_checkpoint_close(there);
    return status;
}

static sl_status keep_tokenizer(const conversion *work, const char *run)
{
    sl_status status = SL_OK;
    const char *attribute = sl_checkpoint_attribute(work->from, "tokenizer");
    char *found = NULL;
    SL_TRY(sl_tokenizer_files_find(sl_checkpoint_path(work->from), attribute ? attribute : "", &found));
    if (attribute && strcmp(attribute, SL_TOKENIZER_OF_RUN) == 0 && *found)
        SL_TRY(sl_tokenizer_files_keep(found, run));
done:
    sl_free(found);
    return status;
}

static sl_status write_all(conversion *work, const char *run)
{
    sl_status status = SL_OK;
    char *folder = NULL;
    sl_checkpoint_part *parts = NULL;
    int count = work->pp * work->writers;
    SL_TRY(sl_path_join(run, "checkpoints", &folder));
    SL_TRY(check_unused(folder, run));
    SL_TRY(SL_NEW_ARRAY(parts, count));
    SL_TRY(sl_folder_make(folder));
    for (int i = 0; i < count; i++)
        SL_TRY(write_rank(work, folder, i / work->writers, i % work->writers, &parts[i]));
    SL_TRY(keep_tokenizer(work, run));
    SL_TRY(commit(work, folder, parts, count));
done:
    sl_free(parts);
    sl_free(folder);
    return status;
}

sl_status sl_train_convert(const char *path, const char *run, const sl_convert_options *options, char **written)
{
    sl_status status = SL_OK;
    conversion work = { .options = options };
    char *text = NULL;
    SL_TRY(sl_arena_create(&work.arena));
    SL_TRY(open_source(path, &work.from));
    SL_TRY(read_mesh(&work));
    SL_TRY(find_owners(&work));
    SL_TRY(write_all(&work, run));
    SL_TRY(sl_arena_printf(work.arena, &text, "%s/checkpoints/step-%08" PRId64, run, sl_checkpoint_step(work.from)));
    SL_TRY(sl_strdup(text, written));
done:
    sl_train_plan_destroy(work.plan);
    sl_train_config_destroy(work.config);
    sl_checkpoint_close(work.from);
    sl_arena_destroy(work.arena);
    return status;
}
