#!/usr/bin/env bash
# What the cores of a machine give: `sluice bench step` in f32 and bf16 with several numbers of threads, as a table. Shares are
# those of the peak of multiply-adds (f32) and of products (bf16); in brackets of what the machine sustains.
#
#   bench/cores.sh [SLUICE [THREADS [OPTION OF BENCH STEP]...]]
#   bench/cores.sh build/release/sluice "1 4 16" --preset gpt2-124m --batch 4 --seq 512
set -eu
sluice=${1:-$(dirname "$0")/../build/release/sluice}
threads=${2:-1 $(nproc)}
command -v "$sluice" >/dev/null || {
    echo "bench/cores.sh: there is no program '$sluice' (usage: bench/cores.sh [SLUICE [THREADS [OPTION OF BENCH STEP]...]])" >&2
    exit 2
}
shift $(($# < 2 ? $# : 2))
[ $# -gt 0 ] || set -- --preset gpt2-124m --batch 4 --seq 512

# value KEY JSON
value() {
    sed -n "s/.*\"$1\":\([0-9.eE+-]*\).*/\1/p" <<<"$2"
}

percent() {
    awk -v share="$1" 'BEGIN { printf "%.1f%%", 100 * share }'
}

printf '%8s  %10s %16s  %10s %16s  %9s\n' threads f32 'of peak' bf16 'of peak' 'bf16/f32'
for count in $threads; do
    f32=$("$sluice" bench step --format json --threads "$count" "$@")
    bf16=$("$sluice" bench step --format json --threads "$count" "$@" --dtype bf16)
    printf '%8s  %10.0f %16s  %10.0f %16s  %9.2f\n' "$count" \
        "$(value tokens_per_s "$f32")" \
        "$(percent "$(value fma_peak_share "$f32")") ($(percent "$(value fma_sustained_share "$f32")"))" \
        "$(value tokens_per_s "$bf16")" \
        "$(percent "$(value product_peak_share "$bf16")") ($(percent "$(value product_sustained_share "$bf16")"))" \
        "$(value tokens_per_s_over_f32 "$bf16")"
done
