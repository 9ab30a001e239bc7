/* Pipelined training gives the bits of the same stages run one after another in one process: every schedule, number of
 * ranks, stages a rank and microbatches, in f32 and in bf16. By default each of the three transports has a third of these runs, with --full
 * each has all.
 *
 * One reference serves all runs that cut a model into as many stages, with as many microbatches and the same order of
 * weight gradients; schedules whose order is the same are thereby equal to each other, whatever their ranks. */
#include "ranks/support/pipeline.h"
#include "support/device/test_device.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

enum { MAX_RANKS = 4, MAX_CONFIGS = 4000, MAX_REFERENCES = 4000 };

enum { TRANSPORTS = 3, EVERY_SHARE = TRANSPORTS };
enum { BF16_SHARE = 7 }; /* one in so many runs is made in bf16 too, with --full every one */

static bool full;
static const char *self_path;

/* ---- What is run ----------------------------------------------------------------------------- */

static bool can_generate(const run_config *config)
{
    sl_schedule *schedule = NULL;
    bool can = make_schedule(config, &schedule) == SL_OK && sl_schedule_has_backward(schedule);
    sl_schedule_destroy(schedule);
    return can;
}

/* The tests' device takes several times as long: it has a fifth of the runs unless all were asked for. */
static bool on_host(void)
{
    return strcmp(test_device_spec(), "cpu") == 0;
}

/* One share of the runs for a number of ranks, or all of them. Each share has every schedule with every number of stages
 * a rank and of microbatches, and every model. */
static int list_configs(int ranks, int share, run_config *out)
{
    static const int microbatches[] = { 1, 2, 3, 4, 7, 8 };
    int count = 0;
    for (int i = 0; sl_generator_name(i); i++) {
        for (int per_rank = 1; per_rank <= 3; per_rank++) {
            for (int k = 0; k < 6; k++) {
                for (int model = 0; model < MODEL_COUNT; model++) {
                    run_config config = {
                        .model = model, .ranks = ranks, .stages_per_rank = per_rank, .microbatches = microbatches[k]
                    };
                    snprintf(config.schedule, sizeof config.schedule, "%s", sl_generator_name(i));
                    bool wanted = share == EVERY_SHARE || (i + ranks + per_rank + k + model) % TRANSPORTS == share;
                    bool skipped = !full && !on_host() && (i + 2 * per_rank + 3 * k + model + share) % 5 > 0;
                    if (!wanted || skipped || !can_generate(&config))
                        continue;
                    out[count++] = config;
                    config.dtype = SL_BF16;
                    if (full || (i + 3 * per_rank + 2 * k + model + ranks) % BF16_SHARE == 0)
                        out[count++] = config;
                }
            }
        }
    }
    return count;
}

/* ---- Results, in a file that all ranks map ---------------------------------------------------- */

typedef struct results {
    char path[64];
    run_result *list;
    size_t bytes;
} results;

