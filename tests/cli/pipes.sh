# Pipes: a named one as an input is refused at once, one that a shell connects is read, and a run whose output nobody
# reads any more goes on.
. "$(dirname "$0")/common.bash"
cd "$scratch"
head -c 20000 "$SLUICE_SOURCE/examples/demo/tales.txt" >text.txt
train=(train --model.n_layer=2 --model.n_embd=16 --model.n_head=2 --batch.seq=16 --batch.size=4 --checkpoint.every=2)

# Nobody writes to it: opening it would wait for ever.
mkfifo fifo
refused() {
    run "$1" timeout 20 "$SLUICE" "${@:2}"
    complains "open fifo: it is a named pipe (FIFO); a file is needed"
}
refused 1 "${train[@]}" --data.text=fifo --run.out=run
refused 1 "${train[@]}" --data.tokens=fifo --run.out=run
refused 1 train -c fifo
refused 1 check fifo
refused 1 show fifo
refused 1 info fifo

# A pipe that is connected.
"$SLUICE" plan --schedule 1F1B --ranks 2 --microbatches 4 >schedule.csv
run 0 "$SLUICE" check <(cat schedule.csv)
run 0 bash -c 'cat schedule.csv | "$0" check /dev/stdin' "$SLUICE"

# Nobody reads the output any more: all steps are run, and the last checkpoint is there.
for ranks in 1 2; do
    { code=0; "$SLUICE" "${train[@]}" --data.text=text.txt --run.steps=40 --parallel.pp=$ranks --run.out=head.$ranks \
        2>"$err" || code=$?; echo "$code" >code; } | head -1 >"$out"
    for _ in $(seq 100); do [ -s code ] && break; sleep 0.05; done
    [ "$(cat code)" -eq 0 ] || fail "exit code $(cat code) if nobody reads the output"
    complains "the progress output cannot be written: Broken pipe; the run goes on without it"
    [ -e head.$ranks/checkpoints/step-00000040 ] || fail "the run ended early: $(ls head.$ranks/checkpoints)"
    [ "$(wc -l <head.$ranks/metrics.jsonl)" -ge 40 ] || fail "metrics are missing"
done
