#!/usr/bin/env bash
# Nothing of a training step is read before it is written: steps have the same bits whatever lies in new memory of the
# GPU, zeros or bytes of 255, which are NaN.
. "$(dirname "$0")/gpu.bash"
cd "$scratch"

# train FILL OUT [OPTIONS]
train() {
    SLUICE_GPU_FILL=$1 timeout 90 "$SLUICE" train --device cuda --model.init="$data" --data.tokens="$data/tokens.bin" \
        --batch.size=8 --batch.seq=32 --batch.microbatches=4 --run.steps=6 --run.out="$2" "${@:3}" >"$2.out" 2>"$2.err" </dev/null ||
        { echo "$2: exit code $?: $(head -c 300 "$2.err")"; return 1; }
}

# filled NAME OPTIONS...
filled() {
    local name=$1
    train 0 "$name-0" "${@:2}" && train 255 "$name-255" "${@:2}" || return 0
    "$compare" metrics "$name-0/metrics.jsonl" "$name-255/metrics.jsonl" >"$name.diff" &&
        "$compare" checkpoints "$name-0/checkpoints/step-00000006" "$name-255/checkpoints/step-00000006" >"$name.diff" ||
        { echo "$name: $(head -1 "$name.diff")"; return 0; }
    echo "ok $name"
}

start filled f32 --precision.dtype=f32
start filled bf16 --precision.dtype=bf16
start filled bf16-dropout --precision.dtype=bf16 --model.dropout=0.2
finish "bits of steps in memory filled with zeros and with NaN"
