#!/usr/bin/env bash
# Collectives of 40 ranks, of which few have a channel to each other. The default run has 17.
. "$(dirname "$0")/common.bash"

"$SLUICE_BUILD/tests/ranks_comm_threads_test" --full
