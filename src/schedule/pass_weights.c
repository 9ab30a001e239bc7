/* The passes about a stage's weights as a whole: REDUCE_GRAD, and UNSHARD with RESHARD. */
#include "schedule/schedule.h"

#include <string.h>

#define NEVER SIZE_MAX

static sl_status refuse_kind(const sl_schedule *in, sl_kind kind)
{
    if (sl_schedule_has_kind(in, kind))
        return sl_fail(SL_ERR_ARGUMENT, "the schedule already has %s", sl_kind_name(kind));
    return SL_OK;
}

/* ---- REDUCE_GRAD ----------------------------------------------------------------------------- */

static bool makes_weight_gradient(sl_action part)
{
    return part.kind == SL_KIND_W || part.kind == SL_KIND_B;
}

/* An action for a whole stage that comes before the action at this place of a list. */
typedef struct insertion {
    size_t at;
    int stage;
} insertion;

/* Which stages a rank has met, and how many it has in all. */
typedef struct stage_marks {
    int *met;              /* (stages) the key of the pass that has met it */
    int *on_rank;          /* (ranks) */
    insertion *insertions; /* (stages) what this pass inserts, the last place first */
    int insertion_count;
    int left; /* that this pass has not met */
    int key;  /* of this pass over a rank */
} stage_marks;

static void destroy_marks(stage_marks *self)
{
    sl_free(self->met);
    sl_free(self->on_rank);
    sl_free(self->insertions);
}

static sl_status create_marks(const sl_schedule *in, stage_marks *self)
{
    sl_status status = SL_OK;
    SL_TRY(SL_NEW_ARRAY(self->met, in->stages));
    SL_TRY(SL_NEW_ARRAY(self->on_rank, in->ranks));
    SL_TRY(SL_NEW_ARRAY(self->insertions, in->stages));
    for (int stage = 0; stage < in->stages; stage++) {
        if (in->rank_of[stage] >= 0)
            self->on_rank[in->rank_of[stage]]++;
    }
done:
    return status;
}

/* The rank has met none yet. */
static void start_marks(stage_marks *self, int rank)
{
    self->left = self->on_rank[rank];
    self->insertion_count = 0;
    self->key++;
}

/* Whether the stage is met for the first time. */
static bool mark_stage(stage_marks *self, int stage)
{
    if (self->met[stage] == self->key)
        return false;
    self->met[stage] = self->key;
    self->left--;
    return true;
}

/* For a pass from the last action to the first: at most one a stage. */
static void insert_before(stage_marks *self, size_t at, int stage)
{
    self->insertions[self->insertion_count++] = (insertion){ at, stage };
}

/* Appends the list with the insertions, which are of this kind, in one go. */
static sl_status add_with_insertions(const sl_action_list *list, const stage_marks *marks, sl_kind kind,
                                     sl_action_list *out)
{
    sl_status status = SL_OK;
    size_t copied = 0;
    SL_TRY(sl_action_list_reserve(out, out->count + list->count + (size_t)marks->insertion_count));
    for (int i = marks->insertion_count; i >= 0; i--) {
        size_t end = i > 0 ? marks->insertions[i - 1].at : list->count;
        if (end > copied) /* an empty list has no memory */
            memcpy(&out->actions[out->count], &list->actions[copied], (end - copied) * sizeof *out->actions);
        out->count += end - copied;
        copied = end;
        if (i > 0)
            SL_TRY(sl_action_list_add(out, kind, marks->insertions[i - 1].stage, -1));
    }
done:
    return status;
}

/* After the last W or B of each stage: these are near the end of the list. */
static sl_status reduce_rank(const sl_schedule *in, int rank, void *user, sl_action_list *out)
{
    const sl_action_list *list = &in->lists[rank];
    stage_marks *marks = user;
    sl_action parts[2];
    start_marks(marks, rank);
    for (size_t i = list->count; i-- > 0 && marks->left > 0;) {
        for (int p = sl_parts(list->actions[i], parts) - 1; p >= 0; p--) {
            if (makes_weight_gradient(parts[p]) && mark_stage(marks, parts[p].stage))
                insert_before(marks, i + 1, parts[p].stage);
        }
    }
    return add_with_insertions(list, marks, SL_KIND_REDUCE_GRAD, out);
}

