#!/usr/bin/env bash
# With more memory a plan is never slower: Llama-3 8B on 16 devices and 405B on 1,024, with less and more memory.
. "$(dirname "$0")/common.bash"
cd "$scratch"

write_run() { # layers width heads inner rows
    cat <<YAML
model: {family: llama, n_layer: $1, n_embd: $2, n_head: $3, n_kv_head: 8, n_inner: $4, vocab: 128256}
data: {tokens: none.bin}
batch: {size: $5, seq: 8192}
precision: {dtype: bf16}
YAML
}
write_run 32 4096 32 14336 32 >8B.yaml
write_run 126 16384 128 53248 2048 >405B.yaml

never_slower() { # MODEL DEVICES GIGABYTES...
    local model=$1 devices=$2 before=1e30 step
    shift 2
    for memory in "$@"; do
        cat >cluster.yaml <<YAML
machines: $((devices / 8))
devices: 8
memory: ${memory}GB
flops: 400e12
bandwidth: 3.35e12
inside: {latency: 3e-6, bandwidth: 450e9}
between: {latency: 10e-6, bandwidth: 50e9}
YAML
        run 0 "$SLUICE" plan -c "$model.yaml" --auto --cluster cluster.yaml --top 1 --format json
        step=$("$SLUICE_SUPPORT/json_get" choices.0.step_s <"$out")
        awk -v step="$step" -v before="$before" 'BEGIN { exit !(step > 0 && step <= before * (1 + 1e-9)) }' ||
            fail "$model with $memory GB: $step s a step, with less memory $before s"
        before=$step
        printf '%-5s %5d devices of %7s GB: %10.4f s a step\n' "$model" "$devices" "$memory" "$step"
    done
}

never_slower 8B 16 20 22 25 30 35 40 50 60 70 80 100 140
never_slower 405B 1024 72 76 78 79.9993 80 82 85 96 141
