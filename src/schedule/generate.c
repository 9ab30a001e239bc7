/* Generators by name: the list of them, what they accept, placements. */
#include "schedule/generate.h"

#include "base/text.h"

#include <inttypes.h>
#include <string.h>

#define MAX_ACTIONS ((int64_t)1 << 31)

typedef struct schedule_generator {
    const char *name;
    sl_placement placement;
    int default_chunks;
    int chunks;  /* 0: any number of stages a rank; else exactly this many */
    int actions; /* of one microbatch in one stage, at most: F, I, W is 3 */
    sl_generate_rank run;
    const char *why; /* if chunks is not 0 */
} schedule_generator;

static const schedule_generator generators[] = {
    { "GPipe", SL_PLACEMENT_LOOP, 1, 1, 2, sl_generate_gpipe, "LoopedBFS is the same for several" },
    { "1F1B", SL_PLACEMENT_LOOP, 1, 1, 2, sl_generate_1f1b, "Interleaved1F1B is the same for several" },
    { "Interleaved1F1B", SL_PLACEMENT_LOOP, 2, 0, 2, sl_generate_interleaved_1f1b, NULL },
    { "LoopedBFS", SL_PLACEMENT_LOOP, 2, 0, 2, sl_generate_looped_bfs, NULL },
    { "InterleavedZeroBubble", SL_PLACEMENT_LOOP, 2, 0, 3, sl_generate_interleaved_zero_bubble, NULL },
    { "ZBVZeroBubble", SL_PLACEMENT_V, 2, 2, 3, sl_generate_zbv, "one on the way down, one on the way up" },
    { "DualPipeV", SL_PLACEMENT_V, 2, 2, 3, sl_generate_dual_pipe_v, "one on the way down, one on the way up" },
    { "ForwardOnly", SL_PLACEMENT_LOOP, 1, 0, 1, sl_generate_forward, NULL },
    { "ForwardOnlyV", SL_PLACEMENT_V, 2, 0, 1, sl_generate_forward, NULL },
};

enum { GENERATOR_COUNT = sizeof generators / sizeof *generators };

const char *sl_generator_name(int index)
{
    return index >= 0 && index < GENERATOR_COUNT ? generators[index].name : NULL;
}

/* The next letter or digit of a name, as a small letter; 0 at its end. */
static int next_letter(const char **name)
{
    while (**name == '-' || **name == '_' || **name == ' ')
        ++*name;
    int letter = sl_case_lower(**name);
    if (letter)
        ++*name;
    return letter;
}

static bool same_name(const char *a, const char *b)
{
    int left;
    do {
        left = next_letter(&a);
        if (left != next_letter(&b))
            return false;
    } while (left);
    return true;
}

static sl_status find_generator(const char *name, const schedule_generator **out)
{
    static const char prefix[] = "Schedule"; /* the names of PyTorch's classes have it */
    const char *bare = sl_case_compare(name, prefix, sizeof prefix - 1) == 0 ? name + sizeof prefix - 1 : name;
    for (int i = 0; i < GENERATOR_COUNT; i++) {
        if (same_name(bare, generators[i].name)) {
            *out = &generators[i];
            return SL_OK;
        }
    }
    char known[256] = "";
    size_t used = 0;
    for (int i = 0; i < GENERATOR_COUNT; i++)
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", generators[i].name);
    return sl_fail(SL_ERR_ARGUMENT, "there is no schedule '%.100s'; there are %s", name, known);
}

static sl_status check_plan(const schedule_generator *made_by, const sl_plan *plan)
{
    if (plan->ranks < 1)
        return sl_fail(SL_ERR_ARGUMENT, "%s: %d ranks: 1 or more are needed", made_by->name, plan->ranks);
    if (plan->microbatches < 1)
        return sl_fail(SL_ERR_ARGUMENT, "%s: %d microbatches: 1 or more are needed", made_by->name, plan->microbatches);
    if (plan->chunks < 1)
        return sl_fail(SL_ERR_ARGUMENT, "%s: %d stages a rank: 1 or more are needed", made_by->name, plan->chunks);
    if (made_by->chunks != 0 && plan->chunks != made_by->chunks)
        return sl_fail(SL_ERR_ARGUMENT, "%s: %d stages a rank: it needs exactly %d (%s)", made_by->name, plan->chunks,
                       made_by->chunks, made_by->why);
    int64_t stages = (int64_t)plan->ranks * plan->chunks;
    if (stages > SL_MAX_STAGES)
        return sl_fail(SL_ERR_ARGUMENT, "%s: %" PRId64 " stages: at most %d are possible", made_by->name, stages,
                       SL_MAX_STAGES);
    if (stages * plan->microbatches > MAX_ACTIONS / made_by->actions)
        return sl_fail(SL_ERR_ARGUMENT, "%s: %" PRId64 " stages and %d microbatches make more than %" PRId64 " actions",
                       made_by->name, stages, plan->microbatches, MAX_ACTIONS);
    return SL_OK;
}

