/* Schedules: what each rank runs, in order. Pure data; knows no device and no transport. */
#ifndef SLUICE_SCHEDULE_H
#define SLUICE_SCHEDULE_H

#include <sluice/base.h>

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Actions --------------------------------------------------------------------------------- */

#define SL_MAX_STAGES 65535            /* stages 0 to 65534 */
#define SL_MAX_MICROBATCHES 2147483647 /* microbatches 0 to 2147483646 */
#define SL_MAX_RANKS SL_MAX_STAGES     /* each rank has at least one stage */

/* What a kind is about: it computes, is about a message to or from another rank, or handles a stage's weights as a
 * whole. */
typedef enum sl_kind_class { SL_CLASS_COMPUTE, SL_CLASS_MESSAGE, SL_CLASS_WEIGHTS } sl_kind_class;

/* Name and text form, class. COMPUTE and MESSAGE kinds carry a microbatch, WEIGHTS kinds none. */
#define SL_KIND_LIST(X)                                                                                                \
    X(F, COMPUTE)                /* forward */                                                                         \
    X(I, COMPUTE)                /* gradient of the inputs */                                                          \
    X(W, COMPUTE)                /* gradient of the weights */                                                         \
    X(B, COMPUTE)                /* I and W in one go */                                                               \
    X(SEND_F, MESSAGE)           /* outputs of F to later stages on other ranks */                                     \
    X(RECV_F, MESSAGE)           /* inputs of F from earlier stages on other ranks */                                  \
    X(SEND_B, MESSAGE)           /* gradients of the inputs back to earlier stages on other ranks */                   \
    X(RECV_B, MESSAGE)           /* gradients of the outputs from later stages on other ranks */                       \
    X(WAIT_SEND_F, MESSAGE)      /* what SEND_F sent has left */                                                       \
    X(WAIT_SEND_B, MESSAGE)      /* what SEND_B sent has left */                                                       \
    X(UNSHARD, WEIGHTS)          /* gather the stage's sharded weights */                                              \
    X(RESHARD, WEIGHTS)          /* give the gathered weights back */                                                  \
    X(REDUCE_GRAD, WEIGHTS)      /* reduce the stage's weight gradients over its replicas */                           \
    X(WAIT_REDUCE_GRAD, WEIGHTS) /* the reduction has ended */                                                         \
    X(OVERLAP_F_B, COMPUTE)      /* F of one stage together with B of another */

typedef enum sl_kind {
#define SL_KIND_ENUM(name, class_) SL_KIND_##name,
    SL_KIND_LIST(SL_KIND_ENUM)
#undef SL_KIND_ENUM
        SL_KIND_COUNT
} sl_kind;

/* One cell of a schedule; a plain value of 16 bytes. An OVERLAP_F_B is the F of stage and microbatch together with the
 * B of b_stage and b_microbatch; all other kinds have b_stage 0 and b_microbatch -1. */
typedef struct sl_action {
    int32_t microbatch; /* -1 if the kind carries none */
    int32_t b_microbatch;
    uint16_t stage;
    uint16_t b_stage;
    uint8_t kind;        /* an sl_kind */
    uint8_t reserved[3]; /* zero */
} sl_action;

/* The longest text form, "(65534F2147483646;65534B2147483646)OVERLAP_F_B", with room to spare. */
#define SL_ACTION_TEXT_SIZE 64

SL_API const char *sl_kind_name(sl_kind kind); /* "SEND_F"; "?" for a value out of range */
SL_API sl_kind_class sl_kind_class_of(sl_kind kind);

/* microbatch is ignored if the kind carries none. Not for OVERLAP_F_B. A stage out of range becomes SL_MAX_STAGES, which
 * is no stage: the builder refuses such an action. */
SL_API sl_action sl_action_make(sl_kind kind, int stage, int microbatch);
SL_API sl_action sl_action_overlap(int f_stage, int f_microbatch, int b_stage, int b_microbatch);
SL_API bool sl_action_equal(sl_action a, sl_action b);

