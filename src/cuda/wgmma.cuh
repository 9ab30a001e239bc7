// Products of bf16 by the matrix units of sm_90a, and what feeds them: tiles that the copy engine brings, barriers in shared
// memory. Four warps, a group, multiply 64 rows; nobody else knows how tiles lie and which lane holds what.
//
// A tile lies in panels of 64 columns: rows of 128 bytes, whose eight pieces of 16 bytes change places by the number of the
// row (the engine's swizzle). Panels begin at multiples of 1024 bytes. Sums and the left operand in registers lie as in
// mma.cuh, warp w of the group has rows 16 w to 16 w + 15.
#ifndef SL_CUDA_WGMMA_CUH
#define SL_CUDA_WGMMA_CUH

#include "cuda/mma.cuh"

#include <cuda.h>

enum { GROUP_THREADS = 128, GROUP_ROWS = 64, PANEL_COLUMNS = 64, PANEL_ROW_BYTES = 128 };

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define CUDA_WGMMA_CODE 1
#else
#define CUDA_WGMMA_CODE 0
#endif

#if CUDA_WGMMA_CODE

// ---- Barriers ---------------------------------------------------------------------------------

__device__ __forceinline__ void init_barrier(uint64_t *barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

// After all barriers of a block were made, by the thread that made them: the copy engine sees them, too.
__device__ __forceinline__ void publish_barriers()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void arrive(uint64_t *barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Arrives; the phase also waits for so many bytes of copies.
__device__ __forceinline__ void arrive_expecting(uint64_t *barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

// Waits until the phase of this parity is over.
__device__ __forceinline__ void wait_for(uint64_t *barrier, uint32_t parity)
{
    asm volatile("{\n.reg .pred over;\nAGAIN:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n"
                 "@over bra OVER;\nbra AGAIN;\nOVER:\n}\n" ::"r"(shared_address(barrier)),
                 "r"(parity)
                 : "memory");
}

// ---- Copies -----------------------------------------------------------------------------------

// One panel of 64 rows of a [B,T,H,D] tensor, from column d and row t on; zeros past its end.
__device__ __forceinline__ void copy_panel(void *to, const CUtensorMap *map, uint64_t *barrier, int d, int h, int t, int b)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
                 "[%2];" ::"r"(shared_address(to)),
                 "l"(map), "r"(shared_address(barrier)), "r"(d), "r"(h), "r"(t), "r"(b)
                 : "memory");
}

// Bytes that lie side by side, a multiple of 16.
__device__ __forceinline__ void copy_bytes(void *to, const void *from, uint32_t bytes, uint64_t *barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}

// ---- Registers --------------------------------------------------------------------------------

template <int COUNT> __device__ __forceinline__ void take_registers()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT> __device__ __forceinline__ void give_registers()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// ---- Products ---------------------------------------------------------------------------------

// What a product must know of a tile: the lower half of its description, with the address and the distance of panels (which
// matters if columns are not what is summed over). The upper half, the distance of eight rows and the swizzle, is always
// the same. Made anew at every use, or the compiler would keep one for each product in registers.
__device__ __forceinline__ uint32_t describe_tile(const void *tile, uint32_t panel_bytes)
{
    uint32_t address = shared_address(tile);
    asm volatile("" : "+r"(address));
    return address >> 4 | panel_bytes >> 4 << 16;
}

// Moves a described tile by so many bytes.
__device__ __forceinline__ uint32_t moved(uint32_t tile, uint32_t bytes)
{
    return tile + (bytes >> 4);
}

__device__ __forceinline__ uint64_t whole_description(uint32_t tile)
{
    return (uint64_t)(1u << 30 | 8 * PANEL_ROW_BYTES >> 4) << 32 | tile;
}

// Before products: what the group's threads wrote to the registers of operands and sums is there.
__device__ __forceinline__ void begin_products()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// Products since the last call belong together.
__device__ __forceinline__ void close_products()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits for all products but the last PENDING groups of them.
template <int PENDING> __device__ __forceinline__ void wait_for_products()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Sums that products write are read or written by others only on their side of this call.
template <int COUNT> __device__ __forceinline__ void hold(float (&sums)[COUNT])
{
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        asm volatile("" : "+f"(sums[i])::"memory");
}

#define SUMS_8(sums, i)                                                                                                \
    "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3]), "+f"(sums[i + 4]), "+f"(sums[i + 5]),      \
        "+f"(sums[i + 6]), "+f"(sums[i + 7])

// sums[64][N] (+)= 16 columns of a tile of 64 rows times the same columns of a tile of N rows. ADD 0: overwrites.
//
// And: sums[64][N] (+)= left[64][16] in registers times 16 rows of a tile of N columns.
template <int ADD> __device__ __forceinline__ void multiply_tiles(float (&sums)[32], uint32_t left, uint32_t right)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
                 " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "%32, %33, p, 1, 1, 0, 0;\n}\n"
                 : SUMS_8(sums, 0), SUMS_8(sums, 8), SUMS_8(sums, 16), SUMS_8(sums, 24)
                 : "l"(whole_description(left)), "l"(whole_description(right)), "n"(ADD));
}

