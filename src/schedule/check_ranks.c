/* The checker's look at each rank alone: each action once, what it needs before it, nothing missing at the end. */
#include "schedule/check.h"

#include <inttypes.h>

/* What one microbatch has been through in one stage. B sets I and W. */
enum {
    DID_F = 1,
    DID_I = 2,
    DID_W = 4,
    DID_SEND_F = 8,
    DID_RECV_F = 16,
    DID_SEND_B = 32,
    DID_RECV_B = 64,
    DID_WAIT_SEND_F = 128,
    DID_WAIT_SEND_B = 256,
};

typedef struct stage_state {
    int64_t weights; /* microbatches with W or B */
    bool unsharded;
    bool reduced;
} stage_state;

typedef struct checker {
    const sl_schedule *schedule;
    const sl_links *links;
    sl_violation *violation;
    bool messages, backward, sharded, reduces; /* what the schedule has at all */
    bool send_waits, reduce_waits;
    uint16_t *did; /* (stages, microbatches) */
    stage_state *stages;
    int reducing; /* the rank's stage whose reduction is to be waited for; -1: none */
    /* The cell that is looked at: */
    int rank;
    int64_t cell;
    sl_action action;
} checker;

static bool wrong(const checker *self, const char *reason)
{
    return sl_violate_action(self->violation, self->rank, self->cell, self->action, reason);
}

static bool wrong_rank(const checker *self, int stage)
{
    sl_action_text(self->action, self->violation->text, sizeof self->violation->text);
    return sl_violate(self->violation, self->rank, self->cell, "stage %d is already on rank %d", stage,
                      self->schedule->rank_of[stage]);
}

static uint16_t *did_of(const checker *self, int stage, int microbatch)
{
    return &self->did[(int64_t)stage * self->schedule->microbatches + microbatch];
}

/* Whether all peers on this rank have done it for the microbatch; names the first that has not. */
static bool local_peers_did(const checker *self, const sl_link_table *table, sl_action part, uint16_t what)
{
    for (int i = table->start[part.stage]; i < table->start[part.stage + 1]; i++) {
        int peer = table->peer[i];
        if (!(*did_of(self, peer, part.microbatch) & what)) {
            sl_action_text(self->action, self->violation->text, sizeof self->violation->text);
            return sl_violate(self->violation, self->rank, self->cell, "%s of stage %d has to run before it",
                              what == DID_F ? "F" : "I or B", peer);
        }
    }
    return true;
}

static bool check_forward(const checker *self, sl_action part)
{
    uint16_t did = *did_of(self, part.stage, part.microbatch);
    if (did & DID_F)
        return wrong(self, "this F has already run");
    if (self->messages && sl_link_table_has(&self->links->in, part.stage) && !(did & DID_RECV_F))
        return wrong(self, "its RECV_F has to come before it");
    return local_peers_did(self, &self->links->local_in, part, DID_F);
}

/* I, and B as far as it is one. */
static bool check_input_backward(const checker *self, sl_action part)
{
    uint16_t did = *did_of(self, part.stage, part.microbatch);
    if (!(did & DID_F))
        return wrong(self, "its F has to run before it");
    if (did & DID_I)
        return wrong(self, "the backward of this microbatch has already run");
    if (self->messages && sl_link_table_has(&self->links->out, part.stage) && !(did & DID_RECV_B))
        return wrong(self, "its RECV_B has to come before it");
    return local_peers_did(self, &self->links->local_out, part, DID_I);
}

static bool check_weight_backward(const checker *self, sl_action part)
{
    uint16_t did = *did_of(self, part.stage, part.microbatch);
    if (did & DID_W)
        return wrong(self, "the gradient of the weights has already run for this microbatch");
    if (!(did & DID_I))
        return wrong(self, "its I has to run before it");
    return true;
}

static bool check_part(const checker *self, sl_action part)
{
    if (self->schedule->rank_of[part.stage] != self->rank)
        return wrong_rank(self, part.stage);
    if (self->sharded && !self->stages[part.stage].unsharded)
        return wrong(self, "its stage has to be unsharded before it");
    switch (part.kind) {
    case SL_KIND_F:
        return check_forward(self, part);
    case SL_KIND_W:
        return check_weight_backward(self, part);
    default:
        return check_input_backward(self, part);
    }
}