/* The compute actions inside one: for OVERLAP_F_B its F and its B, for other compute kinds the action itself.
 * Returns how many were written into parts: 0 (not a compute action), 1 or 2. */
SL_API int sl_action_parts(sl_action action, sl_action parts[2]);

/* Writes "2F0", "1UNSHARD" or "(0F3;3B1)OVERLAP_F_B" into text and returns it; cut if it does not fit
 * (SL_ACTION_TEXT_SIZE is always enough). */
SL_API char *sl_action_text(sl_action action, char *text, size_t size);

/* Reads the text form of one action; text need not end in NUL. All of it must be the action. There must be a
 * microbatch if the kind carries one, and none otherwise. */
SL_API SL_MUST_CHECK sl_status sl_action_parse(const char *text, size_t length, sl_action *out);

/* ---- Schedules ------------------------------------------------------------------------------- */

/* For each rank the ordered list of its actions. Opaque and immutable once made, so any number of threads may read it.
 * It need not be correct; sl_schedule_check() proves whether it is. */
typedef struct sl_schedule sl_schedule;

SL_API void sl_schedule_destroy(sl_schedule *schedule); /* NULL is fine */

SL_API int sl_schedule_ranks(const sl_schedule *schedule);
SL_API int sl_schedule_stages(const sl_schedule *schedule);       /* highest stage + 1; 0 without actions */
SL_API int sl_schedule_microbatches(const sl_schedule *schedule); /* highest microbatch + 1; 0 without any */
SL_API int64_t sl_schedule_size(const sl_schedule *schedule);     /* actions of all ranks together */

/* Actions of one rank, borrowed from the schedule; *count (may be NULL) is set to their number. */
SL_API const sl_action *sl_schedule_actions(const sl_schedule *schedule, int rank, int64_t *count);

/* The rank on which the stage first appears (ranks in order); -1 for a stage that appears nowhere or is out of range.
 */
SL_API int sl_schedule_rank_of(const sl_schedule *schedule, int stage);

SL_API bool sl_schedule_has_messages(const sl_schedule *schedule); /* any SEND or RECV: it is lowered */
SL_API bool sl_schedule_has_backward(const sl_schedule *schedule); /* any I, W or B; false: forward only */
SL_API bool sl_schedule_has_kind(const sl_schedule *schedule, sl_kind kind);
SL_API bool sl_schedule_equal(const sl_schedule *a, const sl_schedule *b);

/* Makes a schedule action by action. Ranks may be filled in any order. */
typedef struct sl_schedule_builder sl_schedule_builder;

SL_API SL_MUST_CHECK sl_status sl_schedule_builder_create(int ranks, sl_schedule_builder **out);
SL_API void sl_schedule_builder_destroy(sl_schedule_builder *builder); /* NULL is fine */
/* Appends to the rank's list; refuses a rank, kind, stage or microbatch out of range. */
SL_API SL_MUST_CHECK sl_status sl_schedule_builder_add(sl_schedule_builder *builder, int rank, sl_action action);
/* Makes the schedule and leaves the builder with empty lists. */
SL_API SL_MUST_CHECK sl_status sl_schedule_builder_finish(sl_schedule_builder *builder, sl_schedule **out);

/* What is wrong with a schedule, and at which place. */
typedef struct sl_violation {
    int rank;     /* -1 if no rank is at fault */
    int64_t cell; /* position in that rank's list, from 0; the length of the list if an action is missing */
    char text[SL_ACTION_TEXT_SIZE]; /* the cell, or the missing action, as text; may be empty */
    char reason[256];
} sl_violation;

/* ---- Files: PyTorch's CSV, one line per rank, one cell per action, an empty cell is idle --------- */

/* Idle cells, blanks around a cell, CRLF, and blank lines at the end are dropped. Everything else that is not an action
 * is an error that names the file, the rank (the line, from 0) and the cell (the column, from 0, idle ones counted); so
 * is a rank without actions. On success the caller owns *out. */
