#!/usr/bin/env bash
# Training with messages and collectives through NCCL, between processes that share the GPU: the bits are those of one rank or
# of the host, and a rank that is killed ends all of them within a second. nccl_test.c has all schedules.
. "$(dirname "$0")/gpu.bash"
cd "$scratch"
head -c 20000 "$SLUICE_SOURCE/examples/demo/tales.txt" >text.txt
export SLUICE_DEVICE_LINKS=nccl
arguments=(train --device cuda --data.text=text.txt --model.n_layer=8 --model.n_embd=64 --model.n_head=4 --batch.seq=32 --batch.size=8
    --batch.microbatches=8 --log.progress=plain)

run 0 "$SLUICE" "${arguments[@]}" --run.steps=4 --run.out=one
"$SLUICE" "${arguments[@]}" --run.steps=4 --run.out=several --parallel.pp=2 >"$out" 2>"$err" || fail "two ranks"
if grep -qE 'libsluice_nccl|NCCL is not installed' "$out"; then
    grep messages "$out"
    exit 77
fi
prints 'messages device memory, through NCCL'
run 0 "$compare" metrics one/metrics.jsonl several/metrics.jsonl
run 0 "$compare" checkpoints one/checkpoints/step-00000004 several/checkpoints/step-00000004
echo "2 ranks: the bits of one"

# NCCL refuses threads of one process that share a GPU.
run 0 "$SLUICE" "${arguments[@]}" --run.steps=4 --run.out=several --overwrite --parallel.pp=2 --ranks-as threads
prints 'messages host memory: threads of one process share a GPU, which NCCL refuses as a duplicate'
run 0 "$compare" metrics one/metrics.jsonl several/metrics.jsonl

# Replicas have the bits of collectives through the host in every mode; NCCL's order of two summands has them, too.
replicas=("${arguments[@]}" --model.n_layer=2 --batch.microbatches=2 --run.steps=4)
run 0 env SLUICE_DEVICE_LINKS=0 "$SLUICE" "${replicas[@]}" --parallel.dp=2 --run.out=host --ranks-as threads
for mode in shard=none shard=full sum=fast; do
    run 0 "$SLUICE" "${replicas[@]}" --parallel.dp=2 --run.out=replicas --overwrite --parallel.$mode
    prints 'collectives device memory, through NCCL'
    [ $mode != sum=fast ] || prints "sums in NCCL's order"
    run 0 "$compare" metrics host/metrics.jsonl replicas/metrics.jsonl
    run 0 "$compare" checkpoints host/checkpoints/step-00000004 replicas/checkpoints/step-00000004
    echo "replicas, $mode: the bits of the host"
done

# Of more summands NCCL's order is its own: the losses are close, and on one machine the same each time.
run 0 "$SLUICE" "${replicas[@]}" --parallel.dp=4 --run.out=exact
echo "{\"loss\": [$(sed -n 's/.*"loss": *\([^,}]*\).*/\1/p' exact/metrics.jsonl | paste -sd,)]}" >exact.json
for turn in 1 2; do
    run 0 "$SLUICE" "${replicas[@]}" --parallel.dp=4 --parallel.sum=fast --run.out=fast-$turn
    prints "sums in NCCL's order"
    run 0 "$compare" curve fast-$turn/metrics.jsonl exact.json 1e-5
done
run 0 "$compare" metrics fast-1/metrics.jsonl fast-2/metrics.jsonl
echo "4 replicas, sum=fast: the losses of exact sums, and the same twice"

# A rank that is killed while kernels of the others wait for it.
for victim in 1 2; do
    rm -rf killed
    "$SLUICE" "${arguments[@]}" --run.steps=1000000 --parallel.pp=2 --run.out=killed >"$out" 2>"$err" &
    pid=$!
    until [ -s killed/metrics.jsonl ] && [ "$(wc -l <killed/metrics.jsonl)" -ge 8 ]; do
        kill -0 $pid || fail "the run has ended"
        sleep 0.1
    done
    start=$(date +%s%N)
    kill -KILL "$(pgrep -P "$(pgrep -P $pid)" | sed -n ${victim}p)"
    code=0
    wait $pid || code=$?
    took=$((($(date +%s%N) - start) / 1000000))
    [ $code -eq 137 ] || fail "exit code $code after a rank was killed"
    complains "rank $((victim - 1)) was killed by signal 9"
    [ $took -lt 1000 ] || fail "$took ms from the death of a rank to the end"
    echo "rank $((victim - 1)) killed: all have ended after $took ms"
done
