/* One end of a channel: messages built and used in place, their identity checked on arrival. */
#include "comm/request.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

/* Bytes of a message; fails if its shape or dtype makes no sense or it is larger than the channel allows. */
static sl_status message_bytes(const sl_channel *channel, const sl_message *message, size_t *out)
{
    int64_t count = 0;
    size_t bytes;
    sl_status status = sl_shape_count(&message->shape, &count);
    if (status != SL_OK)
        return sl_fail_context(status, "channel %d", channel->spec.id);
    size_t each = sl_dtype_size(message->dtype);
    if (each == 0)
        return sl_fail(SL_ERR_ARGUMENT, "channel %d: there is no dtype %d", channel->spec.id, (int)message->dtype);
    if (__builtin_mul_overflow((size_t)count, each, &bytes) || bytes > channel->spec.max_bytes) {
        char shape[96];
        return sl_fail(SL_ERR_SHAPE, "channel %d from rank %d to rank %d: %s %s is more than its %zu bytes a message",
                       channel->spec.id, channel->src, channel->dst, sl_dtype_name(message->dtype),
                       sl_shape_text(&message->shape, shape, sizeof shape), channel->spec.max_bytes);
    }
    *out = bytes;
    return SL_OK;
}

/* ---- Identity -------------------------------------------------------------------------------- */

static void fill_envelope(const sl_channel *channel, const sl_message *message, size_t bytes, sl_envelope *envelope)
{
    envelope->run_id = channel->link->run_id;
    envelope->step = message->step;
    envelope->bytes = bytes;
    envelope->channel = channel->spec.id;
    envelope->microbatch = message->microbatch;
    envelope->dtype = (uint16_t)message->dtype;
    envelope->rank = (uint8_t)message->shape.rank;
    envelope->flags = 0;
    for (int i = 0; i < message->shape.rank; i++)
        envelope->dims[i] = message->shape.dims[i];
}

static void read_envelope(const sl_envelope *envelope, sl_message *message)
{
    *message = (sl_message){
        .step = envelope->step,
        .microbatch = envelope->microbatch,
        .dtype = (sl_dtype)envelope->dtype,
        .shape.rank = envelope->rank <= SL_MAX_DIMS ? envelope->rank : SL_MAX_DIMS,
    };
    memcpy(message->shape.dims, envelope->dims, (size_t)message->shape.rank * sizeof *envelope->dims);
}

static bool same_message(const sl_envelope *envelope, const sl_message *expected, size_t bytes)
{
    if (envelope->step != expected->step || envelope->microbatch != expected->microbatch ||
        envelope->dtype != (uint16_t)expected->dtype || envelope->rank != expected->shape.rank ||
        envelope->bytes != bytes)
        return false;
    for (int i = 0; i < expected->shape.rank; i++) {
        if (envelope->dims[i] != expected->shape.dims[i])
            return false;
    }
    return true;
}

static char *message_text(const sl_message *message, size_t bytes, char *text, size_t size)
{
    char shape[96];
    snprintf(text, size, "step %lld, microbatch %d, %s %s, %zu bytes", (long long)message->step, message->microbatch,
             sl_dtype_name(message->dtype), sl_shape_text(&message->shape, shape, sizeof shape), bytes);
    return text;
}

/* Collectives say in step, microbatch, dtype and shape which one it is, how large, and how far it has come. */
static char *collective_text(const sl_message *message, char *text, size_t size)
{
    snprintf(text, size, "collective %lld, %s of %lld x %s, at %lld", (long long)message->step,
             sl_collective_name(message->microbatch), (long long)message->shape.dims[0], sl_dtype_name(message->dtype),
             (long long)message->shape.dims[1]);
    return text;
}

