/* PyTorch 2.15's lowered schedules (tests/data/schedules-2.15): read, proved, simulated, drawn and written again; and what
 * ours are beside them. */
#include "make.h"

#include <dirent.h>

enum { MOST_STAGES = 64 };

typedef struct reference {
    char path[1024], options[64]; /* "default", "recv", "sends1+recv", ... */
    char name[128];               /* of the case: "1F1B_pp2_mb4_v1" */
    char generator[64];
    int ranks, microbatches, stages_per_rank;
} reference;

static const char *folder(void)
{
    static char path[512];
    const char *data = getenv("SLUICE_DATA");
    snprintf(path, sizeof path, "%s/schedules-2.15", data ? data : "tests/data");
    return path;
}

static bool parse_name(const char *file, reference *out)
{
    char ending[8] = "";
    if (sscanf(file, "%63[^_]_pp%d_mb%d_v%d.%63[^.].%7s", out->generator, &out->ranks, &out->microbatches,
               &out->stages_per_rank, out->options, ending) != 6 ||
        strcmp(ending, "csv") != 0)
        return false;
    snprintf(out->name, sizeof out->name, "%.*s", (int)(strchr(file, '.') - file), file);
    snprintf(out->path, sizeof out->path, "%s/%s", folder(), file);
    return strcmp(out->options, "compute") != 0 && strcmp(out->options, "slots") != 0;
}

/* Calls visit for each lowered file of a case; returns how many there were. */
static int visit_all(void (*visit)(const reference *given))
{
    DIR *dir = opendir(folder());
    int count = 0;
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));) {
        reference each;
        if (!parse_name(entry->d_name, &each))
            continue;
        visit(&each);
        count++;
    }
    closedir(dir);
    return count;
}

static sl_schedule *load(const char *path)
{
    sl_schedule *schedule = NULL;
    if (sl_schedule_load_csv(path, &schedule) != SL_OK)
        fail_msg("%s", sl_error_message());
    return schedule;
}

static char *read_text(const char *path)
{
    FILE *file = fopen(path, "r");
    char *text = calloc(1, 1 << 20);
    assert_non_null(file);
    assert_true(fread(text, 1, (1 << 20) - 1, file) > 0);
    fclose(file);
    return text;
}

static sl_status check_over_links(const sl_schedule *schedule, int capacity, sl_violation *violation)
{
    return sl_schedule_check(schedule, &(sl_check_options){ .limit_links = true, .link_capacity = capacity },
                             violation);
}

/* ---- Its files ------------------------------------------------------------------------------------ */

static void assert_order_is_ours(const reference *given, const sl_schedule *theirs)
{
    sl_schedule *ours = generate(given->generator, given->ranks, given->microbatches, given->stages_per_rank);
    for (int rank = 0; rank < given->ranks; rank++) {
        int64_t count, our_count, next = 0;
        const sl_action *cells = sl_schedule_actions(theirs, rank, &count);
        const sl_action *our_cells = sl_schedule_actions(ours, rank, &our_count);
        for (int64_t i = 0; i < count; i++) {
            if (sl_kind_class_of((sl_kind)cells[i].kind) != SL_CLASS_COMPUTE)
                continue;
            assert_true(next < our_count);
            assert_true(sl_action_equal(cells[i], our_cells[next++]));
        }
        assert_int_equal(next, our_count);
    }
    sl_schedule_destroy(ours);
}

static void accept(const reference *given)
{
    sl_schedule *theirs = load(given->path);
    for (int capacity = -1; capacity <= 2; capacity++) {
        sl_check_options options = { .limit_links = capacity >= 0, .link_capacity = capacity };
        if (sl_schedule_check(theirs, &options, NULL) != SL_OK)
            fail_msg("%s, capacity %d: %s", given->path, capacity, sl_error_message());
    }
    assert_order_is_ours(given, theirs);
    char *text = read_text(given->path);
    assert_csv(theirs, text); /* the same bytes again */
    free(text);
}

static void proves_all_of_its_files_and_writes_them_again(void **state)
{
    (void)state;
    assert_int_equal(visit_all(accept), 167);
}

