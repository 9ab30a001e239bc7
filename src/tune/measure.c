/* Seconds of units measured here: two of each kind in the order of the model, in as many threads at once as ranks will
 * work at once, so that what processors share (caches, memory) is shared here as well. If ranks are more than cores, once
 * with one a core and once with all: those that take turns on a core find its caches full of the others' data. */
#include "tune/tune.h"

#include "base/alloc.h"
#include "base/thread.h"
#include "comm/launch/launch.h"

#include <math.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

enum { LEAST_PASSES = 2, MOST_PASSES = 8, SAME_KIND = 2 };
/* What is timed of a unit: its phases, and packing its weights for them. */
enum { TIMED_PACK_F = SL_PHASE_COUNT, TIMED_PACK_I, TIMED_COUNT };
static const double PASS_SECONDS = 0.03; /* that are enough beyond the least number of passes */

/* The programs that are measured. */
typedef struct chain {
    sl_stage_program **programs;
    int *kinds;
    int count, kind_count;
    bool packs;  /* weights are packed once for several microbatches, and the gradients of these add up */
    int threads; /* of a device */
    int copies;  /* that run at once */
    const char *device;
    pthread_mutex_t gate; /* held until all threads are there */
    bool abandoned;       /* they are not: nothing is run */
    pthread_barrier_t barrier;
    bool stop; /* set by the first thread between two barriers */
} chain;

/* Memory and pointers of one unit in one thread. */
typedef struct unit_memory {
    const void **params, **inputs, **output_grads;
    void **grads, **outputs, **input_grads;
    sl_bindings bindings;
} unit_memory;

/* One thread's copy. */
typedef struct chain_copy {
    chain *chain;
    int number; /* the first is 0 */
    sl_device *device;
    sl_stream *stream;
    sl_arena *arena;
    void **blocks; /* of the device */
    int block_count;
    size_t block_capacity;
    unit_memory *units;
    double *sums; /* (kind, what is timed) seconds */
    int *counts;  /* (kind, what is timed) */
    sl_status status;
    char message[512];
} chain_copy;

/* ---- Memory ---------------------------------------------------------------------------------- */

static sl_status take_block(chain_copy *copy, size_t bytes, int byte, void **out)
{
    sl_status status = SL_OK;
    void *block = NULL;
    SL_TRY(SL_GROW(copy->blocks, &copy->block_capacity, copy->block_count + 1));
    SL_TRY(sl_device_alloc(copy->device, bytes, &block));
    copy->blocks[copy->block_count++] = block;
    SL_TRY(sl_stream_memset(copy->stream, block, byte, bytes));
    *out = block;
done:
    return status;
}

/* Numbers of about 0.01; indices are 0, which every table has. */
static int filling(sl_dtype dtype)
{
    return dtype == SL_I32 || dtype == SL_I64 ? 0 : 0x3c;
}

static size_t port_bytes(const sl_port *port, bool grads)
{
    return grads ? port->grad_bytes : port->bytes;
}

static sl_status take_ports(chain_copy *copy, const sl_port *ports, int count, bool grads, void ***out)
{
    sl_status status = SL_OK;
    void **pointers = NULL;
    SL_TRY(SL_ARENA_ARRAY(copy->arena, pointers, count + 1));
    for (int i = 0, end = 0; i < count; i = end) { /* with those that must lie right behind it */
        size_t bytes = port_bytes(&ports[i], grads);
        for (end = i + 1; end < count && ports[end].follows; end++)
            bytes += port_bytes(&ports[end], grads);
        SL_TRY(take_block(copy, bytes, filling(ports[i].dtype), &pointers[i]));
        for (int k = i + 1; k < end; k++)
            pointers[k] = (char *)pointers[k - 1] + port_bytes(&ports[k - 1], grads);
    }
    *out = pointers;
done:
    return status;
}

/* Places in documents: each row is one, which is the most work that there can be. */
static sl_status fill_positions(chain_copy *copy, const sl_program_info *info, const void *const *inputs)
{
    sl_status status = SL_OK;
    int32_t *places = NULL;
    for (int i = 0; i < info->input_count; i++) {
        const sl_port *port = &info->inputs[i];
        if (!port->root || strcmp(port->name, "positions") != 0)
            continue;
        int64_t seq = port->shape.dims[1], count = port->shape.dims[0] * seq;
        SL_TRY(SL_NEW_ARRAY(places, count));
        for (int64_t n = 0; n < count; n++)
            places[n] = (int32_t)(n % seq);
        SL_TRY(sl_stream_copy(copy->stream, SL_COPY_HOST_TO_DEVICE, (void *)inputs[i], places, port->bytes));
        SL_TRY(sl_stream_synchronize(copy->stream));
        sl_free(places);
        places = NULL;
    }
done:
    sl_free(places);
    return status;
}

