/* Collectives on devices from the inside: what all kinds have in common, and what a kind provides. */
#ifndef SL_COMM_COLLECTIVE_KIND_H
#define SL_COMM_COLLECTIVE_KIND_H

#include "comm/device_collective.h"
#include "comm/request.h"

typedef struct sl_collective_kind sl_collective_kind;

/* Every kind's struct begins with it. */
struct sl_device_collective {
    const sl_collective_kind *kind;
    sl_device_words *words;
    sl_group *group;
    sl_device *device;
    sl_device_sum_fn sum;
    bool any_order; /* it adds in another order than that of the ranks; open takes it back if it does not */
    int rank, ranks;
    const char *way;      /* of the data, for people; set by open */
    int communicators;    /* of NCCL; set by open */
    const void **sources; /* room for those of one sum */
    int source_room;
};

/* Each kind is one const table, listed in device_collective.c. What has been checked before: dtypes can be summed. */
struct SL_NAMED_FIELDS sl_collective_kind {
    /* NULL if the ranks may try; else why not, "" if nobody asked. All ranks find the same. */
    const char *(*find_obstacle)(const sl_rank_offer *offers, int ranks);
    /* Collective. *out becomes NULL, on all ranks, if it cannot be had; reason as sl_device_collective_open. head has the
     * common part, sources apart. */
    sl_status (*open)(const sl_device_collective *head, const sl_rank_offer *offers, size_t bytes, char *reason,
                      sl_device_collective **out);
    void (*close)(sl_device_collective *collective);

    sl_status (*all_gather)(sl_device_collective *collective, const sl_bucket_item *items, int count,
                            sl_stream *stream);
    sl_status (*reduce_scatter)(sl_device_collective *collective, const sl_bucket_item *items, int count, int rows,
                                sl_dtype dtype, sl_stream *stream);
    sl_status (*sum_parts)(sl_device_collective *collective, const sl_device_part *parts, int part_count, int64_t count,
                           sl_dtype dtype, sl_stream *stream);
    sl_status (*broadcast)(sl_device_collective *collective, int root, void *data, size_t bytes, sl_stream *stream);
};

extern const sl_collective_kind sl_collective_shared, sl_collective_carried;

/* ---- Buckets ---- */

/* Some elements of a bucket that lie in one item. */
typedef struct sl_bucket_span {
    const sl_bucket_item *item;
    int64_t first;  /* in the item */
    int64_t offset; /* in the window */
    int64_t count;
} sl_bucket_span;

/* A range of what all items have, one after another, and how far one has come in it. */
typedef struct sl_bucket_walk {
    const sl_bucket_item *items;
    int item_count;
    int64_t at, left; /* from here on */
    int64_t passed;
} sl_bucket_walk;

/* From `at` on, `most` elements if there are so many. */
sl_bucket_walk sl_bucket_window(const sl_bucket_item *items, int count, int64_t at, int64_t most);
bool sl_bucket_next(sl_bucket_walk *walk, sl_bucket_span *out);

/* What a reduce-scatter is about. */
typedef struct sl_scatter_sum {
    const sl_bucket_item *items;
    int item_count, ranks, rows;
    sl_dtype dtype;
    size_t each, slot; /* bytes of an element, of a rank's slot in staging memory */
} sl_scatter_sum;

sl_scatter_sum sl_scatter_sum_of(const sl_device_collective *collective, const sl_bucket_item *items, int count,
                                 int rows, sl_dtype dtype); /* without its slot */
/* Where a rank's part of an item begins in what this rank has of it. */
const char *sl_scatter_part(const sl_scatter_sum *sum, const sl_bucket_item *item, int rank);

/* ---- Sums of parts ---- */

/* What all ranks know of a sum: who adds up what, in rounds. */
typedef struct sl_parts_sum {
    const sl_device_part *parts;
    int part_count, most_parts; /* of all ranks; of one */
    int ranks;
    sl_dtype dtype;
    size_t each, slot;    /* bytes of an element, of a part's slot in staging memory */
    int64_t count, piece; /* elements; those that a rank adds up in a round, at most */
} sl_parts_sum;

sl_parts_sum sl_parts_sum_of(const sl_device_collective *collective, const sl_device_part *parts, int part_count,
                             int64_t count, sl_dtype dtype);
/* The round's piece of the range that a rank adds up: from *first on. */
int64_t sl_parts_sum_piece(const sl_parts_sum *sum, int rank, int64_t round, int64_t *first);
bool sl_parts_sum_has(const sl_parts_sum *sum, int64_t round); /* there is one more */
/* Which of its rank's parts it is. */
int sl_parts_sum_number(const sl_parts_sum *sum, int part);

/* The bytes and elements of a slot if `room` bytes have so many of them. It begins at an aligned address and has room for a
 * running sum. */
SL_MUST_CHECK sl_status sl_collective_slot(size_t room, int slots, sl_dtype dtype, size_t *bytes, int64_t *elements);
size_t sl_collective_align(size_t bytes); /* rounds up */

#endif
