/* Ranks that share one GPU: every schedule on 2 and 4 ranks, as threads, as processes and as processes with MPS, messages in
 * device memory, through NCCL and in host memory, gives the losses and weights of all stages on one rank, bit for bit.
 *
 * SLUICE_GPU_MATRIX=all runs all of it; else one of many. SLUICE_GPU_TEST, a pattern, chooses among the kinds of ranks, and
 * SLUICE_GPU_WAYS, as "device nccl", among the ways of messages. The ranks of a kind run one case after another, for a start
 * on a GPU takes long. SLUICE_GPU_DEVICE names another device: cpu, or test (support/device). */
#include "gpu/processes.h"
#include "support/device/test_device.h"
#include "unit/runtime/captures.h"

#include <sluice/plan.h>

#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_CASES = 160, MAX_PARAMS = 64 };

typedef enum rank_kind { THREADS, PROCESSES, PROCESSES_WITH_MPS } rank_kind;
static const char *const kind_names[] = { "threads", "processes", "processes with MPS" };

/* How messages go. */
typedef enum message_way { DEVICE_MEMORY, HOST_MEMORY, NCCL, WAYS } message_way;
static const struct {
    const char *name;
    const char *variable; /* SLUICE_DEVICE_LINKS */
    const char *text;     /* what the runtime says */
} ways[] = { { "device", "", "device memory, handed over by streams" },
             { "host", "0", "host memory" },
             { "nccl", "nccl", "device memory, through NCCL" } };

typedef struct param_hash {
    char name[56];
    uint64_t hash;
} param_hash;

/* A case and what its ranks found. */
typedef struct matrix_case {
    char schedule[24];
    int ranks, stages;
    message_way way;
    bool is_done;
    float losses[STEPS][MICROBATCHES], eval_losses[STEPS][MICROBATCHES];
    param_hash params[MOST_RANKS][MAX_PARAMS];
    char messages[320];
    char error[512];
} matrix_case;

/* In memory that all ranks share: the cases of one launch. */
static struct matrix {
    const char *device;
    rank_kind kind;
    int ranks;
    int first, count; /* cases */
    matrix_case cases[MAX_CASES];
} * shared;

/* ---- Schedules ------------------------------------------------------------------------------- */

static sl_status search_schedule(int ranks, sl_schedule **out)
{
    sl_status status = SL_OK;
    sl_plan_problem problem;
    sl_plan_result *found = NULL;
    sl_plan_problem_init(&problem, ranks, MICROBATCHES, SL_PLACEMENT_V, 2);
    problem.costs.stage.i = 1.1;
    problem.costs.stage.w = 0.9;
    SL_TRY(sl_plan_search(&problem, 0.05, &found));
    SL_TRY(sl_schedule_drop_send_waits(sl_plan_schedule(found), out)); /* it has none: a copy */
done:
    sl_plan_result_destroy(found);
    return status;
}

/* A generator's, one of the planner by its name, or "auto": what a search finds. stages: on one rank; 0: the default. */
static sl_status make_schedule(const char *name, int ranks, int stages, sl_schedule **out)
{
    sl_status status = SL_OK;
    sl_plan_problem problem;
    sl_placement placement;
    int stages_per_rank = 0;
    if (strcmp(name, "auto") == 0)
        return search_schedule(ranks, out);
    if (stages > 0)
        return sl_schedule_generate(
            &(sl_generate_options){
                .name = name, .ranks = ranks, .microbatches = MICROBATCHES, .stages_per_rank = stages },
            out);
    SL_TRY(sl_plan_named_placement(name, &placement, &stages_per_rank));
    sl_plan_problem_init(&problem, ranks, MICROBATCHES, placement, stages_per_rank);
    SL_TRY(sl_plan_make(&problem, name, out));
done:
    return status;
}

/* ---- One rank -------------------------------------------------------------------------------- */

static sl_status keep_params(gpt_rank *rank, param_hash *out)
{
    sl_status status = SL_OK;
    int count = 0;
    const sl_param *params = sl_runtime_params(rank->runtime, &count);
    for (int i = 0; i < count && i < MAX_PARAMS; i++) {
        unsigned char values[4096 * sizeof(float)];
        uint64_t hash = 14695981039346656037u;
        SL_TRY(copy_param(rank, &params[i].data, values, false));
        for (size_t b = 0; b < sl_meta_bytes(&params[i].data.meta); b++)
            hash = (hash ^ values[b]) * 1099511628211u;
        snprintf(out[i].name, sizeof out[i].name, "%s", params[i].name);
        out[i].hash = hash;
    }
done:
    return status;
}

