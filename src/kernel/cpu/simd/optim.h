/* Optimizer updates, conversions to half precision, dropout masks. */

static void simd_adamw(const sl_adamw_factors *f, const float *g, float *p, float *m, float *v, int64_t n)
{
    vf scale = v_set(f->grad_scale), beta1 = v_set(f->beta1), beta2 = v_set(f->beta2);
    vf rest1 = v_set(f->rest1), rest2 = v_set(f->rest2);
    vf decay = v_set(f->decay), step = v_set(f->step), root = v_set(f->root), eps = v_set(f->eps);
    for (int64_t i = 0; i < n; i += VW) {
        int64_t left = n - i;
        vf gradient = v_mul(scale, load_upto(g + i, left));
        vf first = v_fma(beta1, load_upto(m + i, left), v_mul(rest1, gradient));
        vf second = v_fma(beta2, load_upto(v + i, left), v_mul(rest2, v_mul(gradient, gradient)));
        vf update = v_div(v_mul(step, first), v_add(v_sqrt(v_mul(second, root)), eps));
        emit_upto(m + i, first, left, false);
        emit_upto(v + i, second, left, false);
        emit_upto(p + i, v_sub(v_mul(decay, load_upto(p + i, left)), update), left, false);
    }
}

static void simd_sgd(const sl_sgd_factors *f, const float *g, float *p, float *m, int64_t n)
{
    vf scale = v_set(f->grad_scale), lr = v_set(f->lr), momentum = v_set(f->momentum), decay = v_set(f->weight_decay);
    for (int64_t i = 0; i < n; i += VW) {
        int64_t left = n - i;
        vf value = load_upto(p + i, left);
        vf update = v_fma(decay, value, v_mul(scale, load_upto(g + i, left)));
        if (m) {
            update = v_fma(momentum, load_upto(m + i, left), update);
            emit_upto(m + i, update, left, false);
        }
        emit_upto(p + i, v_fnma(lr, update, value), left, false);
    }
}

/* Kernels widen and round long tensors in short runs, and compute in between. So that memory does not rest meanwhile, each
 * run brings some of what lies behind it. */
enum { HALVES_AHEAD = 1024, HALVES_LINE = 32 };

static void simd_to_half(sl_dtype dtype, const float *x, uint16_t *y, int64_t n)
{
    int64_t i = 0;
    for (; dtype == SL_BF16 && i + V_GROUP * VW <= n; i += V_GROUP * VW) {
        vf values[V_GROUP];
        for (int64_t k = 0; k < V_GROUP * VW; k += HALVES_LINE)
            sl_fetch_to_write((const char *)(y + i + k + HALVES_AHEAD));
        for (int k = 0; k < V_GROUP; k++)
            values[k] = v_load(x + i + k * VW);
        v_store_bf16_group(y + i, values);
    }
    for (; i + VW <= n; i += VW) {
        if (i % HALVES_LINE == 0)
            sl_fetch_to_write((const char *)(y + i + HALVES_AHEAD));
        if (dtype == SL_BF16)
            v_store_bf16(y + i, v_load(x + i));
        else
            v_store_f16(y + i, v_load(x + i));
    }
    for (; i < n; i++)
        y[i] = dtype == SL_BF16 ? sl_bf16_from_f32(x[i]) : sl_f16_from_f32(x[i]);
}

static void simd_from_half(sl_dtype dtype, const uint16_t *x, float *y, int64_t n)
{
    int64_t i = 0;
    for (; i + VW <= n; i += VW) {
        if (i % HALVES_LINE == 0)
            __builtin_prefetch(x + i + HALVES_AHEAD);
        v_store(y + i, dtype == SL_BF16 ? v_load_bf16(x + i) : v_load_f16(x + i));
    }
    for (; i < n; i++)
        y[i] = dtype == SL_BF16 ? sl_bf16_to_f32(x[i]) : sl_f16_to_f32(x[i]);
}

/* The words of VW counter blocks from `block` on, a multiple of VW, in the order of the elements they serve: word w of
 * block b goes to words[w * SL_PHILOX_BLOCKS + b]. */
V_INLINE void philox_blocks(const sl_dropout_stream *s, uint64_t block, uint32_t *words)
{
    static const uint32_t lanes[SL_PHILOX_BLOCKS] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };
    vi c0 = vi_add(vi_set((uint32_t)block), vi_load(lanes)), c1 = vi_set((uint32_t)(block >> 32));
    vi c2 = vi_set((uint32_t)s->step), c3 = vi_set((uint32_t)(s->step >> 32));
    vi k0 = vi_set(s->key0), k1 = vi_set(s->key1);
    for (int round = 0; round < SL_PHILOX_ROUNDS; round++) {
        vi low0, high0, low1, high1;
        vi_multiply(vi_set(SL_PHILOX_M0), c0, &low0, &high0);
        vi_multiply(vi_set(SL_PHILOX_M1), c2, &low1, &high1);
        c0 = vi_xor(vi_xor(high1, c1), k0);
        c2 = vi_xor(vi_xor(high0, c3), k1);
        c1 = low1;
        c3 = low0;
        k0 = vi_add(k0, vi_set(SL_PHILOX_W0));
        k1 = vi_add(k1, vi_set(SL_PHILOX_W1));
    }
    vi_store(words, c0);
    vi_store(words + SL_PHILOX_BLOCKS, c1);
    vi_store(words + 2 * SL_PHILOX_BLOCKS, c2);
    vi_store(words + 3 * SL_PHILOX_BLOCKS, c3);
}

/* A group of elements at a time, or the part of one that the run begins or ends in. */
static void simd_dropout(const sl_dropout_stream *s, const float *x, float *y, int64_t n, uint64_t index, bool add)
{
    uint32_t words[SL_PHILOX_GROUP];
    float keep = (float)s->keep;
    vi limit = vi_set(s->threshold);
    vf factor = v_set(keep);
    for (int64_t i = 0, count; i < n; i += count) {
        uint64_t element = s->first + index + (uint64_t)i;
        int64_t skip = (int64_t)(element % SL_PHILOX_GROUP), left = SL_PHILOX_GROUP - skip, j = 0;
        count = left < n - i ? left : n - i;
        for (int b = 0; b < SL_PHILOX_BLOCKS; b += VW)
            philox_blocks(s, element / SL_PHILOX_GROUP * SL_PHILOX_BLOCKS + (uint64_t)b, words + b);
        for (; j + VW <= count; j += VW)
            v_emit(y + i + j, v_keep(v_mul(factor, v_load(x + i + j)), vi_load(words + skip + j), limit), add);
        for (; j < count; j++) {
            float value = words[skip + j] >= s->threshold ? x[i + j] * keep : 0;
            y[i + j] = add ? y[i + j] + value : value;
        }
    }
}
