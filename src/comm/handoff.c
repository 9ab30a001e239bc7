/* Slots handed over in stream order: committed or released by a host function once the stream has passed. */
#include "comm/group.h"

#include <sched.h>

static sl_status hand_over(sl_channel *channel, sl_envelope *envelope, sl_handoff_kind kind)
{
    return kind == SL_HANDOFF_COMMIT ? sl_channel_commit_envelope(channel, envelope)
                                     : channel->transport->release(channel->wire, envelope);
}

void sl_channel_hand_over_now(sl_channel *channel, sl_envelope *envelope, sl_handoff_kind kind)
{
    sl_link *link = channel->link;
    sl_status status = hand_over(channel, envelope, kind);
    if (status != SL_OK)
        link->transport->fail(link, link->rank, status, sl_error_message());
}

/* The channel may be gone once none is in flight. */
static void count(sl_channel *channel, int more)
{
    sl_streaming *streaming = channel->link->streaming;
    if (streaming) {
        atomic_store(&streaming->last, (uint64_t)(sl_now() * 1e9));
        atomic_fetch_add(&streaming->left, more);
    }
    atomic_fetch_add_explicit(&channel->in_flight, more, memory_order_release);
}

static void run_handoff(void *arg)
{
    sl_handoff *handoff = arg;
    sl_channel *channel = handoff->channel;
    sl_channel_hand_over_now(channel, handoff->envelope, handoff->kind);
    atomic_store_explicit(&handoff->busy, false, memory_order_release);
    count(channel, -1);
}

/* Each end of a channel has one record a slot, and a slot is handed over once until it comes round again. */
static sl_handoff *find_free(sl_channel *channel)
{
    for (int i = 0; i < 2 * channel->spec.capacity; i++) {
        sl_handoff *handoff = &channel->handoffs[i];
        if (!atomic_load_explicit(&handoff->busy, memory_order_acquire))
            return handoff;
    }
    return NULL;
}

sl_status sl_channel_hand_over(sl_channel *channel, sl_envelope *envelope, sl_handoff_kind kind, sl_stream *stream)
{
    sl_status status = SL_OK;
    if (!stream || sl_device_is_host(sl_stream_device(stream)))
        return hand_over(channel, envelope, kind);
    if (channel->link->one_thread) {
        SL_TRY(sl_stream_synchronize(stream));
        return hand_over(channel, envelope, kind);
    }
    sl_handoff *handoff = find_free(channel);
    if (!handoff)
        return sl_fail(SL_ERR_ARGUMENT, "channel %d: a slot was handed over twice", channel->spec.id);
    handoff->channel = channel;
    handoff->envelope = envelope;
    handoff->kind = kind;
    atomic_store_explicit(&handoff->busy, true, memory_order_relaxed);
    count(channel, 1);
    status = sl_stream_call(stream, run_handoff, handoff);
    if (status != SL_OK) {
        atomic_store(&handoff->busy, false);
        count(channel, -1);
    }
done:
    return status;
}

/* For all channels of a run that has failed: its streams may have, too, and then they do not come to what they were given. */
#define DRAIN_SECONDS 0.2

bool sl_channel_drain(sl_channel *channel)
{
    sl_link *link = channel->link;
    while (atomic_load_explicit(&channel->in_flight, memory_order_acquire) > 0) {
        sched_yield();
        if (!sl_link_has_failed(link))
            continue;
        if (link->drain_until == 0)
            link->drain_until = sl_now() + DRAIN_SECONDS;
        if (sl_now() > link->drain_until)
            return false;
    }
    return true;
}
