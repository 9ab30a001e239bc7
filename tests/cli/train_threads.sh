#!/usr/bin/env bash
# Ranks as threads of one process: the files, lines, errors and exit codes of ranks as processes.
. "$(dirname "$0")/common.bash"
cd "$scratch"
head -c 20000 "$SLUICE_SOURCE/examples/demo/tales.txt" >text.txt
arguments=(train --data.text=text.txt --model.n_layer=4 --model.n_embd=32 --batch.seq=32 --batch.size=8 --batch.microbatches=4
    --data.val=10% --eval.every=3 --log.progress=plain)

# What a run leaves, without what time decides.
content() {
    (cd "$1" && find checkpoints -type f ! -name manifest.json -exec sha256sum {} + | sort -k 2)
    sed -E 's/"(ms|tokens_per_s|mfu|peak_gflops|peak_memory)":[^,}]*//g' "$1/metrics.jsonl"
}
same() { diff <(content "$1") <(content "$2") >"$err" || fail "$2 is not what $1 is"; }
steps() { sed -nE 's/^(step [^ ]+  loss [^ ]+  norm [^ ]+).*/\1/p' "$1"; }

# Pipelines and replicas: same bits, same lines.
for mesh in '--parallel.pp=2 --parallel.schedule=Interleaved1F1B --parallel.stages_per_rank=2' \
    '--parallel.pp=2 --parallel.dp=2 --parallel.shard=full'; do
    for kind in processes threads; do
        run 0 "$SLUICE" "${arguments[@]}" $mesh --run.steps=6 --checkpoint.every=3 --run.out="$kind" --overwrite --ranks-as $kind
        silent
        cp "$out" "$kind.out"
    done
    same processes threads
    diff <(steps processes.out) <(steps threads.out) || fail "other lines than with processes"
    grep -q '^done after step 6: ' threads.out || fail "no last line"
    [ "$(grep -c '^mesh ' threads.out)" -eq 1 ] || fail "not one rank prints"
done

# Where ranks run changes no bit either.
for bind in auto none core; do
    run 0 env SLUICE_BIND=$bind "$SLUICE" "${arguments[@]}" --parallel.pp=2 --parallel.dp=2 --run.steps=3 --checkpoint.every=3 --run.out=$bind
    silent
done
same none auto
same none core

# A checkpoint of threads is resumed by processes, and the other way round.
run 0 "$SLUICE" "${arguments[@]}" --parallel.pp=2 --run.steps=6 --run.out=whole
for first in threads processes; do
    second=$([ $first = threads ] && echo processes || echo threads)
    run 0 "$SLUICE" "${arguments[@]}" --parallel.pp=2 --run.steps=3 --run.out=mixed --overwrite --ranks-as $first
    run 0 "$SLUICE" "${arguments[@]}" --parallel.pp=2 --run.steps=6 --run.out=mixed --resume --ranks-as $second
    cmp whole/checkpoints/step-00000006/*00000.safetensors mixed/checkpoints/step-00000006/*00000.safetensors ||
        fail "resumed by $second: other bits"
done

# The number of threads as -n says, and what cannot be.
run 0 "$SLUICE" "${arguments[@]}" -n 4 --run.steps=1 --run.out=four --ranks-as threads
prints 'mesh pp 4'
run 2 "$SLUICE" "${arguments[@]}" -n 3 --parallel.pp=2 --run.steps=1 --run.out=three --ranks-as threads
complains '-n 3: the ranks are parallel.pp 2 x parallel.dp 1'
run 2 "$SLUICE" "${arguments[@]}" --parallel.pp=2 --run.out=less --ranks-as threads --restarts 1 --min-ranks 1
complains '--min-ranks: ranks as threads are lost together'
run 2 "$SLUICE" launch -n 2 "$SLUICE" "${arguments[@]}" --parallel.pp=2 --run.out=twice --ranks-as threads
complains '--ranks-as threads: 2 processes were started; one is all ranks'

# A rank's failure: the text and the exit code of processes; nobody else reports.
for kind in processes threads; do
    run 1 "$SLUICE" "${arguments[@]}" --parallel.pp=2 --optimizer.name=sgd --optimizer.lr=1e6 --run.steps=50 --run.out=diverges --overwrite --ranks-as $kind
    grep -o 'rank 1 failed: .*the loss is -\?nan' "$err" >$kind.err || fail "does not say what failed"
done
cmp processes.err threads.err || fail "another text than with processes"
[ "$(wc -l <"$err")" -eq 1 ] || fail "more than one report"

# An interrupt ends the run after the step with a checkpoint.
for signal in HUP:129 TERM:143; do
    rm -rf stopped
    "$SLUICE" "${arguments[@]}" --parallel.pp=2 --run.steps=1000000 --eval.every=1000000 --run.out=stopped --ranks-as threads >"$out" 2>"$err" &
    pid=$!
    until [ -s stopped/metrics.jsonl ]; do sleep 0.05; done
    kill -s "${signal%:*}" $pid
    code=0
    wait $pid || code=$?
    [ $code -eq "${signal#*:}" ] || fail "exit code $code after SIG${signal%:*}"
    prints 'stopped after step '
    [ -n "$(ls stopped/checkpoints)" ] || fail "no checkpoint after SIG${signal%:*}"
done

# The launcher starts the one process again; the bits are those of a run that nobody killed.
"$SLUICE" "${arguments[@]}" --parallel.pp=2 --run.steps=60 --checkpoint.memory=1 --run.out=again --ranks-as threads --restarts 3 >"$out" 2>"$err" &
pid=$!
until [ -s again/metrics.jsonl ] && [ "$(wc -l <again/metrics.jsonl)" -ge 4 ]; do sleep 0.01; done
kill -KILL "$(pgrep -P "$(pgrep -P $pid)")" # below the launcher's keeper: the one that is all ranks
wait $pid || fail "the run did not go on"
complains 'restart 1: going on after step '
run 0 "$SLUICE" "${arguments[@]}" --parallel.pp=2 --run.steps=60 --run.out=calm
cmp calm/checkpoints/step-00000060/*00000.safetensors again/checkpoints/step-00000060/*00000.safetensors || fail "other bits after a restart"
