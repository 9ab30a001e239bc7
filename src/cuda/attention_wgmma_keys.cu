// The gradients of keys and values, and of the scores for the kernel of attention_wgmma.cu. A block has 128 keys and goes
// through the queries of all heads that share them.
#include "cuda/attention_wgmma.cuh"

enum { KEY_GROUPS = 2, KEY_ROWS = KEY_GROUPS * GROUP_ROWS, KEY_THREADS = (1 + KEY_GROUPS) * GROUP_THREADS };

template <int D> struct key_memory {
    char k[KEY_ROWS * D * 2], v[KEY_ROWS * D * 2];
    char q[STAGES][GROUP_ROWS * D * 2], d_o[STAGES][GROUP_ROWS * D * 2];
    float lse[STAGES][GROUP_ROWS], deltas[STAGES][GROUP_ROWS];
    uint64_t keys_full, full[STAGES], empty[STAGES];
};

#if CUDA_WGMMA_CODE

// The queries that the keys of a block need: tiles of 64 of one head after the other.
struct query_steps {
    int begin, count;
};

template <bool CAUSAL> __device__ __forceinline__ query_steps steps_of(const wgmma_args &a, int s0)
{
    query_steps steps;
    steps.begin = CAUSAL ? s0 : 0;
    steps.count = (a.length - steps.begin + GROUP_ROWS - 1) / GROUP_ROWS * a.shared;
    return steps;
}

template <int D, bool CAUSAL>
__device__ __forceinline__ void feed_keys(const wgmma_args &a, key_memory<D> &memory, int b, int g, int s0)
{
    const query_steps steps = steps_of<CAUSAL>(a, s0);
    int h = g * a.shared, t = steps.begin;
    arrive_expecting(&memory.keys_full, sizeof memory.k + sizeof memory.v);
    copy_tile<KEY_ROWS, D>(memory.k, &a.k, &memory.keys_full, b, g, s0);
    copy_tile<KEY_ROWS, D>(memory.v, &a.v, &memory.keys_full, b, g, s0);
    for (int n = 0; n < steps.count; n++) {
        const int stage = n % STAGES;
        uint64_t *full = &memory.full[stage];
        const int64_t row = (int64_t)(b * a.heads + h) * a.tiles * GROUP_ROWS + t;
        if (n >= STAGES)
            wait_for(&memory.empty[stage], (n / STAGES - 1) & 1);
        arrive_expecting(full, sizeof memory.q[0] + sizeof memory.d_o[0] + sizeof memory.lse[0] + sizeof memory.deltas[0]);
        copy_tile<GROUP_ROWS, D>(memory.q[stage], &a.q, full, b, h, t);
        copy_bytes(memory.lse[stage], a.lse + row, sizeof memory.lse[0], full);
        copy_tile<GROUP_ROWS, D>(memory.d_o[stage], &a.d_o, full, b, h, t);
        copy_bytes(memory.deltas[stage], a.deltas + row, sizeof memory.deltas[0], full);
        t += GROUP_ROWS;
        if (t >= a.length) {
            t = steps.begin;
            h++;
        }
    }
}

// Products of scores [64 keys][64 queries]; they run on.
template <int D>
__device__ __forceinline__ void start_key_scores(key_memory<D> &memory, int n, int group, float (&scores)[32])
{
    enum { KEY_PANEL = KEY_ROWS * PANEL_ROW_BYTES, QUERY_PANEL = GROUP_ROWS * PANEL_ROW_BYTES };
    wait_for(&memory.full[n % STAGES], n / STAGES & 1);
    begin_products();
    multiply_rows<D>(scores, describe_tile(memory.k + group * QUERY_PANEL, 0), KEY_PANEL,
                     describe_tile(memory.q[n % STAGES], 0), QUERY_PANEL);
    close_products();
}

// Products for the gradients of the weights; they run on.
template <int D>
__device__ __forceinline__ void start_key_gradients(key_memory<D> &memory, int n, int group, float (&gradients)[32])
{
    enum { KEY_PANEL = KEY_ROWS * PANEL_ROW_BYTES, QUERY_PANEL = GROUP_ROWS * PANEL_ROW_BYTES };
    begin_products();
    multiply_rows<D>(gradients, describe_tile(memory.v + group * QUERY_PANEL, 0), KEY_PANEL,
                     describe_tile(memory.d_o[n % STAGES], 0), QUERY_PANEL);
    close_products();
}

// Numbers of the lane's columns among 16 of a row, in shared memory: for columns c, c + 1, c + 8 and c + 9.
__device__ __forceinline__ float4 load_columns(const float *row)
{
    const uint32_t address = shared_address(row + SUM_COLUMN);
    float4 x;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address) : "memory");
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.z), "=f"(x.w) : "r"(address + 32) : "memory");
    return x;
}

