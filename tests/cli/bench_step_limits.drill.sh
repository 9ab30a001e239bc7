#!/usr/bin/env bash
# A training step of a GPT (T=256, C=512, L=8, 8 heads, V=8192) on one thread takes at most 1.25 times as long as its
# matrix products alone, and memory within 5% of the plan's prediction.
. "$(dirname "$0")/common.bash"

field() { sed -n "s/.*\"$1\":\([0-9.e+-]*\).*/\1/p" "$out"; }

run 0 "$SLUICE" bench step --format json
cat "$out"
# If other processes took the cores in between, the processor time is what is compared with the limit.
awk -v s="$(field step_s)" -v g="$(field gemm_s)" -v sc="$(field step_cpu_s)" -v gc="$(field gemm_cpu_s)" '
    BEGIN { busy = sc < 0.95 * s || gc < 0.95 * g; r = busy ? sc / gc : s / g
            print (busy ? "processor" : "clock") " times: " r; exit !(r > 0 && r <= 1.25) }' || fail "more than 1.25 times"
awk -v m="$(field peak_memory)" -v p="$(field predicted_memory)" \
    'BEGIN { exit !(m > 0.95 * p && m < 1.05 * p) }' || fail "memory $(field peak_memory), predicted $(field predicted_memory)"
