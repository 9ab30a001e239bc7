/* sluice plan: makes a schedule, named or searched for, and writes it as CSV. */
#include "command.h"
#include "config_options.h"
#include "options.h"
#include "plan_report.h"
#include "plan_whole.h"
#include "schedule_source.h"

#include "base/units.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const cli_usage plan_usage = {
    .command = "plan",
    .synopsis = "((--schedule NAME | --auto) --ranks P --microbatches M | -c RUN.YAML --auto) [OPTIONS]",
    .description =
        "Makes a pipeline schedule and writes it as CSV: a line a rank, a cell an action. The cell 3F0 is the "
        "forward of stage 3 on microbatch 0; I, W and B are the gradients of its inputs, of its weights, and both "
        "at once.\n"
        "With --auto it looks for the schedule that takes least time with the given costs and memory, and prints it "
        "beside all named schedules and beside a lower bound that no schedule can beat. The CSV then goes to the file "
        "of -o alone. --format gives the same figures for a named schedule.\n"
        "With -c it chooses the whole configuration of a training run: pipeline and replicas, stages and where to cut, "
        "schedule, microbatches, how replicas share weights, and what is computed again. It prints the best ones "
        "beside each other with the reason why each is slower than the first, and writes the first as a file that "
        "'sluice train --plan' takes. Keys of the configuration may be given as options as for train. Times come from "
        "a model of operations and bytes at the rates of the cluster's file or of this machine, or are measured here; "
        "memory is that of the compiled pipeline.\n"
        "With --lower the communication is added: SEND and RECV where a value crosses ranks, UNSHARD and RESHARD "
        "around the use of a stage's weights, and REDUCE_GRAD after its last gradient. PyTorch up to 2.11 reads this "
        "form; PyTorch 2.15 wants a wait for every send and every reduction, which --waits adds.",
    .examples = "sluice plan --schedule 1F1B --ranks 4 --microbatches 8\n"
                "sluice plan --schedule ZBVZeroBubble --ranks 4 --microbatches 8 --lower -o plan.csv\n"
                "sluice plan --schedule 1F1B --ranks 4 --microbatches 8 --lower --waits late -o torch-2.15.csv\n"
                "sluice plan --auto --ranks 4 --microbatches 8 --costs F=10,I=12,W=8,comm=1 --memory 4 -o plan.csv\n"
                "sluice plan -c run.yaml --auto --ranks 4 --measure -o plan.yaml\n"
                "sluice plan -c llama.yaml --auto --cluster cluster.yaml --top 10",
};

enum { PLACEMENT_LINEAR, PLACEMENT_INTERLEAVED, PLACEMENT_V, PLACEMENT_OF_SCHEDULE };
enum { REPORT_NONE = 2 }; /* besides FORMAT_TEXT and FORMAT_JSON */

typedef struct plan_args {
    sl_generate_options generate;
    bool search, lower;
    int placement, format, objective, waits;
    sl_costs costs;
    const char *costs_file;
    double memory, release, budget;
    const char *output; /* NULL: standard output */
    plan_whole_args whole;
} plan_args;

static sl_status read_memory(const char *what, const char *text, void *target)
{
    return sl_parse_memory(what, text, target);
}

/* Appends every name to text, with the separator between them. */
static const char *join_names(char *text, size_t size, const char *separator)
{
    size_t used = strlen(text);
    for (int n = 0; sl_plan_name(n) && used < size; n++)
        used += (size_t)snprintf(text + used, size - used, "%s%s", n ? separator : "", sl_plan_name(n));
    if (used < size)
        snprintf(text + used, size - used, "%sForwardOnly%sForwardOnlyV", separator, separator);
    return text;
}

static const char *plan_words(void)
{
    static char words[400];
    return words[0] ? words : join_names(words, sizeof words, "|");
}