static void note_part(const checker *self, sl_action part)
{
    static const uint8_t marks[] = {
        [SL_KIND_F] = DID_F, [SL_KIND_I] = DID_I, [SL_KIND_W] = DID_W, [SL_KIND_B] = DID_I | DID_W
    };
    uint8_t mark = marks[part.kind];
    *did_of(self, part.stage, part.microbatch) |= mark;
    self->stages[part.stage].weights += (mark & DID_W) != 0;
}

/* Both parts of an OVERLAP_F_B are looked at before either has run: the one cannot be what the other waits for. */
static bool check_compute(const checker *self)
{
    sl_action parts[2];
    int count = sl_parts(self->action, parts);
    for (int i = 0; i < count; i++) {
        if (!check_part(self, parts[i]))
            return false;
    }
    for (int i = 0; i < count; i++)
        note_part(self, parts[i]);
    return true;
}

static bool check_message(const checker *self)
{
    static const struct {
        uint16_t mark;
        uint16_t needs;
        bool out; /* it is about the edges out of the stage */
        const char *nobody;
        const char *too_early;
    } rules[] = {
        { DID_SEND_F, DID_F, true, "no stage on another rank needs what it sends", "its F has to run before it" },
        { DID_RECV_F, 0, false, "no stage on another rank sends what it receives", NULL },
        { DID_SEND_B, DID_I, false, "no stage on another rank needs what it sends", "its I or B has to run before it" },
        { DID_RECV_B, 0, true, "no stage on another rank sends what it receives", NULL },
        { DID_WAIT_SEND_F, DID_SEND_F, true, "there is nothing to send", "its SEND_F has to come before it" },
        { DID_WAIT_SEND_B, DID_SEND_B, false, "there is nothing to send", "its SEND_B has to come before it" },
    };
    sl_action action = self->action;
    uint16_t *did = did_of(self, action.stage, action.microbatch);
    int rule = action.kind - SL_KIND_SEND_F;
    if (!sl_link_table_has(rules[rule].out ? &self->links->out : &self->links->in, action.stage))
        return wrong(self, rules[rule].nobody);
    if (*did & rules[rule].mark)
        return wrong(self, "it is already in the schedule");
    if ((*did & rules[rule].needs) != rules[rule].needs)
        return wrong(self, rules[rule].too_early);
    if (action.kind == SL_KIND_RECV_B && !self->backward)
        return wrong(self, "the schedule has no backward");
    *did |= rules[rule].mark;
    return true;
}

/* One reduction of a rank at a time, if they are waited for at all. */
static bool check_reduce(checker *self)
{
    stage_state *stage = &self->stages[self->action.stage];
    if (stage->reduced)
        return wrong(self, "the gradients of the stage are already reduced");
    if (stage->weights < self->schedule->microbatches)
        return wrong(self, "a W or B of the stage comes after it or is missing");
    if (self->reduce_waits && self->reducing >= 0) {
        sl_action_text(self->action, self->violation->text, sizeof self->violation->text);
        return sl_violate(self->violation, self->rank, self->cell, "%dWAIT_REDUCE_GRAD has to come before it",
                          self->reducing);
    }
    stage->reduced = true;
    self->reducing = self->action.stage;
    return true;
}

static bool check_weights(checker *self)
{
    stage_state *stage = &self->stages[self->action.stage];
    switch (self->action.kind) {
    case SL_KIND_UNSHARD:
        if (stage->unsharded)
            return wrong(self, "the stage is already unsharded");
        stage->unsharded = true;
        return true;
    case SL_KIND_RESHARD:
        if (!stage->unsharded)
            return wrong(self, "the stage is not unsharded");
        stage->unsharded = false;
        return true;
    case SL_KIND_WAIT_REDUCE_GRAD:
        if (self->reducing != self->action.stage)
            return wrong(self, "no reduction of the stage is on its way");
        self->reducing = -1;
        return true;
    default:
        return check_reduce(self);
    }
}

