#!/usr/bin/env bash
# A training step of a GPT (T=256, C=512, L=8, 8 heads, V=8192) on one thread takes at most 1.25 times as long as its
# matrix products alone, and memory within 5% of the plan's prediction.
. "$(dirname "$0")/common.bash"

field() { sed -n "s/.*\"$1\":\([0-9.e+-]*\).*/\1/p" "$out"; }

run 0 "$SLUICE" bench step --format json
cat "$out"
awk -v r="$(field step_over_gemm)" 'BEGIN { exit !(r > 0 && r <= 1.25) }' || fail "$(field step_over_gemm) times"
awk -v m="$(field peak_memory)" -v p="$(field predicted_memory)" \
    'BEGIN { exit !(m > 0.95 * p && m < 1.05 * p) }' || fail "memory $(field peak_memory), predicted $(field predicted_memory)"
