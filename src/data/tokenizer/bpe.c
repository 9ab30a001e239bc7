/* Byte-pair merging with a heap of merge_candidate pairs: n log n in the length of the piece, whatever the text. */
#include "data/tokenizer/bpe.h"

#include "base/alloc.h"

typedef struct merge_slot {
    uint64_t pair; /* left << 32 | right; EMPTY in a free slot */
    int32_t rank, merged;
} merge_slot;

/* A pair that may be merged. Stale if one of its sides has changed since. */
typedef struct merge_candidate {
    int32_t rank;
    uint32_t at; /* place of the left side */
    uint64_t pair;
    int32_t merged;
} merge_candidate;

/* A token of the piece, linked so that merged ones drop out. */
typedef struct symbol {
    int32_t id; /* GONE if it was merged into the one before */
    uint32_t before, after;
} symbol;

#define EMPTY UINT64_MAX
#define NONE UINT32_MAX
enum { GONE = -1 };

struct bpe {
    merge_slot *slots; /* open addressing; a power of two */
    size_t slot_count, used;
};

struct bpe_work {
    const bpe *merges; /* of the piece at hand */
    merge_candidate *heap;
    size_t heap_capacity, heap_count;
    symbol *symbols;
    size_t symbol_capacity;
};

/* ---- Merges ---------------------------------------------------------------------------------- */

static uint64_t pair_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static size_t slot_of(const bpe *merges, uint64_t pair)
{
    uint64_t hash = (pair ^ pair >> 29) * 0x9e3779b97f4a7c15u;
    size_t at = (size_t)(hash >> 20) & (merges->slot_count - 1);
    while (merges->slots[at].pair != EMPTY && merges->slots[at].pair != pair)
        at = (at + 1) & (merges->slot_count - 1);
    return at;
}

static sl_status resize(bpe *merges, size_t slot_count)
{
    merge_slot *old = merges->slots, *slots = NULL;
    size_t old_count = merges->slot_count;
    sl_status status = SL_NEW_ARRAY(slots, slot_count);
    if (status != SL_OK)
        return status;
    for (size_t i = 0; i < slot_count; i++)
        slots[i].pair = EMPTY;
    merges->slots = slots;
    merges->slot_count = slot_count;
    for (size_t i = 0; i < old_count; i++) {
        if (old[i].pair != EMPTY)
            slots[slot_of(merges, old[i].pair)] = old[i];
    }
    sl_free(old);
    return SL_OK;
}

sl_status sl_bpe_create(bpe **out)
{
    bpe *merges = NULL;
    sl_status status = SL_OK;
    SL_TRY(SL_NEW(merges));
    SL_TRY(resize(merges, 1024));
    *out = merges;
    merges = NULL;
done:
    sl_bpe_destroy(merges);
    return status;
}

void sl_bpe_destroy(bpe *merges)
{
    if (!merges)
        return;
    sl_free(merges->slots);
    sl_free(merges);
}

sl_status sl_bpe_work_create(bpe_work **out)
{
    bpe_work *work = NULL;
    sl_status status = SL_NEW(work);
    if (status == SL_OK)
        *out = work;
    return status;
}

void sl_bpe_work_destroy(bpe_work *work)
{
    if (!work)
        return;
    sl_free(work->heap);
    sl_free(work->symbols);
    sl_free(work);
}

sl_status sl_bpe_add(bpe *merges, int32_t left, int32_t right, int32_t rank, int32_t merged)
{
    sl_status status = SL_OK;
    if (2 * (merges->used + 1) > merges->slot_count)
        SL_TRY(resize(merges, 2 * merges->slot_count));
    merge_slot *slot = &merges->slots[slot_of(merges, pair_of(left, right))];
    if (slot->pair == EMPTY) {
        *slot = (merge_slot){ pair_of(left, right), rank, merged };
        merges->used++;
    }
done:
    return status;
}

/* ---- Heap ------------------------------------------------------------------------------------ */

static bool earlier(const merge_candidate *a, const merge_candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static sl_status heap_push(bpe_work *work, merge_candidate item)
{
    sl_status status = SL_GROW(work->heap, &work->heap_capacity, work->heap_count + 1);
    if (status != SL_OK)
        return status;
    size_t at = work->heap_count++;
    while (at > 0 && earlier(&item, &work->heap[(at - 1) / 2])) {
        work->heap[at] = work->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    work->heap[at] = item;
    return SL_OK;
}

static merge_candidate heap_pop(bpe_work *work)
{
    merge_candidate *heap = work->heap, top = heap[0], last = heap[--work->heap_count];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= work->heap_count)
            break;
        if (child + 1 < work->heap_count && earlier(&heap[child + 1], &heap[child]))
            child++;
        if (!earlier(&heap[child], &last))
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = last;
    return top;
}

/* ---- Merging --------------------------------------------------------------------------------- */

/* Offers the pair that begins at a symbol, if it merges at all. */
static sl_status offer(bpe_work *work, uint32_t at)
{
    const symbol *left = &work->symbols[at];
    if (left->after == NONE)
        return SL_OK;
    uint64_t pair = pair_of(left->id, work->symbols[left->after].id);
    const merge_slot *slot = &work->merges->slots[slot_of(work->merges, pair)];
    if (slot->pair == EMPTY)
        return SL_OK;
    return heap_push(work, (merge_candidate){ slot->rank, at, pair, slot->merged });
}

/* Whether the pair is still there: both sides as they were when it was offered. */
static bool is_current(const bpe_work *work, const merge_candidate *item)
{
    const symbol *left = &work->symbols[item->at];
    return left->id != GONE && left->after != NONE && pair_of(left->id, work->symbols[left->after].id) == item->pair;
}

static sl_status apply(bpe_work *work, const merge_candidate *item)
{
    sl_status status = SL_OK;
    symbol *left = &work->symbols[item->at], *right = &work->symbols[left->after];
    left->id = item->merged;
    left->after = right->after;
    right->id = GONE;
    if (left->after != NONE)
        work->symbols[left->after].before = item->at;
    if (left->before != NONE)
        SL_TRY(offer(work, left->before));
    SL_TRY(offer(work, item->at));
done:
    return status;
}

sl_status sl_bpe_merge(const bpe *merges, bpe_work *work, int32_t *ids, size_t count, size_t *out)
{
    sl_status status = SL_OK;
    size_t left = 0;

    work->merges = merges;
    if (count >= NONE)
        return sl_fail(SL_ERR_UNSUPPORTED, "a piece of %zu bytes without a break is too long", count);
    SL_TRY(SL_GROW(work->symbols, &work->symbol_capacity, count));
    for (size_t i = 0; i < count; i++)
        work->symbols[i] = (symbol){ ids[i], i > 0 ? (uint32_t)i - 1 : NONE, i + 1 < count ? (uint32_t)i + 1 : NONE };
    work->heap_count = 0;
    for (size_t i = 0; i + 1 < count; i++)
        SL_TRY(offer(work, (uint32_t)i));
    while (work->heap_count > 0) {
        merge_candidate item = heap_pop(work);
        if (is_current(work, &item))
            SL_TRY(apply(work, &item));
    }
    for (size_t i = 0; i < count; i++) {
        if (work->symbols[i].id != GONE)
            ids[left++] = work->symbols[i].id;
    }
    *out = left;
done:
    return status;
}
