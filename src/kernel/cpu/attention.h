/* What attention and its gradient share: heads as matrices, keys and values packed the other way round. */
#ifndef SL_KERNEL_CPU_ATTENTION_H
#define SL_KERNEL_CPU_ATTENTION_H

#include "kernel/cpu/cpu.h"

#include <stdatomic.h>

/* Queries and keys are taken in blocks whose scores fit the first-level cache. */
enum { SL_QUERIES = 48, SL_KEYS = 128, SL_KEY_VECTOR = 16 };

/* One head of a [B,T,H,D] tensor: rows of D elements, `step` apart. */
typedef struct sl_head {
    float *data;
    int64_t step;
} sl_head;

static inline float *sl_head_row(const sl_head *head, int64_t t)
{
    return head->data + t * head->step;
}

/* Rows of a head, queries or keys: first <= t < end. */
typedef struct sl_head_rows {
    int64_t first, end;
} sl_head_rows;

/* Some rows of a head in f32: as they lie if there is no buffer, or side by side in it, which has room for the whole head.
 * Rows of a [B,T,H,D] tensor lie so far apart that they crowd into few lines of the first-level cache. */
sl_head sl_head_read(const sl_simd *simd, const sl_view *view, int64_t b, int64_t h, sl_head_rows rows, float *buffer);
/* A head to write to: as it lies, or the buffer, which sl_head_end_write then copies or rounds. */
sl_head sl_head_place(const sl_view *view, int64_t b, int64_t h, float *buffer);
/* The same, and its rows hold what the tensor holds if `add`, else zeros. */
sl_head sl_head_begin_write(const sl_simd *simd, const sl_view *view, int64_t b, int64_t h, sl_head_rows rows, bool add,
                            float *buffer);
void sl_head_end_write(const sl_simd *simd, const sl_view *view, int64_t b, int64_t h, sl_head_rows rows,
                       const sl_head *head);

/* Bytes that one packed head of keys [B,S,Hkv,D] takes; also enough for a score of each key. */
static inline size_t sl_packed_head_bytes(const sl_shape *keys)
{
    int64_t rows = (keys->dims[1] + SL_KEYS - 1) / SL_KEYS * SL_KEYS, size = keys->dims[3] > 0 ? keys->dims[3] : 1;
    return (size_t)(rows * size) * sizeof(float);
}

/* Bytes of one head with `rows` rows that lie side by side. */
static inline size_t sl_own_head_bytes(const sl_view *view, int64_t rows)
{
    size_t bytes = (size_t)(rows * sl_dim_from_last(&view->meta, 1)) * sizeof(float);
    return (bytes + SL_DEVICE_ALIGNMENT - 1) / SL_DEVICE_ALIGNMENT * SL_DEVICE_ALIGNMENT;
}

/* Bytes of one head with `rows` rows that is widened; 0 for a tensor in f32. */
static inline size_t sl_wide_head_bytes(const sl_view *view, int64_t rows)
{
    return view->meta.dtype == SL_F32 ? 0 : sl_own_head_bytes(view, rows);
}

/* Block j of the result holds rows j * SL_KEYS.. as columns: [size][SL_KEYS], times scale; missing rows are 0. The first row
 * is that of a block. */
void sl_pack_head(const sl_simd *simd, const sl_head *head, sl_head_rows rows, int64_t size, float scale,
                  float *packed);

/* The column of a row; the next ones up to the end of its block follow it. */
static inline const float *sl_packed_row(const float *packed, int64_t size, int64_t row)
{
    return packed + row / SL_KEYS * SL_KEYS * size + row % SL_KEYS;
}

/* Heads are cut into so many pieces at most. */
enum { SL_HEAD_PIECES = 4 };

/* How threads share out the key/value heads of the batch: first `whole` of them one by one, then the first pieces of the
 * last `cut` heads, then their second pieces, and so on. So nobody waits long for a slow thread, and when a piece is
 * taken, the one before it most often is done. */
typedef struct sl_head_split {
    int64_t whole, cut;
    int pieces, parts;
} sl_head_split;

/* `count` heads that may be cut into `pieces`. */
sl_head_split sl_head_split_of(const sl_cpu *cpu, int64_t count, int pieces);

