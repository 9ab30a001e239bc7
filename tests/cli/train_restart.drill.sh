#!/usr/bin/env bash
# One run of 6,000 steps that loses 200 ranks at random moments has the bits of one that loses none.
. "$(dirname "$0")/common.bash"
. "$(dirname "$0")/train_restart.bash"
kill_ranks 200 6000
