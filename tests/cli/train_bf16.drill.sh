#!/usr/bin/env bash
# Losses in bf16 are as near to PyTorch's f32 as PyTorch's own bf16, on the mean over many places in the data; those of runs
# without f32 masters are not.
. "$(dirname "$0")/common.bash"
cd "$scratch"

# places MODEL NAME [OPTIONS]: the runs of all places, compared.
places() {
    local data=$SLUICE_DATA/models/$1 name=$1-$2 place
    for ((place = 0; place < 16; place++)); do
        tokens_at "$1" $place >tokens.bin
        "$SLUICE" train --model.init="$data" --data.tokens=tokens.bin --data.order=sequential --batch.size=8 --batch.seq=32 \
            --batch.microbatches=4 --optimizer.lr=0.003 --precision.dtype=bf16 --run.steps=20 --run.out="$name-$place" "${@:3}" \
            >"$out" 2>"$err" </dev/null || fail "$name, place $place"
    done
    "$SLUICE_SUPPORT/compare" bf16_places "$data/places.json" "$name"-{0..15}/metrics.jsonl
}

for model in gpt2-tiny llama-tiny; do
    places $model whole || fail "$model in bf16 is farther from f32 than PyTorch"
    ! places $model bare --precision.master=none || fail "$model without masters is as near to f32 as PyTorch with them"
done
