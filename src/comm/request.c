/* Batches of transfers: posted together, moved along whenever the rank posts, waits or tests, in list order on each
 * channel and in any order across channels. */
#include "comm/request.h"
#include "comm/group.h"
#include "base/alloc.h"

#include <stdio.h>
#include <string.h>

struct move {
    sl_transfer transfer;
    size_t bytes;
    uint64_t ticket; /* its place among the channel's posted transfers of this direction */
    bool done;
};

struct sl_request {
    sl_link *link;
    struct sl_request *next; /* among the pending, or the spare */
    struct move *moves;
    size_t capacity;
    int count, left;
    sl_status status; /* once a transfer has failed, with its message */
    char message[1024];
};

static void unlink_pending(sl_request *request)
{
    sl_request **at = &request->link->pending;
    while (*at && *at != request)
        at = &(*at)->next;
    if (*at)
        *at = request->next;
}

/* Back to the spare ones; channels it leaves half way cannot be used any more. */
static void recycle(sl_request *request)
{
    unlink_pending(request);
    for (int i = 0; i < request->count; i++) {
        if (!request->moves[i].done && request->moves[i].transfer.channel)
            request->moves[i].transfer.channel->broken = true;
    }
    request->next = request->link->spare;
    request->link->spare = request;
}

static sl_status take_spare(sl_link *link, int count, sl_request **out)
{
    sl_status status = SL_OK;
    sl_request *request = link->spare;
    if (request)
        link->spare = request->next;
    else
        SL_TRY(SL_NEW(request));
    request->link = link;
    request->next = NULL;
    request->count = request->left = 0;
    request->status = SL_OK;
    status = SL_GROW(request->moves, &request->capacity, count);
    if (status != SL_OK) {
        request->next = link->spare;
        link->spare = request;
        return status;
    }
    *out = request;
done:
    return status;
}

static sl_status check_transfer(const sl_group *group, const sl_transfer *transfer, size_t *bytes)
{
    sl_channel *channel = transfer->channel;
    if (!channel || channel->link != group->link)
        return sl_fail(SL_ERR_ARGUMENT, "the channel is not of this group");
    sl_status status = sl_channel_check_end(channel, transfer->receive);
    if (status == SL_OK)
        status = sl_channel_message_bytes(channel, &transfer->message, bytes);
    if (status == SL_OK && *bytes > 0 && !transfer->data)
        status = sl_fail(SL_ERR_ARGUMENT, "channel %d: no memory for %zu bytes", channel->spec.id, *bytes);
    return status;
}

/* Moves one transfer if that needs no waiting. */
static sl_status try_move(struct move *move)
{
    sl_status status = SL_OK;
    const sl_transfer *transfer = &move->transfer;
    sl_channel *channel = transfer->channel;
    sl_envelope *envelope = NULL;
    if (move->ticket != channel->finished[transfer->receive])
        return SL_OK; /* another one is before it */
    if (transfer->receive) {
        SL_TRY(sl_channel_receive_bytes(channel, &transfer->message, move->bytes, false, &envelope));
        if (!envelope)
            return SL_OK;
        if (move->bytes > 0)
            memcpy(transfer->data, sl_envelope_payload(envelope), move->bytes);
        SL_TRY(channel->transport->release(channel->wire, envelope));
    } else {
        SL_TRY(sl_channel_reserve_bytes(channel, &transfer->message, move->bytes, false, &envelope));
        if (!envelope)
            return SL_OK;
        sl_channel_fill(sl_envelope_payload(envelope), transfer->data, move->bytes);
        SL_TRY(sl_channel_commit_envelope(channel, envelope));
    }
    move->done = true;
    channel->finished[transfer->receive]++;
done:
    return status;
}

/* One pass over everything that is pending; *moved tells whether anything went on, *others whether anything waits for
 * another rank. */
static void progress(sl_link *link, bool *moved, bool *others)
{
    *moved = *others = false;
    for (sl_request *request = link->pending; request; request = request->next) {
        for (int i = 0; i < request->count && request->status == SL_OK; i++) {
            struct move *move = &request->moves[i];
            if (move->done)
                continue;
            sl_channel *channel = move->transfer.channel;
            sl_status status = channel ? try_move(move) : sl_fail(SL_ERR_COMM, "the channel of a transfer was closed");
            if (status != SL_OK) {
                request->status = status;
                snprintf(request->message, sizeof request->message, "%s", sl_error_message());
            } else if (move->done) {
                request->left--;
                *moved = true;
            } else if (!(channel->is_src && channel->is_dst)) {
                *others = true;
            }
        }
    }
}

