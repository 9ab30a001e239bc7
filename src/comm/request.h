/* Collectives as lists of moves. A request is one collective of one group on its way: a script gives its moves one by
 * one, and a move that cannot be made yet is tried again whenever the rank waits for something. The members of a group
 * post the same collectives in the same order, and a group's requests move one after another, so the list order is the
 * same everywhere; in it the member that has come least far can always go on.
 *
 * Memory of a device that is not the host's is reached by copies on the request's stream: a move is made once its copies
 * have been given to the stream, with what follows them (a commit, a release, a sum) as host functions in its order. */
#ifndef SL_COMM_REQUEST_H
#define SL_COMM_REQUEST_H

#include "comm/group.h"
#include "comm/mesh.h"
#include "device/backend.h"

/* Up to this much, sending everything to everyone is quicker than two rounds of parts. Such sums pass through the
 * request's own memory. */
#define SL_SMALL_BYTES 4096

typedef enum sl_move_kind {
    SL_MOVE_SEND,      /* from -> member */
    SL_MOVE_FETCH,     /* member -> to */
    SL_MOVE_KEEP,      /* from -> to */
    SL_MOVE_REDUCE,    /* to = the reduction of all members' pieces, of which from is this rank's own */
    SL_MOVE_ADD,       /* what member has summed so far, if any, plus from -> next, or to if there is none */
    SL_MOVE_FORWARD,   /* member -> next */
    SL_MOVE_SUM_BOARD, /* to = the reduction of what the board holds */
    SL_MOVE_TO_HOST,   /* from, on the device -> the request's own memory */
    SL_MOVE_FROM_HOST, /* the request's own memory -> to, on the device */
} sl_move_kind;

typedef struct sl_move {
    sl_move_kind kind;
    int member, next; /* -1: none */
    int64_t at;       /* place of the piece in the whole, the same number on both sides */
    bool in_bucket;   /* the memory is `bytes` bytes of a member's parts of the bucket's items, from `first` on: */
    int part;         /* whose parts */
    size_t first;     /* counted over the parts of all items, one after another */
    const char *from; /* not in a bucket: */
    char *to;
    size_t bytes; /* ADD, FORWARD: of the elements as they are given */
    bool last;    /* ADD: the sum is whole and has the given dtype again */
} sl_move;

/* Gives the next move; false at the end. */
typedef bool (*sl_script)(sl_request *request, sl_move *out);

/* A sum that a stream is to make: members' pieces lie in envelopes, this rank's own in the request's staging. */
typedef struct sl_reduction {
    sl_request *request;
    sl_move move;
    const void *sources[SL_MESH_DIRECT];
    sl_envelope *envelopes[SL_MESH_DIRECT]; /* ADD: [0] the sum so far, [1] the slot for the next */
    _Atomic bool busy;
} sl_reduction;

struct sl_request {
    sl_group *group;
    sl_request *next_request; /* of all that the group has */
    sl_request *next;         /* in the group's queue */
    sl_request *after;        /* of another group: it ends before this begins; NULL: none, or it has ended */
    bool taken;               /* posted, and not waited for to the end */
    _Atomic bool done;
    _Atomic bool in_stream; /* the stream has not passed all of it */
    sl_status status;       /* once done, with its message */
    char text[512];

    sl_message message; /* shape: what all ranks must agree on (elements or bytes), how far the piece has come */
    sl_script script;
    sl_move move;
    bool has_move;

    /* What the scripts go by. */
    const sl_bucket_item *items; /* all-gather, reduce-scatter */
    int item_count;
    sl_bucket_item one; /* of a bucket with one item */
    char *recv;
    const sl_blobs *blobs;
    size_t bytes;  /* of each member's part, or of the whole */
    int64_t count; /* elements, likewise */
    sl_dtype dtype;
    sl_reduce reduce;
    int rows;     /* reduce-scatter: member m's part is in row m % rows, column m / rows; 1: parts lie by member */
    size_t each;  /* bytes an element */
    size_t piece; /* most bytes a message */
    int root;
    bool scatters;         /* reduce-scatter: items' send has all parts, and recv one */
    bool staged;           /* goes through small: */
    char *far;             /* from and to here, on the device */
    sl_script near_script; /* with this in between */
    char *result;          /* of what goes over the board; recv is the board */
    bool on_board;

    /* How far the script has come. */
    int part, i;
    int64_t round;

    int arrived;                            /* REDUCE: pieces that are there, in rank order */
    sl_envelope *envelopes[SL_MESH_DIRECT]; /* by member; ADD, FORWARD: [0] what came, [1] the slot for the next */

    sl_stream *stream;    /* NULL: the memory is the host's */
    bool asked_host;      /* TO_HOST has been given to the stream */
    _Atomic bool at_host; /* and is through */
    char *staging;        /* the stream's, for one piece */
    sl_reduction reductions[SL_MESH_SLOTS];
    int reduction;
    _Alignas(64) char small[SL_SMALL_BYTES];
};

/* Takes a request of the group's and fills in what all have in common. count: what all ranks must agree on. */
sl_status sl_request_take(sl_group *group, sl_collective which, sl_dtype dtype, int64_t count, sl_stream *stream,
                          sl_request **out);
/* Starts it. */
void sl_request_start(sl_request *request, sl_script script);
/* Makes the request's move if that needs no waiting; *made tells. */
sl_status sl_request_make_move(sl_request *request, bool *made);

/* Moves along whatever the rank has posted, if that needs no waiting; true if anything went on. */
bool sl_link_progress(sl_link *link);

/* Gathers the members' parts of `bytes` bytes in recv, over the tree; part is 2 while they come down. */
bool sl_next_tree_gather(sl_request *request, sl_move *out);
/* What all items of a bucket have. */
int64_t sl_bucket_count(const sl_bucket_item *items, int count);
/* Waits for the request, and returns the failure of the run if there is one. */
sl_status sl_request_finish(sl_request *request);

/* Waits until all that the group has posted is done. */
sl_status sl_group_drain(sl_group *group);
/* Frees the requests of a group that closes, done or not. */
void sl_requests_free(sl_group *group);

/* The i-th other member to turn to, i in 1 ... size-1: each rank starts with another, so that not all turn to one. */
static inline int sl_member_after(const sl_group *group, int i)
{
    return (group->rank + i) % group->size;
}

static inline int sl_member_before(const sl_group *group, int i)
{
    return (group->rank - i + group->size) % group->size;
}

#endif
