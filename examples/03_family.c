/* A family of models of one's own, trained by the library's training loop.
 *
 *     03_family TEXT FOLDER [RANKS]
 *
 * Registers the family "window", a language model that looks at the last few tokens through a causal convolution. Then
 * trains one on the bytes of TEXT, on RANKS local ranks (2), in two runs: the second resumes from the checkpoint of the
 * first. Exports the result to FOLDER/model in Hugging Face's layout, reads it back and evaluates it. */
#include <sluice/sluice.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- The family ------------------------------------------------------------------------------ */

typedef struct window_config {
    int64_t vocab_size, max_positions, width, layers;
    int64_t window; /* tokens that a position sees in each layer, its own among them */
    double epsilon;
    bool tied;
} window_config;

static const window_config defaults = {
    .vocab_size = 256, .max_positions = 128, .width = 64, .layers = 2, .window = 4, .epsilon = 1e-5, .tied = true
};

/* The keys of config.json. Those with a run_key have a general name that the section `model` of a run's configuration
 * uses for every family; the others are set there by their own name. */
static const sl_model_field fields[] = {
    { .key = "vocab_size",
      .kind = SL_FIELD_INT,
      .offset = offsetof(window_config, vocab_size),
      .min = 1,
      .max = 1 << 24,
      .run_key = "vocab" },
    { .key = "max_positions",
      .kind = SL_FIELD_INT,
      .offset = offsetof(window_config, max_positions),
      .min = 1,
      .max = 1 << 20,
      .run_key = "n_positions" },
    { .key = "width",
      .kind = SL_FIELD_INT,
      .offset = offsetof(window_config, width),
      .min = 1,
      .max = 1 << 16,
      .run_key = "n_embd" },
    { .key = "layers",
      .kind = SL_FIELD_INT,
      .offset = offsetof(window_config, layers),
      .min = 1,
      .max = 1024,
      .run_key = "n_layer" },
    { .key = "window", .kind = SL_FIELD_INT, .offset = offsetof(window_config, window), .min = 1, .max = 64 },
    { .key = "epsilon", .kind = SL_FIELD_REAL, .offset = offsetof(window_config, epsilon), .min = 0, .max = 1 },
    { .key = "tie_word_embeddings", .kind = SL_FIELD_BOOL, .offset = offsetof(window_config, tied), .run_key = "tie" },
    { .key = NULL },
};

/* x[B, T, C] moved by `steps` positions towards the end; zeros come in at the front. */
static sl_value shift(sl_graph *g, sl_value x, int64_t steps, int64_t seq)
{
    if (steps == 0)
        return x;
    if (steps >= seq)
        return sl_scale(g, x, 0, 0);
    const sl_value parts[] = { sl_scale(g, sl_slice(g, x, 1, 0, steps), 0, 0), sl_slice(g, x, 1, 0, seq - steps) };
    return sl_concat(g, parts, 2, 1);
}

static sl_value norm(sl_graph *g, const window_config *config, const char *name, sl_value x)
{
    sl_graph_push(g, name);
    sl_value weight = sl_graph_param(g, "weight", 1, &config->width, (sl_init){ .kind = SL_INIT_ONES });
    sl_value y = sl_rmsnorm(g, x, weight, config->epsilon);
    sl_graph_pop(g);
    return y;
}

/* x + W gelu(all positions of the window side by side): [B, T, C] -> [B, T, C]. */
static sl_value block(sl_graph *g, const window_config *config, int layer, int64_t seq, sl_value x)
{
    const sl_init init = { .kind = SL_INIT_NORMAL, .scale = 0.05 };
    sl_value seen[64];
    sl_graph_push_index(g, "blocks", layer);
    sl_value y = norm(g, config, "norm", x);
    for (int64_t i = 0; i < config->window; i++)
        seen[i] = shift(g, y, i, seq);
    y = sl_concat(g, seen, (int)config->window, 2);
    sl_value weight =
        sl_graph_param(g, "mix.weight", 2, (int64_t[]){ config->width, config->width * config->window }, init);
    y = sl_add(g, x, sl_linear(g, sl_gelu_tanh(g, y), weight, SL_NO_VALUE));
    sl_graph_pop(g);
    return y;
}

static sl_status build(const void *from, sl_model_mode mode, const sl_model_shape *shape, sl_graph *g)
{
    const window_config *config = from;
    const sl_init init = { .kind = SL_INIT_NORMAL, .scale = 0.02 };
    int64_t table_dims[2] = { config->vocab_size, config->width }, token_dims[2] = { shape->batch, shape->seq };
    if (mode == SL_MODE_DECODE)
        return sl_fail(SL_ERR_UNSUPPORTED, "the family window has no caches to decode with");

    sl_value tokens = sl_graph_input(g, "tokens", SL_I32, 2, token_dims);
    sl_value table = sl_graph_param(g, "body.embed.weight", 2, table_dims, init);
    sl_graph_push(g, "body");
    sl_value x = sl_embedding(g, tokens, table);
    for (int layer = 0; layer < config->layers; layer++)
        x = block(g, config, layer, shape->seq, x);
    x = norm(g, config, "norm", x);
    sl_graph_pop(g);
    if (!config->tied)
        table = sl_graph_param(g, "head.weight", 2, table_dims, init);
    sl_graph_push(g, "head");
    sl_value logits = sl_linear(g, x, table, SL_NO_VALUE);
    sl_graph_pop(g);
    if (mode != SL_MODE_TRAIN) /* f32, whatever the model computes in */
        sl_graph_output(g, "logits", shape->dtype == SL_F32 ? logits : sl_cast(g, logits, SL_F32));
    if (mode != SL_MODE_LOGITS) {
        sl_value targets = sl_graph_input(g, "targets", SL_I32, 2, token_dims);
        sl_graph_loss(g, sl_cross_entropy(g, logits, targets, SL_IGNORED_TARGET));
    }
    return SL_OK;
}

