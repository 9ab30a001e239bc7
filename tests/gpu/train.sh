#!/usr/bin/env bash
# Training on a GPU: a run goes on from the other device's checkpoint; eval and generate work; dropout, resume, traces, stages
# of callbacks and errors are those of the processor. oracle.sh compares with PyTorch, links.sh ranks with each other.
. "$(dirname "$0")/gpu.bash"

# train MODEL OUT [OPTIONS]
train() {
    local data=$SLUICE_DATA/models/$1
    run 0 "$SLUICE" train --model.init="$data" --data.tokens="$data/tokens.bin" --data.order=sequential \
        --batch.size=8 --batch.seq=32 --batch.microbatches=4 --optimizer.lr=0.003 --run.steps=20 --run.out="$2" "${@:3}"
}

for model in gpt2-tiny llama-tiny; do
    data=$SLUICE_DATA/models/$model
    dir=$scratch/$model
    train $model "$dir-1" --device cuda
    prints 'device cuda:0: '

    # From the processor to the GPU and back: 10 steps on each follow the same curve.
    for first in cpu cuda; do
        second=$([ $first = cpu ] && echo cuda || echo cpu)
        train $model "$dir-$first" --device $first --checkpoint.every=10
        rm -r "$dir-$first/checkpoints/step-00000020"
        train $model "$dir-$first" --device $second --resume
        run 0 "$compare" curve "$dir-$first/metrics.jsonl" "$data/curve.json" 1e-4
    done

    run 0 "$SLUICE" eval --device cuda --model "$data" --tokens "$data/tokens.bin" --batch 8 --seq 32 --steps 1 --logits "$scratch/logits"
    run 0 "$compare" tensors "$scratch/logits" "$data/reference.safetensors" 2e-5
    for device in cpu cuda; do
        run 0 "$SLUICE" generate --device $device --model "$dir-1" --prompt-tokens 1,2,3 --tokens 20 --temperature 0
        cp "$out" "$scratch/$device.text"
    done
    cmp "$scratch/cpu.text" "$scratch/cuda.text" || fail "the GPU generates another text than the processor"
done

# Dropout draws the same bits on both devices, also inside attention: the curves are the same.
drops() {
    train gpt2-tiny "$scratch/drops-$1" --device $1 --model.dropout=0.2
}
drops cpu
drops cuda
sed 's/.*"loss":\([^,}]*\).*/\1/' "$scratch/drops-cpu/metrics.jsonl" | paste -sd, | sed 's/.*/{"loss":[&]}/' >"$scratch/drops.json"
run 0 "$compare" curve "$scratch/drops-cuda/metrics.jsonl" "$scratch/drops.json" 1e-4
run 1 "$compare" curve "$scratch/drops-cuda/metrics.jsonl" "$SLUICE_DATA/models/gpt2-tiny/curve.json" 1e-4

# A run that stopped between goes on with the bits of one that did not, from checkpoints written while training went on.
train gpt2-tiny "$scratch/whole" --device cuda --checkpoint.every=3 --checkpoint.keep=9
cp -r "$scratch/whole" "$scratch/stopped"
rm -r "$scratch"/stopped/checkpoints/step-0000001[258] "$scratch"/stopped/checkpoints/step-00000020
train gpt2-tiny "$scratch/stopped" --device cuda --checkpoint.every=3 --checkpoint.keep=9 --resume
run 0 "$compare" checkpoints "$scratch/whole/checkpoints/step-00000020" "$scratch/stopped/checkpoints/step-00000020"

# A trace by events of the GPU: every action of the step is in it, and none begins before what it needs has ended.
train gpt2-tiny "$scratch/traced" --device cuda --parallel.pp=2 --run.steps=4 --trace 2
run 0 "$SLUICE" show "$scratch/traced/trace.json"
prints ': measured '

# Stages of callbacks work on device memory.
for device in cpu cuda; do
    run 0 "$SLUICE_BUILD/examples/05_device" $device
    cp "$out" "$scratch/$device.losses"
done
paste "$scratch/cpu.losses" "$scratch/cuda.losses" | awk '{ d = $4 - $8; if (d > 2e-4 || d < -2e-4) exit 1 }' ||
    fail "stages of callbacks learn something else on the GPU"

# A token past the vocabulary is named with its op, node and place.
printf '\001\000\002\000\377\177\003\000%.0s' {1..100} >"$scratch/bad.bin"
run 1 "$SLUICE" eval --device cuda --model "$SLUICE_DATA/models/gpt2-tiny" --tokens "$scratch/bad.bin" --batch 1 --seq 8
complains '32767'
