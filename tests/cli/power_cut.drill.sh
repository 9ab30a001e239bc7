#!/usr/bin/env bash
# Power cuts: what a run does to its files is recorded, and every state that a power cut could have left after each of its
# operations is made and looked at (see power_cut.c). The recorded run has checkpoints that come, replace and go.
. "$(dirname "$0")/common.bash"
command -v strace >/dev/null || { echo "SKIPPED: no strace(1) to record a run" >&2; exit 77; }
cd "$scratch"
export ASAN_OPTIONS=${ASAN_OPTIONS-}:detect_leaks=0 # a tracer is in the way of the leak checker
calls=mkdir,openat,write,pwrite64,fsync,fdatasync,rename,renameat,renameat2,unlink,unlinkat,rmdir

# train OUT ARGUMENT...
train() {
    local dir=$1
    shift
    "$SLUICE" train --data.text="$SLUICE_SOURCE/examples/demo/tales.txt" --model.n_layer=1 --model.n_embd=8 \
        --model.n_head=2 --batch.seq=8 --batch.size=2 --checkpoint.every=2 --run.steps=8 --log.progress=off \
        --run.out="$dir" "$@"
}
run 0 train "$scratch/reference" --checkpoint.keep=100
mkdir root logs
run 0 strace -ff -ttt -y -xx -s 4000000 -e signal=none -e trace=$calls -o logs/trace \
    "$SLUICE" train --data.text="$SLUICE_SOURCE/examples/demo/tales.txt" --model.n_layer=1 --model.n_embd=8 \
    --model.n_head=2 --batch.seq=8 --batch.size=2 --checkpoint.every=2 --run.steps=8 --log.progress=off \
    --checkpoint.keep=2 --run.out="$scratch/root/run"
sort -m -n -s logs/trace.* >trace
run 0 "$SLUICE_SUPPORT/compare" checkpoints root/run/checkpoints/step-00000008 reference/checkpoints/step-00000008
run 0 "$SLUICE_SUPPORT/power_cut" trace "$scratch/root" reference/checkpoints "$scratch"
cat "$out"

# The same run without its syncs would lose checkpoints: the replay sees it.
grep -v ' fsync(' trace >careless
run 1 "$SLUICE_SUPPORT/power_cut" careless "$scratch/root" reference/checkpoints "$scratch"
