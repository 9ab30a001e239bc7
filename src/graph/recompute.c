/* Recomputation: what the modules' gradients need of their own forward is not saved by F but computed again in I, just
 * before the first of these gradients. The same kernels on the same arguments give the same bits. */
#include "graph/lower.h"

#include "base/alloc.h"

#include <string.h>

/* Work on one lowering. A segment is one module that a pattern matched. */
typedef struct segments {
    sl_lowering *lowering;
    const char **names; /* its path: the first `length` characters */
    size_t *lengths;
    int count;
    int *of_node; /* segment of each node of the graph; -1 */
    int *maker;   /* segment whose forward writes a storage; -1: none, or not one alone */
    int *reader;  /* segment whose gradients alone read a storage; -1: none reads it; -2: others do, too */
    int *twin;    /* the storage that stands for it in its segment; -1: none; -2: one is needed */
    int known;    /* storages that these three speak of: those before any twin */
    bool *again;  /* forward instruction to be run again for the segment at hand */
} segments;

/* Length of the part of the scope that the pattern matches. */
static size_t matched_length(const char *pattern, const char *scope)
{
    size_t length = 0;
    int components = 1;
    for (const char *c = pattern; *c; c++)
        components += *c == '.';
    for (int i = 0; i < components; i++)
        length += (i ? 1 : 0) + strcspn(scope + length + (i ? 1 : 0), ".");
    return length;
}

static void find_segments(segments *s, const char *const *modules, int module_count, bool *matched)
{
    const sl_graph *graph = s->lowering->graph;
    for (int n = 0; n < graph->node_count; n++) {
        const char *scope = graph->nodes[n].scope;
        s->of_node[n] = -1;
        for (int m = 0; m < module_count && s->of_node[n] < 0; m++) {
            if (!sl_module_contains(modules[m], scope))
                continue;
            size_t length = matched_length(modules[m], scope);
            int found = 0;
            while (found < s->count && (s->lengths[found] != length || memcmp(s->names[found], scope, length) != 0))
                found++;
            if (found == s->count) {
                s->names[s->count] = scope;
                s->lengths[s->count++] = length;
            }
            s->of_node[n] = found;
            matched[m] = true;
        }
    }
}

/* Who writes each storage in F, and who reads it for gradients. */
static void find_users(segments *s)
{
    const sl_lowering *lowering = s->lowering;
    for (int i = 0; i < lowering->storage_count; i++)
        s->maker[i] = s->reader[i] = s->twin[i] = -1;
    for (int i = 0; i < lowering->forward.count; i++) {
        const sl_instruction *step = &lowering->forward.items[i];
        for (int o = 0; o < step->output_count; o++) {
            int storage = step->outputs[o].storage;
            if (lowering->storages[storage].home == SL_HOME_FREE)
                s->maker[storage] = s->of_node[step->node];
        }
    }
    for (int i = 0; i < lowering->backward.count; i++) {
        const sl_instruction *step = &lowering->backward.items[i];
        for (int k = 0; k < step->input_count; k++) {
            int storage = step->inputs[k].storage, segment = s->of_node[step->node];
            if (storage < 0)
                continue;
            if (s->reader[storage] == -1 && segment >= 0)
                s->reader[storage] = segment;
            else if (s->reader[storage] != segment)
                s->reader[storage] = -2;
        }
    }
}

/* Whether the segment's I can make the storage again instead of finding it saved. */
static bool is_dropped(const segments *s, int storage, int segment)
{
    return storage >= 0 && storage < s->known && s->maker[storage] == segment &&
           (s->reader[storage] == segment || s->reader[storage] == -1);
}

/* Marks the forward instructions that write what the segment's gradients read, and what those need. */
static bool mark_again(segments *s, int segment)
{
    const sl_instruction_list *forward = &s->lowering->forward;
    bool any = false;
    for (int i = forward->count - 1; i >= 0; i--) {
        const sl_instruction *step = &forward->items[i];
        s->again[i] = false;
        for (int o = 0; o < step->output_count; o++) {
            int storage = step->outputs[o].storage;
            bool needed = s->reader[storage] == segment || s->twin[storage] == -2;
            s->again[i] = s->again[i] || (needed && is_dropped(s, storage, segment));
        }
        for (int k = 0; k < step->input_count && s->again[i]; k++) {
            int storage = step->inputs[k].storage;
            if (is_dropped(s, storage, segment))
                s->twin[storage] = -2; /* needed, though no gradient reads it */
        }
        any = any || s->again[i];
    }
    return any;
}

