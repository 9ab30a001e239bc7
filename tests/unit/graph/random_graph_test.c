/* Random graphs: gradients agree with finite differences, and every way to cut and to run them gives the same bits. */
#include "unit/graph/harness.h"

#include <stdio.h>

enum { MOST_VALUES = 64, BATCH = 2, WIDTH = 4 };

/* A graph being grown: values of shape [BATCH, 3, WIDTH], any of which the next op may use. */
typedef struct random_graph {
    sl_graph *g;
    sl_dtype dtype;
    uint64_t state;
    sl_value values[MOST_VALUES];
    int count;
    int params;
} random_graph;

static int pick(random_graph *plot, int below)
{
    plot->state = plot->state * 6364136223846793005u + 1442695040888963407u;
    return (int)((plot->state >> 33) % (uint64_t)below);
}

/* Mostly a recent value, so that graphs are deep; now and then an old one, so that they have skips. */
static sl_value any_value(random_graph *plot)
{
    int from =
        pick(plot, 3) ? plot->count - 1 - pick(plot, plot->count < 3 ? plot->count : 3) : pick(plot, plot->count);
    return plot->values[from];
}

/* A new parameter, or one that is in use already. */
static sl_value any_param(random_graph *plot, const char *kind, int rank, const int64_t *dims)
{
    char name[32];
    int index = pick(plot, plot->params < 3 ? plot->params + 1 : 3);
    snprintf(name, sizeof name, "%s%d", kind, index);
    plot->params += index == plot->params;
    return sl_graph_param(plot->g, name, rank, dims, zeros);
}

static sl_value attention_of(sl_graph *g, sl_value qkv)
{
    sl_value parts[3];
    sl_split(g, qkv, 2, (int64_t[]){ WIDTH, WIDTH, WIDTH }, 3, parts);
    for (int i = 0; i < 3; i++)
        parts[i] = sl_reshape(g, parts[i], DIMS(BATCH, 3, 2, WIDTH / 2));
    return sl_reshape(
        g,
        sl_attention_with(g, parts[0], parts[1], parts[2], &(sl_attention_options){ .causal = true, .dropout = 0.2 }),
        DIMS(BATCH, 3, WIDTH));
}

static sl_value rearranged(random_graph *plot, sl_value x)
{
    sl_graph *g = plot->g;
    sl_value halves[2];
    switch (pick(plot, 4)) {
    case 0: /* there and back, across strides */
        x = sl_reshape(g, sl_permute(g, x, (int[]){ 2, 0, 1 }), DIMS(WIDTH * BATCH, 3));
        return sl_permute(g, sl_reshape(g, sl_tanh(g, x), DIMS(WIDTH, BATCH, 3)), (int[]){ 1, 2, 0 });
    case 1:
        sl_split(g, x, 2, (int64_t[]){ 1, WIDTH - 1 }, 2, halves);
        return sl_concat(g, (sl_value[]){ halves[1], halves[0] }, 2, 2);
    case 2:
        return sl_concat(g, (sl_value[]){ sl_slice(g, x, 1, 1, 3), sl_slice(g, x, 1, 0, 1) }, 2, 1);
    default:
        return sl_add(g, x, sl_mean(g, x, (int[]){ 1 }, 1, true));
    }
}

/* What models seldom have: products of activations, quotients, maxima, a value that is stretched or stands twice. */
static sl_value unusual(random_graph *plot, sl_value x, sl_value y)
{
    sl_graph *g = plot->g;
    sl_value weight;
    switch (pick(plot, 8)) {
    case 0: /* attention by hand: [BATCH, 3, 3] weights */
        return sl_matmul(g, sl_softmax(g, sl_matmul(g, x, y, false, true)), x, false, false);
    case 1:
        return sl_div(g, x, sl_scale(g, sl_mul(g, y, y), 1, 1.5));
    case 2:
        return sl_rmsnorm(g, x, any_param(plot, "bias", DIMS(WIDTH)), 1e-2);
    case 3:
        return sl_add(g, x, sl_max(g, y, (int[]){ 2 }, 1, true));
    case 4:
        return sl_logarithm(g, sl_scale(g, sl_exp(g, sl_tanh(g, x)), 1, 0.5));
    case 5:
        return sl_mul(g, x, sl_expand(g, sl_neg(g, sl_slice(g, y, 1, 1, 2)), DIMS(BATCH, 3, WIDTH)));
    case 6:
        return sl_slice(g, sl_concat(g, (sl_value[]){ x, sl_copy(g, x), y }, 3, 1), 1, 2, 5);
    default: /* a function of parameters alone */
        weight = any_param(plot, "square", DIMS(WIDTH, WIDTH));
        return sl_linear(g, x, sl_add(g, weight, sl_silu(g, sl_transpose(g, weight, 0, 1))), SL_NO_VALUE);
    }
}