SL_API SL_MUST_CHECK sl_status sl_schedule_load_csv(const char *path, sl_schedule **out);
/* From an open stream, to its end; name stands for the file in messages. */
SL_API SL_MUST_CHECK sl_status sl_schedule_read_csv(FILE *file, const char *name, sl_schedule **out);
/* The same. On failure *violation (may be NULL) says which cell is wrong; its rank is -1 if the error is in no cell. */
SL_API SL_MUST_CHECK sl_status sl_schedule_read_csv_at(FILE *file, const char *name, sl_violation *violation,
                                                       sl_schedule **out);
/* From memory; text need not end in NUL. */
SL_API SL_MUST_CHECK sl_status sl_schedule_parse_csv(const char *text, size_t length, const char *name,
                                                     sl_schedule **out);
/* Each line ends in a newline; there are no idle cells. */
SL_API SL_MUST_CHECK sl_status sl_schedule_write_csv(const sl_schedule *schedule, FILE *file);
SL_API SL_MUST_CHECK sl_status sl_schedule_save_csv(const sl_schedule *schedule, const char *path);

/* ---- Generators ------------------------------------------------------------------------------ */

/* How stages lie on ranks: LOOP 0 1 2 3 | 0 1 2 3, V 0 1 2 3 | 3 2 1 0 for 8 stages on 4 ranks. */
typedef enum sl_placement { SL_PLACEMENT_LOOP, SL_PLACEMENT_V } sl_placement;

SL_API int sl_placement_rank(sl_placement placement, int ranks, int stage); /* of arguments that are right */
/* The rank's stages in rising order: its index-th (from 0). */
SL_API int sl_placement_stage(sl_placement placement, int ranks, int rank, int index);

/* "loop" or "v". */
SL_API SL_MUST_CHECK sl_status sl_placement_parse(const char *text, sl_placement *out);
/* The rank of each of `stages` stages, into rank_of. A V needs as many stages on every rank. */
SL_API SL_MUST_CHECK sl_status sl_placement_map(sl_placement placement, int ranks, int stages, int *rank_of);
/* The reverse: the stages of one rank in rising order, into stages_of, which has room for all of them. */
SL_API SL_MUST_CHECK sl_status sl_placement_list(sl_placement placement, int ranks, int stages, int rank,
                                                 int *stages_of, int *count);

typedef struct SL_NAMED_FIELDS sl_generate_options {
    /* One of sl_generator_name(), in any case; '-', '_', ' ' and a "Schedule" before it are ignored. */
    const char *name;
    int ranks;           /* 1 or more */
    int microbatches;    /* 1 or more */
    int stages_per_rank; /* 0: the generator's default */
    bool forward_only;   /* F alone, in the placement of the named generator */
} sl_generate_options;

/* "GPipe", "1F1B", ...; NULL past the last. */
SL_API const char *sl_generator_name(int index);

/* The compute order; no messages (see the passes). */
SL_API SL_MUST_CHECK sl_status sl_schedule_generate(const sl_generate_options *options, sl_schedule **out);

/* ---- Edges and lowering ---------------------------------------------------------------------- */

/* A value made in stage `from` and used in the later stage `to`: F goes along it, its gradient comes back. A SEND_F of
 * a stage carries what goes out on all its edges to other ranks, a RECV_F what comes in on all; SEND_B and RECV_B
 * likewise backwards. Between stages on one rank no message is needed. */
typedef struct sl_edge {
    int from;
    int to;
} sl_edge;

/* In all that follows edges NULL means that each stage feeds the next; a list that is empty but not NULL means no
 * edges. Lists are borrowed for the call. A list with from >= to, a stage out of range or the same edge twice is
 * refused.
 *
 * Each pass makes a new schedule from `in` and leaves `in` as it is; on success the caller owns *out. */

/* Joins an I and the W of the same stage and microbatch into B if W follows I immediately. */
SL_API SL_MUST_CHECK sl_status sl_schedule_merge_backward(const sl_schedule *in, sl_schedule **out);

