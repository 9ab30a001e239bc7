/* config.json: what Hugging Face writes is understood, what cannot be is refused by key. */
#include "support/scratch.h"

#include <sluice/nn.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

static sl_model parsed(const char *text)
{
    sl_model model;
    if (sl_model_parse_config("config.json", text, strlen(text), &model) != SL_OK)
        fail_msg("%s", sl_error_message());
    return model;
}

static void refused(const char *text, const char *says)
{
    sl_model model;
    assert_int_not_equal(sl_model_parse_config("config.json", text, strlen(text), &model), SL_OK);
    if (!strstr(sl_error_message(), says) || !strstr(sl_error_message(), "config.json"))
        fail_msg("expected '%s', the message is: %s", says, sl_error_message());
}

static void reads_the_reference_models(void **state)
{
    (void)state;
    sl_model model;
    assert_int_equal(sl_model_load_config(data_path("models/gpt2-tiny"), &model), SL_OK);
    assert_ptr_equal(model.family, &sl_model_gpt2);
    assert_int_equal(model.gpt2.vocab_size, 257);
    assert_int_equal(model.gpt2.n_embd, 48);
    assert_int_equal(model.gpt2.n_inner, 0);
    assert_true(model.gpt2.tie_word_embeddings && model.gpt2.embd_pdrop == 0 && model.gpt2.layer_norm_epsilon == 1e-5);
    assert_int_equal(sl_model_positions(&model), 64);
    assert_int_equal(sl_model_load_config(data_path("models/llama-tiny"), &model), SL_OK);
    assert_ptr_equal(model.family, &sl_model_llama);
    assert_int_equal(model.decoder.num_key_value_heads, 2);
    assert_int_equal(model.decoder.head_dim, 8);
    assert_false(model.decoder.tie_word_embeddings);
    assert_true(model.decoder.rope.kind == SL_ROPE_DEFAULT && model.decoder.rope.theta == 10000);
    assert_int_equal(sl_model_vocab(&model), 263);
    assert_int_equal(sl_model_layers(&model), 4);
}

static void absent_keys_have_hugging_faces_defaults(void **state)
{
    (void)state;
    sl_model gpt2 = parsed("{\"model_type\":\"gpt2\"}"), llama = parsed("{\"model_type\":\"llama\"}");
    assert_int_equal(gpt2.gpt2.n_layer, 12);
    assert_int_equal(gpt2.gpt2.vocab_size, 50257);
    assert_true(gpt2.gpt2.resid_pdrop == 0.1);
    assert_int_equal(llama.decoder.hidden_size, 4096);
    assert_int_equal(llama.decoder.num_key_value_heads, 0);
    assert_true(llama.decoder.rope.theta == 10000);
}

static void old_and_new_rope_keys_mean_the_same(void **state)
{
    (void)state;
    sl_model old = parsed("{\"model_type\":\"llama\",\"rope_theta\":500000.0,\"rope_scaling\":{\"type\":\"llama3\","
                          "\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
                          "\"original_max_position_embeddings\":8192},\"torch_dtype\":\"bfloat16\"}");
    sl_model new =
        parsed("{\"model_type\":\"llama\",\"rope_parameters\":{\"rope_theta\":500000.0,\"rope_type\":\"llama3\","
               "\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
               "\"original_max_position_embeddings\":8192},\"dtype\":\"bfloat16\"}");
    assert_memory_equal(&old.decoder.rope, &new.decoder.rope, sizeof old.decoder.rope);
    assert_true(old.decoder.rope.kind == SL_ROPE_LLAMA3 && old.decoder.rope.theta == 500000);
    assert_int_equal(parsed("{\"model_type\":\"llama\",\"rope_scaling\":null}").decoder.rope.kind, SL_ROPE_DEFAULT);
}