static sl_status take_unit(chain_copy *copy, const sl_stage_program *program, unit_memory *unit)
{
    sl_status status = SL_OK;
    const sl_program_info *info = sl_stage_program_info(program);
    size_t scratch = 0;
    void *saved_i, *saved_w, *kept, *memory, *packed = NULL, *constants, *host = NULL;
    for (int p = 0; p < SL_PHASE_COUNT; p++)
        scratch = info->scratch_bytes[p] > scratch ? info->scratch_bytes[p] : scratch;
    SL_TRY(take_ports(copy, info->params, info->param_count, false, (void ***)&unit->params));
    SL_TRY(take_ports(copy, info->params, info->param_count, true, &unit->grads));
    SL_TRY(take_ports(copy, info->inputs, info->input_count, false, (void ***)&unit->inputs));
    SL_TRY(fill_positions(copy, info, unit->inputs));
    SL_TRY(take_ports(copy, info->inputs, info->input_count, false, &unit->input_grads));
    SL_TRY(take_ports(copy, info->outputs, info->output_count, false, &unit->outputs));
    SL_TRY(take_ports(copy, info->outputs, info->output_count, false, (void ***)&unit->output_grads));
    SL_TRY(take_block(copy, info->saved_i_bytes, 0, &saved_i));
    SL_TRY(take_block(copy, info->saved_w_bytes, 0, &saved_w));
    SL_TRY(take_block(copy, info->kept_bytes, 0, &kept));
    SL_TRY(take_block(copy, scratch, 0, &memory));
    if (info->packed_bytes > 0)
        SL_TRY(take_block(copy, info->packed_bytes, 0, &packed));
    SL_TRY(take_block(copy, info->constant_bytes, 0, &constants));
    SL_TRY(sl_alloc(1, info->constant_bytes, &host));
    sl_stage_program_constants(program, host);
    SL_TRY(sl_stream_copy(copy->stream, SL_COPY_HOST_TO_DEVICE, constants, host, info->constant_bytes));
    SL_TRY(sl_stream_synchronize(copy->stream));
    unit->bindings = (sl_bindings){ .params = unit->params,
                                    .grads = unit->grads,
                                    .overwrite_grads = !copy->chain->packs,
                                    .inputs = unit->inputs,
                                    .outputs = unit->outputs,
                                    .output_grads = unit->output_grads,
                                    .input_grads = unit->input_grads,
                                    .constants = constants,
                                    .saved_i = saved_i,
                                    .saved_w = saved_w,
                                    .kept = kept,
                                    .scratch = memory,
                                    .packed = packed,
                                    .rng = { .seed = 1, .training = true } };
done:
    sl_free(host);
    return status;
}

static void close_copy(chain_copy *copy)
{
    for (int i = 0; i < copy->block_count; i++)
        sl_device_free(copy->device, copy->blocks[i]);
    sl_free(copy->blocks);
    sl_stream_destroy(copy->stream);
    sl_device_close(copy->device);
    sl_arena_destroy(copy->arena);
}

static sl_status open_copy(chain_copy *copy)
{
    sl_status status = SL_OK;
    const chain *all = copy->chain;
    SL_TRY(sl_arena_create(&copy->arena));
    SL_TRY(sl_device_open(all->device, &(sl_device_options){ .threads = all->threads }, &copy->device));
    SL_TRY(sl_stream_create(copy->device, &copy->stream));
    SL_TRY(SL_ARENA_ARRAY(copy->arena, copy->units, all->count));
    for (int u = 0; u < all->count; u++)
        SL_TRY(take_unit(copy, all->programs[u], &copy->units[u]));
done:
    return status;
}

/* ---- Passes ---------------------------------------------------------------------------------- */

/* Of this thread's processor if it alone does the work: other programs then do not count. */
static double work_clock(const chain *all)
{
    struct timespec time;
    if (all->threads > 1 || clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) != 0)
        return sl_now();
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void add_sample(chain_copy *copy, int unit, int timed, double seconds)
{
    int cell = copy->chain->kinds[unit] * TIMED_COUNT + timed;
    copy->sums[cell] += seconds;
    copy->counts[cell]++;
}

static sl_status time_phase(chain_copy *copy, int unit, sl_phase phase, bool counts)
{
    sl_status status = SL_OK;
    const chain *all = copy->chain;
    double start = work_clock(all);
    SL_TRY(sl_stage_program_run(all->programs[unit], phase, copy->stream, &copy->units[unit].bindings));
    SL_TRY(sl_stream_synchronize(copy->stream));
    if (counts)
        add_sample(copy, unit, (int)phase, work_clock(all) - start);
done:
    return status;
}