static const char *plan_help(void)
{
    static char help[480] = "";
    if (!help[0]) {
        snprintf(help, sizeof help, "One of ");
        join_names(help, sizeof help - 24, ", ");
        strcat(help, "; in any case.");
    }
    return help;
}

/* Where the stages lie: as --placement says, else as the schedule has them. */
static sl_status choose_placement(const plan_args *args, sl_plan_problem *problem)
{
    sl_status status = SL_OK;
    sl_placement placement = args->placement == PLACEMENT_V ? SL_PLACEMENT_V : SL_PLACEMENT_LOOP;
    int chunks = args->placement == PLACEMENT_LINEAR ? 1 : 2, given = args->generate.stages_per_rank;
    if (args->placement == PLACEMENT_OF_SCHEDULE) {
        chunks = 1;
        if (args->generate.name)
            SL_TRY(sl_plan_named_placement(args->generate.name, &placement, &chunks));
    } else if (args->placement == PLACEMENT_LINEAR && given > 1) {
        return sl_fail(SL_ERR_ARGUMENT, "--placement linear has 1 stage a rank, not %d; interleaved has several",
                       given);
    }
    sl_plan_problem_init(problem, args->generate.ranks, args->generate.microbatches, placement, given ? given : chunks);
done:
    return status;
}

/* The costs of every stage; costs->stages is the caller's to free. */
static sl_status take_costs(const plan_args *args, sl_plan_problem *problem)
{
    sl_status status = SL_OK;
    double activation = problem->costs.stage.activation; /* what a rank holds for a microbatch is 1 */
    int stages = 0;
    problem->costs = args->costs;
    if (args->costs_file)
        SL_TRY(sl_plan_load_costs(args->costs_file, &problem->costs, &stages));
    int64_t wanted = (int64_t)problem->ranks * problem->stages_per_rank;
    if (args->costs_file && stages != wanted)
        SL_TRY(sl_fail(SL_ERR_ARGUMENT, "%s has the costs of %d stages; %d ranks with %d each have %lld",
                       args->costs_file, stages, problem->ranks, problem->stages_per_rank, (long long)wanted));
    sl_stage_cost *costs = (sl_stage_cost *)problem->costs.stages; /* made here */
    for (int stage = 0; stage < stages; stage++) {
        if (isnan(costs[stage].activation))
            costs[stage].activation = activation;
        if (!isnan(args->release))
            costs[stage].release = args->release;
    }
    if (isnan(problem->costs.stage.activation))
        problem->costs.stage.activation = activation;
    if (!isnan(args->release))
        problem->costs.stage.release = args->release;
    problem->memory = args->memory;
    problem->objective = (sl_objective)args->objective;
done:
    return status;
}

static sl_status write_schedule(const plan_args *args, const sl_schedule *schedule)
{
    sl_status status = SL_OK;
    sl_schedule *lowered = NULL;
    if (args->lower)
        SL_TRY(sl_schedule_lower(schedule, &(sl_lower_options){ .waits = (sl_wait_place)args->waits }, &lowered));
    if (args->output)
        SL_TRY(sl_schedule_save_csv(lowered ? lowered : schedule, args->output));
    else
        SL_TRY(sl_schedule_write_csv(lowered ? lowered : schedule, stdout));
done:
    sl_schedule_destroy(lowered);
    return status;
}

/* With figures: printed if asked for, and the CSV goes to a file alone then. */
static sl_status run_planner(const plan_args *args, const sl_plan_problem *problem)
{
    sl_status status = SL_OK;
    sl_plan_result *result = NULL;
    if (args->search)
        SL_TRY(sl_plan_search(problem, args->budget, &result));
    else
        SL_TRY(sl_plan_named(problem, args->generate.name, &result));
    if (args->format == FORMAT_JSON)
        plan_print_json(result, problem->ranks);
    else if (args->format == FORMAT_TEXT)
        SL_TRY(plan_print_table(problem, result));
    if (args->format == REPORT_NONE || args->output)
        SL_TRY(write_schedule(args, sl_plan_schedule(result)));
done:
    sl_plan_result_destroy(result);
    return status;
}

