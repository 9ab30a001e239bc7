/* Rotary position embedding: its kinds in config.json, and the tables of angles. */
#include "nn/family.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const kind_names[] = {
    [SL_ROPE_DEFAULT] = "default", [SL_ROPE_LINEAR] = "linear", [SL_ROPE_LLAMA3] = "llama3",
    [SL_ROPE_DYNAMIC] = "dynamic", [SL_ROPE_YARN] = "yarn",     [SL_ROPE_LONGROPE] = "longrope"
};
enum { KINDS = sizeof kind_names / sizeof *kind_names };

/* Elements of a head that are rotated. */
static int64_t rotated_width(const sl_rope_config *rope, int64_t head_dim)
{
    return rope->partial_rotary_factor == 0 ? head_dim : (int64_t)((double)head_dim * rope->partial_rotary_factor);
}

int64_t sl_nn_rope_positions(const sl_rope_config *rope, int64_t positions)
{
    double stretched = (double)positions * rope->factor;
    if (rope->kind != SL_ROPE_DYNAMIC)
        return positions;
    return stretched < INT32_MAX ? (int64_t)stretched : INT32_MAX;
}

/* ---- Angles ---------------------------------------------------------------------------------- */

/* Llama 3 keeps the fast frequencies, slows the slow ones by the factor and blends those between. */
static float scale_llama3(const sl_rope_config *rope, float frequency)
{
    const float two_pi = 6.2831853071795864769f;
    float context = (float)rope->original_max_position_embeddings, wavelength = two_pi / frequency;
    float low = (float)rope->low_freq_factor, high = (float)rope->high_freq_factor, factor = (float)rope->factor;
    if (wavelength > context / low)
        return frequency / factor;
    if (wavelength < context / high)
        return frequency;
    float smooth = (context / wavelength - low) / (high - low);
    return (1 - smooth) * frequency / factor + smooth * frequency;
}

/* The pair of `width` elements that turns that often in the original context. */
static double yarn_pair(const sl_rope_config *rope, int64_t width, double turns)
{
    const double two_pi = 6.2831853071795864769;
    double context = (double)rope->original_max_position_embeddings;
    return (double)width * log(context / (turns * two_pi)) / (2 * log(rope->theta));
}

static double beta_fast(const sl_rope_config *rope)
{
    return rope->beta_fast == 0 ? 32 : rope->beta_fast;
}

static double beta_slow(const sl_rope_config *rope)
{
    return rope->beta_slow == 0 ? 1 : rope->beta_slow;
}

/* YaRN keeps the pairs that turn often, slows those that turn rarely, and goes from one to the other in a ramp. */
static float scale_yarn(const sl_rope_config *rope, int64_t width, int64_t pair, float frequency)
{
    double low = yarn_pair(rope, width, beta_fast(rope)), high = yarn_pair(rope, width, beta_slow(rope));
    if (!rope->untruncated) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, (double)width - 1);
    if (low == high)
        high += 0.001;
    float ramp = ((float)pair - (float)low) / (float)(high - low);
    ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
    return frequency / (float)rope->factor * ramp + frequency * (1 - ramp);
}

/* The base that a sequence longer than the model's positions gets. */
static double dynamic_theta(const sl_rope_config *rope, int64_t width, int64_t positions, int64_t length)
{
    double factor = rope->factor, stretch = (double)length / (double)positions;
    if (length <= positions || width <= 2)
        return rope->theta;
    return rope->theta * pow(factor * stretch - (factor - 1), (double)width / (double)(width - 2));
}

