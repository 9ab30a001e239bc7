#!/usr/bin/env bash
# The checker against the judge that tries every interleaving, on 5,000,000 random mutants of schedules.
. "$(dirname "$0")/common.bash"
SLUICE_MUTANTS=5000000 SLUICE_SEED=${SLUICE_SEED:-2026} run 0 "$SLUICE_BUILD/tests/schedule_mutants_test"
cat "$out" "$err"
