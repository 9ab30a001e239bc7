/* Who sends what to whom: edges, routes, and programs that can end with the messages that each route holds. */
#include "unit/pipeline/chain.h"

/* ---- Messages -------------------------------------------------------------------------------- */

enum { MAX_ROUTES = 4 * CHAIN_MAX };

/* What is on each route while all ranks run their programs, one instruction after the other. */
typedef struct links {
    bool in_turn;              /* message n needs the slot of message n - capacity */
    int held[MAX_ROUTES];      /* reserved and not yet released */
    int committed[MAX_ROUTES]; /* and not yet received */
    int order[MAX_ROUTES][MICROBATCHES];
    int reserved[MAX_ROUTES], received[MAX_ROUTES], released[MAX_ROUTES];
    int32_t cell[MAX_ROUTES][MICROBATCHES]; /* of each message that was received */
    bool is_released[MAX_ROUTES][MICROBATCHES];
} links;

static bool has_room(const links *on, int route, int capacity)
{
    int before = on->reserved[route] - capacity;
    return on->in_turn ? before < 0 || on->is_released[route][before] : on->held[route] < capacity;
}

static void release(links *on, int route, int32_t cell)
{
    int n = 0;
    while (n < on->received[route] && (on->cell[route][n] != cell || on->is_released[route][n]))
        n++;
    assert_true(n < on->received[route]);
    on->is_released[route][n] = true;
    on->held[route]--;
    on->released[route]++;
}

/* Returns false if the instruction must wait. */
static bool step(const sl_route *routes, const sl_pipeline_instr *instr, links *on)
{
    int i = instr->index;
    switch ((sl_code)instr->code) {
    case SL_CODE_RESERVE:
        if (!has_room(on, i, routes[i].capacity))
            return false;
        on->held[i]++;
        on->order[i][on->reserved[i]++] = instr->microbatch;
        return true;
    case SL_CODE_COMMIT:
        on->committed[i]++;
        return true;
    case SL_CODE_RECEIVE:
        if (on->committed[i] == 0)
            return false;
        on->committed[i]--;
        on->cell[i][on->received[i]] = instr->cell;
        assert_int_equal(on->order[i][on->received[i]++], instr->microbatch);
        return true;
    case SL_CODE_RELEASE:
        release(on, i, instr->cell);
        return true;
    default:
        return true;
    }
}

static void run_all(const sl_pipeline *pipeline, sl_message_place place, bool training)
{
    links on = { .in_turn = place != SL_MESSAGES_ON_HOST };
    int count = 0, done = 0;
    int64_t at[RANKS] = { 0 };
    const sl_route *routes = sl_pipeline_routes(pipeline, &count);
    assert_in_range(count, 1, MAX_ROUTES);
    for (bool moved = true; moved;) {
        moved = false;
        done = 0;
        for (int r = 0; r < RANKS; r++) {
            sl_pipeline_program program = sl_pipeline_get_program(pipeline, r, training);
            while (at[r] < program.instr_count && step(routes, &program.instrs[at[r]], &on)) {
                at[r]++;
                moved = true;
            }
            done += at[r] == program.instr_count;
        }
    }
    assert_int_equal(done, RANKS);
    for (int i = 0; i < count; i++) {
        int messages = routes[i].grad && !training ? 0 : MICROBATCHES;
        assert_int_equal(on.reserved[i], messages);
        assert_int_equal(on.received[i], messages);
        assert_int_equal(on.released[i], messages);
        assert_int_equal(on.held[i], 0);
        assert_int_equal(on.committed[i], 0);
    }
}

static void the_programs_end_with_the_capacities_of_the_routes(void **state)
{
    (void)state;
    for (int i = 0; i < SCHEDULES; i++) {
        for (int place = SL_MESSAGES_ON_HOST; place <= SL_MESSAGES_ON_DEVICE; place++) {
            chain c;
            sl_schedule *schedule = make_schedule(i, &c);
            sl_pipeline_options options = chain_options(&c, schedule);
            options.messages = (sl_message_place)place;
            sl_pipeline *pipeline = compile(&options);
            run_all(pipeline, options.messages, true);
            run_all(pipeline, options.messages, false);
            sl_pipeline_destroy(pipeline);
            sl_schedule_destroy(schedule);
        }
    }
}

static void staged_messages_alone_are_copied(void **state)
{
    (void)state;
    chain c;
    sl_schedule *schedule = make_schedule(1, &c);
    sl_pipeline_options options = chain_options(&c, schedule);
    for (int place = SL_MESSAGES_ON_HOST; place <= SL_MESSAGES_ON_DEVICE; place++) {
        bool staged = place == SL_MESSAGES_STAGED;
        options.messages = (sl_message_place)place;
        sl_pipeline *pipeline = compile(&options);
        for (int r = 0; r < RANKS; r++) {
            sl_pipeline_program program = sl_pipeline_get_program(pipeline, r, true);
            int received = count_code(&program, SL_CODE_RECEIVE), sent = count_code(&program, SL_CODE_COMMIT);
            assert_int_equal(received, (r > 0) * MICROBATCHES + (r < RANKS - 1) * MICROBATCHES);
            assert_int_equal(sent, received);
            assert_int_equal(count_code(&program, SL_CODE_FROM_MESSAGE), staged ? received : 0);
            assert_int_equal(count_code(&program, SL_CODE_TO_MESSAGE), staged ? sent : 0);
        }
        sl_pipeline_destroy(pipeline);
    }
    sl_schedule_destroy(schedule);
}

