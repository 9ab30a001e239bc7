#!/usr/bin/env bash
# Replicas on one GPU: with every value of parallel.shard and with tied weights over a cut, collectives in device memory give
# the losses and weights of those through the host, as threads and as processes.
. "$(dirname "$0")/gpu.bash"
cd "$scratch"
head -c 20000 "$SLUICE_SOURCE/examples/demo/tales.txt" >text.txt
arguments=(train --device cuda --data.text=text.txt --model.n_layer=4 --model.n_embd=64 --model.n_head=4 --batch.seq=32 --batch.size=8
    --batch.microbatches=4 --log.progress=plain --run.steps=4 --parallel.dp=2)

# replicas_case PP SHARD KIND: a run; its losses and weights are those of the run through the host.
replicas_case() {
    local pp=$1 shard=$2 kind=$3 name="pp $1, shard $2, $3" dir="$1-$2-$3" code=0
    timeout 40 "$SLUICE" "${arguments[@]}" --run.out="$dir" --parallel.pp="$pp" --parallel.shard="$shard" \
        --ranks-as "$kind" >"$dir.out" 2>"$dir.err" </dev/null || code=$?
    if [ $code -ne 0 ]; then
        echo "$name: exit code $code: $(head -c 300 "$dir.err" | head -2 | tr '\n' ' ')"
    elif ! grep -q 'collectives device memory' "$dir.out"; then
        echo "$name: it says $(grep -o 'collectives .*' "$dir.out")"
    elif ! "$compare" metrics host/metrics.jsonl "$dir/metrics.jsonl" >"$dir.diff" 2>&1; then
        echo "$name: other losses: $(head -1 "$dir.diff")"
    elif ! "$compare" checkpoints host/checkpoints/step-00000004 "$dir/checkpoints/step-00000004" >"$dir.diff" 2>&1; then
        echo "$name: other weights: $(head -1 "$dir.diff")"
    else
        echo "ok $name"
    fi
    rm -rf "$dir"
}

run 0 env SLUICE_DEVICE_LINKS=0 "$SLUICE" "${arguments[@]}" --run.out=host --ranks-as threads
prints 'collectives host memory'
for shard in none optimizer full; do
    start replicas_case 1 $shard processes
done
start replicas_case 1 optimizer threads
start replicas_case 2 none threads
start replicas_case 2 full threads
finish "runs of replicas"
