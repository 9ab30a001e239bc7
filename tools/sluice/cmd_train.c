/* sluice train: reads the configuration, shows or runs the plan. */
#include "command.h"
#include "config_options.h"
#include "options.h"
#include "ranks.h"

#include <sluice/train.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/units.h"

#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NAME "train"

static const cli_usage usage = {
    .command = NAME,
    .synopsis = "[-c FILE] [--plan FILE] [--SECTION.KEY=VALUE ...] [-n RANKS] [--ranks-as processes|threads] "
                "[--dry-run] [--resume | --overwrite] [--restarts N] "
                "[--trace N] [--save-grads FILE]",
    .description =
        "Trains a language model from a text or token file, cut into pipeline stages. Everything of a run lies in the "
        "folder run.out: metrics.jsonl, checkpoints/, trace.json. Every key of the configuration file can also be "
        "given "
        "as an option, which wins over the file.\n"
        "Ranks are started on this machine; under mpirun or srun the same command line is one rank of many. An "
        "interrupt (Ctrl-C), SIGTERM or SIGHUP ends the run after the step with a checkpoint, from which --resume "
        "continues with the bits of a run that was never interrupted.",
    .examples = "sluice train --data.text=book.txt --run.steps=200\n"
                "sluice train -c run.yaml --parallel.pp=4 --dry-run\n"
                "sluice train -c run.yaml --resume\n"
                "mpirun -n 4 sluice train -c run.yaml --parallel.pp=4",
};

enum { OWN_OPTIONS = 14 };

/* The command line as it was read. */
typedef struct train_arguments {
    const char *config, *save_grads, *device;
    int ranks, ranks_as, trace, restarts, min_ranks;
    bool dry_run, resume, overwrite;
    double hang_timeout;
    int format; /* of --dry-run */
    config_options keys;
} train_arguments;

/* ---- Options --------------------------------------------------------------------------------- */

static sl_status take_plan(const char *what, const char *text, void *target)
{
    (void)what;
    return config_options_take("--run.plan", text, target);
}

/* The command's own, then a row for every key of the configuration. */
static void fill_options(train_arguments *arguments, cli_option *options)
{
    const cli_option own[OWN_OPTIONS] = {
        { .name = "config",
          .letter = 'c',
          .value = "FILE",
          .text = &arguments->config,
          .help = "YAML file with the sections and keys below." },
        { .name = "plan",
          .value = "FILE",
          .read = take_plan,
          .target = &arguments->keys,
          .help = "File that 'sluice plan -c' wrote: its values win over those of the configuration (run.plan)." },
        { .name = "ranks",
          .letter = 'n',
          .value = "N",
          .integer = &arguments->ranks,
          .min = 1,
          .max = SL_MAX_RANKS,
          .help = "Ranks to start; parallel.pp x parallel.dp by default. If parallel.pp is not given it is N / "
                  "parallel.dp." },
        RANKS_AS_OPTION_ROW(arguments->ranks_as),
        { .name = "device",
          .value = "DEVICE",
          .text = &arguments->device,
          .help =
              "cpu (the default), cuda or cuda:INDEX for a GPU, or auto: a GPU if there is one. With --dry-run also a "
              "model of GPU that need not be here, such as h200." },
        { .name = "dry-run",
          .flag = &arguments->dry_run,
          .help = "Print the plan (stages, schedule, predicted step time, bubble and memory) and stop." },
        FORMAT_OPTION_ROW(arguments->format),
        { .name = "resume",
          .flag = &arguments->resume,
          .help = "Continue from the newest whole checkpoint in run.out; start anew if there is none. The numbers of "
                  "ranks and stages and the schedule may be others than before." },
        { .name = "overwrite",
          .flag = &arguments->overwrite,
          .help = "Start anew in a run.out that holds a run, and remove that run." },
        { .name = "restarts",
          .value = "N",
          .integer = &arguments->restarts,
          .min = 0,
          .max = 1000000,
          .help = "Start the ranks again, N times at most, after one was killed, hung or stopped. The run goes on from "
                  "the newest checkpoint, or from a newer snapshot in memory (checkpoint.memory)." },
        { .name = "min-ranks",
          .value = "M",
          .integer = &arguments->min_ranks,
          .min = 1,
          .max = 4096,
          .help = "With --restarts: after two starts in a row that completed no step, go on with fewer ranks, but no "
                  "fewer than M: a shorter pipeline if the plan allows one, else fewer replicas." },
        { .name = "trace",
          .value = "N",
          .integer = &arguments->trace,
          .min = 1,
          .max = 100000,
          .help = "Write the timeline of N steps to run.out/trace.json and trace.svg." },
        { .name = "save-grads",
          .value = "FILE",
          .text = &arguments->save_grads,
          .help = "Write the gradients of the first step as safetensors, before clipping." },
        { .name = "hang-timeout",
          .value = "S",
          .real = &arguments->hang_timeout,
          .least = -1,
          .most = 1e6,
          .help = "Seconds without a sign of life after which a rank counts as hung, and seconds that one action may "
                  "take; -1 for never. By default 30, and for an action a hundred times what the plan predicts if that "
                  "is more." },
    };
    memcpy(options, own, sizeof own);
    config_options_add(&arguments->keys, options, OWN_OPTIONS);
}

