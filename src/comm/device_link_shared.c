/* Links through shared memory of devices: slots in the receiver's block, and words that say whose turn it is. Who waits for
 * a word has it in its own block: `arrived` of a slot lies with the receiver, `free` with the sender. */
#include "comm/device_link.h"

#include "base/alloc.h"
#include "device/share.h"

enum { SLOT_ALIGNMENT = 256 };

/* What one channel has. */
typedef struct shared_end {
    /* Offsets: of the records, the words `arrived` and the slots in the receiver's block, of `free` in the sender's. */
    size_t record_at, arrived_at, slots_at, free_at;
    /* The same as addresses of this rank's device; NULL if this rank has no end. */
    uint32_t *record; /* the step, then a tag for each message of the step */
    uint32_t *arrived, *free;
} shared_end;

struct shared_links {
    shared_end *ends;  /* (count) by the numbers of the list */
    char *block;       /* this rank's; NULL: it has no end */
    void **attached;   /* (ranks) the blocks of the others; NULL: not needed */
    size_t records;    /* words at the beginning of this rank's block */
    size_t turns;      /* words behind them: whose turn it is; its slots come next */
    uint32_t *fetched; /* (records) on the host */
    uint32_t *looked;  /* a link's record, on the host */
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
        size_t words = is_shared(link) ? (size_t)link->spec.capacity * sizeof(uint32_t) : 0;
        shared->ends[i].arrived_at = used[link->spec.dst];
        used[link->spec.dst] += words;
        shared->ends[i].free_at = used[link->spec.src];
        used[link->spec.src] += words;
    }
    shared->turns = used[rank] / sizeof(uint32_t) - shared->records;
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

/* The words are zero but those of the free slots. */
static sl_status fill_words(sl_device_links *links)
{
    sl_status status = SL_OK;
    sl_stream *side = sl_device_words_side(links->words);
    for (int i = 0; i < links->count; i++) {
        const sl_device_link *link = &links->list[i];
        for (int s = 0; is_shared(link) && link->sends && s < link->spec.capacity; s++) {
            uint32_t *word = (uint32_t *)(void *)(links->shared->block + end_of(links, link)->free_at) + s;
            const sl_word_use one = { .kind = SL_WORD_WRITE, .word = word, .value = 1 };
            SL_TRY(sl_stream_use_words(side, &one, 1));
        }
    }
    SL_TRY(sl_stream_synchronize(side));
done:
    return status;
}

static uint32_t *turn_words(const struct shared_links *shared)
{
    return (uint32_t *)(void *)shared->block + shared->records;
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
    SL_TRY(sl_device_words_add(links->words, turn_words(shared), shared->turns));
    SL_TRY(fill_words(links));
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
    SL_TRY(
        sl_device_attach_peers(links->group, links->device, &own, wanted, links->shared->attached, all, links->reason));
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
        end->arrived = (uint32_t *)(void *)(receiver + end->arrived_at);
        link->slots = receiver + end->slots_at;
        end->free = (uint32_t *)(void *)(sender + end->free_at);
    }
}

static sl_status open_links(sl_device_links *links, const sl_rank_offer *offers)
{
    sl_status status = SL_OK;
    (void)offers;
    SL_TRY(SL_NEW(links->shared));
    SL_TRY(SL_NEW_ARRAY(links->shared->ends, links->count));
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
        sl_device_words_remove(links->words, turn_words(shared));
    for (int r = 0; shared->attached && r < sl_group_size(links->group); r++)
        sl_device_detach(links->device, shared->attached[r]);
    sl_device_unshare(links->device, shared->block);
    sl_device_free_host(links->device, shared->fetched);
    sl_free(shared->attached);
    sl_free(shared->ends);
    sl_free(shared);
    links->shared = NULL;
}

/* ---- A step ---------------------------------------------------------------------------------- */

static sl_status begin(sl_device_links *links, sl_stream *out)
{
    sl_status status = SL_OK;
    for (int i = 0; i < links->count; i++) {
        const sl_device_link *link = &links->list[i];
        const sl_word_use use = { .kind = SL_WORD_WRITE,
                                  .word = end_of(links, link)->record,
                                  .value = (uint32_t)links->step };
        if (is_shared(link) && link->sends)
            SL_TRY(sl_stream_use_words(out, &use, 1));
    }
done:
    return status;
}

static sl_status reserve(sl_device_links *links, sl_device_link *link, int slot, sl_stream *stream)
{
    return sl_device_words_take(links->words, &end_of(links, link)->free[slot], NULL, links->polled, stream);
}

static sl_status commit(sl_device_links *links, sl_device_link *link, int slot, sl_stream *stream)
{
    const shared_end *end = end_of(links, link);
    int number = link->number[slot];
    const sl_word_use uses[] = {
        { .kind = SL_WORD_WRITE, .word = &end->record[1 + number], .value = link->tags[number] },
        { .kind = SL_WORD_WRITE, .word = &end->arrived[slot], .value = 1 },
    };
    return sl_stream_use_words(stream, uses, 2);
}

static sl_status receive(sl_device_links *links, sl_device_link *link, int slot, sl_stream *stream)
{
    return sl_device_words_take(links->words, &end_of(links, link)->arrived[slot], NULL, links->polled, stream);
}

static sl_status release(sl_device_links *links, sl_device_link *link, int slot, sl_stream *stream)
{
    const sl_word_use use = { .kind = SL_WORD_WRITE, .word = &end_of(links, link)->free[slot], .value = 1 };
    return sl_stream_use_words(stream, &use, 1);
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

static sl_status has_room(sl_device_links *links, const sl_device_link *link, int slot, bool *out)
{
    sl_status status = SL_OK;
    sl_stream *side = sl_device_words_side(links->words);
    uint32_t *looked = links->shared->looked;
    SL_TRY(sl_stream_copy(side, SL_COPY_DEVICE_TO_HOST, looked, &end_of(links, link)->free[slot], sizeof *looked));
    SL_TRY(sl_stream_synchronize(side));
    *out = *looked == 1;
done:
    return status;
}

const sl_device_link_kind sl_device_link_shared = {
    .way = "handed over by streams",
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
