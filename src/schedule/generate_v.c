/* Generators for two stages a rank in a V: ZBVZeroBubble and DualPipeV. Both are phases of repeated steps. */
#include "schedule/generate.h"

/* 0 is the rank's stage on the way down, 1 the one on the way up. F0B1 is both in one action; W_OLDEST is the W of the
 * first I that has none yet. */
typedef enum step { F0, F1, I0, I1, W0, W1, B0, B1, F0B1, F1B0, W_OLDEST } step;

enum { NEXT_F, NEXT_B, NEXT_W };

typedef struct v_rank {
    sl_action_list *out;
    int microbatches;
    int stage[2];
    int64_t next[2][3]; /* per stage the next microbatch of F, of I or B, and of W */
    size_t oldest;      /* no I before this place of out lacks its W_OLDEST */
} v_rank;

/* What a step does to one stage. */
typedef struct step_part {
    sl_kind kind;
    int chunk;
    int counter;
} step_part;

static int step_parts(step which, step_part parts[2])
{
    static const step_part singles[] = {
        [F0] = { SL_KIND_F, 0, NEXT_F }, [F1] = { SL_KIND_F, 1, NEXT_F }, [I0] = { SL_KIND_I, 0, NEXT_B },
        [I1] = { SL_KIND_I, 1, NEXT_B }, [W0] = { SL_KIND_W, 0, NEXT_W }, [W1] = { SL_KIND_W, 1, NEXT_W },
        [B0] = { SL_KIND_B, 0, NEXT_B }, [B1] = { SL_KIND_B, 1, NEXT_B },
    };
    if (which == W_OLDEST)
        return 0;
    if (which == F0B1 || which == F1B0) {
        parts[0] = singles[which == F0B1 ? F0 : F1];
        parts[1] = singles[which == F0B1 ? B1 : B0];
        return 2;
    }
    parts[0] = singles[which];
    return 1;
}

/* The place of the first I without a W_OLDEST; the length of the list if there is none. */
static size_t find_oldest(v_rank *v)
{
    while (v->oldest < v->out->count && !sl_action_is(v->out->actions[v->oldest], SL_KIND_I))
        v->oldest++;
    return v->oldest;
}

static sl_status run_step(v_rank *v, step which)
{
    if (which == W_OLDEST) {
        size_t place = find_oldest(v);
        if (place == v->out->count)
            return SL_OK;
        v->oldest++;
        sl_action i = v->out->actions[place];
        return sl_action_list_add(v->out, SL_KIND_W, i.stage, i.microbatch);
    }
    step_part parts[2];
    sl_action actions[2];
    int count = step_parts(which, parts);
    for (int i = 0; i < count; i++) {
        int64_t microbatch = v->next[parts[i].chunk][parts[i].counter]++;
        if (microbatch >= v->microbatches)
            return SL_OK; /* steps in pairs never get here: see sl_generate_dual_pipe_v() */
        actions[i] = sl_make(parts[i].kind, v->stage[parts[i].chunk], (int)microbatch);
    }
    if (count == 2)
        actions[0] =
            sl_action_overlap(actions[0].stage, actions[0].microbatch, actions[1].stage, actions[1].microbatch);
    return sl_action_list_push(v->out, actions[0]);
}

/* Whether the step has anything left to do. */
static bool step_is_live(v_rank *v, step which)
{
    step_part parts[2];
    if (which == W_OLDEST)
        return find_oldest(v) < v->out->count;
    for (int i = 0, n = step_parts(which, parts); i < n; i++) {
        if (v->next[parts[i].chunk][parts[i].counter] < v->microbatches)
            return true;
    }
    return false;
}

/* Runs the steps `times` times over. Once all their microbatches are past the last one it only counts on, so that the
 * work is that of the actions made and not of the ranks. */
