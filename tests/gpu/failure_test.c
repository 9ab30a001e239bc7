/* Ranks on one GPU of which one dies, stops, hangs, leaves or finds an error at a random moment of a step, while streams of
 * the others wait for its messages: everybody ends in time and says who and where, and nothing is left.
 *
 * SLUICE_GPU_POSITIONS: how many moments in all; 14 by default. Each is the same every time. SLUICE_GPU_SHARE=K/N runs those
 * whose number is K modulo N. SLUICE_GPU_LOCK names a file: of the tests that run beside each other with it, one at a time
 * lets its run fail, so that the time to the end is that of one run. SLUICE_GPU_DEVICE names another device: cpu, or test
 * (support/device). */
#include "device/share.h"
#include "gpu/processes.h"
#include "support/device/test_device.h"
#include "unit/runtime/captures.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#define HANG_TIMEOUT 1.5
#define LIMIT 1.0     /* seconds from the event to the last end; one that stops or hangs has the hang timeout before */
#define LAST_WORD 0.5 /* that the watch leaves to a rank that hangs */

typedef enum mishap {
    EVENT_KILL,  /* SIGKILL */
    EVENT_STOP,  /* SIGSTOP */
    EVENT_TOKEN, /* a token past the vocabulary: a kernel finds it */
    EVENT_LEAVE, /* the rank fails between two steps */
    EVENT_FAULT, /* a kernel touches an address that is none: from then on everything on the device fails */
    EVENT_HANG,  /* its stream never comes to the step's work */
} mishap;
static const char *const event_names[] = { "kill",        "stop", "token past the vocabulary", "rank that leaves",
                                           "bad address", "hang" };

/* In memory that all ranks share. */
static struct scene {
    const char *device;
    mishap event;
    int ranks, victim;
    bool threads;
    bool links; /* streams hand the messages over; else the hosts do */
    int at_step;
    int delay_us;             /* from the start of that step, if the event comes from outside of it */
    double happened;          /* when */
    double heard[MOST_RANKS]; /* when its step failed */
    double ended[MOST_RANKS]; /* when it has given everything back */
    sl_status status[MOST_RANKS];
    char message[MOST_RANKS][1024];
    size_t left_in_use[MOST_RANKS]; /* device memory after all was destroyed */
} * scene;

static int lock = -1; /* held from before the event until the next position; all processes of the test share it */

static const char *const names[] = { "1F1B", "ZBVZeroBubble", "Interleaved1F1B", "GPipe" };

/* ---- One rank -------------------------------------------------------------------------------- */

/* Signals the process, or spoils its device, a moment after the step has begun. */
static void *act_later(void *runtime)
{
    sl_stream *stream = NULL;
    usleep((useconds_t)scene->delay_us);
    scene->happened = sl_now();
    if (scene->event != EVENT_FAULT)
        kill(getpid(), scene->event == EVENT_KILL ? SIGKILL : SIGSTOP);
    else if (sl_stream_create(sl_stream_device(sl_runtime_stream(runtime)), &stream) != SL_OK ||
             sl_stream_copy(stream, SL_COPY_DEVICE_TO_DEVICE, (void *)4096, (void *)8192, 256) != SL_OK)
        abort();
    return NULL;
}

static void sleep_for_ever(void *unused)
{
    (void)unused;
    for (;;)
        pause();
}

/* A word that nobody writes holds the stream up, or a function of the host that does not return. */
static sl_status hold_up(sl_stream *stream)
{
    sl_status status = SL_OK;
    sl_device_handle handle;
    sl_word_use use = { .kind = SL_WORD_WAIT };
    if (scene->delay_us % 2)
        return sl_stream_call(stream, sleep_for_ever, NULL);
    SL_TRY(sl_device_share(sl_stream_device(stream), sizeof *use.word, &handle, (void **)&use.word));
    SL_TRY(sl_stream_use_words(stream, &use, 1));
done:
    return status;
}

