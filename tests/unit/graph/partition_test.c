/* Partition: where stages are cut, what crosses the cuts, and what several stages share. */
#include <sluice/graph.h>

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

/* Five layers "h.0" .. "h.4" of linear and relu, a loss at the end; skip: h.0's result is added in h.2 and h.4. */
static sl_graph *layers(bool skip, bool marks)
{
    sl_graph *g = NULL;
    assert_int_equal(sl_graph_create(&g), SL_OK);
    sl_value x = sl_graph_input(g, "x", SL_F32, DIMS(3, 4)), first = SL_NO_VALUE;
    for (int i = 0; i < 5; i++) {
        if (marks && i > 0)
            sl_split_mark(g);
        sl_graph_push_index(g, "h", i);
        x = sl_relu(g, sl_linear(g, x, sl_graph_param(g, "weight", DIMS(4, 4), zeros), SL_NO_VALUE));
        if (i == 0)
            first = x;
        if (skip && (i == 2 || i == 4))
            x = sl_add(g, x, first);
        sl_graph_pop(g);
    }
    sl_graph_loss(g, sl_mean(g, x, NULL, 0, false));
    assert_int_equal(sl_graph_finish(g), SL_OK);
    return g;
}

static sl_partition *cut(const sl_graph *g, sl_split_spec spec)
{
    sl_partition *partition = NULL;
    assert_int_equal(sl_graph_partition(g, &spec, &partition), SL_OK);
    return partition;
}

static void assert_refused(const sl_graph *g, sl_split_spec spec, const char *message)
{
    sl_partition *partition = NULL;
    assert_int_not_equal(sl_graph_partition(g, &spec, &partition), SL_OK);
    assert_null(partition);
    assert_string_equal(sl_error_message(), message);
}

static void assert_edges(const sl_partition *partition, const char *expected)
{
    char text[512] = "";
    int count;
    const sl_value_edge *edges = sl_partition_edges(partition, &count);
    for (int i = 0; i < count; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%d-%d %s%s", i ? "; " : "", edges[i].from,
                 edges[i].to, edges[i].name, edges[i].differentiable ? "" : " (no gradient)");
    assert_string_equal(text, expected);
}

static void cuts_before_and_after_modules(void **state)
{
    (void)state;
    sl_graph *g = layers(false, false);
    const sl_split_point points[] = { { "h.3", true }, { "h.1", false } };
    sl_partition *partition = cut(g, (sl_split_spec){ .kind = SL_SPLIT_POINTS, .points = points, .point_count = 2 });
    int count;
    const int *cuts = sl_partition_cuts(partition, &count);
    assert_int_equal(count, 2);
    assert_string_equal(sl_graph_node_name(g, cuts[0]), "h.1.linear");
    assert_string_equal(sl_graph_node_name(g, cuts[1]), "h.4.linear");
    assert_edges(partition, "0-1 h.0.relu; 1-2 h.3.relu");
    sl_partition_destroy(partition);
    sl_graph_destroy(g);
}

static void cuts_at_marks_and_at_listed_nodes(void **state)
{
    (void)state;
    sl_graph *g = layers(false, true);
    sl_partition *marked = cut(g, (sl_split_spec){ .kind = SL_SPLIT_MARKS });
    assert_int_equal(sl_partition_stage_count(marked), 5);
    int count;
    const int *cuts = sl_partition_cuts(marked, &count);
    sl_partition *listed = cut(g, (sl_split_spec){ .kind = SL_SPLIT_NODES, .nodes = cuts, .node_count = count });
    assert_edges(listed, "0-1 h.0.relu; 1-2 h.1.relu; 2-3 h.2.relu; 3-4 h.3.relu");
    sl_partition_destroy(marked);
    sl_partition_destroy(listed);
    sl_graph_destroy(g);
}

