/* Every family against transformers (tests/data/models/NAME-tiny): logits and gradients, whole and cut into stages; text
 * after text with caches; config.json there and back. */
#include "support/model_bench.h"

enum { ROWS = 2, LENGTH = 24, START = 10, MOST_CUTS = 3 };

static const char *const family_names[] = { "qwen2-tiny", "qwen3-tiny",    "mistral-tiny", "smollm3-tiny",
                                            "phi3-tiny",  "gemma-tiny",    "gemma2-tiny",  "gemma3-tiny",
                                            "olmo2-tiny", "gpt_neox-tiny", "yarn-tiny" };
enum { FAMILIES = sizeof family_names / sizeof *family_names };

typedef struct reference {
    sl_safetensors *file;
    int32_t tokens[ROWS * LENGTH], targets[ROWS * LENGTH];
} reference;

static reference open_file(const char *name)
{
    reference r = { .file = NULL };
    int32_t all[ROWS * (LENGTH + 1)];
    ok(sl_safetensors_open(reference_path(name, "reference.safetensors"), &r.file));
    ok(sl_tensor_entry_read(sl_safetensors_find(r.file, "tokens"), 0, sizeof all, all));
    for (int64_t row = 0; row < ROWS; row++) {
        memcpy(r.tokens + row * LENGTH, all + row * (LENGTH + 1), LENGTH * sizeof *all);
        memcpy(r.targets + row * LENGTH, all + row * (LENGTH + 1) + 1, LENGTH * sizeof *all);
    }
    return r;
}

/* The model with its weights, cut into stages of about the same cost. */
static void open_family(bench *b, const char *name, sl_model_mode mode, int stages, int64_t seq, bool split_backward)
{
    sl_model model;
    const sl_split_spec spec = { .kind = SL_SPLIT_EQUAL, .stages = stages };
    ok(sl_model_load_config(reference_path(name, ""), &model));
    set_up(b, &model, mode, &(sl_model_shape){ .batch = ROWS, .seq = seq, .cache = LENGTH }, &spec, split_backward);
    read_weights(b, &model, name);
}

static float *read_entry(const reference *r, const char *name, int64_t *count)
{
    const sl_tensor_entry *entry = sl_safetensors_find(r->file, name);
    assert_non_null(entry);
    float *data = malloc(entry->bytes);
    ok(sl_tensor_entry_read(entry, 0, entry->bytes, data));
    *count = entry->count;
    return data;
}

static void logits_agree_with_transformers_in_every_cut(void **state)
{
    (void)state;
    for (int m = 0; m < FAMILIES; m++) {
        reference r = open_file(family_names[m]);
        int64_t count;
        float *expected = read_entry(&r, "logits", &count), *first = malloc((size_t)count * sizeof *first);
        for (int stages = 1; stages <= MOST_CUTS; stages++) {
            bench b;
            open_family(&b, family_names[m], SL_MODE_EVAL, stages, LENGTH, false);
            set_input(&b, "tokens", r.tokens, sizeof r.tokens);
            set_input(&b, "targets", r.targets, sizeof r.targets);
            run(&b, false);
            double error = relative_error(output(&b, "logits"), expected, count);
            if (stages == 1)
                memcpy(first, output(&b, "logits"), (size_t)count * sizeof *first);
            if (!(error <= 2e-5))
                fail_msg("%s: logits differ by %.2e", family_names[m], error);
            assert_memory_equal(output(&b, "logits"), first, (size_t)count * sizeof *first);
            tear_down(&b);
        }
        free(expected);
        free(first);
        sl_safetensors_close(r.file);
    }
}

/* The gradient of a bias of keys is 0 but for rounding, if positions do not turn it: then there is nothing to compare. */
static double gradient_error(const float *given, const float *expected, int64_t count)
{
    double size = 0;
    for (int64_t i = 0; i < count; i++)
        size += (double)expected[i] * expected[i];
    return sqrt(size) > 1e-4 ? relative_error(given, expected, count) : 0;
}

static void gradients_agree_with_transformers_in_every_cut(void **state)
{
    (void)state;
    for (int m = 0; m < FAMILIES; m++) {
        reference r = open_file(family_names[m]);
        snapshot first = { .count = 0 };
        for (int stages = 1; stages <= MOST_CUTS; stages++) {
            bench b;
            open_family(&b, family_names[m], SL_MODE_TRAIN, stages, LENGTH, stages % 2 == 0);
            set_input(&b, "tokens", r.tokens, sizeof r.tokens);
            set_input(&b, "targets", r.targets, sizeof r.targets);
            run(&b, true);
            for (int i = 0; i < sl_param_list_count(b.params); i++) {
                char name[256];
                int64_t count;
                snprintf(name, sizeof name, "grad.%s", sl_param_list_at(b.params, i)->name);
                float *expected = read_entry(&r, name, &count);
                double error = gradient_error(grad_of(&b, i).data, expected, count);
                if (!(error <= 2e-5))
                    fail_msg("%s in %d stages: %s differs by %.2e", family_names[m], stages, name, error);
                free(expected);
                bool tied = !sl_safetensors_find(r.file, "grad.lm_head.weight") &&
                            !sl_safetensors_find(r.file, "grad.embed_out.weight") && i == 0;
                if (stages == 1 || (tied && stages == 2)) /* cut apart, its two uses are summed later */
                    snapshot_take(&first, &b, grad_of, i);
                assert_memory_equal(grad_of(&b, i).data, first.data[i], first.bytes[i]);
            }
            tear_down(&b);
        }
        snapshot_free(&first);
        sl_safetensors_close(r.file);
    }
}

