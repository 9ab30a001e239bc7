/* Documents that share a row give what each gives alone: logits and gradients, in every family, whole and cut. */
#include "support/model_bench.h"

#include <sluice/data.h>

enum { ROWS = 2, LENGTH = 24, TOKENS = ROWS * LENGTH, BOUNDARY = 3, DOCUMENTS = 6, IGNORED = SL_IGNORED_TARGET };

static const char *const family_names[] = { "gpt2-tiny",  "llama-tiny",   "qwen2-tiny",   "qwen3-tiny", "mistral-tiny",
                                            "phi3-tiny",  "gemma-tiny",   "gemma2-tiny",  "yarn-tiny",  "gemma3-tiny",
                                            "olmo2-tiny", "smollm3-tiny", "gpt_neox-tiny" };
enum { FAMILIES = sizeof family_names / sizeof *family_names };

/* Where each document begins in its row, and its length with the boundary; a window of a family is shorter than some. */
static const struct {
    int row, start, length;
} documents[DOCUMENTS] = { { 0, 0, 5 }, { 0, 5, 1 }, { 0, 6, 11 }, { 0, 17, 7 }, { 1, 0, 20 }, { 1, 20, 4 } };

typedef struct batch {
    int32_t tokens[TOKENS], targets[TOKENS], positions[TOKENS];
} batch;

static batch make_batch(int64_t vocab)
{
    batch made;
    for (unsigned i = 0; i < TOKENS; i++)
        made.tokens[i] = BOUNDARY + 1 + (int32_t)((i * 2654435761u >> 16) % (unsigned)(vocab - BOUNDARY - 1));
    for (int d = 0; d < DOCUMENTS; d++)
        made.tokens[documents[d].row * LENGTH + documents[d].start + documents[d].length - 1] = BOUNDARY;
    for (int i = 0; i < TOKENS; i++)
        made.targets[i] = made.tokens[(i + 1) % TOKENS];
    sl_document_positions(made.tokens, ROWS, LENGTH, BOUNDARY, made.positions);
    sl_document_mask(made.tokens, TOKENS, BOUNDARY, IGNORED, made.targets);
    return made;
}

static void open_family(bench *b, const char *name, sl_model_mode mode, int stages, const sl_model_shape *shape)
{
    sl_model model;
    const sl_split_spec spec = { .kind = SL_SPLIT_EQUAL, .stages = stages };
    ok(sl_model_load_config(reference_path(name, ""), &model));
    set_up(b, &model, mode, shape, &spec, stages % 2 == 0);
    read_weights(b, &model, name);
}

/* A document by itself, in a row of its own. The angles of phi3's longrope depend on the length of the row: it stays the
 * same, and what follows the document does not count. */
static void open_document(bench *b, const char *name, sl_model_mode mode, const batch *from, int d)
{
    int first = documents[d].row * LENGTH + documents[d].start, length = documents[d].length;
    int seq = strcmp(name, "phi3-tiny") == 0 ? LENGTH : length;
    int32_t tokens[LENGTH] = { 0 }, targets[LENGTH];
    for (int i = 0; i < LENGTH; i++)
        targets[i] = i < length ? from->targets[first + i] : IGNORED;
    memcpy(tokens, from->tokens + first, (size_t)length * sizeof *tokens);
    open_family(b, name, mode, 1, &(sl_model_shape){ .batch = 1, .seq = seq });
    set_input(b, "tokens", tokens, (size_t)seq * sizeof *tokens);
    set_input(b, "targets", targets, (size_t)seq * sizeof *targets);
    run(b, mode == SL_MODE_TRAIN);
}

static void open_packed(bench *b, const char *name, sl_model_mode mode, int stages, const batch *from)
{
    open_family(b, name, mode, stages, &(sl_model_shape){ .batch = ROWS, .seq = LENGTH, .documents = true });
    set_input(b, "positions", from->positions, sizeof from->positions);
    set_input(b, "tokens", from->tokens, sizeof from->tokens);
    set_input(b, "targets", from->targets, sizeof from->targets);
    run(b, mode == SL_MODE_TRAIN);
}

static void logits_are_those_of_the_documents_alone(void **state)
{
    (void)state;
    for (int m = 0; m < FAMILIES; m++) {
        sl_model model;
        ok(sl_model_load_config(reference_path(family_names[m], ""), &model));
        int64_t vocab = sl_model_vocab(&model);
        const batch all = make_batch(vocab);
        bench whole, cut;
        open_packed(&whole, family_names[m], SL_MODE_EVAL, 1, &all);
        open_packed(&cut, family_names[m], SL_MODE_EVAL, 3, &all);
        const float *packed = output(&whole, "logits");
        assert_memory_equal(packed, output(&cut, "logits"), (size_t)(TOKENS * vocab) * sizeof *packed);
        for (int d = 0; d < DOCUMENTS; d++) {
            bench alone;
            open_document(&alone, family_names[m], SL_MODE_EVAL, &all, d);
            int64_t first = documents[d].row * LENGTH + documents[d].start;
            double error =
                relative_error(packed + first * vocab, output(&alone, "logits"), documents[d].length * vocab);
            if (!(error <= 2e-5))
                fail_msg("%s: the logits of document %d differ by %.2e", family_names[m], d, error);
            tear_down(&alone);
        }
        tear_down(&whole);
        tear_down(&cut);
    }
}