static sl_status run_plan(const plan_args *args)
{
    sl_status status = SL_OK;
    sl_plan_problem problem = { 0 };
    sl_schedule *schedule = NULL;
    if (args->generate.forward_only) {
        SL_TRY(sl_schedule_generate(&args->generate, &schedule));
        SL_TRY(write_schedule(args, schedule));
        goto done;
    }
    SL_TRY(choose_placement(args, &problem));
    SL_TRY(take_costs(args, &problem));
    if (args->search || args->format != REPORT_NONE || args->memory > 0) {
        SL_TRY(run_planner(args, &problem));
        goto done;
    }
    SL_TRY(sl_plan_make(&problem, args->generate.name, &schedule));
    SL_TRY(write_schedule(args, schedule));
done:
    sl_schedule_destroy(schedule);
    sl_plan_free_costs(&problem.costs);
    return status;
}

/* The whole configuration is wanted: options of a schedule alone are mistakes. */
static int check_whole(const plan_args *args)
{
    if (!args->search)
        return usage_error("plan", "-c goes with --auto");
    if (args->generate.name || args->generate.microbatches || args->generate.stages_per_rank || args->costs_file ||
        args->memory > 0 || args->placement != PLACEMENT_OF_SCHEDULE || args->lower || args->generate.forward_only)
        return usage_error("plan", "-c chooses schedule, microbatches, stages and costs itself; parallel.memory_gb or "
                                   "the cluster's file gives the memory");
    return EXIT_OK;
}

static int check_args(const plan_args *args)
{
    if (args->whole.config || args->whole.keys->count > 0)
        return check_whole(args);
    if (args->whole.cluster || args->whole.measure || args->whole.top)
        return usage_error("plan", "--cluster, --measure and --top go with -c");
    if (args->search && args->generate.name)
        return usage_error("plan", "either --schedule or --auto, not both");
    if (!args->search && !args->generate.name)
        return usage_error("plan", "--schedule NAME or --auto is missing");
    if (args->generate.ranks == 0)
        return usage_error("plan", "--ranks P is missing");
    if (args->generate.microbatches == 0)
        return usage_error("plan", "--microbatches M is missing");
    if (args->generate.forward_only && (args->search || args->format != REPORT_NONE))
        return usage_error("plan", "--forward-only goes with --schedule alone");
    if (args->waits != SL_WAIT_NONE && !args->lower)
        return usage_error("plan", "--waits goes with --lower");
    return EXIT_OK;
}

static int finish_plan(plan_args *args)
{
    sl_status status;
    if (args->search && args->format == REPORT_NONE)
        args->format = FORMAT_TEXT;
    if (args->output && strcmp(args->output, "-") == 0)
        args->output = NULL;
    if (args->whole.config || args->whole.keys->count > 0) {
        args->whole.ranks = args->generate.ranks;
        args->whole.budget = args->budget;
        args->whole.format = args->format;
        args->whole.output = args->output;
        status = plan_whole(&args->whole);
    } else {
        status = run_plan(args);
    }
    if (status == SL_ERR_ARGUMENT) /* what was asked for cannot be */
        return usage_error("plan", "%s", sl_error_message());
    return status == SL_OK ? EXIT_OK : failure("plan");
}