static sl_status mismatch(const sl_channel *channel, const sl_envelope *envelope, const sl_message *expected,
                          size_t bytes)
{
    char ours[192], theirs[192];
    sl_message got;
    read_envelope(envelope, &got);
    if (channel->spec.id < 0)
        return sl_fail(SL_ERR_COMM, "the ranks call different collectives: rank %d %s; rank %d %s", channel->dst,
                       collective_text(expected, ours, sizeof ours), channel->src,
                       collective_text(&got, theirs, sizeof theirs));
    bool only_shape = got.step == expected->step && got.microbatch == expected->microbatch;
    return sl_fail(only_shape ? SL_ERR_SHAPE : SL_ERR_COMM,
                   "channel %d from rank %d to rank %d: the receiver expects %s; the sender sent %s", channel->spec.id,
                   channel->src, channel->dst, message_text(expected, bytes, ours, sizeof ours),
                   message_text(&got, envelope->bytes, theirs, sizeof theirs));
}

/* Everything about a message that came, before anybody uses it. */
static sl_status check_envelope(const sl_channel *channel, sl_envelope *envelope, const sl_message *expected,
                                size_t bytes)
{
    if (envelope->run_id != channel->link->run_id)
        return sl_fail(SL_ERR_COMM, "channel %d from rank %d: the receiver's run is %016llx, the sender's %016llx",
                       channel->spec.id, channel->src, (unsigned long long)channel->link->run_id,
                       (unsigned long long)envelope->run_id);
    if (envelope->channel != channel->spec.id)
        return sl_fail(SL_ERR_COMM, "a message for channel %d arrived on channel %d from rank %d", envelope->channel,
                       channel->spec.id, channel->src);
    if (envelope->bytes > channel->spec.max_bytes || envelope->rank > SL_MAX_DIMS)
        return sl_fail(SL_ERR_COMM, "channel %d from rank %d: a message of %llu bytes, %zu are the most",
                       channel->spec.id, channel->src, (unsigned long long)envelope->bytes, channel->spec.max_bytes);
    if (expected && !same_message(envelope, expected, bytes))
        return mismatch(channel, envelope, expected, bytes);
    if (envelope->flags & SL_ENVELOPE_CHECKSUM) {
        uint64_t sum = XXH3_64bits(sl_envelope_payload(envelope), envelope->bytes);
        if (sum != envelope->checksum)
            return sl_fail(SL_ERR_COMM,
                           "channel %d from rank %d, step %lld, microbatch %d: checksum %016llx, the sender's %016llx",
                           channel->spec.id, channel->src, (long long)envelope->step, envelope->microbatch,
                           (unsigned long long)sum, (unsigned long long)envelope->checksum);
    }
    return SL_OK;
}

/* ---- Waiting --------------------------------------------------------------------------------- */

static sl_wait wait_of(const sl_channel *channel, sl_wait_kind kind, const sl_message *message)
{
    return (sl_wait){
        .kind = kind,
        .channel = channel->spec.id,
        .peer = channel->is_src && kind != SL_WAIT_RECEIVE ? channel->dst : channel->src,
        .microbatch = message ? message->microbatch : -1,
        .step = message ? message->step : -1,
        .in_order = channel->group->in_order,
    };
}

/* Says whether a wait on this end could ever end. */
static sl_status check_peer(const sl_channel *channel, const sl_wait *wait)
{
    char text[256];
    if (sl_link_has_failed(channel->link))
        return sl_link_failure(channel->link, wait);
    if (channel->transport->peer_closed(channel->wire))
        return sl_fail(SL_ERR_PEER, "rank %d closed its end while rank %d was waiting %s", wait->peer,
                       channel->link->rank, sl_wait_text(wait, text, sizeof text));
    return SL_OK;
}

typedef sl_status (*peek_function)(sl_wire *wire, sl_envelope **out);