/* As a step's first microbatch does before its F, and before its I or B. */
static sl_status time_packing(chain_copy *copy, int unit, sl_phase phase, bool counts)
{
    sl_status status = SL_OK;
    const chain *all = copy->chain;
    if (!copy->units[unit].bindings.packed)
        return SL_OK;
    double start = work_clock(all);
    SL_TRY(sl_stage_program_pack(all->programs[unit], phase, copy->stream, &copy->units[unit].bindings));
    SL_TRY(sl_stream_synchronize(copy->stream));
    if (counts)
        add_sample(copy, unit, phase == SL_PHASE_F ? TIMED_PACK_F : TIMED_PACK_I, work_clock(all) - start);
done:
    return status;
}

/* A microbatch through the chain and back, once with B and once with I and W. */
static sl_status run_pass(chain_copy *copy, bool counts)
{
    sl_status status = SL_OK;
    int count = copy->chain->count;
    for (int u = 0; u < count; u++) {
        SL_TRY(time_packing(copy, u, SL_PHASE_F, counts));
        SL_TRY(time_phase(copy, u, SL_PHASE_F, counts));
    }
    for (int u = count - 1; u >= 0; u--) {
        SL_TRY(time_packing(copy, u, SL_PHASE_I, counts));
        SL_TRY(time_phase(copy, u, SL_PHASE_B, counts));
    }
    for (int u = 0; u < count; u++)
        SL_TRY(time_phase(copy, u, SL_PHASE_F, counts));
    for (int u = count - 1; u >= 0; u--) {
        SL_TRY(time_phase(copy, u, SL_PHASE_I, counts));
        SL_TRY(time_phase(copy, u, SL_PHASE_W, counts));
    }
done:
    return status;
}

/* All copies make the same number of passes, each at the same time as the others. */
static void *run_copy(void *user)
{
    chain_copy *copy = user;
    chain *all = copy->chain;
    double start = 0;
    pthread_mutex_lock(&all->gate);
    bool abandoned = all->abandoned;
    pthread_mutex_unlock(&all->gate);
    if (abandoned)
        return NULL;
    copy->status = sl_launch_bind_thread(all->copies, all->threads, copy->number);
    if (copy->status == SL_OK)
        copy->status = open_copy(copy);
    for (int pass = 0; pass <= MOST_PASSES; pass++) {
        pthread_barrier_wait(&all->barrier);
        if (copy->status == SL_OK)
            copy->status = run_pass(copy, pass > 0); /* the first warms up */
        if (copy->number == 0 && pass == 0)
            start = sl_now();
        if (copy->number == 0)
            all->stop = pass >= LEAST_PASSES && sl_now() - start > PASS_SECONDS;
        pthread_barrier_wait(&all->barrier);
        if (all->stop)
            break;
    }
    if (copy->status != SL_OK)
        snprintf(copy->message, sizeof copy->message, "%s", sl_error_message());
    close_copy(copy);
    return NULL;
}

/* The mean of what was timed over passes, units of the kind and copies: a step is a sum of many. */
static double mean_of(const chain_copy *copies, int copy_count, int cell)
{
    double sum = 0;
    int count = 0;
    for (int c = 0; c < copy_count; c++) {
        sum += copies[c].sums[cell];
        count += copies[c].counts[cell];
    }
    return count > 0 ? sum / count : 0;
}

/* Fills the means of (kind, what is timed), and of all of them the sum. */
static double take_means(const chain_copy *copies, int copy_count, double *cells)
{
    double whole = 0;
    for (int cell = 0; cell < copies[0].chain->kind_count * TIMED_COUNT; cell++) {
        cells[cell] = mean_of(copies, copy_count, cell);
        whole += cells[cell];
    }
    return whole;
}

