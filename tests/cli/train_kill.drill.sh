#!/usr/bin/env bash
# The same as train_kill.sh at 50 random moments.
. "$(dirname "$0")/common.bash"
. "$(dirname "$0")/train_kill.bash"
kill_runs 50
