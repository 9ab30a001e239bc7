#!/usr/bin/env bash
# 20,000 random pipelines against the plain executor, to the bit.
. "$(dirname "$0")/common.bash"
SLUICE_PIPELINES=20000 SLUICE_SEED=${SLUICE_SEED:-2026} run 0 "$SLUICE_BUILD/tests/runtime_random_test"
cat "$out" "$err"
