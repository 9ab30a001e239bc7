/* When storages are needed, and which of them can share memory: results that take over the memory of an argument, sums
 * that go on where their first term lies. */
#include "graph/timeline.h"

#include "base/alloc.h"

int sl_program_timeline_root(const sl_program_timeline *timeline, int storage)
{
    while (timeline->parent[storage] != storage)
        storage = timeline->parent[storage];
    return storage;
}

sl_phase sl_program_timeline_phase(const sl_program_timeline *timeline, int step)
{
    if (step < timeline->forward_count)
        return SL_PHASE_F;
    return step < timeline->forward_count + timeline->i_count ? SL_PHASE_I : SL_PHASE_W;
}

static sl_status order_steps(sl_program_timeline *t, bool split)
{
    const sl_instruction_list *forward = &t->lowering->forward, *backward = &t->lowering->backward;
    if (!split && t->lowering->whole.count > 0)
        backward = &t->lowering->whole;
    sl_status status = SL_NEW_ARRAY(t->steps, forward->count + backward->count);
    if (status != SL_OK)
        return status;
    for (int i = 0; i < forward->count; i++)
        t->steps[t->count++] = &forward->items[i];
    t->forward_count = t->count;
    for (int i = 0; i < backward->count; i++) {
        if (!split || backward->items[i].phase == SL_PHASE_I)
            t->steps[t->count++] = &backward->items[i];
    }
    t->i_count = t->count - t->forward_count;
    for (int i = 0; i < backward->count && split; i++) {
        if (backward->items[i].phase == SL_PHASE_W)
            t->steps[t->count++] = &backward->items[i];
    }
    return SL_OK;
}

static void note_use(sl_program_timeline *t, int storage, int step)
{
    if (storage < 0)
        return;
    if (t->last[storage] < 0)
        t->first[storage] = step;
    t->last[storage] = step;
    t->from_forward[storage] = t->from_forward[storage] || step < t->forward_count;
}

static void note_uses(sl_program_timeline *t)
{
    for (int i = 0; i < t->lowering->storage_count; i++) {
        t->parent[i] = i;
        t->last[i] = -1;
        t->home[i] = t->lowering->storages[i].home;
        t->index[i] = t->lowering->storages[i].index;
    }
    for (int i = 0; i < t->count; i++) {
        const sl_instruction *step = t->steps[i];
        for (int k = 0; k < step->input_count; k++)
            note_use(t, step->inputs[k].storage, i);
        for (int o = 0; o < step->output_count; o++) {
            note_use(t, step->outputs[o].storage, i);
            note_use(t, step->priors[o].storage, i);
        }
    }
}

/* How many of the step's operands lie in the set: more than one is no place to write over. */
static int operands_in(const sl_program_timeline *t, const sl_instruction *step, int root)
{
    int count = 0;
    for (int k = 0; k < step->input_count; k++)
        count += step->inputs[k].storage >= 0 && sl_program_timeline_root(t, step->inputs[k].storage) == root;
    for (int o = 0; o < step->output_count; o++) {
        count += step->outputs[o].storage >= 0 && sl_program_timeline_root(t, step->outputs[o].storage) == root;
        count += step->priors[o].storage >= 0 && sl_program_timeline_root(t, step->priors[o].storage) == root;
    }
    return count;
}

/* Whether the result, which starts at this step, may lie where the argument lies, which ends at it. */
static bool can_take_over(const sl_program_timeline *t, int step, const sl_operand *from, const sl_operand *to)
{
    if (from->storage < 0 || to->storage < 0 || !sl_operand_fills(t->lowering, from) ||
        !sl_operand_fills(t->lowering, to) || !sl_meta_equal(&from->meta, &to->meta))
        return false;
    int old = sl_program_timeline_root(t, from->storage), fresh = sl_program_timeline_root(t, to->storage);
    if (old == fresh || t->home[old] != SL_HOME_FREE || t->last[old] != step || t->first[fresh] != step ||
        operands_in(t, t->steps[step], old) != 1)
        return false;
    switch (t->home[fresh]) {
    case SL_HOME_FREE:
        return true;
    case SL_HOME_OUTPUT: /* F's own buffer, there from the start of F */
        return step < t->forward_count;
    case SL_HOME_INPUT_GRAD: /* there from the start of I */
        return !t->from_forward[old];
    default:
        return false;
    }
}