/* Adds UNSHARD before and RESHARD after the use of each stage, so that at most max_active (0: 3) stages of a rank are
 * unsharded at once, always those that are used next. An OVERLAP_F_B of two stages needs 2. */
SL_API SL_MUST_CHECK sl_status sl_schedule_add_unshard(const sl_schedule *in, int max_active, sl_schedule **out);

/* Adds REDUCE_GRAD after the last W or B of each stage. */
SL_API SL_MUST_CHECK sl_status sl_schedule_add_reduce_grad(const sl_schedule *in, sl_schedule **out);

/* Adds SEND after the compute action that makes the values and RECV before the one that needs them, both at the moment
 * the message is made if F, I and W take one unit of time: all ranks follow one order of events. So with edges that
 * give each stage at most one message in and one out (as neighbor edges do) the result cannot deadlock over links of
 * any capacity, 0 included. With other edges it cannot deadlock over unlimited links; for limited ones ask
 * sl_schedule_check(). Fails if `in` already has messages, if its compute order cannot run, or if one stage is fed by
 * stages that run their microbatches in different orders. */
SL_API SL_MUST_CHECK sl_status sl_schedule_add_messages(const sl_schedule *in, const sl_edge *edges, int edge_count,
                                                        sl_schedule **out);

/* Moves each RECV as late and each SEND as early as is safe: past computation, but never past another message. The
 * order of a rank's messages alone decides whether there is a deadlock, so a schedule that could run over links of some
 * capacity still can. */
SL_API SL_MUST_CHECK sl_status sl_schedule_tighten_messages(const sl_schedule *in, const sl_edge *edges, int edge_count,
                                                            sl_schedule **out);

/* Where the wait for a reduction stands. */
typedef enum sl_wait_place {
    SL_WAIT_NONE,    /* nowhere: the step's end waits */
    SL_WAIT_AT_ONCE, /* directly after REDUCE_GRAD */
    SL_WAIT_LATE,    /* before the rank's next REDUCE_GRAD, the last one at the end of the list */
} sl_wait_place;

/* Adds the waits that runtimes ask for whose sends have to be waited for, PyTorch 2.15's among them. WAIT_SEND_F comes
 * directly after the stage's own I or B of the microbatch: by then its message has been received. All other waits for
 * sends stand at the end of the list, in the order of their sends. WAIT_REDUCE_GRAD stands as `reductions` says. What
 * could run over links of some capacity still can. Fails if `in` already has waits. */
SL_API SL_MUST_CHECK sl_status sl_schedule_add_waits(const sl_schedule *in, sl_wait_place reductions,
                                                     sl_schedule **out);

/* Removes WAIT_SEND_F and WAIT_SEND_B, for runtimes whose sends hold nobody up. */
SL_API SL_MUST_CHECK sl_status sl_schedule_drop_send_waits(const sl_schedule *in, sl_schedule **out);

typedef struct SL_NAMED_FIELDS sl_lower_options {
    const sl_edge *edges;
    int edge_count;
    int max_active_stages; /* 0: 3 */
    bool no_unshard;       /* weights are not sharded */
    bool no_reduce_grad;   /* there are no replicas */
    bool merge_backward;   /* first join adjacent I and W into B */
    sl_wait_place waits;   /* other than SL_WAIT_NONE: add waits, those for reductions at this place */
} sl_lower_options;

/* The passes in their order; options NULL means all defaults. */
SL_API SL_MUST_CHECK sl_status sl_schedule_lower(const sl_schedule *in, const sl_lower_options *options,
                                                 sl_schedule **out);

/* ---- Checker --------------------------------------------------------------------------------- */

typedef struct SL_NAMED_FIELDS sl_check_options {
    const sl_edge *edges;
    int edge_count;
    bool limit_links;  /* false: a send never blocks, and link_capacity is ignored */
    int link_capacity; /* messages that may wait on one edge in one direction; 0: a send waits for its receive */
} sl_check_options;

