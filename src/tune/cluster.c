/* Clusters: read from YAML, or this machine as measured. */
#include "tune/tune.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/units.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <yaml.h>

/* ---- Files ----------------------------------------------------------------------------------- */

typedef enum cluster_value {
    CLUSTER_COUNT,
    CLUSTER_DEVICE,
    CLUSTER_MEMORY,
    CLUSTER_RATE,
    CLUSTER_SECONDS
} cluster_value;

/* A key of the file and where its value goes. */
typedef struct cluster_key {
    const char *section; /* "" for those of the document itself */
    const char *key;
    cluster_value type;
    size_t offset;
    bool optional;
} cluster_key;

#define CLUSTER_AT(field) offsetof(sl_cluster, field)
static const cluster_key cluster_keys[] = {
    { .section = "", .key = "machines", .type = CLUSTER_COUNT, .offset = CLUSTER_AT(machines) },
    { .section = "", .key = "devices", .type = CLUSTER_COUNT, .offset = CLUSTER_AT(devices) },
    { .section = "", .key = "device", .type = CLUSTER_DEVICE, .offset = CLUSTER_AT(processors), .optional = true },
    { .section = "", .key = "memory", .type = CLUSTER_MEMORY, .offset = CLUSTER_AT(memory) },
    { .section = "", .key = "flops", .type = CLUSTER_RATE, .offset = CLUSTER_AT(flops_per_s) },
    { .section = "", .key = "bandwidth", .type = CLUSTER_RATE, .offset = CLUSTER_AT(bytes_per_s) },
    { .section = "", .key = "kernel", .type = CLUSTER_SECONDS, .offset = CLUSTER_AT(kernel_seconds), .optional = true },
    { .section = "inside", .key = "latency", .type = CLUSTER_SECONDS, .offset = CLUSTER_AT(inside.latency) },
    { .section = "inside", .key = "bandwidth", .type = CLUSTER_RATE, .offset = CLUSTER_AT(inside.bandwidth) },
    { .section = "between", .key = "latency", .type = CLUSTER_SECONDS, .offset = CLUSTER_AT(between.latency) },
    { .section = "between", .key = "bandwidth", .type = CLUSTER_RATE, .offset = CLUSTER_AT(between.bandwidth) },
};
enum { CLUSTER_KEYS = sizeof cluster_keys / sizeof *cluster_keys };

typedef struct cluster_reader {
    const char *path;
    yaml_parser_t parser;
    yaml_event_t event; /* the one at hand */
    sl_cluster cluster;
    bool seen[CLUSTER_KEYS];
} cluster_reader;

static sl_status fail_at(const cluster_reader *r, const char *key, const char *message)
{
    return sl_fail(SL_ERR_ARGUMENT, "%s:%zu:%zu: %.100s%s%s", r->path, r->event.start_mark.line + 1,
                   r->event.start_mark.column + 1, key, *key ? ": " : "", message);
}

static sl_status advance(cluster_reader *r)
{
    yaml_event_delete(&r->event);
    if (yaml_parser_parse(&r->parser, &r->event))
        return SL_OK;
    if (r->parser.error == YAML_MEMORY_ERROR)
        return sl_fail(SL_ERR_MEMORY, "read %s: out of memory", r->path);
    return sl_fail(SL_ERR_FORMAT, "%s:%zu:%zu: %s", r->path, r->parser.problem_mark.line + 1,
                   r->parser.problem_mark.column + 1, r->parser.problem ? r->parser.problem : "this is not YAML");
}

static const char *text_of(const cluster_reader *r)
{
    return (const char *)r->event.data.scalar.value;
}

static sl_status take_value(cluster_reader *r, const cluster_key *key)
{
    sl_status status = SL_OK;
    void *target = (char *)&r->cluster + key->offset;
    char what[512];
    int64_t count = 0;
    if (r->event.type != YAML_SCALAR_EVENT)
        return fail_at(r, key->key, "one value is expected here");
    snprintf(what, sizeof what, "%s:%zu:%zu: %s%s%s", r->path, r->event.start_mark.line + 1,
             r->event.start_mark.column + 1, key->section, *key->section ? "." : "", key->key);
    switch (key->type) {
    case CLUSTER_COUNT:
        SL_TRY(sl_parse_int(what, text_of(r), 1, SL_MAX_RANKS, &count));
        *(int *)target = (int)count;
        break;
    case CLUSTER_DEVICE:
        if (strcmp(text_of(r), "cpu") != 0 && strcmp(text_of(r), "gpu") != 0)
            return fail_at(r, key->key, "this is gpu or cpu");
        *(bool *)target = strcmp(text_of(r), "cpu") == 0;
        break;
    case CLUSTER_MEMORY:
        SL_TRY(sl_parse_memory(what, text_of(r), target));
        break;
    case CLUSTER_RATE:
        SL_TRY(sl_parse_double(what, text_of(r), 1, 1e30, target));
        break;
    case CLUSTER_SECONDS:
        SL_TRY(sl_parse_double(what, text_of(r), 0, 1e6, target));
        break;
    }
done:
    return status;
}