static void impossible_values_are_refused_by_key(void **state)
{
    (void)state;
    refused("", "line 1");
    refused("[]", "not a JSON object");
    refused("{\"model_type\":\"gpt2\",\"model_type\":\"gpt2\"}", "duplicate");
    refused("{}", "has no model_type");
    refused("{\"model_type\":\"mamba\"}", "unknown model_type 'mamba'");
    refused("{\"model_type\":\"mlp\"}", "unknown model_type 'mlp'");
    refused("{\"model_type\":\"gpt2\",\"n_layer\":\"12\"}", "n_layer is not a whole number");
    refused("{\"model_type\":\"gpt2\",\"n_layer\":1.5}", "n_layer is not a whole number");
    refused("{\"model_type\":\"gpt2\",\"n_layer\":0}", "n_layer is 0");
    refused("{\"model_type\":\"gpt2\",\"n_layer\":-3}", "n_layer is -3");
    refused("{\"model_type\":\"gpt2\",\"n_layer\":99999999}", "n_layer is 99999999");
    refused("{\"model_type\":\"gpt2\",\"vocab_size\":9223372036854775807}", "vocab_size is 9223372036854775807");
    refused("{\"model_type\":\"gpt2\",\"n_head\":7}", "n_embd 768 is no multiple of n_head 7");
    refused("{\"model_type\":\"gpt2\",\"resid_pdrop\":1}", "resid_pdrop is 1");
    refused("{\"model_type\":\"gpt2\",\"resid_pdrop\":\"no\"}", "resid_pdrop is not a number");
    refused("{\"model_type\":\"gpt2\",\"activation_function\":\"mish\"}",
            "activation_function: unknown activation 'mish'");
    refused("{\"model_type\":\"gpt2\",\"scale_attn_weights\":false}", "scale_attn_weights must be true");
    refused("{\"model_type\":\"gpt2\",\"add_cross_attention\":\"yes\"}", "add_cross_attention is not true or false");
    refused("{\"model_type\":\"gpt2\",\"tie_word_embeddings\":1}", "tie_word_embeddings is not true or false");
    refused("{\"model_type\":\"llama\",\"num_key_value_heads\":5}", "no multiple of num_key_value_heads 5");
    refused("{\"model_type\":\"llama\",\"head_dim\":3}", "head_dim 3 is odd");
    refused("{\"model_type\":\"llama\",\"hidden_act\":\"gelu\"}", "hidden_act 'gelu'");
    refused("{\"model_type\":\"llama\",\"hidden_act\":5}", "hidden_act is not a text");
    refused("{\"model_type\":\"llama\",\"eos_token_id\":[1,\"two\"]}", "eos_token_id is not a token id");
    refused("{\"model_type\":\"llama\",\"eos_token_id\":[1,-5]}", "eos_token_id is -5");
    refused("{\"model_type\":\"llama\",\"eos_token_id\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}", "has 17 ids");
    refused("{\"model_type\":\"llama\",\"rope_theta\":0}", "rope_theta 0");
    refused("{\"model_type\":\"llama\",\"rope_scaling\":7}", "rope_parameters is not an object");
    refused("{\"model_type\":\"llama\",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8}}", "high_freq_factor");
    sl_model model;
    assert_int_equal(sl_model_load_config(scratch_path("nowhere"), &model), SL_ERR_IO);
    assert_non_null(strstr(sl_error_message(), "nowhere/config.json"));
}