static sl_status run_step(gpt_rank *rank, int number, bool is_victim)
{
    sl_status status = SL_OK;
    int32_t tokens[BATCH * SEQ], targets[BATCH * SEQ];
    const sl_meta meta = sl_meta_make(SL_I32, 2, (int64_t[]){ BATCH, SEQ });
    const sl_arg args[] = { { .name = "tokens", .view = { tokens, meta } },
                            { .name = "targets", .view = { targets, meta } } };
    bool now = number == scene->at_step;
    pthread_t later;
    if (now && is_victim && lock >= 0 && flock(lock, LOCK_EX) != 0)
        abort();
    for (int i = 0; i < BATCH * SEQ; i++) {
        tokens[i] = (i * 7 + number * 5) % VOCABULARY;
        targets[i] = (tokens[i] + 3) % VOCABULARY;
    }
    if (now && scene->event == EVENT_TOKEN)
        tokens[scene->delay_us % (BATCH * SEQ)] = VOCABULARY + 7;
    bool acts_later = scene->event <= EVENT_STOP || scene->event == EVENT_FAULT;
    if (now && is_victim && acts_later && pthread_create(&later, NULL, act_later, rank->runtime) != 0)
        abort();
    if (now && is_victim && !acts_later)
        scene->happened = sl_now();
    if (now && is_victim && scene->event == EVENT_LEAVE)
        return sl_fail(SL_ERR_IO, "the data is gone");
    if (now && is_victim && scene->event == EVENT_HANG)
        SL_TRY(hold_up(sl_runtime_stream(rank->runtime)));
    const sl_step step = { .args = args, .arg_count = 2, .number = number, .seed = 1 };
    SL_TRY(sl_runtime_step(rank->runtime, &step, NULL));
    SL_TRY(sl_optimizer_step(rank->optimizer, sl_runtime_stream(rank->runtime), number + 1, 0.01, 1));
done:
    return status;
}

static void run_rank_of_scene(sl_group *group)
{
    sl_status status = SL_OK;
    gpt_run run = { .device = scene->device };
    gpt_rank rank = { .run = &run, .group = group };
    int me = sl_group_rank(group);
    sl_device *device = NULL;
    SL_TRY(sl_device_open(scene->device, NULL, &device));
    const sl_generate_options schedule = { .name = names[scene->at_step % 4],
                                           .ranks = scene->ranks,
                                           .microbatches = MICROBATCHES };
    SL_TRY(sl_schedule_generate(&schedule, &run.schedule));
    run.partition = cut_gpt(sl_schedule_stages(run.schedule), SL_F32);
    SL_TRY(open_rank(&rank));
    SL_TRY(start_params(&rank));
    for (int number = 0; number < 100000; number++)
        SL_TRY(run_step(&rank, number, me == scene->victim));
done:
    scene->heard[me] = sl_now();
    scene->status[me] = status;
    snprintf(scene->message[me], sizeof scene->message[me], "%s", status == SL_OK ? "" : sl_error_message());
    if (status != SL_OK)
        sl_group_fail(group, status);
    sl_optimizer_destroy(rank.optimizer);
    sl_runtime_destroy(rank.runtime);
    for (int s = 0; s < rank.stage_count; s++)
        sl_stage_destroy(rank.stages[s]);
    scene->left_in_use[me] = rank.device ? sl_device_get_memory(rank.device).in_use : 0;
    sl_device_close(rank.device);
    sl_device_close(device);
    sl_partition_destroy(run.partition);
    sl_schedule_destroy(run.schedule);
    sl_group_close(group);
    scene->ended[me] = sl_now();
}

static void *thread_main(void *group)
{
    run_rank_of_scene(group);
    return NULL;
}

static int process_main(void *user, int rank)
{
    sl_group *group = NULL;
    (void)user;
    (void)rank;
    if (sl_group_open(NULL, &group) != SL_OK)
        return 1;
    run_rank_of_scene(group);
    return 1;
}

/* ---- All ranks ------------------------------------------------------------------------------- */

static void set_scene(mishap event, bool threads, int number)
{
    const char *device = scene->device;
    if (lock >= 0)
        flock(lock, LOCK_UN);
    memset(scene, 0, sizeof *scene);
    *scene = (struct scene){ .device = device, .event = event, .threads = threads };
    srandom((unsigned)number);
    scene->ranks = (int)random() % 3 ? 2 : 4;
    scene->links = threads || (int)random() % 2;
    setenv("SLUICE_DEVICE_LINKS", scene->links ? "1" : "0", 1);
    scene->victim = event == EVENT_TOKEN ? 0 : (int)random() % scene->ranks;
    scene->at_step = 5 + (int)random() % 12; /* whole steps are graphs by then */
    scene->delay_us = (int)random() % 3000;
}

static const char *describe(char *text, size_t size)
{
    snprintf(text, size, "%s of rank %d of %d %s with messages of %s in step %d after %d us", event_names[scene->event],
             scene->victim, scene->ranks, scene->threads ? "threads" : "processes", scene->links ? "streams" : "hosts",
             scene->at_step, scene->delay_us);
    return text;
}

static atomic_int *complaints; /* how many; shared, too */

