/* Compares what runs leave behind, for the tests of the command line. Exit 0 if they agree, 1 if they differ (the
 * worst difference is printed), 2 if something cannot be read.
 *
 *   compare tensors A B TOLERANCE   two safetensors files: the norm of the difference over that of B, per tensor
 *   compare elements A B TOLERANCE  the same files: the largest difference of two elements
 *   compare curve METRICS CURVE TOLERANCE   losses of metrics.jsonl against the list "loss" of a JSON file
 *   compare bf16_curve METRICS CURVE BF16    losses of a run in bf16: their distance (root of the mean square) to the
 *                                   f32 losses of CURVE is no larger than that of the losses in BF16
 *   compare bf16_places PLACES METRICS...    losses of runs in bf16 at the first of the places in the data that PLACES has:
 *                                   on the mean their distance to f32 is no larger than that of PyTorch's bf16
 *   compare bf16_tensors A B BF16   tensors of a run in bf16 and of one in f32: the norm of the difference over that of B
 *                                   is at most twice its gradient_error in BF16
 *   compare bf16_weights A B BF16   the same of all tensors together: at most weights_error in BF16
 *   compare metrics A B             step, loss, grad_norm and lr of two metrics.jsonl, digit by digit; lines of
 *                                   restarts do not count
 *   compare checkpoints A B         all tensors of two checkpoints, bit by bit
 *   compare files A B               all tensors of two safetensors files, bit by bit
 *   compare subset A B              the same of those in A; B may have more
 */
#include <sluice/shard.h>

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int unreadable(const char *what)
{
    fprintf(stderr, "compare: %s\n", what);
    return 2;
}

/* ---- Tensors --------------------------------------------------------------------------------- */

/* All values of a tensor; the caller frees them. NULL if they cannot be read. */
static float *values_of(const sl_tensor_entry *entry)
{
    float *values = malloc((size_t)entry->count * sizeof *values + 1);
    if (values && sl_tensor_entry_read_f32(entry, 0, entry->count, values) == SL_OK)
        return values;
    free(values);
    return NULL;
}

/* Norm of the difference over that of b; -1 if shapes or types differ. */
static double relative_error(const sl_tensor_entry *a, const sl_tensor_entry *b)
{
    if (a->dtype != SL_F32 || b->dtype != SL_F32 || !sl_shape_equal(&a->shape, &b->shape))
        return -1;
    float *x = values_of(a), *y = values_of(b);
    double difference = x && y ? 0 : NAN, size = 0;
    for (int64_t i = 0; x && y && i < a->count; i++) {
        difference += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
        size += (double)y[i] * (double)y[i];
    }
    free(x);
    free(y);
    return sqrt(difference) / (sqrt(size) > 0 ? sqrt(size) : 1);
}

static double norm_of(const sl_tensor_entry *entry)
{
    float *values = values_of(entry);
    double sum = values ? 0 : NAN;
    for (int64_t i = 0; values && i < entry->count; i++)
        sum += (double)values[i] * (double)values[i];
    free(values);
    return sqrt(sum);
}

/* The largest difference of two elements; -1 if shapes or types differ. */
static double largest_error(const sl_tensor_entry *a, const sl_tensor_entry *b)
{
    if (a->dtype != SL_F32 || b->dtype != SL_F32 || !sl_shape_equal(&a->shape, &b->shape))
        return -1;
    float *x = values_of(a), *y = values_of(b);
    double largest = x && y ? 0 : NAN;
    for (int64_t i = 0; x && y && i < a->count; i++) {
        double difference = fabs((double)x[i] - (double)y[i]);
        largest = difference > largest || isnan(difference) ? difference : largest;
    }
    free(x);
    free(y);
    return largest;
}