sl_status sl_schedule_generate(const sl_generate_options *options, sl_schedule **out)
{
    sl_status status = SL_OK;
    sl_schedule_builder *builder = NULL;
    const schedule_generator *made_by = NULL;

    if (!options)
        return sl_fail(SL_ERR_ARGUMENT, "a generator needs options: NULL was given");
    SL_TRY(find_generator(options->name ? options->name : "", &made_by));
    sl_plan plan = {
        .ranks = options->ranks,
        .chunks = options->stages_per_rank ? options->stages_per_rank : made_by->default_chunks,
        .microbatches = options->microbatches,
        .placement = made_by->placement,
    };
    SL_TRY(check_plan(made_by, &plan));
    SL_TRY(sl_schedule_builder_create(plan.ranks, &builder));
    for (int rank = 0; rank < plan.ranks; rank++) {
        sl_action_list *list = &builder->lists[rank];
        int actions = options->forward_only ? 1 : made_by->actions;
        SL_TRY(sl_action_list_reserve(list, (size_t)plan.chunks * (size_t)plan.microbatches * (size_t)actions));
        SL_TRY((options->forward_only ? sl_generate_forward : made_by->run)(&plan, rank, list));
    }
    SL_TRY(sl_schedule_builder_finish(builder, out));
done:
    sl_schedule_builder_destroy(builder);
    return status;
}

int sl_placement_rank(sl_placement placement, int ranks, int stage)
{
    int place = stage % ranks;
    bool upwards = placement == SL_PLACEMENT_V && stage / ranks % 2 == 1;
    return upwards ? ranks - 1 - place : place;
}

sl_status sl_placement_parse(const char *text, sl_placement *out)
{
    if (strcmp(text, "loop") != 0 && strcmp(text, "v") != 0)
        return sl_fail(SL_ERR_ARGUMENT, "placement '%.40s' is not known: loop or v", text);
    *out = text[0] == 'v' ? SL_PLACEMENT_V : SL_PLACEMENT_LOOP;
    return SL_OK;
}

static sl_status check_placement(sl_placement placement, int ranks, int stages)
{
    if (placement != SL_PLACEMENT_LOOP && placement != SL_PLACEMENT_V)
        return sl_fail(SL_ERR_ARGUMENT, "placement %d is not known", (int)placement);
    if (ranks < 1 || ranks > SL_MAX_RANKS || stages < 0 || stages > SL_MAX_STAGES)
        return sl_fail(SL_ERR_ARGUMENT, "%d stages on %d ranks", stages, ranks);
    if (placement == SL_PLACEMENT_V && stages % ranks != 0)
        return sl_fail(SL_ERR_ARGUMENT, "%d stages on %d ranks: a V needs as many stages on every rank", stages, ranks);
    return SL_OK;
}

sl_status sl_placement_map(sl_placement placement, int ranks, int stages, int *rank_of)
{
    sl_status status = check_placement(placement, ranks, stages);
    for (int stage = 0; status == SL_OK && stage < stages; stage++)
        rank_of[stage] = sl_placement_rank(placement, ranks, stage);
    return status;
}

sl_status sl_placement_list(sl_placement placement, int ranks, int stages, int rank, int *stages_of, int *count)
{
    sl_status status = check_placement(placement, ranks, stages);
    int found = 0;
    if (status == SL_OK && (rank < 0 || rank >= ranks))
        status = sl_fail(SL_ERR_ARGUMENT, "there is no rank %d among %d", rank, ranks);
    if (status != SL_OK)
        return status;
    for (int stage; (stage = sl_placement_stage(placement, ranks, rank, found)) < stages;)
        stages_of[found++] = stage;
    *count = found;
    return SL_OK;
}

int sl_placement_stage(sl_placement placement, int ranks, int rank, int index)
{
    bool upwards = placement == SL_PLACEMENT_V && index % 2 == 1;
    return index * ranks + (upwards ? ranks - 1 - rank : rank);
}