static bool check_cell(checker *self)
{
    sl_action action = self->action;
    if (action.kind <= SL_KIND_B || sl_action_is(action, SL_KIND_OVERLAP_F_B))
        return check_compute(self);
    if (self->schedule->rank_of[action.stage] != self->rank)
        return wrong_rank(self, action.stage);
    return sl_action_is_message(action) ? check_message(self) : check_weights(self);
}

static bool missing(const checker *self, sl_kind kind, int stage, int microbatch, const char *reason)
{
    int rank = self->schedule->rank_of[stage];
    return sl_violate_action(self->violation, rank, (int64_t)self->schedule->lists[rank].count,
                             sl_make(kind, stage, microbatch), reason);
}

static bool check_stage_complete(const checker *self, int stage)
{
    const stage_state *state = &self->stages[stage];
    bool sends_f = self->messages && sl_link_table_has(&self->links->out, stage);
    bool sends_b = self->messages && self->backward && sl_link_table_has(&self->links->in, stage);
    int all = DID_F | (self->backward ? DID_I | DID_W : 0) | (sends_f ? DID_SEND_F : 0) | (sends_b ? DID_SEND_B : 0);
    if (self->send_waits)
        all |= (sends_f ? DID_WAIT_SEND_F : 0) | (sends_b ? DID_WAIT_SEND_B : 0);
    for (int m = 0; m < self->schedule->microbatches; m++) {
        int left = all & ~*did_of(self, stage, m);
        if (!left)
            continue;
        sl_kind kind = left & DID_F             ? SL_KIND_F
                       : left & DID_SEND_F      ? SL_KIND_SEND_F
                       : left & DID_I           ? SL_KIND_B
                       : left & DID_W           ? SL_KIND_W
                       : left & DID_SEND_B      ? SL_KIND_SEND_B
                       : left & DID_WAIT_SEND_F ? SL_KIND_WAIT_SEND_F
                                                : SL_KIND_WAIT_SEND_B;
        return missing(self, kind, stage, m, kind == SL_KIND_B ? "it (or I and W) is missing" : "it is missing");
    }
    if (state->unsharded)
        return missing(self, SL_KIND_RESHARD, stage, -1, "it is missing: the stage is left unsharded");
    if (self->reduces && !state->reduced)
        return missing(self, SL_KIND_REDUCE_GRAD, stage, -1, "it is missing, though other stages have it");
    return true;
}

static bool check_ranks(checker *self)
{
    const sl_schedule *schedule = self->schedule;
    for (self->rank = 0; self->rank < schedule->ranks; self->rank++) {
        const sl_action_list *list = &schedule->lists[self->rank];
        self->reducing = -1;
        for (size_t i = 0; i < list->count; i++) {
            self->cell = (int64_t)i;
            self->action = list->actions[i];
            if (!check_cell(self))
                return false;
        }
        if (self->reduce_waits && self->reducing >= 0)
            return missing(self, SL_KIND_WAIT_REDUCE_GRAD, self->reducing, -1, "it is missing");
    }
    for (int stage = 0; stage < schedule->stages; stage++) {
        if (!check_stage_complete(self, stage))
            return false;
    }
    return true;
}

sl_status sl_check_ranks(const sl_schedule *schedule, const sl_links *links, bool *valid, sl_violation *violation)
{
    sl_status status = SL_OK;
    checker self = {
        .schedule = schedule,
        .links = links,
        .violation = violation,
        .messages = sl_schedule_has_messages(schedule),
        .backward = sl_schedule_has_backward(schedule),
        .sharded = sl_schedule_has_kind(schedule, SL_KIND_UNSHARD) || sl_schedule_has_kind(schedule, SL_KIND_RESHARD),
        .reduces = sl_schedule_has_kind(schedule, SL_KIND_REDUCE_GRAD),
        .send_waits = sl_schedule_has_send_waits(schedule),
        .reduce_waits = sl_schedule_has_kind(schedule, SL_KIND_WAIT_REDUCE_GRAD),
    };
    SL_TRY(SL_NEW_ARRAY(self.did, (int64_t)schedule->stages * schedule->microbatches));
    SL_TRY(SL_NEW_ARRAY(self.stages, schedule->stages));
    *valid = check_ranks(&self);
done:
    sl_free(self.did);
    sl_free(self.stages);
    return status;
}
