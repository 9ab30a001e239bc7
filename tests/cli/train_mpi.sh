#!/usr/bin/env bash
# Under mpirun the same command line is one rank of many, with the same numbers.
. "$(dirname "$0")/common.bash"
cd "$scratch"
compare=$SLUICE_SUPPORT/compare
if ! command -v mpirun >/dev/null || [ ! -f "$SLUICE_BUILD/libsluice_mpi_openmpi.so" ]; then
    echo "SKIPPED: there is no mpirun, or the plugin for OpenMPI was not built" >&2
    exit 0
fi
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
head -c 20000 "$SLUICE_SOURCE/examples/demo/tales.txt" >text.txt
arguments=(train --data.text=text.txt --model.n_layer=4 --model.n_embd=32 --batch.seq=32 --run.steps=4)

run 0 "$SLUICE" "${arguments[@]}" --run.out=alone
run 0 mpirun -n 4 "$SLUICE" "${arguments[@]}" --parallel.pp=4 --run.out=mpi
prints 'step 4/4  loss '
run 0 "$compare" metrics alone/metrics.jsonl mpi/metrics.jsonl
run 0 "$compare" checkpoints alone/checkpoints/step-00000004 mpi/checkpoints/step-00000004

# Ranks that do not see one folder: an error before the first step, and from one rank.
run 2 mpirun -n 1 "$SLUICE" "${arguments[@]}" --parallel.pp=2 --run.out=here : \
    -n 1 "$SLUICE" "${arguments[@]}" --parallel.pp=2 --run.out=there
complains "--run.out=there: rank 1 on $(hostname) does not see what rank 0 on $(hostname) writes to this folder"
[ "$(grep -c 'does not see' "$err")" -eq 1 ] || fail "not one rank speaks for all"
[ ! -e here/metrics.jsonl ] && [ ! -e there/metrics.jsonl ] && [ ! -e here/checkpoints ] || fail "the run had begun"

# A rank that dies: mpirun ends the others, and the same line with --resume goes on.
mpirun -n 2 "$SLUICE" "${arguments[@]}" --parallel.pp=2 --run.steps=2000 --checkpoint.every=20 --checkpoint.keep=100 --log.progress=off --run.out=killed >"$out" 2>"$err" &
launcher=$!
for _ in $(seq 600); do [ -e killed/checkpoints/step-00000040/manifest.json ] && break; sleep 0.05; done
kill -KILL "$(pgrep -P $launcher -f run.out=killed | tail -1)"
code=0
wait $launcher || code=$?
[ $code -eq 75 ] || [ $code -gt 128 ] || fail "exit code $code of a run that lost a rank"
run 0 mpirun -n 2 "$SLUICE" "${arguments[@]}" --parallel.pp=2 --run.steps=300 --log.progress=off --run.out=killed --resume
run 0 "$SLUICE" "${arguments[@]}" --run.steps=300 --log.progress=off --run.out=whole
run 0 "$compare" checkpoints whole/checkpoints/step-00000300 killed/checkpoints/step-00000300

run 0 mpirun -n 2 "$SLUICE" "${arguments[@]}" --dry-run
[ "$(grep -c '^schedule  1F1B, 2 stages on 2 ranks' "$out")" -eq 1 ] || fail "not one plan for the ranks there are"
run 2 mpirun -n 3 "$SLUICE" "${arguments[@]}" --parallel.pp=2 --run.out=bad
complains '3 ranks were started, wanted are 2'
# mpirun ends all ranks with the first: rank 0 gets to say why, however late it comes.
run 2 mpirun -n 3 bash -c '[ "$OMPI_COMM_WORLD_RANK" -gt 0 ] || sleep 0.7; exec "$@"' late "$SLUICE" "${arguments[@]}" --parallel.pp=2 --run.out=bad
complains '3 ranks were started, wanted are 2'
run 2 mpirun -n 2 "$SLUICE" "${arguments[@]}" -n 4 --run.out=bad
complains '2 ranks were started, wanted are 4'
[ ! -e bad ] || fail "the folder was made"
run 2 mpirun -n 2 "$SLUICE" "${arguments[@]}" --parallel.pp=2 --batch.size=nothing --run.out=bad
[ "$(grep -c "is not a whole number" "$err")" -eq 1 ] || fail "not one rank speaks for all"
