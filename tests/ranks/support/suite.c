/* What the cases of the suite share, and running them on threads, processes and under MPI. */
#include "ranks/support/suite.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

sl_status suite_expect(sl_status got, sl_status expected, const char *text, const char *file, int line)
{
    char message[1024];
    snprintf(message, sizeof message, "%s", got == SL_OK ? "" : sl_error_message());
    if (got != expected)
        return sl_fail(SL_ERR_INTERNAL, "%s:%d: %s (%s), but %s was expected", file, line, sl_status_name(got), message,
                       sl_status_name(expected));
    if (!strstr(message, text))
        return sl_fail(SL_ERR_INTERNAL, "%s:%d: '%s' does not say '%s'", file, line, message, text);
    return SL_OK;
}

uint64_t suite_next(suite_random *random)
{
    uint64_t z = random->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

int64_t suite_between(suite_random *random, int64_t low, int64_t high)
{
    return low + (int64_t)(suite_next(random) % (uint64_t)(high - low + 1));
}

static uint64_t word_at(uint64_t seed, size_t word)
{
    return (seed + word) * 0x9e3779b97f4a7c15u ^ seed >> 7;
}

void suite_fill(void *data, size_t bytes, uint64_t seed)
{
    char *at = data;
    for (size_t word = 0; bytes > 0; word++) {
        uint64_t value = word_at(seed, word);
        size_t part = bytes < sizeof value ? bytes : sizeof value;
        memcpy(at, &value, part);
        at += part;
        bytes -= part;
    }
}

bool suite_is_filled(const void *data, size_t bytes, uint64_t seed)
{
    const char *at = data;
    for (size_t word = 0; bytes > 0; word++) {
        uint64_t value = word_at(seed, word);
        size_t part = bytes < sizeof value ? bytes : sizeof value;
        if (memcmp(at, &value, part) != 0)
            return false;
        at += part;
        bytes -= part;
    }
    return true;
}

sl_message suite_bytes(int64_t step, int microbatch, size_t bytes)
{
    return (sl_message){
        .step = step,
        .microbatch = microbatch,
        .dtype = SL_U8,
        .shape = { .rank = 1, .dims = { (int64_t)bytes } },
    };
}

sl_status suite_open_one(sl_group *group, int id, int src, int dst, int capacity, size_t max_bytes, sl_channel **out)
{
    sl_channel_spec spec = { .id = id, .src = src, .dst = dst, .capacity = capacity, .max_bytes = max_bytes };
    return sl_group_open_channels(group, &spec, 1, out);
}

/* ---- Threads --------------------------------------------------------------------------------- */

typedef struct rank_thread {
    pthread_t thread;
    suite_function run;
    sl_group *group;
    uint64_t seed;
    sl_status status;
    char message[1024];
} rank_thread;

static void *run_rank(void *user)
{
    rank_thread *rank = user;
    rank->status = rank->run(rank->group, rank->seed);
    if (rank->status != SL_OK) {
        snprintf(rank->message, sizeof rank->message, "%s", sl_error_message());
        sl_group_fail(rank->group, rank->status);
    }
    sl_group_close(rank->group);
    return NULL;
}

sl_status suite_run_threads(suite_function run, int size, const sl_group_options *options, uint64_t seed)
{
    sl_status status = SL_OK;
    sl_group **groups = calloc((size_t)size, sizeof(sl_group *));
    rank_thread *ranks = calloc((size_t)size, sizeof *ranks);
    SL_TRY(sl_group_open_threads(size, options, groups));
    for (int r = 0; r < size; r++) {
        ranks[r] = (rank_thread){ .run = run, .group = groups[r], .seed = seed };
        pthread_create(&ranks[r].thread, NULL, run_rank, &ranks[r]);
    }
    for (int r = 0; r < size; r++)
        pthread_join(ranks[r].thread, NULL);
    /* The others' SL_ERR_PEER only repeats what the failing rank said. */
    for (int r = 0; r < size; r++) {
        if (ranks[r].status != SL_OK && (status == SL_OK || status == SL_ERR_PEER))
            status = sl_fail(ranks[r].status, "rank %d: %s", r, ranks[r].message);
    }
done:
    free(ranks);
    free(groups);
    return status;
}

sl_status suite_run_self(suite_function run, int size, const sl_group_options *options, uint64_t seed)
{
    (void)size;
    sl_group_options self = options ? *options : (sl_group_options){ .transport = NULL };
    sl_group *group = NULL;
    self.transport = "self";
    sl_status status = sl_group_open(&self, &group);
    if (status == SL_OK)
        status = run(group, seed);
    sl_group_close(group);
    return status;
}

/* ---- Processes ------------------------------------------------------------------------------- */

/* A forked rank; what it has to say goes into memory that it shares with the test. */
typedef struct rank_process {
    suite_function run;
    const sl_group_options *options;
    uint64_t seed;
    struct outcome {
        sl_status status;
        char message[1024];
    } * outcomes; /* (size) */
} rank_process;

static int run_process(void *user, int rank)
{
    rank_process *process = user;
    sl_group *group = NULL;
    sl_status status = sl_group_open(process->options, &group);
    if (status == SL_OK)
        status = process->run(group, process->seed);
    if (status != SL_OK) {
        snprintf(process->outcomes[rank].message, sizeof process->outcomes[rank].message, "%s", sl_error_message());
        if (group)
            sl_group_fail(group, status);
    }
    process->outcomes[rank].status = status;
    sl_group_close(group);
    return status == SL_OK ? 0 : 1;
}

sl_status suite_run_local(suite_function run, int size, const sl_group_options *options, uint64_t seed)
{
    sl_status status = SL_OK;
    rank_process process = { .run = run, .options = options, .seed = seed };
    sl_launch_options launch = { .ranks = size, .run = run_process, .user = &process };
    sl_launch_result result;
    size_t bytes = (size_t)size * sizeof *process.outcomes;
    process.outcomes = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    SL_TRY(sl_launch(&launch, &result));
    for (int r = 0; r < size; r++) {
        if (process.outcomes[r].status != SL_OK && (status == SL_OK || status == SL_ERR_PEER))
            status = sl_fail(process.outcomes[r].status, "rank %d: %s", r, process.outcomes[r].message);
    }
    if (status == SL_OK && result.rank >= 0)
        status = sl_fail(SL_ERR_INTERNAL, "%s", result.report);
done:
    munmap(process.outcomes, bytes);
    return status;
}

/* ---- Lists ----------------------------------------------------------------------------------- */

sl_status suite_run_list(suite_runner runner, const suite_case *cases, int size, int rounds)
{
    for (const suite_case *each = cases; each->name; each++) {
        int times = each->rounds < 1 ? 1 : rounds > 0 && each->rounds > rounds ? rounds : each->rounds;
        for (int round = 0; size >= each->min_ranks && round < times; round++) {
            uint64_t seed = (uint64_t)round * 31 + (uint64_t)size;
            const sl_group_options options = { .checksum = round % 4 == 1, .spin_us = round % 3 == 1 ? -1 : 0 };
            sl_status status = runner(each->run, size, &options, seed);
            if (status != SL_OK)
                return sl_fail_context(status, "%s, %d ranks, round %d", each->name, size, round);
        }
    }
    return SL_OK;
}

/* ---- MPI ------------------------------------------------------------------------------------- */

bool suite_has_mpi(const char *flavour)
{
    char path[4200];
#if TEST_THREAD_SANITIZED
    printf("the thread sanitizer does not know how MPI's processes share memory\n");
    return false;
#endif
    snprintf(path, sizeof path, "%s/libsluice_mpi_%s.so", getenv("SLUICE_PLUGIN_PATH"), flavour);
    bool built = access(path, R_OK) == 0;
    if (!built)
        printf("%s is not built here\n", path);
    return built;
}

bool suite_is_mpi_rank(void)
{
    return getenv("OMPI_COMM_WORLD_RANK") || getenv("PMI_RANK");
}

/* An MPI leaks some memory of its own at exit. */
int suite_mpirun(const char *flavour, int ranks, const char *what, char *output, size_t size)
{
    char command[8192], program[4096];
    const char *options = strcmp(flavour, "openmpi") == 0 ? "--oversubscribe --allow-run-as-root" : "";
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    program[length > 0 ? length : 0] = '\0';
    snprintf(command, sizeof command,
             "ASAN_OPTIONS=detect_leaks=0 timeout 120 mpirun.%s %s -n %d '%s' %s 2>&1 </dev/null", flavour, options,
             ranks, program, what);
    FILE *pipe = popen(command, "r");
    if (!pipe)
        return 1;
    size_t used = fread(output, 1, size - 1, pipe);
    output[used] = '\0';
    int code = pclose(pipe);
    return WIFEXITED(code) ? WEXITSTATUS(code) : 128 + WTERMSIG(code);
}