static sl_value grow(random_graph *plot)
{
    sl_graph *g = plot->g;
    sl_value x = any_value(plot), y = any_value(plot);
    switch (pick(plot, 15)) {
    case 0:
    case 1:
        return sl_linear(g, x, any_param(plot, "square", DIMS(WIDTH, WIDTH)), any_param(plot, "bias", DIMS(WIDTH)));
    case 2:
        return sl_affine(g, x, sl_transpose(g, any_param(plot, "square", DIMS(WIDTH, WIDTH)), 0, 1), SL_NO_VALUE);
    case 3:
    case 4:
        return sl_add(g, x, y);
    case 5:
        return sl_layernorm(g, x, any_param(plot, "bias", DIMS(WIDTH)), any_param(plot, "bias", DIMS(WIDTH)), 1e-2);
    case 6:
        return sl_swiglu(g, x, y);
    case 7:
        return attention_of(g, sl_linear(g, x, any_param(plot, "qkv", DIMS(3 * WIDTH, WIDTH)), SL_NO_VALUE));
    case 8:
        return rearranged(plot, x);
    case 9:
        return sl_dropout(g, sl_gelu_tanh(g, x), 0.2);
    case 10:
    case 11:
    case 12:
        return unusual(plot, x, y);
    case 13:
        return sl_sub(g, sl_mul(g, x, sl_tanh(g, any_param(plot, "bias", DIMS(WIDTH)))), y);
    default:
        return sl_softmax(g, x);
    }
}

/* A graph of about `size` ops in modules "m.0", "m.1", ..; some of its values are not used. */
static sl_graph *grow_graph(uint64_t seed, int size, sl_dtype dtype)
{
    random_graph plot = { .dtype = dtype, .state = seed * 7919 + 1 };
    ASSERT_OK(sl_graph_create(&plot.g));
    sl_graph *g = plot.g;
    sl_graph_set_param_dtype(g, dtype);
    plot.values[plot.count++] = sl_graph_input_differentiable(g, "x", dtype, DIMS(BATCH, 3, WIDTH));
    plot.values[plot.count++] = sl_graph_input(g, "fixed", dtype, DIMS(BATCH, 3, WIDTH));
    for (int i = 0; i < size; i++) {
        sl_graph_push_index(g, "m", i / 3);
        sl_value next = grow(&plot);
        sl_graph_pop(g);
        plot.values[plot.count++] = next;
    }
    sl_value last =
        sl_linear(g, plot.values[plot.count - 1], sl_graph_param(g, "square0", DIMS(WIDTH, WIDTH), zeros), SL_NO_VALUE);
    sl_graph_loss(g, sl_cross_entropy(g, last, sl_graph_input(g, "t", SL_I32, DIMS(BATCH, 3)), -1));
    ASSERT_OK(sl_graph_finish(g));
    return g;
}

static void gradients_agree_with_finite_differences(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 25; seed++) {
        sl_graph *g = grow_graph(seed, 4 + (int)(seed % 9), SL_F64);
        check_gradients(g, NULL, (test_runner_options){ .split_backward = seed % 2 });
        sl_graph_destroy(g);
    }
}

static void cut_graphs_agree_with_finite_differences(void **state)
{
    (void)state;
    for (uint64_t seed = 100; seed < 115; seed++) {
        sl_graph *g = grow_graph(seed, 10, SL_F64);
        check_gradients(g, &(sl_split_spec){ .kind = SL_SPLIT_EQUAL, .stages = 3 },
                        (test_runner_options){ .split_backward = seed % 2 });
        sl_graph_destroy(g);
    }
}

static void i_and_w_give_the_bits_of_b(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 60; seed++) {
        sl_graph *g = grow_graph(seed, 5 + (int)(seed % 20), SL_F32);
        results b = run_and_collect(g, NULL, (test_runner_options){ .microbatches = 3 });
        results iw = run_and_collect(g, NULL, (test_runner_options){ .microbatches = 3, .split_backward = true });
        results turns = run_and_collect(g, NULL, (test_runner_options){ .microbatches = 3, .depth_first = true });
        results beside =
            run_and_collect(g, NULL, (test_runner_options){ .microbatches = 3, .programs.beside_flops = 1 });
        assert_same_bits(&b, &iw, "I and W against B");
        assert_same_bits(&b, &turns, "depth first against breadth first");
        assert_same_bits(&b, &beside, "planned for a second stream against B");
        free(b.bytes);
        free(iw.bytes);
        free(beside.bytes);
        free(turns.bytes);
        sl_graph_destroy(g);
    }
}

/* Parameters of a whole graph whose every use lies in one stage keep their bits; tied ones are summed per stage first,
 * so that they are compared only if the cuts tie none. */
