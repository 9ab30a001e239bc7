#!/usr/bin/env bash
# Models whose attention is that of real ones, with heads of 64 and 128, long sequences and heads that share keys: what the
# fast kernels of bf16 take. The gradients of a step are those of f32 on the processor, and a run has the same bits again,
# whatever lies in new memory of the GPU, and with several stages on one rank.
. "$(dirname "$0")/gpu.bash"
cd "$scratch"
head -c 40000 "$SLUICE_SOURCE/examples/demo/tales.txt" >text.txt

# train OUT [OPTIONS]
train() {
    timeout 90 "$SLUICE" train --data.text=text.txt --model.n_layer=2 --batch.size=4 --batch.microbatches=2 --optimizer.lr=0.001 \
        --run.steps=6 --run.out="$1" "${@:2}" >"$1.out" 2>"$1.err" </dev/null ||
        { echo "$1: exit code $?: $(head -c 300 "$1.err")"; return 1; }
}

# check NAME COMMAND...: what the comparison says if it is not content.
check() {
    "$compare" "${@:2}" >"$1.diff" 2>&1 || { echo "$1: $2: $(tail -1 "$1.diff")"; return 1; }
}

gradients_case() { # NAME TOLERANCE OPTIONS...
    local name=$1
    train "$name-f32" --device cpu --save-grads "$name-f32.grads" "${@:3}" || return 0
    SLUICE_GPU_FILL=255 train "$name" --device cuda --precision.dtype=bf16 --save-grads "$name.grads" "${@:3}" || return 0
    check "$name" tensors "$name.grads" "$name-f32.grads" "$2" || return 0
    echo "ok $name"
}

same_case() { # NAME WHAT OPTIONS...: the bits of the run of gradients_case
    local name=$1 other=$1-$2
    train "$other" --device cuda --precision.dtype=bf16 "${@:3}" || return 0
    check "$other" metrics "$name/metrics.jsonl" "$other/metrics.jsonl" || return 0
    check "$other" checkpoints "$name/checkpoints/step-00000006" "$other/checkpoints/step-00000006" || return 0
    echo "ok $other"
}

# On the processor bf16 is 0.005 and 0.011 away from f32.
heads_64=(--model.n_embd=256 --model.n_head=4 --batch.seq=200)
heads_128=(--model.family=llama --model.n_embd=512 --model.n_head=4 --model.n_kv_head=2 --batch.seq=136)
start gradients_case heads-64 0.008 "${heads_64[@]}"
start gradients_case heads-128 0.02 "${heads_128[@]}"
wait
stages=(--parallel.schedule=Interleaved1F1B --parallel.stages_per_rank=2)
start same_case heads-64 again "${heads_64[@]}"
start same_case heads-64 stages "${heads_64[@]}" "${stages[@]}"
start same_case heads-128 again "${heads_128[@]}"
start same_case heads-128 stages "${heads_128[@]}" "${stages[@]}"
finish "gradients and bits with heads of 64 and 128"
