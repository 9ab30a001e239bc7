/* sluice bench tune: configurations that the tuner proposes, predicted and trained. */
#include "bench.h"
#include "tune_measure.h"
#include "tools/sluice/command.h"
#include "tools/sluice/options.h"

#include "base/alloc.h"
#include "base/json.h"

#include <math.h>
#include <stdio.h>

static const cli_usage usage = {
    .command = "bench tune",
    .synopsis = "[OPTIONS]",
    .description =
        "For three models, on 2 and on 4 ranks: predicts the time of a step of configurations from the fastest to the "
        "slowest, as 'sluice plan -c --measure' does, trains a few steps with each, and compares. error is the "
        "largest distance between prediction and measurement, tau Kendall's rank correlation of the two (1: the same "
        "order), chosen how much slower the one that the tuner would choose is than the best one measured. What is "
        "chosen comes from what planning measures. Then, in rounds, all configurations are trained one after the "
        "other, a few steps each, and right before and after each the layers that it is predicted from are measured "
        "again, so that both have seen the same speed of the processors. Each prediction is divided by the "
        "measurement of its own round, and the median of the rounds is the error; the measured time, and both sides "
        "of tau, are lower quartiles of the rounds. The whole takes about 15 minutes, and the machine must be idle.",
    .examples = "sluice bench tune --format json\n"
                "sluice bench tune --model 0 --ranks 2 --configurations 6",
};

static void print_text(const tune_case *one)
{
    printf("%s, %d ranks: work + waiting + exchange + update\n", one->model, one->ranks);
    for (int i = 0; i < one->count; i++) {
        const tune_row *row = &one->rows[i];
        printf("  %-78s %7.2f + %6.2f + %5.2f + %5.2f = %7.2f ms  measured %7.2f ms  %+6.1f%%\n", row->text,
               1e3 * row->work, 1e3 * row->idle, 1e3 * row->exchange, 1e3 * row->update, 1e3 * row->predicted,
               1e3 * row->measured, 100 * (row->predicted / row->measured - 1));
    }
    printf("  error %.1f%% (mean %.1f%%), tau %.2f, chosen %.1f%% over the best\n\n", 100 * one->error,
           100 * one->mean_error, one->tau, 100 * one->chosen);
    fflush(stdout);
}

static void put_case(sl_json *json, const tune_case *one)
{
    sl_json_newline(json);
    sl_json_begin(json, '{');
    sl_json_put_string(json, "model", one->model);
    sl_json_put_int(json, "ranks", one->ranks);
    sl_json_put_double(json, "error", one->error);
    sl_json_put_double(json, "mean_error", one->mean_error);
    sl_json_put_double(json, "tau", one->tau);
    sl_json_put_double(json, "chosen", one->chosen);
    sl_json_key(json, "rows");
    sl_json_begin(json, '[');
    for (int i = 0; i < one->count; i++) {
        sl_json_newline(json);
        sl_json_begin(json, '{');
        sl_json_put_string(json, "configuration", one->rows[i].text);
        sl_json_put_double(json, "work_s", one->rows[i].work);
        sl_json_put_double(json, "idle_s", one->rows[i].idle);
        sl_json_put_double(json, "exchange_s", one->rows[i].exchange);
        sl_json_put_double(json, "update_s", one->rows[i].update);
        sl_json_put_double(json, "predicted_s", one->rows[i].predicted);
        sl_json_put_double(json, "predicted_alone_s", one->rows[i].predicted_alone);
        sl_json_put_double(json, "measured_s", one->rows[i].measured);
        sl_json_end(json, '}');
    }
    sl_json_end(json, ']');
    sl_json_end(json, '}');
}

/* The three figures of every case beside each other. */
static void print_summary(const tune_case *cases, int count)
{
    printf("%-44s %5s %14s %9s %6s %7s\n", "model", "ranks", "configurations", "error", "tau", "chosen");
    for (int i = 0; i < count; i++)
        printf("%-44s %5d %14d %8.1f%% %6.2f %6.1f%%\n", cases[i].model, cases[i].ranks, cases[i].count,
               100 * cases[i].error, cases[i].tau, 100 * cases[i].chosen);
}

static sl_status run_cases(int only_model, int only_ranks, const tune_effort *effort, int format)
{
    sl_status status = SL_OK;
    sl_json json = { .file = stdout };
    tune_case *cases = NULL;
    int count = 0;
    SL_TRY(SL_NEW_ARRAY(cases, 2 * TUNE_MODELS));
    if (format == FORMAT_JSON)
        sl_json_begin(&json, '[');
    for (int model = 0; model < TUNE_MODELS; model++) {
        for (int ranks = 2; ranks <= 4; ranks += 2) {
            if ((only_model >= 0 && model != only_model) || (only_ranks > 0 && ranks != only_ranks))
                continue;
            SL_TRY(tune_measure(model, ranks, effort, &cases[count]));
            if (format == FORMAT_JSON)
                put_case(&json, &cases[count]);
            else
                print_text(&cases[count]);
            count++;
        }
    }
    if (format == FORMAT_JSON) {
        sl_json_end(&json, ']');
        putchar('\n');
    } else {
        print_summary(cases, count);
    }
done:
    sl_free(cases);
    return status;
}

int bench_tune(int argc, char **argv)
{
    int model = -1, ranks = 0, format = FORMAT_TEXT, code;
    tune_effort effort = { .configurations = 12, .rounds = 7, .steps = 6 };
    const cli_option options[] = {
        { .name = "model",
          .value = "N",
          .integer = &model,
          .min = 0,
          .max = TUNE_MODELS - 1,
          .help = "One of the models alone: 0, 1 or 2." },
        { .name = "ranks", .value = "P", .integer = &ranks, .min = 2, .max = 4, .help = "2 or 4 ranks alone." },
        { .name = "configurations",
          .value = "K",
          .integer = &effort.configurations,
          .min = 2,
          .max = TUNE_ROWS,
          .help = "How many of each; 12 by default." },
        { .name = "rounds",
          .value = "N",
          .integer = &effort.rounds,
          .min = 1,
          .max = 100,
          .help = "How often each is trained; 7 by default." },
        { .name = "steps",
          .value = "S",
          .integer = &effort.steps,
          .min = 2,
          .max = 1000,
          .help = "Steps of each; 6 by default. The first does not count." },
        FORMAT_OPTION_ROW(format),
        { .name = NULL },
    };
    if (!options_parse(&usage, options, &argc, argv, &code))
        return code;
    sl_log_set_level(SL_LOG_ERROR);
    return run_cases(model, ranks, &effort, format) == SL_OK ? EXIT_OK : failure(usage.command);
}