static double yarn_scale(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

/* Factor on cosines and sines, and so, squared, on the scores of attention. */
static double attention_factor(const sl_rope_config *rope)
{
    double original = (double)rope->original_max_position_embeddings;
    if (rope->kind != SL_ROPE_YARN && rope->kind != SL_ROPE_LONGROPE)
        return 1;
    if (rope->attention_factor > 0)
        return rope->attention_factor;
    if (rope->kind == SL_ROPE_LONGROPE)
        return rope->factor <= 1 ? 1 : sqrt(1 + log(rope->factor) / log(original));
    if (rope->mscale > 0 && rope->mscale_all_dim > 0)
        return yarn_scale(rope->factor, rope->mscale) / yarn_scale(rope->factor, rope->mscale_all_dim);
    return yarn_scale(rope->factor, 1);
}

/* In f32, as PyTorch's models compute them. */
void sl_nn_rope_fill(const sl_rope_config *rope, int64_t head_dim, int64_t positions, int64_t length, float *cos,
                     float *sin)
{
    int64_t width = rotated_width(rope, head_dim), half = width / 2;
    const double *stretch = length > rope->original_max_position_embeddings ? rope->long_factor : rope->short_factor;
    double theta = rope->kind == SL_ROPE_DYNAMIC ? dynamic_theta(rope, width, positions, length) : rope->theta;
    float scale = (float)attention_factor(rope);
    for (int64_t i = 0; i < half; i++) {
        float frequency = 1.0f / powf((float)theta, (float)(2 * i) / (float)width);
        if (rope->kind == SL_ROPE_LINEAR)
            frequency /= (float)rope->factor;
        else if (rope->kind == SL_ROPE_LLAMA3)
            frequency = scale_llama3(rope, frequency);
        else if (rope->kind == SL_ROPE_YARN)
            frequency = scale_yarn(rope, width, i, frequency);
        else if (rope->kind == SL_ROPE_LONGROPE)
            frequency /= (float)stretch[i];
        for (int64_t p = 0; p < length; p++) {
            float angle = (float)p * frequency;
            cos[p * half + i] = cosf(angle) * scale;
            sin[p * half + i] = sinf(angle) * scale;
        }
    }
}

sl_status sl_nn_add_rope(builder *b, const char *name, const sl_rope_config *rope, int64_t head_dim, int64_t positions,
                         rope_table *out)
{
    sl_status status = SL_OK;
    float *cos = NULL, *sin = NULL;
    char cos_name[64], sin_name[64];
    int64_t places = b->mode == SL_MODE_DECODE ? b->cache : b->seq;
    int64_t dims[2] = { places, rotated_width(rope, head_dim) / 2 };

    SL_TRY(SL_NEW_ARRAY(cos, dims[0] * dims[1]));
    SL_TRY(SL_NEW_ARRAY(sin, dims[0] * dims[1]));
    sl_nn_rope_fill(rope, head_dim, positions, places, cos, sin);
    snprintf(cos_name, sizeof cos_name, "%s_cos", name);
    snprintf(sin_name, sizeof sin_name, "%s_sin", name);
    out->cos = sl_graph_constant(b->graph, cos_name, SL_F32, 2, dims, cos);
    out->sin = sl_graph_constant(b->graph, sin_name, SL_F32, 2, dims, sin);
done:
    sl_free(cos);
    sl_free(sin);
    return status;
}

sl_value sl_nn_rotate(builder *b, const rope_table *table, sl_value x)
{
    return sl_rope(b->graph, x, table->cos, table->sin, b->positions);
}

/* ---- Checks ---------------------------------------------------------------------------------- */

static sl_status check_stretch(const char *name, const double *factors, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        if (!(factors[i] > 0 && isfinite(factors[i])))
            return sl_fail(SL_ERR_ARGUMENT, "rope: %s[%" PRId64 "] is %g; it must be above 0", name, i, factors[i]);
    }
    return SL_OK;
}

static sl_status check_longrope(const sl_rope_config *rope, int64_t width)
{
    sl_status status = SL_OK;
    if (width / 2 > SL_ROPE_FACTORS_MAX)
        return sl_fail(SL_ERR_UNSUPPORTED, "rope: longrope of %" PRId64 " rotated elements; %d are possible", width,
                       2 * SL_ROPE_FACTORS_MAX);
    if (rope->factor_count != width / 2)
        return sl_fail(SL_ERR_ARGUMENT,
                       "rope: short_factor and long_factor have %" PRId64 " numbers; %" PRId64
                       " rotated elements of a head need %" PRId64,
                       rope->factor_count, width, width / 2);
    if (rope->original_max_position_embeddings < 2)
        return sl_fail(SL_ERR_ARGUMENT, "rope: original_max_position_embeddings %" PRId64 " is below 2",
                       rope->original_max_position_embeddings);
    SL_TRY(check_stretch("short_factor", rope->short_factor, rope->factor_count));
    SL_TRY(check_stretch("long_factor", rope->long_factor, rope->factor_count));
done:
    return status;
}

static sl_status check_yarn(const sl_rope_config *rope)
{
    if (!(rope->theta > 1))
        return sl_fail(SL_ERR_ARGUMENT, "rope: yarn needs a rope_theta above 1, not %g", rope->theta);
    if (!(beta_slow(rope) > 0 && beta_fast(rope) >= beta_slow(rope) && isfinite(beta_fast(rope))))
        return sl_fail(SL_ERR_ARGUMENT, "rope: beta_fast %g must not be below beta_slow %g, both above 0",
                       beta_fast(rope), beta_slow(rope));
    return SL_OK;
}

