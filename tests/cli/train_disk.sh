#!/usr/bin/env bash
# A full disk and a folder that cannot be written: a clear error, and the last checkpoint stays whole.
. "$(dirname "$0")/common.bash"
cd "$scratch"
head -c 20000 "$SLUICE_SOURCE/examples/demo/tales.txt" >text.txt

train() {
    "$SLUICE" train --data.text=text.txt --model.n_layer=4 --model.n_embd=64 --batch.size=8 --batch.seq=32 \
        --batch.microbatches=4 --parallel.pp=2 --checkpoint.every=2 --checkpoint.keep=100 --run.steps=40 "$@"
}

if [ "$(id -u)" -ne 0 ]; then
    mkdir closed
    chmod 555 closed
    run 1 train --run.out=closed/run
    complains 'Permission denied'
    chmod 755 closed
fi
run 1 train --run.out=/proc/run
complains '--run.out=/proc/run: '

# Data that is cut while a run reads it ends the run with its name. (Through a memory map it would be a signal.)
cp text.txt cut.txt
"$SLUICE" train --data.text=cut.txt --model.n_layer=2 --model.n_embd=32 --batch.seq=32 --run.steps=1000000 \
    --run.out=cut --log.progress=off >"$out" 2>"$err" &
pid=$!
for _ in $(seq 600); do
    [ -s cut/metrics.jsonl ] && break
    sleep 0.1
done
truncate -s 100 cut.txt
code=0
wait $pid || code=$?
[ $code -eq 1 ] || fail "exit code $code after the data was cut"
complains 'read cut.txt: it had 20000 bytes when it was opened, now it has 100'

# One checkpoint is about 2.7 MB, so that a few fit into the small file system and then no more.
mkdir small
if ! mount -t tmpfs -o size=10m none small 2>/dev/null; then
    echo "SKIPPED: mounting a small tmpfs needs root" >&2
    exit 0
fi
trap 'umount "$scratch/small"; rm -rf "$scratch"' EXIT
run 1 train --run.out=small/run
complains 'No space left on device'
last=$(ls small/run/checkpoints | tail -1)
run 0 "$SLUICE" info "small/run/checkpoints/$last" --verify
prints 'every file has the bytes that were written'

# With more room the run goes on.
mount -o remount,size=200m small
run 0 train --run.out=small/run --resume
[ -f small/run/checkpoints/step-00000040/manifest.json ] || fail "the run did not come to its end"

# Nor does a file system that has become read-only lose anything.
mount -o remount,ro small
run 1 train --run.out=small/run --resume --run.steps=50
complains 'Read-only file system'
run 0 "$SLUICE" info small/run/checkpoints/step-00000040 --verify