static sl_status repeat(v_rank *v, int64_t times, const step *steps, int count)
{
    sl_status status = SL_OK;
    for (int64_t done_times = 0; done_times < times; done_times++) {
        bool live = false;
        for (int i = 0; i < count; i++)
            live = live || step_is_live(v, steps[i]);
        if (!live) {
            step_part parts[2];
            for (int i = 0; i < count; i++) {
                for (int p = 0, n = step_parts(steps[i], parts); p < n; p++)
                    v->next[parts[p].chunk][parts[p].counter] += times - done_times;
            }
            break;
        }
        for (int i = 0; i < count; i++)
            SL_TRY(run_step(v, steps[i]));
    }
done:
    return status;
}

#define REPEAT(v, times, ...)                                                                                          \
    SL_TRY(repeat((v), (times), (const step[]){ __VA_ARGS__ }, (int)(sizeof((step[]){ __VA_ARGS__ }) / sizeof(step))))

static v_rank v_rank_make(const sl_plan *plan, int rank, sl_action_list *out)
{
    return (v_rank){
        .out = out,
        .microbatches = plan->microbatches,
        .stage = { sl_placement_stage(SL_PLACEMENT_V, plan->ranks, rank, 0),
                   sl_placement_stage(SL_PLACEMENT_V, plan->ranks, rank, 1) },
    };
}

/* Written for enough microbatches to fill the pipeline; with fewer, the steps of those that are not there are left out.
 */
sl_status sl_generate_zbv(const sl_plan *plan, int rank, sl_action_list *out)
{
    sl_status status = SL_OK;
    v_rank v = v_rank_make(plan, rank, out);
    int after = plan->ranks - 1 - rank; /* ranks below this one in the V */
    int fills = 2 * plan->ranks - 1;
    int64_t microbatches = plan->microbatches > fills ? plan->microbatches : fills;

    REPEAT(&v, 2 * after + 1, F0);
    REPEAT(&v, rank, F1, F0);
    REPEAT(&v, after + 1, F1, I1, W1);
    REPEAT(&v, microbatches - fills + rank, F0, I0, W0, F1, I1, W1);
    REPEAT(&v, after, I0, W0, F1, I1, W1);
    REPEAT(&v, rank, I0, I1); /* W is left for the gaps at the end */
    REPEAT(&v, after + 1, I0, W0);
    REPEAT(&v, rank, W1);
    REPEAT(&v, rank, W0);
done:
    return status;
}

sl_status sl_generate_dual_pipe_v(const sl_plan *plan, int rank, sl_action_list *out)
{
    sl_status status = SL_OK;
    v_rank v = v_rank_make(plan, rank, out);
    int after = plan->ranks - 1 - rank;
    int fills = 2 * plan->ranks;
    /* Its pairs of F and B start when the pipeline is full. If it never is, this order waits less. */
    if (plan->microbatches < fills)
        return sl_generate_zbv(plan, rank, out);

    REPEAT(&v, (int64_t)2 * after, F0);
    REPEAT(&v, rank + 1, F0, F1);
    REPEAT(&v, after, I1, W_OLDEST, F1);

    int pairs = plan->microbatches - fills + rank + 1; /* 1 or more */
    if (after == 0) {
        REPEAT(&v, 1, F0, B1, F1B0); /* at the tip of the V the first pair runs apart: nothing waits to be hidden */
        pairs--;
    }
    REPEAT(&v, pairs, F0B1, F1B0);
    REPEAT(&v, after, B1, F1B0);

    /* The last backwards are split: half of this phase runs B, the rest I with its W kept for the gaps that follow. */
    int half = (rank + 1) / 2;
    REPEAT(&v, half, B1, B0);
    if (rank % 2 == 0)
        REPEAT(&v, 1, B1, I0);
    REPEAT(&v, half, I1, I0);
    REPEAT(&v, after, W_OLDEST, I0);
    REPEAT(&v, (int64_t)2 * plan->ranks, W_OLDEST);
done:
    return status;
}
