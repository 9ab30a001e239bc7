/* What the ranks of this machine cost each other beside their layers, measured by threads that play all of them at once:
 * rounds of small collectives, messages, the exchange between replicas, and the optimizer. */
#include "tune/tune.h"

#include "base/alloc.h"
#include "base/thread.h"
#include "base/units.h"
#include "comm/launch/launch.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { REPEATS = 9, SMALL = 8, ROUNDS = 20, MOST_BYTES = 32 << 20, LEAST_BYTES = 1 << 16, CACHE_LINE = 64 };

typedef struct machine_probe {
    const tune_model *model;
    int ranks;
    double cores;      /* ranks that can work at once */
    double grad_bytes; /* of the whole model */
    double elements;   /* of its parameters */
} machine_probe;

/* A thread that plays one rank. */
typedef struct machine_rank machine_rank;
struct machine_rank {
    const machine_probe *probe;
    sl_status (*measure)(machine_rank *);
    sl_group *world;
    sl_group *group; /* of the collective that is timed */
    sl_device *device;
    sl_stream *stream;
    char *data, *result; /* as much memory as a rank of the shortest pipeline exchanges, each */
    size_t bytes;        /* of it that is used */
    char *scrub;         /* as much memory as the caches have, or NULL: walked through before each timed call */
    size_t scrub_bytes;
    sl_dtype dtype;
    sl_optimizer *optimizer;
    int64_t updates;
    tune_machine found;
    sl_status status;
    char message[512];
};

/* ---- What is timed --------------------------------------------------------------------------- */

static sl_status call_round(machine_rank *rank)
{
    sl_status status = SL_OK;
    for (int i = 0; i < ROUNDS && status == SL_OK; i++)
        status = sl_group_all_gather(rank->world, rank->data, SMALL, rank->result);
    return status;
}

/* There and back. */
static sl_status call_messages(machine_rank *rank)
{
    sl_status status = SL_OK;
    for (int i = 0; i < 2 * ROUNDS && status == SL_OK && sl_group_size(rank->group) > 1; i++)
        status = sl_group_broadcast(rank->group, i % 2, rank->data, rank->bytes);
    return status;
}

static int64_t count_of(const machine_rank *rank)
{
    return (int64_t)(rank->bytes / sl_dtype_size(rank->dtype));
}

static sl_status call_all_reduce(machine_rank *rank)
{
    return sl_group_all_reduce(rank->group, rank->data, count_of(rank), rank->dtype, SL_REDUCE_SUM);
}

static sl_status call_reduce_scatter(machine_rank *rank)
{
    return sl_group_reduce_scatter(rank->group, rank->data, rank->result, count_of(rank) / sl_group_size(rank->group),
                                   rank->dtype, SL_REDUCE_SUM);
}

static sl_status call_all_gather(machine_rank *rank)
{
    return sl_group_all_gather(rank->group, rank->data, rank->bytes / (size_t)sl_group_size(rank->group), rank->result);
}

