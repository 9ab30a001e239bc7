#!/usr/bin/env bash
# sluice plan -c for Llama-3 70B and 405B on 64 to 16,384 devices: less than a minute of processor time each, every plan
# fits, and what does not fit names a number of devices that is enough.
. "$(dirname "$0")/common.bash"
cd "$scratch"

write_run() { # layers width heads inner
    cat <<YAML
model: {family: llama, n_layer: $1, n_embd: $2, n_head: $3, n_kv_head: 8, n_inner: $4, vocab: 128256}
data: {tokens: none.bin}
batch: {size: 2048, seq: 8192}
precision: {dtype: bf16}
YAML
}
write_run 80 8192 64 28672 >70B.yaml
write_run 126 16384 128 53248 >405B.yaml

# Seconds of the processor that the programs run so far have used.
used_seconds() { awk -v ticks="$(getconf CLK_TCK)" '{ print ($16 + $17) / ticks }' "/proc/$$/stat"; }

# plan CODE MODEL DEVICES: plans it; the processor's seconds are in $seconds.
plan() {
    cat >cluster.yaml <<YAML
machines: $(($3 / 8))
devices: 8
memory: 80GB
flops: 400e12
bandwidth: 3.35e12
inside: {latency: 3e-6, bandwidth: 450e9}
between: {latency: 10e-6, bandwidth: 50e9}
YAML
    local before
    before=$(used_seconds)
    run "$1" "$SLUICE" plan -c "$2.yaml" --auto --cluster cluster.yaml --format json
    seconds=$(awk -v before="$before" -v after="$(used_seconds)" 'BEGIN { print after - before }')
    awk -v s="$seconds" 'BEGIN { exit !(s < 60) }' || fail "$2 on $3 devices: $seconds s"
}

get() { "$SLUICE_SUPPORT/json_get" "$1" <"$out"; }

feasible() { # model devices slowest-step
    plan 0 "$1" "$2"
    awk -v memory="$(get choices.0.memory)" -v step="$(get choices.0.step_s)" -v most="$3" \
        'BEGIN { exit !(memory > 0 && memory <= 80e9 && step > 0 && step <= most) }' ||
        fail "$1 on $2 devices: $(get choices.0.memory) bytes, $(get choices.0.step_s) s"
    [ "$(($(get choices.0.pp) * $(get choices.0.dp)))" -eq "$2" ] || fail "$1 on $2 devices: not all are used"
    printf '%-5s %6d devices: %4d x %-5d %-22s %10.1f s a step, planned in %5.1f s\n' "$1" "$2" "$(get choices.0.pp)" \
        "$(get choices.0.dp)" "$(get choices.0.schedule)" "$(get choices.0.step_s)" "$seconds"
}

feasible 70B 64 450
feasible 70B 256 115
feasible 70B 1024 31
feasible 70B 4096 14
feasible 70B 16384 8
feasible 405B 256 1200
feasible 405B 1024 260
feasible 405B 4096 80
feasible 405B 16384 70
plan 1 405B 64
complains "128 of them would be enough"
feasible 405B 128 5300