static sl_status check_original(const sl_rope_config *rope)
{
    if (rope->original_max_position_embeddings >= 1)
        return SL_OK;
    return sl_fail(SL_ERR_ARGUMENT, "rope: original_max_position_embeddings %" PRId64 " is below 1",
                   rope->original_max_position_embeddings);
}

sl_status sl_nn_check_rope(const sl_rope_config *rope, int64_t head_dim)
{
    int64_t width;
    if (!(rope->theta > 0) || !isfinite(rope->theta))
        return sl_fail(SL_ERR_ARGUMENT, "rope_theta %g is not above 0", rope->theta);
    if ((unsigned)rope->kind >= KINDS)
        return sl_fail(SL_ERR_ARGUMENT, "there is no kind %d of rope", (int)rope->kind);
    if (rope->kind != SL_ROPE_DEFAULT && !(rope->factor >= 1 && isfinite(rope->factor)))
        return sl_fail(SL_ERR_ARGUMENT, "the rope factor %g is below 1", rope->factor);
    if (!(rope->partial_rotary_factor >= 0 && rope->partial_rotary_factor <= 1))
        return sl_fail(SL_ERR_ARGUMENT, "partial_rotary_factor %g is not in 0..1", rope->partial_rotary_factor);
    width = rotated_width(rope, head_dim);
    if (width < 2 || width % 2 != 0)
        return sl_fail(SL_ERR_ARGUMENT,
                       "head_dim %" PRId64 " with partial_rotary_factor %g leaves %" PRId64
                       " elements to rotate; an even number is needed",
                       head_dim, rope->partial_rotary_factor, width);
    if (rope->kind == SL_ROPE_LONGROPE)
        return check_longrope(rope, width);
    if (rope->kind != SL_ROPE_LLAMA3 && rope->kind != SL_ROPE_YARN)
        return SL_OK;
    if (rope->kind == SL_ROPE_LLAMA3 && !(rope->low_freq_factor > 0 && rope->high_freq_factor > rope->low_freq_factor &&
                                          isfinite(rope->high_freq_factor)))
        return sl_fail(SL_ERR_ARGUMENT, "rope: high_freq_factor %g must be above low_freq_factor %g, both above 0",
                       rope->high_freq_factor, rope->low_freq_factor);
    if (rope->kind == SL_ROPE_YARN && check_yarn(rope) != SL_OK)
        return SL_ERR_ARGUMENT;
    return check_original(rope);
}

/* ---- config.json ----------------------------------------------------------------------------- */

/* A number of the object, if it is there and not null. */
static sl_status read_real(const char *label, const json_t *object, const char *key, double *out)
{
    const json_t *value = json_object_get(object, key);
    if (!value || json_is_null(value))
        return SL_OK;
    if (!json_is_number(value))
        return sl_fail(SL_ERR_FORMAT, "%s: %s is not a number", label, key);
    *out = json_number_value(value);
    return SL_OK;
}

static sl_status read_factors(const char *label, const json_t *object, const char *key, double *out, int64_t *count)
{
    const json_t *list = json_object_get(object, key);
    size_t size = json_array_size(list); /* 0 if it is no list */
    if (size == 0)
        return sl_fail(SL_ERR_FORMAT, "%s: rope: %s is not a list of numbers", label, key);
    if (size > SL_ROPE_FACTORS_MAX)
        return sl_fail(SL_ERR_UNSUPPORTED, "%s: rope: %s has %zu numbers; %d are possible", label, key, size,
                       SL_ROPE_FACTORS_MAX);
    if (*count > 0 && *count != (int64_t)size)
        return sl_fail(SL_ERR_FORMAT, "%s: rope: %s has %zu numbers, short_factor %" PRId64, label, key, size, *count);
    for (size_t i = 0; i < size; i++) {
        if (!json_is_number(json_array_get(list, i)))
            return sl_fail(SL_ERR_FORMAT, "%s: rope: %s[%zu] is not a number", label, key, i);
        out[i] = json_number_value(json_array_get(list, i));
    }
    *count = (int64_t)size;
    return SL_OK;
}