static sl_status call_update(machine_rank *rank)
{
    double sum = 0;
    sl_status status = sl_optimizer_square_sums(rank->optimizer, rank->stream, &sum);
    if (status == SL_OK)
        status = sl_optimizer_step(rank->optimizer, rank->stream, ++rank->updates, 1e-3, 1);
    return status == SL_OK ? sl_stream_synchronize(rank->stream) : status;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Between two exchanges a step works on other memory: weights and gradients are in no cache when their turn comes. */
static void scrub_caches(machine_rank *rank)
{
    for (size_t i = 0; rank->scrub && i < rank->scrub_bytes; i += CACHE_LINE)
        rank->scrub[i]++;
}

/* Seconds until all ranks have done it: the median. */
static sl_status time_call(machine_rank *rank, sl_status (*call)(machine_rank *), double *out)
{
    sl_status status = SL_OK;
    double seconds[REPEATS];
    SL_TRY(call(rank)); /* warms up */
    for (int i = 0; i < REPEATS; i++) {
        scrub_caches(rank);
        SL_TRY(sl_group_barrier(rank->world));
        double start = sl_now();
        SL_TRY(call(rank));
        SL_TRY(sl_group_barrier(rank->world));
        seconds[i] = sl_now() - start;
    }
    qsort(seconds, REPEATS, sizeof *seconds, by_value);
    *out = seconds[REPEATS / 2];
done:
    return status;
}

/* ---- One rank -------------------------------------------------------------------------------- */

/* So much of `whole` as a rank of this pipeline has, in pieces that dp replicas can share evenly. */
static size_t share_of(double whole, int pp, int dp)
{
    size_t piece = 64 * (size_t)dp;
    double bytes = fmin(MOST_BYTES, fmax(LEAST_BYTES, whole / pp));
    return (size_t)bytes / piece * piece;
}

static sl_status time_messages(machine_rank *rank)
{
    sl_status status = SL_OK;
    double small = 0, large = 0;
    SL_TRY(sl_group_split(rank->world, sl_group_rank(rank->world) / 2, 0, &rank->group));
    rank->bytes = SMALL;
    SL_TRY(time_call(rank, call_messages, &small));
    rank->bytes = LEAST_BYTES;
    SL_TRY(time_call(rank, call_messages, &large));
    double more = fmax(large - small, 1e-3 * large) / (2 * ROUNDS);
    rank->found.messages =
        (sl_cluster_link){ .latency = small / (2 * ROUNDS), .bandwidth = (LEAST_BYTES - SMALL) / more };
done:
    sl_group_close(rank->group);
    rank->group = NULL;
    return status;
}

/* One number of replicas, as many groups of them at once as there are stages. */
static sl_status time_exchange(machine_rank *rank, int dp, tune_exchange *out)
{
    sl_status status = SL_OK;
    sl_group *pipeline = NULL;
    int pp = rank->probe->ranks / dp;
    double sum = 0, scatter = 0, gather = 0;
    SL_TRY(sl_group_mesh(rank->world, pp, dp, &pipeline, &rank->group));
    rank->bytes = share_of(rank->probe->grad_bytes, pp, dp);
    SL_TRY(time_call(rank, call_all_reduce, &sum));
    SL_TRY(time_call(rank, call_reduce_scatter, &scatter));
    SL_TRY(time_call(rank, call_all_gather, &gather));
    double bytes = (double)rank->bytes;
    *out = (tune_exchange){
        .dp = dp, .all_reduce = sum / bytes, .reduce_scatter = scatter / bytes, .all_gather = gather / bytes
    };
done:
    sl_group_close(pipeline);
    sl_group_close(rank->group);
    rank->group = NULL;
    return status;
}

static sl_status time_update(machine_rank *rank)
{
    sl_status status = SL_OK;
    const sl_train_config *config = rank->probe->model->config;
    const sl_optim_options options = sl_plan_optim_options(config);
    sl_dtype dtype = (sl_dtype)config->precision.dtype;
    int64_t count = (int64_t)share_of(rank->probe->grad_bytes, rank->probe->ranks, 1) / 8;
    double seconds = 0;
    const sl_optim_param param = { .name = "weight",
                                   .data = { .data = rank->data, .meta = sl_meta_make(dtype, 1, &count) },
                                   .grad = { .data = rank->result, .meta = sl_meta_make(rank->dtype, 1, &count) },
                                   .decay = true };
    SL_TRY(sl_optimizer_create(&options, rank->device, &param, 1, &rank->optimizer));
    SL_TRY(time_call(rank, call_update, &seconds));
    rank->found.update = seconds / (double)count;
done:
    sl_optimizer_destroy(rank->optimizer);
    rank->optimizer = NULL;
    return status;
}

/* What ranks wait for most of the time: long enough that they sleep. */
static sl_status time_waits(machine_rank *rank)
{
    sl_status status = SL_OK;
    SL_TRY(time_call(rank, call_round, &rank->found.round));
    rank->found.round /= ROUNDS;
    SL_TRY(time_messages(rank));
done:
    return status;
}

static size_t cache_bytes(void)
{
    long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE); /* 0 or -1: not known */
    return bytes > LEAST_BYTES && bytes < MOST_BYTES ? (size_t)bytes : MOST_BYTES;
}

/* What a pipeline of all ranks loses if they share cores. */
static sl_status time_waking(machine_rank *rank)
{
    tune_machine *found = &rank->found;
    return sl_tune_measure_waking(rank->world, rank->probe->cores, found->messages.latency, &found->waking);
}

