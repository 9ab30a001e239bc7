/* The models against PyTorch: logits, loss, every gradient, twenty steps of AdamW; whole and cut into stages. */
#include "support/scratch.h"

#include <sluice/data.h>
#include <sluice/nn.h>
#include <sluice/optim.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { BATCH = 8, SEQ = 32, STEPS = 20, MOST_STAGES = 4 };

static const char *const names[] = { "gpt2-tiny", "llama-tiny" };

static void ok(sl_status status)
{
    if (status != SL_OK)
        fail_msg("%s", sl_error_message());
}

static const char *reference_path(const char *model, const char *file)
{
    char path[128];
    snprintf(path, sizeof path, "models/%s/%s", model, file);
    return data_path(path);
}

/* ||a - b|| / ||b|| */
static double relative_error(const float *a, const float *b, int64_t count)
{
    double difference = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += (double)b[i] * b[i];
    }
    return sqrt(difference / size);
}

/* ---- A model at work ------------------------------------------------------------------------- */

/* A model cut into stages that run one after another in this process. */
typedef struct bench {
    sl_model model;
    sl_param_list *params;
    sl_device *device;
    sl_runner *runner;
} bench;

static sl_view param_of(const bench *b, int i)
{
    return sl_runner_param(b->runner, sl_param_list_at(b->params, i)->name);
}

static sl_view grad_of(const bench *b, int i)
{
    return sl_runner_grad(b->runner, sl_param_list_at(b->params, i)->name);
}

static void set_up(bench *b, const sl_model *model, sl_model_mode mode, const sl_model_shape *shape,
                   const sl_split_spec *spec, bool split_backward)
{
    sl_graph *graph = NULL;
    sl_partition *partition = NULL;
    sl_runner_options options = { .split_backward = split_backward,
                                  .programs = { .forward_only = mode != SL_MODE_TRAIN } };
    *b = (bench){ .model = *model };
    ok(sl_model_params(model, &b->params));
    ok(sl_device_open("cpu", NULL, &b->device));
    ok(sl_model_build(model, mode, shape, &graph));
    ok(sl_graph_partition(graph, spec, &partition));
    ok(sl_runner_create(partition, b->device, &options, &b->runner));
    sl_partition_destroy(partition);
    sl_graph_destroy(graph);
}

static void tear_down(bench *b)
{
    sl_runner_destroy(b->runner);
    sl_device_close(b->device);
    sl_param_list_destroy(b->params);
}

/* A reference model with its weights, in 1 to 4 stages: cut before layers and, in four, inside one, too. */
static void open_reference(bench *b, const char *name, sl_model_mode mode, int stages, const sl_model_shape *shape,
                           bool split_backward)
{
    static const char *const cuts[2][MOST_STAGES - 1] = {
        { "transformer.h.2", "transformer.h.1", "transformer.h.3.mlp" },
        { "model.layers.2", "model.layers.1", "model.layers.3.mlp" },
    };
    sl_model model;
    sl_model_weights *weights = NULL;
    sl_split_point points[MOST_STAGES];
    ok(sl_model_load_config(reference_path(name, ""), &model));
    for (int i = 0; i + 1 < stages; i++)
        points[i] = (sl_split_point){ cuts[model.family][i], false };
    sl_split_spec spec = { .kind = stages > 1 ? SL_SPLIT_POINTS : SL_SPLIT_WHOLE,
                           .points = points,
                           .point_count = stages - 1 };
    set_up(b, &model, mode, shape, &spec, split_backward);
    ok(sl_model_open_weights(&model, reference_path(name, ""), &weights));
    for (int i = 0; i < sl_param_list_count(b->params); i++) {
        sl_view view = param_of(b, i);
        ok(sl_model_read_weight(weights, sl_param_list_at(b->params, i)->name, 0, sl_meta_count(&view.meta),
                                view.data));
    }
    sl_model_close_weights(weights);
}

static void set_input(const bench *b, const char *name, const void *data, size_t bytes)
{
    sl_view view = sl_runner_input(b->runner, 0, name);
    assert_non_null(view.data);
    assert_int_equal(sl_meta_bytes(&view.meta), bytes);
    memcpy(view.data, data, bytes);
}

static const float *output(const bench *b, const char *name)
{
    sl_view view = sl_runner_output(b->runner, 0, name);
    assert_non_null(view.data);
    return view.data;
}