sl_status sl_group_post(sl_group *group, const sl_transfer *transfers, int count, sl_request **out)
{
    sl_status status = SL_OK;
    sl_request *request = NULL;
    sl_link *link = group->link;
    bool moved, others;
    if (count < 0)
        return sl_fail(SL_ERR_ARGUMENT, "post %d transfers", count);
    if (sl_link_has_failed(link))
        return sl_link_failure(link, NULL);
    SL_TRY(take_spare(link, count, &request));
    for (int i = 0; i < count; i++) {
        request->moves[i] = (struct move){ .transfer = transfers[i] };
        status = check_transfer(group, &transfers[i], &request->moves[i].bytes);
        if (status != SL_OK) {
            recycle(request); /* count is still 0: no channel suffers */
            return sl_fail_context(status, "transfer %d of %d", i, count);
        }
    }
    for (int i = 0; i < count; i++)
        request->moves[i].ticket = transfers[i].channel->posted[transfers[i].receive]++;
    request->count = request->left = count;

    sl_request **at = &link->pending;
    while (*at)
        at = &(*at)->next;
    *at = request;
    progress(link, &moved, &others);
    *out = request;
done:
    return status;
}

static sl_wait first_open_wait(const sl_request *request)
{
    for (int i = 0; i < request->count; i++) {
        const struct move *move = &request->moves[i];
        if (!move->done && move->transfer.channel)
            return (sl_wait){
                .kind = SL_WAIT_BATCH,
                .channel = move->transfer.channel->spec.id,
                .peer = move->transfer.receive ? move->transfer.channel->src : move->transfer.channel->dst,
                .microbatch = move->transfer.message.microbatch,
                .step = move->transfer.message.step,
            };
    }
    return (sl_wait){ .kind = SL_WAIT_NOTHING };
}

/* The request is over: its status, and the memory back. */
static sl_status finish(sl_request *request)
{
    sl_status status = request->status;
    if (status != SL_OK)
        sl_fail(status, "%s", request->message);
    recycle(request);
    return status;
}

sl_status sl_request_test(sl_request *request, bool *done)
{
    bool moved, others;
    sl_status status = SL_OK;
    progress(request->link, &moved, &others);
    bool over = request->left == 0 || request->status != SL_OK;
    if (over)
        status = finish(request);
    if (status == SL_OK)
        *done = over;
    return status;
}

sl_status sl_request_wait(sl_request *request)
{
    sl_status status = SL_OK;
    sl_link *link = request->link;
    sl_pause pause = { .wait = first_open_wait(request) };
    for (;;) {
        bool moved, others;
        progress(link, &moved, &others);
        if (request->left == 0 || request->status != SL_OK)
            break;
        if (moved)
            continue;
        if (!others) {
            char text[256];
            request->status = SL_ERR_COMM;
            snprintf(request->message, sizeof request->message, "rank %d would wait for itself forever: %s", link->rank,
                     sl_wait_text(&pause.wait, text, sizeof text));
            break;
        }
        SL_TRY(link->transport->pause(link, &pause));
    }
done:
    if (pause.armed)
        link->transport->resume(link, &pause);
    if (status == SL_OK)
        return finish(request);
    recycle(request);
    return status;
}

void sl_requests_forget(sl_link *link, const sl_channel *channel)
{
    for (sl_request *request = link->pending; request; request = request->next) {
        for (int i = 0; i < request->count; i++) {
            if (request->moves[i].transfer.channel == channel)
                request->moves[i].transfer.channel = NULL;
        }
    }
}

static void free_list(sl_request *request)
{
    while (request) {
        sl_request *next = request->next;
        sl_free(request->moves);
        sl_free(request);
        request = next;
    }
}

void sl_requests_free(sl_link *link)
{
    free_list(link->pending);
    free_list(link->spare);
    link->pending = link->spare = NULL;
}
