/* From one sharding to another: which pieces move. */
#include "sharding/sharding.h"

#include "base/alloc.h"
#include "sharding/box_index.h"

#include <stdlib.h>

/* Which copy a rank reads: the one that it holds shards of. */
typedef struct rank_copy {
    int rank, copy;
} rank_copy;

/* What is read: an index of the shards of each copy. */
typedef struct reshard_source {
    const sl_sharding *sharding;
    int copies, run;
    sl_box_index **indexes; /* one a copy */
    rank_copy *readers;     /* sorted by rank, each once; NULL: there is one copy */
    int reader_count;
} reshard_source;

static int by_rank(const void *a, const void *b)
{
    const rank_copy *x = a, *y = b;
    return x->rank != y->rank ? (x->rank > y->rank) - (x->rank < y->rank) : x->copy - y->copy;
}

static int by_rank_alone(const void *a, const void *b)
{
    const rank_copy *x = a, *y = b;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

/* A rank with shards of several copies reads the first of them. */
static sl_status list_readers(reshard_source *source)
{
    sl_status status = SL_OK;
    const sl_sharding *sharding = source->sharding;
    SL_TRY(SL_NEW_ARRAY(source->readers, sharding->count));
    for (int i = 0; i < sharding->count; i++)
        source->readers[i] = (rank_copy){ .rank = sharding->shards[i].placement.rank, .copy = i / source->run };
    qsort(source->readers, (size_t)sharding->count, sizeof *source->readers, by_rank);
    for (int i = 0; i < sharding->count; i++) {
        if (i == 0 || source->readers[i].rank != source->readers[source->reader_count - 1].rank)
            source->readers[source->reader_count++] = source->readers[i];
    }
done:
    return status;
}

static void close_source(reshard_source *source)
{
    for (int c = 0; source->indexes && c < source->copies; c++)
        sl_box_index_destroy(source->indexes[c]);
    sl_free(source->indexes);
    sl_free(source->readers);
}

static sl_status open_source(const sl_sharding *sharding, reshard_source *out)
{
    sl_status status = SL_OK;
    reshard_source source = { .sharding = sharding,
                              .copies = sharding->copies > 1 ? sharding->copies : 1,
                              .run = sl_sharding_run(sharding) };
    SL_TRY(SL_NEW_ARRAY(source.indexes, source.copies));
    for (int c = 0; c < source.copies; c++)
        SL_TRY(sl_box_index_create(sharding->shards + (ptrdiff_t)c * source.run, source.run, &source.indexes[c]));
    if (source.copies > 1)
        SL_TRY(list_readers(&source));
    *out = source;
    source = (reshard_source){ 0 };
done:
    close_source(&source);
    return status;
}

static int copy_for(const reshard_source *source, int rank)
{
    const rank_copy key = { .rank = rank };
    const rank_copy *found = NULL;
    if (source->readers)
        found = bsearch(&key, source->readers, (size_t)source->reader_count, sizeof key, by_rank_alone);
    return found ? found->copy : 0;
}

sl_status sl_reshard_plan(const sl_sharding *from, const sl_sharding *to, sl_shard_move **out, int *count)
{
    sl_status status = SL_OK;
    sl_shard_move *moves = NULL;
    reshard_source source = { 0 };
    sl_box_hits hits = { 0 };
    size_t capacity = 0;
    int used = 0;

    if (!sl_shape_equal(&from->size, &to->size) || from->properties.dtype != to->properties.dtype) {
        char expected[160], given[160];
        return sl_fail(SL_ERR_SHAPE, "a reshard from %s %s to %s %s", sl_dtype_name(from->properties.dtype),
                       sl_shape_text(&from->size, given, sizeof given), sl_dtype_name(to->properties.dtype),
                       sl_shape_text(&to->size, expected, sizeof expected));
    }
    SL_TRY(SL_GROW(moves, &capacity, 1));
    SL_TRY(open_source(from, &source));
    for (int t = 0; t < to->count; t++) {
        int copy = copy_for(&source, to->shards[t].placement.rank);
        SL_TRY(sl_box_index_find(source.indexes[copy], &to->shards[t], &hits));
        SL_TRY(SL_GROW(moves, &capacity, used + hits.count));
        for (int h = 0; h < hits.count; h++) {
            sl_shard_move *move = &moves[used++];
            *move = (sl_shard_move){ .from = copy * source.run + hits.shards[h], .to = t };
            sl_box_intersect(&from->shards[move->from], &to->shards[t], move->offsets, &move->size);
        }
    }
    *out = moves;
    *count = used;
    moves = NULL;
done:
    close_source(&source);
    sl_free(hits.shards);
    sl_free(moves);
    return status;
}