static void set_batch(const bench *b, const char *name, int64_t step)
{
    sl_tokens *tokens = NULL;
    sl_batches *batches = NULL;
    int32_t inputs[BATCH * SEQ], targets[BATCH * SEQ];
    sl_batch_options options = { .batch = BATCH, .seq = SEQ };
    ok(sl_tokens_open(reference_path(name, "tokens.bin"), SL_TOKENS_AUTO, &tokens));
    ok(sl_batches_create(tokens, &options, &batches));
    ok(sl_batches_read(batches, step, 0, BATCH, inputs, targets));
    set_input(b, "tokens", inputs, sizeof inputs);
    set_input(b, "targets", targets, sizeof targets);
    sl_batches_destroy(batches);
    sl_tokens_close(tokens);
}

static void run(const bench *b, bool train)
{
    const sl_rng rng = { .training = train };
    ok(train ? sl_runner_step(b->runner, &rng, NULL) : sl_runner_forward(b->runner, &rng, NULL));
    ok(sl_stream_synchronize(sl_runner_stream(b->runner)));
}

/* Copies of all parameters or gradients, for comparing bits. */
typedef struct snapshot {
    float *data[64];
    size_t bytes[64];
    int count;
} snapshot;

static void snapshot_take(snapshot *shot, const bench *b, sl_view (*which)(const bench *, int), int i)
{
    sl_view view = which(b, i);
    free(shot->data[i]);
    shot->bytes[i] = sl_meta_bytes(&view.meta);
    shot->data[i] = malloc(shot->bytes[i]);
    memcpy(shot->data[i], view.data, shot->bytes[i]);
    shot->count = i + 1 > shot->count ? i + 1 : shot->count;
}

static void snapshot_free(snapshot *shot)
{
    for (int i = 0; i < shot->count; i++)
        free(shot->data[i]);
}

/* Attention does not change when all keys move by the same vector, so the gradient of the keys' bias is zero but for
 * rounding, and AdamW makes steps of full size out of that noise: after training there is nothing to compare. Takes
 * the middle third of such a bias, [q | k | v], out of both. */
static void drop_key_bias(const char *name, float *a, float *b, int64_t count)
{
    if (!strstr(name, "c_attn.bias"))
        return;
    memset(a + count / 3, 0, (size_t)(count / 3) * sizeof *a);
    memset(b + count / 3, 0, (size_t)(count / 3) * sizeof *b);
}

/* The largest relative error of a tensor against a file of the same names. */
static double compare_file(const bench *b, sl_view (*which)(const bench *, int), const char *name, const char *file)
{
    sl_safetensors *expected = NULL;
    double worst = 0;
    ok(sl_safetensors_open(reference_path(name, file), &expected));
    assert_int_equal(sl_safetensors_count(expected), sl_param_list_count(b->params));
    for (int i = 0; i < sl_param_list_count(b->params); i++) {
        const sl_tensor_entry *entry = sl_safetensors_find(expected, sl_param_list_at(b->params, i)->name);
        assert_non_null(entry);
        float *data = malloc(entry->bytes), *given = malloc(entry->bytes);
        memcpy(data, entry->data, entry->bytes);
        memcpy(given, which(b, i).data, entry->bytes);
        if (which == param_of)
            drop_key_bias(entry->name, given, data, entry->count);
        worst = fmax(worst, relative_error(given, data, entry->count));
        free(data);
        free(given);
    }
    sl_safetensors_close(expected);
    print_message("%s %s: largest relative error of a tensor %.2e\n", name, file, worst);
    return worst;
}

/* ---- One step -------------------------------------------------------------------------------- */

