/* Arena: many small objects that live and die together. */
#ifndef SL_BASE_ARENA_H
#define SL_BASE_ARENA_H

#include <sluice/base.h>

typedef struct sl_arena sl_arena;

SL_MUST_CHECK sl_status sl_arena_create(sl_arena **out);
void sl_arena_destroy(sl_arena *arena); /* frees all that came from it; NULL is fine */

/* Zeroed, aligned for any type; lives as long as the arena. */
SL_MUST_CHECK sl_status sl_arena_alloc(sl_arena *arena, size_t count, size_t size, void **out);
SL_MUST_CHECK sl_status sl_arena_copy(sl_arena *arena, const void *data, size_t bytes, void **out);
SL_MUST_CHECK sl_status sl_arena_strdup(sl_arena *arena, const char *text, char **out);
SL_MUST_CHECK sl_status sl_arena_printf(sl_arena *arena, char **out, const char *format, ...) SL_PRINTF(3, 4);
size_t sl_arena_bytes(const sl_arena *arena); /* taken from the system so far */

#define SL_ARENA_NEW(arena, pointer) sl_arena_alloc((arena), 1, sizeof *(pointer), (void **)&(pointer))
#define SL_ARENA_ARRAY(arena, pointer, count)                                                                          \
    sl_arena_alloc((arena), (size_t)(count), sizeof *(pointer), (void **)&(pointer))

#endif