static const float *decode(const bench *b, const int32_t *tokens, int32_t count, int32_t position)
{
    int32_t part[ROWS * LENGTH], positions[LENGTH];
    for (int64_t row = 0; row < ROWS; row++)
        memcpy(part + row * count, tokens + row * LENGTH + position, (size_t)count * sizeof *part);
    for (int32_t i = 0; i < count; i++)
        positions[i] = position + i;
    set_input(b, "tokens", part, (size_t)(ROWS * count) * sizeof *part);
    set_input(b, "position", &position, sizeof position);
    set_input(b, "positions", positions, (size_t)count * sizeof *positions);
    run(b, false);
    return output(b, "logits");
}

static void copy_caches(const bench *from, const bench *to)
{
    static const char *const parts[] = { "cache_k", "cache_v" };
    bool neox = from->model.family == &sl_model_gpt_neox;
    for (int i = 0; i < 2 * sl_model_layers(&from->model); i++) {
        char name[64];
        snprintf(name, sizeof name, neox ? "gpt_neox.layers.%d.attention.%s" : "model.layers.%d.self_attn.%s", i / 2,
                 parts[i % 2]);
        sl_view source = test_runner_state(from->runner, name), target = test_runner_state(to->runner, name);
        assert_non_null(source.data);
        memcpy(target.data, source.data, sl_meta_bytes(&source.meta));
    }
}

/* A prompt in one go, then a token at a time: windows, caps and angles are those of the whole text. */
static void decoding_with_caches_gives_the_logits_of_the_whole_text(void **state)
{
    (void)state;
    for (int m = 0; m < FAMILIES; m++) {
        bench prompt, steps;
        reference r = open_file(family_names[m]);
        int64_t count;
        float *expected = read_entry(&r, "logits", &count);
        open_family(&prompt, family_names[m], SL_MODE_DECODE, 2, START, false);
        open_family(&steps, family_names[m], SL_MODE_DECODE, 2, 1, false);
        int64_t vocab = sl_model_vocab(&prompt.model);
        double worst = 0;
        for (int32_t place = START - 1; place < LENGTH; place++) {
            bool begins = place == START - 1;
            const float *given = decode(begins ? &prompt : &steps, r.tokens, begins ? START : 1, begins ? 0 : place);
            for (int64_t row = 0; row < ROWS; row++)
                worst =
                    fmax(worst, relative_error(given + row * vocab, expected + (row * LENGTH + place) * vocab, vocab));
            if (begins)
                copy_caches(&prompt, &steps);
        }
        if (!(worst <= 4e-5))
            fail_msg("%s: decoding differs by %.2e", family_names[m], worst);
        tear_down(&prompt);
        tear_down(&steps);
        free(expected);
        sl_safetensors_close(r.file);
    }
}

/* In bf16 the results are those of f32 but for the rounding of bf16. */
static void bf16_stays_close_to_f32(void **state)
{
    (void)state;
    for (int m = 0; m < FAMILIES; m++) {
        sl_model model;
        sl_model_weights *weights = NULL;
        bench b;
        reference r = open_file(family_names[m]);
        int64_t count;
        float *expected = read_entry(&r, "logits", &count), values[4096];
        ok(sl_model_load_config(reference_path(family_names[m], ""), &model));
        set_up(&b, &model, SL_MODE_EVAL, &(sl_model_shape){ .batch = ROWS, .seq = LENGTH, .dtype = SL_BF16 },
               &(sl_split_spec){ .kind = SL_SPLIT_WHOLE }, false);
        ok(sl_model_weights_open(&model, reference_path(family_names[m], ""), &weights));
        for (int i = 0; i < sl_param_list_count(b.params); i++) {
            sl_view view = param_of(&b, i);
            int64_t elements = sl_meta_count(&view.meta);
            assert_true(elements <= 4096);
            ok(sl_model_weights_read(weights, sl_param_list_at(b.params, i)->name, 0, elements, values));
            ok(sl_f32_convert(values, elements, SL_BF16, view.data));
        }
        set_input(&b, "tokens", r.tokens, sizeof r.tokens);
        set_input(&b, "targets", r.targets, sizeof r.targets);
        run(&b, false);
        double error = relative_error(output(&b, "logits"), expected, count);
        if (!(error <= 0.05))
            fail_msg("%s in bf16: logits differ by %.2e", family_names[m], error);
        sl_model_weights_close(weights);
        tear_down(&b);
        free(expected);
        sl_safetensors_close(r.file);
    }
}

static void configurations_read_back_what_they_wrote(void **state)
{
    (void)state;
    for (int m = 0; m < FAMILIES; m++) {
        sl_model model, back;
        char *text = NULL;
        ok(sl_model_load_config(reference_path(family_names[m], ""), &model));
        ok(sl_model_config_text(&model, SL_F32, &text));
        ok(sl_model_parse_config("back", text, strlen(text), &back));
        assert_ptr_equal(back.family, model.family);
        assert_memory_equal(back.config, model.config, model.family->config_bytes);
        sl_free(text);
    }
    const sl_model_family *family;
    for (int i = 0; (family = sl_model_family_at(i)); i++) {
        sl_model model = sl_model_default(family);
        ok(sl_model_check(&model));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_agree_with_transformers_in_every_cut),
        cmocka_unit_test(gradients_agree_with_transformers_in_every_cut),
        cmocka_unit_test(decoding_with_caches_gives_the_logits_of_the_whole_text),
        cmocka_unit_test(bf16_stays_close_to_f32),
        cmocka_unit_test(configurations_read_back_what_they_wrote),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
