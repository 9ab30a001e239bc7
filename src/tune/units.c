/* The model in units: where it may be cut, which parts are alike, and which modules may be computed again. */
#include "tune/tune.h"

#include "base/alloc.h"
#include "graph/partition.h"

#include <ctype.h>
#include <string.h>

/* Values that cross the place before a node, and their bytes. */
typedef struct crossing {
    int values;
    double bytes;
} crossing;

static sl_status count_crossings(const sl_graph *graph, crossing *places)
{
    sl_status status = SL_OK;
    int *last = NULL;
    SL_TRY(SL_NEW_ARRAY(last, graph->value_count));
    for (int n = 0; n < graph->node_count; n++) {
        const sl_graph_node *node = &graph->nodes[n];
        for (int i = 0; i < node->input_count && node->live && !node->fixed; i++)
            last[node->inputs[i]] = n;
    }
    for (int v = 1; v < graph->value_count; v++) {
        const sl_graph_value *value = &graph->values[v];
        if (value->node < 0 || value->fixed)
            continue;
        const sl_meta meta = sl_meta_contiguous(value->dtype, &value->shape);
        for (int n = value->node + 1; n <= last[v]; n++) {
            places[n].values++;
            places[n].bytes += (double)sl_meta_bytes(&meta);
        }
    }
done:
    sl_free(last);
    return status;
}

/* The length of "transformer.h.3" in "transformer.h.3.mlp.linear": up to the first number; 0 if there is none. */
static size_t block_length(const char *name)
{
    for (const char *part = name; *part;) {
        size_t length = strcspn(part, ".");
        if (length > 0 && strspn(part, "0123456789") == length)
            return (size_t)(part - name) + length;
        part += length + (part[length] == '.');
    }
    return 0;
}

/* What makes two units alike: their ops and the shapes of what these read and write. */
static uint64_t unit_signature(const sl_graph *graph, int first, int end)
{
    uint64_t hash = 1469598103934665603u;
    for (int n = first; n < end; n++) {
        const sl_graph_node *node = &graph->nodes[n];
        hash = (hash ^ (uint64_t)node->op) * 1099511628211u;
        for (int i = 0; i < node->input_count + node->output_count; i++) {
            const sl_graph_value *value =
                &graph->values[i < node->input_count ? node->inputs[i] : node->outputs[i - node->input_count]];
            hash = (hash ^ (uint64_t)value->kind) * 1099511628211u;
            for (int d = 0; d < value->shape.rank; d++)
                hash = (hash ^ (uint64_t)value->shape.dims[d]) * 1099511628211u;
        }
    }
    return hash;
}

/* A cut may stand before a node that computes, if one value crosses it and none is smaller elsewhere. */
static sl_status find_units(const sl_graph *graph, tune_model *model)
{
    sl_status status = SL_OK;
    crossing *places = NULL;
    double least = 0;
    SL_TRY(SL_NEW_ARRAY(places, graph->node_count + 1));
    SL_TRY(count_crossings(graph, places));
    SL_TRY(SL_ARENA_ARRAY(model->arena, model->units, graph->node_count));
    for (int n = 1; n < graph->node_count; n++) {
        if (places[n].values == 1 && (least == 0 || places[n].bytes < least))
            least = places[n].bytes;
    }
    for (int n = 0; n < graph->node_count; n++) {
        bool narrow = places[n].values == 1 && places[n].bytes <= least;
        if (n > 0 && !(narrow && sl_node_has_work(&graph->nodes[n])))
            continue;
        tune_unit *unit = &model->units[model->unit_count++];
        const char *name = graph->nodes[n].name;
        size_t block = block_length(name);
        unit->first = n;
        unit->inner = n > 0 && block > 0 && strncmp(name, unit[-1].name, block + 1) == 0;
        SL_TRY(sl_arena_strdup(model->arena, graph->nodes[n].name, (char **)(void *)&unit->name));
    }
    model->node_count = graph->node_count;
done:
    sl_free(places);
    return status;
}

static sl_status find_kinds(const sl_graph *graph, tune_model *model)
{
    sl_status status = SL_OK;
    uint64_t *signatures = NULL;
    SL_TRY(SL_NEW_ARRAY(signatures, model->unit_count));
    SL_TRY(SL_ARENA_ARRAY(model->arena, model->samples, model->unit_count));
    for (int u = 0; u < model->unit_count; u++) {
        int end = u + 1 < model->unit_count ? model->units[u + 1].first : graph->node_count, kind = 0;
        uint64_t own = unit_signature(graph, model->units[u].first, end);
        while (kind < model->kind_count && signatures[kind] != own)
            kind++;
        if (kind == model->kind_count) {
            model->samples[kind] = u;
            signatures[model->kind_count++] = own;
        }
        model->units[u].kind = kind;
    }
done:
    sl_free(signatures);
    return status;
}

/* Nothing, whole blocks, or the modules of two and more nodes inside every block. */
static sl_status find_recompute(const sl_graph *graph, tune_model *model)
{
    sl_status status = SL_OK;
    char *pattern = NULL;
    model->recompute_count = 1;
    for (int n = 0; n + 1 < graph->node_count && model->recompute_count < TUNE_RECOMPUTE_LIMIT; n++) {
        const char *name = graph->nodes[n].name, *next = graph->nodes[n + 1].name;
        size_t block = block_length(name), number = block;
        while (number > 0 && isdigit((unsigned char)name[number - 1]))
            number--;
        if (block == 0 || name[block] != '.')
            continue;
        size_t inner = block + 1 + strcspn(name + block + 1, ".");
        if (model->recompute_count == 1) {
            SL_TRY(sl_arena_printf(model->arena, &pattern, "%.*s*", (int)number, name));
            model->recompute[model->recompute_count++] = pattern;
        }
        if (name[inner] != '.' || strncmp(name, next, inner + 1) != 0)
            continue; /* alone in its module */
        SL_TRY(sl_arena_printf(model->arena, &pattern, "%.*s*%.*s", (int)number, name, (int)(inner - block),
                               name + block));
        bool known = false;
        for (int i = 1; i < model->recompute_count; i++)
            known = known || strcmp(model->recompute[i], pattern) == 0;
        if (!known)
            model->recompute[model->recompute_count++] = pattern;
    }
done:
    return status;
}

/* Linears of one input are products of their own: only without replicas would a GPU join them. */
sl_status sl_tune_shape(const sl_train_plan *plan, int64_t rows, sl_model_shape *out)
{
    sl_status status = sl_plan_shape(plan, rows, out);
    if (status == SL_OK)
        out->joined = false;
    return status;
}

sl_status sl_tune_read_model(const sl_train_plan *plan, sl_arena *arena, tune_model *out)
{
    sl_status status = SL_OK;
    sl_graph *graph = NULL;
    tune_model model = { .config = plan->config, .plan = plan, .here = "cpu", .arena = arena };
    sl_model_shape shape;
    SL_TRY(sl_tune_shape(plan, 1, &shape));
    SL_TRY(sl_model_build(&plan->graph_model, SL_MODE_TRAIN, &shape, &graph));
    SL_TRY(find_units(graph, &model));
    SL_TRY(find_kinds(graph, &model));
    SL_TRY(find_recompute(graph, &model));
    *out = model;
done:
    sl_graph_destroy(graph);
    return status;
}
