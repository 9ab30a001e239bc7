/* sluice bench comm: latency and bandwidth of messages between two ranks, beside a plain memcpy in the same run. */
#include "bench.h"
#include "comm_measure.h"
#include "tools/sluice/command.h"
#include "tools/sluice/options.h"
#include "tools/sluice/ranks.h"

#include "base/json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const cli_usage usage = {
    .command = "bench comm",
    .synopsis = "[OPTIONS]",
    .description =
        "Sends messages between two ranks: over shared memory (local) and, if mpirun and the plugin are found, over "
        "MPI (mpi).\n"
        "latency_us is half a round trip: fill a slot, hand it over, read a word of every cache line in place, "
        "answer.\n"
        "gb_per_s is a stream one way: the sender copies each message into one of four slots, the receiver takes it in "
        "place and frees it; with read_gb_per_s it also reads a word of every cache line, which has to come from "
        "another core.\n"
        "memcpy_gb_per_s is the sender's memcpy of as many bytes into four slots of its own, in turn with the rounds "
        "of gb_per_s. Up to a few MiB that is the speed of the caches; the one at the top of the JSON is that of the "
        "largest size, the speed of memory. All are the best of several rounds.\n"
        "With --device the messages go through device memory, handed over by streams: half a round trip, a stream one "
        "way that is copied in and out, and as many plain copies.",
    .examples = "sluice bench comm --format json\n"
                "sluice bench comm --device cuda --ranks-as threads",
};

/* ---- Starting the ranks ---------------------------------------------------------------------- */

struct job {
    int rounds;
    struct comm_figures *shared; /* written by rank 0 */
};

static int run_rank(void *user, int rank)
{
    struct job *job = user;
    struct comm_figures mine = { .latency_us = { 0 } };
    sl_status status = comm_measure_ranks(job->rounds, &mine);
    if (status != SL_OK)
        fprintf(stderr, "rank %d: %s\n", rank, sl_error_message());
    if (status == SL_OK && rank == 0)
        *job->shared = mine;
    return status == SL_OK ? 0 : 1;
}

static sl_status measure_local(int rounds, struct comm_figures *out)
{
    sl_status status = SL_OK;
    sl_launch_result result;
    struct job job = { .rounds = rounds };
    job.shared = mmap(NULL, sizeof *out, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (job.shared == MAP_FAILED)
        return sl_fail(SL_ERR_MEMORY, "mmap: %s", strerror(errno));
    const sl_launch_options options = { .ranks = 2, .run = run_rank, .user = &job, .bind = SL_BIND_CORE };
    SL_TRY(sl_launch(&options, &result));
    if (result.exit_code != 0)
        status = sl_fail(SL_ERR_COMM, "%s", result.report);
    else
        *out = *job.shared;
done:
    munmap(job.shared, sizeof *out);
    return status;
}

/* As rank 0 under mpirun: the figures as text. */
static int be_worker(int rounds)
{
    struct comm_figures mine = { .latency_us = { 0 } };
    if (comm_measure_ranks(rounds, &mine) != SL_OK)
        return failure("bench comm");
    for (int s = 0; s < COMM_SIZES && ranks_own() == 0; s++)
        printf("%zu %.17g %.17g %.17g %.17g\n", comm_sizes[s], mine.latency_us[s], mine.gb_per_s[s],
               mine.read_gb_per_s[s], mine.memcpy_gb_per_s[s]);
    return EXIT_OK;
}

static sl_status read_figures(FILE *file, struct comm_figures *out)
{
    for (int s = 0; s < COMM_SIZES; s++) {
        size_t bytes = 0;
        int found = fscanf(file, "%zu %lf %lf %lf %lf", &bytes, &out->latency_us[s], &out->gb_per_s[s],
                           &out->read_gb_per_s[s], &out->memcpy_gb_per_s[s]);
        if (found != 5 || bytes != comm_sizes[s])
            return sl_fail(SL_ERR_COMM, "the ranks under mpirun did not report");
    }
    return SL_OK;
}

/* *ran stays false if there is no mpirun or no plugin. */
static sl_status measure_mpi(const char *mpirun, int rounds, struct comm_figures *out, bool *ran)
{
    char program[4096], line[8192], rest[256];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length < 0)
        return sl_fail(SL_ERR_IO, "/proc/self/exe: %s", strerror(errno));
    program[length] = 0;
    /* Two ranks of a benchmark are no danger to root, and may share one core. */
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1);
    snprintf(line, sizeof line, "%s -n 2 '%s' bench comm --worker --rounds %d 2>&1 </dev/null", mpirun, program,
             rounds);
    FILE *pipe = popen(line, "r");
    if (!pipe)
        return sl_fail(SL_ERR_IO, "start %s: %s", mpirun, strerror(errno));
    struct comm_figures got;
    sl_status status = read_figures(pipe, &got);
    while (fgets(rest, sizeof rest, pipe))
        ;
    int code = pclose(pipe);
    *ran = status == SL_OK && code == 0;
    if (*ran)
        *out = got;
    return SL_OK;
}

/* ---- All of it ------------------------------------------------------------------------------- */