/* Proves the schedule or returns SL_ERR_SCHEDULE with the first violation (may be NULL); other errors leave it
 * untouched. options NULL means all defaults. Time and memory are linear in the actions and edges. */
SL_API SL_MUST_CHECK sl_status sl_schedule_check(const sl_schedule *schedule, const sl_check_options *options,
                                                 sl_violation *violation);

/* Slots: microbatches resident at once, from F to W or B, counted from the order of a valid schedule. The caller
 * provides per_rank (one int per rank: the sum over its stages at the same moment) and per_stage (one int per stage);
 * either may be NULL. A forward-only schedule needs one slot per stage. */
SL_API SL_MUST_CHECK sl_status sl_schedule_count_slots(const sl_schedule *schedule, int *per_rank, int *per_stage);

/* ---- Simulator ------------------------------------------------------------------------------- */

/* Costs of one stage. Times in any one unit; memory in any one unit. */
typedef struct sl_stage_cost {
    double f, i, w, b; /* of one microbatch, like the next two */
    double activation; /* memory held from the start of F to the end of W or B */
    double release;    /* share of it (0 to 1) that is already free when I ends */
    double unshard, reshard, reduce_grad;
    double
        gather; /* of weights that replicas update in parts: a rank gathers its stages one after another from the start
                      on, and a stage first runs when its own have come */
} sl_stage_cost;

typedef struct SL_NAMED_FIELDS sl_costs {
    sl_stage_cost stage;         /* of every stage */
    const sl_stage_cost *stages; /* NULL, or one per stage instead of `stage`; borrowed */
    double latency;              /* of a message */
    double message_size;         /* of every edge */
    const double *edge_sizes; /* NULL, or one per edge, in the order of the list, instead of message_size; borrowed */
    double bandwidth;         /* size per time; 0: unlimited */
    double overlap;           /* share (0 to 1) of the shorter part that OVERLAP_F_B hides */
} sl_costs;

/* F=1 I=1 W=1 B=2, activation 1 of which half is free when I ends, all else 0. */
SL_API void sl_costs_init(sl_costs *costs);
/* Changes what the text names: "F=1,I=1,W=1,B=2,comm=0"; comm is the latency. Further keys: size, bandwidth, unshard,
 * reshard, reduce, gather, overlap, activation, release. */
SL_API SL_MUST_CHECK sl_status sl_costs_parse(const char *text, sl_costs *costs);

/* When each action starts and ends. Keeps a pointer to its schedule, which must outlive it. */
typedef struct sl_timeline sl_timeline;

/* Runs the schedule in time: compute in order on each rank, messages and weight actions beside it. A compute action
 * starts when the rank's previous one has ended, its inputs have arrived and its stage is unsharded. A schedule without
 * messages gets the transfers that its edges imply. A send never blocks. Fails with SL_ERR_SCHEDULE if the
 * order cannot run. costs NULL means the defaults. */
SL_API SL_MUST_CHECK sl_status sl_schedule_simulate(const sl_schedule *schedule, const sl_costs *costs,
                                                    const sl_edge *edges, int edge_count, sl_timeline **out);
SL_API void sl_timeline_destroy(sl_timeline *timeline); /* NULL is fine */

typedef struct sl_span {
    double start, end;
} sl_span;

SL_API const sl_schedule *sl_timeline_schedule(const sl_timeline *timeline); /* borrowed */
/* Of each action of the rank, in the order of sl_schedule_actions(); borrowed from the timeline. A SEND lasts until its
 * last message has arrived, a RECV from when it is posted until everything has arrived. */
SL_API const sl_span *sl_timeline_spans(const sl_timeline *timeline, int rank);
SL_API double sl_timeline_makespan(const sl_timeline *timeline);
SL_API double sl_timeline_bubble(const sl_timeline *timeline, int rank); /* idle share of the makespan; -1: all ranks */
SL_API int sl_timeline_peak_slots(const sl_timeline *timeline, int rank);
SL_API double sl_timeline_peak_memory(const sl_timeline *timeline, int rank); /* activations */

