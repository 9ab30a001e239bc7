/* Arena of chained chunks; a chunk doubles in size up to a limit, large objects get their own. */
#include "base/arena.h"

#include "base/alloc.h"

#include <stdalign.h>
#include <stdio.h>
#include <string.h>

#define FIRST_CHUNK ((size_t)4096)
#define LARGEST_CHUNK ((size_t)1 << 20)

typedef struct chunk {
    struct chunk *next;
    size_t capacity;
    size_t used;
    alignas(max_align_t) char data[];
} chunk;

struct sl_arena {
    chunk *head; /* the chunk that is being filled */
    size_t next_capacity;
    size_t bytes;
};

sl_status sl_arena_create(sl_arena **out)
{
    sl_arena *arena = NULL;
    sl_status status = SL_NEW(arena);
    if (status != SL_OK)
        return status;
    arena->next_capacity = FIRST_CHUNK;
    *out = arena;
    return SL_OK;
}

void sl_arena_destroy(sl_arena *arena)
{
    if (!arena)
        return;
    for (chunk *next, *each = arena->head; each; each = next) {
        next = each->next;
        sl_free(each);
    }
    sl_free(arena);
}

static sl_status add_chunk(sl_arena *arena, size_t needed)
{
    size_t capacity = needed > arena->next_capacity ? needed : arena->next_capacity;
    chunk *fresh = NULL;
    sl_status status = sl_alloc(1, sizeof *fresh + capacity, (void **)&fresh);
    if (status != SL_OK)
        return status;
    fresh->capacity = capacity;
    fresh->next = arena->head;
    arena->head = fresh;
    arena->bytes += sizeof *fresh + capacity;
    if (arena->next_capacity < LARGEST_CHUNK)
        arena->next_capacity *= 2;
    return SL_OK;
}

sl_status sl_arena_alloc(sl_arena *arena, size_t count, size_t size, void **out)
{
    size_t bytes;
    size_t align = alignof(max_align_t);
    if (__builtin_mul_overflow(count, size, &bytes) || bytes > SIZE_MAX / 2)
        return sl_fail(SL_ERR_MEMORY, "out of memory: %zu x %zu bytes", count, size);
    bytes = bytes == 0 ? align : (bytes + align - 1) / align * align;
    if (!arena->head || arena->head->capacity - arena->head->used < bytes) {
        sl_status status = add_chunk(arena, bytes);
        if (status != SL_OK)
            return status;
    }
    *out = arena->head->data + arena->head->used;
    arena->head->used += bytes;
    return SL_OK;
}

sl_status sl_arena_copy(sl_arena *arena, const void *data, size_t bytes, void **out)
{
    void *copy = NULL;
    sl_status status = sl_arena_alloc(arena, bytes, 1, &copy);
    if (status != SL_OK)
        return status;
    if (bytes)
        memcpy(copy, data, bytes);
    *out = copy;
    return SL_OK;
}

sl_status sl_arena_strdup(sl_arena *arena, const char *text, char **out)
{
    return sl_arena_copy(arena, text, strlen(text) + 1, (void **)out);
}

sl_status sl_arena_printf(sl_arena *arena, char **out, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    char *text = NULL;
    sl_status status = sl_arena_alloc(arena, (size_t)length + 1, 1, (void **)&text);
    if (status == SL_OK) {
        vsnprintf(text, (size_t)length + 1, format, again);
        *out = text;
    }
    va_end(again);
    return status;
}

size_t sl_arena_bytes(const sl_arena *arena)
{
    return arena->bytes;
}
