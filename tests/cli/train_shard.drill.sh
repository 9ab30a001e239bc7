#!/usr/bin/env bash
# pp {1,2} x dp {1,2,3} x what replicas share out x every schedule: the same bits in all modes of a mesh, with ranks as
# threads on the cpu and on the test device, as processes over shared memory, and over MPI; runs that go on from each
# other's checkpoints on all meshes.
. "$(dirname "$0")/common.bash"
cd "$scratch"
compare=$SLUICE_SUPPORT/compare
"$SLUICE_BUILD/tests/ranks_train_shard_test" --full
SLUICE_TEST_DEVICE=test "$SLUICE_BUILD/tests/ranks_train_shard_test" --full

head -c 20000 "$SLUICE_SOURCE/examples/demo/tales.txt" >text.txt
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
mpi=false
command -v mpirun >/dev/null && [ -f "$SLUICE_BUILD/libsluice_mpi_openmpi.so" ] && mpi=true
for pp in 1 2; do
    for dp in 1 2 3; do
        for schedule in GPipe 1F1B Interleaved1F1B LoopedBFS InterleavedZeroBubble ZBVZeroBubble DualPipeV; do
            for mode in none optimizer full; do
                arguments=(train --data.text=text.txt --model.n_layer=4 --model.n_embd=32 --batch.seq=16 --batch.size=12
                    --batch.microbatches=4 --parallel.pp=$pp --parallel.dp=$dp --parallel.schedule=$schedule
                    --parallel.shard=$mode --run.steps=3 --log.progress=off --overwrite)
                run 0 "$SLUICE" "${arguments[@]}" --run.out=$mode
                run 0 "$compare" metrics none/metrics.jsonl $mode/metrics.jsonl
                run 0 "$compare" checkpoints none/checkpoints/step-00000003 $mode/checkpoints/step-00000003
                $mpi || continue
                run 0 mpirun -n $((pp * dp)) "$SLUICE" "${arguments[@]}" --run.out=mpi
                run 0 "$compare" metrics none/metrics.jsonl mpi/metrics.jsonl
                run 0 "$compare" checkpoints none/checkpoints/step-00000003 mpi/checkpoints/step-00000003
            done
        done
    done
done