static void map_results(results *into)
{
    int file = open(into->path, O_RDWR);
    into->list = mmap(NULL, into->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
}

static void make_results(int count, results *into)
{
    *into = (results){ .path = "/tmp/sluice_bits_XXXXXX", .bytes = (size_t)count * sizeof(run_result) };
    int file = mkstemp(into->path);
    if (file < 0 || ftruncate(file, (off_t)into->bytes) != 0)
        fail_msg("no file for the results");
    close(file);
    map_results(into);
}

static void free_results(results *from)
{
    munmap(from->list, from->bytes);
    unlink(from->path);
}

/* ---- One rank: all runs, one after another ---------------------------------------------------- */

typedef struct rank_job {
    sl_group *group;
    int ranks, share;
    run_result *list;
} rank_job;

static sl_status run_all(const rank_job *job)
{
    static _Thread_local run_config configs[MAX_CONFIGS];
    sl_status status = SL_OK;
    int count = list_configs(job->ranks, job->share, configs);
    for (int i = 0; i < count && status == SL_OK; i++)
        status = run_pipelined(job->group, &configs[i], &job->list[i]);
    sl_group_close(job->group);
    return status;
}

static void *thread_main(void *user)
{
    (void)!run_all(user); /* an error stands in the results */
    return NULL;
}

static int process_main(void *user, int rank)
{
    rank_job job = *(rank_job *)user;
    (void)rank;
    if (sl_group_open(NULL, &job.group) != SL_OK) {
        fprintf(stderr, "%s\n", sl_error_message());
        return 1;
    }
    return run_all(&job) == SL_OK ? 0 : 1;
}

/* ---- Transports ------------------------------------------------------------------------------ */

static void run_threads(const rank_job *job, const results *into)
{
    sl_group *groups[MAX_RANKS];
    pthread_t threads[MAX_RANKS];
    rank_job jobs[MAX_RANKS];
    (void)into;
    if (sl_group_open_threads(job->ranks, NULL, groups) != SL_OK)
        fail_msg("%s", sl_error_message());
    for (int r = 0; r < job->ranks; r++) {
        jobs[r] = *job;
        jobs[r].group = groups[r];
        pthread_create(&threads[r], NULL, thread_main, &jobs[r]);
    }
    for (int r = 0; r < job->ranks; r++)
        pthread_join(threads[r], NULL);
}

static void run_local(const rank_job *job, const results *into)
{
    sl_launch_options options = { .ranks = job->ranks, .run = process_main, .user = (void *)job };
    sl_launch_result result;
    (void)into;
    if (sl_launch(&options, &result) != SL_OK)
        fail_msg("%s", sl_error_message());
    if (result.exit_code != 0)
        print_message("%s\n", result.report); /* the results say which run it was */
}

static void run_mpi(const rank_job *job, const results *into)
{
    char command[4096];
    snprintf(
        command, sizeof command,
        "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe -n %d '%s' --rank %d %d %s",
        job->ranks, self_path, job->ranks, job->share, into->path);
    int code = system(command);
    if (code != 0)
        print_message("mpirun: exit %d\n", code);
}

/* True if mpirun is installed and the library has its transport. */
static bool has_mpi(void)
{
    char command[4096];
    snprintf(command, sizeof command,
             "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun -n 1 '%s' --probe > /dev/null 2>&1",
             self_path);
    return system(command) == 0;
}

static int probe_main(void)
{
    sl_group *group = NULL;
    sl_status status = sl_group_open(&(sl_group_options){ .transport = "mpi" }, &group);
    sl_group_close(group);
    return status == SL_OK ? 0 : 1;
}

/* The rank that mpirun starts: --rank RANKS SHARE FILE. */
static int mpi_main(char **argv)
{
    results from = { .bytes = 0 };
    rank_job job = { .ranks = atoi(argv[2]), .share = atoi(argv[3]) };
    full = job.share == EVERY_SHARE;
    run_config *configs = calloc(MAX_CONFIGS, sizeof *configs);
    from.bytes = (size_t)list_configs(job.ranks, job.share, configs) * sizeof(run_result);
    free(configs);
    snprintf(from.path, sizeof from.path, "%s", argv[4]);
    map_results(&from);
    job.list = from.list;
    return process_main(&job, 0);
}

/* ---- References ------------------------------------------------------------------------------ */

typedef struct reference {
    int model, stages, microbatches;
    sl_dtype dtype;
    uint64_t order; /* of the weight gradients of every stage */
    bool rising;    /* which is that of the microbatches */
    run_result result;
} reference;

static reference references[MAX_REFERENCES];
static int reference_count;

/* The order in which every stage adds up its weight gradients, as one number. */
static uint64_t order_of(const sl_schedule *schedule, bool *rising)
{
    int microbatches = sl_schedule_microbatches(schedule);
    float order[64 * MAX_MICROBATCHES] = { 0 };
    int added[64] = { 0 };
    *rising = true;
    for (int r = 0; r < sl_schedule_ranks(schedule); r++) {
        int64_t count = 0;
        const sl_action *actions = sl_schedule_actions(schedule, r, &count);
        for (int64_t i = 0; i < count; i++) {
            sl_action parts[2];
            int n = sl_action_parts(actions[i], parts);
            for (int k = 0; k < n; k++) {
                int stage = parts[k].stage;
                if (parts[k].kind != SL_KIND_W && parts[k].kind != SL_KIND_B)
                    continue;
                *rising &= parts[k].microbatch == added[stage];
                order[stage * microbatches + added[stage]++] = (float)parts[k].microbatch;
            }
        }
    }
    return hash_of(order, (size_t)(sl_schedule_stages(schedule) * microbatches) * sizeof *order);
}

/* Made if it is not known yet. */
static const run_result *reference_of(const run_config *config)
{
    sl_schedule *schedule = NULL;
    if (make_schedule(config, &schedule) != SL_OK)
        fail_msg("%s", sl_error_message());
    reference wanted = { .model = config->model,
                         .dtype = config->dtype,
                         .stages = sl_schedule_stages(schedule),
                         .microbatches = config->microbatches };
    wanted.order = order_of(schedule, &wanted.rising);
    sl_schedule_destroy(schedule);
    for (int i = 0; i < reference_count; i++) {
        const reference *each = &references[i];
        if (each->model == wanted.model && each->stages == wanted.stages && each->microbatches == wanted.microbatches &&
            each->dtype == wanted.dtype && each->order == wanted.order)
            return &each->result;
    }
    assert_true(reference_count < MAX_REFERENCES);
    (void)!run_sequential(config, &wanted.result); /* an error stands in the result */
    references[reference_count] = wanted;
    return &references[reference_count++].result;
}

/* ---- Comparing ------------------------------------------------------------------------------- */

static void compare(const run_config *config, const run_result *expected, const run_result *given)
{
    char what[128];
    snprintf(what, sizeof what, "%s in %s, %s, %d ranks, %d stages a rank, %d microbatches", model_names[config->model],
             sl_dtype_name(config->dtype), config->schedule, config->ranks, config->stages_per_rank,
             config->microbatches);
    if (*expected->error || *given->error)
        fail_msg("%s: %s", what, *given->error ? given->error : expected->error);
    if (memcmp(expected->losses, given->losses, sizeof given->losses) != 0)
        fail_msg("%s: losses differ: %.9g, %.9g", what, (double)expected->losses[0][0], (double)given->losses[0][0]);
    for (int p = 0; p < MAX_PARAMS; p++) {
        if (expected->first_grads[p] != given->first_grads[p])
            fail_msg("%s: parameter %d has another gradient after the first step", what, p);
        if (expected->last_grads[p] != given->last_grads[p] || expected->weights[p] != given->weights[p])
            fail_msg("%s: parameter %d differs after %d steps", what, p, STEPS);
    }
    if (expected->weights[0] == 0 || given->copies_differ)
        fail_msg("%s: %d copies of tied parameters differ", what, given->copies_differ);
}

static void check(int share, void (*run)(const rank_job *job, const results *into))
{
    if (full)
        share = EVERY_SHARE;
    run_config *configs = calloc(MAX_CONFIGS, sizeof *configs);
    int total = 0;
    double start = sl_now();
    for (int ranks = 1; ranks <= MAX_RANKS; ranks++) {
        int count = list_configs(ranks, share, configs);
        results given;
        make_results(count, &given);
        run(&(rank_job){ .ranks = ranks, .share = share, .list = given.list }, &given);
        for (int i = 0; i < count; i++)
            compare(&configs[i], reference_of(&configs[i]), &given.list[i]);
        free_results(&given);
        total += count;
    }
    assert_true(total > 0);
    print_message("%d runs of %d steps, %d references, %.1f s\n", total, STEPS, reference_count, sl_now() - start);
    free(configs);
}

static void threads_give_the_bits_of_one_process(void **state)
{
    (void)state;
    check(0, run_threads);
}

static void local_processes_give_the_bits_of_one_process(void **state)
{
    (void)state;
    check(1, run_local);
}

static void mpi_processes_give_the_bits_of_one_process(void **state)
{
    (void)state;
    if (!has_mpi()) {
        print_message("there is no MPI here\n");
        skip();
    }
    check(2, run_mpi);
}

/* Llama's parameters belong to one stage each, however it is cut. */
static void cuts_make_no_difference_where_nothing_is_tied(void **state)
{
    (void)state;
    int compared = 0;
    for (int i = 0; i < reference_count; i++) {
        for (int k = 0; k < i; k++) {
            const reference *a = &references[i], *b = &references[k];
            if (a->model != MODEL_LLAMA || b->model != MODEL_LLAMA || a->microbatches != b->microbatches ||
                a->dtype != b->dtype || !a->rising || !b->rising)
                continue;
            if (memcmp(&a->result, &b->result, sizeof a->result) != 0)
                fail_msg("%d and %d stages differ with %d microbatches", a->stages, b->stages, a->microbatches);
            compared++;
        }
    }
    assert_true(compared > 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_give_the_bits_of_one_process),
        cmocka_unit_test(local_processes_give_the_bits_of_one_process),
        cmocka_unit_test(mpi_processes_give_the_bits_of_one_process),
        cmocka_unit_test(cuts_make_no_difference_where_nothing_is_tied),
    };
    self_path = argv[0];
    if (argc == 5 && strcmp(argv[1], "--rank") == 0)
        return mpi_main(argv);
    if (argc == 2 && strcmp(argv[1], "--probe") == 0)
        return probe_main();
    full = argc == 2 && strcmp(argv[1], "--full") == 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
