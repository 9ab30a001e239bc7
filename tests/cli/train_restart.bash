# Runs that lose ranks and come back by themselves. Sourced by train_restart.sh and train_restart.drill.sh.
compare=$SLUICE_SUPPORT/compare
cd "$scratch"
head -c 20000 "$SLUICE_SOURCE/examples/demo/tales.txt" >text.txt

arguments=(train --data.text=text.txt --data.order=shuffled --model.n_layer=4 --model.n_embd=32 --batch.size=8
           --batch.seq=32 --batch.microbatches=4 --log.progress=off)

# start NAME OPTIONS...: the run in the background, with its folder and its output called NAME.
start() {
    local name=$1
    shift
    rm -rf "$name"
    "$SLUICE" "${arguments[@]}" --run.out="$name" "$@" >"$name.out" 2>"$name.err" &
    launcher=$!
}

# ends_with CODE NAME
ends_with() {
    local code=0
    wait "$launcher" || code=$?
    cp "$2.out" "$out"
    cp "$2.err" "$err"
    [ "$code" -eq "$1" ] || fail "exit code $code instead of $1"
}

# The ranks that run now: children of the launcher's keeper.
ranks() {
    local keeper
    keeper=$(pgrep -P "$launcher" || true)
    [ -z "$keeper" ] || pgrep -P "$keeper" || true
}

lines() { cat "$1/metrics.jsonl" 2>/dev/null | grep -c "${2:-loss}" || true; }

# wait_for_lines NAME COUNT [WHAT]: until the metrics have that many lines of WHAT, or the run ends.
wait_for_lines() {
    while [ "$(lines "$1" "${3:-}")" -lt "$2" ]; do
        kill -0 "$launcher" 2>/dev/null || return 0
        sleep 0.02
    done
}

# hit SIGNAL: sends it to one of the ranks; false if there is none just now.
hit() {
    local victims
    mapfile -t victims < <(ranks)
    [ ${#victims[@]} -gt 0 ] && kill -"$1" "${victims[RANDOM % ${#victims[@]}]}" 2>/dev/null
}

same_as() { # same_as A B STEPS: two runs with the same metrics and the same last checkpoint
    local step
    step=$(printf 'step-%08d' "$3")
    run 0 "$compare" metrics "$1/metrics.jsonl" "$2/metrics.jsonl"
    run 0 "$compare" checkpoints "$1/checkpoints/$step" "$2/checkpoints/$step"
}

# kill_ranks COUNT STEPS: one run of STEPS steps that loses COUNT ranks at random moments: half of them while the ranks
# start, half while they train. Its bits are those of a run that was never disturbed.
kill_ranks() {
    local kills=0 count=$1 steps=$2 restarts
    run 0 "$SLUICE" "${arguments[@]}" --run.out=straight --run.steps="$steps" --parallel.pp=4
    start killed --run.steps="$steps" --parallel.pp=4 --checkpoint.memory=2 --checkpoint.every=7 --restarts "$count"
    while [ "$kills" -lt "$count" ]; do
        kill -0 "$launcher" 2>/dev/null || fail "the run ended after $kills kills"
        if [ $((RANDOM % 2)) -eq 0 ]; then
            sleep "0.$((RANDOM % 2))$((RANDOM % 5))"
        else
            wait_for_lines killed $(($(lines killed) + RANDOM % 6 + 1))
        fi
        ! hit KILL || kills=$((kills + 1))
    done
    ends_with 0 killed
    restarts=$(grep -c 'starting again' "$err" || true)
    same_as straight killed "$steps"
    echo "$kills kills, $restarts restarts, $(lines killed '"from":"memory"') of those that stayed in the metrics from memory"
    [ "$restarts" -ge $((count / 2)) ] || fail "only $restarts restarts"
}
