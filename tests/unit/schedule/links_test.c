/* Links that hold few messages, with stages that send to and receive from several others: the checker against a literal
 * run with one queue an edge, messages put and taken one by one in random order. */
#include <sluice/schedule.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RANKS = 4, MAX_EDGES = 8, MAX_QUEUE = 64, UNLIMITED = -1 };

static uint32_t random_state = 1;

static int random_below(int limit)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (int)((random_state >> 8) % (uint32_t)limit);
}

typedef struct queue {
    int microbatches[MAX_QUEUE];
    int put, taken;
} queue;

typedef struct world {
    const sl_schedule *schedule;
    const sl_edge *edges;
    int edge_count;
    int capacity;
    int64_t at[MAX_RANKS];
    bool left[MAX_RANKS][MAX_EDGES]; /* messages of the action at hand that are still to be put or taken */
    bool entered[MAX_RANKS];
    queue queues[2][MAX_EDGES]; /* F, B */
} world;

static const sl_action *action_of(const world *w, int rank)
{
    int64_t count;
    const sl_action *actions = sl_schedule_actions(w->schedule, rank, &count);
    return w->at[rank] < count ? &actions[w->at[rank]] : NULL;
}

static bool is_send(const sl_action *a)
{
    return a->kind == SL_KIND_SEND_F || a->kind == SL_KIND_SEND_B;
}

static int way_of(const sl_action *a)
{
    return a->kind == SL_KIND_SEND_B || a->kind == SL_KIND_RECV_B;
}

/* The edges over which the message action goes to or comes from another rank. */
static void enter(world *w, int rank, const sl_action *a)
{
    bool message = sl_kind_class_of((sl_kind)a->kind) == SL_CLASS_MESSAGE;
    bool out = a->kind == SL_KIND_SEND_F || a->kind == SL_KIND_RECV_B;
    w->entered[rank] = true;
    for (int e = 0; e < w->edge_count; e++) {
        bool cross =
            sl_schedule_rank_of(w->schedule, w->edges[e].from) != sl_schedule_rank_of(w->schedule, w->edges[e].to);
        w->left[rank][e] = message && cross && (out ? w->edges[e].from : w->edges[e].to) == a->stage;
    }
}

static bool try_send(world *w, int rank, int edge, const sl_action *a)
{
    queue *q = &w->queues[way_of(a)][edge];
    int receiver = sl_schedule_rank_of(w->schedule, way_of(a) ? w->edges[edge].from : w->edges[edge].to);
    if (w->capacity == 0) {
        const sl_action *other = action_of(w, receiver);
        bool meets = other && w->entered[receiver] && !is_send(other) && way_of(other) == way_of(a) &&
                     sl_kind_class_of((sl_kind)other->kind) == SL_CLASS_MESSAGE && w->left[receiver][edge];
        if (!meets)
            return false;
        w->left[receiver][edge] = false;
    } else {
        if (w->capacity != UNLIMITED && q->put - q->taken >= w->capacity)
            return false;
        q->microbatches[q->put++] = a->microbatch;
    }
    w->left[rank][edge] = false;
    return true;
}

static bool try_receive(world *w, int rank, int edge, const sl_action *a)
{
    queue *q = &w->queues[way_of(a)][edge];
    if (w->capacity == 0 || q->put == q->taken)
        return false;
    assert_int_equal(q->microbatches[q->taken], a->microbatch); /* the checker has looked at the order */
    q->taken++;
    w->left[rank][edge] = false;
    return true;
}

/* One thing that the rank can do now; false if there is none. */
static bool try_step(world *w, int rank)
{
    const sl_action *a = action_of(w, rank);
    if (!a)
        return false;
    if (!w->entered[rank]) {
        enter(w, rank, a);
        return true;
    }
    bool any = false;
    int start = random_below(w->edge_count);
    for (int i = 0; i < w->edge_count; i++) {
        int e = (start + i) % w->edge_count;
        if (!w->left[rank][e])
            continue;
        any = true;
        if (is_send(a) ? try_send(w, rank, e, a) : try_receive(w, rank, e, a))
            return true;
    }
    if (any)
        return false;
    w->at[rank]++;
    w->entered[rank] = false;
    return true;
}