/* Waits until peek gives something; without block it gives NULL if that takes time. */
static sl_status await(sl_channel *channel, peek_function peek, const sl_wait *wait, bool block, sl_envelope **out)
{
    sl_status status = SL_OK;
    sl_pause pause = { .wait = *wait };
    bool last = false; /* the other end had closed before this look */
    for (;;) {
        SL_TRY(peek(channel->wire, out));
        if (*out)
            break;
        if (last)
            SL_TRY(check_peer(channel, wait));
        last = sl_link_has_failed(channel->link) || channel->transport->peer_closed(channel->wire);
        if (last)
            continue;
        if (!block)
            break;
        if (sl_link_progress(channel->link))
            continue;
        if (channel->is_src && channel->is_dst && atomic_load(&channel->in_flight) == 0) {
            char text[256];
            status = sl_fail(SL_ERR_COMM, "rank %d would wait for itself forever: %s", channel->link->rank,
                             sl_wait_text(wait, text, sizeof text));
            goto done;
        }
        SL_TRY(channel->transport->pause(channel->link, &pause));
    }
done:
    if (pause.armed)
        channel->transport->resume(channel->link, &pause);
    return status;
}

/* ---- In place, internal ---------------------------------------------------------------------- */

sl_status sl_channel_reserve_bytes(sl_channel *channel, const sl_message *message, size_t bytes, bool block,
                                   sl_envelope **out)
{
    sl_envelope *envelope = NULL;
    sl_wait wait = wait_of(channel, SL_WAIT_RESERVE, message);
    if (sl_link_has_failed(channel->link))
        return sl_link_failure(channel->link, &wait);
    sl_status status = await(channel, channel->transport->peek_slot, &wait, block, &envelope);
    if (status != SL_OK)
        return status;
    if (envelope) {
        channel->transport->take_slot(channel->wire);
        fill_envelope(channel, message, bytes, envelope);
    }
    *out = envelope;
    return SL_OK;
}

sl_status sl_channel_commit_envelope(sl_channel *channel, sl_envelope *envelope)
{
    if (channel->link->checksum) {
        envelope->checksum = XXH3_64bits(sl_envelope_payload(envelope), envelope->bytes);
        envelope->flags |= SL_ENVELOPE_CHECKSUM;
    }
    return channel->transport->commit(channel->wire, envelope);
}

sl_status sl_channel_receive_bytes(sl_channel *channel, const sl_message *expected, size_t bytes, bool block,
                                   sl_envelope **out)
{
    sl_envelope *envelope = NULL;
    sl_wait wait = wait_of(channel, SL_WAIT_RECEIVE, expected);
    if (sl_link_has_failed(channel->link))
        return sl_link_failure(channel->link, &wait);
    sl_status status = await(channel, channel->transport->peek_message, &wait, block, &envelope);
    if (status == SL_OK && envelope)
        status = check_envelope(channel, envelope, expected, bytes);
    if (status != SL_OK)
        return status;
    if (envelope)
        channel->transport->take_message(channel->wire);
    *out = envelope;
    return SL_OK;
}

/* ---- In place, public ------------------------------------------------------------------------ */

/* Refuses an end that this rank does not have. */
static sl_status check_end(const sl_channel *channel, bool receive)
{
    if (receive ? channel->is_dst : channel->is_src)
        return SL_OK;
    return sl_fail(SL_ERR_ARGUMENT, "channel %d goes from rank %d to rank %d: rank %d cannot %s on it",
                   channel->spec.id, channel->src, channel->dst, channel->link->rank, receive ? "receive" : "send");
}

static sl_status reserve(sl_channel *channel, const sl_message *message, bool block, void **data)
{
    sl_status status = SL_OK;
    size_t bytes = 0;
    sl_envelope *envelope = NULL;
    SL_TRY(check_end(channel, false));
    SL_TRY(message_bytes(channel, message, &bytes));
    SL_TRY(sl_channel_reserve_bytes(channel, message, bytes, block, &envelope));
    *data = envelope ? sl_envelope_payload(envelope) : NULL;
done:
    return status;
}

