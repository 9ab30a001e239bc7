/* Steps of B that can run beside others: gradients of weights, which nothing in B reads. They run one after the other, and
 * each must be done before a step that writes what it reads. */
#include "graph/program.h"
#include "graph/timeline.h"

#include "base/alloc.h"

/* So many are behind at most, and each for so many steps: more would keep more in memory. */
enum { MOST_AT_ONCE = 4, MOST_STEPS = 16 };
_Static_assert(MOST_AT_ONCE < SL_BESIDE_EVENTS, "an event is used again only after it has been waited for");

static bool is_weight_grad(const sl_program_timeline *t, int i)
{
    const sl_instruction *step = t->steps[i];
    return step->op == SL_OP_LINEAR_GRAD_W && step->priors[0].storage < 0 &&
           t->home[step->outputs[0].storage] == SL_HOME_GRAD &&
           sl_instruction_cost(step).flops >= t->lowering->beside_flops;
}

static void mark(const sl_operand *operands, int count, bool *storages)
{
    for (int i = 0; i < count; i++) {
        if (operands[i].storage >= 0)
            storages[operands[i].storage] = true;
    }
}

/* Those whose result no step of another kind touches. The last step is none: it waits for all of them. */
static sl_status find_steps(sl_program_timeline *t)
{
    bool *touched = NULL;
    sl_status status = SL_NEW_ARRAY(touched, t->lowering->storage_count);
    if (status != SL_OK)
        return status;
    for (int i = t->forward_count; i < t->count; i++) {
        const sl_instruction *step = t->steps[i];
        if (is_weight_grad(t, i) && i < t->count - 1)
            continue;
        mark(step->inputs, step->input_count, touched);
        mark(step->outputs, step->output_count, touched);
        mark(step->priors, step->output_count, touched);
    }
    for (int i = t->forward_count; i < t->count - 1; i++)
        t->beside[i] = is_weight_grad(t, i) && !touched[t->steps[i]->outputs[0].storage];
    sl_free(touched);
    return SL_OK;
}

/* Whether a step writes what another reads. A sum that goes on in the memory of its first term writes to that. */
static bool writes_input(const sl_instruction *step, const sl_instruction *reader)
{
    for (int o = 0; o < step->output_count; o++) {
        for (int k = 0; k < reader->input_count; k++) {
            int storage = reader->inputs[k].storage;
            if (storage >= 0 && (step->outputs[o].storage == storage || step->priors[o].storage == storage))
                return true;
        }
    }
    return false;
}

static int find_end(const sl_program_timeline *t, int i)
{
    int end = i + 1, others = t->beside[end];
    while (end < t->count - 1 && end < i + MOST_STEPS && others < MOST_AT_ONCE &&
           !writes_input(t->steps[end], t->steps[i]))
        others += t->beside[++end];
    return end;
}

sl_status sl_program_timeline_find_beside(sl_program_timeline *t)
{
    int started = 0;
    sl_status status = find_steps(t);
    for (int i = t->forward_count; i < t->count && status == SL_OK; i++) {
        if (i > t->forward_count && t->awaits[i - 1] > t->awaits[i])
            t->awaits[i] = t->awaits[i - 1];
        if (!t->beside[i])
            continue;
        int end = find_end(t, i);
        t->until[i] = end;
        started++;
        if (t->awaits[end] < started)
            t->awaits[end] = started;
        for (int k = 0; k < t->steps[i]->input_count; k++) {
            int storage = t->steps[i]->inputs[k].storage;
            if (storage >= 0 && t->last[storage] < end)
                t->last[storage] = end;
        }
    }
    return status;
}
