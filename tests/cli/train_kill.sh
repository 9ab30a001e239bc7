#!/usr/bin/env bash
# SIGKILL of a rank or of the launcher at random moments: --resume gives the run that was never disturbed.
. "$(dirname "$0")/common.bash"
. "$(dirname "$0")/train_kill.bash"
kill_runs 6
