/* Families of models: what may be registered, how it is found, how values are set by key. */
#include <sluice/nn.h>

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <string.h>
#include <cmocka.h>

typedef struct tiny_config {
    int64_t vocab, places;
    double rate;
    bool tied;
    sl_activation activation;
    sl_token_ids ends;
} tiny_config;

static const tiny_config defaults = { .vocab = 7, .places = 5, .rate = 0.5 };

#define FIELD(member, kind_, most, general)                                                                            \
    {                                                                                                                  \
        .key = #member, .kind = SL_FIELD_##kind_, .offset = offsetof(tiny_config, member), .min = 0, .max = (most),    \
        .run_key = (general)                                                                                           \
    }

static const sl_model_field fields[] = {
    FIELD(vocab, INT, 100, "vocab"),
    FIELD(places, INT, 100, "n_positions"),
    FIELD(rate, REAL, 1, "dropout"),
    FIELD(tied, BOOL, 0, "tie"),
    FIELD(activation, ACTIVATION, 0, NULL),
    FIELD(ends, TOKENS, 99, NULL),
    { .key = NULL },
};

static sl_status build(const void *config, sl_model_mode mode, const sl_model_shape *shape, sl_graph *graph)
{
    (void)config;
    (void)mode;
    (void)shape;
    (void)graph;
    return sl_fail(SL_ERR_UNSUPPORTED, "tiny builds nothing");
}

/* Static: what is registered stays so for the rest of the process. */
static const sl_model_family tiny = { .name = "tiny",
                                      .architecture = "Tiny",
                                      .config_bytes = sizeof(tiny_config),
                                      .defaults = &defaults,
                                      .fields = fields,
                                      .embedding = "table",
                                      .head = "head",
                                      .build = build };

static void a_registered_family_is_found_by_name(void **state)
{
    (void)state;
    sl_model model, wrong = { .family = NULL };
    static const char text[] = "{\"model_type\": \"tiny\", \"vocab\": 9, \"activation\": \"silu\"}";
    assert_int_equal(sl_model_parse_config("it", text, strlen(text), &model), SL_ERR_UNSUPPORTED);
    assert_string_equal(sl_error_message(),
                        "it: unknown model_type 'tiny'; known are gpt2, llama, qwen2, qwen3, mistral, smollm3, phi3, "
                        "gemma, gemma2, gemma3_text, olmo2, gpt_neox");
    int built_in = 0;
    while (sl_model_family_at(built_in))
        built_in++;
    assert_null(sl_model_find_family("tiny"));
    assert_int_equal(sl_model_register(&tiny), SL_OK);
    assert_int_equal(sl_model_register(&tiny), SL_OK);
    assert_ptr_equal(sl_model_find_family("tiny"), &tiny);
    assert_ptr_equal(sl_model_family_at(built_in), &tiny);
    assert_null(sl_model_family_at(built_in + 1));
    assert_null(sl_model_family_at(-1));

    assert_int_equal(sl_model_parse_config("it", text, strlen(text), &model), SL_OK);
    assert_int_equal(sl_model_vocab(&model), 9);
    assert_int_equal(sl_model_positions(&model), 5);
    assert_int_equal(sl_model_layers(&model), 0);
    sl_graph *graph = NULL;
    assert_int_equal(sl_model_build(&model, SL_MODE_TRAIN, &(sl_model_shape){ .batch = 1, .seq = 1 }, &graph),
                     SL_ERR_UNSUPPORTED);
    assert_string_equal(sl_error_message(), "tiny builds nothing");
    assert_int_equal(sl_model_check(&wrong), SL_ERR_ARGUMENT);
}

static void values_are_set_by_their_keys(void **state)
{
    (void)state;
    sl_model model = sl_model_default(&tiny);
    tiny_config *config = (tiny_config *)(void *)model.config;
    assert_int_equal(config->vocab, 7);
    assert_int_equal(sl_model_set(&model, "vocab", "12"), SL_OK);
    assert_int_equal(sl_model_set(&model, "rate", "0.25"), SL_OK);
    assert_int_equal(sl_model_set(&model, "tied", "yes"), SL_OK);
    assert_int_equal(sl_model_set(&model, "activation", "relu"), SL_OK);
    assert_int_equal(sl_model_set(&model, "ends", "3,4,5"), SL_OK);
    assert_true(config->vocab == 12 && config->rate == 0.25 && config->tied && config->activation == SL_ACT_RELU);
    assert_true(config->ends.count == 3 && config->ends.ids[2] == 5);

    static const struct {
        const char *key, *text, *message;
    } wrong[] = {
        { .key = "width", .text = "3", .message = "the family tiny has no key 'width'" },
        { .key = "vocab", .text = "101", .message = "vocab: 101 is outside 0 to 100" },
        { .key = "ends", .text = "3,x", .message = "ends: 'x' is not a whole number" },
        { .key = "ends", .text = "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17", .message = "ends: more than 16 ids" },
        { .key = "activation", .text = "sin", .message = "unknown activation 'sin'" },
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_not_equal(sl_model_set(&model, wrong[i].key, wrong[i].text), SL_OK);
        assert_non_null(strstr(sl_error_message(), wrong[i].message));
    }
    assert_true(config->vocab == 12 && config->ends.count == 3);
}

static void refuse(sl_model_family family, const char *message)
{
    static sl_model_family copy;
    copy = family;
    assert_int_equal(sl_model_register(&copy), SL_ERR_ARGUMENT);
    assert_string_equal(sl_error_message(), message);
}

static void what_the_library_could_not_rely_on_is_refused(void **state)
{
    (void)state;
    static const tiny_config impossible = { .vocab = 101 };
    sl_model_family family = tiny;
    assert_int_equal(sl_model_register(&tiny), SL_OK);
    refuse(family, "there is another family tiny already");
    family.name = "";
    refuse(family, "the family has no name");
    family.name = "other";
    family.build = NULL;
    refuse(family, "the family other lacks build, defaults or fields");
    family.build = build;
    family.head = NULL;
    refuse(family, "the family other: tied needs a bool, an embedding and a head");
    family.head = "head";
    family.config_bytes = 8;
    refuse(family, "the family other: places lies outside of its configuration");
    family.config_bytes = SL_MODEL_CONFIG_BYTES + 1;
    refuse(family, "the configuration of the family other has 2049 bytes; 2048 are possible");
    family.config_bytes = sizeof(tiny_config);
    family.fields = &fields[2];
    refuse(family, "the family other has no field for vocab or n_positions");
    family.fields = fields;
    family.defaults = &impossible;
    refuse(family, "the defaults of the family other: vocab is 101; 0 to 100 are possible");
    assert_null(sl_model_find_family("other"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_registered_family_is_found_by_name),
        cmocka_unit_test(values_are_set_by_their_keys),
        cmocka_unit_test(what_the_library_could_not_rely_on_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
