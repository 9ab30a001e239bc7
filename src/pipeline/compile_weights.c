/* Compiles UNSHARD, RESHARD, REDUCE_GRAD and its wait: gathered weights and a step's gradients lie in slots like activations do.
 * What is begun runs beside the actions that follow; it is awaited as late as it can be. */
#include "pipeline/compiler.h"

#include "base/alloc.h"

static sl_status emit(sl_compiler *c, sl_code code, int s, int32_t cell)
{
    return sl_compiler_emit(c, (sl_pipeline_instr){ .code = (uint8_t)code, .stage = s, .cell = cell, .from = -1 });
}

static int *held_of(const sl_compiler *c, int *table, int s)
{
    return &table[c->wiring->stages[s].local];
}

/* ---- Sizes of blocks ------------------------------------------------------------------------- */

/* How many stages have a block at once, at most. */
typedef struct block_peaks {
    int weights, grads;
} block_peaks;

static sl_status find_peaks(const sl_compiler *c, block_peaks *out)
{
    sl_status status = SL_OK;
    int64_t count = 0;
    const sl_action *actions = sl_schedule_actions(c->options->schedule, c->options->rank, &count);
    int weights = 0, grads = 0, reducing = 0;
    bool *started = NULL;
    block_peaks peaks = { 0, 0 };
    SL_TRY(SL_NEW_ARRAY(started, c->wiring->ranks[c->options->rank].stage_count));
    for (int64_t i = 0; i < count; i++) {
        sl_action parts[2];
        for (int p = 0, n = sl_action_parts(actions[i], parts); p < n; p++) {
            bool *own = &started[c->wiring->stages[parts[p].stage].local];
            bool starts = !*own && (parts[p].kind == SL_KIND_W || parts[p].kind == SL_KIND_B);
            *own |= starts;
            grads += starts;
        }
        weights += actions[i].kind == SL_KIND_UNSHARD;
        weights -= actions[i].kind == SL_KIND_RESHARD;
        if (actions[i].kind == SL_KIND_REDUCE_GRAD) { /* the one before ends first */
            grads -= reducing;
            reducing = 1;
        }
        peaks.weights = weights > peaks.weights ? weights : peaks.weights;
        peaks.grads = grads > peaks.grads ? grads : peaks.grads;
    }
    *out = peaks;
done:
    sl_free(started);
    return status;
}

/* One size for all stages if that takes less than a block for each size; else 0. */
static size_t choose_block(const size_t *bytes, int count, int peak)
{
    size_t apart = 0, largest = 0;
    for (int k = 0; k < count; k++) {
        int same = 0;
        for (int j = 0; j < k; j++)
            same += bytes[j] == bytes[k];
        apart += same < peak ? bytes[k] : 0; /* no more than `peak` stages of this size need a block at once */
        largest = bytes[k] > largest ? bytes[k] : largest;
    }
    return (size_t)peak * largest < apart ? largest : 0;
}

sl_status sl_compile_weights_begin(sl_compiler *c)
{
    sl_status status = SL_OK;
    const sl_wire_rank *rank = &c->wiring->ranks[c->options->rank];
    size_t *bytes = NULL;
    block_peaks peaks;
    if (c->wiring->shard != SL_SHARD_FULL)
        return SL_OK;
    SL_TRY(SL_NEW_ARRAY(bytes, rank->stage_count));
    SL_TRY(find_peaks(c, &peaks));
    for (int k = 0; k < rank->stage_count; k++)
        bytes[k] = c->wiring->stages[rank->stages[k]].weight_block_bytes;
    c->weight_block = choose_block(bytes, rank->stage_count, peaks.weights);
    for (int k = 0; k < rank->stage_count; k++)
        bytes[k] = c->wiring->stages[rank->stages[k]].grad_block_bytes;
    c->grad_block = choose_block(bytes, rank->stage_count, peaks.grads);
done:
    sl_free(bytes);
    return status;
}

/* ---- Weights --------------------------------------------------------------------------------- */

sl_status sl_compile_unshard(sl_compiler *c, int s)
{
    sl_status status = SL_OK;
    const sl_wire_stage *stage = &c->wiring->stages[s];
    int *held = held_of(c, c->weights, s);
    if (c->wiring->shard != SL_SHARD_FULL || *held != 0 || stage->weight_count == 0)
        return SL_OK;
    int32_t cell = sl_compiler_cell(c); /* of its own: another slot each time */
    SL_TRY(sl_compiler_hold_block(c, c->weight_block ? c->weight_block : stage->weight_block_bytes, cell, held));
    SL_TRY(emit(c, SL_CODE_UNSHARD, s, cell));
    c->gathering[stage->local] = true;
done:
    return status;
}

