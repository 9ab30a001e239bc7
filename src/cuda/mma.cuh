// Products of bf16 by the matrix units of sm_80 and newer. A warp multiplies 16 rows by 16 columns at a time, over a depth
// of 16, with operands from tiles in shared memory and sums in registers. Which lane holds what is known here alone.
//
// Lane l stands at row r = l / 4 and column c = 2 (l % 4) of 8 x 8 numbers:
//   sums (16 x 8, f32)     {(r, c), (r, c + 1), (r + 8, c), (r + 8, c + 1)}
//   left (16 x 16, bf16)   pairs from {(r, c), (r + 8, c), (r, c + 8), (r + 8, c + 8)} on, as (row, depth)
//   right (16 x 16, bf16)  pairs from {(c, r), (c + 8, r), (c, r + 8), (c + 8, r + 8)} on, as (depth, column)
#ifndef SL_CUDA_MMA_CUH
#define SL_CUDA_MMA_CUH

#include <cuda_bf16.h>
#include <stdint.h>

typedef __nv_bfloat16 bf16;

#define LANE ((int)threadIdx.x % 32)
#define SUM_ROW (LANE / 4)        // the row of a lane's first two sums; the other two are 8 below
#define SUM_COLUMN (LANE % 4 * 2) // the column of a lane's first sum; the next one is beside it

// Rows of tiles are this many numbers longer than they need, so that eight of them begin in different banks.
enum { TILE_PAD = 8 };

struct mma_operand {
    uint32_t pairs[4];
};

__device__ __forceinline__ uint32_t shared_address(const void *place)
{
    return (uint32_t)__cvta_generic_to_shared(place);
}

// Four blocks of 8 x 8 numbers; lane l says where row l % 8 of block l / 8 begins.
__device__ __forceinline__ mma_operand load_blocks(const bf16 *row)
{
    mma_operand x;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.pairs[0]), "=r"(x.pairs[1]), "=r"(x.pairs[2]), "=r"(x.pairs[3])
                 : "r"(shared_address(row)));
    return x;
}

__device__ __forceinline__ mma_operand load_blocks_transposed(const bf16 *row)
{
    mma_operand x;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.pairs[0]), "=r"(x.pairs[1]), "=r"(x.pairs[2]), "=r"(x.pairs[3])
                 : "r"(shared_address(row)));
    return x;
}

// The left operand from a tile [rows][depth] whose rows are STRIDE apart.
template <int STRIDE> __device__ __forceinline__ mma_operand load_left(const bf16 *tile)
{
    return load_blocks(tile + LANE % 16 * STRIDE + LANE / 16 * 8);
}

// The right operand from a tile [columns][depth].
template <int STRIDE> __device__ __forceinline__ mma_operand load_right(const bf16 *tile)
{
    return load_blocks(tile + (LANE / 16 * 8 + LANE % 8) * STRIDE + LANE / 8 % 2 * 8);
}

// The right operand from a tile [depth][columns].
template <int STRIDE> __device__ __forceinline__ mma_operand load_right_transposed(const bf16 *tile)
{
    return load_blocks_transposed(tile + LANE % 16 * STRIDE + LANE / 16 * 8);
}

__device__ __forceinline__ uint32_t pair_of(float low, float high)
{
    __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
    return *(const uint32_t *)&two;
}

// Sums of 16 rows and 16 columns, rounded, as the left operand of the next product.
__device__ __forceinline__ mma_operand left_of(const float sums[2][4])
{
    return { { pair_of(sums[0][0], sums[0][1]), pair_of(sums[0][2], sums[0][3]), pair_of(sums[1][0], sums[1][1]),
               pair_of(sums[1][2], sums[1][3]) } };
}

__device__ __forceinline__ uint32_t pair_of_rest(float low, float high, uint32_t rounded)
{
    return pair_of(low - __uint_as_float(rounded << 16), high - __uint_as_float(rounded & 0xffff0000u));
}

// What left_of took away, rounded: both together are the sums, good to 2^-17.
__device__ __forceinline__ mma_operand rest_of(const float sums[2][4], const mma_operand &left)
{
    return { { pair_of_rest(sums[0][0], sums[0][1], left.pairs[0]), pair_of_rest(sums[0][2], sums[0][3], left.pairs[1]),
               pair_of_rest(sums[1][0], sums[1][1], left.pairs[2]),
               pair_of_rest(sums[1][2], sums[1][3], left.pairs[3]) } };
}

// 8 x 8 numbers, a pair in each lane, with rows and columns changed round.
__device__ __forceinline__ uint32_t turned(uint32_t pair)
{
    uint32_t y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(pair));
    return y;
}

// Adds left (16 x 16) times right (16 x 16).
__device__ __forceinline__ void multiply_add(float sums[2][4], const mma_operand &left, const mma_operand &right)
{
#pragma unroll
    for (int half = 0; half < 2; half++)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(sums[half][0]), "+f"(sums[half][1]), "+f"(sums[half][2]), "+f"(sums[half][3])
                     : "r"(left.pairs[0]), "r"(left.pairs[1]), "r"(left.pairs[2]), "r"(left.pairs[3]),
                       "r"(right.pairs[2 * half]), "r"(right.pairs[2 * half + 1]));
}

// ---- Copies to shared memory ------------------------------------------------------------------

// 16 bytes, which arrive later; zeros if they are not `there`.
__device__ __forceinline__ void copy_later(bf16 *to, const bf16 *from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(there ? 16 : 0)
                 : "memory");
}

// Copies since the last call belong together.
__device__ __forceinline__ void close_copies()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits for all of this thread's copies but the last COUNT groups.
template <int COUNT> __device__ __forceinline__ void wait_for_copies()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(COUNT) : "memory");
}

#endif