// Scores of keys that a query does not see: from key `seen` of the group on, or if it is the tile of the same queries, those
// that come after the query. Their weights will be zero.
__device__ __forceinline__ void hide_keys(float (&scores)[32], bool diagonal, int seen)
{
    const int s = 16 * GROUP_WARP + SUM_ROW;
#pragma unroll
    for (int i = 0; i < 32; i++) {
        if (s + i / 2 % 2 * 8 >= (diagonal ? i / 4 * 8 + SUM_COLUMN + i % 2 + 1 : seen))
            scores[i] = -INFINITY;
    }
}

// The gradients of the scores of 16 queries, for the other kernel.
__device__ __forceinline__ void store_changes(char *block, int i, const uint32_t (&changes)[16])
{
    *(uint4 *)(block + PIECE_BYTES * (4 * GROUP_WARP + i) + 16 * LANE) =
        make_uint4(changes[4 * i], changes[4 * i + 1], changes[4 * i + 2], changes[4 * i + 3]);
}

// The two groups take turns: one hands its products to the matrix units until it has the scores of its next step, then the
// other does, while this one makes weights of them. Left alone, both would want the units at once and compute at once.
struct turns {
    int group;
    bool taken; // there are two groups

    __device__ __forceinline__ void await() const
    {
        if (taken)
            asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(2 * GROUP_THREADS) : "memory");
    }

    __device__ __forceinline__ void give() const
    {
        if (taken)
            asm volatile("bar.arrive %0, %1;" ::"r"(2 - group), "n"(2 * GROUP_THREADS) : "memory");
    }

    // The first turn is that of group 0. After the last one, of group 1, nobody waits.
    __device__ __forceinline__ void begin() const
    {
        if (group == 1)
            give();
    }

    __device__ __forceinline__ void end() const
    {
        if (group == 0)
            give();
    }
};

// Step n is of no use to the group.
template <int D> __device__ __forceinline__ void pass_over(key_memory<D> &memory, int n)
{
    wait_for(&memory.full[n % STAGES], n / STAGES & 1);
    release(&memory.empty[n % STAGES]);
}

// Scores become weights, 16 queries at a time, whose products for the gradient of values run on meanwhile. `columns` are the
// first of lse.
template <int D>
__device__ __forceinline__ void start_values(float (&dv)[D / 2], float (&scores)[32], uint32_t (&weights)[16],
                                             const float *lse, float4 columns, float factor, uint32_t d_o)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float4 these = columns;
        if (i < 3)
            columns = load_columns(lse + 16 * (i + 1));
#pragma unroll
        for (int j = 4 * i; j < 4 * i + 4; j++) {
            scores[2 * j] = power_of_2(__fmaf_rn(scores[2 * j], factor, -(j / 2 % 2 ? these.z : these.x)));
            scores[2 * j + 1] = power_of_2(__fmaf_rn(scores[2 * j + 1], factor, -(j / 2 % 2 ? these.w : these.y)));
            weights[j] = pair_of(scores[2 * j], scores[2 * j + 1]);
        }
        begin_products();
        multiply_weights<1>(dv, &weights[4 * i], moved(d_o, 16 * i * PANEL_ROW_BYTES));
    }
    close_products();
}

// Likewise the gradients of scores, from those of the weights, and the products for the gradient of keys.
template <int D>
__device__ __forceinline__ void start_keys(float (&dk)[D / 2], const float (&weights)[32], const float (&gradients)[32],
                                           uint32_t (&changes)[16], const float *deltas, float4 columns, char *block,
                                           const turns &turn, uint32_t q)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float4 these = columns;
        if (i < 3)
            columns = load_columns(deltas + 16 * (i + 1));
#pragma unroll
        for (int j = 4 * i; j < 4 * i + 4; j++)
            changes[j] = pair_of(weights[2 * j] * (gradients[2 * j] - (j / 2 % 2 ? these.z : these.x)),
                                 weights[2 * j + 1] * (gradients[2 * j + 1] - (j / 2 % 2 ? these.w : these.y)));
        store_changes(block, i, changes);
        if (i == 0)
            turn.await();
        begin_products();
        multiply_weights<1>(dk, &changes[4 * i], moved(q, 16 * i * PANEL_ROW_BYTES));
    }
    close_products();
}

