/* The plan's proof: a walk through F and then I and W, or B, that knows for every storage whether its bytes are its
 * own. It shares no code with what made the plan. */
#include "graph/plan.h"

#include "base/alloc.h"

typedef struct verify_walk {
    const sl_lowering *lowering;
    const sl_program_plan *plan;
    bool *valid;                   /* by storage: written, and its memory not written by another since */
    const sl_instruction **beside; /* of the phase, those that run beside others, as far as they have been started */
    int beside_count;
    size_t region_bytes[SL_HOME_SCRATCH + 1];
} verify_walk;

static bool is_region(sl_home home)
{
    return home >= SL_HOME_SAVED_I;
}

/* Whether two places of storages overlap. Empty storages never do. */
static bool overlap(const sl_lowering *lowering, const sl_program_place *places, int a, int b)
{
    const sl_program_place *x = &places[a], *y = &places[b];
    size_t x_bytes = lowering->storages[a].bytes, y_bytes = lowering->storages[b].bytes;
    return x->home == y->home && x->index == y->index && x->offset < y->offset + y_bytes &&
           y->offset < x->offset + x_bytes;
}

static sl_status violation(const sl_instruction *step, int storage, const char *what)
{
    return sl_fail(SL_ERR_INTERNAL, "memory plan: %s of node %d in %s: storage %d %s", sl_op_name(step->op), step->node,
                   sl_phase_name(step->phase), storage, what);
}

/* The furthest element of the tensor must lie in the storage, and the storage in its region. */
static sl_status check_bounds(const verify_walk *walk, const sl_program_place *places, const sl_instruction *step,
                              const sl_operand *operand)
{
    int64_t end = operand->offset + 1;
    const sl_program_place *place = &places[operand->storage];
    size_t bytes = walk->lowering->storages[operand->storage].bytes;
    bool empty = false;
    for (int i = 0; i < operand->meta.shape.rank; i++) {
        end += (operand->meta.shape.dims[i] - 1) * operand->meta.strides[i];
        empty = empty || operand->meta.shape.dims[i] == 0;
    }
    if (place->home == SL_HOME_FREE)
        return violation(step, operand->storage, "has no place");
    if (!empty && (operand->offset < 0 || (size_t)end * sl_dtype_size(operand->meta.dtype) > bytes))
        return violation(step, operand->storage, "is too small");
    if (is_region(place->home) &&
        (place->offset % SL_DEVICE_ALIGNMENT != 0 || place->offset + bytes > walk->region_bytes[place->home]))
        return violation(step, operand->storage, "lies outside its region");
    return SL_OK;
}

static sl_status check_read(const verify_walk *walk, const sl_program_place *places, const sl_instruction *step,
                            const sl_operand *operand)
{
    if (operand->storage < 0)
        return SL_OK;
    sl_status status = check_bounds(walk, places, step, operand);
    if (status != SL_OK || walk->valid[operand->storage])
        return status;
    return violation(step, operand->storage, "is read but was not written, or was written over");
}

static sl_status check_write(verify_walk *walk, const sl_program_place *places, const sl_instruction *step, int output)
{
    const sl_operand *operand = &step->outputs[output];
    if (operand->storage < 0)
        return SL_OK;
    sl_status status = check_bounds(walk, places, step, operand);
    if (status != SL_OK)
        return status;
    sl_home home = places[operand->storage].home;
    if (home == SL_HOME_PARAM || home == SL_HOME_INPUT || home == SL_HOME_OUTPUT_GRAD || home == SL_HOME_CONSTANT)
        return violation(step, operand->storage, "is not to be written");
    for (int s = 0; s < walk->plan->storage_count; s++) {
        if (s != operand->storage && walk->valid[s] && overlap(walk->lowering, places, s, operand->storage))
            walk->valid[s] = false;
    }
    walk->valid[operand->storage] = true;
    return SL_OK;
}

