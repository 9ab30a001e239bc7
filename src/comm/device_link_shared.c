/* Links through shared memory of devices: slots in the receiver's block, and two words for each message of a step. Its tag
 * lies with the receiver, who waits for it; `released` lies with the sender, who waits for it before it fills the slot with a
 * later message. Words are written once a step and cleared between steps, so a message costs each end one word, and its
 * release nothing if no later message needs the slot. */
#include "comm/device_link.h"

#include "base/alloc.h"
#include "device/share.h"

enum { SLOT_ALIGNMENT = 256 };

/* What one channel has. */
typedef struct shared_end {
    /* Offsets: of the record and the slots in the receiver's block, of `released` in the sender's. */
    size_t record_at, slots_at, released_at;
    /* The same as addresses of this rank's device; NULL if this rank has no end. */
    uint32_t *record;   /* the step, then the tag of each message that has arrived; odd */
    uint32_t *released; /* (messages) 1: the receiver is done with it */
} shared_end;

struct shared_links {
    shared_end *ends;  /* (count) by the numbers of the list */
    char *block;       /* this rank's; NULL: it has no end */
    void **attached;   /* (ranks) the blocks of the others; NULL: not needed */
    size_t records;    /* words at the beginning of this rank's block: those that this rank receives */
    size_t releases;   /* words behind them: those of the links it sends on; its slots come next */
    uint32_t *fetched; /* (records) on the host */
    uint32_t *looked;  /* a link's record, on the host */
    sl_word_use *told; /* (count) the step, to each link that this rank sends on */
};

static bool is_shared(const sl_device_link *link)
{
    return link->kind == &sl_device_link_shared;
}

static bool has_end(const sl_device_link *link)
{
    return is_shared(link) && (link->sends || link->receives);
}

static shared_end *end_of(const sl_device_links *links, const sl_device_link *link)
{
    return &links->shared->ends[link - links->list];
}

/* ---- Blocks ---------------------------------------------------------------------------------- */

static size_t round_up(size_t bytes)
{
    return (bytes + SLOT_ALIGNMENT - 1) / SLOT_ALIGNMENT * SLOT_ALIGNMENT;
}

/* Where everything lies in the blocks of all ranks; *bytes of this rank's own. */
static sl_status lay_out(sl_device_links *links, size_t *bytes)
{
    sl_status status = SL_OK;
    int rank = sl_group_rank(links->group);
    struct shared_links *shared = links->shared;
    size_t *used = NULL;
    SL_TRY(SL_NEW_ARRAY(used, sl_group_size(links->group)));
    for (int i = 0; i < links->count; i++) {
        const sl_device_link *link = &links->list[i];
        shared->ends[i].record_at = used[link->spec.dst];
        if (is_shared(link))
            used[link->spec.dst] += (1 + (size_t)links->messages) * sizeof(uint32_t);
    }
    shared->records = used[rank] / sizeof(uint32_t);
    for (int i = 0; i < links->count; i++) {
        const sl_device_link *link = &links->list[i];
        shared->ends[i].released_at = used[link->spec.src];
        if (is_shared(link))
            used[link->spec.src] += (size_t)links->messages * sizeof(uint32_t);
    }
    shared->releases = used[rank] / sizeof(uint32_t) - shared->records;
    for (int i = 0; i < links->count; i++) {
        sl_device_link *link = &links->list[i];
        if (!is_shared(link))
            continue;
        link->stride = round_up(link->spec.max_bytes ? link->spec.max_bytes : 1);
        shared->ends[i].slots_at = round_up(used[link->spec.dst]);
        used[link->spec.dst] = shared->ends[i].slots_at + link->stride * (size_t)link->spec.capacity;
    }
    *bytes = used[rank];
done:
    sl_free(used);
    return status;
}

/* Takes this rank's block and says in *handle how others find it. */
static sl_status take_block(sl_device_links *links, size_t bytes, sl_device_handle *handle)
{
    sl_status status = SL_OK;
    struct shared_links *shared = links->shared;
    if (bytes == 0)
        return SL_OK;
    SL_TRY(sl_device_alloc_host(links->device, (shared->records + 1 + (size_t)links->messages) * sizeof(uint32_t),
                                (void **)&shared->fetched));
    shared->looked = shared->fetched + shared->records;
    SL_TRY(sl_device_share(links->device, bytes, handle, (void **)&shared->block));
    SL_TRY(sl_device_words_add(links->words, (uint32_t *)(void *)shared->block, shared->records + shared->releases));
done:
    return status;
}

