#!/usr/bin/env bash
# The planner on every row of the reference grid, and on 200 uneven pipelines. The default run has the smaller ones.
. "$(dirname "$0")/common.bash"

"$SLUICE_BUILD/tests/plan_quality_test" --full
