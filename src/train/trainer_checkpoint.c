/* Checkpoints of a run: each rank writes its part beside the training, and tells the others with the note that goes
 * around after every step; rank 0 writes the manifest once all parts are there. */
#include "train/trainer.h"

#include "base/alloc.h"
#include "base/file.h"
#include "train/attributes.h"

#include <stdio.h>
#include <string.h>

/* ---- What a part holds ----------------------------------------------------------------------- */

/* Names of a state tensor: "optimizer.exp_avg.transformer.wte.weight". */
static size_t state_name(const sl_optim_state *state, char *text, size_t size)
{
    return (size_t)snprintf(text, size, "optimizer.%s.%s", state->kind, state->param) + 1;
}

/* The rank writes what it updates of a parameter and of its state, as the runtime's sharding has it. */
static void add_entry(sl_trainer *trainer, const char *name, const trainer_param *param, const sl_view *view)
{
    const sl_param *whole = param->param;
    const sl_sharding *sharding = whole->shardings.updated;
    const sl_shard *own = &sharding->shards[sl_sharding_find(sharding, trainer->dp_rank)];
    sl_tensor_entry entry = { .name = name,
                              .dtype = view->meta.dtype,
                              .shape = whole->shape,
                              .count = sl_meta_count(&view->meta),
                              .data = view->data,
                              .bytes = sl_meta_bytes(&view->meta) };
    if (!param->counted || entry.count == 0)
        return;
    if (entry.count < sharding->size.dims[0]) { /* a part: a range of the elements */
        entry.whole = whole->shape;
        entry.shape = own->size;
        memcpy(entry.offsets, own->offsets, sizeof entry.offsets);
    }
    trainer->entries[trainer->entry_count++] = entry;
}

static sl_status list_entries(sl_trainer *trainer)
{
    sl_status status = SL_OK;
    int states = sl_optimizer_state_count(trainer->optimizer);
    size_t name_bytes = 0;
    for (int i = 0; i < states; i++) {
        sl_optim_state state = sl_optimizer_state_at(trainer->optimizer, i);
        name_bytes += state_name(&state, NULL, 0);
    }
    SL_TRY(SL_NEW_ARRAY(trainer->entries, trainer->param_count + states));
    SL_TRY(SL_NEW_ARRAY(trainer->entry_names, name_bytes + 1));
    for (int i = 0; i < trainer->param_count; i++) {
        const sl_view weight = sl_trainer_weight(trainer, i);
        add_entry(trainer, trainer->params[i].name, &trainer->params[i], &weight);
    }
    char *name = trainer->entry_names;
    for (int i = 0; i < states; i++) {
        sl_optim_state state = sl_optimizer_state_at(trainer->optimizer, i);
        size_t used = state_name(&state, name, name_bytes);
        add_entry(trainer, name, sl_trainer_find(trainer, state.param), &state.view);
        name += used;
        name_bytes -= used;
    }
done:
    return status;
}

sl_status sl_trainer_open_writer(sl_trainer *trainer)
{
    sl_status status = SL_OK;
    SL_TRY(sl_path_join(trainer->plan->config->run.out, "checkpoints", &trainer->checkpoints));
    int writers = trainer->plan->shard_group; /* of the replicas: the others hold the same */
    if (trainer->dp_rank >= writers)
        return SL_OK;
    SL_TRY(list_entries(trainer));
    SL_TRY(sl_checkpoint_writer_create(trainer->checkpoints, trainer->pp_rank * writers + trainer->dp_rank,
                                       &trainer->writer));
done:
    return status;
}

/* ---- Notes ----------------------------------------------------------------------------------- */

static double memory_of(const sl_trainer *trainer)
{
    double bytes = (double)sl_device_get_memory(trainer->device).peak;
    bytes += (double)sl_runtime_get_memory(trainer->runtime).messages;
    if (trainer->pending >= 0 || trainer->committed >= 0) {
        for (int i = 0; i < trainer->entry_count; i++)
            bytes += (double)trainer->entries[i].bytes; /* the snapshot */
    }
    return bytes;
}

