/* Building graphs: names, shapes, tied parameters, and errors that say what does not fit where. */
#include <sluice/graph.h>

#include "base/alloc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#define DIMS(...)                                                                                                      \
    (int)(sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)), (int64_t[])                                           \
    {                                                                                                                  \
        __VA_ARGS__                                                                                                    \
    }

static const sl_init zeros = { SL_INIT_ZEROS, 0 };

static sl_graph *new_graph(void)
{
    sl_graph *graph = NULL;
    assert_int_equal(sl_graph_create(&graph), SL_OK);
    return graph;
}

static sl_value input(sl_graph *g, const char *name, int rank, const int64_t *dims)
{
    return sl_graph_input(g, name, SL_F32, rank, dims);
}

static void assert_shape(const sl_graph *g, sl_value value, const char *expected)
{
    char text[128];
    sl_shape shape = sl_value_shape(g, value);
    assert_string_equal(sl_shape_text(&shape, text, sizeof text), expected);
}

/* The text that a dump writes; the caller frees it. */
static char *dump(const sl_graph *g)
{
    char *text = NULL;
    size_t size;
    FILE *file = open_memstream(&text, &size);
    sl_graph_dump(g, file);
    fclose(file);
    return text;
}

static void names_carry_their_scopes_and_stay_unique(void **state)
{
    (void)state;
    sl_graph *g = new_graph();
    sl_value x = input(g, "x", DIMS(2, 4));
    sl_graph_push_index(g, "h", 3);
    sl_graph_push(g, "mlp");
    sl_value w = sl_graph_param(g, "c_fc.weight", DIMS(8, 4), zeros);
    sl_value y = sl_linear(g, x, w, SL_NO_VALUE);
    y = sl_relu(g, sl_relu(g, y));
    sl_graph_pop(g);
    sl_graph_pop(g);
    sl_graph_output(g, "y", y);
    assert_int_equal(sl_graph_finish(g), SL_OK);
    assert_string_equal(sl_graph_param_at(g, 0).name, "h.3.mlp.c_fc.weight");
    assert_string_equal(sl_graph_node_name(g, 0), "h.3.mlp.linear");
    assert_string_equal(sl_graph_node_name(g, 1), "h.3.mlp.relu");
    assert_string_equal(sl_graph_node_name(g, 2), "h.3.mlp.relu_2");
    assert_string_equal(sl_graph_node_op(g, 0), "linear");
    assert_string_equal(sl_graph_node_op(g, 2), "relu");
    sl_graph_destroy(g);
}

static void a_parameter_asked_for_twice_is_one(void **state)
{
    (void)state;
    sl_graph *g = new_graph();
    sl_value a = sl_graph_param(g, "w", DIMS(8, 4), zeros), b = sl_graph_param(g, "w", DIMS(8, 4), zeros);
    assert_int_equal(a.id, b.id);
    assert_int_equal(sl_graph_param_count(g), 1);
    assert_int_equal(sl_graph_param(g, "w", DIMS(4, 8), zeros).id, -1);
    assert_int_equal(sl_graph_finish(g), SL_ERR_SHAPE);
    assert_string_equal(sl_error_message(), "parameter 'w' is [8, 4] and was asked for again as [4, 8]");
    sl_graph_destroy(g);
}

