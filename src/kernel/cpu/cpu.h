/* What the fast kernels share: the machine they run on, rows of tensors, loops over elements, the split over threads.
 */
#ifndef SL_KERNEL_CPU_CPU_H
#define SL_KERNEL_CPU_CPU_H

#include "device/pool.h"
#include "kernel/call.h"
#include "kernel/cpu/simd.h"

typedef struct sl_cpu {
    sl_pool *pool;
    const sl_simd *simd;
} sl_cpu;

/* ---- Kernels --------------------------------------------------------------------------------- */

/* The fast kernel of an op. So that the memory layout never changes a bit of the result, what a call computes depends
 * on its dtypes and shapes alone: accepts() looks at nothing else, and tensors that the kernel does not take as they lie
 * are copied into scratch (and results back) rather than given to other code. */
typedef struct SL_NAMED_FIELDS sl_cpu_kernel {
    bool (*accepts)(const sl_kernel_call *call); /* if false the reference kernel runs */
    sl_status (*run)(const sl_cpu *cpu, const sl_kernel_call *call);
    bool halves; /* reads and writes bf16 and f16 itself; else such tensors are copied to f32 in scratch */
    /* Whether this tensor of the call can be used as it lies; NULL: any strides will do. */
    bool (*takes)(const sl_kernel_call *call, const sl_view *view);
    /* Bytes of scratch of an accepted call; NULL if none is needed. */
    size_t (*scratch)(const sl_cpu *cpu, const sl_kernel_call *call);
    /* As in sl_kernel_table, for an accepted call; NULL if no argument can be packed. */
    size_t (*packed_bytes)(const sl_kernel_call *call);
    void (*pack)(const sl_cpu *cpu, const sl_kernel_call *call, void *to);
} sl_cpu_kernel;

extern const sl_cpu_kernel sl_cpu_unary, sl_cpu_binary, sl_cpu_swiglu, sl_cpu_swiglu_grad, sl_cpu_adamw, sl_cpu_sgd;
extern const sl_cpu_kernel sl_cpu_layernorm, sl_cpu_rmsnorm, sl_cpu_norm_grad_x, sl_cpu_norm_grad_w;
extern const sl_cpu_kernel sl_cpu_softmax, sl_cpu_softmax_grad, sl_cpu_cross_entropy, sl_cpu_cross_entropy_grad;
extern const sl_cpu_kernel sl_cpu_embedding, sl_cpu_embedding_grad, sl_cpu_rope;
extern const sl_cpu_kernel sl_cpu_sum, sl_cpu_max, sl_cpu_square_sum;
extern const sl_cpu_kernel sl_cpu_copy_kernel, sl_cpu_cast, sl_cpu_concat, sl_cpu_fill, sl_cpu_dropout;
extern const sl_cpu_kernel sl_cpu_linear, sl_cpu_linear_grad_x, sl_cpu_linear_grad_w, sl_cpu_matmul;
extern const sl_cpu_kernel sl_cpu_attention, sl_cpu_attention_grad, sl_cpu_attention_cached;

/* Sums of the squares of several tensors in one job, with the bits of one call after the other. False, and nothing was done:
 * the calls are others, or not as the kernel takes them. */
bool sl_cpu_square_sums(const sl_cpu *cpu, const sl_kernel_call *calls, int count);

/* The entries of the table for peaks. */
double sl_cpu_measure_peak(sl_device *device);
double sl_cpu_measure_product_peak(sl_device *device, sl_dtype dtype);
/* Products in this dtype have an instruction that is faster than multiply-adds in f32. */
bool sl_cpu_products_beat_fma(sl_dtype dtype);
/* What all threads reach together by the clock, over about so many seconds: less than the peak if the machine is shared or
 * its clock falls. Multiply-adds in f32; products in the dtype. */
double sl_cpu_measure_sustained(sl_device *device, double seconds);
double sl_cpu_measure_product_sustained(sl_device *device, sl_dtype dtype, double seconds);
/* Steps a second of a chain of multiplications, the mean of all threads: the clock as the work just done has left it, in a
 * unit that depends on the processor. */
double sl_cpu_measure_clock(sl_device *device);

/* For accepts: all data of the call is f32, bf16 or f16. */
bool sl_cpu_is_narrow(const sl_kernel_call *call);
/* Some of it is bf16 or f16. */
bool sl_cpu_has_halves(const sl_kernel_call *call);
/* For takes: the last dim is contiguous. */
bool sl_cpu_takes_rows(const sl_kernel_call *call, const sl_view *view);

static inline int64_t sl_divide_up(int64_t value, int64_t by)
{
    return (value + by - 1) / by;
}

static inline int64_t sl_round_up_to(int64_t value, int64_t unit)
{
    return sl_divide_up(value, unit) * unit;
}

static inline int64_t sl_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline bool sl_dtype_is_half(sl_dtype dtype)
{
    return dtype == SL_BF16 || dtype == SL_F16;
}

/* y = x, or y += x; same shape, each f32, bf16 or f16, any strides. */
void sl_cpu_copy(const sl_cpu *cpu, const sl_view *x, const sl_view *y, bool add);