/* Whether all ranks come to their end. */
static bool literal_run(const sl_schedule *schedule, const sl_edge *edges, int edge_count, int capacity)
{
    world w = { .schedule = schedule, .edges = edges, .edge_count = edge_count, .capacity = capacity };
    int ranks = sl_schedule_ranks(schedule);
    for (bool moved = true; moved;) {
        moved = false;
        int start = random_below(ranks);
        for (int i = 0; i < ranks && !moved; i++)
            moved = try_step(&w, (start + i) % ranks);
    }
    for (int rank = 0; rank < ranks; rank++) {
        if (action_of(&w, rank))
            return false;
    }
    return true;
}

/* The schedule with two cells of one rank swapped, a few times over. */
static sl_schedule *shuffled(const sl_schedule *schedule)
{
    sl_schedule_builder *builder = NULL;
    sl_schedule *made = NULL;
    assert_int_equal(sl_schedule_builder_create(sl_schedule_ranks(schedule), &builder), SL_OK);
    for (int rank = 0; rank < sl_schedule_ranks(schedule); rank++) {
        int64_t count;
        const sl_action *actions = sl_schedule_actions(schedule, rank, &count);
        sl_action *copy = malloc((size_t)count * sizeof *copy);
        memcpy(copy, actions, (size_t)count * sizeof *copy);
        for (int swaps = random_below(3); swaps > 0; swaps--) {
            int a = random_below((int)count - 1);
            sl_action kept = copy[a];
            copy[a] = copy[a + 1];
            copy[a + 1] = kept;
        }
        for (int64_t i = 0; i < count; i++)
            assert_int_equal(sl_schedule_builder_add(builder, rank, copy[i]), SL_OK);
        free(copy);
    }
    assert_int_equal(sl_schedule_builder_finish(builder, &made), SL_OK);
    sl_schedule_builder_destroy(builder);
    return made;
}

static void compare(const sl_schedule *schedule, const sl_edge *edges, int edge_count, int *dead, int *alive)
{
    for (int capacity = UNLIMITED; capacity <= 2; capacity++) {
        sl_check_options options = {
            .edges = edges, .edge_count = edge_count, .limit_links = capacity >= 0, .link_capacity = capacity
        };
        sl_violation violation = { .reason = "" };
        sl_status status = sl_schedule_check(schedule, &options, &violation);
        if (status != SL_OK && strncmp(violation.reason, "deadlock", 8) != 0)
            return; /* wrong in itself: there is nothing to run */
        bool ends = literal_run(schedule, edges, edge_count, capacity);
        if (ends != (status == SL_OK)) {
            sl_status written = sl_schedule_write_csv(schedule, stderr);
            fail_msg("capacity %d: the run %s, the checker says %s (%d)", capacity, ends ? "ends" : "is stuck",
                     status == SL_OK ? "valid" : sl_error_message(), written);
        }
        ++*(ends ? alive : dead);
    }
}

static void agrees_with_a_literal_run(void **state)
{
    (void)state;
    static const sl_edge skips[] = { { 0, 1 }, { 1, 2 }, { 2, 3 }, { 0, 2 }, { 0, 3 }, { 1, 3 } };
    static const struct {
        const char *name;
        int ranks;
        int stages_per_rank;
    } cases[] = { { "1F1B", 4, 1 }, { "GPipe", 4, 1 }, { "Interleaved1F1B", 2, 2 }, { "ZBVZeroBubble", 2, 2 } };
    int dead = 0;
    int alive = 0;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        for (int microbatches = 1; microbatches <= 4; microbatches++) {
            for (int edge_count = 3; edge_count <= 6; edge_count++) {
                sl_generate_options options = { .name = cases[c].name,
                                                .ranks = cases[c].ranks,
                                                .microbatches = microbatches,
                                                .stages_per_rank = cases[c].stages_per_rank };
                sl_lower_options lowering = { .edges = skips, .edge_count = edge_count, .no_unshard = true };
                sl_schedule *compute = NULL;
                sl_schedule *lowered = NULL;
                assert_int_equal(sl_schedule_generate(&options, &compute), SL_OK);
                assert_int_equal(sl_schedule_lower(compute, &lowering, &lowered), SL_OK);
                compare(lowered, skips, edge_count, &dead, &alive);
                for (int turn = 0; turn < 200; turn++) {
                    sl_schedule *other = shuffled(lowered);
                    compare(other, skips, edge_count, &dead, &alive);
                    sl_schedule_destroy(other);
                }
                sl_schedule_destroy(compute);
                sl_schedule_destroy(lowered);
            }
        }
    }
    print_message("%d runs end, %d are stuck\n", alive, dead);
    assert_true(alive > 1000);
    assert_true(dead > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_a_literal_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