static int compare_tensors(const char *path_a, const char *path_b, double tolerance,
                           double (*error_of)(const sl_tensor_entry *, const sl_tensor_entry *))
{
    sl_safetensors *a = NULL, *b = NULL;
    if (sl_safetensors_open(path_a, &a) != SL_OK || sl_safetensors_open(path_b, &b) != SL_OK)
        return unreadable(sl_error_message());
    double worst = 0;
    const char *where = "none";
    int code = 0;
    for (int i = 0; i < sl_safetensors_count(b); i++) {
        const sl_tensor_entry *expected = sl_safetensors_at(b, i), *given = sl_safetensors_find(a, expected->name);
        double error = given ? error_of(given, expected) : -1;
        if (!(error >= 0 && error <= tolerance)) {
            printf("%s: %s\n", expected->name, given ? "differs" : "missing");
            code = 1;
        }
        if (error > worst) {
            worst = error;
            where = expected->name;
        }
    }
    for (int i = 0; i < sl_safetensors_count(a); i++) {
        if (!sl_safetensors_find(b, sl_safetensors_at(a, i)->name)) {
            printf("%s: superfluous\n", sl_safetensors_at(a, i)->name);
            code = 1;
        }
    }
    printf("%d tensors, worst %.3g (%s), allowed %.3g\n", sl_safetensors_count(b), worst, where, tolerance);
    sl_safetensors_close(a);
    sl_safetensors_close(b);
    return code;
}

/* Of a run in bf16 and one in f32: each tensor's error, or that of all together, against what is on record. */
static int compare_bf16_tensors(const char *path_a, const char *path_b, const char *bf16_path, bool together)
{
    sl_safetensors *a = NULL, *b = NULL;
    json_t *bf16 = json_load_file(bf16_path, 0, NULL), *errors = json_object_get(bf16, "gradient_error"), *one;
    const char *name;
    double difference = 0, size = 0, allowed = 0, worst = 0;
    int code = 0;
    if (sl_safetensors_open(path_a, &a) != SL_OK || sl_safetensors_open(path_b, &b) != SL_OK)
        return unreadable(sl_error_message());
    if (!errors)
        return unreadable("the errors of bf16 cannot be read");
    for (int i = 0; i < sl_safetensors_count(b); i++) {
        const sl_tensor_entry *expected = sl_safetensors_at(b, i), *given = sl_safetensors_find(a, expected->name);
        double error = given ? relative_error(given, expected) : -1, norm = norm_of(expected);
        double record = json_number_value(json_object_get(errors, expected->name));
        if (error < 0 || (!together && !(error <= 2 * record))) {
            printf("%s: %s, %.3g, on record %.3g\n", expected->name, given ? "differs" : "missing", error, record);
            code = 1;
        }
        worst = error / record > worst ? error / record : worst;
        difference += error * error * norm * norm;
        size += norm * norm;
    }
    json_object_foreach(json_object_get(bf16, "weights_error"), name, one) allowed =
        json_number_value(one) > allowed ? json_number_value(one) : allowed;
    if (together)
        printf("error of all tensors %.4g, allowed %.4g\n", sqrt(difference / size), allowed);
    else
        printf("%d tensors, worst %.3g of what is on record, allowed 2\n", sl_safetensors_count(b), worst);
    code |= together && !(sqrt(difference / size) <= allowed);
    sl_safetensors_close(a);
    sl_safetensors_close(b);
    json_decref(bf16);
    return code;
}

static bool same_bits(const sl_tensor_entry *a, const sl_tensor_entry *b)
{
    bool same = false;
    return b && sl_tensor_entry_compare(a, b, &same) == SL_OK && same;
}

static int compare_checkpoints(const char *path_a, const char *path_b)
{
    sl_checkpoint *a = NULL, *b = NULL;
    if (sl_checkpoint_open(path_a, true, &a) != SL_OK || sl_checkpoint_open(path_b, true, &b) != SL_OK)
        return unreadable(sl_error_message());
    int code = sl_checkpoint_step(a) != sl_checkpoint_step(b) || sl_checkpoint_count(a) != sl_checkpoint_count(b);
    for (int i = 0; i < sl_checkpoint_count(a); i++) {
        const sl_tensor_entry *entry = sl_checkpoint_at(a, i);
        if (!same_bits(entry, sl_checkpoint_find(b, entry->name))) {
            printf("%s differs\n", entry->name);
            code = 1;
        }
    }
    printf("%d tensors %s\n", sl_checkpoint_count(a), code ? "DIFFER" : "equal");
    sl_checkpoint_close(a);
    sl_checkpoint_close(b);
    return code;
}