/* Memory in no cache: see scrub_caches. */
static sl_status time_cold(machine_rank *rank, sl_status (*measure)(machine_rank *))
{
    sl_status status = SL_OK;
    rank->scrub_bytes = cache_bytes();
    SL_TRY(SL_NEW_ARRAY(rank->scrub, (int64_t)rank->scrub_bytes));
    SL_TRY(measure(rank));
done:
    sl_free(rank->scrub);
    rank->scrub = NULL;
    return status;
}

static sl_status time_exchanges(machine_rank *rank)
{
    sl_status status = SL_OK;
    tune_machine *found = &rank->found;
    for (int dp = 2; dp <= rank->probe->ranks && found->exchange_count < TUNE_EXCHANGES; dp++) {
        if (rank->probe->ranks % dp == 0)
            SL_TRY(time_exchange(rank, dp, &found->exchanges[found->exchange_count++]));
    }
done:
    return status;
}

static sl_status time_cold_exchanges(machine_rank *rank)
{
    return time_cold(rank, time_exchanges);
}

static sl_status time_cold_update(machine_rank *rank)
{
    return time_cold(rank, time_update);
}

static sl_status measure_with_memory(machine_rank *rank)
{
    sl_status status = SL_OK;
    const sl_train_config *config = rank->probe->model->config;
    void *block = NULL;
    size_t room = share_of(rank->probe->grad_bytes, 1, 1);
    rank->dtype = (sl_dtype)config->precision.grad;
    SL_TRY(sl_device_open("cpu", &(sl_device_options){ .threads = (int)config->parallel.threads }, &rank->device));
    SL_TRY(sl_stream_create(rank->device, &rank->stream));
    SL_TRY(sl_device_alloc(rank->device, 2 * room, &block));
    SL_TRY(sl_stream_memset(rank->stream, block, 0, 2 * room));
    SL_TRY(sl_stream_synchronize(rank->stream));
    rank->data = block;
    rank->result = rank->data + room;
    SL_TRY(rank->measure(rank));
done:
    sl_device_free(rank->device, block);
    sl_stream_destroy(rank->stream);
    sl_device_close(rank->device);
    return status;
}

static void *play_rank(void *user)
{
    machine_rank *rank = user;
    rank->status = sl_launch_bind_thread(rank->probe->ranks, (int)rank->probe->model->config->parallel.threads,
                                         sl_group_rank(rank->world));
    if (rank->status == SL_OK)
        rank->status = measure_with_memory(rank);
    if (rank->status != SL_OK) {
        snprintf(rank->message, sizeof rank->message, "%s", sl_error_message());
        sl_group_fail(rank->world, rank->status); /* nobody waits for this rank any more */
    }
    sl_group_close(rank->world);
    return NULL;
}

/* ---- All ------------------------------------------------------------------------------------- */

/* All of its numbers. */
enum { MACHINE_NUMBERS = 5 + 3 * TUNE_EXCHANGES };
static void list_numbers(tune_machine *machine, double *numbers[MACHINE_NUMBERS])
{
    int count = 0;
    numbers[count++] = &machine->round;
    numbers[count++] = &machine->update;
    numbers[count++] = &machine->waking;
    numbers[count++] = &machine->messages.latency;
    numbers[count++] = &machine->messages.bandwidth;
    for (int i = 0; i < TUNE_EXCHANGES; i++) {
        numbers[count++] = &machine->exchanges[i].all_reduce;
        numbers[count++] = &machine->exchanges[i].reduce_scatter;
        numbers[count++] = &machine->exchanges[i].all_gather;
    }
}

/* What all ranks took together is one rank's own time if they share processors. */
static void take_share(tune_machine *found, double share)
{
    for (int i = 0; i < found->exchange_count; i++) {
        found->exchanges[i].all_reduce *= share;
        found->exchanges[i].reduce_scatter *= share;
        found->exchanges[i].all_gather *= share;
    }
}