static void shapes_follow_from_the_arguments(void **state)
{
    (void)state;
    sl_graph *g = new_graph();
    sl_value x = input(g, "x", DIMS(2, 3, 8)), parts[3];
    sl_value w = sl_graph_param(g, "w", DIMS(24, 8), zeros), ids = sl_graph_input(g, "ids", SL_I64, DIMS(2, 3));
    sl_value qkv = sl_linear(g, x, w, SL_NO_VALUE);
    assert_shape(g, qkv, "[2, 3, 24]");
    sl_split(g, qkv, -1, (int64_t[]){ 8, 8, 8 }, 3, parts);
    for (int i = 0; i < 3; i++)
        parts[i] = sl_reshape(g, parts[i], DIMS(2, 3, -1, 4));
    assert_shape(g, parts[2], "[2, 3, 2, 4]");
    assert_shape(g, sl_attention(g, parts[0], parts[1], parts[2], 0, true), "[2, 3, 2, 4]");
    assert_shape(g, sl_permute(g, parts[0], (int[]){ 0, 2, 1, 3 }), "[2, 2, 3, 4]");
    assert_shape(g, sl_transpose(g, x, 1, -1), "[2, 8, 3]");
    assert_shape(g, sl_slice(g, x, 1, 1, 3), "[2, 2, 8]");
    assert_shape(g, sl_expand(g, sl_slice(g, x, 0, 0, 1), DIMS(5, 3, 8)), "[5, 3, 8]");
    assert_shape(g, sl_concat(g, (sl_value[]){ x, x, qkv }, 3, 2), "[2, 3, 40]");
    assert_shape(g, sl_mean(g, x, (int[]){ 0, -1 }, 2, false), "[3]");
    assert_shape(g, sl_max(g, x, NULL, 0, true), "[1, 1, 1]");
    assert_shape(g, sl_matmul(g, x, x, false, true), "[2, 3, 3]");
    assert_shape(g, sl_add(g, x, sl_graph_param(g, "b", DIMS(8), zeros)), "[2, 3, 8]");
    assert_shape(g, sl_embedding(g, ids, w), "[2, 3, 8]");
    assert_shape(g, sl_cross_entropy(g, qkv, ids, -100), "[]");
    assert_int_equal(sl_value_dtype(g, sl_cast(g, x, SL_F64)), SL_F64);
    assert_shape(
        g,
        sl_attention_with(g, parts[0], parts[1], parts[2], &(sl_attention_options){ .causal = true, .dropout = 0.5 }),
        "[2, 3, 2, 4]");
    assert_int_equal(sl_dropout(g, x, 0).id, x.id);
    assert_int_equal(sl_graph_status(g), SL_OK);
    sl_graph_destroy(g);
}

typedef struct bad_case {
    sl_value (*build)(sl_graph *g);
    const char *message;
} bad_case;

static sl_value wrong_linear(sl_graph *g)
{
    sl_graph_push(g, "h.3");
    sl_graph_push(g, "mlp");
    return sl_linear(g, input(g, "x", DIMS(2, 8, 64)), sl_graph_param(g, "w", DIMS(128, 32), zeros), SL_NO_VALUE);
}

static sl_value wrong_bias(sl_graph *g)
{
    return sl_affine(g, input(g, "x", DIMS(2, 8)), sl_graph_param(g, "w", DIMS(8, 5), zeros),
                     sl_graph_param(g, "b", DIMS(8), zeros));
}

static sl_value wrong_broadcast(sl_graph *g)
{
    return sl_add(g, input(g, "x", DIMS(2, 8)), input(g, "y", DIMS(3, 8)));
}

static sl_value wrong_dtype(sl_graph *g)
{
    return sl_mul(g, input(g, "x", DIMS(2)), sl_graph_input(g, "y", SL_F64, DIMS(2)));
}

static sl_value wrong_heads(sl_graph *g)
{
    sl_value k = input(g, "k", DIMS(1, 4, 2, 8));
    return sl_attention(g, input(g, "q", DIMS(1, 4, 3, 8)), k, k, 0, true);
}

static sl_value wrong_reshape(sl_graph *g)
{
    return sl_reshape(g, input(g, "x", DIMS(2, 8)), DIMS(3, -1));
}

static sl_value two_open_dims(sl_graph *g)
{
    return sl_reshape(g, input(g, "x", DIMS(2, 8)), DIMS(-1, 2, -1));
}

static sl_value empty_concat(sl_graph *g)
{
    sl_graph_push(g, "h.3");
    return sl_concat(g, NULL, 0, 0);
}

static sl_value long_slice(sl_graph *g)
{
    return sl_slice(g, input(g, "x", DIMS(2, 8)), -1, 4, 9);
}

static sl_value wrong_split(sl_graph *g)
{
    sl_value parts[2];
    sl_split(g, input(g, "x", DIMS(2, 8)), 1, (int64_t[]){ 3, 4 }, 2, parts);
    return parts[1];
}

