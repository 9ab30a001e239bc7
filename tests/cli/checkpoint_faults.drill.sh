#!/usr/bin/env bash
# Faults and kills at every system call by which a run resumes from a checkpoint and writes the next ones. A call that
# fails is no damage: the run goes on or ends with a message, nothing is set aside, and the next resume comes to the same
# bits. After a kill the next resume does, too. A disk that says it has written and has not is damage, and is found.
. "$(dirname "$0")/common.bash"
command -v strace >/dev/null || { echo "SKIPPED: no strace(1) to make a system call fail" >&2; exit 77; }
cd "$scratch"
export ASAN_OPTIONS=${ASAN_OPTIONS-}:detect_leaks=0 # a tracer is in the way of the leak checker
compare=$SLUICE_SUPPORT/compare
head -c 5000 "$SLUICE_SOURCE/examples/demo/tales.txt" >text.txt
arguments=(train --data.text=text.txt --model.n_layer=1 --model.n_embd=8 --model.n_head=2 --batch.seq=8 --batch.size=2
           --checkpoint.every=2 --log.progress=off --resume)

run 0 "$SLUICE" "${arguments[@]}" --run.out=base --run.steps=4
cp -r base straight
run 0 "$SLUICE" "${arguments[@]}" --run.out=straight --run.steps=8

# The run ends at the bits of the one that was not disturbed, and nothing was taken for damage.
comes_back() {
    run 0 "$SLUICE" "${arguments[@]}" --run.out=run --run.steps=8
    run 0 "$compare" checkpoints straight/checkpoints/step-00000008 run/checkpoints/step-00000008
    run 0 "$compare" metrics straight/metrics.jsonl run/metrics.jsonl
    local expected='^step-[0-9]*$'
    [[ $1 != retval* ]] || expected='^step-[0-9]*\(.damaged\)\?$'
    ls run/checkpoints | grep -v "$expected" && fail "after $1 something was set aside or left: $(ls run/checkpoints)"
    return 0
}

# How often the busiest thread of an undisturbed run makes the call.
count_calls() {
    rm -rf run logs
    cp -r base run
    mkdir logs
    strace -ff -qq -e signal=none -e trace="$1" -o logs/trace "$SLUICE" "${arguments[@]}" --run.out=run --run.steps=8 \
        >"$out" 2>"$err" || fail "the undisturbed run failed"
    wc -l logs/trace.* | sed '/total/d' | sort -n | tail -1 | awk '{ print $1 }'
}

faults=0 ended=0 kills=0
# disturb CALL WHAT: WHAT is error=... or signal=KILL, at every call.
disturb() {
    local call=$1 what=$2 most n code
    most=$(count_calls "$call")
    for ((n = 1; n <= most; n++)); do
        rm -rf run
        cp -r base run
        code=0
        strace -f -qq -e signal=none -e trace="$call" -e inject="$call:$what:when=$n" -o /dev/null \
            "$SLUICE" "${arguments[@]}" --run.out=run --run.steps=8 >"$out" 2>"$err" || code=$?
        if [ "$what" = signal=KILL ]; then
            kills=$((kills + 1))
        else
            faults=$((faults + 1))
            [ $code -eq 0 ] || ended=$((ended + 1))
            [ $code -eq 0 ] || [ -s "$err" ] || fail "$what at $call $n: exit code $code without a message"
            [ $code -lt 128 ] || fail "$what at $call $n: exit code $code"
        fi
        comes_back "$what at $call $n"
    done
}

for call in pwrite64 fsync renameat rename mkdir unlinkat rmdir flock fchmod; do
    disturb $call error=EIO
done
for call in pread64 openat getdents64; do
    disturb $call error=EIO
done
disturb openat error=EMFILE
disturb openat error=EACCES
disturb pwrite64 error=ENOSPC
disturb pwrite64 retval=1 # a byte that was never written
for call in pwrite64 fsync renameat rename mkdir unlinkat rmdir openat; do
    disturb $call signal=KILL
done
echo "$faults faults ($ended ended the run), $kills kills: every resume came to the same bits"
