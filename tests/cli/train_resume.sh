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
mkdir -p leftovers/checkpoints/step-00000004.partial
echo torn >leftovers/checkpoints/step-00000004.partial/rank-00000.safetensors
echo '{"step":1,"loss"' >leftovers/metrics.jsonl
run 0 train leftovers --parallel.pp=2 --resume
complains 'leftovers/checkpoints holds no checkpoint: starting at the beginning'
same leftovers
[ ! -e leftovers/checkpoints/step-00000004.partial ] || fail "what a crash left is still there"

# Only damage is damage. What cannot be read now ends the run, and everything stays as it was.
unchanged() {
    local before after
    before=$(find unreadable -type f -o -type l | sort | xargs ls -l --time-style=full-iso)
    run 1 train unreadable --run.steps=16 --parallel.pp=4 --resume
    after=$(find unreadable -type f -o -type l | sort | xargs ls -l --time-style=full-iso)
    [ "$before" = "$after" ] || fail "a resume that failed changed the folder"
}
cp -r pp4 unreadable
for part in unreadable/checkpoints/step-*/rank-00001.safetensors; do
    mv "$part" "$part.away"
    ln -s rank-00001.safetensors "$part" # cannot be opened by anybody
done
unchanged
complains 'step-00000012/rank-00001.safetensors: Too many levels of symbolic links'

# If no checkpoint is whole, the run does not begin anew by itself.
rm -r unreadable
cp -r pp4 unreadable
rm unreadable/checkpoints/step-*/manifest.json
unchanged
complains 'not one of its checkpoints (3) is whole'
run 2 train unreadable --run.steps=16 --parallel.pp=4 # nor without --resume
complains 'unreadable holds a run'

# A link in place of a checkpoint is never followed by what removes.
cp -r pp4 linked
mkdir precious
echo mine >precious/file
ln -s "$PWD/precious" linked/checkpoints/step-00000002
run 0 train linked --run.steps=16 --parallel.pp=4 --resume
[ -f precious/file ] || fail "a link was followed out of the folder"

# Other settings are named, another model is refused.
cp -r pp4 other
rm -r other/checkpoints/step-00000012
run 0 train other --resume --optimizer.lr=1e-3
complains 'resumed with optimizer.lr=0.001, the checkpoint was made with 0.0003'
run 0 train other --resume --run.steps=13 --run.seed=5
complains 'resumed with run.seed=5, the checkpoint was made with '
complains 'resumed with run.steps=13, the checkpoint was made with 12' # the learning rate falls over all steps
cp text.txt kept.txt
sed 's/the/teh/' kept.txt >text.txt # as long as it was
run 0 train other --resume --run.steps=14
complains 'text.txt has changed since the checkpoint was made'
echo more >>text.txt
run 0 train other --resume --run.steps=15
complains 'text.txt has 20005 tokens, it had 20000 when the checkpoint was made'
mv kept.txt text.txt
for other in model.n_layer=2 model.dropout=0 batch.seq=16 optimizer.name=sgd; do
    run 2 train other --resume --run.steps=16 --$other
    complains "--$other: other/checkpoints/step-00000015 was made with "
done
run 0 train other --resume
prints 'done after step 15: nothing was left to do, run.steps is 12'

# LoopedBFS goes backward through the microbatches in another order, and the resume says so.
cp -r pp4 looped
rm -r looped/checkpoints/step-00000012
run 0 train looped --resume --parallel.pp=2 --parallel.schedule=LoopedBFS --parallel.stages_per_rank=2
complains 'resumed with the schedule LoopedBFS, which adds the gradients of the microbatches in '

# The number of threads changes no bit.
threads() {
    "$SLUICE" train --data.text=text.txt --model.n_layer=2 --model.n_embd=48 --batch.size=16 --batch.seq=64 \
        --batch.microbatches=2 --run.steps=3 --parallel.threads="$1" --run.out="threads$1"
}
run 0 threads 1
for count in 2 3 5; do
    run 0 threads $count
    run 0 "$compare" checkpoints threads1/checkpoints/step-00000003 threads$count/checkpoints/step-00000003
    run 0 "$compare" metrics threads1/metrics.jsonl threads$count/metrics.jsonl
done

# A state that is not finite is not saved, and a model that has one is not evaluated.
small() {
    "$SLUICE" train --data.text="$SLUICE_SOURCE/examples/demo/tales.txt" --model.n_layer=2 --model.n_embd=16 --model.n_head=2 --batch.seq=16 \
        --batch.size=4 --checkpoint.every=1 --run.out="$@"
}
run 1 small nan --run.steps=1 --optimizer.eps=0 --model.n_positions=32 # unused positions: 0 / 0
complains 'is infinite or not a number: this state is not saved'
[ "$(find nan/checkpoints -name manifest.json | wc -l)" -eq 0 ] || fail "NaN weights were saved"
run 1 small infinite --run.steps=20 --optimizer.lr=1e6 --optimizer.clip=0 --optimizer.name=sgd
grep -qE 'this state is not saved|the loss |norm of the gradients is' "$err" || fail "no reason"

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