static void draw(const reference *given)
{
    static const sl_view_format formats[] = { SL_VIEW_TEXT, SL_VIEW_TRACE, SL_VIEW_SVG, SL_VIEW_HTML };
    sl_schedule *theirs = load(given->path);
    sl_timeline *timeline = NULL;
    sl_costs costs;
    sl_costs_init(&costs);
    costs.latency = costs.stage.unshard = costs.stage.reduce_grad = 0.25;
    if (sl_schedule_simulate(theirs, &costs, NULL, 0, &timeline) != SL_OK)
        fail_msg("%s: %s", given->path, sl_error_message());
    for (int rank = 0; rank < given->ranks; rank++) { /* a wait ends with what it waits for, and holds up its rank */
        int64_t count;
        const sl_action *cells = sl_schedule_actions(theirs, rank, &count);
        const sl_span *spans = sl_timeline_spans(timeline, rank);
        double now = 0, reduced = 0;
        for (int64_t i = 0; i < count; i++) {
            if (sl_kind_class_of((sl_kind)cells[i].kind) == SL_CLASS_COMPUTE)
                assert_true(spans[i].start >= now);
            if (cells[i].kind == SL_KIND_REDUCE_GRAD)
                reduced = spans[i].end;
            if (cells[i].kind == SL_KIND_WAIT_REDUCE_GRAD)
                assert_true(spans[i].end >= reduced);
            if (cells[i].kind == SL_KIND_WAIT_SEND_F || cells[i].kind == SL_KIND_WAIT_SEND_B ||
                cells[i].kind == SL_KIND_WAIT_REDUCE_GRAD)
                now = spans[i].end;
        }
    }
    for (size_t f = 0; f < sizeof formats / sizeof *formats && strcmp(given->options, "default") == 0; f++) {
        char *text = NULL;
        size_t length = 0;
        FILE *file = open_memstream(&text, &length);
        assert_int_equal(sl_timeline_write(timeline, formats[f], NULL, file), SL_OK);
        fclose(file);
        assert_true(length > 100);
        if (formats[f] == SL_VIEW_TRACE)
            assert_non_null(strstr(text, "WAIT_REDUCE_GRAD"));
        free(text);
    }
    sl_timeline_destroy(timeline);
    sl_schedule_destroy(theirs);
}

static void simulates_and_draws_them(void **state)
{
    (void)state;
    visit_all(draw);
}

static void counts_the_slots_that_it_counts(void **state)
{
    (void)state;
    char path[1024], line[512], name[128] = "", each[256];
    int rows = 0, rank, slots, of_microbatches;
    snprintf(path, sizeof path, "%s/slots.tsv", folder());
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof line, file)); /* the heading */
    while (fgets(line, sizeof line, file)) {
        int per_rank[16], per_stage[MOST_STAGES], wanted = 0, at = 0, used;
        char stages[128];
        assert_int_equal(
            sscanf(line, "%127s %d %127s %d %d %255s", name, &rank, stages, &slots, &of_microbatches, each), 6);
        snprintf(path, sizeof path, "%s/%s.default.csv", folder(), name);
        sl_schedule *theirs = load(path);
        assert_int_equal(sl_schedule_count_slots(theirs, per_rank, per_stage), SL_OK);
        assert_int_equal(per_rank[rank], slots);
        for (int stage = 0; stage < sl_schedule_stages(theirs); stage++) {
            if (sl_schedule_rank_of(theirs, stage) != rank)
                continue;
            assert_int_equal(sscanf(each + at, "%d%n", &wanted, &used), 1);
            assert_int_equal(per_stage[stage], wanted);
            at += used + 1;
        }
        sl_schedule_destroy(theirs);
        rows++;
    }
    fclose(file);
    assert_true(rows > 40);
}

/* ---- Files with one thing changed ------------------------------------------------------------------ */