static sl_status send_note(sl_trainer *trainer, const sl_checkpoint_part *part, bool stop)
{
    rank_note note = { .part = *part, .memory = memory_of(trainer), .writer = trainer->writer != NULL, .stop = stop };
    return sl_group_all_gather(trainer->world, &note, sizeof note, trainer->notes);
}

/* Whether every part of the pending checkpoint is on disk, as the last notes say. */
static bool all_done(const sl_trainer *trainer)
{
    for (int r = 0; r < sl_group_size(trainer->world); r++) {
        const rank_note *note = &trainer->notes[r];
        if (note->writer && (note->part.step != trainer->pending || !note->part.done))
            return false;
    }
    return true;
}

static sl_status commit(sl_trainer *trainer)
{
    sl_status status = SL_OK;
    sl_checkpoint_part *parts = NULL;
    sl_attributes attributes = { 0 };
    int count = 0, size = sl_group_size(trainer->world);
    if (sl_group_rank(trainer->world) != 0)
        return SL_OK;
    SL_TRY(SL_NEW_ARRAY(parts, size));
    for (int r = 0; r < size; r++) {
        if (trainer->notes[r].writer)
            parts[count++] = trainer->notes[r].part;
    }
    sl_checkpoint_writer_protect(trainer->writer, trainer->best);
    SL_TRY(sl_attributes_make(trainer->plan, trainer->data_hash, &attributes));
    SL_TRY(sl_checkpoint_writer_commit(trainer->writer, parts, count, (int)trainer->plan->config->checkpoint.keep,
                                       attributes.pairs));
done:
    sl_attributes_free(&attributes);
    sl_free(parts);
    return status;
}

static sl_status commit_if_done(sl_trainer *trainer)
{
    if (trainer->pending < 0 || !all_done(trainer))
        return SL_OK;
    sl_status status = commit(trainer);
    if (status == SL_OK) {
        trainer->committed = trainer->pending;
        trainer->pending = -1;
    }
    return status;
}

sl_status sl_trainer_exchange(sl_trainer *trainer, bool stop)
{
    sl_status status = SL_OK;
    sl_checkpoint_part part = { .step = -1 };
    if (trainer->writer)
        SL_TRY(sl_checkpoint_writer_poll(trainer->writer, &part));
    SL_TRY(send_note(trainer, &part, stop));
    SL_TRY(commit_if_done(trainer));
done:
    return status;
}

/* ---- Begin and finish ------------------------------------------------------------------------ */

/* Waits for this rank's part, hears that all others have theirs, commits. */
static sl_status complete_pending(sl_trainer *trainer)
{
    sl_status status = SL_OK;
    sl_checkpoint_part part = { .step = -1 };
    if (trainer->pending < 0)
        return SL_OK;
    if (trainer->writer)
        SL_TRY(sl_checkpoint_writer_wait(trainer->writer, &part));
    SL_TRY(send_note(trainer, &part, false));
    SL_TRY(commit_if_done(trainer));
done:
    return status;
}

sl_status sl_trainer_begin_checkpoint(sl_trainer *trainer)
{
    sl_status status = SL_OK;
    SL_TRY(complete_pending(trainer));
    if (trainer->writer)
        SL_TRY(sl_checkpoint_writer_begin_after(trainer->writer, trainer->step, trainer->entries, trainer->entry_count,
                                                sl_runtime_stream(trainer->runtime)));
    trainer->pending = trainer->step;
done:
    return status;
}

sl_status sl_trainer_finish_checkpoint(sl_trainer *trainer)
{
    sl_status status = SL_OK;
    SL_TRY(complete_pending(trainer));
    if (trainer->writer)
        SL_TRY(sl_checkpoint_writer_wait(trainer->writer, NULL)); /* for the manifest */
    SL_TRY(sl_group_barrier(trainer->world));
done:
    return status;
}