/* Something is wrong; the positions go on. */
__attribute__((format(printf, 1, 2))) static void complain(const char *format, ...)
{
    va_list args;
    atomic_fetch_add(complaints, 1);
    va_start(args, format);
    fprintf(stderr, "FAILED: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
}

/* Every rank that can say something says the same. */
static void expect_messages(const char *first, const char *second)
{
    char text[192];
    for (int r = 0; r < scene->ranks; r++) {
        bool is_gone = r == scene->victim && (scene->event <= EVENT_STOP || scene->event == EVENT_HANG);
        if (is_gone)
            continue;
        if (scene->status[r] == SL_OK || !strstr(scene->message[r], first) || !strstr(scene->message[r], second))
            complain("%s: rank %d says '%s'", describe(text, sizeof text), r, scene->message[r]);
    }
}

/* Runs the scene as threads of one process. Returns the seconds from the event to the last end. */
static double run_threads(void)
{
    sl_group *groups[MOST_RANKS] = { NULL };
    pthread_t threads[MOST_RANKS];
    double last = 0;
    if (sl_group_open_threads(scene->ranks, NULL, groups) != SL_OK)
        abort();
    for (int r = 0; r < scene->ranks; r++) {
        if (pthread_create(&threads[r], NULL, thread_main, groups[r]) != 0)
            abort();
    }
    for (int r = 0; r < scene->ranks; r++) {
        pthread_join(threads[r], NULL);
        last = fmax(last, scene->ended[r]);
    }
    return last - scene->happened;
}

static double run_processes(void)
{
    sl_launch_result result;
    const sl_launch_options launch = { .ranks = scene->ranks, .run = process_main, .hang_timeout = HANG_TIMEOUT };
    char text[192];
    assert_int_equal(sl_launch(&launch, &result), SL_OK);
    double seconds = sl_now() - scene->happened;
    if (result.exit_code == 0 || scene->happened == 0)
        complain("%s: exit code %d: %s", describe(text, sizeof text), result.exit_code, result.report);
    char wanted[64];
    snprintf(wanted, sizeof wanted, scene->event == EVENT_KILL ? "rank %d was killed by signal 9" : "rank %d",
             scene->victim);
    if (!strstr(result.report, wanted))
        complain("%s: the report is '%s'", describe(text, sizeof text), result.report);
    return seconds;
}

static void check_time(double seconds)
{
    char text[192];
    double limit = LIMIT;
    if (scene->event == EVENT_STOP)
        limit += HANG_TIMEOUT;
    else if (scene->event == EVENT_HANG)
        limit += HANG_TIMEOUT + LAST_WORD;
    fprintf(stderr, "%s: %.3f s to the end\n", describe(text, sizeof text), seconds);
    for (int r = 0; seconds > limit && r < scene->ranks; r++)
        fprintf(stderr, "rank %d heard of it after %.3f s and had given everything back after %.3f s\n", r,
                scene->heard[r] - scene->happened, scene->ended[r] - scene->happened);
    if (seconds > limit)
        complain("%s: %.2f s to the end", describe(text, sizeof text), seconds);
}

static void run_position(mishap event, int number)
{
    char who[96];
    set_scene(event, false, number);
    check_time(run_processes());
    snprintf(who, sizeof who,
             event == EVENT_HANG ? "has been in one action for more than 1.5 s: pipeline rank %d, cell "
                                 : "rank %d was killed by signal 9",
             scene->victim);
    if (event == EVENT_KILL)
        expect_messages(who, "last doing: step ");
    else if (event == EVENT_HANG)
        expect_messages(who, "(stage ");
    else if (event == EVENT_STOP)
        expect_messages("gave no sign of life for 1.5 s", "last doing: ");
    else if (event == EVENT_FAULT)
        expect_messages("an illegal memory access was encountered", "pipeline rank ");
    else
        expect_messages(event == EVENT_TOKEN ? "embedding: id 55 at element" : "the data is gone", "");
}

/* ---- Positions ------------------------------------------------------------------------------- */

/* The kinds take turns; a kind that is there twice has twice as many positions. Threads die together. */
static const struct {
    mishap event;
    bool threads;
} kinds[] = {
    { EVENT_KILL, false }, { EVENT_LEAVE, true }, { EVENT_STOP, false },  { EVENT_TOKEN, false },
    { EVENT_KILL, false }, { EVENT_HANG, false }, { EVENT_FAULT, false }, { EVENT_LEAVE, false },
    { EVENT_FAULT, true }, { EVENT_TOKEN, true },
};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* Runs this process's share of the positions of the kind. */
static void run_positions(mishap event, bool threads, void (*run)(mishap event, int number))
{
    const char *all = getenv("SLUICE_GPU_POSITIONS"), *share = getenv("SLUICE_GPU_SHARE");
    int count = all ? atoi(all) : 14, own = 0, shares = 1;
    if (share && (sscanf(share, "%d/%d", &own, &shares) != 2 || shares < 1))
        complain("SLUICE_GPU_SHARE is '%s'", share);
    for (int i = 0; i < count; i++) {
        if (kinds[i % KINDS].event == event && kinds[i % KINDS].threads == threads && i % shares == own)
            run(event, i);
    }
}

static void expect_no_complaints(void)
{
    assert_int_equal(atomic_exchange(complaints, 0), 0);
}

static void a_rank_that_is_killed_ends_all(void **state)
{
    (void)state;
    run_positions(EVENT_KILL, false, run_position);
    expect_no_complaints();
}

static void a_rank_that_is_stopped_ends_all(void **state)
{
    (void)state;
    run_positions(EVENT_STOP, false, run_position);
    expect_no_complaints();
}

static void what_a_kernel_finds_ends_all(void **state)
{
    (void)state;
    run_positions(EVENT_TOKEN, false, run_position);
    expect_no_complaints();
}

static void a_rank_that_leaves_ends_all(void **state)
{
    (void)state;
    run_positions(EVENT_LEAVE, false, run_position);
    expect_no_complaints();
}

static void skip_without_gpu(void)
{
    if (strcmp(scene->device, "cuda") != 0)
        skip(); /* see runtime_hang_test */
}

static void a_device_that_fails_ends_all(void **state)
{
    (void)state;
    skip_without_gpu();
    run_positions(EVENT_FAULT, false, run_position);
    expect_no_complaints();
}

static void a_step_that_hangs_is_found_and_named(void **state)
{
    (void)state;
    skip_without_gpu();
    run_positions(EVENT_HANG, false, run_position);
    expect_no_complaints();
}

static void run_threads_here(mishap event, int number)
{
    static const char *const wanted[] = { [EVENT_TOKEN] = "embedding: id 55 at element",
                                          [EVENT_LEAVE] = "the data is gone",
                                          [EVENT_FAULT] = "an illegal memory access was encountered" };
    char text[192];
    set_scene(event, true, number);
    check_time(run_threads());
    expect_messages(wanted[event], "");
    for (int r = 0; r < scene->ranks; r++) {
        if (scene->left_in_use[r] > 0)
            complain("%s: rank %d leaves %zu bytes", describe(text, sizeof text), r, scene->left_in_use[r]);
    }
}

/* The positions in one process, one after another: what one has left would be in the way of the next. */
static int threads_main(void *user, int rank)
{
    (void)user;
    (void)rank;
    run_positions(EVENT_LEAVE, true, run_threads_here);
    run_positions(EVENT_TOKEN, true, run_threads_here);
    return 0;
}

static int fault_main(void *user, int rank)
{
    (void)rank;
    run_threads_here(EVENT_FAULT, *(int *)user);
    return 0;
}

/* A process whose device has failed is of no use any more: it ends, too. */
static void run_threads_apart(mishap event, int number)
{
    sl_launch_result result;
    const sl_launch_options launch = { .ranks = 1, .run = fault_main, .user = &number };
    assert_int_equal(sl_launch(&launch, &result), SL_OK);
    if (event != scene->event || result.exit_code != 0)
        complain("position %d: %s", number, result.report);
    check_time(sl_now() - scene->happened);
}

static void a_thread_that_fails_ends_all_and_leaves_nothing(void **state)
{
    (void)state;
    sl_launch_result result;
    const sl_launch_options launch = { .ranks = 1, .run = threads_main };
    assert_int_equal(sl_launch(&launch, &result), SL_OK);
    if (result.exit_code != 0)
        complain("%s", result.report);
    if (strcmp(scene->device, "cuda") == 0)
        run_positions(EVENT_FAULT, true, run_threads_apart);
    expect_no_complaints();
}

static void no_process_is_left(void **state)
{
    (void)state;
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thread_that_fails_ends_all_and_leaves_nothing),
        cmocka_unit_test(a_rank_that_is_killed_ends_all),
        cmocka_unit_test(a_rank_that_leaves_ends_all),
        cmocka_unit_test(what_a_kernel_finds_ends_all),
        cmocka_unit_test(a_rank_that_is_stopped_ends_all),
        cmocka_unit_test(a_device_that_fails_ends_all),
        cmocka_unit_test(a_step_that_hangs_is_found_and_named),
        cmocka_unit_test(no_process_is_left),
    };
    scene = share_memory(sizeof *scene);
    complaints = share_memory(sizeof *complaints);
    scene->device = name_of_device();
    if (getenv("SLUICE_GPU_LOCK") && (lock = open(getenv("SLUICE_GPU_LOCK"), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) < 0)
        abort();
    if (strcmp(scene->device, "test") == 0)
        test_device_install();
    if (!has_device(scene->device))
        return NO_DEVICE;
    return cmocka_run_group_tests_name("gpu/failure", tests, NULL, NULL);
}