/* The ranks with whom this one shares a link. */
static void find_peers(const sl_device_links *links, uint8_t *wanted)
{
    for (int i = 0; i < links->count; i++) {
        const sl_device_link *link = &links->list[i];
        if (has_end(link))
            wanted[link->sends ? link->spec.dst : link->spec.src] = 1;
    }
}

/* What both ends can reach stays a link. */
static sl_status connect_blocks(sl_device_links *links)
{
    sl_status status = SL_OK;
    int ranks = sl_group_size(links->group);
    size_t bytes = 0;
    sl_device_handle own = { { 0 } };
    uint8_t *wanted = NULL, *all = NULL;
    SL_TRY(lay_out(links, &bytes));
    SL_TRY(SL_NEW_ARRAY(wanted, ranks));
    SL_TRY(SL_NEW_ARRAY(all, (int64_t)ranks * ranks));
    SL_TRY(take_block(links, bytes, &own));
    find_peers(links, wanted);
    SL_TRY(sl_device_attach_peers(links->group, links->device, &own, wanted, links->shared->attached, all, links->why));
    for (int i = 0; i < links->count; i++) {
        sl_device_link *link = &links->list[i];
        int src = link->spec.src, dst = link->spec.dst;
        if (is_shared(link) && !(all[src * ranks + dst] && all[dst * ranks + src])) {
            sl_device_links_set_reason(links, "ranks cannot reach each other's memory");
            link->kind = NULL;
        }
    }
done:
    sl_free(all);
    sl_free(wanted);
    return status;
}

/* Offsets become addresses. */
static void bind_ends(sl_device_links *links)
{
    struct shared_links *shared = links->shared;
    for (int i = 0; i < links->count; i++) {
        sl_device_link *link = &links->list[i];
        shared_end *end = &shared->ends[i];
        if (!has_end(link))
            continue;
        char *receiver = link->sends ? shared->attached[link->spec.dst] : shared->block;
        char *sender = link->sends ? shared->block : shared->attached[link->spec.src];
        end->record = (uint32_t *)(void *)(receiver + end->record_at);
        link->slots = receiver + end->slots_at;
        end->released = (uint32_t *)(void *)(sender + end->released_at);
    }
}

static sl_status open_links(sl_device_links *links, const sl_rank_offer *offers)
{
    sl_status status = SL_OK;
    (void)offers;
    SL_TRY(SL_NEW(links->shared));
    SL_TRY(SL_NEW_ARRAY(links->shared->ends, links->count));
    SL_TRY(SL_NEW_ARRAY(links->shared->told, links->count));
    SL_TRY(SL_NEW_ARRAY(links->shared->attached, sl_group_size(links->group)));
    SL_TRY(connect_blocks(links));
    bind_ends(links);
done:
    return status;
}

static void close_links(sl_device_links *links)
{
    struct shared_links *shared = links->shared;
    if (!shared)
        return;
    if (shared->block)
        sl_device_words_remove(links->words, (uint32_t *)(void *)shared->block);
    for (int r = 0; shared->attached && r < sl_group_size(links->group); r++)
        sl_device_detach(links->device, shared->attached[r]);
    sl_device_unshare(links->device, shared->block);
    sl_device_free_host(links->device, shared->fetched);
    sl_free(shared->attached);
    sl_free(shared->told);
    sl_free(shared->ends);
    sl_free(shared);
    links->shared = NULL;
}

/* ---- A step ---------------------------------------------------------------------------------- */

/* No rank releases a message of the step before it has come, which is after this in the order of the stream. */
static sl_status clear_releases(sl_device_links *links, sl_stream *out)
{
    sl_status status = SL_OK;
    const struct shared_links *shared = links->shared;
    sl_stream *stream = links->polled ? sl_device_words_side(links->words) : out; /* where they are looked at */
    if (shared->releases == 0)
        return SL_OK;
    SL_TRY(sl_stream_memset(stream, (uint32_t *)(void *)shared->block + shared->records, 0,
                            shared->releases * sizeof(uint32_t)));
    if (links->polled)
        SL_TRY(sl_stream_synchronize(stream));
done:
    return status;
}