static void logits_and_loss_agree_with_pytorch(void **state)
{
    (void)state;
    for (int m = 0; m < 2; m++) {
        sl_safetensors *reference = NULL;
        ok(sl_safetensors_open(reference_path(names[m], "reference.safetensors"), &reference));
        const sl_tensor_entry *logits = sl_safetensors_find(reference, "logits");
        float *expected = malloc(logits->bytes), *first = malloc(logits->bytes), loss, first_loss = 0;
        memcpy(expected, logits->data, logits->bytes);
        memcpy(&loss, sl_safetensors_find(reference, "loss")->data, sizeof loss);
        for (int stages = 1; stages <= MOST_STAGES; stages++) {
            bench b;
            open_reference(&b, names[m], SL_MODE_EVAL, stages, &(sl_model_shape){ BATCH, SEQ, 0 }, false);
            set_batch(&b, names[m], 0);
            run(&b, false);
            const float *given = output(&b, "logits"), *given_loss = output(&b, "loss");
            double error = relative_error(given, expected, logits->count);
            print_message("%s in %d stages: logits %.2e, loss %.9g of %.9g\n", names[m], stages, error,
                          (double)*given_loss, (double)loss);
            assert_true(error <= 2e-5);
            assert_true(fabs((double)*given_loss - (double)loss) <= 2e-5 * (double)loss);
            if (stages == 1) {
                memcpy(first, given, logits->bytes);
                first_loss = *given_loss;
            }
            assert_memory_equal(given, first, logits->bytes); /* cutting changes no bit */
            assert_memory_equal(given_loss, &first_loss, sizeof first_loss);
            tear_down(&b);
        }
        free(expected);
        free(first);
        sl_safetensors_close(reference);
    }
}

static void every_gradient_agrees_with_pytorch(void **state)
{
    (void)state;
    for (int m = 0; m < 2; m++) {
        snapshot first = { .count = 0 };
        for (int stages = 1; stages <= MOST_STAGES; stages++) {
            bench b;
            /* I and W here, B there: the same bits. */
            open_reference(&b, names[m], SL_MODE_TRAIN, stages, &(sl_model_shape){ BATCH, SEQ, 0 }, stages % 2 == 0);
            set_batch(&b, names[m], 0);
            run(&b, true);
            assert_true(compare_file(&b, grad_of, names[m], "grads_step0.safetensors") <= 2e-5);
            for (int i = 0; i < sl_param_list_count(b.params); i++) {
                bool tied =
                    b.model.family == SL_MODEL_GPT2 && i == 0; /* wte: cut apart, its two uses are summed later */
                if (stages == 1 || (tied && stages == 2))
                    snapshot_take(&first, &b, grad_of, i);
                assert_memory_equal(grad_of(&b, i).data, first.data[i], first.bytes[i]);
            }
            tear_down(&b);
        }
        snapshot_free(&first);
    }
}

/* ---- Twenty steps ---------------------------------------------------------------------------- */

typedef struct curve {
    double loss[STEPS], norm[STEPS];
    double lr, clip;
    sl_optim_options optim;
} curve;

static curve read_curve(const char *name)
{
    curve c = { .optim = { .kind = SL_OPTIM_ADAMW } };
    json_t *root = json_load_file(reference_path(name, "curve.json"), 0, NULL);
    assert_non_null(root);
    for (size_t i = 0; i < STEPS; i++) {
        c.loss[i] = json_number_value(json_array_get(json_object_get(root, "loss"), i));
        c.norm[i] = json_number_value(json_array_get(json_object_get(root, "grad_norm_before_clip"), i));
    }
    c.lr = json_number_value(json_object_get(root, "lr"));
    c.clip = json_number_value(json_object_get(root, "clip_global_norm"));
    c.optim.eps = json_number_value(json_object_get(root, "eps"));
    c.optim.weight_decay = json_number_value(json_object_get(root, "weight_decay"));
    c.optim.beta1 = json_number_value(json_array_get(json_object_get(root, "betas"), 0));
    c.optim.beta2 = json_number_value(json_array_get(json_object_get(root, "betas"), 1));
    json_decref(root);
    return c;
}

static sl_optimizer *create_optimizer(const bench *b, const sl_optim_options *options)
{
    sl_optim_param params[64];
    sl_optimizer *optimizer = NULL;
    int count = sl_param_list_count(b->params);
    for (int i = 0; i < count; i++) {
        const sl_param_info *info = sl_param_list_at(b->params, i);
        params[i] = (sl_optim_param){ info->name, param_of(b, i), grad_of(b, i), info->shape.rank >= 2 };
    }
    ok(sl_optimizer_create(options, b->device, params, count, &optimizer));
    return optimizer;
}

/* Trains on the reference's batches and writes down losses and norms. */
static void train(const bench *b, const char *name, const curve *reference, float *losses, double *norms)
{
    sl_optimizer *optimizer = create_optimizer(b, &reference->optim);
    sl_stream *stream = sl_runner_stream(b->runner);
    double sums[64];
    for (int step = 0; step < STEPS; step++) {
        set_batch(b, name, step);
        run(b, true);
        losses[step] = *output(b, "loss");
        ok(sl_optimizer_square_sums(optimizer, stream, sums));
        norms[step] = sl_grad_norm(sums, sl_param_list_count(b->params));
        ok(sl_optimizer_step(optimizer, stream, step + 1, reference->lr, sl_clip_scale(norms[step], reference->clip)));
    }
    ok(sl_stream_synchronize(stream));
    sl_optimizer_destroy(optimizer);
}