int cmd_plan(int argc, char **argv)
{
    plan_args args = {
        .placement = PLACEMENT_OF_SCHEDULE, .format = REPORT_NONE, .release = NAN, .budget = SL_PLAN_BUDGET
    };
    static config_options keys;
    static cli_option options[CONFIG_OPTION_LIMIT + 1];
    args.whole.keys = &keys;
    sl_costs_init(&args.costs);
    args.costs.stage.activation = NAN; /* not given */
    const cli_option own[] = {
        { .name = "config",
          .letter = 'c',
          .value = "FILE",
          .text = &args.whole.config,
          .help = "Configuration of a training run: choose the whole of it." },
        { .name = "cluster",
          .value = "FILE",
          .text = &args.whole.cluster,
          .help =
              "With -c: the machines as YAML: machines, devices, memory, flops, bandwidth, and the links inside and "
              "between with latency and bandwidth. This machine by default." },
        { .name = "measure",
          .flag = &args.whole.measure,
          .help = "With -c: run each kind of layer here a few times, instead of the model of operations and bytes." },
        { .name = "top",
          .value = "K",
          .integer = &args.whole.top,
          .min = 1,
          .max = 1000,
          .help = "With -c: how many configurations to print; 5 by default." },
        { .name = "schedule",
          .value = "NAME",
          .words = plan_words(),
          .text = &args.generate.name,
          .help = plan_help() },
        { .name = "auto", .flag = &args.search, .help = "Look for the best schedule." },
        GENERATE_SIZE_ROWS(args.generate, false),
        { .name = "placement",
          .value = "PLACEMENT",
          .words = "linear|interleaved|v",
          .choice = &args.placement,
          .help =
              "How stages lie on ranks: linear, one a rank (the default with --auto); interleaved, round and round; "
              "v, two a rank, down and back." },
        { .name = "costs",
          .value = "LIST",
          .read = read_costs,
          .target = &args.costs,
          .help = "What one microbatch costs in one stage, and a message: F=1,I=1,W=1,comm=0 are the defaults. Further "
                  "keys: size and bandwidth of messages, activation, release." },
        { .name = "costs-file",
          .value = "FILE",
          .text = &args.costs_file,
          .help = "Costs of every stage as JSON: {\"stages\":[{\"F\":10,\"I\":12,\"W\":8,\"activation\":1.0}, ...], "
                  "\"comm\":1}." },
        { .name = "memory",
          .value = "X",
          .read = read_memory,
          .target = &args.memory,
          .help = "Memory of a rank for activations, in the unit of the costs' activation. If these are not given, a "
                  "rank holds 1 for a microbatch that has passed all its stages. A unit of bytes may follow: 12GiB. No "
                  "limit by default." },
        { .name = "release",
          .value = "R",
          .real = &args.release,
          .least = 0,
          .most = 1,
          .help = "Share of the activations that is free when I ends; the rest is free when W ends. 0.5 by default." },
        { .name = "objective",
          .value = "OBJECTIVE",
          .words = "makespan|stage-time",
          .choice = &args.objective,
          .help = "What is to be short: makespan, from the first start to the last end (the default); stage-time, the "
                  "largest of the ranks' own times from first start to last end." },
        { .name = "budget",
          .value = "SECONDS",
          .real = &args.budget,
          .least = 0,
          .most = 1e6,
          .help = "How long --auto may search after its heuristics, about; 0.5 by default. It is counted in steps, so "
                  "equal problems give equal plans." },
        { .name = "lower", .flag = &args.lower, .help = "Add the communication." },
        { .name = "waits",
          .value = "WHEN",
          .words = "none|at-once|late",
          .choice = &args.waits,
          .help = "With --lower: add a wait for every SEND and every REDUCE_GRAD, as PyTorch 2.15 wants it. at-once "
                  "waits for a reduction before the next action, late before the next reduction of the rank. none by "
                  "default." },
        { .name = "output",
          .letter = 'o',
          .value = "FILE",
          .text = &args.output,
          .help = "Write to FILE, not to standard output." },
        FORMAT_OPTION_ROW(args.format),
    };
    int code;
    memcpy(options, own, sizeof own);
    config_options_add(&keys, options, sizeof own / sizeof *own);
    if (!options_parse(&plan_usage, options, &argc, argv, &code))
        return code;
    code = check_args(&args);
    if (code == EXIT_OK)
        code = finish_plan(&args);
    config_options_clear(&keys);
    return code;
}