/* The keys of one mapping, whose start is at hand. */
static sl_status take_mapping(cluster_reader *r, const char *section)
{
    sl_status status = SL_OK;
    if (r->event.type != YAML_MAPPING_START_EVENT)
        return fail_at(r, section, "keys with values are expected here");
    for (;;) {
        char name[64];
        int i = 0;
        SL_TRY(advance(r));
        if (r->event.type == YAML_MAPPING_END_EVENT)
            return SL_OK;
        if (r->event.type != YAML_SCALAR_EVENT)
            return fail_at(r, section, "a key must be a plain word");
        snprintf(name, sizeof name, "%s", text_of(r));
        bool link = !*section && (strcmp(name, "inside") == 0 || strcmp(name, "between") == 0);
        while (i < CLUSTER_KEYS &&
               (strcmp(cluster_keys[i].section, section) != 0 || strcmp(cluster_keys[i].key, name) != 0))
            i++;
        if (!link && i == CLUSTER_KEYS)
            return fail_at(r, name,
                           *section ? "there is no such key; a link has latency and bandwidth"
                                    : "there is no such key; there are machines, devices, device, memory, flops, "
                                      "bandwidth, kernel, inside and between");
        if (!link && r->seen[i])
            return fail_at(r, name, "this is given a second time");
        if (!link)
            r->seen[i] = true;
        SL_TRY(advance(r));
        SL_TRY(link ? take_mapping(r, name) : take_value(r, &cluster_keys[i]));
    }
done:
    return status;
}

static sl_status check_cluster(const cluster_reader *r)
{
    for (int i = 0; i < CLUSTER_KEYS; i++) {
        const cluster_key *key = &cluster_keys[i];
        if (!r->seen[i] && strcmp(key->section, "between") != 0 && !key->optional)
            return sl_fail(SL_ERR_ARGUMENT, "%s: %s%s%s is missing", r->path, key->section, *key->section ? "." : "",
                           key->key);
    }
    if (r->cluster.machines > 1 && r->cluster.between.bandwidth == 0)
        return sl_fail(SL_ERR_ARGUMENT, "%s: between.bandwidth is missing, and there are %d machines", r->path,
                       r->cluster.machines);
    if ((int64_t)r->cluster.machines * r->cluster.devices > SL_MAX_RANKS)
        return sl_fail(SL_ERR_ARGUMENT, "%s: %d machines with %d devices each; %d devices are the limit", r->path,
                       r->cluster.machines, r->cluster.devices, SL_MAX_RANKS);
    return SL_OK;
}

sl_status sl_cluster_load(const char *path, sl_cluster *out)
{
    sl_status status = SL_OK;
    cluster_reader r = { .path = path, .cluster.kernel_seconds = -1 };
    FILE *file = NULL;
    bool open = false;
    SL_TRY(sl_file_open_stream(path, &file));
    open = yaml_parser_initialize(&r.parser);
    if (!open)
        SL_TRY(sl_fail(SL_ERR_MEMORY, "read %s: out of memory", path));
    yaml_parser_set_input_file(&r.parser, file);
    SL_TRY(advance(&r)); /* the stream */
    SL_TRY(advance(&r)); /* the document */
    SL_TRY(advance(&r));
    SL_TRY(take_mapping(&r, ""));
    SL_TRY(check_cluster(&r));
    if (r.cluster.kernel_seconds < 0)
        r.cluster.kernel_seconds = r.cluster.processors ? 0 : SL_GPU_KERNEL_SECONDS;
    *out = r.cluster;
done:
    yaml_event_delete(&r.event);
    if (open)
        yaml_parser_delete(&r.parser);
    if (file)
        fclose(file);
    return status;
}

/* ---- This machine ---------------------------------------------------------------------------- */

double sl_tune_cores(void)
{
    cpu_set_t own;
    return sched_getaffinity(0, sizeof own, &own) == 0 ? CPU_COUNT(&own) : (double)sysconf(_SC_NPROCESSORS_ONLN);
}

sl_status sl_cluster_measure(const sl_train_config *config, int ranks, sl_cluster *out)
{
    sl_status status = SL_OK;
    sl_device *device = NULL;
    sl_rates rates = { 0 };
    double threads = (double)config->parallel.threads, cores = sl_tune_cores();
    SL_TRY(sl_device_open("cpu", &(sl_device_options){ .threads = (int)threads }, &device));
    SL_TRY(sl_plan_measure_rates(device, (sl_dtype)config->precision.dtype, config->batch.seq, config->model.n_embd,
                                 &rates));
    *out = (sl_cluster){
        .machines = 1,
        .devices = ranks,
        .memory = config->parallel.memory_gb > 0 ? config->parallel.memory_gb * 1e9 : sl_plan_machine_memory() / ranks,
        .flops_per_s = rates.flops_per_s,
        .bytes_per_s = rates.bytes_per_s,
        .inside = { .latency = 20e-6,
                    .bandwidth = rates.bytes_per_s / 2 }, /* a rank wakes up, and reads what one wrote */
        .shared_cores = fmax(1, cores / threads),
        .processors = true,
    };
done:
    sl_device_close(device);
    return status;
}
