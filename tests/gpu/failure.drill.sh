#!/usr/bin/env bash
# 140 moments at which a rank is killed, is stopped, leaves, hangs or finds an error: failure_test.c.
SLUICE_GPU_POSITIONS=20 exec "$SLUICE_BUILD/tests/gpu_failure_test"
