#!/usr/bin/env bash
# All schedules on 2 and 4 ranks of every kind, messages in device memory, through NCCL and in host memory: matrix_test.c, whole.
SLUICE_GPU_MATRIX=all exec "$SLUICE_BUILD/tests/gpu_matrix_test"