static int compare_files(const char *path_a, const char *path_b, bool subset)
{
    sl_safetensors *a = NULL, *b = NULL;
    if (sl_safetensors_open(path_a, &a) != SL_OK || sl_safetensors_open(path_b, &b) != SL_OK)
        return unreadable(sl_error_message());
    int code = !subset && sl_safetensors_count(a) != sl_safetensors_count(b);
    for (int i = 0; i < sl_safetensors_count(a); i++) {
        const sl_tensor_entry *entry = sl_safetensors_at(a, i);
        if (!same_bits(entry, sl_safetensors_find(b, entry->name))) {
            printf("%s differs\n", entry->name);
            code = 1;
        }
    }
    printf("%d tensors %s\n", sl_safetensors_count(a), code ? "DIFFER" : "equal");
    sl_safetensors_close(a);
    sl_safetensors_close(b);
    return code;
}

/* ---- Metrics --------------------------------------------------------------------------------- */

/* The lines of a metrics.jsonl as an array; NULL if it cannot be read. */
static json_t *read_metrics(const char *path)
{
    char line[4096];
    FILE *file = fopen(path, "r");
    if (!file)
        return NULL;
    json_t *all = json_array();
    while (fgets(line, sizeof line, file)) {
        json_t *one = json_loads(line, 0, NULL);
        if (json_object_get(one, "restart")) {
            json_decref(one);
            continue;
        }
        if (!one || json_array_append_new(all, one) != 0) {
            json_decref(all);
            fclose(file);
            return NULL;
        }
    }
    fclose(file);
    return all;
}

static int compare_curve(const char *metrics_path, const char *curve_path, double tolerance)
{
    json_t *metrics = read_metrics(metrics_path), *curve = json_load_file(curve_path, 0, NULL);
    json_t *losses = json_object_get(curve, "loss");
    if (!metrics || !losses)
        return unreadable("the metrics or the curve cannot be read");
    double worst = 0;
    size_t count = json_array_size(losses);
    int code = json_array_size(metrics) != count;
    for (size_t i = 0; i < count; i++) {
        double given = json_number_value(json_object_get(json_array_get(metrics, i), "loss"));
        double error = fabs(given - json_number_value(json_array_get(losses, i)));
        worst = error > worst ? error : worst;
        code |= !(error <= tolerance);
    }
    printf("%zu steps, worst %.3g, allowed %.3g\n", count, worst, tolerance);
    json_decref(metrics);
    json_decref(curve);
    return code;
}

/* Root of the mean square of the differences to `expected`; a number of the list, or its member "loss". */
static double curve_distance(const json_t *list, const json_t *expected)
{
    double sum = 0;
    size_t count = json_array_size(expected);
    if (json_array_size(list) != count || count == 0)
        return NAN;
    for (size_t i = 0; i < count; i++) {
        const json_t *one = json_array_get(list, i);
        double given = json_number_value(json_is_object(one) ? json_object_get(one, "loss") : one);
        double difference = given - json_number_value(json_array_get(expected, i));
        sum += difference * difference;
    }
    return sqrt(sum / (double)count);
}

static int compare_bf16_curve(const char *metrics_path, const char *curve_path, const char *bf16_path)
{
    json_t *metrics = read_metrics(metrics_path), *curve = json_load_file(curve_path, 0, NULL);
    json_t *bf16 = json_load_file(bf16_path, 0, NULL), *losses = json_object_get(curve, "loss"), *one;
    const char *name;
    double allowed = 0;
    if (!metrics || !losses || !bf16)
        return unreadable("the metrics or a curve cannot be read");
    json_object_foreach(json_object_get(bf16, "loss"), name, one)
    {
        double distance = curve_distance(one, losses);
        allowed = distance > allowed ? distance : allowed;
    }
    double given = curve_distance(metrics, losses);
    printf("distance to f32 %.3g, allowed %.3g\n", given, allowed);
    json_decref(metrics);
    json_decref(curve);
    json_decref(bf16);
    return !(given <= allowed);
}

/* The mean of several numbers and its standard error. */
typedef struct estimate {
    double mean, error;
} estimate;

static estimate estimate_mean(const double *values, int count)
{
    double sum = 0, squares = 0;
    for (int i = 0; i < count; i++)
        sum += values[i];
    for (int i = 0; i < count; i++)
        squares += (values[i] - sum / count) * (values[i] - sum / count);
    return (estimate){ .mean = sum / count, .error = sqrt(squares / (count - 1) / count) };
}

