#!/usr/bin/env bash
# What replicas share out changes no bit and no file that a later run reads: ranks as processes, over shared memory and
# over MPI; a dry run that knows the mode; mistakes.
. "$(dirname "$0")/common.bash"
cd "$scratch"
compare=$SLUICE_SUPPORT/compare
head -c 20000 "$SLUICE_SOURCE/examples/demo/tales.txt" >text.txt
arguments=(train --data.text=text.txt --model.n_layer=4 --model.n_embd=32 --batch.seq=32 --batch.size=4 --batch.microbatches=2
    --parallel.pp=2 --parallel.dp=2 --parallel.schedule=InterleavedZeroBubble --run.steps=4)

first_line() { [ "$(head -1 "$out")" = "$1" ] || fail "the first line is: $(head -1 "$out")"; }
run 0 "$SLUICE" "${arguments[@]}" --run.out=none --save-grads=none.grads
first_line "mesh pp 2 x dp 2, shard none"
more=''
for mode in optimizer full; do
    run 0 "$SLUICE" "${arguments[@]}" --parallel.shard=$mode --run.out=$mode --save-grads=$mode.grads
    first_line "mesh pp 2 x dp 2, shard $mode, shard_group 2$more"
    more=', unsharded 2'
    run 0 "$SLUICE" info $mode
    prints "pp 2 x dp 2, shard $mode, shard_group 2"
    run 0 "$compare" metrics none/metrics.jsonl $mode/metrics.jsonl
    run 0 "$compare" checkpoints none/checkpoints/step-00000004 $mode/checkpoints/step-00000004
    cmp none.grads $mode.grads || fail "other gradients with $mode"
done

if command -v mpirun >/dev/null && [ -f "$SLUICE_BUILD/libsluice_mpi_openmpi.so" ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
    run 0 mpirun -n 4 "$SLUICE" "${arguments[@]}" --parallel.shard=full --run.out=mpi
    run 0 "$compare" metrics none/metrics.jsonl mpi/metrics.jsonl
    run 0 "$compare" checkpoints none/checkpoints/step-00000004 mpi/checkpoints/step-00000004
fi

run 0 "$SLUICE" "${arguments[@]}" --parallel.shard=full --run.out=unused --dry-run
prints 'shared    weights, gradients and optimizer state; 2 stages of a rank gathered at once'
run 0 "$SLUICE" "${arguments[@]}" --parallel.dp=4 --parallel.shard=optimizer --parallel.shard_group=2 --batch.microbatches=1 --run.out=unused --dry-run
prints 'shared    optimizer state and updates, in 2 groups of 2 replicas'
run 2 "$SLUICE" "${arguments[@]}" --parallel.memory_gb=0.0012 --run.out=unused --dry-run
complains "parallel.shard="
run 0 "$SLUICE" info none/checkpoints/step-00000004
prints "pp 2 x dp 2, shard none"
run 0 "$SLUICE" info full/checkpoints/step-00000004 --format json
json_is mesh "pp 2 x dp 2, shard full, shard_group 2, unsharded 2"
rm -r full/checkpoints/step-*
run 0 "$SLUICE" info full
prints "pp 2 x dp 2, shard full, shard_group 2, unsharded 2"

# Without NCCL no order of a sum is faster than the exact one: the same bits, and the run says so.
run 0 "$SLUICE" "${arguments[@]}" --parallel.sum=fast --run.out=fast
prints 'mesh pp 2 x dp 2, shard none, sum fast'
prints 'collectives host memory; sums in the order of the replicas: without NCCL none is faster'
run 0 "$compare" metrics none/metrics.jsonl fast/metrics.jsonl
run 0 "$SLUICE" info fast/checkpoints/step-00000004
prints "pp 2 x dp 2, shard none, sum fast"
run 2 "$SLUICE" "${arguments[@]}" --parallel.sum=quick
complains "parallel.sum"
complains "is not one of exact|fast"

run 2 "$SLUICE" "${arguments[@]}" --parallel.shard=all
complains "is not one of none|optimizer|full"
run 2 "$SLUICE" "${arguments[@]}" --parallel.shard_group=2
complains "parallel.shard is none: replicas share nothing"
run 2 "$SLUICE" "${arguments[@]}" --parallel.shard=full --parallel.shard_group=3
complains "2 replicas (parallel.dp) are no groups of 3"
run 2 "$SLUICE" "${arguments[@]}" --parallel.shard=optimizer --parallel.unsharded=1
complains "weights are only gathered if parallel.shard is full"
