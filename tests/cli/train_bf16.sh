#!/usr/bin/env bash
# Training in bf16: as near to PyTorch's f32 as PyTorch's own bf16, the same bits however it is cut and resumed, exported
# and read back in every type.
. "$(dirname "$0")/common.bash"
compare=$SLUICE_SUPPORT/compare

# train MODEL DIR KEYS...: the steps of tests/data/models in bf16.
train() {
    local data=$SLUICE_DATA/models/$1 dir=$2
    shift 2
    run 0 "$SLUICE" train --model.init="$data" --data.tokens="$data/tokens.bin" --batch.size=8 --batch.seq=32 \
        --batch.microbatches=4 --optimizer.lr=0.003 --precision.dtype=bf16 --run.steps=20 --run.out="$dir" "$@"
}

for model in gpt2-tiny llama-tiny; do
    data=$SLUICE_DATA/models/$model whole=$scratch/$model
    train $model "$whole" --save-grads "$whole.grads"
    prints ' tok/s  bf16  MFU '
    run 0 "$compare" bf16_curve "$whole/metrics.jsonl" "$data/curve.json" "$data/bf16.json"
    run 0 "$compare" bf16_tensors "$whole.grads" "$data/grads_step0.safetensors" "$data/bf16.json"
    run 0 "$SLUICE" export --model "$whole" --output "$whole/hf"
    run 0 "$compare" bf16_weights "$whole/hf/model.safetensors" "$data/after_20_steps.safetensors" "$data/bf16.json"

    # The stages give the bits of the whole model; a run that goes on with other ranks gives those of one that never stopped.
    train $model "$whole-4" --parallel.pp=4 --parallel.schedule=GPipe --save-grads "$whole-4.grads"
    run 0 "$compare" files "$whole.grads" "$whole-4.grads"
    train $model "$whole-2" --parallel.pp=2 --run.steps=9
    train $model "$whole-2" --resume
    for other in 2 4; do
        run 0 "$compare" metrics "$whole/metrics.jsonl" "$whole-$other/metrics.jsonl"
        run 0 "$compare" checkpoints "$whole/checkpoints/step-00000020" "$whole-$other/checkpoints/step-00000020"
    done
done

# A checkpoint is f32: export loses nothing, and as bf16 it is what the forward pass read.
dir=$scratch/llama-tiny
run 0 "$SLUICE" info "$dir"
prints 'precision     bf16, f32 master weights, f32 gradients'
run 0 "$SLUICE" info "$dir/hf"
prints '  f32  [48]             model.norm.weight'
for dtype in bf16 f16; do
    run 0 "$SLUICE" export --model "$dir" --output "$dir/hf-$dtype" --dtype $dtype
done
loss() { "$SLUICE" eval --tokens "$SLUICE_DATA/models/llama-tiny/tokens.bin" --batch 8 --seq 32 --steps 2 "$@" |
    sed 's/ *(.*//'; }
[ "$(loss --model "$dir" --dtype bf16)" = "$(loss --model "$dir/hf-bf16" --dtype bf16)" ] ||
    fail "the exported bf16 weights are not those that the run computed with"
[ "$(loss --model "$dir")" != "$(loss --model "$dir" --dtype bf16)" ] || fail "eval does not compute in bf16"
run 0 "$SLUICE" generate --model "$dir" --prompt-tokens 1,2,3 --tokens 8 --temperature 0 --dtype bf16
cp "$out" "$scratch/one"
run 0 "$SLUICE" generate --model "$dir" --prompt-tokens 1,2,3 --tokens 8 --temperature 0 --dtype bf16 -n 2
cmp "$out" "$scratch/one" || fail "the text depends on the ranks"

# Folders of every type to start from.
for dtype in bf16 f16; do
    run 0 "$SLUICE" train --model.init="$dir/hf-$dtype" --data.tokens="$SLUICE_DATA/models/llama-tiny/tokens.bin" \
        --batch.size=8 --batch.seq=32 --precision.dtype=bf16 --run.steps=1 --run.out="$scratch/from-$dtype"
    run 0 "$SLUICE" export --model "$dir/hf-$dtype" --output "$scratch/hf-$dtype"
    # The master is what the folder held, moved by one step of lr 3e-4 (and the decay).
    run 0 "$SLUICE" export --model "$scratch/from-$dtype" --output "$scratch/from-$dtype/hf"
    run 0 "$compare" elements "$scratch/from-$dtype/hf/model.safetensors" "$scratch/hf-$dtype/model.safetensors" 3.5e-4
done

# One precision goes on where the other stopped, and says so.
train gpt2-tiny "$scratch/mixed" --run.steps=3 --precision.dtype=f32
train gpt2-tiny "$scratch/mixed" --run.steps=5 --resume
complains 'resumed with precision.dtype=bf16, the checkpoint was made with f32'
train gpt2-tiny "$scratch/mixed" --run.steps=7 --resume --precision.dtype=f32

# Without masters and with bf16 gradients, tied weights on two ranks among them: a run that the ranks do not change either.
train gpt2-tiny "$scratch/bare" --precision.master=none --precision.grad=bf16
train gpt2-tiny "$scratch/bare-2" --precision.master=none --precision.grad=bf16 --parallel.pp=2 --run.steps=9
train gpt2-tiny "$scratch/bare-2" --precision.master=none --precision.grad=bf16 --resume
run 0 "$compare" metrics "$scratch/bare/metrics.jsonl" "$scratch/bare-2/metrics.jsonl"
run 0 "$compare" checkpoints "$scratch/bare/checkpoints/step-00000020" "$scratch/bare-2/checkpoints/step-00000020"
run 1 "$compare" metrics "$scratch/bare/metrics.jsonl" "$scratch/gpt2-tiny/metrics.jsonl"

# Replicas that share state or everything: masters lie in parts then, and a checkpoint goes from one mode to the other.
replicas=(--parallel.dp=2 --batch.microbatches=2)
train gpt2-tiny "$scratch/alike" "${replicas[@]}"
train gpt2-tiny "$scratch/shared" "${replicas[@]}" --parallel.shard=full --parallel.pp=2 --run.steps=9
train gpt2-tiny "$scratch/shared" "${replicas[@]}" --parallel.shard=optimizer --resume
run 0 "$compare" metrics "$scratch/alike/metrics.jsonl" "$scratch/shared/metrics.jsonl"
run 0 "$compare" checkpoints "$scratch/alike/checkpoints/step-00000020" "$scratch/shared/checkpoints/step-00000020"