sl_status sl_schedule_add_reduce_grad(const sl_schedule *in, sl_schedule **out)
{
    sl_status status = SL_OK;
    stage_marks marks = { 0 };
    SL_TRY(refuse_kind(in, SL_KIND_REDUCE_GRAD));
    SL_TRY(create_marks(in, &marks));
    SL_TRY(sl_schedule_map(in, reduce_rank, &marks, out));
done:
    destroy_marks(&marks);
    return status;
}

/* ---- UNSHARD, RESHARD ------------------------------------------------------------------------ */

/* The stages of a rank that are not unsharded, the one that is used next on top: a heap by next use. */
typedef struct unshard {
    int max_active;
    int active;
    size_t *next_use; /* (stages) NEVER: not used again */
    int *heap;        /* (stages) */
    int heap_count;
    sl_action_list *out;
    stage_marks marks;
} unshard;

static bool heap_before(const unshard *self, int a, int b)
{
    return self->next_use[self->heap[a]] < self->next_use[self->heap[b]];
}

static void heap_swap(unshard *self, int a, int b)
{
    int stage = self->heap[a];
    self->heap[a] = self->heap[b];
    self->heap[b] = stage;
}

static void heap_push(unshard *self, int stage)
{
    int at = self->heap_count++;
    self->heap[at] = stage;
    for (; at > 0 && heap_before(self, at, (at - 1) / 2); at = (at - 1) / 2)
        heap_swap(self, at, (at - 1) / 2);
}

static int heap_pop(unshard *self)
{
    int stage = self->heap[0];
    self->heap[0] = self->heap[--self->heap_count];
    for (int at = 0;;) {
        int least = at;
        for (int child = 2 * at + 1; child <= 2 * at + 2 && child < self->heap_count; child++)
            least = heap_before(self, child, least) ? child : least;
        if (least == at)
            return stage;
        heap_swap(self, at, least);
        at = least;
    }
}

/* Unshards those that come next until as many are active as may be. */
static sl_status fill(unshard *self)
{
    sl_status status = SL_OK;
    while (self->heap_count > 0 && self->active < self->max_active) {
        SL_TRY(sl_action_list_add(self->out, SL_KIND_UNSHARD, heap_pop(self), -1));
        self->active++;
    }
done:
    return status;
}

/* The stage has been used. It gives way if another is wanted sooner than itself. */
static sl_status release(unshard *self, int stage)
{
    size_t next = self->next_use[stage];
    bool sooner = self->heap_count > 0 && self->next_use[self->heap[0]] < next;
    if (next != NEVER && !sooner)
        return SL_OK;
    self->active--;
    sl_status status = sl_action_list_add(self->out, SL_KIND_RESHARD, stage, -1);
    if (status == SL_OK)
        status = fill(self);
    if (next != NEVER)
        heap_push(self, stage);
    return status;
}

/* later[p][i] is where the stage of part p of action i is used after i. Leaves each stage's first use in next_use. */
static void find_uses(const sl_action_list *list, size_t *next_use, size_t *const later[2])
{
    for (size_t i = list->count; i-- > 0;) {
        sl_action parts[2];
        int count = sl_parts(list->actions[i], parts);
        for (int p = 0; p < count; p++)
            later[p][i] = next_use[parts[p].stage];
        for (int p = 0; p < count; p++)
            next_use[parts[p].stage] = i;
    }
}

