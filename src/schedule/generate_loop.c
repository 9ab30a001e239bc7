/* Generators for stages that lie on the ranks in a loop: GPipe, 1F1B, LoopedBFS and the interleaved ones. */
#include "schedule/generate.h"

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

sl_status sl_generate_gpipe(const sl_plan *plan, int rank, sl_action_list *out)
{
    sl_status status = SL_OK;
    for (int m = 0; m < plan->microbatches; m++)
        SL_TRY(sl_action_list_add(out, SL_KIND_F, rank, m));
    for (int m = 0; m < plan->microbatches; m++)
        SL_TRY(sl_action_list_add(out, SL_KIND_B, rank, m));
done:
    return status;
}

/* Each rank starts with as many forwards as there are ranks after it, then takes turns. */
sl_status sl_generate_1f1b(const sl_plan *plan, int rank, sl_action_list *out)
{
    sl_status status = SL_OK;
    int warmup = smaller(plan->ranks - 1 - rank, plan->microbatches);
    for (int m = 0; m < warmup; m++)
        SL_TRY(sl_action_list_add(out, SL_KIND_F, rank, m));
    for (int m = 0; m < plan->microbatches; m++) {
        if (warmup + m < plan->microbatches)
            SL_TRY(sl_action_list_add(out, SL_KIND_F, rank, warmup + m));
        SL_TRY(sl_action_list_add(out, SL_KIND_B, rank, m));
    }
done:
    return status;
}

/* Stage by stage all microbatches; backwards the last first. */
sl_status sl_generate_looped_bfs(const sl_plan *plan, int rank, sl_action_list *out)
{
    sl_status status = SL_OK;
    for (int c = 0; c < plan->chunks; c++) {
        for (int m = 0; m < plan->microbatches; m++)
            SL_TRY(sl_action_list_add(out, SL_KIND_F, c * plan->ranks + rank, m));
    }
    for (int c = plan->chunks - 1; c >= 0; c--) {
        for (int m = plan->microbatches - 1; m >= 0; m--)
            SL_TRY(sl_action_list_add(out, SL_KIND_B, c * plan->ranks + rank, m));
    }
done:
    return status;
}

/* ---- Rounds ---------------------------------------------------------------------------------- */

sl_rounds sl_rounds_make(const sl_plan *plan)
{
    int count = plan->microbatches / plan->ranks;
    if (count < 1)
        count = 1;
    return (sl_rounds){
        .chunks = plan->chunks,
        .short_size = plan->microbatches / count,
        .long_count = plan->microbatches % count,
    };
}

static int longest_round(const sl_rounds *rounds)
{
    return rounds->short_size + (rounds->long_count > 0);
}

void sl_rounds_at(const sl_rounds *rounds, int64_t index, int *chunk, int *microbatch)
{
    int size = rounds->short_size + 1;
    int64_t first = 0; /* microbatch of the rounds looked at */
    int64_t in_long = (int64_t)rounds->long_count * size * rounds->chunks;
    if (index >= in_long) {
        index -= in_long;
        first = (int64_t)rounds->long_count * size;
        size--;
    }
    int64_t round_size = (int64_t)size * rounds->chunks;
    int64_t round = index / round_size;
    int64_t place = index % round_size;
    *chunk = (int)(place / size);
    *microbatch = (int)(first + round * size + place % size);
}

/* ---- Interleaved ----------------------------------------------------------------------------- */

typedef struct interleaved {
    const sl_plan *plan;
    sl_rounds rounds;
    int rank;
    sl_action_list *out;
} interleaved;

static sl_status add_forward(interleaved *self, int64_t index)
{
    int chunk;
    int microbatch;
    sl_rounds_at(&self->rounds, index, &chunk, &microbatch);
    return sl_action_list_add(self->out, SL_KIND_F, chunk * self->plan->ranks + self->rank, microbatch);
}

/* B, I or W: in a round the last chunk comes first. */
static sl_status add_backward(interleaved *self, sl_kind kind, int64_t index)
{
    int chunk;
    int microbatch;
    sl_rounds_at(&self->rounds, index, &chunk, &microbatch);
    chunk = self->plan->chunks - 1 - chunk;
    return sl_action_list_add(self->out, kind, chunk * self->plan->ranks + self->rank, microbatch);
}

/* Forwards that a rank runs before its first backward, if each rank nearer to the start runs `step` more. */
static int64_t warmup_count(const interleaved *self, int step)
{
    int64_t last_rank = (int64_t)(self->plan->chunks - 1) * longest_round(&self->rounds);
    int64_t count = last_rank + (int64_t)step * (self->plan->ranks - 1 - self->rank);
    int64_t all = (int64_t)self->plan->chunks * self->plan->microbatches;
    return count < all ? count : all;
}

sl_status sl_generate_interleaved_1f1b(const sl_plan *plan, int rank, sl_action_list *out)
{
    sl_status status = SL_OK;
    interleaved self = { plan, sl_rounds_make(plan), rank, out };
    int64_t all = (int64_t)plan->chunks * plan->microbatches;
    /* Two more a rank hide the way there and back between two chunks; with one chunk there is none: plain 1F1B. */
    int64_t warmup = warmup_count(&self, plan->chunks > 1 ? 2 : 1);

    for (int64_t i = 0; i < warmup; i++)
        SL_TRY(add_forward(&self, i));
    for (int64_t i = 0; i < all; i++) {
        if (warmup + i < all)
            SL_TRY(add_forward(&self, warmup + i));
        SL_TRY(add_backward(&self, SL_KIND_B, i));
    }
done:
    return status;
}

/* As above with B split: the gradients of the weights run `rank` backwards late, in the gaps of the pipeline. */
sl_status sl_generate_interleaved_zero_bubble(const sl_plan *plan, int rank, sl_action_list *out)
{
    sl_status status = SL_OK;
    interleaved self = { plan, sl_rounds_make(plan), rank, out };
    int64_t all = (int64_t)plan->chunks * plan->microbatches;
    int64_t warmup = warmup_count(&self, 1);

    for (int64_t i = 0; i < warmup; i++)
        SL_TRY(add_forward(&self, i));
    for (int64_t i = 0; i < all; i++) {
        if (warmup + i < all)
            SL_TRY(add_forward(&self, warmup + i));
        SL_TRY(add_backward(&self, SL_KIND_I, i));
        if (i >= rank)
            SL_TRY(add_backward(&self, SL_KIND_W, i - rank));
    }
    for (int64_t i = all > rank ? all - rank : 0; i < all; i++)
        SL_TRY(add_backward(&self, SL_KIND_W, i));
done:
    return status;
}