/* Phi-3's first files say su for longrope, and yarn with lists of factors. */
static sl_status read_kind(const char *label, const char *name, const json_t *object, sl_rope_kind *out)
{
    const json_t *type = json_object_get(object, "rope_type");
    const char *kind = json_string_value(type ? type : json_object_get(object, "type"));
    if (!kind)
        return sl_fail(SL_ERR_FORMAT, "%s: %s have no rope_type", label, name);
    if (strcmp(kind, "su") == 0 || (strcmp(kind, "yarn") == 0 && json_object_get(object, "long_factor")))
        kind = "longrope";
    for (int i = 0; i < KINDS; i++) {
        if (strcmp(kind, kind_names[i]) == 0) {
            *out = (sl_rope_kind)i;
            return SL_OK;
        }
    }
    return sl_fail(SL_ERR_UNSUPPORTED,
                   "%s: unknown rope_type '%.40s'; default, linear, dynamic, yarn, longrope and llama3 are known",
                   label, kind);
}

static sl_status read_untruncated(const char *label, const json_t *object, bool *out)
{
    const json_t *value = json_object_get(object, "truncate");
    if (value && !json_is_boolean(value))
        return sl_fail(SL_ERR_FORMAT, "%s: rope: truncate is not true or false", label);
    *out = json_is_false(value);
    return SL_OK;
}

/* What each kind needs beyond the numbers that all share. */
static sl_status read_details(const char *label, const char *name, const json_t *object, int64_t positions,
                              sl_rope_config *rope)
{
    sl_status status = SL_OK;
    bool has_factor = json_is_number(json_object_get(object, "factor"));
    if (rope->kind != SL_ROPE_DEFAULT && rope->kind != SL_ROPE_LONGROPE && !has_factor)
        return sl_fail(SL_ERR_FORMAT, "%s: %s: rope_type %s needs a factor", label, name, kind_names[rope->kind]);
    if (rope->kind == SL_ROPE_YARN)
        SL_TRY(read_untruncated(label, object, &rope->untruncated));
    bool has_default = rope->kind == SL_ROPE_YARN || rope->kind == SL_ROPE_LONGROPE;
    if (has_default && rope->original_max_position_embeddings == 0)
        rope->original_max_position_embeddings = positions;
    if (rope->kind == SL_ROPE_LONGROPE) {
        rope->factor_count = 0;
        SL_TRY(read_factors(label, object, "short_factor", rope->short_factor, &rope->factor_count));
        SL_TRY(read_factors(label, object, "long_factor", rope->long_factor, &rope->factor_count));
        if (!has_factor)
            rope->factor = fmax(1, (double)positions / (double)rope->original_max_position_embeddings);
    }
done:
    return status;
}

sl_status sl_nn_read_rope_object(const char *label, const char *name, const json_t *object, const rope_keys *keys,
                                 int64_t positions, sl_rope_config *rope)
{
    sl_status status = SL_OK;
    double original = (double)rope->original_max_position_embeddings, partial = rope->partial_rotary_factor;
    if (!json_is_object(object))
        return sl_fail(SL_ERR_FORMAT, "%s: %s is not an object", label, name);
    SL_TRY(read_kind(label, name, object, &rope->kind));
    const struct {
        const char *key;
        double *to;
    } numbers[] = { { "rope_theta", &rope->theta },
                    { "factor", &rope->factor },
                    { "low_freq_factor", &rope->low_freq_factor },
                    { "high_freq_factor", &rope->high_freq_factor },
                    { "attention_factor", &rope->attention_factor },
                    { "beta_fast", &rope->beta_fast },
                    { "beta_slow", &rope->beta_slow },
                    { "mscale", &rope->mscale },
                    { "mscale_all_dim", &rope->mscale_all_dim },
                    { "partial_rotary_factor", &partial } };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        SL_TRY(read_real(label, object, numbers[i].key, numbers[i].to));
    if (original == 0)
        SL_TRY(read_real(label, object, "original_max_position_embeddings", &original));
    if (!(original >= 0 && original <= INT32_MAX))
        return sl_fail(SL_ERR_FORMAT, "%s: original_max_position_embeddings %g is impossible", label, original);
    rope->original_max_position_embeddings = (int64_t)original;
    if (!keys->partial && partial != 1 && partial != 0)
        return sl_fail(SL_ERR_UNSUPPORTED, "%s: %s: partial_rotary_factor must be 1 here", label, name);
    if (keys->partial)
        rope->partial_rotary_factor = partial;
    SL_TRY(read_details(label, name, object, positions, rope));
done:
    return status;
}