template <int ADD> __device__ __forceinline__ void multiply_weights(float (&sums)[32], const uint32_t *left, uint32_t right)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
                 " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "{%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}\n"
                 : SUMS_8(sums, 0), SUMS_8(sums, 8), SUMS_8(sums, 16), SUMS_8(sums, 24)
                 : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(whole_description(right)),
                   "n"(ADD));
}

template <int ADD> __device__ __forceinline__ void multiply_tiles(float (&sums)[64], uint32_t left, uint32_t right)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
                 " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"
                 " %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,"
                 " %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "%64, %65, p, 1, 1, 0, 0;\n}\n"
                 : SUMS_8(sums, 0), SUMS_8(sums, 8), SUMS_8(sums, 16), SUMS_8(sums, 24),
                   SUMS_8(sums, 32), SUMS_8(sums, 40), SUMS_8(sums, 48), SUMS_8(sums, 56)
                 : "l"(whole_description(left)), "l"(whole_description(right)), "n"(ADD));
}

template <int ADD> __device__ __forceinline__ void multiply_weights(float (&sums)[64], const uint32_t *left, uint32_t right)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
                 " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"
                 " %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,"
                 " %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "{%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}\n"
                 : SUMS_8(sums, 0), SUMS_8(sums, 8), SUMS_8(sums, 16), SUMS_8(sums, 24),
                   SUMS_8(sums, 32), SUMS_8(sums, 40), SUMS_8(sums, 48), SUMS_8(sums, 56)
                 : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(whole_description(right)),
                   "n"(ADD));
}
#undef SUMS_8

// sums[64][N] = x[64][D] times y[N][D]; `panel` is the distance of panels of each.
template <int D, int COUNT>
__device__ __forceinline__ void multiply_rows(float (&sums)[COUNT], uint32_t x, uint32_t x_panel, uint32_t y, uint32_t y_panel)
{
#pragma unroll
    for (int d = 0; d < D; d += 16) {
        const uint32_t panel = d / PANEL_COLUMNS, within = d % PANEL_COLUMNS * 2;
        const uint32_t left = moved(x, panel * x_panel + within), right = moved(y, panel * y_panel + within);
        if (d == 0)
            multiply_tiles<0>(sums, left, right);
        else
            multiply_tiles<1>(sums, left, right);
    }
}

// sums[64][D] += weights[64][ROWS] in registers times y[ROWS][D].
template <int ROWS, int COUNT>
__device__ __forceinline__ void add_weighted_rows(float (&sums)[COUNT], const uint32_t *weights, uint32_t y)
{
#pragma unroll
    for (int r = 0; r < ROWS; r += 16)
        multiply_weights<1>(sums, &weights[r / 4], moved(y, r * PANEL_ROW_BYTES));
}

#endif
#endif