static void refuses_what_breaks_its_rules_and_what_cannot_end(void **state)
{
    (void)state;
    char path[1024], line[512], name[128], loads[16], budget[16], runs[16];
    int kinds[3] = { 0 };
    snprintf(path, sizeof path, "%s/odd.tsv", folder());
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof line, file));
    while (fgets(line, sizeof line, file)) {
        assert_int_equal(sscanf(line, "%127s %15s %15s %15s", name, loads, budget, runs), 4);
        sl_schedule *schedule = NULL;
        snprintf(path, sizeof path, "%s/%s", folder(), name);
        sl_status status = sl_schedule_load_csv(path, &schedule);
        sl_status anywhere = status == SL_OK ? sl_schedule_check(schedule, NULL, NULL) : status;
        sl_status tight = status == SL_OK ? check_over_links(schedule, 0, NULL) : status;
        if ((anywhere == SL_OK) != (strcmp(loads, "accepted") == 0))
            fail_msg("%s: torch has %s it; %s", name, loads, sl_error_message());
        if ((tight == SL_OK) != (strcmp(loads, "accepted") == 0 && strcmp(runs, "yes") == 0))
            fail_msg("%s over links of capacity 0: %s", name, sl_error_message());
        if (strncmp(name, "cycle", 5) == 0)
            assert_non_null(strstr(sl_error_message(), "deadlock"));
        kinds[name[0] == 'b' ? 0 : name[0] == 'c' ? 1 : 2]++;
        sl_schedule_destroy(schedule);
    }
    fclose(file);
    assert_int_equal(kinds[0], 14);
    assert_int_equal(kinds[1], 3);
    assert_int_equal(kinds[2], 3);
}

static void refused(const char *csv, int rank, int cell, const char *text, const char *reason)
{
    sl_violation violation;
    sl_schedule *schedule = parse(csv);
    assert_int_equal(sl_schedule_check(schedule, NULL, &violation), SL_ERR_SCHEDULE);
    assert_int_equal(violation.rank, rank);
    assert_int_equal(violation.cell, cell);
    assert_string_equal(violation.text, text);
    if (!strstr(violation.reason, reason))
        fail_msg("expected '%s', it says: %s", reason, violation.reason);
    sl_schedule_destroy(schedule);
}

static void says_what_is_wrong_with_a_wait(void **state)
{
    (void)state;
    refused("0F0,0WAIT_SEND_F0,0SEND_F0\n1RECV_F0,1F0\n", 0, 1, "0WAIT_SEND_F0", "its SEND_F has to come before it");
    refused("0F0,0SEND_F0,0WAIT_SEND_F0,0WAIT_SEND_F0\n1RECV_F0,1F0\n", 0, 3, "0WAIT_SEND_F0",
            "already in the schedule");
    refused("0F0,0SEND_F0,0F1,0SEND_F1,0WAIT_SEND_F0\n1RECV_F0,1F0,1RECV_F1,1F1\n", 0, 5, "0WAIT_SEND_F1",
            "is missing");
    refused("0F0,0SEND_F0\n1RECV_F0,1F0,1WAIT_SEND_F0\n", 1, 2, "1WAIT_SEND_F0", "nothing to send");
    refused("0F0,0WAIT_SEND_F0\n1F0\n", 0, 1, "0WAIT_SEND_F0", "its SEND_F has to come before it");
    refused("0F0,0B0,0WAIT_REDUCE_GRAD,0REDUCE_GRAD\n", 0, 2, "0WAIT_REDUCE_GRAD",
            "no reduction of the stage is on its");
    refused("0F0,1F0,1B0,1REDUCE_GRAD,0B0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD,1WAIT_REDUCE_GRAD\n", 0, 5, "0REDUCE_GRAD",
            "1WAIT_REDUCE_GRAD has to come before it");
    refused("0F0,1F0,1B0,1REDUCE_GRAD,1WAIT_REDUCE_GRAD,0B0,0REDUCE_GRAD\n", 0, 7, "0WAIT_REDUCE_GRAD", "is missing");
    sl_action action;
    assert_int_not_equal(sl_action_parse("2WAIT_SEND_F", 12, &action), SL_OK);
    assert_int_not_equal(sl_action_parse("2WAIT_REDUCE_GRAD7", 18, &action), SL_OK);
    assert_int_not_equal(sl_action_parse("2WAIT", 5, &action), SL_OK);
}

/* ---- Ours with waits ------------------------------------------------------------------------------- */