/* What a rank holds from `time` on. */
typedef struct sl_usage {
    double time;
    int slots;
    double memory;
} sl_usage;

/* Calls back at every change of the rank's usage, in order of time, until the callback returns false. */
SL_API void sl_timeline_usage(const sl_timeline *timeline, int rank, bool (*callback)(void *user, sl_usage usage),
                              void *user);

/* The compute actions that a Chrome trace (of a runtime, or a view's) holds, in the order in which they ran, with their
 * times in milliseconds from the first. Microbatch m of the k-th step in the file becomes k * microbatches + m, so that
 * every action is there once. *schedule must outlive *out; the caller destroys both. */
SL_API SL_MUST_CHECK sl_status sl_timeline_load_trace(const char *path, sl_schedule **schedule, sl_timeline **out);

/* One step of a trace, measured and simulated. Row 2r of *schedule and *out is what rank r did. Row 2r + 1 is what it
 * would have done if every action had taken its stage's mean time in the trace, and messages no time. */
typedef struct sl_comparison {
    int64_t step;
    double measured, simulated; /* milliseconds of the step's compute, from its first to its last action */
    double measured_bubble, simulated_bubble; /* of all ranks */
} sl_comparison;

/* step -1: the last one that is complete in the file. *schedule must outlive *out; the caller destroys both. figures may be
 * NULL. */
SL_API SL_MUST_CHECK sl_status sl_timeline_compare_trace(const char *path, int64_t step, sl_schedule **schedule,
                                                         sl_timeline **out, sl_comparison *figures);

/* ---- Views ----------------------------------------------------------------------------------- */

/* enum, ending of the file name */
#define SL_VIEW_LIST(X)                                                                                                \
    X(TEXT, ".txt")   /* a grid of compute actions: one line per rank, time to the right */                            \
    X(TRACE, ".json") /* Chrome/Perfetto trace; one unit of time is shown as one microsecond */                        \
    X(SVG, ".svg")                                                                                                     \
    X(PNG, ".png")                                                                                                     \
    X(PDF, ".pdf")                                                                                                     \
    X(HTML, ".html") /* one interactive page that needs no network */

typedef enum sl_view_format {
#define SL_VIEW_ENUM(name, ending) SL_VIEW_##name,
    SL_VIEW_LIST(SL_VIEW_ENUM)
#undef SL_VIEW_ENUM
} sl_view_format;

/* Zero means defaults throughout. */
typedef struct SL_NAMED_FIELDS sl_view_options {
    const char *title;       /* NULL: "schedule" */
    const char *const *rows; /* names of the ranks, one each; NULL: "rank 0", .. */
    int columns;             /* TEXT: the longest line; 0: as long as it takes */
    bool condense; /* TEXT: instead of many bands of `columns` draw one, with one letter per stretch of time */
    bool color;    /* TEXT: ANSI colors */
    /* Pictures: microbatches of a step in a timeline of several, as sl_timeline_load_trace gives it; labels and figures
     * count within a step, and a line divides the steps. 0: it is one step. */
    int step_microbatches;
} sl_view_options;

/* From the ending of path, in any case. */
SL_API SL_MUST_CHECK sl_status sl_view_format_of(const char *path, sl_view_format *out);

/* Draws the timeline; options NULL means all defaults. */
SL_API SL_MUST_CHECK sl_status sl_timeline_write(const sl_timeline *timeline, sl_view_format format,
                                                 const sl_view_options *options, FILE *file);
/* The same into a file that appears whole or not at all. */
SL_API SL_MUST_CHECK sl_status sl_timeline_save(const sl_timeline *timeline, sl_view_format format,
                                                const sl_view_options *options, const char *path);

/* The cells around the violation as text, with a mark at the one that is wrong. */
SL_API SL_MUST_CHECK sl_status sl_schedule_write_violation(const sl_schedule *schedule, const sl_violation *violation,
                                                           const sl_view_options *options, FILE *file);

#ifdef __cplusplus
}
#endif
#endif
