#!/usr/bin/env bash
# 30,000 random layouts: checks and reshard plans against brute force, reads of tensors in slices, and gather and reshard
# over 1 to 5 ranks. The default run has some of each.
. "$(dirname "$0")/common.bash"

"$SLUICE_BUILD/tests/sharding_sharding_test" --full
"$SLUICE_BUILD/tests/shard_slices_test" --full
"$SLUICE_BUILD/tests/ranks_sharded_tensor_test" --full
SLUICE_TEST_DEVICE=test "$SLUICE_BUILD/tests/ranks_sharded_tensor_test" --full
