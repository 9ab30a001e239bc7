/* Processes that share a GPU: messages through NCCL give the bits of messages through the host, with every schedule, and NCCL
 * takes as much of the GPU's memory as the plan counts. */
#include "gpu/processes.h"
#include "ranks/support/pipeline.h"

#include "comm/device_links.h"
#include "comm/carrier.h"
#include "comm/nccl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { SCHEDULES = 7 };

static const char *const schedules[SCHEDULES] = { "GPipe",     "1F1B",          "Interleaved1F1B",
                                                  "LoopedBFS", "ZBVZeroBubble", "InterleavedZeroBubble",
                                                  "DualPipeV" };

/* In memory that the ranks share. */
typedef struct nccl_job {
    int ranks, right, wanted;
    const char *only;      /* the one schedule to run; NULL: all */
    run_result host, nccl; /* of the running schedule */
} nccl_job;

static run_config config_of(const nccl_job *job, int i)
{
    run_config config = { .model = MODEL_LLAMA, .ranks = job->ranks, .stages_per_rank = 1, .microbatches = 4 };
    snprintf(config.schedule, sizeof config.schedule, "%s", schedules[i]);
    if (i >= 2)
        config.stages_per_rank = 2;
    return config;
}

/* As soon as it is known: a run that is ended later has shown what it could. */
static void compare(nccl_job *job, int i, double seconds)
{
    const run_result *a = &job->host, *b = &job->nccl;
    bool same = hash_of(a->losses, sizeof a->losses) == hash_of(b->losses, sizeof b->losses) &&
                memcmp(a->first_grads, b->first_grads, sizeof a->first_grads) == 0 &&
                memcmp(a->last_grads, b->last_grads, sizeof a->last_grads) == 0 &&
                memcmp(a->weights, b->weights, sizeof a->weights) == 0 && a->losses[0][0] > 0;
    const char *way = "device memory, through NCCL: SLUICE_DEVICE_LINKS is nccl";
    bool ways = strcmp(b->messages, way) == 0 && strncmp(a->messages, "host", 4) == 0;
    printf("%d ranks, %s: %s, %s, %.1f s\n", job->ranks, schedules[i], b->messages,
           same ? "the same bits" : "other bits", seconds);
    fflush(stdout);
    job->right += same && ways;
}

static sl_status run_both(sl_group *group, nccl_job *job, int i)
{
    sl_status status = SL_OK;
    run_config config = config_of(job, i);
    double start = sl_now();
    if (sl_group_rank(group) == 0)
        job->nccl = job->host = (run_result){ .copies_differ = 0 };
    SL_TRY(sl_group_barrier(group));
    setenv("SLUICE_DEVICE_LINKS", "nccl", 1);
    SL_TRY(run_pipelined(group, &config, &job->nccl));
    double seconds = sl_now() - start;
    setenv("SLUICE_DEVICE_LINKS", "0", 1);
    SL_TRY(run_pipelined(group, &config, &job->host));
    SL_TRY(sl_group_barrier(group));
    if (sl_group_rank(group) == 0)
        compare(job, i, seconds);
done:
    if (status != SL_OK)
        fprintf(stderr, "%s: %s\n", schedules[i], sl_error_message());
    return status;
}

/* One rank: all runs, one after another. */
static int rank_main(void *user, int rank)
{
    sl_group *group = NULL;
    sl_device *device = NULL;
    const sl_nccl *nccl = NULL;
    sl_status status = SL_OK;
    (void)rank;
    if (sl_device_open("cuda", NULL, &device) != SL_OK || sl_nccl_load(&nccl) != SL_OK) {
        fprintf(stderr, "%s\n", sl_error_message());
        return NO_DEVICE;
    }
    if (sl_group_open(NULL, &group) != SL_OK)
        return 1;
    const nccl_job *job = user;
    for (int i = 0; i < SCHEDULES && status == SL_OK; i++) {
        if (!job->only || strcmp(job->only, schedules[i]) == 0)
            status = run_both(group, user, i);
    }
    sl_group_close(group);
    sl_device_close(device);
    return status == SL_OK ? 0 : 1;
}