/* An output may share memory with an input only exactly and if the op allows it, and never with another output. */
static sl_status check_sharing(const verify_walk *walk, const sl_program_place *places, const sl_instruction *step,
                               int output)
{
    const sl_operand *out = &step->outputs[output];
    if (out->storage < 0)
        return SL_OK;
    for (int k = 0; k < step->input_count; k++) {
        const sl_operand *in = &step->inputs[k];
        if (in->storage < 0 || !overlap(walk->lowering, places, in->storage, out->storage))
            continue;
        bool allowed =
            output == 0 && !(step->accumulate & 1u) && (sl_op_get_info(step->op)->inputs[k].flags & SL_ARG_INPLACE);
        if (!allowed || in->offset != out->offset || places[in->storage].offset != places[out->storage].offset ||
            !sl_meta_equal(&in->meta, &out->meta))
            return violation(step, out->storage, "is written while it is read");
    }
    for (int o = 0; o < output; o++) {
        int other = step->outputs[o].storage;
        if (other >= 0 && other != out->storage && overlap(walk->lowering, places, other, out->storage))
            return violation(step, out->storage, "shares memory with another output");
    }
    return SL_OK;
}

/* The kernel's own scratch may not touch any storage that is still valid and used, the step's own above all: whatever
 * it touches is no longer valid. */
static sl_status check_scratch(verify_walk *walk, const sl_program_place *places, const sl_instruction *step)
{
    size_t start = step->scratch_offset, end = start + step->scratch_bytes;
    if (step->scratch_bytes == 0)
        return SL_OK;
    if (start % SL_DEVICE_ALIGNMENT != 0 || end > walk->region_bytes[SL_HOME_SCRATCH])
        return violation(step, -1, "kernel scratch lies outside its region");
    for (int s = 0; s < walk->plan->storage_count; s++) {
        size_t bytes = walk->lowering->storages[s].bytes;
        if (places[s].home != SL_HOME_SCRATCH || places[s].offset >= end || start >= places[s].offset + bytes)
            continue;
        walk->valid[s] = false;
        for (int o = 0; o < step->output_count; o++) {
            if (step->outputs[o].storage == s)
                return violation(step, s, "shares memory with the kernel's scratch");
        }
    }
    return SL_OK;
}

static bool scratch_overlaps(const verify_walk *walk, const sl_program_place *places, const sl_instruction *step,
                             int storage)
{
    const sl_program_place *place = &places[storage];
    return place->home == SL_HOME_SCRATCH && place->offset < step->scratch_offset + step->scratch_bytes &&
           step->scratch_offset < place->offset + walk->lowering->storages[storage].bytes;
}

/* Whether what a step writes, its scratch included, touches the storage. */
static bool writes_to(const verify_walk *walk, const sl_program_place *places, const sl_instruction *step, int storage)
{
    if (storage < 0)
        return false;
    for (int o = 0; o < step->output_count; o++) {
        if (step->outputs[o].storage >= 0 && overlap(walk->lowering, places, step->outputs[o].storage, storage))
            return true;
    }
    return scratch_overlaps(walk, places, step, storage);
}

/* Neither of two steps that run at the same time writes what the other uses. */
static sl_status check_apart(const verify_walk *walk, const sl_program_place *places, const sl_instruction *step,
                             const sl_instruction *other)
{
    for (int k = 0; k < step->input_count; k++) {
        if (writes_to(walk, places, other, step->inputs[k].storage))
            return violation(step, step->inputs[k].storage, "is read while a step beside writes it");
    }
    for (int k = 0; k < other->input_count; k++) {
        if (writes_to(walk, places, step, other->inputs[k].storage))
            return violation(step, other->inputs[k].storage, "is written while a step beside reads it");
    }
    for (int o = 0; o < other->output_count; o++) {
        if (writes_to(walk, places, step, other->outputs[o].storage))
            return violation(step, other->outputs[o].storage, "is written while a step beside writes it");
    }
    for (int o = 0; o < step->output_count; o++) {
        int storage = step->outputs[o].storage;
        if (storage >= 0 && scratch_overlaps(walk, places, other, storage))
            return violation(step, storage, "is written while a step beside writes it");
    }
    if (step->scratch_bytes > 0 && other->scratch_bytes > 0 &&
        step->scratch_offset < other->scratch_offset + other->scratch_bytes &&
        other->scratch_offset < step->scratch_offset + step->scratch_bytes)
        return violation(step, -1, "kernel scratch is that of a step beside");
    return SL_OK;
}

