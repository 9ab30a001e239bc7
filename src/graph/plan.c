/* From two timelines to regions, offsets and the instruction lists of the phases. */
#include "graph/plan.h"

#include "base/alloc.h"
#include "graph/pack.h"
#include "graph/timeline.h"

static size_t aligned(size_t bytes)
{
    return (bytes + SL_DEVICE_ALIGNMENT - 1) & ~(size_t)(SL_DEVICE_ALIGNMENT - 1);
}

sl_kernel_call sl_instruction_call(const sl_instruction *step, sl_view *views)
{
    sl_view *inputs = views, *outputs = views + step->input_count;
    for (int i = 0; i < step->input_count; i++)
        inputs[i] = (sl_view){ NULL, step->inputs[i].meta };
    for (int i = 0; i < step->output_count; i++)
        outputs[i] = (sl_view){ NULL, step->outputs[i].meta };
    return (sl_kernel_call){ .op = step->op,
                             .attrs = step->attrs,
                             .inputs = inputs,
                             .input_count = step->input_count,
                             .outputs = outputs,
                             .output_count = step->output_count,
                             .accumulate = step->accumulate };
}

/* ---- Instructions ---------------------------------------------------------------------------- */

static sl_status append_step(sl_device *device, sl_instruction step, sl_instruction_list *list)
{
    sl_status status = SL_OK;
    sl_view views[SL_OP_INPUTS + SL_OP_OUTPUTS];
    sl_kernel_call call = sl_instruction_call(&step, views);
    size_t overwriting = 0;
    SL_TRY(sl_kernel_scratch(device, &call, &step.scratch_bytes));
    call.accumulate = 0; /* if gradients are overwritten */
    SL_TRY(sl_kernel_scratch(device, &call, &overwriting));
    step.scratch_bytes = overwriting > step.scratch_bytes ? overwriting : step.scratch_bytes;
    SL_TRY(sl_instruction_append(list, &step));
done:
    return status;
}

/* A copy between tensors that share memory. */
static bool copies_to_itself(const sl_program_timeline *t, const sl_instruction *step)
{
    return step->op == SL_OP_COPY && step->accumulate == 0 &&
           sl_program_timeline_root(t, step->inputs[0].storage) ==
               sl_program_timeline_root(t, step->outputs[0].storage) &&
           step->inputs[0].offset == step->outputs[0].offset &&
           sl_meta_equal(&step->inputs[0].meta, &step->outputs[0].meta);
}

/* Copies the steps start..end of the timeline, with the copies that priors need before them. */
static sl_status list_phase(const sl_program_timeline *t, int start, int end, sl_device *device,
                            sl_instruction_list *list)
{
    sl_status status = SL_OK;
    for (int i = start; i < end; i++) {
        const sl_instruction *step = t->steps[i];
        for (int o = 0; o < step->output_count; o++) {
            const sl_instruction copy = { .op = SL_OP_COPY,
                                          .node = step->node,
                                          .phase = step->phase,
                                          .inputs = { step->priors[o] },
                                          .input_count = 1,
                                          .outputs = { step->wholes[o] },
                                          .output_count = 1,
                                          .priors = { sl_operand_none() },
                                          .time = i,
                                          .until = i,
                                          .awaits = t->awaits[i] };
            if (t->copies[i] >> o & 1u)
                SL_TRY(append_step(device, copy, list));
        }
        sl_instruction timed = *step;
        timed.time = i;
        timed.until = t->until[i];
        timed.beside = t->beside[i];
        timed.awaits = t->awaits[i];
        timed.is_done = copies_to_itself(t, step);
        SL_TRY(append_step(device, timed, list));
    }
done:
    return status;
}

/* Finds the instructions that write parameters' gradients first, and the parameters that have none that writes all of
 * it: unused ones, and those written through views. */
