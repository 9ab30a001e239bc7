#!/usr/bin/env bash
# All schedules on 2 and 4 ranks of every kind, messages in device memory, through NCCL and in host memory: matrix_test.c, whole,
# one kind of ranks and one way of messages at a time. Arguments choose among them: matrix.drill.sh [KIND [WAY]].
set -euo pipefail
failed=0
for kind in ${1:-threads processes processes_with_mps}; do
    for way in ${2:-device nccl host}; do
        [ "$kind $way" != "threads nccl" ] || continue # NCCL refuses threads that share a GPU
        code=0
        SLUICE_GPU_MATRIX=all SLUICE_GPU_TEST="${kind}_have_*" SLUICE_GPU_WAYS=$way "$SLUICE_BUILD/tests/gpu_matrix_test" || code=$?
        [ $code -ne 77 ] || exit 77
        echo "$kind, $way: exit code $code"
        [ $code -eq 0 ] || failed=1
    done
done
exit $failed
