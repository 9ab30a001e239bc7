/* The models against PyTorch: logits, loss, every gradient, twenty steps of AdamW; whole and cut into stages. */
#include "support/model_bench.h"

#include <sluice/data.h>
#include <sluice/optim.h>

#include <jansson.h>

enum { STEPS = 20 };

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
        ok(sl_tensor_entry_read(entry, 0, entry->bytes, data));
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
        ok(sl_safetensors_open(reference_path(reference_names[m], "reference.safetensors"), &reference));
        const sl_tensor_entry *logits = sl_safetensors_find(reference, "logits");
        float *expected = malloc(logits->bytes), *first = malloc(logits->bytes), loss, first_loss = 0;
        ok(sl_tensor_entry_read(logits, 0, logits->bytes, expected));
        ok(sl_tensor_entry_read(sl_safetensors_find(reference, "loss"), 0, sizeof loss, &loss));
        for (int stages = 1; stages <= MOST_STAGES; stages++) {
            bench b;
            open_reference(&b, reference_names[m], SL_MODE_EVAL, stages,
                           &(sl_model_shape){ .batch = BATCH, .seq = SEQ }, false);
            set_batch(&b, reference_names[m], 0);
            run(&b, false);
            const float *given = output(&b, "logits"), *given_loss = output(&b, "loss");
            double error = relative_error(given, expected, logits->count);
            print_message("%s in %d stages: logits %.2e, loss %.9g of %.9g\n", reference_names[m], stages, error,
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
            open_reference(&b, reference_names[m], SL_MODE_TRAIN, stages,
                           &(sl_model_shape){ .batch = BATCH, .seq = SEQ }, stages % 2 == 0);
            set_batch(&b, reference_names[m], 0);
            run(&b, true);
            assert_true(compare_file(&b, grad_of, reference_names[m], "grads_step0.safetensors") <= 2e-5);
            for (int i = 0; i < sl_param_list_count(b.params); i++) {
                bool tied =
                    b.model.family == &sl_model_gpt2 && i == 0; /* wte: cut apart, its two uses are summed later */
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
        params[i] = (sl_optim_param){
            .name = info->name, .data = param_of(b, i), .grad = grad_of(b, i), .decay = info->shape.rank >= 2
        };
    }
    ok(sl_optimizer_create(options, b->device, params, count, &optimizer));
    return optimizer;
}

/* Trains on the reference's batches and writes down losses and norms. */
static void train(const bench *b, const char *name, const curve *reference, float *losses, double *norms)
{
    sl_optimizer *optimizer = create_optimizer(b, &reference->optim);
    sl_stream *stream = test_runner_stream(b->runner);
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
        curve reference = read_curve(reference_names[m]);
        float losses[MOST_STAGES + 1][STEPS];
        double norms[MOST_STAGES + 1][STEPS], worst = 0, worst_norm = 0;
        snapshot first = { .count = 0 };
        for (int stages = 1; stages <= MOST_STAGES; stages++) {
            bench b;
            open_reference(&b, reference_names[m], SL_MODE_TRAIN, stages,
                           &(sl_model_shape){ .batch = BATCH, .seq = SEQ }, stages % 2 == 1);
            train(&b, reference_names[m], &reference, losses[stages], norms[stages]);
            for (int i = 0; i < STEPS; i++) {
                worst = fmax(worst, fabs((double)losses[stages][i] - reference.loss[i]));
                worst_norm = fmax(worst_norm, fabs(norms[stages][i] / reference.norm[i] - 1));
            }
            assert_true(compare_file(&b, param_of, reference_names[m], "after_20_steps.safetensors") <= 1e-4);
            /* Cut models agree bit for bit; with the whole one, too, if no parameter is tied across a cut. */
            int same_from = b.model.family == &sl_model_gpt2 ? 2 : 1;
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
        print_message("%s: loss within %.2e of the curve, norm within %.2e\n", reference_names[m], worst, worst_norm);
        assert_true(worst <= 1e-4);
        assert_true(worst_norm <= 1e-4);
        snapshot_free(&first);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_and_loss_agree_with_pytorch),
        cmocka_unit_test(every_gradient_agrees_with_pytorch),
        cmocka_unit_test(twenty_steps_follow_pytorchs_curve),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
