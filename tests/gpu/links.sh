#!/usr/bin/env bash
# Several ranks on one GPU: messages lie in device memory, every schedule gives the bits of one stage as threads and as
# processes, and a rank that is killed or fails ends all of them soon.
. "$(dirname "$0")/../cli/common.bash"
compare=$SLUICE_SUPPORT/compare

data=$SLUICE_DATA/models/gpt2-tiny
if ! "$SLUICE" eval --device cuda --model "$data" --tokens "$data/tokens.bin" --batch 1 --seq 8 --steps 1 >"$out" 2>"$err"; then
    grep -qE 'no GPU that can be used|libsluice_cuda' "$err" || fail "eval on the GPU failed"
    cat "$err"
    exit 77
fi

cd "$scratch"
head -c 20000 "$SLUICE_SOURCE/examples/demo/tales.txt" >text.txt
export SLUICE_DEVICE_LINKS=1
arguments=(train --device cuda --data.text=text.txt --model.n_layer=8 --model.n_embd=64 --model.n_head=4 --batch.seq=32 --batch.size=8
    --batch.microbatches=8 --log.progress=plain)

# The first three steps wait on the host, the others in streams.
run 0 "$SLUICE" "${arguments[@]}" --run.steps=8 --run.out=one
for ranks in 2 4; do
    for schedule in GPipe 1F1B Interleaved1F1B InterleavedZeroBubble ZBVZeroBubble DualPipeV; do
        for kind in threads processes; do
            # A process takes a second to start: of these two schedules.
            [ $kind = threads ] || [ $schedule = 1F1B ] || [ $schedule = ZBVZeroBubble ] || continue
            run 0 "$SLUICE" "${arguments[@]}" --run.steps=8 --run.out=several --overwrite --ranks-as $kind \
                --parallel.pp=$ranks --parallel.schedule=$schedule
            prints 'messages device memory, handed over by streams'
            run 0 "$compare" metrics one/metrics.jsonl several/metrics.jsonl
            run 0 "$compare" checkpoints one/checkpoints/step-00000008 several/checkpoints/step-00000008
        done
    done
done
run 0 env SLUICE_DEVICE_LINKS=0 "$SLUICE" "${arguments[@]}" --run.steps=8 --run.out=several --overwrite --parallel.pp=2 --ranks-as threads
prints 'messages host memory: a device shares no memory (SLUICE_DEVICE_LINKS)'
run 0 "$compare" metrics one/metrics.jsonl several/metrics.jsonl

# A rank that is killed while streams wait for it.
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
    [ $took -lt 5000 ] || fail "$took ms from the death of a rank to the end"
done

# A failure of one thread among four.
run 1 "$SLUICE" "${arguments[@]}" --run.steps=100 --parallel.pp=4 --ranks-as threads --optimizer.name=sgd --optimizer.lr=1e6 --run.out=diverges
complains 'rank 3 failed: '
complains 'the loss is '
run 0 "$SLUICE" "${arguments[@]}" --run.steps=8 --run.out=several --overwrite --parallel.pp=4 --ranks-as threads
run 0 "$compare" metrics one/metrics.jsonl several/metrics.jsonl