/* Runs the chain in so many threads; see take_means. */
static sl_status run_copies(chain *all, int copy_count, double *means, double *whole)
{
    sl_status status = SL_OK;
    chain_copy *copies = NULL;
    pthread_t *threads = NULL;
    int started = 0, cells = all->kind_count * TIMED_COUNT;
    if (pthread_barrier_init(&all->barrier, NULL, (unsigned)copy_count) != 0)
        return sl_fail(SL_ERR_MEMORY, "no barrier for %d threads", copy_count);
    all->copies = copy_count;
    SL_TRY(SL_NEW_ARRAY(copies, copy_count));
    SL_TRY(SL_NEW_ARRAY(threads, copy_count));
    for (int c = 0; c < copy_count; c++) {
        copies[c] = (chain_copy){ .chain = all, .number = c };
        SL_TRY(SL_NEW_ARRAY(copies[c].sums, cells));
        SL_TRY(SL_NEW_ARRAY(copies[c].counts, cells));
    }
    pthread_mutex_lock(&all->gate);
    for (; started < copy_count && status == SL_OK; started += status == SL_OK)
        status = sl_thread_start("measures layers", run_copy, &copies[started], &threads[started]);
    all->abandoned = status != SL_OK;
    pthread_mutex_unlock(&all->gate);
    for (; started > 0; started--)
        pthread_join(threads[started - 1], NULL);
    SL_TRY(status);
    for (int c = 0; c < copy_count; c++) {
        if (copies[c].status != SL_OK)
            SL_TRY(sl_fail(copies[c].status, "measuring a layer: %s", copies[c].message));
    }
    *whole = take_means(copies, copy_count, means);
done:
    pthread_barrier_destroy(&all->barrier);
    for (int c = 0; copies && c < copy_count; c++) {
        sl_free(copies[c].sums);
        sl_free(copies[c].counts);
    }
    sl_free(threads);
    sl_free(copies);
    return status;
}

/* ---- The chain ------------------------------------------------------------------------------- */

static sl_status build_chain(const tune_model *model, const tune_costs *costs, sl_device *device, chain *all)
{
    sl_status status = SL_OK;
    sl_graph *graph = NULL;
    int *seen = NULL;
    sl_model_shape shape;
    SL_TRY(sl_tune_shape(model->plan, costs->rows, &shape));
    SL_TRY(SL_NEW_ARRAY(seen, model->kind_count));
    SL_TRY(SL_NEW_ARRAY(all->programs, model->unit_count));
    SL_TRY(SL_NEW_ARRAY(all->kinds, model->unit_count));
    SL_TRY(sl_model_build(&model->plan->graph_model, SL_MODE_TRAIN, &shape, &graph));
    for (int u = 0; u < model->unit_count; u++) {
        int kind = model->units[u].kind;
        if (seen[kind]++ >= SAME_KIND)
            continue;
        SL_TRY(sl_tune_build_unit(model, graph, u, costs, device, &all->programs[all->count]));
        all->kinds[all->count++] = kind;
    }
done:
    sl_graph_destroy(graph);
    sl_free(seen);
    return status;
}

/* The medians of all moments. */
static void take_medians(const tune_model *model, tune_costs *costs)
{
    const tune_moments *moments = &costs->moments;
    for (int kind = 0; kind < model->kind_count; kind++) {
        tune_cost *cost = &costs->kinds[kind];
        double *fields[TIMED_COUNT] = { &cost->f, &cost->i, &cost->w, &cost->b, &cost->pack_f, &cost->pack_i };
        for (int timed = 0; timed < TIMED_COUNT; timed++)
            *fields[timed] = sl_tune_moments_quantile(moments, kind * TIMED_COUNT + timed, 0.5);
    }
    costs->crowded = sl_tune_moments_quantile(&costs->crowd_moments, 0, 0.5);
}

sl_status sl_tune_measure_costs(const tune_model *model, int ranks, int cores, tune_costs *costs)
{
    sl_status status = SL_OK;
    sl_device *device = NULL;
    double *means = NULL, crowd = 0, whole = 0; /* the latter: seconds of all kinds and phases, once each */
    int cells = model->kind_count * TIMED_COUNT;
    chain all = { .kind_count = model->kind_count,
                  .packs = costs->packs,
                  .threads = (int)model->config->parallel.threads,
                  .device = model->here,
                  .gate = PTHREAD_MUTEX_INITIALIZER };
    SL_TRY(sl_device_open(all.device, &(sl_device_options){ .threads = all.threads }, &device));
    SL_TRY(build_chain(model, costs, device, &all));
    SL_TRY(SL_NEW_ARRAY(means, cells));
    if (ranks > cores)
        SL_TRY(run_copies(&all, ranks, means, &crowd));
    SL_TRY(run_copies(&all, ranks < cores ? ranks : cores, means, &whole));
    if (ranks > cores)
        SL_TRY(sl_tune_moments_add(&costs->crowd_moments, &(double){ fmax(1, crowd / whole) }, 1));
    SL_TRY(sl_tune_moments_add(&costs->moments, means, cells));
    take_medians(model, costs);
done:
    for (int u = 0; u < all.count; u++)
        sl_stage_program_destroy(all.programs[u]);
    sl_free(means);
    sl_free(all.programs);
    sl_free(all.kinds);
    sl_device_close(device);
    return status;
}
