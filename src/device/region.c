#include "device/region.h"

#include "base/alloc.h"

/* All of the range, by offset: blocks and the gaps between them. No two gaps are neighbors. */
typedef struct region_part {
    size_t offset, room;
    size_t bytes; /* asked for */
    bool used;
    struct region_part *next;
} region_part;

struct sl_region {
    char *start;
    region_part *parts;
};

sl_status sl_region_create(void *start, size_t bytes, sl_region **out)
{
    sl_status status = SL_OK;
    sl_region *region = NULL;
    SL_TRY(SL_NEW(region));
    SL_TRY(SL_NEW(region->parts));
    region->start = start;
    region->parts->room = bytes / SL_REGION_ALIGNMENT * SL_REGION_ALIGNMENT;
    *out = region;
    region = NULL;
done:
    sl_region_destroy(region);
    return status;
}

void sl_region_destroy(sl_region *region)
{
    if (!region)
        return;
    while (region->parts) {
        region_part *next = region->parts->next;
        sl_free(region->parts);
        region->parts = next;
    }
    sl_free(region);
}

void *sl_region_start(const sl_region *region)
{
    return region->start;
}

sl_status sl_region_take(sl_region *region, size_t bytes, void **out)
{
    sl_status status = SL_OK;
    if (bytes > SIZE_MAX - SL_REGION_ALIGNMENT)
        return SL_OK;
    size_t units = (bytes + SL_REGION_ALIGNMENT - 1) / SL_REGION_ALIGNMENT;
    size_t room = (units ? units : 1) * SL_REGION_ALIGNMENT; /* a block of no bytes has an address, too */
    region_part *part = region->parts;
    while (part && (part->used || part->room < room))
        part = part->next;
    if (!part)
        return SL_OK;
    if (part->room > room) {
        region_part *rest = NULL;
        SL_TRY(SL_NEW(rest));
        *rest = (region_part){ .offset = part->offset + room, .room = part->room - room, .next = part->next };
        part->next = rest;
        part->room = room;
    }
    part->used = true;
    part->bytes = bytes;
    *out = region->start + part->offset;
done:
    return status;
}

static void join_with_next(region_part *part)
{
    region_part *next = part->next;
    if (part->used || !next || next->used)
        return;
    part->room += next->room;
    part->next = next->next;
    sl_free(next);
}

bool sl_region_give(sl_region *region, const void *block, size_t *bytes)
{
    region_part *before = NULL, *part = region->parts;
    while (part && !(part->used && region->start + part->offset == (const char *)block)) {
        before = part;
        part = part->next;
    }
    if (!part)
        return false;
    part->used = false;
    *bytes = part->bytes;
    join_with_next(part);
    if (before)
        join_with_next(before);
    return true;
}

size_t sl_region_free_bytes(const sl_region *region)
{
    size_t bytes = 0;
    for (const region_part *part = region->parts; part; part = part->next)
        bytes += part->used ? 0 : part->room;
    return bytes;
}

bool sl_region_is_empty(const sl_region *region)
{
    return !region->parts->used && !region->parts->next;
}
