#!/usr/bin/env bash
# Nothing of a training step is read before it is written: steps have the same bits whatever lies in new memory of the
# GPU, zeros or bytes of 255, which are NaN.
. "$(dirname "$0")/gpu.bash"

# train FILL OUT [OPTIONS]
train() {
    SLUICE_GPU_FILL=$1 run 0 "$SLUICE" train --device cuda --model.init="$data" --data.tokens="$data/tokens.bin" \
        --batch.size=8 --batch.seq=32 --batch.microbatches=4 --run.steps=6 --run.out="$2" "${@:3}"
}

for kind in f32 bf16 bf16-dropout; do
    options=(--precision.dtype=${kind%-*})
    [ $kind != bf16-dropout ] || options+=(--model.dropout=0.2)
    for fill in 0 255; do
        train $fill "$scratch/$kind-$fill" "${options[@]}"
    done
    run 0 "$compare" metrics "$scratch/$kind-0/metrics.jsonl" "$scratch/$kind-255/metrics.jsonl"
    run 0 "$compare" checkpoints "$scratch/$kind-0/checkpoints/step-00000006" "$scratch/$kind-255/checkpoints/step-00000006"
done
