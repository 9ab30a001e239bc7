#!/usr/bin/env bash
# The models of tests/data/models on a GPU: they follow PyTorch's f32, and in bf16 as closely as PyTorch's bf16 does; a run
# gives the same bits again, and so do its stages on one rank under every schedule.
. "$(dirname "$0")/gpu.bash"
cd "$scratch"

# train MODEL OUT [OPTIONS]: the 20 steps of the reference.
train() {
    local data=$SLUICE_DATA/models/$1 dir=$2
    timeout 90 "$SLUICE" train --device cuda --model.init="$data" --data.tokens="$data/tokens.bin" --data.order=sequential --batch.size=8 \
        --batch.seq=32 --batch.microbatches=4 --optimizer.lr=0.003 --run.steps=20 --run.out="$dir" "${@:3}" >"$dir.out" 2>"$dir.err" </dev/null ||
        { echo "$dir: exit code $?: $(head -c 300 "$dir.err")"; return 1; }
}

# check NAME COMMAND...: what the comparison says if it is not content.
check() {
    "$compare" "${@:2}" >"$1.diff" 2>&1 || { echo "$1: $2: $(head -1 "$1.diff")"; return 1; }
}

f32_case() {
    local data=$SLUICE_DATA/models/$1 dir=$1-f32
    train "$1" "$dir" --save-grads "$dir.grads" || return 0
    "$SLUICE" export --model "$dir" --output "$dir/hf" >"$dir.out" 2>&1
    check "$dir" curve "$dir/metrics.jsonl" "$data/curve.json" 1e-4 || return 0
    check "$dir" tensors "$dir.grads" "$data/grads_step0.safetensors" 2e-5 || return 0
    check "$dir" elements "$dir/hf/model.safetensors" "$data/after_20_steps.safetensors" 1e-4 || return 0
    echo "ok $dir"
}

bf16_case() {
    local data=$SLUICE_DATA/models/$1 dir=$1-bf16
    train "$1" "$dir" --precision.dtype=bf16 --save-grads "$dir.grads" || return 0
    "$SLUICE" export --model "$dir" --output "$dir/hf" >"$dir.out" 2>&1
    check "$dir" bf16_tensors "$dir.grads" "$data/grads_step0.safetensors" "$data/bf16.json" || return 0
    check "$dir" bf16_weights "$dir/hf/model.safetensors" "$data/after_20_steps.safetensors" "$data/bf16.json" || return 0
    echo "ok $dir"
}

# One curve is one draw of what rounding does by chance, so losses in bf16 are compared over many places in the data;
# over half of those that there are, as it takes a second to start a run on a GPU.
place_case() { # MODEL PLACE
    tokens_at "$1" "$2" >"$1-place-$2.bin"
    train "$1" "$1-place-$2" --precision.dtype=bf16 --data.tokens="$1-place-$2.bin" || return 0
    echo "ok $1-place-$2"
}

places_case() { # MODEL
    local metrics=("$1"-place-{0..7}/metrics.jsonl)
    check "$1-places" bf16_places "$SLUICE_DATA/models/$1/places.json" "${metrics[@]}" || return 0
    echo "ok $1-places"
}

# same_case MODEL DTYPE SCHEDULE STAGES: on one rank, with the bits of one stage.
same_case() {
    local dir=$1-$2-$3-$4 reference=$1-$2
    [ "$3" != LoopedBFS ] || reference=$1-$2-falling
    train "$1" "$dir" --precision.dtype="$2" --parallel.schedule="$3" --parallel.stages_per_rank="$4" || return 0
    check "$dir" metrics "$reference/metrics.jsonl" "$dir/metrics.jsonl" || return 0
    check "$dir" checkpoints "$reference/checkpoints/step-00000020" "$dir/checkpoints/step-00000020" || return 0
    echo "ok $dir"
}

falling_case() { # backward through the microbatches in falling order: other sums
    train "$1" "$1-$2-falling" --precision.dtype="$2" --parallel.schedule=LoopedBFS --parallel.stages_per_rank=1 || return 0
    echo "ok $1-$2-falling"
}

for model in gpt2-tiny llama-tiny; do
    start f32_case $model
    start bf16_case $model
    for ((place = 0; place < 8; place++)); do
        start place_case $model $place
    done
done
start falling_case gpt2-tiny f32
start falling_case llama-tiny bf16
wait # stages are compared with these runs, whatever PyTorch's figures say about them
for model in gpt2-tiny llama-tiny; do
    start places_case $model
done
same_cases() { # MODEL DTYPE
    start same_case $1 $2 GPipe 1
    start same_case $1 $2 1F1B 1
    start same_case $1 $2 Interleaved1F1B 2
    start same_case $1 $2 Interleaved1F1B 4
    start same_case $1 $2 LoopedBFS 4
    start same_case $1 $2 InterleavedZeroBubble 4
    start same_case $1 $2 ZBVZeroBubble 2
    start same_case $1 $2 DualPipeV 2
}
same_cases gpt2-tiny f32
same_cases llama-tiny bf16
finish "PyTorch's curves, gradients and weights; stages on one rank"
for model in gpt2-tiny llama-tiny; do
    echo "$model in bf16, $(cat $model-places.diff)"
done