/* This rank's part of a case. The group stays open. */
static sl_status run_case(matrix_case *each, sl_group *group)
{
    sl_status status = SL_OK;
    gpt_run run = { .device = shared->device };
    gpt_rank rank = { .run = &run, .group = group };
    SL_TRY(make_schedule(each->schedule, each->ranks, each->ranks == 1 ? each->stages : 0, &run.schedule));
    run.partition = cut_gpt(sl_schedule_stages(run.schedule), SL_F32);
    SL_TRY(open_rank(&rank));
    SL_TRY(start_params(&rank));
    SL_TRY(train_gpt(&rank));
    SL_TRY(keep_params(&rank, each->params[sl_group_rank(group)]));
    if (sl_group_rank(group) == 0) {
        memcpy(each->losses, run.losses, sizeof run.losses);
        memcpy(each->eval_losses, run.eval_losses, sizeof run.eval_losses);
        snprintf(each->messages, sizeof each->messages, "%s", sl_runtime_messages(rank.runtime));
    }
    SL_TRY(sl_group_barrier(group));
    each->is_done = true;
done:
    if (status != SL_OK)
        snprintf(each->error, sizeof each->error, "%s", sl_error_message());
    sl_optimizer_destroy(rank.optimizer);
    sl_runtime_destroy(rank.runtime);
    for (int s = 0; s < rank.stage_count; s++)
        sl_stage_destroy(rank.stages[s]);
    sl_device_close(rank.device);
    sl_partition_destroy(run.partition);
    sl_schedule_destroy(run.schedule);
    return status;
}

static void choose_way(const matrix_case *each)
{
    setenv("SLUICE_DEVICE_LINKS", ways[each->way].variable, 1);
}

/* ---- All ranks ------------------------------------------------------------------------------- */

typedef struct rank_thread {
    matrix_case *each;
    sl_group *group;
    sl_status status;
} rank_thread;

static void *thread_main(void *user)
{
    rank_thread *self = user;
    self->status = run_case(self->each, self->group);
    sl_group_close(self->group);
    return NULL;
}

static sl_status run_threads(matrix_case *each)
{
    sl_status status = SL_OK;
    rank_thread ranks[MOST_RANKS];
    sl_group *groups[MOST_RANKS] = { NULL };
    pthread_t threads[MOST_RANKS];
    choose_way(each);
    SL_TRY(sl_group_open_threads(each->ranks, NULL, groups));
    for (int r = 0; r < each->ranks; r++) {
        ranks[r] = (rank_thread){ .each = each, .group = groups[r] };
        if (pthread_create(&threads[r], NULL, thread_main, &ranks[r]) != 0)
            abort();
    }
    for (int r = 0; r < each->ranks; r++) {
        pthread_join(threads[r], NULL);
        status = status == SL_OK ? ranks[r].status : status;
    }
done:
    return status;
}

/* All cases of the launch. The device stays open from one to the next, which keeps what is loaded on it. */
static int process_main(void *user, int rank)
{
    sl_status status = SL_OK;
    sl_group *group = NULL;
    sl_device *device = NULL;
    (void)user;
    (void)rank;
    if (shared->count > 0)
        choose_way(&shared->cases[shared->count - 1]); /* with NCCL, which comes last, the device has more queues */
    SL_TRY(sl_device_open(shared->device, NULL, &device));
    if (shared->kind != THREADS)
        SL_TRY(sl_group_open(NULL, &group));
    for (int i = shared->first; i < shared->count; i++) {
        matrix_case *each = &shared->cases[i];
        if (each->ranks != shared->ranks && shared->kind != THREADS)
            continue;
        if (group)
            choose_way(each);
        SL_TRY(group ? run_case(each, group) : run_threads(each));
    }
done:
    sl_device_close(device);
    sl_group_close(group);
    return status == SL_OK ? 0 : 1;
}

/* ---- The matrix ------------------------------------------------------------------------------ */

static matrix_case *add_case(const char *schedule, int ranks, int stages, message_way way)
{
    assert_true(shared->count < MAX_CASES);
    matrix_case *each = &shared->cases[shared->count++];
    memset(each, 0, sizeof *each);
    snprintf(each->schedule, sizeof each->schedule, "%s", schedule);
    each->ranks = ranks;
    each->stages = stages;
    each->way = way;
    return each;
}

static const char *const schedules[] = { "1F1B",      "ZBVZeroBubble",         "GPipe", "Interleaved1F1B", "LoopedBFS",
                                         "DualPipeV", "InterleavedZeroBubble", "ZB-H1", "ZB-1p",           "V-Half",
                                         "auto" };
