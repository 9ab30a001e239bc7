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
    size_t words;      /* of this rank's block, before its slots */
    size_t records;    /* of them, at its beginning */
    uint32_t *fetched; /* (records) on the host */
    uint32_t *seen;    /* one word, on the host */
    uint32_t *looked;  /* a link's record, on the host */
    sl_word_use *ones; /* (words) writes 1 to each */
};

static const char *find_obstacle(const sl_rank_offer *offers, int ranks, int a, int b)
{
    int neighbors = 0;
    for (int r = 0; r < ranks; r++)
        neighbors += offers[r].machine == offers[a].machine && offers[r].process == offers[a].process;
    if (a == b)
        return "a rank sends to itself";
    if (offers[a].wish == SL_LINKS_NCCL)
        return "";
    if (offers[a].limit == 0 || offers[b].limit == 0)
        return "a device shares no memory (SLUICE_DEVICE_LINKS)";
    if (offers[a].kind != offers[b].kind)
        return "the devices are of different kinds";
    if (offers[a].machine == 0 || offers[a].machine != offers[b].machine)
        return "ranks are on several machines";
    if (neighbors > offers[a].limit)
        return "too many ranks are threads of one process";
    return NULL;
}

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
    shared->words = used[rank] / sizeof(uint32_t);
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
    for (int i = 0; i < links->count; i++) {
        const sl_device_link *link = &links->list[i];
        if (!is_shared(link) || !link->sends)
            continue;
        size_t first = end_of(links, link)->free_at / sizeof(uint32_t);
        SL_TRY(sl_stream_use_words(links->side, &links->shared->ones[first], link->spec.capacity));
    }
    SL_TRY(sl_stream_synchronize(links->side));
done:
    return status;
}

/* Takes this rank's block and says in *handle how others find it. */
static sl_status take_block(sl_device_links *links, size_t bytes, sl_device_handle *handle)
{
    sl_status status = SL_OK;
    struct shared_links *shared = links->shared;
    if (bytes == 0)
        return SL_OK;
    SL_TRY(sl_device_links_prepare(links));
    size_t looked = 1 + (size_t)links->messages;
    SL_TRY(sl_device_alloc_host(links->device, (shared->records + 1 + looked) * sizeof(uint32_t),
                                (void **)&shared->fetched));
    shared->seen = shared->fetched + shared->records;
    shared->looked = shared->seen + 1;
    SL_TRY(sl_device_share(links->device, bytes, handle, (void **)&shared->block));
    SL_TRY(SL_NEW_ARRAY(shared->ones, (int64_t)shared->words));
    for (size_t w = 0; w < shared->words; w++)
        shared->ones[w] =
            (sl_word_use){ .kind = SL_WORD_WRITE, .word = (uint32_t *)(void *)shared->block + w, .value = 1 };
    SL_TRY(fill_words(links));
done:
    return status;
}

/* Attaches the blocks of those with whom this rank shares a link; reached[r]: could be reached. */
static void attach(sl_device_links *links, const sl_device_handle *handles, uint8_t *reached)
{
    void **attached = links->shared->attached;
    for (int i = 0; i < links->count; i++) {
        const sl_device_link *link = &links->list[i];
        if (!has_end(link))
            continue;
        int peer = link->sends ? link->spec.dst : link->spec.src;
        if (attached[peer])
            continue;
        reached[peer] = sl_device_attach(links->device, &handles[peer], &attached[peer]) == SL_OK;
        if (!reached[peer])
            sl_device_links_set_reason(links, sl_error_message());
    }
}

/* What both ends can reach stays a link. */
static sl_status connect_blocks(sl_device_links *links)
{
    sl_status status = SL_OK;
    int ranks = sl_group_size(links->group);
    size_t bytes = 0;
    sl_device_handle own = { { 0 } }, *handles = NULL;
    uint8_t *reached = NULL, *all = NULL;
    SL_TRY(lay_out(links, &bytes));
    SL_TRY(SL_NEW_ARRAY(handles, ranks));
    SL_TRY(SL_NEW_ARRAY(reached, ranks));
    SL_TRY(SL_NEW_ARRAY(all, (int64_t)ranks * ranks));
    SL_TRY(take_block(links, bytes, &own));
    SL_TRY(sl_group_all_gather(links->group, &own, sizeof own, handles));
    attach(links, handles, reached);
    SL_TRY(sl_group_all_gather(links->group, reached, (size_t)ranks, all));
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
    sl_free(reached);
    sl_free(handles);
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
    for (int r = 0; shared->attached && r < sl_group_size(links->group); r++)
        sl_device_detach(links->device, shared->attached[r]);
    sl_device_unshare(links->device, shared->block);
    sl_device_free_host(links->device, shared->fetched);
    sl_free(shared->ones);
    sl_free(shared->attached);
    sl_free(shared->ends);
    sl_free(shared);
    links->shared = NULL;
}

/* ---- A step ---------------------------------------------------------------------------------- */

/* Until the word is 1, on the host. */
static sl_status poll_word(sl_device_links *links, const uint32_t *word)
{
    sl_status status = SL_OK;
    uint32_t *seen = links->shared->seen;
    double since = sl_now();
    sl_device_links_count_waiting(links, 1);
    do {
        SL_TRY(sl_group_progress(links->group));
        SL_TRY(sl_stream_copy(links->side, SL_COPY_DEVICE_TO_HOST, seen, word, sizeof *word));
        SL_TRY(sl_stream_synchronize(links->side));
        sl_device_links_pause(since);
    } while (*seen != 1);
done:
    sl_device_links_count_waiting(links, -1);
    return status;
}

/* Waits for the word and takes it back, so that the next wait is for the next write. */
static sl_status take_word(sl_device_links *links, uint32_t *word, sl_stream *stream)
{
    sl_status status = SL_OK;
    const sl_word_use uses[] = { { .kind = SL_WORD_WAIT, .word = word, .value = 1 },
                                 { .kind = SL_WORD_WRITE, .word = word, .value = 0 } };
    if (links->polled)
        SL_TRY(poll_word(links, word));
    SL_TRY(sl_stream_use_words(stream, uses, 2));
done:
    return status;
}

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
    return take_word(links, &end_of(links, link)->free[slot], stream);
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
    return take_word(links, &end_of(links, link)->arrived[slot], stream);
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
    uint32_t *looked = links->shared->looked;
    int count = 0;
    SL_TRY(sl_stream_copy(links->side, SL_COPY_DEVICE_TO_HOST, looked, end_of(links, link)->record,
                          (1 + (size_t)links->messages) * sizeof *looked));
    SL_TRY(sl_stream_synchronize(links->side));
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
    uint32_t *seen = links->shared->seen;
    SL_TRY(sl_stream_copy(links->side, SL_COPY_DEVICE_TO_HOST, seen, &end_of(links, link)->free[slot], sizeof *seen));
    SL_TRY(sl_stream_synchronize(links->side));
    *out = *seen == 1;
done:
    return status;
}

static bool let_through(sl_device_links *links)
{
    const struct shared_links *shared = links->shared;
    return !shared->block || (sl_stream_use_words(links->side, shared->ones + shared->records,
                                                  (int)(shared->words - shared->records)) == SL_OK &&
                              sl_stream_synchronize(links->side) == SL_OK);
}

const sl_device_link_kind sl_device_link_shared = {
    .way = "handed over by streams",
    .can_capture = true,
    .find_obstacle = find_obstacle,
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
    .let_through = let_through,
};
