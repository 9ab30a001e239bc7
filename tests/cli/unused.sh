#!/usr/bin/env bash
# What nobody uses is not there: a function that is not static is called from another file, of the library, the program,
# the benchmarks, the examples or the tests.
. "$(dirname "$0")/common.bash"

cd "$SLUICE_SOURCE"
library=$SLUICE_BUILD/src/libsluice.a
nm -g --defined-only "$library" 2>/dev/null | awk 'NF == 3 && $3 ~ /^sl_/ { print $3 }' | sort -u >"$scratch/defined"
[ "$(wc -l <"$scratch/defined")" -gt 500 ] || fail "the functions of the library were not found"
{
    nm -u "$library" 2>/dev/null | awk 'NF == 2 { print $2 }' # what an object wants from others
    grep -rohE '\bsl_[a-z0-9_]+\b' --include='*.[ch]' --include='*.cc' --include='*.cu' --include='*.cuh' tools bench examples tests src/comm/plugin src/cuda
} | sort -u >"$scratch/used"
comm -23 "$scratch/defined" "$scratch/used" >"$scratch/unused"

grep -ohE '\bsl_[a-z0-9_]+\b' include/sluice/*.h | sort -u >"$scratch/public"
comm -23 "$scratch/unused" "$scratch/public" >"$out"
[ ! -s "$out" ] || fail "functions that no other file uses: make them static, use them, or remove them"