static sl_status unshard_list(unshard *self, const sl_action_list *list, size_t *const later[2])
{
    sl_status status = SL_OK;
    sl_action parts[2];
    for (size_t i = 0; i < list->count; i++) { /* each stage enters the heap where it is first used */
        for (int p = 0, count = sl_parts(list->actions[i], parts); p < count; p++) {
            if (self->next_use[parts[p].stage] == i && !(p == 1 && parts[0].stage == parts[1].stage))
                heap_push(self, parts[p].stage);
        }
    }
    SL_TRY(fill(self));
    for (size_t i = 0; i < list->count; i++) {
        SL_TRY(sl_action_list_push(self->out, list->actions[i]));
        int count = sl_parts(list->actions[i], parts);
        if (count == 2 && parts[0].stage == parts[1].stage)
            count = 1;
        for (int p = 0; p < count; p++)
            self->next_use[parts[p].stage] = later[p][i];
        for (int p = 0; p < count; p++)
            SL_TRY(release(self, parts[p].stage));
    }
done:
    return status;
}

/* All stages of the rank may be active at once: each is unsharded at the start and resharded after its last use. */
static sl_status unshard_once(const sl_schedule *in, int rank, stage_marks *marks, sl_action_list *out)
{
    sl_status status = SL_OK;
    const sl_action_list *list = &in->lists[rank];
    sl_action parts[2];
    start_marks(marks, rank);
    for (size_t i = 0; i < list->count && marks->left > 0; i++) {
        for (int p = 0, count = sl_parts(list->actions[i], parts); p < count; p++) {
            if (mark_stage(marks, parts[p].stage))
                SL_TRY(sl_action_list_add(out, SL_KIND_UNSHARD, parts[p].stage, -1));
        }
    }
    start_marks(marks, rank);
    for (size_t i = list->count; i-- > 0 && marks->left > 0;) {
        for (int p = sl_parts(list->actions[i], parts) - 1; p >= 0; p--) {
            if (mark_stage(marks, parts[p].stage))
                insert_before(marks, i + 1, parts[p].stage);
        }
    }
    SL_TRY(add_with_insertions(list, marks, SL_KIND_RESHARD, out));
done:
    return status;
}

static sl_status unshard_rank(const sl_schedule *in, int rank, void *user, sl_action_list *out)
{
    sl_status status = SL_OK;
    unshard *self = user;
    const sl_action_list *list = &in->lists[rank];
    bool overlaps = sl_schedule_has_kind(in, SL_KIND_OVERLAP_F_B);
    size_t *later[2] = { NULL, NULL };

    if (self->marks.on_rank[rank] <= self->max_active)
        return unshard_once(in, rank, &self->marks, out);
    SL_TRY(SL_NEW_ARRAY(later[0], list->count));
    SL_TRY(SL_NEW_ARRAY(later[1], overlaps ? list->count : 1));
    self->heap_count = 0;
    self->active = 0;
    self->out = out;
    find_uses(list, self->next_use, later);
    SL_TRY(unshard_list(self, list, later));
done:
    sl_free(later[0]);
    sl_free(later[1]);
    return status;
}

sl_status sl_schedule_add_unshard(const sl_schedule *in, int max_active, sl_schedule **out)
{
    sl_status status = SL_OK;
    unshard self = { .max_active = max_active == 0 ? 3 : max_active };

    if (max_active < 0)
        return sl_fail(SL_ERR_ARGUMENT, "%d active stages: 1 or more are needed", max_active);
    if (self.max_active < 2 && sl_schedule_has_kind(in, SL_KIND_OVERLAP_F_B))
        self.max_active = 2;
    SL_TRY(refuse_kind(in, SL_KIND_UNSHARD));
    SL_TRY(refuse_kind(in, SL_KIND_RESHARD));
    SL_TRY(create_marks(in, &self.marks));
    SL_TRY(SL_NEW_ARRAY(self.next_use, in->stages));
    SL_TRY(SL_NEW_ARRAY(self.heap, in->stages));
    for (int stage = 0; stage < in->stages; stage++)
        self.next_use[stage] = NEVER; /* and so it is again after each rank: its last uses leave it */
    SL_TRY(sl_schedule_map(in, unshard_rank, &self, out));
done:
    destroy_marks(&self.marks);
    sl_free(self.next_use);
    sl_free(self.heap);
    return status;
}