/* Adds what was found; *out has the lower quartiles of all moments, and of the bandwidth the upper one. */
static sl_status add_moment(tune_machine *found, tune_moments *moments, tune_machine *out)
{
    sl_status status = SL_OK;
    double *numbers[MACHINE_NUMBERS], values[MACHINE_NUMBERS];
    list_numbers(found, numbers);
    for (int i = 0; i < MACHINE_NUMBERS; i++)
        values[i] = *numbers[i];
    SL_TRY(sl_tune_moments_add(moments, values, MACHINE_NUMBERS));
    for (int i = 0; i < MACHINE_NUMBERS; i++)
        *numbers[i] = sl_tune_moments_quantile(moments, i, numbers[i] == &found->messages.bandwidth ? 0.75 : 0.25);
    *out = *found;
done:
    return status;
}

/* The failure that came first: the others' is that this one left. */
static sl_status first_failure(const machine_rank *all, int count)
{
    const machine_rank *worst = NULL;
    for (int r = 0; r < count; r++) {
        if (all[r].status != SL_OK && (!worst || worst->status == SL_ERR_PEER))
            worst = &all[r];
    }
    return worst ? sl_fail(worst->status, "measuring this machine: %s", worst->message) : SL_OK;
}

static void count_model(machine_probe *probe)
{
    const sl_param_list *params = probe->model->plan->params;
    for (int i = 0; i < sl_param_list_count(params); i++) {
        const sl_param_info *param = sl_param_list_at(params, i);
        const sl_meta meta = sl_meta_contiguous(param->dtype, &param->shape);
        probe->elements += (double)sl_meta_count(&meta);
    }
    probe->grad_bytes = probe->elements * (double)sl_dtype_size((sl_dtype)probe->model->config->precision.grad);
}

/* All ranks measure at once; what rank 0 has found is added to *found. */
static sl_status play_ranks(const machine_probe *probe, const sl_group_options *options,
                            sl_status (*measure)(machine_rank *), tune_machine *found)
{
    sl_status status = SL_OK;
    machine_rank *all = NULL;
    sl_group **groups = NULL;
    pthread_t *threads = NULL;
    int started = 0, ranks = probe->ranks;
    SL_TRY(SL_NEW_ARRAY(all, ranks));
    SL_TRY(SL_NEW_ARRAY(groups, ranks));
    SL_TRY(SL_NEW_ARRAY(threads, ranks));
    SL_TRY(sl_group_open_threads(ranks, options, groups));
    for (int r = 0; r < ranks; r++)
        all[r] = (machine_rank){ .probe = probe, .measure = measure, .world = groups[r], .found = *found };
    for (; started < ranks && status == SL_OK; started += status == SL_OK)
        status = sl_thread_start("measures the machine", play_rank, &all[started], &threads[started]);
    for (int r = started; r < ranks; r++) {
        sl_group_fail(groups[r], status);
        sl_group_close(groups[r]);
    }
    for (int r = 0; r < started; r++)
        pthread_join(threads[r], NULL);
    SL_TRY(status);
    SL_TRY(first_failure(all, ranks));
    *found = all[0].found;
done:
    sl_free(threads);
    sl_free(groups);
    sl_free(all);
    return status;
}

sl_status sl_tune_measure_machine(const tune_model *model, int ranks, double cores, tune_moments *moments,
                                  tune_machine *machine)
{
    sl_status status = SL_OK;
    machine_probe probe = { .model = model, .ranks = ranks, .cores = cores };
    tune_machine found = { 0 };
    int bound = 0;
    if (ranks < 2)
        return SL_OK;
    SL_TRY(sl_launch_count_shared(ranks, (int)model->config->parallel.threads, &bound));
    count_model(&probe);
    SL_TRY(play_ranks(&probe, &(sl_group_options){ .spin_us = -1 }, time_waits, &found));
    if (ranks > cores && cores > 1 && bound == 0)
        SL_TRY(play_ranks(&probe, NULL, time_waking, &found));
    SL_TRY(play_ranks(&probe, NULL, time_cold_exchanges, &found));
    probe.ranks = (int)fmin(ranks, cores); /* each rank updates by itself: as many at once as have a core */
    if (probe.ranks > 0)
        SL_TRY(play_ranks(&probe, NULL, time_cold_update, &found));
    take_share(&found, fmin(1, cores / ranks));
    SL_TRY(add_moment(&found, moments, machine));
done:
    return status;
}
