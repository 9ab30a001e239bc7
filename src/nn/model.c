/* From a configuration to a finished graph, and the list of a model's parameters. */
#include "base/alloc.h"
#include "nn/family.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static sl_status check_shape(const sl_model *model, sl_model_mode mode, const sl_model_shape *shape)
{
    int64_t places = sl_model_positions(model);
    if (shape->dtype != SL_F32 && shape->dtype != SL_BF16)
        return sl_fail(SL_ERR_UNSUPPORTED, "a model computes in f32 or bf16, not in %s", sl_dtype_name(shape->dtype));
    if (shape->batch < 1 || shape->seq < 1 || shape->batch > INT32_MAX || shape->seq > INT32_MAX)
        return sl_fail(SL_ERR_ARGUMENT, "a batch of %" PRId64 " sequences of %" PRId64 " is impossible", shape->batch,
                       shape->seq);
    if (shape->documents && mode == SL_MODE_DECODE)
        return sl_fail(SL_ERR_ARGUMENT, "a text that is generated is one document: rows have no others");
    if (!sl_nn_field(model->family, "n_positions"))
        return SL_OK;
    if (shape->seq > places)
        return sl_fail(SL_ERR_ARGUMENT, "a sequence of %" PRId64 " is longer than the model's %" PRId64 " positions",
                       shape->seq, places);
    if (mode == SL_MODE_DECODE && (shape->cache < shape->seq || shape->cache > places))
        return sl_fail(SL_ERR_ARGUMENT, "a cache of %" PRId64 " must hold %" PRId64 " to %" PRId64 " positions",
                       shape->cache, shape->seq, places);
    return SL_OK;
}

sl_status sl_model_build(const sl_model *model, sl_model_mode mode, const sl_model_shape *shape, sl_graph **out)
{
    sl_status status = SL_OK;
    sl_graph *graph = NULL;
    sl_model_shape full = *shape;

    SL_TRY(sl_model_check(model));
    if (full.cache == 0)
        full.cache = sl_model_positions(model);
    SL_TRY(check_shape(model, mode, &full));
    SL_TRY(sl_graph_create(&graph));
    sl_graph_set_param_dtype(graph, full.dtype);
    SL_TRY(model->family->build(model->config, mode, &full, graph));
    SL_TRY(sl_graph_finish(graph));
    if (full.documents && !sl_graph_has_input(graph, "positions"))
        SL_TRY(
            sl_fail(SL_ERR_UNSUPPORTED, "the family %s cannot keep the documents of a row apart", model->family->name));
    *out = graph;
    graph = NULL;
done:
    sl_graph_destroy(graph);
    return status;
}

/* ---- Modules --------------------------------------------------------------------------------- */

sl_status sl_model_module(const sl_model *model, const char *name, char *text, size_t size)
{
    const char *root = model->family->root ? model->family->root : "", *head = model->family->head;
    const char *end = head ? strrchr(head, '.') : NULL; /* the head's module is outside of the root */
    bool full = strncmp(name, root, strlen(root)) == 0 ||
                strncmp(name, "cross_entropy", strlen("cross_entropy")) == 0 ||
                (end && strncmp(name, head, (size_t)(end - head)) == 0);
    if (full)
        root = "";
    if ((size_t)snprintf(text, size, "%s%s", root, name) >= size)
        return sl_fail(SL_ERR_ARGUMENT, "the module name '%.40s...' is too long", name);
    return SL_OK;
}

/* ---- Parameter lists ------------------------------------------------------------------------- */

struct sl_param_list {
    sl_graph *graph; /* holds the names */
    sl_param_info *params;
    int *by_name; /* indices into params, sorted by name */
    int count;
    int64_t elements;
};

static int compare_name(const void *a, const void *b, void *params)
{
    const sl_param_info *all = params;
    return strcmp(all[*(const int *)a].name, all[*(const int *)b].name);
}

sl_status sl_model_params(const sl_model *model, sl_param_list **out)
{
    sl_status status = SL_OK;
    sl_param_list *list = NULL;

    SL_TRY(SL_NEW(list));
    SL_TRY(sl_model_build(model, SL_MODE_LOGITS, &(sl_model_shape){ .batch = 1, .seq = 1 }, &list->graph));
    list->count = sl_graph_param_count(list->graph);
    SL_TRY(SL_NEW_ARRAY(list->params, list->count));
    SL_TRY(SL_NEW_ARRAY(list->by_name, list->count));
    for (int i = 0; i < list->count; i++) {
        int64_t count;
        list->params[i] = sl_graph_param_at(list->graph, i);
        SL_TRY(sl_shape_count(&list->params[i].shape, &count));
        list->elements += count;
        list->by_name[i] = i;
    }
    qsort_r(list->by_name, (size_t)list->count, sizeof *list->by_name, compare_name, list->params);
    *out = list;
    list = NULL;
done:
    sl_param_list_destroy(list);
    return status;
}

void sl_param_list_destroy(sl_param_list *list)
{
    if (!list)
        return;
    sl_graph_destroy(list->graph);
    sl_free(list->params);
    sl_free(list->by_name);
    sl_free(list);
}

int sl_param_list_count(const sl_param_list *list)
{
    return list->count;
}

const sl_param_info *sl_param_list_at(const sl_param_list *list, int i)
{
    return i >= 0 && i < list->count ? &list->params[i] : NULL;
}

int sl_param_list_find(const sl_param_list *list, const char *name)
{
    int low = 0, high = list->count;
    while (low < high) {
        int middle = low + (high - low) / 2, index = list->by_name[middle];
        int order = strcmp(name, list->params[index].name);
        if (order == 0)
            return index;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return -1;
}

int64_t sl_param_list_elements(const sl_param_list *list)
{
    return list->elements;
}