static sl_value wrong_ids(sl_graph *g)
{
    return sl_embedding(g, input(g, "x", DIMS(2)), sl_graph_param(g, "w", DIMS(8, 5), zeros));
}

static sl_value wrong_targets(sl_graph *g)
{
    return sl_cross_entropy(g, input(g, "x", DIMS(2, 8)), sl_graph_input(g, "t", SL_I32, DIMS(3)), -100);
}

static sl_value missing_argument(sl_graph *g)
{
    return sl_swiglu(g, input(g, "x", DIMS(2)), SL_NO_VALUE);
}

static sl_value huge_shape(sl_graph *g)
{
    return input(g, "x", DIMS(INT64_MAX, 3));
}

static sl_value scale_of_a_trained_table(sl_graph *g)
{
    sl_value table = sl_graph_param(g, "cos", DIMS(4, 2), zeros);
    return sl_rope(g, input(g, "x", DIMS(1, 4, 1, 4)), table, table, SL_NO_VALUE);
}

static void errors_name_the_node_and_the_shapes(void **state)
{
    (void)state;
    static const bad_case cases[] = {
        { wrong_linear, "h.3.mlp.linear(x f32 [2, 8, 64], w f32 [128, 32]): w takes 32 features" },
        { wrong_bias, "linear(x f32 [2, 8], w f32 [8, 5], b f32 [8]): b must be [5]" },
        { wrong_broadcast, "add(a f32 [2, 8], b f32 [3, 8]): the shapes do not broadcast" },
        { wrong_dtype, "mul(a f32 [2], b f64 [2]): b must be f32 like a" },
        { wrong_heads, "attention(q f32 [1, 4, 3, 8], k f32 [1, 4, 2, 8], v f32 [1, 4, 2, 8]): 3 query heads do not "
                       "share 2 key heads evenly" },
        { wrong_reshape, "reshape(x f32 [2, 8]): does not fill [3, 5]" },
        { two_open_dims, "reshape(x f32 [2, 8]): dim 2 of the result is -1 (one may be -1)" },
        { empty_concat, "h.3.concat: takes at least 1 input, given 0" },
        { long_slice, "slice(x f32 [2, 8]): 4..9 is not within dim 1" },
        { wrong_split, "split(x f32 [2, 8]): the parts of dim 1 add up to 7" },
        { wrong_ids, "embedding(ids f32 [2], table f32 [8, 5]): ids must be i32 or i64" },
        { wrong_targets, "cross_entropy(logits f32 [2, 8], targets i32 [3]): there must be one target for each row of "
                         "logits" },
        { missing_argument, "swiglu(gate f32 [2]): up is missing" },
        { huge_shape, "input 'x': shape [9223372036854775807, 3] is too large" },
        { scale_of_a_trained_table, "rope(x f32 [1, 4, 1, 4], cos f32 [4, 2], sin f32 [4, 2]): cos has no gradient "
                                    "and cannot be trained" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sl_graph *g = new_graph();
        sl_value bad = cases[i].build(g);
        assert_int_equal(bad.id, -1);
        sl_graph_output(g, "y", sl_relu(g, bad)); /* goes on without effect */
        assert_int_not_equal(sl_graph_finish(g), SL_OK);
        assert_string_equal(sl_error_message(), cases[i].message);
        sl_graph_destroy(g);
    }
}

static void refuses_what_is_no_graph(void **state)
{
    (void)state;
    sl_graph *g = new_graph();
    assert_int_equal(sl_graph_finish(g), SL_ERR_ARGUMENT);
    assert_string_equal(sl_error_message(), "the graph is empty: it has no nodes");
    sl_value y = sl_relu(g, input(g, "x", DIMS(2)));
    assert_int_equal(sl_graph_finish(g), SL_ERR_ARGUMENT);
    assert_string_equal(sl_error_message(), "the graph has no outputs and no loss");
    sl_graph_push(g, "open");
    assert_int_equal(sl_graph_finish(g), SL_ERR_ARGUMENT);
    assert_string_equal(sl_error_message(), "the graph's scope 'open' is still open");
    sl_graph_pop(g);
    sl_graph_output(g, "y", y);
    assert_int_equal(sl_graph_finish(g), SL_OK);
    sl_relu(g, y);
    assert_int_equal(sl_graph_status(g), SL_ERR_ARGUMENT);
    assert_string_equal(sl_error_message(), "relu: the graph is finished");
    sl_graph_destroy(g);
}

static void refuses_a_value_that_does_not_exist_yet(void **state)
{
    (void)state;
    sl_graph *g = new_graph();
    sl_value x = input(g, "x", DIMS(2));
    sl_add(g, x, (sl_value){ x.id + 1 }); /* the id that this node's own result would get: a cycle */
    assert_int_equal(sl_graph_finish(g), SL_ERR_ARGUMENT);
    assert_string_equal(sl_error_message(), "add: argument 1 is no value of this graph");
    sl_graph_destroy(g);
}

static void refuses_a_loss_that_is_no_scalar(void **state)
{
    (void)state;
    sl_graph *g = new_graph();
    sl_graph_loss(g, sl_relu(g, input(g, "x", DIMS(2))));
    assert_int_equal(sl_graph_finish(g), SL_ERR_SHAPE);
    assert_string_equal(sl_error_message(), "loss: 'relu' is f32 [2], not a floating scalar");
    sl_graph_destroy(g);
}

static void the_dump_shows_nodes_attributes_and_what_is_unused(void **state)
{
    (void)state;
    sl_graph *g = new_graph();
    sl_value x = input(g, "x", DIMS(2, 4)), w = sl_graph_param(g, "w", DIMS(8, 4), zeros);
    sl_value y = sl_linear(g, x, w, SL_NO_VALUE);
    sl_split_mark(g);
    sl_exp(g, y);
    sl_graph_loss(g, sl_mean(g, y, NULL, 0, false));
    assert_int_equal(sl_graph_finish(g), SL_OK);
    char *text = dump(g);
    assert_string_equal(text, "%1 = input x f32 [2, 4]\n"
                              "%2 = param w f32 [8, 4]\n"
                              "%3 = linear(%1, %2, -) transpose_w -> f32 [2, 8]  # linear\n"
                              "---- split\n"
                              "%4 = exp(%3) -> f32 [2, 8]  # exp (unused)\n"
                              "%5 = mean(%3) dims=0x3 -> f32 []  # mean\n"
                              "loss loss = %5\n");
    free(text);
    sl_graph_destroy(g);
}

/* Every allocation of a small graph fails once; nothing leaks (asan) and nothing crashes. */
static void survives_running_out_of_memory_anywhere(void **state)
{
    (void)state;
    for (int64_t n = 0;; n++) {
        sl_graph *g = NULL;
        sl_partition *partition = NULL;
        sl_alloc_fail_after(n);
        sl_status status = sl_graph_create(&g);
        if (status == SL_OK) {
            sl_value x = input(g, "x", DIMS(2, 4)), w = sl_graph_param(g, "w", DIMS(4, 4), zeros);
            for (int i = 0; i < 40; i++)
                x = sl_relu(g, sl_linear(g, x, w, SL_NO_VALUE));
            sl_graph_output(g, "y", x);
            status = sl_graph_finish(g);
            if (status == SL_OK)
                status = sl_graph_partition(g, &(sl_split_spec){ .kind = SL_SPLIT_EQUAL, .stages = 3 }, &partition);
        }
        sl_alloc_fail_after(-1);
        sl_partition_destroy(partition);
        sl_graph_destroy(g);
        if (status == SL_OK)
            break;
        assert_int_equal(status, SL_ERR_MEMORY);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_carry_their_scopes_and_stay_unique),
        cmocka_unit_test(a_parameter_asked_for_twice_is_one),
        cmocka_unit_test(shapes_follow_from_the_arguments),
        cmocka_unit_test(errors_name_the_node_and_the_shapes),
        cmocka_unit_test(refuses_what_is_no_graph),
        cmocka_unit_test(refuses_a_value_that_does_not_exist_yet),
        cmocka_unit_test(refuses_a_loss_that_is_no_scalar),
        cmocka_unit_test(the_dump_shows_nodes_attributes_and_what_is_unused),
        cmocka_unit_test(survives_running_out_of_memory_anywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