static void refuses_cuts_that_make_no_sense(void **state)
{
    (void)state;
    sl_graph *g = layers(false, false);
    const sl_split_point unknown = { "h.7", false }, start = { "h.0", false }, end = { "mean", true };
    const sl_split_point same[] = { { "h.1", true }, { "h.2", false } };
    assert_refused(g, (sl_split_spec){ .kind = SL_SPLIT_POINTS, .points = &unknown, .point_count = 1 },
                   "split point 'h.7': the graph has no such module or node");
    assert_refused(g, (sl_split_spec){ .kind = SL_SPLIT_POINTS, .points = &start, .point_count = 1 },
                   "stage 0 would be empty: two cuts at node 0");
    assert_refused(g, (sl_split_spec){ .kind = SL_SPLIT_POINTS, .points = &end, .point_count = 1 },
                   "stage 1 would be empty: two cuts at node 11");
    assert_refused(g, (sl_split_spec){ .kind = SL_SPLIT_POINTS, .points = same, .point_count = 2 },
                   "stage 1 would be empty: two cuts at node 4");
    assert_refused(g, (sl_split_spec){ .kind = SL_SPLIT_NODES, .nodes = (int[]){ 4, 3 }, .node_count = 2 },
                   "split at node 3: it must lie after node 4 and before node 11");
    assert_refused(g, (sl_split_spec){ .kind = SL_SPLIT_EQUAL, .stages = 12 },
                   "12 stages of a graph with 11 nodes: some would be empty");
    assert_refused(g, (sl_split_spec){ .kind = SL_SPLIT_EQUAL, .stages = 0 }, "a split into 0 stages");
    sl_graph_destroy(g);
}

static void refuses_a_stage_that_only_looks_at_values(void **state)
{
    (void)state;
    sl_graph *g = NULL;
    assert_int_equal(sl_graph_create(&g), SL_OK);
    sl_value x = sl_relu(g, sl_graph_input(g, "x", SL_F32, DIMS(3, 4)));
    sl_graph_output(g, "y", sl_exp(g, sl_transpose(g, x, 0, 1)));
    assert_int_equal(sl_graph_finish(g), SL_OK);
    assert_refused(g, (sl_split_spec){ .kind = SL_SPLIT_NODES, .nodes = (int[]){ 1, 2 }, .node_count = 2 },
                   "stage 1 would be empty: nothing to run from 'permute' to 'permute'");
    sl_graph_destroy(g);
}

static void a_value_with_several_users_is_handed_on(void **state)
{
    (void)state;
    sl_graph *g = layers(true, true);
    sl_partition *partition = cut(g, (sl_split_spec){ .kind = SL_SPLIT_MARKS });
    assert_edges(partition, "0-1 h.0.relu; 1-2 h.0.relu; 1-2 h.1.relu; 2-3 h.2.add; 2-4 h.0.relu; 3-4 h.3.relu");
    sl_partition_destroy(partition);
    sl_graph_destroy(g);
}

static void values_without_gradient_fan_out(void **state)
{
    (void)state;
    sl_graph *g = NULL;
    assert_int_equal(sl_graph_create(&g), SL_OK);
    sl_value x = sl_graph_input(g, "x", SL_F32, DIMS(4)), w = sl_graph_param(g, "w", DIMS(4), zeros);
    sl_value mask = sl_exp(g, x), y = sl_mul(g, w, mask);
    for (int i = 0; i < 2; i++) {
        sl_split_mark(g);
        y = sl_mul(g, y, mask);
    }
    sl_graph_loss(g, sl_sum(g, y, NULL, 0, false));
    assert_int_equal(sl_graph_finish(g), SL_OK);
    sl_partition *partition = cut(g, (sl_split_spec){ .kind = SL_SPLIT_MARKS });
    assert_edges(partition, "0-1 exp (no gradient); 0-1 mul; 0-2 exp (no gradient); 1-2 mul_2");
    sl_partition_destroy(partition);
    sl_graph_destroy(g);
}