static void twenty_steps_follow_pytorchs_curve(void **state)
{
    (void)state;
    for (int m = 0; m < 2; m++) {
        curve reference = read_curve(names[m]);
        float losses[MOST_STAGES + 1][STEPS];
        double norms[MOST_STAGES + 1][STEPS], worst = 0, worst_norm = 0;
        snapshot first = { .count = 0 };
        for (int stages = 1; stages <= MOST_STAGES; stages++) {
            bench b;
            open_reference(&b, names[m], SL_MODE_TRAIN, stages, &(sl_model_shape){ BATCH, SEQ, 0 }, stages % 2 == 1);
            train(&b, names[m], &reference, losses[stages], norms[stages]);
            for (int i = 0; i < STEPS; i++) {
                worst = fmax(worst, fabs((double)losses[stages][i] - reference.loss[i]));
                worst_norm = fmax(worst_norm, fabs(norms[stages][i] / reference.norm[i] - 1));
            }
            assert_true(compare_file(&b, param_of, names[m], "after_20_steps.safetensors") <= 1e-4);
            /* Cut models agree bit for bit; with the whole one, too, where no parameter is tied across a cut. */
            int same_from = b.model.family == SL_MODEL_GPT2 ? 2 : 1;
            for (int i = 0; stages >= same_from && i < sl_param_list_count(b.params); i++) {
                if (stages == same_from)
                    snapshot_take(&first, &b, param_of, i);
                assert_memory_equal(param_of(&b, i).data, first.data[i], first.bytes[i]);
            }
            if (stages > same_from) {
                assert_memory_equal(losses[stages], losses[same_from], sizeof losses[stages]);
                assert_memory_equal(norms[stages], norms[same_from], sizeof norms[stages]);
            }
            tear_down(&b);
        }
        print_message("%s: loss within %.2e of the curve, norm within %.2e\n", names[m], worst, worst_norm);
        assert_true(worst <= 1e-4);
        assert_true(worst_norm <= 1e-4);
        snapshot_free(&first);
    }
}

/* ---- Decoding -------------------------------------------------------------------------------- */

enum { PROMPT = 5 };

/* Logits of the last of `seq` tokens from `position` on, given caches that hold those before. */
static const float *decode(const bench *b, const int32_t *tokens, int32_t seq, int32_t position)
{
    int32_t rows[BATCH * SEQ], places[SEQ];
    for (int32_t row = 0; row < BATCH; row++)
        memcpy(rows + row * seq, tokens + row * SEQ + position, (size_t)seq * sizeof *rows);
    for (int32_t i = 0; i < seq; i++)
        places[i] = position + i;
    set_input(b, "tokens", rows, (size_t)(BATCH * seq) * sizeof *rows);
    set_input(b, "positions", places, (size_t)seq * sizeof *places);
    set_input(b, "position", &position, sizeof position);
    run(b, false);
    return output(b, "logits");
}

static void copy_caches(const bench *from, const bench *to)
{
    static const char *const parts[] = { "cache_k", "cache_v" };
    for (int i = 0; i < 2 * sl_model_layers(&from->model); i++) {
        char name[64];
        snprintf(name, sizeof name,
                 from->model.family == SL_MODEL_GPT2 ? "transformer.h.%d.attn.%s" : "model.layers.%d.self_attn.%s",
                 i / 2, parts[i % 2]);
        sl_view source = sl_runner_state(from->runner, name), target = sl_runner_state(to->runner, name);
        assert_non_null(source.data);
        memcpy(target.data, source.data, sl_meta_bytes(&source.meta));
    }
}

