/* The configuration: defaults, file, overrides, and errors that name file, line, column and key. */
#include "train/config_keys.h"

#include "base/alloc.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#define DATA "data: {tokens: t.bin}\n"

/* Loads the text as run.yaml in a folder of its own. */
static sl_status load(const char *yaml, const char *const *overrides, int count, sl_train_config **out)
{
    char folder[] = "/tmp/sluice-config-XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    assert_int_equal(chdir(folder), 0);
    snprintf(path, sizeof path, "run.yaml");
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(yaml, file);
    fclose(file);
    sl_status status = sl_train_config_load(path, overrides, count, out);
    unlink(path);
    assert_int_equal(chdir("/"), 0);
    rmdir(folder);
    return status;
}

static void the_defaults_need_nothing_but_data(void **state)
{
    (void)state;
    sl_train_config *config = NULL;
    assert_int_equal(load(DATA, NULL, 0, &config), SL_OK);
    assert_string_equal(config->data.tokens.items[0].path, "t.bin");
    assert_int_equal(config->data.text.count, 0);
    assert_string_equal(config->model.family, "gpt2");
    assert_int_equal(config->parallel.pp, 1);
    assert_string_equal(config->parallel.schedule, "1F1B");
    assert_true(config->optimizer.betas[1] == 0.95);
    assert_int_equal(config->parallel.split.count, 0);
    sl_train_config_destroy(config);
}

static void the_file_and_then_the_overrides_count(void **state)
{
    (void)state;
    sl_train_config *config = NULL;
    const char *const overrides[] = { "optimizer.betas=0.8,0.9", "parallel.split=[h.1, h.2,h.3]", "run.steps=7",
                                      "run.steps=8" };
    assert_int_equal(
        load("model:\n  family: llama\n  n_layer: 6\n  tie: no\ndata:\n  text: a b.txt\n  order: shuffled\n"
             "optimizer: {betas: [0.5, 0.6], lr: 1e-3}\nparallel: {pp: 4}\nlog:\nrun: {steps: 3}\n",
             overrides, 4, &config),
        SL_OK);
    assert_string_equal(config->model.family, "llama");
    assert_int_equal(config->model.n_layer, 6);
    assert_false(config->model.tie);
    assert_string_equal(config->data.text.items[0].path, "a b.txt");
    assert_int_equal(config->data.order, SL_ORDER_SHUFFLED);
    assert_true(config->optimizer.lr == 1e-3);
    assert_true(config->optimizer.betas[0] == 0.8 && config->optimizer.betas[1] == 0.9);
    assert_int_equal(config->parallel.split.count, 3);
    assert_string_equal(config->parallel.split.items[1], "h.2");
    assert_int_equal(config->run.steps, 8);
    assert_true(sl_train_config_given(config, "run.steps"));
    assert_false(sl_train_config_given(config, "run.seed"));
    sl_train_config_destroy(config);
}

static void nothing_and_null_leave_the_default(void **state)
{
    (void)state;
    static const char *const texts[] = { DATA, "---\n" DATA "...\n", DATA "run:\nmodel: ~\nlog: {}\n",
                                         DATA "run:\n  steps:\n  out: null\n  seed: ~\nparallel: {split: NULL}\n" };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        sl_train_config *config = NULL;
        assert_int_equal(load(texts[i], NULL, 0, &config), SL_OK);
        assert_int_equal(config->run.steps, 100);
        assert_string_equal(config->run.out, "out");
        assert_false(sl_train_config_given(config, "run.steps"));
        assert_int_equal(config->parallel.split.count, 0);
        sl_train_config_destroy(config);
    }
    sl_train_config *config = NULL; /* in quotes it is a text like any other */
    assert_int_equal(load(DATA "run: {out: 'null'}\n", NULL, 0, &config), SL_OK);
    assert_string_equal(config->run.out, "null");
    sl_train_config_destroy(config);
}

#define FAMILIES "gpt2, llama, qwen2, qwen3, mistral, smollm3, phi3, gemma, gemma2, gemma3_text, olmo2, gpt_neox"