/* A place that amplifies what rounding does, does so in every run: distances differ between places by factors. So what
 * counts of a place is the logarithm of our distance over PyTorch's, which is the geometric mean over its kinds of
 * attention. Their mean may not be above 0. Its standard error says how much of it is chance. */
static int compare_bf16_places(const char *places_path, char **metrics_paths, int count)
{
    enum { MOST = 64 };
    double ratios[MOST], our_logs[MOST];
    json_t *places = json_load_file(places_path, 0, NULL), *curves = json_object_get(places, "f32"), *distances;
    json_t *bf16 = json_object_get(places, "bf16");
    const char *name;
    if (!bf16 || count < 2 || count > MOST || (size_t)count > json_array_size(curves))
        return unreadable("the places cannot be read, or there are more metrics");
    for (int i = 0; i < count; i++) {
        json_t *metrics = read_metrics(metrics_paths[i]);
        our_logs[i] = ratios[i] = log(curve_distance(metrics, json_array_get(curves, (size_t)i)));
        json_object_foreach(bf16, name, distances) ratios[i] -=
            log(json_number_value(json_array_get(distances, (size_t)i))) / (double)json_object_size(bf16);
        json_decref(metrics);
    }
    json_decref(places);
    const estimate ratio = estimate_mean(ratios, count), ours = estimate_mean(our_logs, count);
    printf("%d places: distance to f32 %.3g, %.3f of PyTorch's (%.3f to %.3f by its standard error), allowed 1\n",
           count, exp(ours.mean), exp(ratio.mean), exp(ratio.mean - ratio.error), exp(ratio.mean + ratio.error));
    return !(ratio.mean <= 0);
}

static int compare_metrics(const char *path_a, const char *path_b)
{
    static const char *const keys[] = { "step", "loss", "grad_norm", "lr" };
    json_t *a = read_metrics(path_a), *b = read_metrics(path_b);
    if (!a || !b)
        return unreadable("the metrics cannot be read");
    int code = json_array_size(a) != json_array_size(b);
    for (size_t i = 0; i < json_array_size(a); i++) {
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
            json_t *x = json_object_get(json_array_get(a, i), keys[k]);
            json_t *y = json_object_get(json_array_get(b, i), keys[k]);
            if (!json_is_number(x) || !json_is_number(y) || json_number_value(x) != json_number_value(y)) {
                printf("line %zu: %s differs\n", i + 1, keys[k]);
                code = 1;
            }
        }
    }
    printf("%zu and %zu lines %s\n", json_array_size(a), json_array_size(b), code ? "DIFFER" : "equal");
    json_decref(a);
    json_decref(b);
    return code;
}

int main(int argc, char **argv)
{
    if (argc == 5 && strcmp(argv[1], "tensors") == 0)
        return compare_tensors(argv[2], argv[3], atof(argv[4]), relative_error);
    if (argc == 5 && strcmp(argv[1], "elements") == 0)
        return compare_tensors(argv[2], argv[3], atof(argv[4]), largest_error);
    if (argc == 5 && strcmp(argv[1], "curve") == 0)
        return compare_curve(argv[2], argv[3], atof(argv[4]));
    if (argc == 5 && strcmp(argv[1], "bf16_curve") == 0)
        return compare_bf16_curve(argv[2], argv[3], argv[4]);
    if (argc >= 4 && strcmp(argv[1], "bf16_places") == 0)
        return compare_bf16_places(argv[2], argv + 3, argc - 3);
    if (argc == 5 && strncmp(argv[1], "bf16_", 5) == 0)
        return compare_bf16_tensors(argv[2], argv[3], argv[4], strcmp(argv[1], "bf16_weights") == 0);
    if (argc == 4 && strcmp(argv[1], "metrics") == 0)
        return compare_metrics(argv[2], argv[3]);
    if (argc == 4 && strcmp(argv[1], "checkpoints") == 0)
        return compare_checkpoints(argv[2], argv[3]);
    if (argc == 4 && strcmp(argv[1], "files") == 0)
        return compare_files(argv[2], argv[3], false);
    if (argc == 4 && strcmp(argv[1], "subset") == 0)
        return compare_files(argv[2], argv[3], true);
    return unreadable(
        "usage: compare tensors|elements|curve|metrics|checkpoints|files|subset|bf16_... A B [TOLERANCE | BF16]");
}