static sl_status await_weights(sl_compiler *c, int s)
{
    const sl_wire_stage *stage = &c->wiring->stages[s];
    if (!c->gathering[stage->local])
        return SL_OK;
    c->gathering[stage->local] = false;
    return emit(c, SL_CODE_AWAIT_WEIGHTS, s, c->held[c->weights[stage->local]].cell);
}

sl_status sl_compile_reshard(sl_compiler *c, int s)
{
    sl_status status = SL_OK;
    int *held = held_of(c, c->weights, s);
    if (*held == 0)
        return SL_OK;
    SL_TRY(await_weights(c, s));
    SL_TRY(emit(c, SL_CODE_RESHARD, s, -1));
    SL_TRY(sl_compiler_drop(c, held));
done:
    return status;
}

sl_status sl_compile_weights_ready(sl_compiler *c, int s, bool starts_grads)
{
    sl_status status = SL_OK;
    const sl_wire_stage *stage = &c->wiring->stages[s];
    if (c->wiring->shard != SL_SHARD_FULL || stage->weight_count == 0)
        return SL_OK;
    if (c->weights[stage->local] == 0)
        return sl_fail(SL_ERR_SCHEDULE,
                       "schedule: stage %d runs on rank %d while its weights are not gathered (UNSHARD)", s,
                       c->options->rank);
    SL_TRY(await_weights(c, s));
    if (!starts_grads || stage->grad_block_bytes == 0)
        return SL_OK;
    int32_t cell = sl_compiler_cell(c);
    SL_TRY(sl_compiler_hold_block(c, c->grad_block ? c->grad_block : stage->grad_block_bytes, cell,
                                  &c->weight_grads[stage->local]));
    SL_TRY(emit(c, SL_CODE_OPEN_GRADS, s, cell));
done:
    return status;
}

/* ---- Gradients ------------------------------------------------------------------------------- */

/* Ends the sum of the stage; if it has a block, that is free again. */
static sl_status await_grads(sl_compiler *c, int s)
{
    sl_status status = SL_OK;
    const sl_wire_stage *stage = &c->wiring->stages[s];
    int *held = held_of(c, c->weight_grads, s);
    if (!c->reducing[stage->local])
        return SL_OK;
    c->reducing[stage->local] = false;
    SL_TRY(emit(c, SL_CODE_AWAIT_GRADS, s, *held ? c->held[*held].cell : -1));
    SL_TRY(sl_compiler_drop(c, held));
done:
    return status;
}

static sl_status await_all_grads(sl_compiler *c)
{
    sl_status status = SL_OK;
    const sl_wire_rank *rank = &c->wiring->ranks[c->options->rank];
    for (int k = 0; k < rank->stage_count; k++)
        SL_TRY(await_grads(c, rank->stages[k]));
done:
    return status;
}

/* A sum that has a block ends before the next begins: no more than two stages' gradients take memory because of it. */
sl_status sl_compile_reduce_grad(sl_compiler *c, int s)
{
    sl_status status = SL_OK;
    bool full = c->wiring->shard == SL_SHARD_FULL;
    int held = *held_of(c, c->weight_grads, s);
    if (full ? held == 0 : c->wiring->replicas == 1)
        return SL_OK;
    if (full)
        SL_TRY(await_all_grads(c));
    SL_TRY(emit(c, SL_CODE_REDUCE_GRADS, s, held ? c->held[held].cell : -1));
    c->reducing[c->wiring->stages[s].local] = true;
done:
    return status;
}

sl_status sl_compile_wait_reduce_grad(sl_compiler *c, int s)
{
    return await_grads(c, s);
}

sl_status sl_compile_weights_end(sl_compiler *c)
{
    sl_status status = SL_OK;
    const sl_wire_rank *rank = &c->wiring->ranks[c->options->rank];
    SL_TRY(await_all_grads(c));
    for (int k = 0; k < rank->stage_count; k++) {
        if (c->weight_grads[k] != 0)
            SL_TRY(
                sl_fail(SL_ERR_SCHEDULE, "schedule: stage %d has sharded weights and no REDUCE_GRAD", rank->stages[k]));
        SL_TRY(sl_compile_reshard(c, rank->stages[k]));
    }
done:
    return status;
}