static sl_status receive(sl_channel *channel, const sl_message *expected, bool block, sl_message *got, void **data)
{
    sl_status status = SL_OK;
    size_t bytes = 0;
    sl_envelope *envelope = NULL;
    SL_TRY(check_end(channel, true));
    if (expected)
        SL_TRY(message_bytes(channel, expected, &bytes));
    SL_TRY(sl_channel_receive_bytes(channel, expected, bytes, block, &envelope));
    if (envelope && got)
        read_envelope(envelope, got);
    *data = envelope ? sl_envelope_payload(envelope) : NULL;
done:
    return status;
}

sl_status sl_channel_reserve(sl_channel *channel, const sl_message *message, void **data)
{
    return reserve(channel, message, true, data);
}

sl_status sl_channel_try_reserve(sl_channel *channel, const sl_message *message, void **data)
{
    return reserve(channel, message, false, data);
}

sl_status sl_channel_receive(sl_channel *channel, const sl_message *expected, sl_message *got, void **data)
{
    return receive(channel, expected, true, got, data);
}

sl_status sl_channel_try_receive(sl_channel *channel, const sl_message *expected, sl_message *got, void **data)
{
    return receive(channel, expected, false, got, data);
}

sl_status sl_channel_commit(sl_channel *channel, void *data)
{
    return sl_channel_commit_after(channel, data, NULL);
}

sl_status sl_channel_commit_after(sl_channel *channel, void *data, sl_stream *stream)
{
    if (!channel->is_src || !data)
        return sl_fail(SL_ERR_ARGUMENT, "commit: the memory is not a reserved slot of channel %d", channel->spec.id);
    if (sl_link_has_failed(channel->link))
        return sl_link_failure(channel->link, NULL);
    return sl_channel_hand_over(channel, (sl_envelope *)data - 1, SL_HANDOFF_COMMIT, stream);
}

sl_status sl_channel_release(sl_channel *channel, void *data)
{
    return sl_channel_release_after(channel, data, NULL);
}

sl_status sl_channel_release_after(sl_channel *channel, void *data, sl_stream *stream)
{
    if (!channel->is_dst || !data)
        return sl_fail(SL_ERR_ARGUMENT, "release: the memory is not a received message of channel %d",
                       channel->spec.id);
    return sl_channel_hand_over(channel, (sl_envelope *)data - 1, SL_HANDOFF_RELEASE, stream);
}

/* ---- Any of several -------------------------------------------------------------------------- */

/* The first channel that a call would not have to wait on: *ready, else unchanged. */
static sl_status look(sl_channel *const *channels, int count, int *ready)
{
    for (int i = 0; i < count; i++) {
        sl_channel *channel = channels[i];
        sl_envelope *envelope = NULL;
        sl_status status = SL_OK;
        if (channel->is_src)
            status = channel->transport->peek_slot(channel->wire, &envelope);
        if (status == SL_OK && !envelope && channel->is_dst)
            status = channel->transport->peek_message(channel->wire, &envelope);
        if (status != SL_OK)
            return status;
        if (envelope) {
            *ready = i;
            break;
        }
    }
    return SL_OK;
}

sl_status sl_channel_wait_any(sl_channel *const *channels, int count, int *ready)
{
    sl_status status = SL_OK;
    if (count < 1)
        return sl_fail(SL_ERR_ARGUMENT, "wait for any of %d channels", count);
    sl_link *link = channels[0]->link;
    sl_pause pause = { .wait = wait_of(channels[0], SL_WAIT_ANY, NULL) };
    int found = -1;
    bool last = false;
    while (found < 0) {
        SL_TRY(look(channels, count, &found));
        if (found >= 0)
            break;
        for (int i = 0; last && i < count; i++) {
            sl_wait wait = wait_of(channels[i], SL_WAIT_ANY, NULL);
            SL_TRY(check_peer(channels[i], &wait));
        }
        for (int i = 0; i < count && !last; i++)
            last = sl_link_has_failed(link) || channels[i]->transport->peer_closed(channels[i]->wire);
        if (!last && !sl_link_progress(link))
            SL_TRY(link->transport->pause(link, &pause));
    }
    *ready = found;
done:
    if (pause.armed)
        link->transport->resume(link, &pause);
    return status;
}
