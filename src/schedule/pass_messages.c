/* The pass that adds SEND and RECV. It runs the compute order in time, F, I and W taking one unit, and puts both ends
 * of a message into the lists at the moment the message is made: so there is one order of all events that every rank
 * follows, and ranks that send and receive in it never wait for each other in a circle, buffers or not. */
#include "schedule/check.h"

enum { LONGEST = 3 }; /* OVERLAP_F_B */

typedef struct posting {
    const sl_schedule *in;
    const sl_links *links;
    sl_action_list *lists; /* (ranks) the lowered lists */
    sl_walk walk;
    int *running[LONGEST + 1]; /* ranks whose action ends at a time, times in a ring */
    int running_count[LONGEST + 1];
    uint16_t *waiting[2]; /* F, B: (stages, microbatches) senders still to come; NULL if there is never more than one */
} posting;

static int duration(sl_action action)
{
    switch (action.kind) {
    case SL_KIND_F:
    case SL_KIND_I:
    case SL_KIND_W:
        return 1;
    case SL_KIND_B:
        return 2;
    case SL_KIND_OVERLAP_F_B:
        return LONGEST;
    default:
        return 0;
    }
}

/* Whether this was the last of the messages that the receive collects. */
static bool is_complete(posting *self, int way, int stage, int microbatch)
{
    if (!self->waiting[way])
        return true;
    return --self->waiting[way][(int64_t)stage * self->in->microbatches + microbatch] == 0;
}

/* The part has run: its values are sent, and received if they are the last ones wanted. */
static sl_status post_part(posting *self, int rank, sl_action part)
{
    sl_status status = SL_OK;
    int way = part.kind != SL_KIND_F;
    const sl_link_table *to = way ? &self->links->in : &self->links->out;
    if (part.kind == SL_KIND_W || !sl_link_table_has(to, part.stage))
        return SL_OK;
    SL_TRY(sl_action_list_add(&self->lists[rank], way ? SL_KIND_SEND_B : SL_KIND_SEND_F, part.stage, part.microbatch));
    for (int i = to->start[part.stage]; i < to->start[part.stage + 1]; i++) {
        int peer = to->peer[i];
        if (is_complete(self, way, peer, part.microbatch))
            SL_TRY(sl_action_list_add(&self->lists[self->in->rank_of[peer]], way ? SL_KIND_RECV_B : SL_KIND_RECV_F,
                                      peer, part.microbatch));
    }
done:
    return status;
}

/* Posts what the rank's running action has made in one direction. */
static sl_status post_parts(posting *self, int rank, bool backward)
{
    sl_status status = SL_OK;
    sl_action parts[2];
    int count = sl_parts(self->in->lists[rank].actions[self->walk.walkers[rank].at], parts);
    for (int p = 0; p < count; p++) {
        if ((parts[p].kind != SL_KIND_F) == backward)
            SL_TRY(post_part(self, rank, parts[p]));
    }
done:
    return status;
}

/* Ends the actions that end now. Of messages made at the same time those that go forward come first: they feed the
 * ranks that have nothing to do yet. */
static sl_status end_actions(posting *self, int slot)
{
    sl_status status = SL_OK;
    for (int i = 0; i < self->running_count[slot]; i++)
        SL_TRY(post_parts(self, self->running[slot][i], false));
    for (int i = 0; i < self->running_count[slot]; i++) {
        int rank = self->running[slot][i];
        SL_TRY(post_parts(self, rank, true));
        sl_walk_ran(&self->walk, rank);
        sl_walk_resume(&self->walk, rank);
    }
    self->running_count[slot] = 0;
done:
    return status;
}

/* Starts what each idle rank can start now. */
static sl_status start_actions(posting *self, int64_t now, int *started)
{
    sl_status status = SL_OK;
    for (int rank; (rank = sl_walk_next(&self->walk)) >= 0;) {
        while (!sl_walk_is_over(&self->walk, rank) && sl_walk_can_run(&self->walk, rank)) {
            sl_action action = self->in->lists[rank].actions[self->walk.walkers[rank].at];
            SL_TRY(sl_action_list_push(&self->lists[rank], action));
            if (duration(action) > 0) {
                int slot = (int)((now + duration(action)) % (LONGEST + 1));
                self->running[slot][self->running_count[slot]++] = rank;
                ++*started;
                break;
            }
            sl_walk_ran(&self->walk, rank);
        }
    }
done:
    return status;
}