static void errors_of_the_file_name_line_column_and_key(void **state)
{
    (void)state;
    static const struct {
        const char *yaml, *message;
    } cases[] = {
        { "model:\n  n_layer: 4\n  layers: 3\n",
          "run.yaml:3:3: model.layers: there is no such key; for gpt2 there are init, family, n_layer, n_head, "
          "n_kv_head, "
          "n_embd, n_inner, vocab, n_positions, dropout, tie, freeze, activation_function, layer_norm_epsilon, "
          "initializer_range, bos_token_id, eos_token_id" },
        { "model: {family: gpt3}\n", "run.yaml:1:17: model.family: 'gpt3' is not one of " FAMILIES },
        { "model: {family: mlp}\n", "run.yaml:1:17: model.family: 'mlp' is not one of " FAMILIES },
        { "model: {n_kv_head: 2}\n", "run.yaml:1:20: model.n_kv_head: the family gpt2 has none" },
        { "model: {family: llama, n_embd: 60}\n",
          "model.n_head (4 by default): head_dim 15 is odd: there are no halves to rotate" },
        { "model: {family: llama, rms_norm_eps: 3}\n",
          "run.yaml:1:24: model.rms_norm_eps: rms_norm_eps: 3 is outside 0 to 1" },
        { "model: {family: llama, hidden_size: 3}\n", "run.yaml:1:24: model.hidden_size: here this is model.n_embd" },
        { "model: {initializer_range: 0, initializer_range: 0}\n",
          "run.yaml:1:31: model.initializer_range: this is given a second time" },
        { "\nmodl:\n  n_layer: 4\n", "run.yaml:2:1: modl: there is no such section; there are model, data, batch, "
                                     "optimizer, parallel, precision, eval, checkpoint, log, run" },
        { "model:\n\n  n_layer: four\n", "run.yaml:3:12: model.n_layer: 'four' is not a whole number" },
        { "model:\n  n_layer: 4.5\n", "run.yaml:2:12: model.n_layer: '4.5' is not a whole number" },
        { "model:\n  n_layer: 0\n", "run.yaml:2:12: model.n_layer: 0 is outside 1 to 1024" },
        { "model:\n  n_layer: [1, 2]\n",
          "run.yaml:2:12: model.n_layer: one value is expected here, not a list or a mapping" },
        { "optimizer:\n  betas: 0.9\n", "run.yaml:2:10: optimizer.betas: a list is expected here, such as [a, b]" },
        { "optimizer:\n  betas: [0.9]\n", "run.yaml:2:10: optimizer.betas: two numbers are needed, 1 given" },
        { "optimizer:\n  betas: [0.9, 1]\n", "run.yaml:2:10: optimizer.betas: 1 is outside 0 to 0.99999999" },
        { "optimizer:\n  name: adam\n", "run.yaml:2:9: optimizer.name: 'adam' is not one of adamw|sgd" },
        { "model:\n  tie: maybe\n", "run.yaml:2:8: model.tie: 'maybe' is neither true nor false" },
        { "model: 3\n", "run.yaml:1:8: model: keys with values are expected here" },
        { "run:\n  steps: 1\nmodel:\n  n_layer: 1\nrun:\n  steps: 2\n",
          "run.yaml:5:1: run: this is given a second time" },
        { "run:\n  steps: 1\n  steps: 2\n", "run.yaml:3:3: run.steps: this is given a second time" },
        { "- a\n", "run.yaml:1:1: sections such as 'model:' are expected here" },
        { "run:\n\tsteps: 1\n", "run.yaml:2:1: found character that cannot start any token" },
        { "run: {steps: 1}\n---\nrun: {steps: 2}\n", "run.yaml:2:1: a second document begins here; one is expected" },
        { "run: &r {steps: 1}\nlog: *r\n", "run.yaml:2:6: aliases are not supported here" },
        { "run:\n  out: \"a\\0b\"\n", "run.yaml:2:8: run.out: the text holds a zero byte" },
        { "parallel:\n  split:\n    - a\n    - {b: c}\n",
          "run.yaml:4:7: parallel.split: one value is expected here, not a list or a mapping" },
        { "run: {steps: null}\nmodel: {tie: yes, tie: no}\n", "run.yaml:2:19: model.tie: this is given a second time" },
        { "run:\n  steps: 1\n  '': 3\n", "run.yaml:3:3: run.: there is no such key; there are steps, out, plan, seed" },
        { "parallel:\n  split: [a\n", "run.yaml:3:1: did not find expected ',' or ']'" },
        { "? [run]\n: 1\n", "run.yaml:1:3: a key must be a plain word" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sl_train_config *config = NULL;
        assert_int_not_equal(load(cases[i].yaml, NULL, 0, &config), SL_OK);
        assert_string_equal(sl_error_message(), cases[i].message);
    }
}

static void impossible_combinations_name_place_and_key(void **state)
{
    (void)state;
    static const struct {
        const char *yaml, *message;
    } cases[] = {
        { "run: {steps: 3}\n", "data.tokens: no data: give data.tokens or data.text" },
        { "data:\n  tokens: a\n  text: b\n",
          "run.yaml:3:9: data.text: data.tokens is given as well; give only one of them" },
        { DATA "model:\n  init: m\n  n_layer: 3\n",
          "run.yaml:4:12: model.n_layer: this comes from model.init (m); give only one of them" },
        { DATA "model:\n  init: m\n  rms_norm_eps: 0.1\n",
          "run.yaml:4:3: model.rms_norm_eps: this comes from model.init (m); give only one of them" },
        { DATA "model:\n  n_head: 3\n", "run.yaml:3:11: model.n_head: n_embd 128 is no multiple of n_head 3" },
        { DATA "batch:\n  size: 6\nparallel:\n  dp: 4\n",
          "run.yaml:3:9: batch.size: 6 rows cannot be shared equally by 4 replicas (parallel.dp)" },
        { DATA "batch:\n  size: 4\n  microbatches: 5\n", "run.yaml:4:17: batch.microbatches: 5 microbatches, but a "
                                                         "replica has only 4 rows (batch.size / parallel.dp)" },
        { DATA "optimizer:\n  momentum: 0.5\n",
          "run.yaml:3:13: optimizer.momentum: only sgd has it; optimizer.name is adamw" },
        { DATA "optimizer:\n  name: sgd\n  eps: 0.5\n",
          "run.yaml:4:8: optimizer.eps: only adamw has it; optimizer.name is sgd" },
        { DATA "optimizer:\n  warmup: 101\n", "run.yaml:3:11: optimizer.warmup: 101 steps, but the run has 100" },
        { DATA "parallel:\n  pp: 2\n  stages_per_rank: 2\n  split: [h.1]\n",
          "run.yaml:5:10: parallel.split: 1 points make 2 stages, but 2 ranks with 2 a rank need 4" },
        { DATA "precision:\n  dtype: f16\n",
          "run.yaml:3:10: precision.dtype: f16 gradients underflow without loss scaling, which Sluice does not have; "
          "bf16 has the exponents of f32 and needs none" },
        { DATA "precision:\n  grad: bf16\n",
          "run.yaml:3:9: precision.grad: only bf16 weights may have it; precision.dtype is f32" },
        { DATA "precision:\n  master: none\n",
          "run.yaml:3:11: precision.master: f32 weights are their own master; precision.dtype is f32" },
        { DATA "precision:\n  dtype: bf16\n  master: bf16\n",
          "run.yaml:4:11: precision.master: 'bf16' is not one of f32|none" },
        { DATA "model:\n  n_positions: 64\n",
          "batch.seq (128 by default): 128 tokens do not fit model.n_positions 64" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sl_train_config *config = NULL;
        assert_int_not_equal(load(cases[i].yaml, NULL, 0, &config), SL_OK);
        assert_string_equal(sl_error_message(), cases[i].message);
    }
}

static void data_are_one_path_or_a_list_with_or_without_weights(void **state)
{
    (void)state;
    sl_train_config *config = NULL;
    const char *const overrides[] = { "data.val=[\"a, b.bin\", c.bin]" };
    assert_int_equal(load("data:\n  tokens:\n    - {path: 'web/*.bin', weight: 3}\n    - {weight: 0.5, path: code}\n",
                          overrides, 1, &config),
                     SL_OK);
    assert_int_equal(config->data.tokens.count, 2);
    assert_string_equal(config->data.tokens.items[0].path, "web/*.bin");
    assert_true(config->data.tokens.items[0].weight == 3 && config->data.tokens.items[1].weight == 0.5);
    assert_int_equal(config->data.val.count, 2);
    assert_string_equal(config->data.val.items[0].path, "a, b.bin");
    assert_true(config->data.val.items[1].weight == 0);

    /* The text that checkpoints keep reads back equal. */
    sl_arena *arena = NULL;
    assert_int_equal(sl_arena_create(&arena), SL_OK);
    for (int k = 0; k < 2; k++) {
        const char *text = NULL, *second = NULL;
        const config_key *key = &sl_config_keys[sl_config_find("data", 4, k ? "tokens" : "val", k ? 6 : 3)];
        sl_train_config *again = NULL;
        char override[256];
        assert_int_equal(sl_config_text(config, key, arena, &text), SL_OK);
        snprintf(override, sizeof override, "data.%s=%s", key->key, text);
        const char *const twice[] = { "data.tokens=x", override };
        assert_int_equal(load("", twice, 2, &again), SL_OK);
        assert_int_equal(sl_config_text(again, key, arena, &second), SL_OK);
        assert_string_equal(text, second);
        sl_train_config_destroy(again);
    }
    sl_arena_destroy(arena);
    sl_train_config_destroy(config);

    static const struct {
        const char *yaml, *message;
    } cases[] = {
        { "data:\n  tokens: {path: a, weight: 1}\n",
          "run.yaml:2:11: data.tokens: a path or a list of them is expected here" },
        { "data:\n  tokens: []\n", "run.yaml:2:11: data.tokens: the list is empty" },
        { "data:\n  tokens: [a, {path: b, weight: 1}]\n",
          "run.yaml:2:11: data.tokens: b has a weight and a has none; give all of them one, or none" },
        { "data:\n  tokens:\n  - {path: b, weight: 0}\n", "run.yaml:3:23: data.tokens: a weight is a number above 0" },
        { "data:\n  tokens:\n  - {path: b, weight: -1}\n", "run.yaml:3:23: data.tokens: a weight is a number above 0" },
        { "data:\n  tokens:\n  - {path: b, weight: many}\n",
          "run.yaml:3:23: data.tokens: a weight is a number above 0" },
        { "data:\n  tokens:\n  - {weight: 1}\n", "run.yaml:3:15: data.tokens: this has no 'path'" },
        { "data:\n  tokens:\n  - {file: b}\n", "run.yaml:3:6: data.tokens: 'path' and 'weight' are expected here" },
        { "data:\n  tokens: ['']\n", "run.yaml:2:11: data.tokens: the text is empty" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_not_equal(load(cases[i].yaml, NULL, 0, &config), SL_OK);
        assert_string_equal(sl_error_message(), cases[i].message);
    }
}

static void keys_of_the_family_reach_the_model(void **state)
{
    (void)state;
    sl_train_config *config = NULL;
    sl_model model;
    const char *const overrides[] = { "model.eos_token_id=7,8", "model.rms_norm_eps=0.25" };
    assert_int_equal(
        load(DATA "model:\n  rms_norm_eps: 0.5\n  attention_bias: true\n  family: Llama\n", overrides, 2, &config),
        SL_OK);
    assert_int_equal(sl_config_model(config, 100, 64, &model), SL_OK);
    assert_ptr_equal(model.family, &sl_model_llama);
    assert_true(model.decoder.rms_norm_eps == 0.25 && model.decoder.attention_bias);
    assert_int_equal(model.decoder.eos_token_id.count, 2);
    assert_int_equal(model.decoder.eos_token_id.ids[1], 8);
    assert_int_equal(model.decoder.vocab_size, 100);
    assert_int_equal(model.decoder.max_position_embeddings, 64);
    assert_int_equal(model.decoder.intermediate_size, 352);
    assert_int_equal(model.decoder.num_key_value_heads, 4);
    sl_train_config_destroy(config);
}

static void errors_of_overrides_name_the_override(void **state)
{
    (void)state;
    static const struct {
        const char *override, *message;
    } cases[] = {
        { "batch.sise=3", "--batch.sise: there is no such key" },
        { "model.sise=3", "--model.sise=3: there is no such key; for gpt2 there are init, family, n_layer, n_head, "
                          "n_kv_head, n_embd, n_inner, vocab, n_positions, dropout, tie, freeze, activation_function, "
                          "layer_norm_epsilon, initializer_range, bos_token_id, eos_token_id" },
        { "steps=3", "--steps: there is no such key" },
        { "batch.size", "--batch.size: a value is missing (--batch.size=VALUE)" },
        { "batch.size=", "--batch.size: '' is not a whole number" },
        { "run.out=", "--run.out: the text is empty" },
        { "batch.size=3x", "--batch.size: '3x' is not a whole number" },
        { "data.tokens=[a, {path: b}", "--data.tokens:2:1: did not find expected ',' or ']'" },
        { "data.tokens=[{path: b, weight: 0}]", "--data.tokens:1:20: data.tokens: a weight is a number above 0" },
        { "optimizer.betas=0.9", "--optimizer.betas: two numbers are needed, 1 given" },
        { "batch.microbatches=100", "--batch.microbatches=100: 100 microbatches, but a replica has only 8 rows "
                                    "(batch.size / parallel.dp)" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sl_train_config *config = NULL;
        assert_int_not_equal(load(DATA, &cases[i].override, 1, &config), SL_OK);
        assert_string_equal(sl_error_message(), cases[i].message);
    }
}

static void a_missing_or_huge_file_is_an_error(void **state)
{
    (void)state;
    sl_train_config *config = NULL;
    assert_int_equal(sl_train_config_load("/nowhere/run.yaml", NULL, 0, &config), SL_ERR_IO);
    assert_string_equal(sl_error_message(), "open /nowhere/run.yaml: No such file or directory");
    assert_int_equal(sl_train_config_load("/", NULL, 0, &config), SL_ERR_IO);
    assert_int_equal(sl_train_config_load("/dev/zero", NULL, 0, &config), SL_ERR_FORMAT);
}

static void every_key_has_a_help_text_and_a_default_that_it_accepts(void **state)
{
    (void)state;
    sl_config_key_info info;
    int count = 0;
    for (; sl_train_config_key(count, &info); count++) {
        char override[256];
        sl_train_config *config = NULL;
        const char *const overrides[] = { "data.val=5%", override };
        assert_true(strlen(info.help) > 0 && strlen(info.type) > 0);
        if (info.default_value[0] == '\0' || strcmp(info.key, "momentum") == 0)
            continue;
        snprintf(override, sizeof override, "%s.%s=%s", info.section, info.key, info.default_value);
        assert_int_equal(load(DATA, overrides, 2, &config), SL_OK);
        sl_train_config_destroy(config);
    }
    assert_true(count > 30);
}

static void running_out_of_memory_is_an_error(void **state)
{
    (void)state;
    sl_status status = SL_ERR_MEMORY;
    for (int64_t n = 0; status != SL_OK && n < 1000; n++) {
        sl_train_config *config = NULL;
        sl_alloc_fail_after(n);
        status = load("data: {tokens: [{path: t.bin, weight: 2}]}\nparallel: {split: [a, b]}\n", NULL, 0, &config);
        sl_alloc_fail_after(-1);
        if (status == SL_OK)
            sl_train_config_destroy(config);
        else
            assert_int_equal(status, SL_ERR_MEMORY);
    }
    assert_int_equal(status, SL_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_defaults_need_nothing_but_data),
        cmocka_unit_test(the_file_and_then_the_overrides_count),
        cmocka_unit_test(nothing_and_null_leave_the_default),
        cmocka_unit_test(errors_of_the_file_name_line_column_and_key),
        cmocka_unit_test(impossible_combinations_name_place_and_key),
        cmocka_unit_test(data_are_one_path_or_a_list_with_or_without_weights),
        cmocka_unit_test(keys_of_the_family_reach_the_model),
        cmocka_unit_test(errors_of_overrides_name_the_override),
        cmocka_unit_test(a_missing_or_huge_file_is_an_error),
        cmocka_unit_test(every_key_has_a_help_text_and_a_default_that_it_accepts),
        cmocka_unit_test(running_out_of_memory_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