/* A prompt in one go, then a token at a time, in two stages. */
static void decoding_with_caches_gives_the_logits_of_the_whole_text(void **state)
{
    (void)state;
    for (int m = 0; m < 2; m++) {
        bench whole, prompt, steps;
        open_reference(&whole, names[m], SL_MODE_LOGITS, 1, &(sl_model_shape){ BATCH, SEQ, 0 }, false);
        open_reference(&prompt, names[m], SL_MODE_DECODE, 2, &(sl_model_shape){ BATCH, PROMPT, SEQ }, false);
        open_reference(&steps, names[m], SL_MODE_DECODE, 2, &(sl_model_shape){ BATCH, 1, SEQ }, false);
        int64_t vocab = sl_model_vocab(&whole.model);
        int32_t tokens[BATCH * SEQ];
        for (int i = 0; i < BATCH * SEQ; i++)
            tokens[i] = (int32_t)(((unsigned)i * 2654435761u >> 16) % (unsigned)vocab);
        set_input(&whole, "tokens", tokens, sizeof tokens);
        run(&whole, false);
        const float *expected = output(&whole, "logits");
        double worst = 0;
        for (int32_t place = PROMPT - 1; place < SEQ; place++) {
            bool begins = place == PROMPT - 1;
            const float *given = decode(begins ? &prompt : &steps, tokens, begins ? PROMPT : 1, begins ? 0 : place);
            for (int64_t row = 0; row < BATCH; row++)
                worst = fmax(worst, relative_error(given + row * vocab, expected + (row * SEQ + place) * vocab, vocab));
            if (begins)
                copy_caches(&prompt, &steps);
        }
        print_message("%s: decoding differs by %.2e\n", names[m], worst);
        assert_true(worst <= 1e-5);
        tear_down(&whole);
        tear_down(&prompt);
        tear_down(&steps);
    }
}

/* ---- Perceptron ------------------------------------------------------------------------------ */

static void open_perceptron(bench *b, bool skip, bool tie, int stages)
{
    sl_model model = sl_model_default(SL_MODEL_MLP);
    const sl_split_point points[] = { { "layers.2", false }, { "layers.3", false }, { "layers.4", false } };
    sl_split_spec spec = { .kind = stages > 1 ? SL_SPLIT_POINTS : SL_SPLIT_WHOLE,
                           .points = points,
                           .point_count = stages - 1 };
    model.mlp.layers = 6;
    model.mlp.skip = skip;
    model.mlp.tie = tie;
    set_up(b, &model, SL_MODE_TRAIN, &(sl_model_shape){ BATCH, 1, 0 }, &spec, stages % 2 == 0);
    float x[BATCH * 32];
    int32_t targets[BATCH];
    for (int i = 0; i < BATCH * 32; i++)
        x[i] = (float)((unsigned)i * 2654435761u >> 16) / 65536 - 0.5f;
    for (int i = 0; i < BATCH; i++)
        targets[i] = i;
    set_input(b, "x", x, sizeof x);
    set_input(b, "targets", targets, sizeof targets);
    for (int i = 0; i < sl_param_list_count(b->params); i++) {
        sl_view view = param_of(b, i);
        sl_param_init(sl_param_list_at(b->params, i), 1, 0, sl_meta_count(&view.meta), view.data);
    }
}

static void skips_and_tied_layers_survive_the_cut(void **state)
{
    (void)state;
    for (int options = 0; options < 4; options++) {
        snapshot first = { .count = 0 };
        float first_loss = 0;
        for (int stages = 1; stages <= MOST_STAGES; stages++) {
            bench b;
            open_perceptron(&b, options & 1, options & 2, stages);
            run(&b, true);
            float loss = *output(&b, "loss");
            if (stages == 1)
                first_loss = loss;
            assert_memory_equal(&loss, &first_loss, sizeof loss);
            assert_true(loss > 1.5f && loss < 4); /* log 10 or so before training */
            for (int i = 0; i < sl_param_list_count(b.params); i++) {
                sl_view grad = grad_of(&b, i);
                if (stages == 1)
                    snapshot_take(&first, &b, grad_of, i);
                if (strstr(sl_param_list_at(b.params, i)->name, "shared")) /* its uses are added in another order */
                    assert_true(relative_error(grad.data, first.data[i], sl_meta_count(&grad.meta)) < 1e-6);
                else
                    assert_memory_equal(grad.data, first.data[i], first.bytes[i]);
            }
            tear_down(&b);
        }
        snapshot_free(&first);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_and_loss_agree_with_pytorch),
        cmocka_unit_test(every_gradient_agrees_with_pytorch),
        cmocka_unit_test(twenty_steps_follow_pytorchs_curve),
        cmocka_unit_test(decoding_with_caches_gives_the_logits_of_the_whole_text),
        cmocka_unit_test(skips_and_tied_layers_survive_the_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