/* The operand in the storage's twin, which is made on first demand. */
static sl_status to_twin(segments *s, int segment, sl_operand *operand)
{
    int storage = operand->storage;
    if (!is_dropped(s, storage, segment))
        return SL_OK;
    if (s->twin[storage] < 0) {
        sl_status status =
            sl_storage_add(s->lowering, SL_HOME_FREE, 0, s->lowering->storages[storage].bytes, &s->twin[storage]);
        if (status != SL_OK)
            return status;
    }
    operand->storage = s->twin[storage];
    return SL_OK;
}

/* A marked forward instruction as one of I. What it reads from outside the segment has to be saved; what it writes
 * beside what is needed goes to a storage that nobody reads. */
static sl_status append_again(segments *s, int segment, const sl_instruction *forward, sl_instruction_list *list)
{
    sl_status status = SL_OK;
    sl_instruction step = *forward;
    step.phase = SL_PHASE_I;
    for (int k = 0; k < step.input_count; k++) {
        int storage = step.inputs[k].storage;
        if (storage >= 0 && !is_dropped(s, storage, segment))
            s->reader[storage] = -2;
        SL_TRY(to_twin(s, segment, &step.inputs[k]));
    }
    for (int o = 0; o < step.output_count; o++) {
        int storage = step.outputs[o].storage;
        if (is_dropped(s, storage, segment))
            SL_TRY(to_twin(s, segment, &step.outputs[o]));
        else
            SL_TRY(sl_storage_add(s->lowering, SL_HOME_FREE, 0, s->lowering->storages[storage].bytes,
                                  &step.outputs[o].storage));
    }
    SL_TRY(sl_instruction_append(list, &step));
done:
    return status;
}

/* Puts the marked instructions before the segment's first gradient and lets its gradients read the twins. */
static sl_status insert_again(segments *s, int segment)
{
    sl_status status = SL_OK;
    sl_lowering *lowering = s->lowering;
    sl_instruction_list list = { 0 };
    bool inserted = false;
    for (int i = 0; i < lowering->backward.count; i++) {
        sl_instruction step = lowering->backward.items[i];
        bool mine = s->of_node[step.node] == segment;
        for (int f = 0; f < lowering->forward.count && mine && !inserted; f++) {
            if (s->again[f])
                SL_TRY(append_again(s, segment, &lowering->forward.items[f], &list));
        }
        inserted = inserted || mine;
        for (int k = 0; k < step.input_count && mine; k++)
            SL_TRY(to_twin(s, segment, &step.inputs[k]));
        SL_TRY(sl_instruction_append(&list, &step));
    }
    sl_free(lowering->backward.items);
    lowering->backward = list;
    list = (sl_instruction_list){ 0 };
done:
    sl_free(list.items);
    return status;
}

/* The segments in the order in which their gradients start: what a later one in this order has to save for an earlier
 * one is then known when its turn comes. */
static sl_status run_segments(segments *s)
{
    sl_status status = SL_OK;
    bool *done_with = NULL;
    SL_TRY(SL_NEW_ARRAY(done_with, s->count));
    for (int i = 0; i < s->lowering->backward.count; i++) {
        int segment = s->of_node[s->lowering->backward.items[i].node];
        if (segment < 0 || done_with[segment])
            continue;
        done_with[segment] = true;
        if (mark_again(s, segment))
            SL_TRY(insert_again(s, segment));
    }
done:
    sl_free(done_with);
    return status;
}

sl_status sl_lower_recompute(sl_lowering *lowering, const char *const *modules, int count)
{
    sl_status status = SL_OK;
    segments s = { .lowering = lowering, .known = lowering->storage_count };
    bool *matched = NULL;
    SL_TRY(SL_NEW_ARRAY(matched, count));
    SL_TRY(SL_NEW_ARRAY(s.names, lowering->graph->node_count));
    SL_TRY(SL_NEW_ARRAY(s.lengths, lowering->graph->node_count));
    SL_TRY(SL_NEW_ARRAY(s.of_node, lowering->graph->node_count));
    SL_TRY(SL_NEW_ARRAY(s.maker, s.known));
    SL_TRY(SL_NEW_ARRAY(s.reader, s.known));
    SL_TRY(SL_NEW_ARRAY(s.twin, s.known));
    SL_TRY(SL_NEW_ARRAY(s.again, lowering->forward.count));
    find_segments(&s, modules, count, matched);
    for (int i = 0; i < count; i++) {
        if (!matched[i]) {
            status = sl_fail(SL_ERR_ARGUMENT, "recompute '%s': the graph has no such module", modules[i]);
            goto done;
        }
    }
    find_users(&s);
    SL_TRY(run_segments(&s));
done:
    sl_free(matched);
    sl_free(s.names);
    sl_free(s.lengths);
    sl_free(s.of_node);
    sl_free(s.maker);
    sl_free(s.reader);
    sl_free(s.twin);
    sl_free(s.again);
    return status;
}
