/* Cases of the suite: random patterns of messages against their model. */
#include "ranks/support/suite.h"

#include <sched.h>
#include <stdlib.h>

/* ---- A random struct pattern against its model ------------------------------------------------------ */

enum { MAX_CHANNELS = 8, MAX_HELD = 8 };

/* How a side of a message is done. */
typedef enum way { IN_PLACE, TRYING, WAYS } way;

struct planned {
    int channel; /* index */
    sl_message message;
    size_t bytes;
    way send, receive;
    bool hold; /* keep it for a while if it is received in place */
};

struct pattern {
    int channels;
    sl_channel_spec specs[MAX_CHANNELS];
    int count;
    struct planned *messages;
};

static sl_message random_message(suite_random *random, int64_t step, int microbatch, size_t max_bytes, size_t *bytes)
{
    sl_message message = { .step = step, .microbatch = microbatch };
    message.dtype = (sl_dtype)suite_between(random, 0, SL_DTYPE_COUNT - 1);
    size_t each = sl_dtype_size(message.dtype), left = max_bytes / each, count = 1;
    message.shape.rank = (int)suite_between(random, 0, SL_MAX_DIMS);
    if (left == 0) {
        message.shape.rank = 1; /* nothing fits but nothing */
        count = 0;
    }
    for (int i = 0; i < message.shape.rank; i++) {
        int64_t most = i + 1 < message.shape.rank && left > 4 ? 4 : (int64_t)left;
        int64_t dim = suite_between(random, 0, 15) == 0 ? 0 : suite_between(random, left > 0, most);
        message.shape.dims[i] = dim;
        count *= (size_t)dim;
        left = dim > 0 ? left / (size_t)dim : left;
    }
    *bytes = count * each;
    return message;
}

/* The same on every rank. */
static void make_pattern(uint64_t seed, int size, struct pattern *out)
{
    suite_random random = { seed };
    out->channels = (int)suite_between(&random, 1, MAX_CHANNELS);
    for (int c = 0; c < out->channels; c++) {
        size_t limit = (size_t)1 << suite_between(&random, 0, 16);
        out->specs[c] = (sl_channel_spec){
            .id = c * 7 + (int)suite_between(&random, 0, 6),
            .src = (int)suite_between(&random, 0, size - 1),
            .dst = (int)suite_between(&random, 0, size - 1),
            .capacity = (int)suite_between(&random, 1, 4),
            .max_bytes = (size_t)suite_between(&random, 0, (int64_t)limit),
        };
    }
    out->count = (int)suite_between(&random, 1, 60);
    out->messages = calloc((size_t)out->count, sizeof *out->messages);
    for (int i = 0; i < out->count; i++) {
        struct planned *each = &out->messages[i];
        each->channel = (int)suite_between(&random, 0, out->channels - 1);
        each->message =
            random_message(&random, (int64_t)(seed % 1000), i, out->specs[each->channel].max_bytes, &each->bytes);
        each->send = (way)suite_between(&random, 0, WAYS - 1);
        each->receive = (way)suite_between(&random, 0, WAYS - 1);
        each->hold = suite_between(&random, 0, 1);
    }
}

/* A message that a rank keeps. */
struct held {
    int channel, message;
    void *data;
};

struct player {
    sl_group *group;
    const struct pattern *pattern;
    uint64_t seed;
    sl_channel *channels[MAX_CHANNELS];
    struct held held[MAX_HELD];
    int held_count;
};

static uint64_t content_seed(const struct player *player, int message)
{
    return player->seed * 1000003u + (uint64_t)message;
}

static sl_status let_go(struct player *player, int i)
{
    sl_status status = SL_OK;
    const struct held *held = &player->held[i];
    const struct planned *planned = &player->pattern->messages[held->message];
    CHECK(suite_is_filled(held->data, planned->bytes, content_seed(player, held->message)));
    SL_TRY(sl_channel_release(player->channels[held->channel], held->data));
    player->held[i] = player->held[--player->held_count];
done:
    return status;
}

/* Frees slots until the channel has `keep` of them struct held at most. Any of them may go first. */
static sl_status let_go_until(struct player *player, int channel, int keep)
{
    sl_status status = SL_OK;
    for (;;) {
        int count = 0, last = -1;
        for (int i = 0; i < player->held_count; i++) {
            if (player->held[i].channel == channel) {
                count++;
                last = i;
            }
        }
        if (count <= keep)
            break;
        SL_TRY(let_go(player, last));
    }
done:
    return status;
}

static sl_status play_send(struct player *player, int i)
{
    sl_status status = SL_OK;
    const struct planned *planned = &player->pattern->messages[i];
    sl_channel *channel = player->channels[planned->channel];
    void *data = NULL;
    if (planned->send == IN_PLACE)
        SL_TRY(sl_channel_reserve(channel, &planned->message, &data));
    while (!data) {
        SL_TRY(sl_channel_try_reserve(channel, &planned->message, &data));
        sched_yield();
    }
    CHECK((uintptr_t)data % 64 == 0);
    suite_fill(data, planned->bytes, content_seed(player, i));
    SL_TRY(sl_channel_commit(channel, data));
done:
    return status;
}

static sl_status play_receive(struct player *player, int i)
{
    sl_status status = SL_OK;
    const struct planned *planned = &player->pattern->messages[i];
    sl_channel *channel = player->channels[planned->channel];
    sl_message got;
    void *data = NULL;
    if (planned->receive == IN_PLACE)
        SL_TRY(sl_channel_receive(channel, &planned->message, &got, &data));
    while (!data) {
        SL_TRY(sl_channel_try_receive(channel, NULL, &got, &data));
        sched_yield();
    }
    CHECK(got.step == planned->message.step && got.microbatch == planned->message.microbatch);
    CHECK(got.dtype == planned->message.dtype && sl_shape_equal(&got.shape, &planned->message.shape));
    if (player->held_count == MAX_HELD)
        SL_TRY(let_go(player, (int)(content_seed(player, i) % MAX_HELD)));
    player->held[player->held_count++] = (struct held){ planned->channel, i, data };
    int keep = planned->hold ? player->pattern->specs[planned->channel].capacity - 1 : 0;
    SL_TRY(let_go_until(player, planned->channel, keep));
done:
    return status;
}

/* Every rank does its part of one global order of messages: then a wait always ends, whatever the capacities. */
static sl_status random_pattern(sl_group *group, uint64_t seed)
{
    sl_status status = SL_OK;
    struct pattern pattern = { 0 };
    struct player player = { .group = group, .pattern = &pattern, .seed = seed };
    int me = sl_group_rank(group);
    make_pattern(seed, sl_group_size(group), &pattern);
    SL_TRY(sl_group_open_channels(group, pattern.specs, pattern.channels, player.channels));
    for (int i = 0; i < pattern.count; i++) {
        const sl_channel_spec *spec = &pattern.specs[pattern.messages[i].channel];
        if (spec->src == me)
            SL_TRY(play_send(&player, i));
        if (spec->dst == me)
            SL_TRY(play_receive(&player, i));
    }
    while (player.held_count > 0)
        SL_TRY(let_go(&player, 0));
    SL_TRY(sl_group_barrier(group));
    for (int c = 0; c < pattern.channels; c++)
        sl_channel_close(player.channels[c]);
done:
    free(pattern.messages);
    return status;
}

const suite_case suite_patterns[] = {
    { .name = "random_patterns_match_their_model", .run = random_pattern, .min_ranks = 1, .rounds = 200 },
    { .name = NULL },
};
