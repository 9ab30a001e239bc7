#!/usr/bin/env bash
# A run that was stopped and resumed is the run that was not: weights, optimizer state, losses, to the last bit; also
# with other ranks, stages and schedules (those that go backward through the microbatches in rising order: all but
# LoopedBFS). A damaged checkpoint is reported and the one before is used.
. "$(dirname "$0")/common.bash"
cd "$scratch"
compare=$SLUICE_SUPPORT/compare
head -c 20000 "$SLUICE_SOURCE/examples/demo/tales.txt" >text.txt

# train OUT ARGUMENT...: 12 steps with dropout and shuffled rows: random numbers and data order matter.
train() {
    local dir=$1
    shift
    "$SLUICE" train --data.text=text.txt --data.order=shuffled --model.n_layer=4 --model.n_embd=32 --model.dropout=0.1 \
        --batch.size=8 --batch.seq=32 --batch.microbatches=4 --optimizer.schedule=cosine --optimizer.warmup=3 \
        --checkpoint.every=4 --checkpoint.keep=3 --run.steps=12 --run.out="$dir" "$@"
}

same() {
    run 0 "$compare" checkpoints straight/checkpoints/step-00000012 "$1/checkpoints/step-00000012"
    run 0 "$compare" metrics straight/metrics.jsonl "$1/metrics.jsonl"
}

run 0 train straight
prints 'checkpoint  straight/checkpoints/step-00000012'
[ "$(ls straight/checkpoints | wc -l)" -eq 3 ] || fail "not 3 checkpoints are kept"

# Straight through with other partitions.
run 0 train pp4 --parallel.pp=4
same pp4
run 0 train interleaved --parallel.pp=2 --parallel.schedule=Interleaved1F1B --parallel.stages_per_rank=2
same interleaved
run 0 train zero_bubble --parallel.pp=2 --parallel.schedule=ZBVZeroBubble
same zero_bubble

# Stopped after 8 steps on one layout and continued on another.
resumed() {
    local name=$1
    shift
    cp -r pp4 "$name"
    rm -r "$name/checkpoints/step-00000012"
    run 0 train "$name" --resume "$@"
    prints "resumed from $name/checkpoints/step-"
    same "$name"
}
resumed same_layout --parallel.pp=4
resumed one_rank
resumed other_schedule --parallel.pp=2 --parallel.schedule=GPipe
resumed more_stages --parallel.pp=2 --parallel.schedule=Interleaved1F1B --parallel.stages_per_rank=3
resumed dual_pipe --parallel.pp=2 --parallel.schedule=DualPipeV

# A damaged newest checkpoint.
cp -r pp4 damaged
printf 'x' | dd of=damaged/checkpoints/step-00000012/rank-00002.safetensors bs=1 seek=5000 conv=notrunc status=none
run 0 train damaged --parallel.pp=4 --resume
complains 'step-00000012 is damaged and not used'
same damaged
[ -d damaged/checkpoints/step-00000012.damaged ] || fail "the damaged checkpoint was not set aside"

# Nothing to resume from is the beginning; what a crash left does not count.
mkdir -p leftovers/checkpoints/step-00000004
echo torn >leftovers/checkpoints/step-00000004/rank-00000.safetensors
echo '{"step":1,"loss"' >leftovers/metrics.jsonl
run 0 train leftovers --parallel.pp=2 --resume
complains 'step-00000004 has no manifest: it was never finished, and is removed'
complains 'holds no whole checkpoint'
same leftovers

# Other settings are named, another model is refused.
cp -r pp4 other
rm -r other/checkpoints/step-00000012
run 0 train other --resume --optimizer.lr=1e-3
complains 'resumed with optimizer.lr=0.001, the checkpoint was made with 0.0003'
run 0 train other --resume --run.steps=13 --run.seed=5
complains 'resumed with run.seed=5, the checkpoint was made with '
complains 'resumed with run.steps=13, the checkpoint was made with 12' # the learning rate falls over all steps
cp text.txt kept.txt
echo more >>text.txt
run 0 train other --resume --run.steps=14
complains 'text.txt has 20005 tokens, it had 20000 when the checkpoint was made'
mv kept.txt text.txt
for other in model.n_layer=2 model.dropout=0 batch.seq=16 optimizer.name=sgd; do
    run 2 train other --resume --run.steps=15 --$other
    complains "--$other: other/checkpoints/step-00000014 was made with "
done
run 0 train other --resume
prints 'done after step 14: nothing was left to do, run.steps is 12'

# An interrupt ends the run with a checkpoint, and the exit code says so.
for signal in INT:130 HUP:129; do
    rm -rf stopped
    set -m # a shell without job control starts background commands with SIGINT ignored
    "$SLUICE" train --data.text=text.txt --model.n_layer=4 --model.n_embd=32 --batch.seq=32 --parallel.pp=2 \
        --run.steps=100000 --run.out=stopped >"$out" 2>"$err" &
    pid=$!
    set +m
    for _ in $(seq 600); do
        [ -s stopped/metrics.jsonl ] && break
        sleep 0.1
    done
    kill -"${signal%:*}" $pid
    code=0
    wait $pid || code=$?
    [ $code -eq "${signal#*:}" ] || fail "exit code $code after SIG${signal%:*}"
    prints 'stopped after step '
    steps=$(wc -l <stopped/metrics.jsonl)
    [ -f "stopped/checkpoints/step-$(printf %08d "$steps")/manifest.json" ] || fail "no checkpoint of step $steps"
done