static void finds_tied_parameters_and_root_inputs_of_every_stage(void **state)
{
    (void)state;
    sl_graph *g = NULL;
    assert_int_equal(sl_graph_create(&g), SL_OK);
    sl_value ids = sl_graph_input(g, "ids", SL_I32, DIMS(2, 3)), targets = sl_graph_input(g, "t", SL_I32, DIMS(2, 3));
    sl_graph_input(g, "unused", SL_F32, DIMS(1));
    sl_value table = sl_graph_param(g, "wte.weight", DIMS(7, 4), zeros);
    sl_value turned = sl_transpose(g, table, 0, 1); /* made early, used late: belongs to its user */
    sl_value x = sl_embedding(g, ids, table);
    sl_split_mark(g);
    x = sl_relu(g, x);
    sl_split_mark(g);
    sl_graph_loss(g, sl_cross_entropy(g, sl_affine(g, x, turned, SL_NO_VALUE), targets, -100));
    assert_int_equal(sl_graph_finish(g), SL_OK);
    sl_partition *partition = cut(g, (sl_split_spec){ .kind = SL_SPLIT_MARKS });
    assert_edges(partition, "0-1 embedding; 1-2 relu");
    int count;
    const sl_tied_param *tied = sl_partition_tied_params(partition, &count);
    assert_int_equal(count, 1);
    assert_string_equal(tied->name, "wte.weight");
    assert_int_equal(tied->stage_count, 2);
    assert_int_equal(tied->stages[0], 0);
    assert_int_equal(tied->stages[1], 2);
    const sl_root_input *roots = sl_partition_root_inputs(partition, &count);
    assert_int_equal(count, 3);
    assert_string_equal(roots[0].name, "ids");
    assert_int_equal(roots[0].stages[0], 0);
    assert_string_equal(roots[1].name, "t");
    assert_int_equal(roots[1].stages[0], 2);
    assert_int_equal(roots[2].stage_count, 0);
    sl_partition_destroy(partition);
    sl_graph_destroy(g);
}

/* The smallest possible maximum, by trying every set of cuts. */
static double best_by_trying(const double *costs, int count, int first, int stages)
{
    double sum = 0, best = 1e300;
    if (stages == 1) {
        for (int i = first; i < count; i++)
            sum += costs[i];
        return sum;
    }
    for (int end = first + 1; end <= count - (stages - 1); end++) {
        sum += costs[end - 1];
        double rest = best_by_trying(costs, count, end, stages - 1);
        double worst = sum > rest ? sum : rest;
        best = worst < best ? worst : best;
    }
    return best;
}

static void the_equal_cost_split_is_the_best_there_is(void **state)
{
    (void)state;
    sl_graph *g = layers(false, false);
    int nodes = sl_graph_node_count(g);
    srand(7);
    for (int round = 0; round < 50; round++) {
        double costs[16];
        for (int i = 0; i < nodes; i++)
            costs[i] = rand() % 100;
        for (int stages = 1; stages <= 5; stages++) {
            sl_partition *partition =
                cut(g, (sl_split_spec){
                           .kind = SL_SPLIT_EQUAL, .stages = stages, .node_costs = costs, .link_bytes_per_s = 1e30 });
            int count;
            const int *cuts = sl_partition_cuts(partition, &count);
            double worst = 0;
            for (int s = 0; s < stages; s++) {
                double sum = 0;
                for (int n = s ? cuts[s - 1] : 0; n < (s < count ? cuts[s] : nodes); n++)
                    sum += costs[n];
                worst = sum > worst ? sum : worst;
            }
            assert_true(worst == best_by_trying(costs, nodes, 0, stages));
            sl_partition_destroy(partition);
        }
    }
    sl_graph_destroy(g);
}

static void the_model_of_costs_puts_the_cut_in_the_middle(void **state)
{
    (void)state;
    sl_graph *g = layers(false, false);
    sl_partition *partition = cut(g, (sl_split_spec){ .kind = SL_SPLIT_EQUAL, .stages = 2 });
    sl_cost a = sl_partition_stage_cost(partition, 0), b = sl_partition_stage_cost(partition, 1);
    assert_true(a.bytes < 1.6 * b.bytes && b.bytes < 1.6 * a.bytes);
    sl_partition_destroy(partition);
    sl_graph_destroy(g);
}