enum { SCHEDULES = sizeof schedules / sizeof *schedules };

/* Runs the cases that were added. One that fails ends its launch: the others are in the next. */
static void launch_cases(rank_kind kind, int ranks)
{
    sl_launch_result result;
    const sl_launch_options options = { .ranks = kind == THREADS ? 1 : ranks, .run = process_main, .hang_timeout = 20 };
    shared->kind = kind;
    shared->ranks = ranks;
    for (int left = shared->count - shared->first; left > 0;) {
        assert_int_equal(sl_launch(&options, &result), SL_OK);
        if (result.exit_code == 0)
            break;
        while (shared->first < shared->count && shared->cases[shared->first].is_done)
            shared->first++;
        if (shared->first < shared->count) {
            matrix_case *failed = &shared->cases[shared->first++];
            if (!failed->error[0])
                snprintf(failed->error, sizeof failed->error, "%.500s", result.report);
        }
        left = shared->count - shared->first;
    }
    shared->first = shared->count;
}

static const matrix_case *references[MOST_STAGES + 1][2]; /* by stages; rising and falling order of microbatches */

static void run_references(void)
{
    for (int stages = 1; stages <= MOST_STAGES; stages *= 2) {
        references[stages][0] = add_case("Interleaved1F1B", 1, stages, HOST_MEMORY);
        references[stages][1] = add_case("LoopedBFS", 1, stages, HOST_MEMORY);
    }
    launch_cases(THREADS, 1);
}

/* Every copy of every parameter, and none is missing. */
static bool has_params_of(const matrix_case *each, const matrix_case *reference, const char **name)
{
    for (int i = 0; i < MAX_PARAMS && reference->params[0][i].name[0]; i++) {
        const param_hash *wanted = &reference->params[0][i];
        int copies = 0;
        *name = wanted->name;
        for (int r = 0; r < each->ranks; r++) {
            for (int k = 0; k < MAX_PARAMS && each->params[r][k].name[0]; k++) {
                if (strcmp(each->params[r][k].name, wanted->name) != 0)
                    continue;
                if (each->params[r][k].hash != wanted->hash)
                    return false;
                copies++;
            }
        }
        if (copies == 0)
            return false;
    }
    return true;
}

/* Prints what is wrong; returns whether something is. */
static bool is_wrong(const matrix_case *each, rank_kind kind, int stages)
{
    const matrix_case *reference = references[stages][strcmp(each->schedule, "LoopedBFS") == 0];
    const char *way = ways[each->way].text, *name = "";
    char what[640] = "";
    if (!each->is_done)
        snprintf(what, sizeof what, "%s", each->error[0] ? each->error : "it did not run");
    else if (strcmp(shared->device, "cpu") != 0 && each->ranks > 1 && strncmp(each->messages, way, strlen(way)) != 0)
        snprintf(what, sizeof what, "messages went through %s", each->messages);
    else if (memcmp((const void *)each->losses, (const void *)reference->losses, sizeof each->losses) != 0)
        snprintf(what, sizeof what, "other losses: %g instead of %g in the last step", each->losses[STEPS - 1][0],
                 reference->losses[STEPS - 1][0]);
    else if (memcmp((const void *)each->eval_losses, (const void *)reference->eval_losses, sizeof each->eval_losses) !=
             0)
        snprintf(what, sizeof what, "other losses of evaluations");
    else if (!has_params_of(each, reference, &name))
        snprintf(what, sizeof what, "other weights: %s", name);
    if (what[0])
        print_error("%s on %d ranks, %s, %s: %s\n", each->schedule, each->ranks, kind_names[kind], way, what);
    return what[0] != 0;
}

static int count_stages(const matrix_case *each)
{
    sl_schedule *schedule = NULL;
    expect_ok(make_schedule(each->schedule, each->ranks, each->ranks == 1 ? each->stages : 0, &schedule));
    int stages = sl_schedule_stages(schedule);
    sl_schedule_destroy(schedule);
    return stages;
}

/* One case of so many is run unless all are. NCCL refuses threads that share a GPU, and takes long to connect processes; what
 * stands in for it on the tests' device joins threads alone. */
static int sparsity(rank_kind kind, message_way way)
{
    const char *wanted = getenv("SLUICE_GPU_MATRIX"), *chosen = getenv("SLUICE_GPU_WAYS");
    bool no_nccl = kind == THREADS || strcmp(shared->device, "test") == 0;
    if ((way == NCCL && no_nccl) || (chosen && !strstr(chosen, ways[way].name)))
        return INT_MAX;
    if (wanted && strcmp(wanted, "all") == 0)
        return 1;
    return way == NCCL ? INT_MAX : way == HOST_MEMORY ? 9 : kind == THREADS ? 1 : 3;
}