sl_status sl_nn_read_rope(const char *label, const json_t *root, const rope_keys *keys, int64_t positions,
                          sl_rope_config *rope)
{
    sl_status status = SL_OK;
    double original = 0; /* what the root says goes before what the object says */
    const json_t *object = json_object_get(root, "rope_parameters");
    if (!object || json_is_null(object))
        object = json_object_get(root, "rope_scaling");
    SL_TRY(read_real(label, root, keys->theta, &rope->theta));
    if (keys->partial)
        SL_TRY(read_real(label, root, keys->partial, &rope->partial_rotary_factor));
    SL_TRY(read_real(label, root, "original_max_position_embeddings", &original));
    if (!(original >= 0 && original <= INT32_MAX))
        return sl_fail(SL_ERR_FORMAT, "%s: original_max_position_embeddings %g is impossible", label, original);
    if (!object || json_is_null(object))
        return SL_OK;
    rope->original_max_position_embeddings = (int64_t)original;
    SL_TRY(sl_nn_read_rope_object(label, "rope_parameters", object, keys, positions, rope));
done:
    return status;
}

static void put_real(json_t *object, const char *key, double value)
{
    json_object_set_new(object, key, json_real(value));
}

static json_t *factors_json(const double *factors, int64_t count)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < count; i++)
        json_array_append_new(list, json_real(factors[i]));
    return list;
}

static void put_yarn(json_t *object, const sl_rope_config *rope)
{
    if (rope->beta_fast > 0)
        put_real(object, "beta_fast", rope->beta_fast);
    if (rope->beta_slow > 0)
        put_real(object, "beta_slow", rope->beta_slow);
    if (rope->mscale > 0)
        put_real(object, "mscale", rope->mscale);
    if (rope->mscale_all_dim > 0)
        put_real(object, "mscale_all_dim", rope->mscale_all_dim);
    if (rope->untruncated)
        json_object_set_new(object, "truncate", json_false());
}

json_t *sl_nn_rope_json(const sl_rope_config *rope, bool partial)
{
    json_t *object = json_pack("{s:s}", "rope_type", kind_names[rope->kind]);
    bool scales = rope->kind == SL_ROPE_YARN || rope->kind == SL_ROPE_LONGROPE;
    if (rope->kind != SL_ROPE_DEFAULT)
        put_real(object, "factor", rope->factor);
    if (scales || rope->kind == SL_ROPE_LLAMA3)
        json_object_set_new(object, "original_max_position_embeddings",
                            json_integer(rope->original_max_position_embeddings));
    if (scales && rope->attention_factor > 0)
        put_real(object, "attention_factor", rope->attention_factor);
    if (rope->kind == SL_ROPE_LLAMA3) {
        put_real(object, "low_freq_factor", rope->low_freq_factor);
        put_real(object, "high_freq_factor", rope->high_freq_factor);
    }
    if (rope->kind == SL_ROPE_YARN)
        put_yarn(object, rope);
    if (rope->kind == SL_ROPE_LONGROPE) {
        json_object_set_new(object, "short_factor", factors_json(rope->short_factor, rope->factor_count));
        json_object_set_new(object, "long_factor", factors_json(rope->long_factor, rope->factor_count));
    }
    put_real(object, "rope_theta", rope->theta);
    if (partial)
        put_real(object, "partial_rotary_factor", rope->partial_rotary_factor == 0 ? 1 : rope->partial_rotary_factor);
    return object;
}

void sl_nn_write_rope(json_t *root, const rope_keys *keys, const sl_rope_config *rope)
{
    json_t *parameters = sl_nn_rope_json(rope, keys->partial != NULL);
    json_t *scaling = rope->kind == SL_ROPE_DEFAULT ? json_null() : json_deep_copy(parameters);
    json_object_del(scaling, "rope_theta");
    json_object_del(scaling, "partial_rotary_factor");
    json_object_set_new(root, "rope_scaling", scaling);
    put_real(root, keys->theta, rope->theta);
    if (keys->partial)
        put_real(root, keys->partial, rope->partial_rotary_factor == 0 ? 1 : rope->partial_rotary_factor);
    if (rope->kind == SL_ROPE_LONGROPE)
        json_object_set_new(root, "original_max_position_embeddings",
                            json_integer(rope->original_max_position_embeddings));
    json_object_set_new(root, "rope_parameters", parameters);
}