static const sl_model_family window_family = {
    .name = "window",
    .architecture = "WindowModel",
    .config_bytes = sizeof(window_config),
    .defaults = &defaults,
    .fields = fields,
    .root = "body.",
    .embedding = "body.embed.weight",
    .head = "head.weight",
    .build = build,
};

/* ---- Training -------------------------------------------------------------------------------- */

typedef struct training {
    const char *text, *folder;
    int ranks;
    int64_t steps; /* of the run once it is complete */
    bool resume;
} training;

/* What a configuration file would say; keys of the family are keys of the section `model`. */
static sl_status load_config(const training *job, sl_train_config **out)
{
    char text[1024], folder[1024], ranks[32], steps[32];
    const char *const overrides[] = { text,
                                      folder,
                                      ranks,
                                      steps,
                                      "model.family=window",
                                      "model.n_layer=3",
                                      "model.n_embd=48",
                                      "model.window=6",
                                      "batch.size=8",
                                      "batch.seq=64",
                                      "batch.microbatches=4",
                                      "optimizer.lr=0.01",
                                      "checkpoint.every=20" };
    snprintf(text, sizeof text, "data.text=%s", job->text);
    snprintf(folder, sizeof folder, "run.out=%s/run", job->folder);
    snprintf(ranks, sizeof ranks, "parallel.pp=%d", job->ranks);
    snprintf(steps, sizeof steps, "run.steps=%d", (int)job->steps);
    return sl_train_config_load(NULL, overrides, (int)(sizeof overrides / sizeof *overrides), out);
}

static sl_status train(const training *job, sl_group *group)
{
    sl_status status = SL_OK;
    sl_train_config *config = NULL;
    sl_train_plan *plan = NULL;
    sl_train_result result;
    SL_TRY(load_config(job, &config));
    SL_TRY(sl_train_plan_create(config, NULL, &plan));
    SL_TRY(sl_train_run(plan, group, &(sl_train_options){ .resume = job->resume }, &result));
    if (sl_group_rank(group) == 0)
        printf("steps %d to %d, loss %.6f to %.6f\n", (int)result.first_step, (int)result.last_step, result.first_loss,
               result.last_loss);
done:
    sl_train_plan_destroy(plan);
    sl_train_config_destroy(config);
    return status;
}

/* One rank, in a process of its own: a fork of this one, which has the family registered. */
static int run_rank(void *user, int rank)
{
    sl_group *group = NULL;
    sl_status status = sl_group_open(NULL, &group);
    if (status == SL_OK)
        status = train(user, group);
    if (status != SL_OK)
        fprintf(stderr, "03_family, rank %d: %s\n", rank, sl_error_message());
    sl_group_close(group);
    fflush(stdout);
    return status == SL_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}

static sl_status train_on_ranks(training *job)
{
    sl_launch_result result;
    sl_status status = sl_launch(&(sl_launch_options){ .ranks = job->ranks, .run = run_rank, .user = job }, &result);
    if (status == SL_OK && result.exit_code != 0)
        status = sl_fail(SL_ERR_PEER, "%s", result.report);
    return status;
}

/* ---- The trained model ----------------------------------------------------------------------- */

/* The loss of the model in a folder: of a run, a checkpoint, or an export. */
static sl_status evaluate(const char *path, const char *text, double *loss)
{
    sl_status status = SL_OK;
    sl_model_source *source = NULL;
    sl_tokens *tokens = NULL;
    sl_eval_result result;
    SL_TRY(sl_model_source_open(path, &source));
    SL_TRY(sl_tokens_open(text, SL_TOKENS_BYTES, &tokens));
    const sl_eval_options options = { .tokens = tokens, .batch = 4, .seq = 64, .steps = 8 };
    SL_TRY(sl_model_evaluate(source, &options, &result));
    *loss = result.loss;
done:
    sl_tokens_close(tokens);
    sl_model_source_close(source);
    return status;
}

static sl_status export_and_read_back(const training *job)
{
    sl_status status = SL_OK;
    sl_model_source *source = NULL;
    char run[1024], model[1024];
    double trained = 0, exported = 0;
    snprintf(run, sizeof run, "%s/run", job->folder);
    snprintf(model, sizeof model, "%s/model", job->folder);
    SL_TRY(sl_model_source_open(run, &source));
    const window_config *config = (const window_config *)(const void *)sl_model_source_model(source)->config;
    printf("window %d, %d layers of %d\n", (int)config->window, (int)config->layers, (int)config->width);
    SL_TRY(sl_model_source_export(source, &(sl_export_options){ .overwrite = true }, model));
    SL_TRY(evaluate(run, job->text, &trained));
    SL_TRY(evaluate(model, job->text, &exported));
    printf("evaluated: loss %.6f, exported: loss %.6f\n", trained, exported);
    if (trained != exported)
        status = sl_fail(SL_ERR_INTERNAL, "the exported model is another one");
done:
    sl_model_source_close(source);
    return status;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: 03_family TEXT FOLDER [RANKS]\n");
        return 2;
    }
    training job = { .text = argv[1], .folder = argv[2], .ranks = argc > 3 ? atoi(argv[3]) : 2, .steps = 60 };
    sl_status status = sl_model_register(&window_family);
    if (status == SL_OK)
        status = train_on_ranks(&job);
    job.steps = 120;
    job.resume = true;
    if (status == SL_OK)
        status = train_on_ranks(&job);
    if (status == SL_OK)
        status = export_and_read_back(&job);
    if (status != SL_OK)
        fprintf(stderr, "03_family: %s\n", sl_error_message());
    return status == SL_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
