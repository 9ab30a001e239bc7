/* Costs of every stage from a JSON file. */
#include <sluice/plan.h>

#include "base/alloc.h"
#include "base/file.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

/* A number of an object, if it is there. */
static sl_status read_number(const char *path, const char *owner, const json_t *object, const char *key, double *out)
{
    const json_t *value = json_object_get(object, key);
    if (!value)
        return SL_OK;
    double number = json_number_value(value);
    if (!json_is_number(value) || !(number >= 0) || isinf(number))
        return sl_fail(SL_ERR_FORMAT, "%s: %s: %s is not a number of 0 or more", path, owner, key);
    *out = number;
    return SL_OK;
}

static sl_status check_keys(const char *path, const char *owner, const json_t *object, const char *known)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value) /* reads alone; Jansson's macro wants it without const */
    {
        const char *found = strstr(known, key);
        size_t length = strlen(key);
        if (length == 0 || !found || (found > known && found[-1] != ' ') ||
            (found[length] != ',' && found[length] != '\0'))
            return sl_fail(SL_ERR_FORMAT, "%s: %s has a key '%.60s'; there are %s", path, owner, key, known);
    }
    return SL_OK;
}

static sl_status read_stage(const char *path, const json_t *object, int stage, sl_stage_cost *cost)
{
    sl_status status = SL_OK;
    char owner[32];
    snprintf(owner, sizeof owner, "stage %d", stage);
    if (!json_is_object(object))
        return sl_fail(SL_ERR_FORMAT, "%s: %s is not an object", path, owner);
    SL_TRY(check_keys(path, owner, object, "F, I, W, B, unshard, reshard, reduce, gather, activation, release"));
    SL_TRY(read_number(path, owner, object, "F", &cost->f));
    SL_TRY(read_number(path, owner, object, "I", &cost->i));
    SL_TRY(read_number(path, owner, object, "W", &cost->w));
    cost->b = cost->i + cost->w;
    SL_TRY(read_number(path, owner, object, "B", &cost->b));
    SL_TRY(read_number(path, owner, object, "unshard", &cost->unshard));
    SL_TRY(read_number(path, owner, object, "reshard", &cost->reshard));
    SL_TRY(read_number(path, owner, object, "reduce", &cost->reduce_grad));
    SL_TRY(read_number(path, owner, object, "gather", &cost->gather));
    SL_TRY(read_number(path, owner, object, "activation", &cost->activation));
    SL_TRY(read_number(path, owner, object, "release", &cost->release));
done:
    return status;
}

sl_status sl_plan_load_costs(const char *path, sl_costs *costs, int *stage_count)
{
    sl_status status = SL_OK;
    sl_file_bytes file = { .data = NULL };
    json_error_t error;
    json_t *root = NULL;
    sl_stage_cost *stages = NULL;
    sl_costs changed = *costs;

    SL_TRY(sl_file_read(path, &file));
    root = json_loadb(file.data ? (const char *)file.data : "", file.size, 0, &error);
    if (!root)
        SL_TRY(sl_fail(SL_ERR_FORMAT, "%s:%d: %s", path, error.line, error.text));
    const json_t *list = json_object_get(root, "stages");
    int count = (int)json_array_size(list);
    if (count == 0)
        SL_TRY(sl_fail(SL_ERR_FORMAT, "%s: an object with a list \"stages\" is expected", path));
    SL_TRY(check_keys(path, "the file", root, "stages, comm, size, bandwidth"));
    SL_TRY(read_number(path, "the file", root, "comm", &changed.latency));
    SL_TRY(read_number(path, "the file", root, "size", &changed.message_size));
    SL_TRY(read_number(path, "the file", root, "bandwidth", &changed.bandwidth));
    SL_TRY(SL_NEW_ARRAY(stages, count));
    for (int stage = 0; stage < count; stage++) {
        stages[stage] = costs->stage;
        SL_TRY(read_stage(path, json_array_get(list, (size_t)stage), stage, &stages[stage]));
    }
    changed.stages = stages;
    stages = NULL;
    *costs = changed;
    *stage_count = count;
done:
    sl_free(stages);
    json_decref(root);
    sl_file_bytes_free(&file);
    return status;
}

void sl_plan_free_costs(sl_costs *costs)
{
    sl_free((void *)costs->stages);
    costs->stages = NULL;
}