/* ---- Edges and routes ------------------------------------------------------------------------ */

static void edges_join_makers_with_users(void **state)
{
    (void)state;
    chain c;
    int edge_count = 0, route_count = 0;
    chain_init(&c, 4);
    sl_schedule *schedule = generate("ZBVZeroBubble", 2, 4, 2); /* stages 0 and 3 on rank 0, 1 and 2 on rank 1 */
    sl_pipeline_options options = chain_options(&c, schedule);
    sl_pipeline *pipeline = compile(&options);
    const sl_pipeline_edge *edges = sl_pipeline_edges(pipeline, &edge_count);
    const sl_route *routes = sl_pipeline_routes(pipeline, &route_count);
    assert_int_equal(edge_count, 3);
    assert_int_equal(route_count, 4); /* there and back, for the two edges between ranks */
    for (int e = 0; e < 3; e++) {
        assert_string_equal(edges[e].name, c.names[e][0]);
        assert_int_equal(edges[e].from, e);
        assert_int_equal(edges[e].to, e + 1);
        assert_int_equal(edges[e].output, 0);
        assert_int_equal(edges[e].input, 0);
        assert_int_equal(edges[e].bytes, VALUE_BYTES);
        assert_true(edges[e].has_grad);
        assert_int_equal(edges[e].remote, e != 1);
    }
    for (int i = 0; i < route_count; i++) {
        const sl_pipeline_edge *edge = &edges[routes[i].edge];
        assert_true(edge->remote);
        assert_string_equal(routes[i].name, edge->name);
        assert_int_equal(routes[i].grad, i % 2);
        assert_int_equal(routes[i].from, routes[i].grad ? edge->to : edge->from);
        assert_int_equal(routes[i].to, routes[i].grad ? edge->from : edge->to);
        assert_int_equal(routes[i].src, sl_schedule_rank_of(schedule, routes[i].from));
        assert_int_equal(routes[i].dst, sl_schedule_rank_of(schedule, routes[i].to));
        assert_int_equal(routes[i].bytes, VALUE_BYTES);
        assert_int_equal(routes[i].tie, -1);
        assert_in_range(routes[i].capacity, 1, 4);
    }
    sl_pipeline_destroy(pipeline);
    sl_schedule_destroy(schedule);
}

static void gradients_of_a_value_with_two_users_are_added(void **state)
{
    (void)state;
    chain c;
    int count = 0;
    chain_init(&c, 3);
    c.inputs[2][1] = c.inputs[1][0]; /* the last stage reads h0, too, and asks for it by name */
    c.inputs[2][1].maker = SL_MAKER_BY_NAME;
    sl_schedule *schedule = generate("GPipe", 3, 2, 1);
    sl_pipeline_options options = chain_options(&c, schedule);
    sl_pipeline *pipeline = compile(&options);
    const sl_pipeline_edge *edges = sl_pipeline_edges(pipeline, &count);
    int skips = 0;
    for (int e = 0; e < count; e++)
        skips += edges[e].from == 0 && edges[e].to == 2 && strcmp(edges[e].name, "h0") == 0;
    assert_int_equal(count, 3);
    assert_int_equal(skips, 1);
    for (int r = 0; r < 3; r++) {
        sl_pipeline_program program = sl_pipeline_get_program(pipeline, r, true);
        assert_int_equal(count_code(&program, SL_CODE_ADD), r == 0 ? 2 : 0); /* once a microbatch */
    }
    sl_pipeline_destroy(pipeline);
    sl_schedule_destroy(schedule);
}

static void tied_weights_send_their_gradients_to_each_other(void **state)
{
    (void)state;
    chain c;
    int count = 0, ties = 0;
    chain_init(&c, 4);
    c.weights[0][0].tie = c.weights[3][0].tie = "embedding";
    sl_schedule *schedule = generate("1F1B", 4, 4, 1);
    sl_pipeline_options options = chain_options(&c, schedule);
    sl_pipeline *pipeline = compile(&options);
    const sl_route *routes = sl_pipeline_routes(pipeline, &count);
    for (int i = 0; i < count; i++) {
        if (routes[i].tie < 0)
            continue;
        ties++;
        assert_int_equal(routes[i].tie, 0);
        assert_int_equal(routes[i].edge, -1);
        assert_int_equal(routes[i].from, routes[i].member == 0 ? 0 : 3);
        assert_int_equal(routes[i].to, routes[i].member == 0 ? 3 : 0);
        assert_int_equal(routes[i].bytes, WEIGHT_BYTES);
        assert_string_equal(routes[i].name, "embedding");
    }
    assert_int_equal(ties, 2);
    assert_int_equal(count, 2 * 3 + 2);
    sl_pipeline_destroy(pipeline);
    sl_schedule_destroy(schedule);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_programs_end_with_the_capacities_of_the_routes),
        cmocka_unit_test(staged_messages_alone_are_copied),
        cmocka_unit_test(edges_join_makers_with_users),
        cmocka_unit_test(gradients_of_a_value_with_two_users_are_added),
        cmocka_unit_test(tied_weights_send_their_gradients_to_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
