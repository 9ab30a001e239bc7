#!/usr/bin/env bash
# The memory that training takes on a GPU, by what its driver says, is within 2 % of the plan: weights, activations, what
# libraries and graphs take; of one stage and of four on one rank. Nothing else may use the GPU meanwhile.
. "$(dirname "$0")/gpu.bash"
cd "$scratch"

# check NAME TAKEN PLANNED: prints the difference, and how much of it is graphs by the log in NAME.err.
check() {
    local graphs
    graphs=$(sed -n 's/.*a graph of [0-9]* nodes takes \([0-9]*\) bytes.*/\1/p' "$1.err" | awk '{ sum += $1 } END { print sum + 0 }')
    awk -v name="$1" -v taken="$2" -v planned="$3" -v graphs="$graphs" 'BEGIN {
        if (!(planned > 0)) exit 1
        error = taken / planned - 1
        printf "%-20s taken %8.1f MB, planned %8.1f MB: %+.2f %%, graphs %.1f MB\n", name, taken / 1e6, planned / 1e6, error * 100, graphs / 1e6
        exit !(error <= 0.02 && error >= -0.02)
    }' || fail "$1: $2 bytes are taken, $3 were planned"
}

# steps NAME OPTIONS...: one stage, by the benchmark of steps.
steps() {
    SLUICE_LOG=debug timeout 90 "$SLUICE" bench step --device cuda --dtype bf16 --repeats 1 --format json "${@:2}" >"$1.json" 2>"$1.err" </dev/null ||
        fail "$1: exit code $?: $(tail -c 300 "$1.err")"
    check "$1" "$("$SLUICE_SUPPORT/json_get" peak_memory <"$1.json")" "$("$SLUICE_SUPPORT/json_get" predicted_memory <"$1.json")"
}

# stages NAME OPTIONS...: four stages on one rank, by training.
stages() {
    local line
    SLUICE_LOG=debug timeout 90 "$SLUICE" train --device cuda --data.tokens=tokens.bin --precision.dtype=bf16 --run.steps=3 \
        --parallel.stages_per_rank=4 --run.out="$1" "${@:2}" >"$1.out" 2>"$1.err" </dev/null ||
        fail "$1: exit code $?: $(tail -c 300 "$1.err")"
    line=$(sed -n 's/.*memory of the device: \([0-9]*\) bytes are taken, \([0-9]*\) were planned.*/\1 \2/p' "$1.err")
    check "$1" ${line:-0 0}
    rm -r "$1"
}

for ((i = 0; i < 20; i++)); do cat "$data/tokens.bin"; done >tokens.bin
steps gpt2-124m --preset gpt2-124m --batch 32
steps gpt2-124m-parts --preset gpt2-124m --batch 32 --microbatches 8
steps llama-1.1b --preset llama-1.1b --batch 8 --microbatches 2
gpt2=(--model.vocab=50304 --model.n_layer=12 --model.n_head=12 --model.n_embd=768 --batch.seq=1024 --batch.size=32)
stages 1F1B "${gpt2[@]}" --batch.microbatches=4 --parallel.schedule=Interleaved1F1B
stages zero-bubble "${gpt2[@]}" --batch.microbatches=16 --parallel.schedule=InterleavedZeroBubble
# A small model in many parts: graphs take more than all that it computes with.
stages small --model.n_layer=8 --batch.seq=64 --batch.size=128 --batch.microbatches=128 --parallel.schedule=InterleavedZeroBubble