static sl_status post_all(posting *self)
{
    sl_status status = SL_OK;
    int running = 0;
    for (int64_t now = 0;; now++) {
        int slot = (int)(now % (LONGEST + 1));
        running -= self->running_count[slot];
        SL_TRY(end_actions(self, slot));
        SL_TRY(start_actions(self, now, &running));
        if (running == 0)
            break;
    }
done:
    return status;
}

/* Counts the senders of each receive, if some receive has more than one. */
static sl_status count_senders(const posting *self, const sl_link_table *table, uint16_t **out)
{
    int stages = self->in->stages;
    bool several = false;
    for (int stage = 0; stage < stages; stage++)
        several = several || table->start[stage + 1] - table->start[stage] > 1;
    if (!several)
        return SL_OK;
    uint16_t *senders = NULL;
    sl_status status = SL_NEW_ARRAY(senders, (int64_t)stages * self->in->microbatches);
    if (status != SL_OK)
        return status;
    for (int stage = 0; stage < stages; stage++) {
        for (int m = 0; m < self->in->microbatches; m++)
            senders[(int64_t)stage * self->in->microbatches + m] =
                (uint16_t)(table->start[stage + 1] - table->start[stage]);
    }
    *out = senders;
    return SL_OK;
}

/* Makes room for exactly what a valid schedule becomes: every microbatch has each message of its stages once. */
static sl_status reserve_lists(const posting *self)
{
    sl_status status = SL_OK;
    const sl_schedule *in = self->in;
    size_t *counts = NULL; /* (ranks) */
    size_t ways = sl_schedule_has_backward(in) ? 2 : 1;
    SL_TRY(SL_NEW_ARRAY(counts, in->ranks));
    for (int stage = 0; stage < in->stages; stage++) {
        size_t ends = (size_t)sl_link_table_has(&self->links->in, stage) + sl_link_table_has(&self->links->out, stage);
        counts[in->rank_of[stage]] += ends * ways * (size_t)in->microbatches;
    }
    for (int rank = 0; rank < in->ranks; rank++)
        SL_TRY(sl_action_list_reserve(&self->lists[rank], in->lists[rank].count + counts[rank]));
done:
    sl_free(counts);
    return status;
}

static sl_status posting_start(posting *self)
{
    sl_status status = SL_OK;
    SL_TRY(reserve_lists(self));
    SL_TRY(sl_walk_create(self->in, self->links, -1, &self->walk));
    for (int slot = 0; slot <= LONGEST; slot++)
        SL_TRY(SL_NEW_ARRAY(self->running[slot], self->in->ranks));
    SL_TRY(count_senders(self, &self->links->in, &self->waiting[0]));
    SL_TRY(count_senders(self, &self->links->out, &self->waiting[1]));
done:
    return status;
}

static void posting_end(posting *self)
{
    sl_walk_destroy(&self->walk);
    for (int slot = 0; slot <= LONGEST; slot++)
        sl_free(self->running[slot]);
    sl_free(self->waiting[0]);
    sl_free(self->waiting[1]);
}

/* A receive that collects from several stages can only follow one order of theirs. */
static sl_status check_feeders(const sl_schedule *lowered, const sl_links *links)
{
    sl_violation violation;
    bool valid;
    sl_status status = sl_check_pairs(lowered, links, &valid, &violation);
    if (status == SL_OK && !valid)
        status =
            sl_fail(SL_ERR_SCHEDULE, "stages that feed %s run their microbatches in different orders", violation.text);
    return status;
}

sl_status sl_schedule_add_messages(const sl_schedule *in, const sl_edge *edges, int edge_count, sl_schedule **out)
{
    sl_status status = SL_OK;
    sl_links links = { 0 };
    sl_schedule_builder *builder = NULL;
    sl_schedule *lowered = NULL;
    posting self = { .in = in, .links = &links };

    if (sl_schedule_has_messages(in))
        return sl_fail(SL_ERR_ARGUMENT, "the schedule already has messages");
    SL_TRY(sl_links_create(in, edges, edge_count, &links));
    SL_TRY(sl_check_before_walk(in, &links, NULL));
    SL_TRY(sl_schedule_builder_create(in->ranks, &builder));
    self.lists = builder->lists;
    SL_TRY(posting_start(&self));
    SL_TRY(post_all(&self));
    SL_TRY(sl_check_after_walk(&self.walk, NULL));
    SL_TRY(sl_schedule_builder_finish(builder, &lowered));
    if (self.waiting[0] || self.waiting[1])
        SL_TRY(check_feeders(lowered, &links));

    *out = lowered;
    lowered = NULL;
done:
    posting_end(&self);
    sl_schedule_destroy(lowered);
    sl_schedule_builder_destroy(builder);
    sl_links_destroy(&links);
    return status;
}