static void run_kind(rank_kind kind)
{
    if (shared->count == 0)
        run_references();
    int wrong = 0, begin = shared->count, turn = kind;
    double start = sl_now();
    for (int ranks = 2; ranks <= MOST_RANKS; ranks *= 2) {
        for (int way = 0; way < WAYS; way++) {
            int every = sparsity(kind, (message_way)way);
            for (int i = 0; every < INT_MAX && i < SCHEDULES; i++, turn++) {
                if (turn % every == 0)
                    add_case(schedules[i], ranks, 0, (message_way)way);
            }
        }
        if (kind != THREADS || ranks == MOST_RANKS)
            launch_cases(kind, ranks);
    }
    for (int i = begin; i < shared->count; i++)
        wrong += is_wrong(&shared->cases[i], kind, count_stages(&shared->cases[i]));
    print_message("%s: %d of %d cases have the bits of one rank, %.1f s\n", kind_names[kind],
                  shared->count - begin - wrong, shared->count - begin, sl_now() - start);
    shared->count = shared->first = begin;
    assert_int_equal(wrong, 0);
}

static void stages_on_one_rank_have_the_bits_of_one_stage(void **state)
{
    (void)state;
    if (shared->count == 0)
        run_references();
    for (int stages = 1; stages <= MOST_STAGES; stages *= 2) {
        for (int falling = 0; falling < 2; falling++) {
            const matrix_case *each = references[stages][falling];
            if (!each->is_done)
                fail_msg("%d stages: %s", stages, each->error);
            assert_memory_equal(each->losses[0], references[1][0]->losses[0], sizeof each->losses[0]);
        }
    }
}

static void threads_have_the_bits_of_one_rank(void **state)
{
    (void)state;
    run_kind(THREADS);
}

static void processes_have_the_bits_of_one_rank(void **state)
{
    (void)state;
    run_kind(PROCESSES);
}

/* ---- MPS ------------------------------------------------------------------------------------- */

static char mps_folder[] = "/tmp/sluice-mps-XXXXXX";

static bool start_mps(void)
{
    if (system("command -v nvidia-cuda-mps-control >/dev/null 2>&1") != 0 || !mkdtemp(mps_folder))
        return false;
    setenv("CUDA_MPS_PIPE_DIRECTORY", mps_folder, 1);
    setenv("CUDA_MPS_LOG_DIRECTORY", mps_folder, 1);
    if (system("nvidia-cuda-mps-control -d >/dev/null 2>&1") == 0)
        return true;
    unsetenv("CUDA_MPS_PIPE_DIRECTORY");
    unsetenv("CUDA_MPS_LOG_DIRECTORY");
    return false;
}

static void stop_mps(void)
{
    char command[128];
    int code = system("echo quit | timeout 20 nvidia-cuda-mps-control >/dev/null 2>&1");
    snprintf(command, sizeof command, "rm -rf %s", mps_folder);
    code |= system(command);
    (void)code; /* nothing can be done about it */
    unsetenv("CUDA_MPS_PIPE_DIRECTORY");
    unsetenv("CUDA_MPS_LOG_DIRECTORY");
}

static void processes_with_mps_have_the_bits_of_one_rank(void **state)
{
    (void)state;
    bool is_ours = !getenv("CUDA_MPS_PIPE_DIRECTORY");
    if (strcmp(shared->device, "cuda") != 0 || (is_ours && !start_mps())) {
        print_message("MPS cannot be started here\n");
        skip();
    }
    run_kind(PROCESSES_WITH_MPS);
    if (is_ours)
        stop_mps();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_on_one_rank_have_the_bits_of_one_stage),
        cmocka_unit_test(threads_have_the_bits_of_one_rank),
        cmocka_unit_test(processes_have_the_bits_of_one_rank),
        cmocka_unit_test(processes_with_mps_have_the_bits_of_one_rank),
    };
    shared = share_memory(sizeof *shared);
    shared->device = name_of_device();
    if (strcmp(shared->device, "test") == 0)
        test_device_install(); /* with it comes what stands in for NCCL */
    cmocka_set_test_filter(getenv("SLUICE_GPU_TEST"));
    if (!has_device(shared->device))
        return NO_DEVICE;
    return cmocka_run_group_tests_name("gpu/matrix", tests, NULL, NULL);
}
