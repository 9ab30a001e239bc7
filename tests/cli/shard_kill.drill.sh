# A replica that dies in UNSHARD or REDUCE_GRAD, at fifty moments each.
set -eu
SLUICE_KILL_POINTS=50 "$SLUICE_BUILD/tests/ranks_shard_kill_test"