/* ---- Signals --------------------------------------------------------------------------------- */

static volatile sig_atomic_t stop_signal;

/* The first asks for a checkpoint and an end; a second, more than a second later, ends at once. (A terminal's Ctrl-C
 * reaches a rank both directly and through the launcher.) */
static void note_signal(int number)
{
    static volatile double first;
    double now = sl_now();
    if (stop_signal == 0) {
        stop_signal = number;
        first = now;
    } else if (now - first > 1) {
        signal(number, SIG_DFL);
        raise(number);
    }
}

/* What the caller lets this program ignore (nohup, a background job of a script) stays so. */
static void catch_signals(void)
{
    static const int numbers[] = { SIGINT, SIGTERM, SIGHUP };
    struct sigaction action = { .sa_handler = note_signal, .sa_flags = SA_RESTART }, now;
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (sigaction(numbers[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN)
            sigaction(numbers[i], &action, NULL);
    }
    signal(SIGPIPE, SIG_IGN); /* `train | head` goes on when nobody reads its progress any more */
}

/* Output for a pipe that nobody reads any more is dropped: it is no failure of the run, whose result is in files. */
static void drop_unread_output(void)
{
    struct pollfd output = { .fd = STDOUT_FILENO };
    if (poll(&output, 1, 0) == 1 && (output.revents & POLLERR) && !freopen("/dev/null", "w", stdout))
        clearerr(stdout);
}

/* ---- Running --------------------------------------------------------------------------------- */

static void print_result(const sl_train_config *config, const train_arguments *arguments, const sl_train_result *result)
{
    char time[32];
    printf("%s after step %" PRId64, result->stopped ? "stopped" : "done", result->last_step);
    if (result->last_step == result->first_step)
        printf(": nothing was left to do, run.steps is %" PRId64, config->run.steps);
    else
        printf(": loss %.5g -> %.5g in %s", result->first_loss, result->last_loss,
               sl_seconds_text(result->seconds, time, sizeof time));
    if (result->early)
        printf("\nearly end   no better validation loss in %" PRId64 " validations (eval.patience)",
               config->eval.patience);
    if (!isnan(result->best_loss))
        printf("\nvalidation  best loss %.5g after step %" PRId64, result->best_loss, result->best_step);
    printf("\nmetrics     %s/metrics.jsonl\n", config->run.out);
    if (result->checkpoint[0])
        printf("checkpoint  %s\n", result->checkpoint);
    if (arguments->trace > 0 && result->last_step > result->first_step)
        printf("timeline    %s/trace.json, %s/trace.svg\n", config->run.out, config->run.out);
    if (!isnan(result->peak_flops) && result->last_step > result->first_step)
        printf("MFU         relates to %.4g GFLOP/s a rank, %s\n", result->peak_flops * 1e-9,
               config->log.peak_gflops > 0 ? "as given" : "measured at the start (log.peak_gflops sets it)");
    if (!isnan(result->bubble))
        printf("bubble      %.1f%% measured\n", 100 * result->bubble);
    fflush(stdout);
}

/* What every rank of this process runs. */
typedef struct rank_job {
    const sl_train_plan *plan;
    const sl_train_config *config;
    const train_arguments *arguments;
} rank_job;

/* Taking down a GPU's streams and communicators takes longer than the end of the process, which does it, too. */
static bool ends_at_once(const rank_job *job, const sl_group *group)
{
    return strcmp(sl_group_transport(group), "local") == 0 && sl_train_plan_memory(job->plan, 0).device > 0;
}

static int run_rank(void *user, sl_group *group)
{
    const rank_job *job = user;
    sl_train_result result;
    bool at_once = ends_at_once(job, group);
    const sl_train_options options = { .resume = job->arguments->resume,
                                       .overwrite = job->arguments->overwrite,
                                       .trace_steps = job->arguments->trace,
                                       .save_grads = job->arguments->save_grads,
                                       .console = stdout,
                                       .stop = &stop_signal,
                                       .ends_process = at_once };
    sl_status status = sl_train_run(job->plan, group, &options, &result);
    int code = status == SL_OK ? EXIT_OK : ranks_failure(NAME, group, status);
    if (status == SL_ERR_PEER && at_once) {
        fflush(NULL);
        _exit(code);
    }
    if (status != SL_OK)
        return code;
    if (sl_group_rank(group) == 0)
        print_result(job->config, job->arguments, &result);
    return result.stopped ? 128 + (stop_signal ? (int)stop_signal : SIGTERM) : EXIT_OK;
}

/* This process is one rank, or the only one, or all of them. */
static int run_here(rank_job *job)
{
    sl_group *group = NULL;
    int code = EXIT_OK, ranks = sl_train_plan_ranks(job->plan);
    double hang_timeout = job->arguments->hang_timeout;
    if (job->arguments->ranks_as == RANKS_AS_THREADS && ranks > 1) {
        catch_signals();
        code = ranks_run_threads(NAME, ranks, hang_timeout, run_rank, job);
    } else {
        if (sl_group_open(&(sl_group_options){ .hang_timeout = hang_timeout }, &group) != SL_OK)
            return failure(NAME);
        catch_signals();
        code = run_rank(job, group);
        sl_group_close(group);
    }
    drop_unread_output();
    return code;
}

/* All ranks come to the same verdict; one says it. */
static int refuse(sl_status status)
{
    if (ranks_own() == 0)
        return refusal(NAME, status);
    sleep(3); /* who started the ranks ends all with the first one: let that be rank 0, which says why */
    return status == SL_ERR_ARGUMENT ? EXIT_USAGE : EXIT_FAILED;
}

/* The argument in quotes; one of its own ends them, stands escaped and opens them again. */
static size_t quote(const char *argument, char *text, size_t size)
{
    size_t used = (size_t)snprintf(text, size, " '");
    for (; *argument && used < size; argument++)
        used += (size_t)snprintf(text + used, size - used, "%s%c", *argument == '\'' ? "'\\'" : "", *argument);
    return used < size ? used + (size_t)snprintf(text + used, size - used, "'") : used;
}

/* "sluice train -c run.yaml ..." with what a shell would misread in quotes. */
static void format_command(int argc, char **argv, int ranks, char *text, size_t size)
{
    size_t used = (size_t)snprintf(text, size, "sluice");
    for (int i = 0; i < argc && used < size; i++) {
        if (strcmp(argv[i], "--dry-run") == 0)
            continue;
        bool plain = argv[i][strcspn(argv[i], " '\"\\$*?[]{}()<>|&;#~`!")] == '\0' && argv[i][0] != '\0';
        used += plain ? (size_t)snprintf(text + used, size - used, " %s", argv[i])
                      : quote(argv[i], text + used, size - used);
    }
    if (used < size && ranks > 1)
        snprintf(text + used, size - used, "   # starts %d ranks", ranks);
}

/* A file to be written later can be made where it is to lie. NULL is fine. */
static sl_status check_writable(const char *path)
{
    sl_file *file = NULL;
    sl_status status = path ? sl_file_create(path, &file) : SL_OK;
    sl_file_destroy(file);
    return status;
}

/* For a start with fewer ranks: the mesh that the plan allows, as the end of the command line. */
static int choose_ranks(const void *user, int most, char words[RANKS_WORDS][48])
{
    const train_arguments *arguments = user;
    int pp = 0, dp = 0;
    if (sl_train_fit_mesh(arguments->config, (const char *const *)arguments->keys.overrides, arguments->keys.count,
                          most, &pp, &dp) != SL_OK) {
        sl_log(SL_LOG_WARN, "%s", sl_error_message());
        return 0;
    }
    snprintf(words[0], sizeof words[0], "--parallel.pp=%d", pp);
    snprintf(words[1], sizeof words[1], "--parallel.dp=%d", dp);
    snprintf(words[2], sizeof words[2], "--ranks=%d", pp * dp);
    return pp * dp;
}

static int start_ranks(const train_arguments *arguments, int ranks, int threads, int argc, char **argv)
{
    const ranks_again again = { .restarts = arguments->restarts,
                                .min_ranks = arguments->min_ranks,
                                .choose_ranks = choose_ranks,
                                .user = arguments };
    sl_log_set_level(SL_LOG_WARN);
    return ranks_start(NAME, ranks, threads, arguments->hang_timeout, argc, argv, &again);
}

static bool is_gpu_model(const char *device)
{
    for (int i = 0; device && sl_gpu_model_get(i); i++) {
        if (strcmp(device, sl_gpu_model_get(i)->name) == 0)
            return true;
    }
    return false;
}

/* The plan is printed whole even if it does not fit; then comes what is wrong. */
static int print_plan(const sl_train_plan *plan, const train_arguments *arguments, int argc, char **argv)
{
    char line[4096];
    if (ranks_own() > 0)
        return EXIT_OK;
    format_command(argc, argv, sl_train_plan_ranks(plan), line, sizeof line);
    if (arguments->format == FORMAT_JSON)
        sl_train_plan_write_json(plan, NULL, stdout);
    else
        sl_train_plan_print(plan, is_gpu_model(arguments->device) ? NULL : line, stdout);
    fflush(stdout);
    sl_status status = sl_train_plan_check_memory(plan);
    return status == SL_OK ? EXIT_OK : refuse(status);
}

static sl_status create_plan(const rank_job *job, sl_train_plan **out)
{
    const char *device = job->arguments->device;
    return job->arguments->ranks_as == RANKS_AS_THREADS ? sl_train_plan_create_threads(job->config, device, out)
                                                        : sl_train_plan_create(job->config, device, out);
}

static sl_status check_plan(const sl_train_plan *plan, const train_arguments *arguments)
{
    sl_status status = SL_OK;
    const sl_train_options output = { .resume = arguments->resume, .overwrite = arguments->overwrite };
    SL_TRY(sl_train_plan_check_memory(plan));
    SL_TRY(sl_train_check_output(plan, &output));
    SL_TRY(check_writable(arguments->save_grads));
done:
    return status;
}

/* Whether ranks can be started; what they would all complain of is said here, once. */
static int check_run(const void *user)
{
    sl_status status = SL_OK;
    const rank_job *job = user;
    sl_train_plan *plan = NULL;
    if (job->arguments->ranks_as ==
        RANKS_AS_PROCESSES) /* as a rank has; more queues to a GPU make start and end slow */
        setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8", 0);
    SL_TRY(create_plan(job, &plan));
    SL_TRY(check_plan(plan, job->arguments));
done:
    sl_train_plan_destroy(plan);
    return status == SL_OK ? EXIT_OK : refuse(status);
}

/* Prints the plan of a dry run, or runs what this process is of it. */
static int run_planned(const rank_job *job, int argc, char **argv)
{
    sl_train_plan *plan = NULL;
    sl_status status = create_plan(job, &plan);
    if (status != SL_OK)
        return refuse(status);
    int code;
    if (job->arguments->dry_run)
        code = print_plan(plan, job->arguments, argc, argv);
    else if ((status = check_plan(plan, job->arguments)) != SL_OK)
        code = refuse(status);
    else
        code = run_here(&(rank_job){ .plan = plan, .config = job->config, .arguments = job->arguments });
    sl_train_plan_destroy(plan);
    return code;
}

static int run(const train_arguments *arguments, const sl_train_config *config, int argc, char **argv)
{
    /* One rank of many warns, and of those that are to be started the first. */
    bool several = config->parallel.pp * config->parallel.dp > 1 && arguments->ranks_as == RANKS_AS_PROCESSES;
    bool starts = !arguments->dry_run && !ranks_started() && (several || arguments->restarts > 0);
    if (starts || ranks_own() > 0)
        sl_log_set_level(SL_LOG_ERROR);
    if (arguments->restarts > 0 && ranks_started_elsewhere())
        return refuse(sl_fail(
            SL_ERR_ARGUMENT,
            "--restarts: these ranks were not started by this command; who started them has to start them again"));
    if (arguments->min_ranks > 0 && arguments->ranks_as == RANKS_AS_THREADS)
        return refuse(sl_fail(SL_ERR_ARGUMENT, "--min-ranks: ranks as threads are lost together, not one by one"));
    if (!arguments->dry_run && is_gpu_model(arguments->device))
        return refuse(
            sl_fail(SL_ERR_ARGUMENT,
                    "--device %s: a GPU by its data sheet can be planned for (--dry-run), not used; a GPU that "
                    "is here is called cuda",
                    arguments->device));
    const rank_job job = { .config = config, .arguments = arguments };
    if (!starts)
        return run_planned(&job, argc, argv);
    int ranks = arguments->ranks_as == RANKS_AS_THREADS ? 1 : (int)(config->parallel.pp * config->parallel.dp);
    int code = ranks_run_apart(NAME, check_run, &job);
    return code == EXIT_OK ? start_ranks(arguments, ranks, (int)config->parallel.threads, argc, argv) : code;
}

static sl_status load_keys(const train_arguments *arguments, sl_train_config **config)
{
    return sl_train_config_load(arguments->config, (const char *const *)arguments->keys.overrides,
                                arguments->keys.count, config);
}

/* Without parallel.pp the pipelines have as many ranks as there are for a replica; beside it, -n and the ranks that
 * mpirun or srun started have to agree. */
static int load_config(train_arguments *arguments, sl_train_config **out)
{
    sl_train_config *config = NULL;
    sl_status status = load_keys(arguments, &config);
    if (status != SL_OK)
        return refuse(status);
    *out = config;
    int64_t dp = config->parallel.dp;
    bool threads = arguments->ranks_as == RANKS_AS_THREADS, started = ranks_started() && !threads;
    if (threads && ranks_size() > 1) {
        sl_train_config_destroy(config);
        *out = NULL;
        return refuse(
            sl_fail(SL_ERR_ARGUMENT, "--ranks-as threads: %d processes were started; one is all ranks", ranks_size()));
    }
    int ranks = started ? ranks_size() : arguments->ranks;
    bool agree = !started || arguments->ranks == 0 || arguments->ranks == ranks;
    if (agree && (ranks == 0 || ranks == config->parallel.pp * dp))
        return EXIT_OK;
    if (!agree || sl_train_config_given(config, "parallel.pp") || ranks % dp != 0) {
        if (started)
            sl_fail(SL_ERR_ARGUMENT, "%d ranks were started, wanted are %" PRId64 " (-n, or parallel.pp x parallel.dp)",
                    ranks, arguments->ranks > 0 ? arguments->ranks : config->parallel.pp * dp);
        else
            sl_fail(SL_ERR_ARGUMENT, "-n %d: the ranks are parallel.pp %" PRId64 " x parallel.dp %" PRId64, ranks,
                    config->parallel.pp, dp);
        sl_train_config_destroy(config);
        *out = NULL;
        return refuse(SL_ERR_ARGUMENT);
    }
    char pp[32];
    snprintf(pp, sizeof pp, "%" PRId64, ranks / dp);
    sl_train_config_destroy(config);
    *out = NULL;
    status = config_options_take("--parallel.pp", pp, &arguments->keys);
    if (status == SL_OK)
        status = load_keys(arguments, out);
    return status == SL_OK ? EXIT_OK : refuse(status);
}

int cmd_train(int argc, char **argv)
{
    static cli_option options[CONFIG_OPTION_LIMIT + 1];
    static train_arguments arguments;
    sl_train_config *config = NULL;
    int code, full_argc = argc;
    char **line = NULL; /* options_parse moves argv's operands */
    if (SL_NEW_ARRAY(line, argc + 1) != SL_OK)
        return failure(NAME);
    memcpy(line, argv, (size_t)argc * sizeof *line);
    fill_options(&arguments, options);
    log_to_stderr(NAME);
    if (options_parse(&usage, options, &argc, argv, &code)) {
        if (arguments.resume && arguments.overwrite)
            code = usage_error(NAME, "either --resume or --overwrite, not both");
        arguments.resume |= ranks_started_again();
        if (code == EXIT_OK)
            code = load_config(&arguments, &config);
        if (code == EXIT_OK) {
            if (ranks_started_elsewhere() && config->log.progress == SL_PROGRESS_AUTO)
                config->log.progress = SL_PROGRESS_PLAIN;
            code = run(&arguments, config, full_argc, line);
            sl_train_config_destroy(config);
        }
    }
    config_options_clear(&arguments.keys);
    sl_free(line);
    return code;
}