/* A call of attention or of its gradient. */
typedef struct sl_attention {
    const sl_simd *simd;
    const sl_pool *pool;
    const sl_tile *tile; /* all of bf16, or of f32, goes through it; NULL: multiply-adds in f32 */
    const sl_view *q, *k, *v;
    sl_rows lse; /* data is NULL if not wanted */
    const sl_view *o;
    const sl_view *d_o, *dq, *dk, *dv; /* gradient; else NULL */
    uint32_t add;                      /* gradient: bit i adds to dq, dk, dv */
    int64_t batch, t_size, keys;       /* queries; keys that are filled */
    int64_t h_size, kv_size, d_size;
    int64_t before; /* keys that query 0 sees beside its own */
    bool causal;
    int64_t window; /* keys that a query sees at most; 0: all that the mask leaves */
    /* Place of each query in its document, [B,T] with these strides; NULL: a row is one document. */
    const int32_t *positions;
    int64_t position_strides[2];
    float scale;
    float score_scale; /* what scores lack of the scale: 1 if the keys have it */
    float softcap;     /* scores become softcap * tanh(score / softcap); 0: they stay */
    bool drops;        /* some of the weights, by the stream */
    sl_dropout_stream stream;
    sl_head_split split;
    atomic_llong *next_unit; /* head or piece that nobody has taken */
    void *scratch;
    size_t part_bytes;   /* scratch of one thread */
    size_t packed_bytes; /* of one packed head, of which the scratch begins with one or two */
} sl_attention;

/* Takes memory from a thread's scratch; NULL for none. */
static inline float *sl_attention_memory(char **scratch, size_t bytes)
{
    float *taken = (float *)(void *)*scratch;
    if (bytes == 0)
        return NULL;
    *scratch += bytes;
    return taken;
}

/* All that q and the keys say; the other tensors are the caller's to add. positions: none, or as in sl_attention. */
sl_attention sl_attention_start(const sl_cpu *cpu, const sl_kernel_call *call, const sl_view *k, const sl_view *v,
                                const sl_view *positions);
/* Each thread takes one unit after the other, as long as there are some. */
void sl_attention_run(const sl_cpu *cpu, sl_attention *j, sl_pool_task task);

/* What a thread takes: key/value head g of sequence b, or a piece of it. */
typedef struct sl_head_unit {
    int64_t b, g;
    int64_t cut; /* its number among the heads in pieces */
    int piece, pieces;
} sl_head_unit;

/* Rows of a head lie far apart, so the processor does not see them coming: they are fetched beforehand. */
void sl_head_fetch(const sl_view *view, int64_t b, int64_t h, sl_head_rows rows);
/* The block of queries from `first` on, if there is one: what is read of them. */
void sl_attention_fetch_queries(const sl_attention *j, int64_t b, int64_t h, int64_t first, int64_t block);
/* While a unit is computed, the keys and values come closer of the one that this thread will probably take next: a share of
 * them with each of `shares` blocks of queries. */
void sl_attention_fetch_next(const sl_attention *j, const sl_head_unit *unit, int parts, int64_t share, int64_t shares,
                             int64_t block);

/* False if none is left. */
static inline bool sl_attention_take(const sl_attention *j, sl_head_unit *unit)
{
    const sl_head_split *split = &j->split;
    int64_t i = atomic_fetch_add_explicit(j->next_unit, 1, memory_order_relaxed), head = i;
    *unit = (sl_head_unit){ .pieces = 1 };
    if (i >= split->whole + split->cut * split->pieces)
        return false;
    if (i >= split->whole) {
        unit->cut = (i - split->whole) % split->cut;
        unit->piece = (int)((i - split->whole) / split->cut);
        unit->pieces = split->pieces;
        head = split->whole + unit->cut;
    }
    unit->b = head / j->kv_size;
    unit->g = head % j->kv_size;
    return true;
}

/* The rows of a piece, of `count` rows in blocks. */
static inline sl_head_rows sl_head_piece(int64_t count, int64_t block, int piece, int pieces)
{
    int64_t first, length;
    sl_chunk_range((count + block - 1) / block, pieces, piece, &first, &length);
    return (sl_head_rows){ first * block, (first + length) * block < count ? (first + length) * block : count };
}