/* ---- Rows ------------------------------------------------------------------------------------ */

/* The leading dims of a tensor merged as far as its strides allow, so that finding a row is cheap. */
typedef struct sl_rows {
    void *data; /* NULL for an absent tensor */
    sl_dtype dtype;
    int rank;
    int64_t dims[SL_MAX_DIMS], strides[SL_MAX_DIMS];
} sl_rows;

/* All but the last `inner` dims lead. */
sl_rows sl_rows_of(const sl_view *view, int inner);

static inline int64_t sl_rows_offset(const sl_rows *rows, int64_t row)
{
    int64_t offset = 0;
    for (int i = rows->rank - 1; i > 0; i--) {
        offset += row % rows->dims[i] * rows->strides[i];
        row /= rows->dims[i];
    }
    return offset + row * rows->strides[0];
}

/* For tensors in f32; NULL for one without memory. */
static inline float *sl_rows_at(const sl_rows *rows, int64_t row)
{
    return rows->data ? (float *)rows->data + sl_rows_offset(rows, row) : NULL;
}

/* Elements first..first+n of a row, as floats: where they lie if they are f32, else widened into the buffer. */
const float *sl_rows_read(const sl_simd *simd, const sl_rows *rows, int64_t row, int64_t first, int64_t n,
                          float *buffer);
/* Where to write (add: to add to) such elements: where they lie, or the buffer, which sl_rows_end_write then rounds. */
float *sl_rows_begin_write(const sl_simd *simd, const sl_rows *rows, int64_t row, int64_t first, int64_t n, bool add,
                           float *buffer);
void sl_rows_end_write(const sl_simd *simd, const sl_rows *rows, int64_t row, int64_t first, int64_t n,
                       const float *buffer);

/* ---- Work for threads ------------------------------------------------------------------------ */

typedef void (*sl_range_body)(void *context, int64_t begin, int64_t end);

/* Splits 0..count into ranges, none of them (but the last) shorter than grain, which the threads take one after the other.
 * What a range computes must not depend on where it begins and ends, nor on who takes it. */
void sl_cpu_split(const sl_cpu *cpu, int64_t count, int64_t grain, sl_range_body body, void *context);

/* Sums over many rows, of one or more vectors of results. Short sums of SL_ROW_BLOCK rows come first, which keeps the
 * rounding error small; they are added up in the order of the rows. So the number of threads changes no bit. */
enum { SL_ROW_BLOCK = 64, SL_SUM_RUN = 512 };

typedef struct SL_NAMED_FIELDS sl_row_sums {
    int vectors;
    int64_t rows, columns;
    void *scratch; /* sl_row_sums_bytes of them */
    /* Adds rows row..row+count to sums, (vectors, columns). */
    void (*add)(const void *context, int64_t row, int64_t count, float *sums);
    /* Takes the results of columns column..column+n of a vector; n <= SL_SUM_RUN. */
    void (*put)(const void *context, int vector, int64_t column, int64_t n, const float *sums);
    const void *context;
} sl_row_sums;

size_t sl_row_sums_bytes(int vectors, int64_t rows, int64_t columns);
void sl_row_sums_run(const sl_cpu *cpu, const sl_row_sums *sums);

/* Where part i of the scratch begins, each of which has `bytes`; NULL if none is needed. */
static inline void *sl_scratch_part(void *scratch, int i, size_t bytes)
{
    return bytes ? (char *)scratch + (size_t)i * bytes : NULL;
}

/* Elements that make a range worth a thread. */
enum { SL_GRAIN = 16384 };

/* ---- Loops over elements --------------------------------------------------------------------- */

enum { SL_LOOP_ARGS = 6 };

typedef enum sl_loop_use { SL_LOOP_READ, SL_LOOP_WRITE, SL_LOOP_UPDATE } sl_loop_use;

/* Tensors of one shape in f32, bf16 or f16, walked together in row-major order. */
typedef struct sl_loop {
    int args, rank;
    int64_t dims[SL_MAX_DIMS];
    void *data[SL_LOOP_ARGS];
    sl_dtype dtypes[SL_LOOP_ARGS];
    int64_t strides[SL_LOOP_ARGS][SL_MAX_DIMS];
    sl_loop_use use[SL_LOOP_ARGS];
} sl_loop;

/* Works on n contiguous elements of each argument; `first` is the number of the first, row-major. */
typedef void (*sl_loop_body)(const void *context, float *const *args, int64_t first, int64_t n);
/* The same on arguments that are all bf16. */
typedef void (*sl_loop_bf16)(const void *context, uint16_t *const *args, int64_t n);

void sl_loop_start(sl_loop *loop, const sl_shape *shape);
/* The view must have the shape, or broadcast to it. */
void sl_loop_add(sl_loop *loop, const sl_view *view, sl_loop_use use);
/* Arguments that are strided or not f32 go through small buffers, so the body sees contiguous runs of floats only.
 * bf16: for arguments that are all bf16 and contiguous, which then need no buffers; NULL if there is none. */
void sl_loop_run(const sl_cpu *cpu, sl_loop *loop, sl_loop_body body, sl_loop_bf16 bf16, const void *context);

#endif