static sl_status find_starts(const sl_lowering *lowering, sl_program_plan *plan, sl_phase phase)
{
    sl_status status = SL_OK;
    sl_instruction_list *list = &plan->phases[phase];
    int params = lowering->part->param_count;
    bool *seen = NULL, *started = NULL;
    SL_TRY(SL_NEW_ARRAY(seen, params));
    SL_TRY(SL_NEW_ARRAY(started, params));
    SL_TRY(SL_NEW_ARRAY(plan->unstarted[phase], params));
    for (int i = 0; i < list->count; i++) {
        sl_instruction *step = &list->items[i];
        for (int o = 0; o < step->output_count; o++) {
            const sl_storage *storage =
                &lowering->storages[step->outputs[o].storage < 0 ? 0 : step->outputs[o].storage];
            if (step->outputs[o].storage < 0 || storage->home != SL_HOME_GRAD || seen[storage->index])
                continue;
            seen[storage->index] = true;
            if (sl_meta_bytes(&step->outputs[o].meta) == storage->bytes) {
                for (int p = storage->index; p <= storage->index + storage->more; p++)
                    started[p] = true;
                step->starts |= 1u << o;
            }
        }
    }
    for (int p = 0; p < params; p++) {
        if (!started[p] && lowering->graph->values[lowering->part->params[p]].requires_grad) /* it is not frozen */
            plan->unstarted[phase][plan->unstarted_count[phase]++] = p;
    }
done:
    sl_free(seen);
    sl_free(started);
    return status;
}

/* ---- Places ---------------------------------------------------------------------------------- */

/* The region that a set belongs to in the split sequence. */
static sl_home region_of(const sl_program_timeline *t, int root)
{
    sl_phase first = sl_program_timeline_phase(t, t->first[root]), last = sl_program_timeline_phase(t, t->last[root]);
    if (first == last)
        return SL_HOME_SCRATCH;
    if (first == SL_PHASE_F)
        return last == SL_PHASE_I ? SL_HOME_SAVED_I : SL_HOME_SAVED_W;
    return SL_HOME_KEPT;
}

/* Offsets for the sets that live in the scratch of the phase of `list` and for the kernels' own scratch. */
static sl_status pack_scratch(const sl_program_timeline *t, sl_phase phase, sl_instruction_list *list,
                              sl_program_place *places, size_t *total)
{
    sl_status status = SL_OK;
    int storages = t->lowering->storage_count, count = 0, *root = NULL;
    sl_block *blocks = NULL;
    SL_TRY(SL_NEW_ARRAY(blocks, storages + list->count));
    SL_TRY(SL_NEW_ARRAY(root, storages + 1));
    for (int s = 0; s < storages; s++) {
        if (t->parent[s] != s || t->last[s] < 0 || t->home[s] != SL_HOME_FREE || places[s].home != SL_HOME_FREE ||
            region_of(t, s) != SL_HOME_SCRATCH || sl_program_timeline_phase(t, t->first[s]) != phase)
            continue;
        root[count] = s;
        blocks[count++] = (sl_block){ t->first[s], t->last[s], t->lowering->storages[s].bytes, 0 };
    }
    for (int i = 0; i < list->count; i++)
        blocks[count + i] = (sl_block){ list->items[i].time, list->items[i].until, list->items[i].scratch_bytes, 0 };
    SL_TRY(sl_pack_blocks(blocks, count + list->count, SL_DEVICE_ALIGNMENT, total));
    for (int i = 0; i < count; i++)
        places[root[i]] = (sl_program_place){ SL_HOME_SCRATCH, 0, blocks[i].offset };
    for (int i = 0; i < list->count; i++)
        list->items[i].scratch_offset = blocks[count + i].offset;
done:
    sl_free(blocks);
    sl_free(root);
    return status;
}

/* All sets of these regions are needed at once, at the border between two phases: one after another. */
static void place_saved(const sl_program_timeline *t, sl_program_plan *plan)
{
    for (int s = 0; s < plan->storage_count; s++) {
        if (t->parent[s] != s || t->last[s] < 0 || t->home[s] != SL_HOME_FREE)
            continue;
        sl_home home = region_of(t, s);
        size_t *used = home == SL_HOME_SAVED_I   ? &plan->saved_i_bytes
                       : home == SL_HOME_SAVED_W ? &plan->saved_w_bytes
                       : home == SL_HOME_KEPT    ? &plan->kept_bytes
                                                 : NULL;
        if (!used)
            continue;
        plan->split[s] = (sl_program_place){ home, 0, *used };
        *used += aligned(t->lowering->storages[s].bytes);
    }
}

