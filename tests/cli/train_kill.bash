# kill_runs COUNT: kills a rank or the launcher with SIGKILL at a random moment, resumes, kills again, ... and compares
# the run that comes out of it with one that was never disturbed. Sourced by train_kill.sh and train_kill.drill.sh.
compare=$SLUICE_SUPPORT/compare
cd "$scratch"
head -c 20000 "$SLUICE_SOURCE/examples/demo/tales.txt" >text.txt

arguments=(train --data.text=text.txt --data.order=shuffled --model.n_layer=4 --model.n_embd=32 --batch.size=8
           --batch.seq=32 --batch.microbatches=4 --checkpoint.every=3 --run.steps=300 --parallel.pp=4 --log.progress=off)

# The launcher, the ranks' keeper, the ranks.
family() {
    local keeper
    keeper=$(pgrep -P "$1" || true)
    echo "$1"
    [ -z "$keeper" ] || { echo "$keeper"; pgrep -P "$keeper" || true; }
}

kill_runs() {
    local count=$1 kills=0 in_a_row launcher victims victim code left
    run 0 "$SLUICE" "${arguments[@]}" --run.out=straight
    while [ "$kills" -lt "$count" ]; do
        rm -rf killed
        for ((in_a_row = 0; in_a_row < 12 && kills < count; in_a_row++)); do
            "$SLUICE" "${arguments[@]}" --run.out=killed --resume >"$out" 2>"$err" &
            launcher=$!
            sleep "0.$((RANDOM % 9))$((RANDOM % 10))"
            mapfile -t victims < <(family "$launcher")
            victim=${victims[RANDOM % ${#victims[@]}]}
            kill -KILL "$victim" 2>/dev/null || true
            code=0
            wait "$launcher" 2>/dev/null || code=$?
            [ "$code" -ne 0 ] || break # it was done before the kill came: this one does not count
            kills=$((kills + 1))
        done
        run 0 "$SLUICE" "${arguments[@]}" --run.out=killed --resume
        run 0 "$compare" checkpoints straight/checkpoints/step-00000300 killed/checkpoints/step-00000300
        run 0 "$compare" metrics straight/metrics.jsonl killed/metrics.jsonl
    done
    echo "$kills kills of a running launcher or rank"
    left=$(ls killed/checkpoints | grep -vc '^step-[0-9]*$' || true)
    [ "$left" -eq 0 ] || fail "something was left behind: $(ls killed/checkpoints)"
    ls killed/checkpoints/*/ | grep -q tmp && fail "temporary files were left behind"
    return 0
}
