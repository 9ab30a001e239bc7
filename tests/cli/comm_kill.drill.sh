# The kill test at full length: a hundred points each for 2 and 4 ranks, killed and stopped.
set -eu
SLUICE_KILL_POINTS=100 "$SLUICE_BUILD/tests/ranks_comm_kill_test"