template <int D, bool CAUSAL>
__device__ __forceinline__ void add_up_keys(const wgmma_args &a, key_memory<D> &memory, int b, int g, int s0, int group)
{
    enum { QUERY_PANEL = GROUP_ROWS * PANEL_ROW_BYTES };
    const query_steps steps = steps_of<CAUSAL>(a, s0);
    const int first = s0 + group * GROUP_ROWS;
    const float factor = a.scale * LOG2_E;
    float dk[D / 2] = {}, dv[D / 2] = {}, scores[32], gradients[32];
    uint32_t weights[16], changes[16]; // of 64 queries, as left operands
    int t0 = steps.begin, h = g * a.shared, n = 0;
    const turns turn = { group, s0 + GROUP_ROWS < a.length };
    if (first >= a.length) {
        while (n < steps.count)
            pass_over(memory, n++);
        return;
    }
    hold(dk);
    hold(dv);
    turn.begin();
    wait_for(&memory.keys_full, 0);
    turn.await();
    if (CAUSAL && t0 < first) { // all of these queries come before the group's keys
        pass_over(memory, n++);
        t0 += GROUP_ROWS;
        turn.give();
        turn.await();
    }
    start_key_scores<D>(memory, n, group, scores);
    start_key_gradients<D>(memory, n, group, gradients);
    for (;;) {
        const int stage = n % STAGES;
        float4 columns = load_columns(memory.lse[stage]);
        wait_for_products<1>(); // the scores
        hold(scores);
        turn.give();
        if (CAUSAL ? t0 == first : first + GROUP_ROWS > a.length)
            hide_keys(scores, CAUSAL, a.length - first);
        start_values<D>(dv, scores, weights, memory.lse[stage], columns, factor, describe_tile(memory.d_o[stage], QUERY_PANEL));
        char *block = block_of<CAUSAL>(a, b, h, t0 / GROUP_ROWS, first / GROUP_ROWS);
        columns = load_columns(memory.deltas[stage]);
        wait_for_products<1>(); // the gradients of weights
        hold(gradients);
        start_keys<D>(dk, scores, gradients, changes, memory.deltas[stage], columns, block, turn,
                      describe_tile(memory.q[stage], QUERY_PANEL));
        if (++n == steps.count)
            break;
        t0 += GROUP_ROWS;
        if (t0 >= a.length) { // the next head
            t0 = steps.begin;
            h++;
            if (CAUSAL && t0 < first) {
                pass_over(memory, n++);
                t0 += GROUP_ROWS;
                turn.give();
                turn.await();
            }
        }
        start_key_scores<D>(memory, n, group, scores);
        wait_for_products<1>(); // all of this step, whose operands now leave their registers
        release(&memory.empty[stage]);
        start_key_gradients<D>(memory, n, group, gradients);
    }
    turn.end();
    wait_for_products<0>();
    hold(dk);
    hold(dv);
    store_sums(a.dv, b, g, first, a.length, dv, 1);
    store_sums(a.dk, b, g, first, a.length, dk, a.scale);
}

#endif

template <int D, bool CAUSAL>
__global__ void __launch_bounds__(KEY_THREADS, 1) find_dk_dv_wgmma(const __grid_constant__ wgmma_args a)
{
#if CUDA_WGMMA_CODE
    key_memory<D> &memory = memory_of<key_memory<D>>();
    const int groups = a.heads / a.shared, b = (int)blockIdx.x / groups, g = (int)blockIdx.x % groups;
    const int s0 = (int)blockIdx.y * KEY_ROWS, group = group_of_warp();
    if (threadIdx.x == 0) {
        init_barrier(&memory.keys_full, 1);
        for (int i = 0; i < STAGES; i++) {
            init_barrier(&memory.full[i], 1);
            init_barrier(&memory.empty[i], 4 * KEY_GROUPS); // warps
        }
        publish_barriers();
    }
    __syncthreads();
    if (group < 0) {
        give_registers<24>();
        if (threadIdx.x == 0)
            feed_keys<D, CAUSAL>(a, memory, b, g, s0);
    } else {
        take_registers<240>();
        add_up_keys<D, CAUSAL>(a, memory, b, g, s0, group);
    }
#endif
}

template <int D, bool CAUSAL> static sl_status start(const cuda_run *run, const wgmma_args &a)
{
    const dim3 grid((unsigned)(a.batch * a.heads / a.shared), (unsigned)((a.tiles + KEY_GROUPS - 1) / KEY_GROUPS));
    return start_attention(run, find_dk_dv_wgmma<D, CAUSAL>, grid, KEY_THREADS, sizeof(key_memory<D>) + 1024, a);
}

sl_status start_wgmma_by_keys(const cuda_run *run, const wgmma_args &a, int64_t width, bool causal)
{
    if (width == 128)
        return causal ? start<128, true>(run, a) : start<128, false>(run, a);
    return causal ? start<64, true>(run, a) : start<64, false>(run, a);
}