struct results {
    struct comm_figures local, mpi;
    bool has_mpi;
};

/* In turn, so that what else the machine does hits all alike. */
static sl_status measure(const char *mpirun, int rounds, struct results *out)
{
    sl_status status = SL_OK;
    enum { TURNS = 3 };
    for (int turn = 0; turn < TURNS; turn++) {
        struct comm_figures fresh = { .latency_us = { 0 } };
        bool ran = false;
        SL_TRY(measure_local(rounds, &fresh));
        comm_keep_better(&fresh, &out->local);
        if (*mpirun && (turn == 0 || out->has_mpi))
            SL_TRY(measure_mpi(mpirun, rounds, &fresh, &ran));
        if (ran)
            comm_keep_better(&fresh, &out->mpi);
        out->has_mpi |= ran;
    }
done:
    return status;
}

static void print_cases(sl_json *json, const char *transport, const struct comm_figures *figures)
{
    for (int s = 0; s < COMM_SIZES; s++) {
        sl_json_newline(json);
        sl_json_begin(json, '{');
        sl_json_put_string(json, "transport", transport);
        sl_json_put_int(json, "bytes", (int64_t)comm_sizes[s]);
        sl_json_put_double(json, "latency_us", figures->latency_us[s]);
        sl_json_put_double(json, "gb_per_s", figures->gb_per_s[s]);
        sl_json_put_double(json, "read_gb_per_s", figures->read_gb_per_s[s]);
        sl_json_put_double(json, "memcpy_gb_per_s", figures->memcpy_gb_per_s[s]);
        sl_json_end(json, '}');
    }
}

static void print_json(const struct results *results)
{
    sl_json json = { .file = stdout };
    sl_json_begin(&json, '{');
    sl_json_put_double(&json, "memcpy_gb_per_s", results->local.memcpy_gb_per_s[COMM_SIZES - 1]);
    sl_json_key(&json, "cases");
    sl_json_begin(&json, '[');
    print_cases(&json, "local", &results->local);
    if (results->has_mpi)
        print_cases(&json, "mpi", &results->mpi);
    sl_json_end(&json, ']');
    sl_json_end(&json, '}');
    putchar('\n');
}

static void print_text(const struct results *results)
{
    const struct comm_figures *local = &results->local, *mpi = &results->mpi;
    printf("%10s %10s %10s %10s %10s %10s %10s %10s %10s\n", "", "local", "", "", "memcpy", "local /", "mpi", "", "");
    printf("%10s %10s %10s %10s %10s %10s %10s %10s %10s\n", "bytes", "us", "GB/s", "read GB/s", "GB/s", "memcpy", "us",
           "GB/s", "read GB/s");
    for (int s = 0; s < COMM_SIZES; s++) {
        printf("%10zu %10.2f %10.2f %10.2f %10.2f %10.2f ", comm_sizes[s], local->latency_us[s], local->gb_per_s[s],
               local->read_gb_per_s[s], local->memcpy_gb_per_s[s], local->gb_per_s[s] / local->memcpy_gb_per_s[s]);
        if (results->has_mpi)
            printf("%10.2f %10.2f %10.2f\n", mpi->latency_us[s], mpi->gb_per_s[s], mpi->read_gb_per_s[s]);
        else
            printf("%10s %10s %10s\n", "-", "-", "-");
    }
}

int bench_comm(int argc, char **argv)
{
    int rounds = 10, format = 0, code;
    int ranks_as = RANKS_AS_PROCESSES;
    bool worker = false;
    const char *mpirun = "mpirun", *device = NULL;
    struct results results = { .has_mpi = false };
    const cli_option options[] = {
        { .name = "rounds",
          .value = "N",
          .integer = &rounds,
          .min = 1,
          .max = 1000,
          .help = "Rounds a size, of which the best counts (default 10, three times over)." },
        { .name = "mpirun",
          .value = "COMMAND",
          .text = &mpirun,
          .help = "Starts the ranks of the mpi cases (default mpirun); empty leaves them out." },
        { .name = "device",
          .value = "DEVICE",
          .text = &device,
          .help = "A GPU (cuda, cuda:INDEX): messages through its memory, in place of those above." },
        RANKS_AS_OPTION_ROW(ranks_as),
        FORMAT_OPTION_ROW(format),
        { .name = "worker", .flag = &worker, .help = "Be one of the two ranks under mpirun." },
        { .name = NULL },
    };
    if (!options_parse(&usage, options, &argc, argv, &code))
        return code;
    if (worker)
        return be_worker(rounds);
    if (!device && ranks_as == RANKS_AS_THREADS)
        return usage_error("bench comm", "--ranks-as threads is for a --device");
    if (device) {
        sl_status status = comm_measure_links(device, ranks_as, rounds, format == FORMAT_JSON);
        return status == SL_OK ? EXIT_OK : failure("bench comm");
    }
    if (measure(mpirun, rounds, &results) != SL_OK)
        return failure("bench comm");
    format == FORMAT_JSON ? print_json(&results) : print_text(&results);
    return EXIT_OK;
}