static sl_status begin(sl_device_links *links, sl_stream *out)
{
    sl_status status = SL_OK;
    int count = 0;
    SL_TRY(clear_releases(links, out));
    for (int i = 0; i < links->count; i++) {
        const sl_device_link *link = &links->list[i];
        if (is_shared(link) && link->sends)
            links->shared->told[count++] = (sl_word_use){ .kind = SL_WORD_WRITE,
                                                          .word = end_of(links, link)->record,
                                                          .value = (uint32_t)links->step };
    }
    SL_TRY(sl_stream_use_words(out, links->shared->told, count));
done:
    return status;
}

/* The first messages of a step find free slots. */
static sl_status reserve(sl_device_links *links, sl_device_link *link, int slot, sl_stream *stream)
{
    int before = link->number[slot] - link->spec.capacity;
    if (before < 0)
        return SL_OK;
    return sl_device_words_await(links->words, &end_of(links, link)->released[before], links->polled, stream);
}

static sl_status commit(sl_device_links *links, sl_device_link *link, int slot, sl_stream *stream)
{
    int number = link->number[slot];
    const sl_word_use use = { .kind = SL_WORD_WRITE,
                              .word = &end_of(links, link)->record[1 + number],
                              .value = link->tags[number] };
    return sl_stream_use_words(stream, &use, 1);
}

static sl_status receive(sl_device_links *links, sl_device_link *link, int slot, sl_stream *stream)
{
    uint32_t *word = &end_of(links, link)->record[1 + link->number[slot]];
    return sl_device_words_await(links->words, word, links->polled, stream);
}

/* Nobody waits for the last ones of a step. */
static sl_status release(sl_device_links *links, sl_device_link *link, int slot, sl_stream *stream)
{
    int number = link->number[slot];
    const sl_word_use use = { .kind = SL_WORD_WRITE, .word = &end_of(links, link)->released[number], .value = 1 };
    return number + link->spec.capacity < links->messages ? sl_stream_use_words(stream, &use, 1) : SL_OK;
}

static sl_status fetch(sl_device_links *links, sl_stream *in)
{
    sl_status status = SL_OK;
    const struct shared_links *shared = links->shared;
    size_t bytes = shared->records * sizeof(uint32_t);
    if (bytes == 0)
        return SL_OK;
    SL_TRY(sl_stream_copy(in, SL_COPY_DEVICE_TO_HOST, shared->fetched, shared->block, bytes));
    SL_TRY(sl_stream_memset(in, shared->block, 0, bytes));
done:
    return status;
}

static sl_status get_record(sl_device_links *links, const sl_device_link *link, const uint32_t **out)
{
    *out = links->shared->fetched + end_of(links, link)->record_at / sizeof(uint32_t);
    return SL_OK;
}

static sl_status count_sent(sl_device_links *links, const sl_device_link *link, int *out)
{
    sl_status status = SL_OK;
    sl_stream *side = sl_device_words_side(links->words);
    uint32_t *looked = links->shared->looked;
    int count = 0;
    SL_TRY(sl_stream_copy(side, SL_COPY_DEVICE_TO_HOST, looked, end_of(links, link)->record,
                          (1 + (size_t)links->messages) * sizeof *looked));
    SL_TRY(sl_stream_synchronize(side));
    if (looked[0] != (uint32_t)links->step) /* the receiver has cleared it, or the sender has not begun */
        count = link->sends ? links->messages : 0;
    while (count < links->messages && looked[1 + count])
        count++;
    *out = count;
done:
    return status;
}

static sl_status has_room(sl_device_links *links, const sl_device_link *link, int number, bool *out)
{
    sl_status status = SL_OK;
    sl_stream *side = sl_device_words_side(links->words);
    uint32_t *looked = links->shared->looked;
    int before = number - link->spec.capacity;
    *looked = 1;
    if (before >= 0)
        SL_TRY(sl_stream_copy(side, SL_COPY_DEVICE_TO_HOST, looked, &end_of(links, link)->released[before],
                              sizeof *looked));
    SL_TRY(sl_stream_synchronize(side));
    *out = *looked == 1;
done:
    return status;
}

static const char *get_way(const sl_device_links *links, const sl_device_link *link)
{
    (void)links;
    (void)link;
    return "handed over by streams";
}

const sl_device_link_kind sl_device_link_shared = {
    .get_way = get_way,
    .can_capture = true,
    .find_obstacle = sl_rank_obstacle,
    .open = open_links,
    .close = close_links,
    .begin = begin,
    .reserve = reserve,
    .commit = commit,
    .receive = receive,
    .release = release,
    .fetch = fetch,
    .get_record = get_record,
    .count_sent = count_sent,
    .has_room = has_room,
};