/* How many runs differ; -1: there is no GPU or no NCCL. */
static int compare_ways(int ranks, const char *only)
{
    sl_launch_result result;
    nccl_job *job = share_memory(sizeof *job);
    job->ranks = ranks;
    job->only = only;
    job->wanted = only ? 1 : SCHEDULES;
    const sl_launch_options launch = { .ranks = ranks, .run = rank_main, .user = job };
    if (sl_launch(&launch, &result) != SL_OK)
        return 1;
    int wrong = job->wanted - job->right;
    munmap(job, sizeof *job);
    if (result.exit_code != 0 && result.exit_code != NO_DEVICE)
        printf("%s\n", result.report);
    return result.exit_code == NO_DEVICE ? -1 : wrong;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

enum { PAIR = 2, CHANNELS = 6 };

/* In memory that both ranks share. */
typedef struct memory_job {
    size_t before, after, counted; /* on the GPU, by both ranks; of one */
} memory_job;

/* When both ranks are here and the GPU is idle. */
static sl_status look_at_gpu(sl_group *group, sl_device *device, size_t *taken)
{
    sl_status status = SL_OK;
    SL_TRY(sl_group_barrier(group));
    if (sl_group_rank(group) == 0)
        *taken = sl_device_get_memory(device).taken;
    SL_TRY(sl_group_barrier(group));
done:
    return status;
}

static sl_status measure_links(sl_group *group, sl_device *device, memory_job *job)
{
    sl_status status = SL_OK;
    sl_device_words *words = NULL;
    sl_device_links *links = NULL;
    sl_channel_spec specs[CHANNELS];
    const size_t slots = (size_t)4 << 20;
    sl_nccl_use use = { .groups = 0 };
    for (int c = 0; c < CHANNELS; c++)
        specs[c] =
            (sl_channel_spec){ .id = c, .src = c % PAIR, .dst = 1 - c % PAIR, .capacity = 4, .max_bytes = 1 << 20 };
    SL_TRY(sl_device_words_open(group, device, &words));
    SL_TRY(look_at_gpu(group, device, &job->before));
    SL_TRY(sl_device_links_open(words, specs, CHANNELS, 4, &links));
    SL_TRY(look_at_gpu(group, device, &job->after));
    size_t counted = CHANNELS / PAIR * slots + sl_device_links_count_memory(links, &use);
    if (sl_group_rank(group) == 0)
        job->counted = counted + sl_nccl_memory(&use);
    SL_TRY(sl_group_barrier(group));
done:
    if (status != SL_OK)
        fprintf(stderr, "memory: %s\n", sl_error_message());
    sl_device_links_close(links);
    sl_device_words_close(words);
    return status;
}

static int measure_rank(void *user, int rank)
{
    sl_group *group = NULL;
    sl_device *device = NULL;
    sl_status status = SL_OK;
    (void)rank;
    setenv("SLUICE_DEVICE_LINKS", "nccl", 1);
    SL_TRY(sl_device_open("cuda", NULL, &device));
    SL_TRY(sl_group_open(NULL, &group));
    SL_TRY(measure_links(group, device, user));
done:
    sl_device_close(device);
    sl_group_close(group);
    return status == SL_OK ? 0 : 1;
}

/* Whether a rank takes what is counted, within 2%. */
static bool takes_what_is_counted(void)
{
    sl_launch_result result;
    memory_job *job = share_memory(sizeof *job);
    const sl_launch_options launch = { .ranks = PAIR, .run = measure_rank, .user = job };
    if (sl_launch(&launch, &result) != SL_OK || result.exit_code != 0)
        return false;
    double taken = ((double)job->after - (double)job->before) / PAIR, counted = (double)job->counted;
    printf("%d links: %.1f MB of the GPU are taken by a rank, %.1f MB are counted\n", CHANNELS, taken / 1e6,
           counted / 1e6);
    fflush(stdout);
    munmap(job, sizeof *job);
    return taken < 1.02 * counted && taken > 0.98 * counted;
}

/* Arguments: a number of ranks and perhaps a schedule; or "memory"; none: 2 ranks, 4 ranks and the memory. */
int main(int argc, char **argv)
{
    setenv("SLUICE_TEST_DEVICE", "cuda", 1);
    if (argc > 1 && strcmp(argv[1], "memory") == 0)
        return !takes_what_is_counted();
    if (argc > 1) {
        int wrong = compare_ways(atoi(argv[1]), argc > 2 ? argv[2] : NULL);
        return wrong < 0 ? NO_DEVICE : wrong > 0;
    }
    int two = compare_ways(2, NULL);
    if (two < 0)
        return NO_DEVICE;
    return two > 0 || compare_ways(4, NULL) != 0 || !takes_what_is_counted();
}