static int compare_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The cells of the rank, sorted, one a line. */
static char *sorted(const sl_schedule *schedule, int rank)
{
    int64_t count;
    const sl_action *actions = sl_schedule_actions(schedule, rank, &count);
    char **cells = calloc((size_t)count, sizeof *cells), *text = NULL;
    size_t length = 0;
    FILE *file = open_memstream(&text, &length);
    for (int64_t i = 0; i < count; i++) {
        cells[i] = calloc(1, SL_ACTION_TEXT_SIZE);
        sl_action_text(actions[i], cells[i], SL_ACTION_TEXT_SIZE);
    }
    qsort(cells, (size_t)count, sizeof *cells, compare_text);
    for (int64_t i = 0; i < count; i++) {
        fprintf(file, "%s\n", cells[i]);
        free(cells[i]);
    }
    fclose(file);
    free(cells);
    return text;
}

static void compare_lowered(const reference *given)
{
    bool late = strcmp(given->options, "rgdefer") == 0;
    if (!late && strcmp(given->options, "default") != 0)
        return;
    sl_schedule *theirs = load(given->path), *lowered = NULL;
    sl_schedule *compute = generate(given->generator, given->ranks, given->microbatches, given->stages_per_rank);
    sl_lower_options options = { .waits = late ? SL_WAIT_LATE : SL_WAIT_AT_ONCE };
    assert_int_equal(sl_schedule_lower(compute, &options, &lowered), SL_OK);
    for (int capacity = 0; capacity < 2; capacity++) {
        if (check_over_links(lowered, capacity, NULL) != SL_OK)
            fail_msg("%s: %s", given->name, sl_error_message());
    }
    for (int rank = 0; rank < given->ranks; rank++) {
        char *mine = sorted(lowered, rank), *other = sorted(theirs, rank);
        assert_string_equal(mine, other);
        free(mine);
        free(other);
    }
    sl_schedule_destroy(theirs);
    sl_schedule_destroy(lowered);
    sl_schedule_destroy(compute);
}

static void lowers_to_its_actions_with_waits(void **state)
{
    (void)state;
    visit_all(compare_lowered);
}

static void puts_waits_where_they_hold_nobody_up(void **state)
{
    (void)state;
    sl_schedule *given = parse("0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD\n1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD\n"),
                *made;
    assert_int_equal(sl_schedule_add_waits(given, SL_WAIT_AT_ONCE, &made), SL_OK);
    sl_schedule *again = NULL;
    assert_int_equal(sl_schedule_add_waits(made, SL_WAIT_LATE, &again), SL_ERR_ARGUMENT);
    assert_int_equal(sl_schedule_drop_send_waits(made, &again), SL_OK);
    assert_csv(again, "0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD\n"
                      "1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD,1WAIT_REDUCE_GRAD\n");
    assert_csv(made, "0F0,0SEND_F0,0RECV_B0,0B0,0WAIT_SEND_F0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD\n"
                     "1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD,1WAIT_REDUCE_GRAD,1WAIT_SEND_B0\n");
    sl_schedule_destroy(given);
}

/* Receives do not move past a wait: the peer's wait may need them. */
static void tightening_keeps_what_could_run_able_to(const reference *given)
{
    sl_schedule *theirs = load(given->path), *tight = NULL;
    assert_int_equal(sl_schedule_tighten_messages(theirs, NULL, 0, &tight), SL_OK);
    if (check_over_links(tight, 0, NULL) != SL_OK)
        fail_msg("%s: %s", given->path, sl_error_message());
    sl_schedule_destroy(tight);
    sl_schedule_destroy(theirs);
}

static void tightens_around_waits(void **state)
{
    (void)state;
    visit_all(tightening_keeps_what_could_run_able_to);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(proves_all_of_its_files_and_writes_them_again),
        cmocka_unit_test(simulates_and_draws_them),
        cmocka_unit_test(counts_the_slots_that_it_counts),
        cmocka_unit_test(refuses_what_breaks_its_rules_and_what_cannot_end),
        cmocka_unit_test(says_what_is_wrong_with_a_wait),
        cmocka_unit_test(lowers_to_its_actions_with_waits),
        cmocka_unit_test(puts_waits_where_they_hold_nobody_up),
        cmocka_unit_test(tightens_around_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
