/* How processes take turns on a GPU that they share, for the prediction of `sluice bench pipeline`: two of them run products
 * at the same time, then one after the other, and then the whole training at the same time. */
#include "pipeline_measure.h"

#include "base/alloc.h"
#include "device/share.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PROCESSES = 2, PRODUCTS = 1200, HAND_OVERS = 200, WORDS = HAND_OVERS + 2 };
enum { ROWS = 8192, WIDTH = 768, LAYER = 3072 }; /* of a product: about 60 us on an H200 */

/* In memory that the forked processes share. */
typedef struct turns_job {
    const char *device;
    char name[32];          /* of the one that the first process opened: the second takes the same */
    sl_device_handle words; /* of the block of the first process */
    tune_turns turns;       /* as the first process saw them */
    char error[512];
} turns_job;

/* What a process holds. */
typedef struct turns_rank {
    sl_group *group;
    int rank;
    sl_device *device;
    sl_stream *stream;
    uint32_t *words; /* of the first process; odd: written */
    void *blocks[4]; /* x, w, y, scratch */
    sl_view views[3];
    sl_kernel_call product;
    sl_event *events[PRODUCTS + 1];
} turns_rank;

static void close_rank(turns_rank *at)
{
    for (int i = 0; i <= PRODUCTS; i++)
        sl_event_destroy(at->events[i]);
    sl_stream_destroy(at->stream);
    for (size_t i = 0; i < sizeof at->blocks / sizeof *at->blocks; i++)
        sl_device_free(at->device, at->blocks[i]);
    if (at->rank == 0)
        sl_device_unshare(at->device, at->words);
    else
        sl_device_detach(at->device, at->words);
    sl_device_close(at->device);
}

/* ---- Setting up ------------------------------------------------------------------------------ */

/* Values of ordinary size: products of zeros take less power. */
static sl_status fill_view(turns_rank *at, int number, int64_t rows, int64_t columns)
{
    sl_status status = SL_OK;
    sl_view *view = &at->views[number];
    *view = (sl_view){ .meta = sl_meta_make(SL_BF16, 2, (int64_t[]){ rows, columns }) };
    SL_TRY(sl_device_alloc(at->device, sl_meta_bytes(&view->meta), &at->blocks[number]));
    view->data = at->blocks[number];
    const sl_kernel_call fill = { .op = SL_OP_FILL, .attrs = { .alpha = 0.01 }, .outputs = view, .output_count = 1 };
    SL_TRY(sl_kernel_run(at->stream, &fill));
done:
    return status;
}

static sl_status share_words(turns_job *job, turns_rank *at)
{
    sl_status status = SL_OK;
    if (at->rank == 0)
        SL_TRY(sl_device_share(at->device, WORDS * sizeof *at->words, &job->words, (void **)&at->words));
    SL_TRY(sl_group_barrier(at->group));
    if (at->rank == 1)
        SL_TRY(sl_device_attach(at->device, &job->words, (void **)&at->words));
done:
    return status;
}

static sl_status open_rank(turns_job *job, turns_rank *at)
{
    sl_status status = SL_OK;
    if (at->rank == 0) {
        SL_TRY(sl_device_open(job->device, NULL, &at->device));
        snprintf(job->name, sizeof job->name, "%s", sl_device_name(at->device));
    }
    SL_TRY(sl_group_barrier(at->group));
    if (at->rank == 1)
        SL_TRY(sl_device_open(job->name, NULL, &at->device));
    SL_TRY(sl_stream_create(at->device, &at->stream));
    SL_TRY(share_words(job, at));
    SL_TRY(fill_view(at, 0, ROWS, WIDTH));
    SL_TRY(fill_view(at, 1, WIDTH, LAYER));
    SL_TRY(fill_view(at, 2, ROWS, LAYER));
    at->product = (sl_kernel_call){
        .op = SL_OP_LINEAR, .inputs = at->views, .input_count = 2, .outputs = &at->views[2], .output_count = 1
    };
    SL_TRY(sl_kernel_scratch(at->device, &at->product, &at->product.scratch_bytes));
    SL_TRY(sl_device_alloc(at->device, at->product.scratch_bytes, &at->blocks[3]));
    at->product.scratch = at->blocks[3];
    for (int i = 0; i <= PRODUCTS; i++)
        SL_TRY(sl_event_create(at->device, &at->events[i]));
done:
    return status;
}

/* ---- Running --------------------------------------------------------------------------------- */

static sl_status use_word(const turns_rank *at, sl_word_kind kind, int number)
{
    const sl_word_use use = { .kind = kind, .word = &at->words[number], .value = 1 };
    return sl_stream_use_words(at->stream, &use, 1);
}

/* Events 0 to count, one after each product. */
static sl_status give_products(const turns_rank *at, int count)
{
    sl_status status = SL_OK;
    SL_TRY(sl_event_record(at->events[0], at->stream));
    for (int i = 1; i <= count; i++) {
        SL_TRY(sl_kernel_run(at->stream, &at->product));
        SL_TRY(sl_event_record(at->events[i], at->stream));
    }
done:
    return status;
}