static bool ties_nothing(const sl_graph *g, const sl_split_spec *spec)
{
    sl_partition *partition = NULL;
    int count;
    if (sl_graph_partition(g, spec, &partition) != SL_OK)
        return false;
    sl_partition_tied_params(partition, &count);
    sl_partition_destroy(partition);
    return count == 0;
}

static void untied_cuts_give_the_bits_of_the_whole(void **state)
{
    (void)state;
    int compared = 0;
    for (uint64_t seed = 0; seed < 120; seed++) {
        sl_graph *g = grow_graph(seed, 4 + (int)(seed % 20), SL_F32);
        results whole = run_and_collect(g, NULL, (test_runner_options){ .microbatches = 2 });
        for (int node = 1; node < sl_graph_node_count(g); node++) {
            sl_split_spec spec = { .kind = SL_SPLIT_NODES, .nodes = &node, .node_count = 1 };
            if (!ties_nothing(g, &spec))
                continue;
            results cut = run_and_collect(
                g, &spec, (test_runner_options){ .microbatches = 2, .split_backward = (node + (int)seed) % 2 });
            assert_same_bits(&whole, &cut, "cut in two");
            free(cut.bytes);
            compared++;
        }
        free(whole.bytes);
        sl_graph_destroy(g);
    }
    assert_true(compared > 100);
}

static void recomputation_gives_the_same_bits(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 60; seed++) {
        sl_graph *g = grow_graph(seed, 6 + (int)(seed % 18), SL_F32);
        const char *const all[] = { "m.*" }, *const some[] = { "m.1", "m.0" };
        results plain = run_and_collect(g, NULL, (test_runner_options){ .microbatches = 2 });
        for (int variant = 0; variant < 4; variant++) {
            test_runner_options options = { .microbatches = 2, .split_backward = variant % 2 };
            options.programs.beside_flops = 1;
            options.programs.recompute = variant < 2 ? all : some;
            options.programs.recompute_count = variant < 2 ? 1 : 2;
            results again = run_and_collect(g, NULL, options);
            assert_same_bits(&plain, &again, "recomputation");
            free(again.bytes);
        }
        free(plain.bytes);
        sl_graph_destroy(g);
    }
}

/* Graphs without tied parameters: each module has its own, so that any cut gives the bits of the whole. */
static sl_graph *grow_skips(uint64_t seed, int layers)
{
    random_graph plot = { .dtype = SL_F32, .state = seed * 104729 + 3 };
    ASSERT_OK(sl_graph_create(&plot.g));
    sl_graph *g = plot.g;
    plot.values[plot.count++] = sl_graph_input_differentiable(g, "x", SL_F32, DIMS(BATCH, 3, WIDTH));
    for (int i = 0; i < layers; i++) {
        sl_graph_push_index(g, "h", i);
        sl_value a = any_value(&plot), b = any_value(&plot), c = plot.values[pick(&plot, plot.count)];
        sl_value y = sl_linear(g, a, sl_graph_param(g, "w", DIMS(WIDTH, WIDTH), zeros), SL_NO_VALUE);
        y = sl_layernorm(g, sl_add(g, y, c), sl_graph_param(g, "ln", DIMS(WIDTH), zeros), SL_NO_VALUE, 1e-2);
        plot.values[plot.count++] = sl_add(g, sl_swiglu(g, y, b), b); /* b is used twice */
        sl_graph_pop(g);
    }
    sl_graph_loss(g, sl_mean(g, plot.values[plot.count - 1], NULL, 0, false));
    ASSERT_OK(sl_graph_finish(g));
    return g;
}

static void skips_over_stages_keep_the_bits(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 80; seed++) {
        sl_graph *g = grow_skips(seed, 4 + (int)(seed % 8));
        results whole = run_and_collect(g, NULL, (test_runner_options){ .microbatches = 2 });
        for (int stages = 2; stages <= 4; stages++) {
            sl_split_spec spec = { .kind = SL_SPLIT_EQUAL, .stages = stages };
            results cut =
                run_and_collect(g, &spec, (test_runner_options){ .microbatches = 2, .split_backward = stages % 2 });
            assert_same_bits(&whole, &cut, "cut with skips");
            free(cut.bytes);
        }
        free(whole.bytes);
        sl_graph_destroy(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_agree_with_finite_differences),
        cmocka_unit_test(cut_graphs_agree_with_finite_differences),
        cmocka_unit_test(i_and_w_give_the_bits_of_b),
        cmocka_unit_test(untied_cuts_give_the_bits_of_the_whole),
        cmocka_unit_test(recomputation_gives_the_same_bits),
        cmocka_unit_test(skips_over_stages_keep_the_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