static void what_a_family_cannot_do_is_refused_with_its_key(void **state)
{
    (void)state;
    refused("{\"model_type\":\"llama\",\"rope_scaling\":{\"rope_type\":\"ntk\"}}", "unknown rope_type 'ntk'");
    refused("{\"model_type\":\"llama\",\"rope_scaling\":{\"rope_type\":\"yarn\"}}",
            "rope_parameters: rope_type yarn needs a factor");
    refused("{\"model_type\":\"llama\",\"rope_scaling\":{\"rope_type\":\"dynamic\",\"factor\":0.5}}",
            "the rope factor 0.5 is below 1");
    refused("{\"model_type\":\"llama\",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,\"truncate\":3}}",
            "truncate is not true or false");
    refused("{\"model_type\":\"llama\",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,\"beta_fast\":1,\"beta_"
            "slow\":2}}",
            "beta_fast 1 must not be below beta_slow 2");
    refused("{\"model_type\":\"llama\",\"rope_parameters\":{\"rope_type\":\"default\",\"partial_rotary_factor\":0.5}}",
            "partial_rotary_factor must be 1 here");
    refused("{\"model_type\":\"phi3\",\"rope_scaling\":{\"rope_type\":\"longrope\"}}",
            "short_factor is not a list of numbers");
    refused("{\"model_type\":\"phi3\",\"rope_scaling\":{\"type\":\"su\",\"short_factor\":[1,2],\"long_factor\":[1]}}",
            "long_factor has 1 numbers, short_factor 2");
    refused(
        "{\"model_type\":\"phi3\",\"rope_scaling\":{\"type\":\"su\",\"short_factor\":[1,2],\"long_factor\":[1,\"x\"]}}",
        "long_factor[1] is not a number");
    refused("{\"model_type\":\"phi3\",\"rope_scaling\":{\"type\":\"su\",\"short_factor\":[1,2],\"long_factor\":[1,2]}}",
            "need 48");
    refused("{\"model_type\":\"phi3\",\"partial_rotary_factor\":1.5}", "partial_rotary_factor 1.5 is not in 0..1");
    refused("{\"model_type\":\"gpt_neox\",\"rotary_pct\":0.01}", "leaves 0 elements to rotate");
    refused("{\"model_type\":\"gpt_neox\",\"num_attention_heads\":7}",
            "hidden_size 6144 is no multiple of num_attention_heads 7");
    refused("{\"model_type\":\"gpt_neox\",\"hidden_act\":\"mish\"}", "hidden_act: unknown activation 'mish'");
    refused("{\"model_type\":\"qwen2\",\"layer_types\":[\"full_attention\"]}",
            "layer_types has 1 entries for 32 layers");
    refused("{\"model_type\":\"qwen2\",\"layer_types\":[\"linear_attention\"]}",
            "layer_types[0] is not sliding_attention or full_attention");
    refused("{\"model_type\":\"qwen2\",\"layer_types\":7}", "layer_types is not a list");
    refused("{\"model_type\":\"smollm3\",\"no_rope_layers\":[2]}", "no_rope_layers[0] is not 0 or 1");
    refused("{\"model_type\":\"mistral\",\"sliding_window\":-4}", "sliding_window is -4");
    refused("{\"model_type\":\"gemma\",\"hidden_activation\":\"relu\"}",
            "hidden_activation 'relu'; only gelu_pytorch_tanh");
    refused("{\"model_type\":\"gemma2\",\"use_bidirectional_attention\":true}",
            "use_bidirectional_attention must be false");
    refused("{\"model_type\":\"gemma2\",\"attn_logit_softcapping\":-1}", "attn_logit_softcapping is -1");
    refused("{\"model_type\":\"gemma3_text\",\"rope_parameters\":{\"sliding_attention\":{\"rope_type\":\"linear\","
            "\"factor\":2}}}",
            "rope_parameters.sliding_attention: rope_type must be default");
    refused("{\"model_type\":\"gemma3\"}", "unknown model_type 'gemma3'");
}

static void a_written_config_reads_back_equal(void **state)
{
    (void)state;
    sl_model models[3] = { sl_model_default(&sl_model_gpt2), sl_model_default(&sl_model_llama),
                           sl_model_default(&sl_model_llama) };
    models[0].gpt2.n_inner = 100;
    models[0].gpt2.activation = SL_ACT_GELU_ERF;
    models[0].gpt2.layer_norm_epsilon = 1.0 / 3;
    models[0].gpt2.eos_token_id = (sl_token_ids){ 0 };
    models[0].gpt2.bos_token_id = -1;
    models[1].decoder.tie_word_embeddings = true;
    models[1].decoder.num_key_value_heads = 8;
    models[2].decoder.eos_token_id = (sl_token_ids){ 3, { 128001, 128008, 128009 } }; /* as in Llama 3 */
    models[2].decoder.rope = (sl_rope_config){ .kind = SL_ROPE_LLAMA3,
                                               .theta = 5e5,
                                               .factor = 8,
                                               .low_freq_factor = 1,
                                               .high_freq_factor = 4,
                                               .original_max_position_embeddings = 8192 };
    for (int i = 0; i < 3; i++) {
        sl_model back;
        scratch_path("config.json"); /* makes the folder */
        if (sl_model_save_config(&models[i], SL_F32, scratch_folder) != SL_OK ||
            sl_model_load_config(scratch_folder, &back) != SL_OK)
            fail_msg("%s", sl_error_message());
        assert_ptr_equal(back.family, models[i].family);
        if (i == 0)
            assert_memory_equal(&back.gpt2, &models[i].gpt2, sizeof back.gpt2);
        else
            assert_memory_equal(&back.decoder, &models[i].decoder, sizeof back.decoder);
    }
    sl_model mlp = sl_model_default(&sl_model_mlp);
    assert_int_equal(sl_model_save_config(&mlp, SL_F32, scratch_folder), SL_ERR_UNSUPPORTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_the_reference_models),
        cmocka_unit_test(absent_keys_have_hugging_faces_defaults),
        cmocka_unit_test(old_and_new_rope_keys_mean_the_same),
        cmocka_unit_test(impossible_values_are_refused_by_key),
        cmocka_unit_test(what_a_family_cannot_do_is_refused_with_its_key),
        cmocka_unit_test(a_written_config_reads_back_equal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
