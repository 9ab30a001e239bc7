#!/usr/bin/env bash
# What a run shows and leaves: plain lines in a pipe, one line in place on a terminal, metrics, events, timeline.
. "$(dirname "$0")/common.bash"
cd "$scratch"
head -c 20000 "$SLUICE_SOURCE/examples/demo/tales.txt" >text.txt
arguments=(train --data.text=text.txt --model.n_layer=4 --model.n_embd=32 --batch.seq=32)

run 0 "$SLUICE" "${arguments[@]}" --parallel.pp=2 --run.steps=6 --run.out=out --log.every=3 --log.tensorboard=true --trace 2
silent
[ "$(grep -c '^step ' "$out")" -eq 2 ] || fail "not every third step has its line"
grep -qE '^step 6/6  loss [0-9.]+  norm [0-9.]+  lr [0-9.e-]+  [0-9.]+ (us|ms|s)  [0-9.]+k? tok/s  MFU [0-9.]+%  mem [0-9.]+ [kM]?B  left 0s$' \
    "$out" || fail "the line is not what it should be"
prints 'done after step 6: loss '
grep -q $'\033' "$out" && fail "escape sequences in a pipe"
for path in out/metrics.jsonl out/trace.json out/trace.svg out/checkpoints/step-00000006/manifest.json; do
    [ -s "$path" ] || fail "$path is missing"
done
[ "$(wc -l <out/metrics.jsonl)" -eq 6 ] || fail "not a line a step"
for key in step loss grad_norm lr ms tokens_per_s peak_memory; do
    [ "$(grep -c "\"$key\":" out/metrics.jsonl)" -eq 6 ] || fail "metrics.jsonl lacks $key"
done
[ "$(ls out/tensorboard/events.out.tfevents.* | wc -l)" -eq 1 ] || fail "no event file"
grep -q '2 steps of 4 microbatches' out/trace.svg || fail "the picture merges the microbatches of its two steps"
grep -q '>0F4<' out/trace.svg && fail "a microbatch has the number of another step"
run 0 "$SLUICE" show out/trace.json
run 0 "$SLUICE" train --help
prints '--optimizer.betas'

# On a terminal: in place, with color unless NO_COLOR says otherwise.
if command -v script >/dev/null; then
    terminal() {
        script -qec "$1 TERM=xterm '$SLUICE' ${arguments[*]} --run.steps=3 --run.out=$2" /dev/null </dev/null >"$out"
    }
    terminal '' colored
    grep -q $'\r\033\[K\033\[32m' "$out" || fail "no line in place"
    terminal 'NO_COLOR=1' grey
    grep -q $'\033\[32m' "$out" && fail "color in spite of NO_COLOR"
    grep -q $'\r\033\[K' "$out" || fail "no line in place without color"
else
    echo "SKIPPED: no script(1) to play the terminal" >&2
fi

# Several starts at once: the folder is looked at after it is locked, so that none takes another's checkpoints away.
starts=()
for i in 1 2 3; do
    "$SLUICE" "${arguments[@]}" --run.steps=6 --checkpoint.every=2 --run.out=rush --log.progress=off 2>"rush$i.err" &
    starts+=($!)
    sleep 0.02
done
succeeded=0
for pid in "${starts[@]}"; do
    wait "$pid" && succeeded=$((succeeded + 1)) || true
done
[ $succeeded -eq 1 ] || fail "$succeeded of 3 starts in one folder succeeded: $(cat rush?.err)"
[ -f rush/checkpoints/step-00000006/manifest.json ] || fail "the first one's checkpoint is gone"
[ "$(ls rush/checkpoints | grep -vc '^step-[0-9]*$')" -eq 0 ] || fail "a checkpoint was set aside: $(ls rush/checkpoints)"
[ "$(stat -c %a rush/lock)" = 600 ] || fail "others can open the lock, and so hold it"

# The folder belongs to one run at a time.
"$SLUICE" "${arguments[@]}" --run.steps=1000000 --run.out=busy --log.progress=off &
pid=$!
for _ in $(seq 100); do
    [ -s busy/metrics.jsonl ] && break
    sleep 0.1
done
run 1 "$SLUICE" "${arguments[@]}" --run.steps=2 --run.out=busy
complains 'another run is writing to this folder'
kill -TERM $pid
code=0
wait $pid || code=$?
[ $code -eq 143 ] || fail "exit code $code after SIGTERM"
