#!/usr/bin/env bash
# sluice bench step: its keys, the choice of sizes and threads, refusals. The limits are held by bench_step_limits.
. "$(dirname "$0")/common.bash"

field() { sed -n "s/.*\"$1\":\([0-9.e+-]*\).*/\1/p" "$out"; }

small=(--batch 2 --seq 16 --embd 32 --layers 2 --heads 4 --vocab 64 --repeats 2)
for threads in 1 2; do
    run 0 "$SLUICE" bench step "${small[@]}" --threads $threads --format json
    silent
    for key in step_s median_s gemm_s step_over_gemm gflops fma_peak_share fma_sustained_share peak_memory predicted_memory; do
        awk -v v="$(field $key)" 'BEGIN { exit !(v > 0) }' || fail "$key is not a positive number"
    done
    awk -v s="$(field step_s)" -v g="$(field gemm_s)" -v r="$(field step_over_gemm)" \
        'BEGIN { d = s / g - r; exit !(d < 1e-9 * r && -d < 1e-9 * r) }' || fail "step_over_gemm is not step_s / gemm_s"
    awk -v c="$(field product_clock_share)" 'BEGIN { exit !(c > 0.2 && c < 1.5) }' || fail "a clock of $(field product_clock_share)"
    awk -v s="$(field step_s)" -v m="$(field median_s)" 'BEGIN { exit !(m >= s) }' || fail "a median below the best step"
    [ "$(field parameters)" -eq 28032 ] || fail "another model: $(field parameters) parameters"
done
run 0 "$SLUICE" bench step "${small[@]}" --dtype bf16 --format json
silent
for key in step_s product_peak_share product_sustained_share tokens_per_s_over_f32; do
    awk -v v="$(field $key)" 'BEGIN { exit !(v > 0) }' || fail "$key is not a positive number"
done
run 0 "$SLUICE" bench step "${small[@]}" --dtype bf16
prints "times the tokens/s of f32"
run 0 "$SLUICE" bench step "${small[@]}" --nodes
prints "lm_head.linear"

# The table of a machine: a row for each number of threads.
run 0 "$SLUICE_SOURCE/bench/cores.sh" "$SLUICE" "1 2" "${small[@]}"
awk 'NR > 1 && !(NF == 8 && $1 == NR - 1 && $2 > 0 && $5 > 0 && $8 > 0) { bad = 1 }
     END { exit bad || NR != 3 }' "$out" || fail "bench/cores.sh prints another table"

# A profile: every op with its time and limit; their sums and the gap make the step.
run 0 "$SLUICE" bench step "${small[@]}" --ops
prints "cross_entropy_grad"
prints "adamw, all parameters"
run 0 "$SLUICE" bench step "${small[@]}" --ops --format json
for key in gemm_ms attention_ms other_ms copy_gb_per_s; do
    awk -v v="$(field $key)" 'BEGIN { exit !(v > 0) }' || fail "$key is not a positive number"
done
awk -v d="$(field gap_ms)" 'BEGIN { exit !(d > -1e-6) }' || fail "the parts of the step take longer than the step"
awk -v s="$(field step_s)" -v a="$(field gemm_ms)" -v b="$(field attention_ms)" -v c="$(field other_ms)" -v d="$(field gap_ms)" \
    'BEGIN { e = 1e3 * s - a - b - c - d; exit !(e < 1e-6 && -e < 1e-6) }' || fail "the parts are not the step"
run 0 "$SLUICE" bench step --preset llama-1.1b "${small[@]}" --format json
[ "$(field parameters)" -gt 0 ] || fail "no Llama"
# All weights are multiplied, those of layers that share an input, too: all but the embedding and five norms.
awk -v p="$(field parameters)" -v s="$(field gemm_s)" -v g="$(field gemm_gflops)" \
    'BEGIN { all = 6 * 2 * 16 * (p - 64 * 32 - 5 * 32); d = 1e9 * s * g / all - 1; exit !(d < 1e-6 && -d < 1e-6) }' ||
    fail "the products are not those of all linear layers"
run 2 "$SLUICE" bench step --batch 0
run 2 "$SLUICE" bench step --format yaml
run 1 "$SLUICE" bench step --embd 30 --heads 4
complains "n_embd"
run 0 "$SLUICE" bench step --help

# Matrix products never run several times too slow in silence.
if grep -qw avx2 /proc/cpuinfo; then
    run 0 env SLUICE_BLAS=libopenblas.so.0 OPENBLAS_CORETYPE=PRESCOTT "$SLUICE" bench step "${small[@]}"
    grep -q "own products" "$out" || complains "several times slower"
    run 0 env SLUICE_BLAS=none "$SLUICE" bench step "${small[@]}"
    silent
    prints "own products"
    run 0 env SLUICE_BLAS=/nowhere/libblas.so "$SLUICE" bench step "${small[@]}"
    complains "/nowhere/libblas.so"
fi