static void refuses_a_state_in_two_stages(void **state)
{
    (void)state;
    sl_graph *g = NULL;
    assert_int_equal(sl_graph_create(&g), SL_OK);
    sl_value q = sl_graph_input(g, "q", SL_F32, DIMS(1, 1, 2, 4)), at = sl_graph_input(g, "at", SL_I32, 0, NULL);
    sl_value k = sl_graph_state(g, "k", SL_F32, DIMS(1, 8, 2, 4)), v = sl_graph_state(g, "v", SL_F32, DIMS(1, 8, 2, 4));
    for (int i = 0; i < 2; i++) {
        q = sl_attention_cached(g, q, q, q, k, v, at, NULL);
        if (i == 0)
            sl_split_mark(g);
    }
    sl_graph_output(g, "y", q);
    assert_int_equal(sl_graph_finish(g), SL_OK);
    assert_refused(g, (sl_split_spec){ .kind = SL_SPLIT_MARKS },
                   "state 'k' is used by stages 0 and 1: it cannot be in both");
    sl_graph_destroy(g);
}

static void a_partition_outlives_its_graph(void **state)
{
    (void)state;
    sl_graph *g = layers(false, true);
    sl_partition *partition = cut(g, (sl_split_spec){ .kind = SL_SPLIT_MARKS });
    sl_graph_destroy(g);
    assert_edges(partition, "0-1 h.0.relu; 1-2 h.1.relu; 2-3 h.2.relu; 3-4 h.3.relu");
    sl_partition_destroy(partition);
}

static void the_picture_has_a_box_for_each_stage_and_module(void **state)
{
    (void)state;
    sl_graph *g = layers(false, true);
    sl_partition *partition = cut(g, (sl_split_spec){ .kind = SL_SPLIT_MARKS });
    char *text = NULL;
    size_t size;
    FILE *file = open_memstream(&text, &size);
    sl_graph_dump_dot(g, partition, file);
    fclose(file);
    assert_non_null(strstr(text, "label=\"stage 4\""));
    assert_non_null(strstr(text, "label=\"h\""));
    int open = 0, close = 0;
    for (const char *c = text; *c; c++) {
        open += *c == '{';
        close += *c == '}';
    }
    assert_int_equal(open, close);
    assert_int_equal(open, 1 + 5 * 3); /* the graph; per stage its box, "h" and the index */
    free(text);
    sl_partition_destroy(partition);
    sl_graph_destroy(g);
}

static void the_text_has_every_stage_edge_and_tied_parameter(void **state)
{
    (void)state;
    sl_graph *g = layers(false, true);
    sl_partition *partition = cut(g, (sl_split_spec){ .kind = SL_SPLIT_MARKS });
    char *text = NULL;
    size_t size;
    FILE *file = open_memstream(&text, &size);
    sl_partition_dump(partition, file);
    fclose(file);
    assert_non_null(strstr(text, "stage 4: "));
    assert_non_null(strstr(text, "'h.4.linear' to "));
    assert_non_null(strstr(text, "edge 0 -> 1: h.0.relu, "));
    assert_non_null(strstr(text, " each way\n"));
    free(text);
    sl_partition_destroy(partition);
    sl_graph_destroy(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cuts_before_and_after_modules),
        cmocka_unit_test(cuts_at_marks_and_at_listed_nodes),
        cmocka_unit_test(refuses_cuts_that_make_no_sense),
        cmocka_unit_test(refuses_a_stage_that_only_looks_at_values),
        cmocka_unit_test(a_value_with_several_users_is_handed_on),
        cmocka_unit_test(values_without_gradient_fan_out),
        cmocka_unit_test(finds_tied_parameters_and_root_inputs_of_every_stage),
        cmocka_unit_test(the_equal_cost_split_is_the_best_there_is),
        cmocka_unit_test(the_model_of_costs_puts_the_cut_in_the_middle),
        cmocka_unit_test(refuses_a_state_in_two_stages),
        cmocka_unit_test(a_partition_outlives_its_graph),
        cmocka_unit_test(the_picture_has_a_box_for_each_stage_and_module),
        cmocka_unit_test(the_text_has_every_stage_edge_and_tied_parameter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
