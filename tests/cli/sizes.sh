#!/usr/bin/env bash
# A file can be held in the head: none has more than 600 lines, tests and scripts included.
. "$(dirname "$0")/common.bash"

cd "$SLUICE_SOURCE"
find src include tools bench examples tests bootstrap -type f \
    \( -name '*.[ch]' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' -o -name '*.js' -o -name '*.sh' -o -name '*.bash' -o -name bootstrap \) -print0 |
    xargs -0 awk '{ lines[FILENAME]++ } END { for (name in lines) print lines[name], name }' | sort -rn >"$scratch/sizes"
[ "$(wc -l <"$scratch/sizes")" -gt 200 ] || fail "the files were not found"
awk '$1 > 600' "$scratch/sizes" >"$out"
[ ! -s "$out" ] || fail "files past 600 lines"
