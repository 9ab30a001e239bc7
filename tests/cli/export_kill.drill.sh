#!/usr/bin/env bash
# An export over an older one that is killed at any of its file operations leaves the old model, the new one or none.
. "$(dirname "$0")/common.bash"
command -v strace >/dev/null || { echo "SKIPPED: no strace(1) to kill at a system call" >&2; exit 77; }
cd "$scratch"
model=$SLUICE_DATA/models/gpt2-tiny
export ASAN_OPTIONS=${ASAN_OPTIONS-}:detect_leaks=0 # a tracer is in the way of the leak checker

loss() {
    "$SLUICE" eval --model "$1" --tokens "$model/tokens.bin" --batch 8 --seq 32 --steps 1 --format json 2>"$err" |
        sed 's/.*"loss":\([^,]*\),.*/\1/'
}

# Two models of one shape with different weights: the old is the new after a few steps.
run 0 "$SLUICE" export --model "$model" --output new --shard-gb 0.0001
run 0 "$SLUICE" train --model.init="$model" --data.tokens="$model/tokens.bin" --batch.size=4 --batch.seq=32 \
    --run.steps=3 --optimizer.lr=0.01 --run.out=trained
run 0 "$SLUICE" export --model trained --output old --shard-gb 0.0001
new_loss=$(loss new) old_loss=$(loss old)
[ -n "$new_loss" ] && [ -n "$old_loss" ] && [ "$new_loss" != "$old_loss" ] || fail "the two models have the same loss"

kills=0 old=0 new=0 none=0
for call in unlink unlinkat rename renameat renameat2 fsync openat mkdir rmdir; do
    for ((n = 1; ; n++)); do
        rm -rf target target.export-*
        cp -r old target
        code=0
        strace -f -qq -o /dev/null -e trace=$call -e inject=$call:signal=KILL:when=$n \
            "$SLUICE" export --model "$model" --output target --shard-gb 0.0001 --overwrite >"$out" 2>"$err" || code=$?
        [ $code -ne 0 ] || break
        kills=$((kills + 1))
        got=$(loss target || true)
        case $got in
        "$old_loss") old=$((old + 1)) ;;
        "$new_loss") new=$((new + 1)) ;;
        "") none=$((none + 1)) ;;
        *) fail "killed at $call $n: a mixture with the loss $got" ;;
        esac
        # And the next export comes through.
        run 0 "$SLUICE" export --model "$model" --output target --shard-gb 0.0001 --overwrite
        [ "$(loss target)" = "$new_loss" ] || fail "the export after a kill at $call $n is not the new model"
        [ $call != openat ] || [ $n -lt 12 ] || [ $((n % 7)) -eq 0 ] || n=$((n + 6)) # most open libraries
    done
done
echo "$kills kills: $old times the old model, $new times the new one, $none times none"
[ $old -gt 0 ] && [ $new -gt 0 ] || fail "the kills did not come at different moments"