static void join(sl_program_timeline *t, int a, int b)
{
    int old = sl_program_timeline_root(t, a), fresh = sl_program_timeline_root(t, b);
    t->parent[old] = fresh;
    t->first[fresh] = t->first[old];
    t->from_forward[fresh] = t->from_forward[fresh] || t->from_forward[old];
}

/* A sum that starts from a tensor elsewhere goes on in that tensor's memory, or in a copy. */
static void join_priors(sl_program_timeline *t, int i)
{
    const sl_instruction *step = t->steps[i];
    for (int o = 0; o < step->output_count; o++) {
        if (step->priors[o].storage < 0)
            continue;
        if (can_take_over(t, i, &step->priors[o], &step->wholes[o]))
            join(t, step->priors[o].storage, step->wholes[o].storage);
        else
            t->copies[i] |= 1u << o;
    }
}

/* Output 0 takes the memory of an argument that nobody needs any more. Of several the one is best that has to stay in
 * memory as long as the result anyway: what F saved if W needs the result, else what I made. */
static void join_in_place(sl_program_timeline *t, int i)
{
    const sl_instruction *step = t->steps[i];
    const sl_op_arg *args = sl_op_get_info(step->op)->inputs;
    int chosen = -1;
    if ((step->accumulate & 1u) || step->output_count == 0 || step->outputs[0].storage < 0)
        return;
    bool late =
        sl_program_timeline_phase(t, t->last[sl_program_timeline_root(t, step->outputs[0].storage)]) == SL_PHASE_W;
    for (int k = 0; k < step->input_count; k++) {
        if (!(args[k].flags & SL_ARG_INPLACE) || !can_take_over(t, i, &step->inputs[k], &step->outputs[0]))
            continue;
        bool saved = t->from_forward[sl_program_timeline_root(t, step->inputs[k].storage)];
        if (chosen < 0 || saved == late)
            chosen = k;
    }
    if (chosen >= 0)
        join(t, step->inputs[chosen].storage, step->outputs[0].storage);
}

sl_status sl_program_timeline_make(const sl_lowering *lowering, bool split, sl_program_timeline *out)
{
    sl_status status = SL_OK;
    int storages = lowering->storage_count;
    sl_program_timeline *t = out;
    *t = (sl_program_timeline){ .lowering = lowering };
    SL_TRY(order_steps(t, split));
    SL_TRY(SL_NEW_ARRAY(t->parent, storages));
    SL_TRY(SL_NEW_ARRAY(t->first, storages));
    SL_TRY(SL_NEW_ARRAY(t->last, storages));
    SL_TRY(SL_NEW_ARRAY(t->from_forward, storages));
    SL_TRY(SL_NEW_ARRAY(t->home, storages));
    SL_TRY(SL_NEW_ARRAY(t->index, storages));
    SL_TRY(SL_NEW_ARRAY(t->copies, t->count));
    SL_TRY(SL_NEW_ARRAY(t->beside, t->count));
    SL_TRY(SL_NEW_ARRAY(t->until, t->count));
    SL_TRY(SL_NEW_ARRAY(t->awaits, t->count));
    note_uses(t);
    for (int i = 0; i < t->count; i++)
        t->until[i] = i;
    if (!split && lowering->beside_flops > 0)
        SL_TRY(sl_program_timeline_find_beside(t));
    for (int i = 0; i < t->count; i++) {
        join_priors(t, i);
        join_in_place(t, i);
    }
done:
    return status;
}

void sl_program_timeline_clear(sl_program_timeline *timeline)
{
    sl_free(timeline->steps);
    sl_free(timeline->parent);
    sl_free(timeline->first);
    sl_free(timeline->last);
    sl_free(timeline->from_forward);
    sl_free(timeline->home);
    sl_free(timeline->index);
    sl_free(timeline->copies);
    sl_free(timeline->beside);
    sl_free(timeline->until);
    sl_free(timeline->awaits);
    *timeline = (sl_program_timeline){ 0 };
}