/* The loss is a mean over the targets that count: the documents' gradients add up by how many each has. */
static void add_gradients(const char *name, const batch *from, double *sums[], int count)
{
    int counted = TOKENS - DOCUMENTS;
    for (int d = 0; d < DOCUMENTS; d++) {
        bench alone;
        open_document(&alone, name, SL_MODE_TRAIN, from, d);
        for (int i = 0; i < count; i++) {
            sl_view grad = grad_of(&alone, i);
            if (!sums[i])
                sums[i] = calloc((size_t)sl_meta_count(&grad.meta), sizeof *sums[i]);
            for (int64_t n = 0; n < sl_meta_count(&grad.meta); n++)
                sums[i][n] += (double)((float *)grad.data)[n] * (documents[d].length - 1) / counted;
        }
        tear_down(&alone);
    }
}

static void check_gradient(const char *family, const bench *b, int i, const double *expected)
{
    sl_view grad = grad_of(b, i);
    double difference = 0, size = 0;
    for (int64_t n = 0; n < sl_meta_count(&grad.meta); n++) {
        double off = ((float *)grad.data)[n] - expected[n];
        difference += off * off;
        size += expected[n] * expected[n];
    }
    if (sqrt(size) > 1e-4 && !(sqrt(difference / size) <= 2e-5)) /* a bias of keys may have none but by rounding */
        fail_msg("%s: the gradient of %s differs by %.2e", family, sl_param_list_at(b->params, i)->name,
                 sqrt(difference / size));
}

static void gradients_are_the_sums_of_the_documents_alone(void **state)
{
    (void)state;
    for (int m = 0; m < FAMILIES; m++) {
        sl_model model;
        double *sums[64] = { NULL };
        ok(sl_model_load_config(reference_path(family_names[m], ""), &model));
        const batch all = make_batch(sl_model_vocab(&model));
        for (int stages = 1; stages <= 2; stages++) {
            bench packed;
            open_packed(&packed, family_names[m], SL_MODE_TRAIN, stages, &all);
            int count = sl_param_list_count(packed.params);
            if (stages == 1)
                add_gradients(family_names[m], &all, sums, count);
            for (int i = 0; i < count; i++)
                check_gradient(family_names[m], &packed, i, sums[i]);
            tear_down(&packed);
        }
        for (int i = 0; i < 64; i++)
            free(sums[i]);
    }
}

/* One document of the whole row is the row as it always was. */
static void one_document_has_the_bits_of_a_plain_row(void **state)
{
    (void)state;
    for (int m = 0; m < FAMILIES; m++) {
        bench plain, packed;
        sl_model model;
        ok(sl_model_load_config(reference_path(family_names[m], ""), &model));
        int64_t vocab = sl_model_vocab(&model);
        batch all = make_batch(vocab);
        sl_document_positions(all.tokens, ROWS, LENGTH, -1, all.positions);
        open_packed(&packed, family_names[m], SL_MODE_EVAL, 1, &all);
        open_family(&plain, family_names[m], SL_MODE_EVAL, 1, &(sl_model_shape){ .batch = ROWS, .seq = LENGTH });
        set_input(&plain, "tokens", all.tokens, sizeof all.tokens);
        set_input(&plain, "targets", all.targets, sizeof all.targets);
        run(&plain, false);
        assert_memory_equal(output(&packed, "logits"), output(&plain, "logits"),
                            (size_t)(TOKENS * vocab) * sizeof(float));
        tear_down(&packed);
        tear_down(&plain);
    }
}

static void a_family_without_positions_is_refused(void **state)
{
    (void)state;
    sl_graph *graph = NULL;
    sl_model mlp = sl_model_default(&sl_model_mlp), gpt2 = sl_model_default(&sl_model_gpt2);
    const sl_model_shape shape = { .batch = 2, .seq = 8, .documents = true };
    assert_int_equal(sl_model_build(&mlp, SL_MODE_TRAIN, &shape, &graph), SL_ERR_UNSUPPORTED);
    assert_non_null(strstr(sl_error_message(), "the family mlp cannot keep the documents of a row apart"));
    assert_int_equal(sl_model_build(&gpt2, SL_MODE_DECODE, &shape, &graph), SL_ERR_ARGUMENT);
    assert_null(graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_those_of_the_documents_alone),
        cmocka_unit_test(gradients_are_the_sums_of_the_documents_alone),
        cmocka_unit_test(one_document_has_the_bits_of_a_plain_row),
        cmocka_unit_test(a_family_without_positions_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
