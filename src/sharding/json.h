/* Shardings as JSON, inside other documents. */
#ifndef SL_SHARDING_JSON_H
#define SL_SHARDING_JSON_H

#include <sluice/sharding.h>

#include "base/json.h"

#include <jansson.h>

void sl_shape_put(sl_json *json, const char *key, const sl_shape *shape);
/* A list of numbers from 0 on; what names it in messages. */
SL_MUST_CHECK sl_status sl_shape_from_json(const char *label, const char *what, const json_t *list, sl_shape *out);

/* The sharding as a value. */
void sl_sharding_put(sl_json *json, const sl_sharding *sharding);
/* Checked as sl_sharding_check does. */
SL_MUST_CHECK sl_status sl_sharding_from_json(const char *label, const json_t *value, sl_sharding *out);

#endif