/* Seconds of a product in the first process, while the second does nothing. */
static sl_status time_alone(const turns_rank *at, double *seconds)
{
    sl_status status = SL_OK;
    enum { COUNT = 400 };
    if (at->rank == 0) {
        SL_TRY(give_products(at, COUNT));
        SL_TRY(sl_stream_synchronize(at->stream));
        SL_TRY(sl_event_elapsed(at->events[0], at->events[COUNT], seconds));
    }
    *seconds /= COUNT;
    SL_TRY(sl_group_all_reduce(at->group, seconds, 1, SL_F64, SL_REDUCE_MAX));
done:
    return status;
}

/* Both run products at the same time. One that took as long as ten was interrupted: with it a turn begins. No turns: the
 * slice stays as it is. */
static sl_status find_slice(const turns_rank *at, double product, tune_turns *turns)
{
    sl_status status = SL_OK;
    int first = 0, last = 0, rounds = -1;
    double seconds = 0;
    SL_TRY(sl_group_barrier(at->group));
    SL_TRY(give_products(at, PRODUCTS));
    SL_TRY(sl_stream_synchronize(at->stream));
    for (int i = 1; i <= PRODUCTS; i++) {
        SL_TRY(sl_event_elapsed(at->events[i - 1], at->events[i], &seconds));
        if (seconds < 10 * product)
            continue;
        first = rounds < 0 ? i : first;
        last = i;
        rounds++;
    }
    if (rounds > 0)
        turns->slice = (last - first) * product / rounds;
done:
    return status;
}

/* One product of each process after the other. */
static sl_status find_hand_over(const turns_rank *at, double product, tune_turns *turns)
{
    sl_status status = SL_OK;
    double seconds = 0;
    SL_TRY(sl_group_barrier(at->group));
    if (at->rank == 0)
        SL_TRY(sl_event_record(at->events[0], at->stream));
    for (int i = at->rank; i < HAND_OVERS; i += PROCESSES) {
        if (i > 0)
            SL_TRY(use_word(at, SL_WORD_WAIT, i));
        SL_TRY(sl_kernel_run(at->stream, &at->product));
        SL_TRY(use_word(at, SL_WORD_WRITE, i + 1));
    }
    if (at->rank == 0) {
        SL_TRY(use_word(at, SL_WORD_WAIT, HAND_OVERS));
        SL_TRY(sl_event_record(at->events[1], at->stream));
    }
    SL_TRY(sl_stream_synchronize(at->stream));
    if (at->rank == 0)
        SL_TRY(sl_event_elapsed(at->events[0], at->events[1], &seconds));
    turns->hand_over = seconds / HAND_OVERS - product;
done:
    return status;
}

static sl_status measure(turns_job *job, sl_group *group)
{
    sl_status status = SL_OK;
    turns_rank *at = NULL;
    double product = 0;
    SL_TRY(SL_NEW(at));
    at->group = group;
    at->rank = sl_group_rank(group);
    SL_TRY(open_rank(job, at));
    SL_TRY(give_products(at, 20)); /* loads and warms up */
    SL_TRY(sl_stream_synchronize(at->stream));
    SL_TRY(time_alone(at, &product));
    tune_turns turns = { 0 };
    SL_TRY(find_slice(at, product, &turns));
    SL_TRY(find_hand_over(at, product, &turns));
    SL_TRY(sl_group_barrier(group)); /* the words are used no more */
    if (at->rank == 0)
        job->turns = turns;
done:
    if (status != SL_OK)
        snprintf(job->error, sizeof job->error, "%s", sl_error_message());
    if (at)
        close_rank(at);
    sl_free(at);
    return status;
}

static int rank_main(void *user, int rank)
{
    sl_group *group = NULL;
    (void)rank;
    if (sl_group_open(NULL, &group) != SL_OK)
        return 1;
    sl_status status = measure(user, group);
    sl_group_close(group);
    return status == SL_OK ? 0 : 1;
}

/* The turns without `change`; name: of the GPU. */
static sl_status measure_products(const char *device, char name[32], tune_turns *out)
{
    sl_status status = SL_OK;
    sl_launch_result result;
    turns_job *job = mmap(NULL, sizeof *job, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (job == MAP_FAILED)
        return sl_fail(SL_ERR_MEMORY, "no memory for the results");
    job->device = device;
    const sl_launch_options launch = { .ranks = PROCESSES, .run = rank_main, .user = job };
    SL_TRY(sl_launch(&launch, &result));
    if (result.exit_code != 0)
        SL_TRY(sl_fail(SL_ERR_PEER, "turns of processes: %s", *job->error ? job->error : result.report));
    *out = job->turns;
    snprintf(name, 32, "%s", job->name);
done:
    munmap(job, sizeof *job);
    return status;
}

/* A slice and a change take as much longer than the slice as two processes that train at the same time take longer than one
 * that trains twice. */
sl_status pipeline_measure_turns(const pipeline_options *options, const pipeline_case *single, tune_turns *out)
{
    sl_status status = SL_OK;
    pipeline_options twice = *options;
    pipeline_case both = *single;
    char name[32];
    twice.copies = PROCESSES;
    twice.device = name;
    SL_TRY(measure_products(options->device, name, out));
    if (out->slice == 0) { /* they run at the same time */
        *out = (tune_turns){ 0 };
        return SL_OK;
    }
    SL_TRY(pipeline_measure(&twice, &both, NULL));
    out->change = out->slice * (single->tokens_per_s / (PROCESSES * both.tokens_per_s) - 1);
done:
    return status;
}
