/* Models in stages: decoding through caches, skips and tied weights across cuts, dropout that no cut changes. */
#include "support/model_bench.h"

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
                 from->model.family == &sl_model_gpt2 ? "transformer.h.%d.attn.%s" : "model.layers.%d.self_attn.%s",
                 i / 2, parts[i % 2]);
        sl_view source = test_runner_state(from->runner, name), target = test_runner_state(to->runner, name);
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
        open_reference(&whole, reference_names[m], SL_MODE_LOGITS, 1, &(sl_model_shape){ .batch = BATCH, .seq = SEQ },
                       false);
        open_reference(&prompt, reference_names[m], SL_MODE_DECODE, 2,
                       &(sl_model_shape){ .batch = BATCH, .seq = PROMPT, .cache = SEQ }, false);
        open_reference(&steps, reference_names[m], SL_MODE_DECODE, 2,
                       &(sl_model_shape){ .batch = BATCH, .seq = 1, .cache = SEQ }, false);
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
        print_message("%s: decoding differs by %.2e\n", reference_names[m], worst);
        assert_true(worst <= 1e-5);
        tear_down(&whole);
        tear_down(&prompt);
        tear_down(&steps);
    }
}

/* ---- Perceptron ------------------------------------------------------------------------------ */

static void open_perceptron(bench *b, bool skip, bool tie, int stages)
{
    sl_model model = sl_model_default(&sl_model_mlp);
    const sl_split_point points[] = { { "layers.2", false }, { "layers.3", false }, { "layers.4", false } };
    sl_split_spec spec = { .kind = stages > 1 ? SL_SPLIT_POINTS : SL_SPLIT_WHOLE,
                           .points = points,
                           .point_count = stages - 1 };
    model.mlp.layers = 6;
    model.mlp.skip = skip;
    model.mlp.tie = tie;
    set_up(b, &model, SL_MODE_TRAIN, &(sl_model_shape){ .batch = BATCH, .seq = 1 }, &spec, stages % 2 == 0);
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

/* ---- Dropout --------------------------------------------------------------------------------- */

static void dropout_does_not_depend_on_the_cut(void **state)
{
    (void)state;
    sl_model model = sl_model_default(&sl_model_gpt2);
    model.gpt2 = (sl_gpt2_config){ .vocab_size = 50,
                                   .n_positions = SEQ,
                                   .n_embd = 24,
                                   .n_layer = 3,
                                   .n_head = 3,
                                   .layer_norm_epsilon = 1e-5,
                                   .initializer_range = 0.2,
                                   .embd_pdrop = 0.2,
                                   .resid_pdrop = 0.3,
                                   .attn_pdrop = 0.4 };
    const sl_split_point points[] = { { "transformer.h.1", false }, { "transformer.h.2.mlp", false } };
    int32_t tokens[BATCH * SEQ];
    for (int i = 0; i < BATCH * SEQ; i++)
        tokens[i] = i % 50;
    snapshot first = { .count = 0 };
    float loss[4] = { 0 }; /* step 0 in 1, 2 and 3 stages, then step 1 */
    for (int round = 0; round < 4; round++) {
        bench b;
        int stages = round < 3 ? round + 1 : 1;
        sl_split_spec spec = { .kind = stages > 1 ? SL_SPLIT_POINTS : SL_SPLIT_WHOLE,
                               .points = points,
                               .point_count = stages - 1 };
        set_up(&b, &model, SL_MODE_TRAIN, &(sl_model_shape){ .batch = BATCH, .seq = SEQ }, &spec, stages == 2);
        for (int i = 0; i < sl_param_list_count(b.params); i++) {
            sl_view view = param_of(&b, i);
            sl_param_init(sl_param_list_at(b.params, i), 1, 0, sl_meta_count(&view.meta), view.data);
        }
        set_input(&b, "tokens", tokens, sizeof tokens);
        set_input(&b, "targets", tokens, sizeof tokens);
        ok(test_runner_step(b.runner, &(sl_rng){ .seed = 5, .step = round == 3, .training = true }, NULL));
        ok(sl_stream_synchronize(test_runner_stream(b.runner)));
        loss[round] = *output(&b, "loss");
        for (int i = 0; round < 3 && i < sl_param_list_count(b.params); i++) {
            if (round == 0)
                snapshot_take(&first, &b, grad_of, i);
            assert_memory_equal(grad_of(&b, i).data, first.data[i], first.bytes[i]);
        }
        tear_down(&b);
    }
    assert_memory_equal(&loss[0], &loss[1], sizeof *loss);
    assert_memory_equal(&loss[0], &loss[2], sizeof *loss);
    assert_true(loss[3] != loss[0]); /* another step drops others */
    snapshot_free(&first);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decoding_with_caches_gives_the_logits_of_the_whole_text),
        cmocka_unit_test(skips_and_tied_layers_survive_the_cut),
        cmocka_unit_test(dropout_does_not_depend_on_the_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