/* Every storage gets the place of its set; those of ports lie there. */
static void spread(const sl_program_timeline *t, sl_program_place *places)
{
    int storages = t->lowering->storage_count;
    for (int s = 0; s < storages; s++) {
        if (t->parent[s] == s && t->home[s] != SL_HOME_FREE)
            places[s] = (sl_program_place){ t->home[s], t->index[s], 0 };
    }
    for (int s = 0; s < storages; s++)
        places[s] = places[sl_program_timeline_root(t, s)];
}

static sl_status plan_split(const sl_lowering *lowering, sl_device *device, sl_program_plan *plan)
{
    sl_status status = SL_OK;
    sl_program_timeline t = { 0 };
    SL_TRY(sl_program_timeline_make(lowering, true, &t));
    int starts[] = { 0, t.forward_count, t.forward_count + t.i_count, t.count };
    for (int p = SL_PHASE_F; p <= SL_PHASE_W; p++)
        SL_TRY(list_phase(&t, starts[p], starts[p + 1], device, &plan->phases[p]));
    place_saved(&t, plan);
    for (int p = SL_PHASE_F; p <= SL_PHASE_W; p++)
        SL_TRY(pack_scratch(&t, (sl_phase)p, &plan->phases[p], plan->split, &plan->scratch_bytes[p]));
    spread(&t, plan->split);
    for (int s = 0; s < plan->storage_count; s++) {
        int last = t.last[s]; /* of the storage itself: ports never give up their memory */
        plan->last_use[s] = last < 0 ? SL_PHASE_F : sl_program_timeline_phase(&t, last);
    }
done:
    sl_program_timeline_clear(&t);
    return status;
}

/* B after the same F: what F writes stays where the split sequence has it. */
static sl_status plan_whole(const sl_lowering *lowering, sl_device *device, sl_program_plan *plan)
{
    sl_status status = SL_OK;
    sl_program_timeline t = { 0 };
    sl_instruction_list *list = &plan->phases[SL_PHASE_B];
    SL_TRY(sl_program_timeline_make(lowering, false, &t));
    SL_TRY(list_phase(&t, t.forward_count, t.count, device, list));
    for (int i = 0; i < t.forward_count; i++) {
        for (int o = 0; o < t.steps[i]->output_count; o++) {
            int storage = t.steps[i]->outputs[o].storage;
            plan->whole[sl_program_timeline_root(&t, storage)] = plan->split[storage];
        }
    }
    SL_TRY(pack_scratch(&t, SL_PHASE_I, list, plan->whole, &plan->scratch_bytes[SL_PHASE_B]));
    spread(&t, plan->whole);
done:
    sl_program_timeline_clear(&t);
    return status;
}

sl_status sl_program_plan_make(const sl_lowering *lowering, sl_device *device, sl_program_plan *out)
{
    sl_status status = SL_OK;
    out->storage_count = lowering->storage_count;
    SL_TRY(SL_NEW_ARRAY(out->split, lowering->storage_count));
    SL_TRY(SL_NEW_ARRAY(out->whole, lowering->storage_count));
    SL_TRY(SL_NEW_ARRAY(out->last_use, lowering->storage_count));
    SL_TRY(plan_split(lowering, device, out));
    SL_TRY(plan_whole(lowering, device, out));
    SL_TRY(find_starts(lowering, out, SL_PHASE_W));
    SL_TRY(find_starts(lowering, out, SL_PHASE_B));
    SL_TRY(sl_program_plan_verify(lowering, out));
done:
    return status;
}

void sl_program_plan_clear(sl_program_plan *plan)
{
    for (int p = 0; p < SL_PHASE_COUNT; p++) {
        sl_free(plan->phases[p].items);
        sl_free(plan->unstarted[p]);
    }
    sl_free(plan->split);
    sl_free(plan->whole);
    sl_free(plan->last_use);
    sl_free(plan->packs);
    *plan = (sl_program_plan){ 0 };
}
