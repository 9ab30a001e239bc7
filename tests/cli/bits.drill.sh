#!/usr/bin/env bash
# Every schedule x ranks x stages a rank x microbatches x model x transport: the bits of one process. The default run has
# each of these over one transport.
. "$(dirname "$0")/common.bash"

"$SLUICE_BUILD/tests/ranks_bits_test" --full
