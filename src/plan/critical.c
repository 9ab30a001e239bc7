/* The critical path of an order: the steps that its end waits for, one because of the other. */
#include "plan/polish.h"

/* The rank that ends last. */
static int last_rank(const sl_player *player)
{
    int last = 0;
    double latest = 0;
    for (int rank = 0; rank < player->instance->ranks; rank++) {
        double end = player->rank[rank].end;
        if (end > latest) {
            latest = end;
            last = rank;
        }
    }
    return last;
}

void sl_critical_find(const sl_player *player, sl_critical *self)
{
    const sl_playing *accepted = &player->accepted;
    int rank = last_rank(player), step = player->length - 1;
    self->count = 0;
    while (step >= 0 && self->count < self->capacity) {
        int64_t index = (int64_t)rank * player->length + step;
        self->steps[self->count++] = (sl_critical_step){ .rank = rank, .step = step };
        const sl_player_lane *lane = &player->lane[rank * player->lanes + accepted->steps[index]];
        if (!accepted->played[index].waited || !lane->ready) {
            step--;
            continue;
        }
        int64_t cell = lane->input * player->instance->microbatches + accepted->played[index].microbatch;
        rank = (int)(lane->input / player->lanes);
        step = player->place[cell];
    }
}