/* Those beside run one after the other; all others run beside them. */
static sl_status check_beside(verify_walk *walk, const sl_program_place *places, const sl_instruction *step, bool last)
{
    sl_status status = SL_OK;
    if (step->awaits > walk->beside_count || (last && step->awaits < walk->beside_count))
        return violation(step, -1, "waits for too many or too few steps beside");
    for (int i = step->awaits; i < walk->beside_count && !step->beside; i++)
        SL_TRY(check_apart(walk, places, step, walk->beside[i]));
    if (step->beside)
        walk->beside[walk->beside_count++] = step;
done:
    return status;
}

static sl_status walk_phase(verify_walk *walk, sl_phase phase, const sl_program_place *places)
{
    sl_status status = SL_OK;
    const sl_program_plan *plan = walk->plan;
    walk->region_bytes[SL_HOME_SCRATCH] = plan->scratch_bytes[phase];
    for (int s = 0; s < plan->storage_count; s++) {
        if (places[s].home == SL_HOME_SCRATCH)
            walk->valid[s] = false; /* dead between calls */
    }
    walk->beside_count = 0;
    for (int i = 0; i < plan->phases[phase].count; i++) {
        const sl_instruction *step = &plan->phases[phase].items[i];
        SL_TRY(check_beside(walk, places, step, i == plan->phases[phase].count - 1));
        SL_TRY(check_scratch(walk, places, step));
        for (int k = 0; k < step->input_count; k++)
            SL_TRY(check_read(walk, places, step, &step->inputs[k]));
        for (int o = 0; o < step->output_count; o++) {
            int prior = step->priors[o].storage;
            if (step->accumulate >> o & 1u) { /* adds to what is there: its own, or that of the sum so far */
                int from = prior >= 0 && !walk->valid[step->outputs[o].storage] ? prior : step->outputs[o].storage;
                if (!walk->valid[from] ||
                    (from == prior && places[from].offset != places[step->outputs[o].storage].offset)) {
                    status = violation(step, from, "is added to but was not written, or was written over");
                    goto done;
                }
            }
        }
        for (int o = 0; o < step->output_count; o++) {
            SL_TRY(check_sharing(walk, places, step, o));
            SL_TRY(check_write(walk, places, step, o));
        }
    }
done:
    return status;
}

/* Ports that hold something before F: all but those that programs write. */
static void mark_given(verify_walk *walk)
{
    for (int s = 0; s < walk->plan->storage_count; s++) {
        sl_home home = walk->lowering->storages[s].home;
        walk->valid[s] = home == SL_HOME_PARAM || home == SL_HOME_GRAD || home == SL_HOME_INPUT ||
                         home == SL_HOME_OUTPUT_GRAD || home == SL_HOME_STATE || home == SL_HOME_CONSTANT;
    }
}

sl_status sl_program_plan_verify(const sl_lowering *lowering, const sl_program_plan *plan)
{
    sl_status status = SL_OK;
    verify_walk walk = { .lowering = lowering, .plan = plan };
    walk.region_bytes[SL_HOME_SAVED_I] = plan->saved_i_bytes;
    walk.region_bytes[SL_HOME_SAVED_W] = plan->saved_w_bytes;
    walk.region_bytes[SL_HOME_KEPT] = plan->kept_bytes;
    SL_TRY(SL_NEW_ARRAY(walk.valid, plan->storage_count));
    SL_TRY(SL_NEW_ARRAY(walk.beside, plan->phases[SL_PHASE_B].count));
    mark_given(&walk);
    SL_TRY(walk_phase(&walk, SL_PHASE_F, plan->split));
    SL_TRY(walk_phase(&walk, SL_PHASE_I, plan->split));
    for (int s = 0; s < plan->storage_count; s++) {
        if (plan->split[s].home == SL_HOME_SAVED_I)
            walk.valid[s] = false; /* given back after I */
    }
    SL_TRY(walk_phase(&walk, SL_PHASE_W, plan->split));
    mark_given(&walk);
    SL_TRY(walk_phase(&walk, SL_PHASE_F, plan->split));
    SL_TRY(walk_phase(&walk, SL_PHASE_B, plan->whole));
done:
    sl_free(walk.valid);
    sl_free(walk.beside);
    return status;
}
