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
run 0 mpirun -n 2 "$SLUICE" "${arguments[@]}" --dry-run
[ "$(grep -c '^schedule  1F1B, 2 stages on 2 ranks' "$out")" -eq 1 ] || fail "not one plan for the ranks there are"
run 2 mpirun -n 3 "$SLUICE" "${arguments[@]}" --parallel.pp=2 --run.out=bad
complains '3 ranks were started, wanted are 2'
run 2 mpirun -n 2 "$SLUICE" "${arguments[@]}" -n 4 --run.out=bad
complains '2 ranks were started, wanted are 4'
[ ! -e bad ] || fail "the folder was made"
run 2 mpirun -n 2 "$SLUICE" "${arguments[@]}" --parallel.pp=2 --batch.size=nothing --run.out=bad
[ "$(grep -c "is not a whole number" "$err")" -eq 1 ] || fail "not one rank speaks for all"