/* Keys that query t sees, of the n from `key` on. */
static inline int64_t sl_attention_seen(const sl_attention *j, int64_t t, int64_t key, int64_t n)
{
    int64_t seen = (j->causal ? sl_least(j->before + t + 1, j->keys) : j->keys) - key;
    return seen < 0 ? 0 : sl_least(seen, n);
}

/* The first key that query t of row b may see: where its window and its document begin. */
static inline int64_t sl_attention_first(const sl_attention *j, int64_t b, int64_t t)
{
    int64_t first = j->window > 0 ? j->before + t + 1 - j->window : 0;
    if (j->positions) {
        int64_t start = t - j->positions[b * j->position_strides[0] + t * j->position_strides[1]];
        first = start > first ? start : first;
    }
    return first < 0 ? 0 : first;
}

/* How many of the n keys from `key` on it does not see, since they lie before that. */
static inline int64_t sl_attention_before(const sl_attention *j, int64_t b, int64_t t, int64_t key, int64_t n)
{
    int64_t first = sl_attention_first(j, b, t) - key;
    return first < 0 ? 0 : sl_least(first, n);
}

/* The key at which `count` queries from t on begin: none of them sees one before it. Vectors of keys begin there. */
static inline int64_t sl_attention_begin(const sl_attention *j, int64_t b, int64_t t, int64_t count)
{
    int64_t first = sl_attention_first(j, b, t);
    for (int64_t i = 1; j->positions && i < count; i++)
        first = sl_least(first, sl_attention_first(j, b, t + i));
    return first / SL_KEY_VECTOR * SL_KEY_VECTOR;
}

/* The block of keys from `key` on ends there, or at `limit`. */
static inline int64_t sl_attention_block_end(int64_t key, int64_t limit)
{
    return sl_least((key / SL_KEYS + 1) * SL_KEYS, limit);
}

/* The n weights of a row from `key` on, or their gradients; row = (b * H + h) * T + t. */
static inline void sl_attention_drop(const sl_attention *j, int64_t row, int64_t key, int64_t n, float *weights)
{
    if (j->drops)
        j->simd->dropout(&j->stream, weights, weights, n, (uint64_t)(row * j->keys + key), false);
}

/* ---- Rows of a block ------------------------------------------------------------------------- */

/* Running softmax of a query. */
typedef struct sl_running {
    float max, sum;
} sl_running;

/* A row's scores against a block of keys, of which it sees those from..seen: its maximum rises to the highest of them, and
 * what was summed before, in o, is rescaled. */
void sl_attention_raise_row(const sl_attention *j, sl_running *r, float *scores, int64_t from, int64_t seen, float *o);
/* Then they become weights, and the others of the n keys get none. */
void sl_attention_weigh_row(const sl_attention *j, sl_running *r, float *scores, int64_t from, int64_t seen, int64_t n);
/* All keys are done: o is divided by the sum, and the log-sum-exp written. */
void sl_attention_finish_row(const sl_attention *j, const sl_running *r, int64_t row, float *o);
/* Gradient: products p of a row become weights, and those of ds gradients of the scores; row = (b * H + h) * T + t. */
void sl_attention_row_weights(const sl_attention *j, int64_t row, int64_t key, int64_t from, int64_t seen, int64_t n,
                              float delta, float *p, float *ds);

/* ---- Gradient: heads in pieces --------------------------------------------------------------- */

/* One piece after the other adds to dq of query head i of the unit's group, which lies here in f32. */
float *sl_attention_cut_dq(const sl_attention *j, const sl_head_unit *unit, int64_t i);
/* Waits until the piece before is done, if there is one; says that this one is. */
void sl_attention_await_piece(const sl_attention *j, const sl_head_unit *unit);
void sl_attention_end_piece(const sl_attention *j, const sl_head_unit *unit);

/* ---- Through tiles --------------------------------------------------------------------------- */

/* The tile for the tensors of the call; NULL if there is none for them, or multiply-adds would be faster. */
const sl_tile *sl_attention_tile(const sl_attention *j);
/* Scratch of one thread; of dq of a query head. */
size_t sl_attention_tile_bytes(const sl_attention *j);
size_t sl_attention_tile_dq_bytes(const sl_attention *j);
void sl_attend_tiles_part(void *context, int part, int parts);
void sl_attention_grad_tiles_part(void *context, int part, int parts);

#endif
