#!/usr/bin/env bash
# The rules that base.h gives for all public headers: names of getters, pairs of making and ending, the version.
. "$(dirname "$0")/common.bash"

cat "$SLUICE_SOURCE"/include/sluice/*.h >"$scratch/headers"
grep -oE '\bsl_[a-z0-9_]+\(' "$scratch/headers" | tr -d '(' | sort -u >"$scratch/functions"
sed -n -E 's/^\} (sl_[a-z0-9_]+);.*/\1/p; s/^typedef .*[ *](sl_[a-z0-9_]+);.*/\1/p; s/^typedef enum (sl_[a-z0-9_]+) .*/\1/p' \
    "$scratch/headers" | sort -u >"$scratch/types"
[ "$(wc -l <"$scratch/functions")" -gt 300 ] || fail "the functions were not found"

# `get_` only before what is the name of a type (sl_device_get_memory: sl_device_memory).
grep -E '_get_' "$scratch/functions" | while read -r name; do
    grep -q "_${name#*_get_}\$" "$scratch/types" || echo "$name: no type is called so; leave the get_ out"
done >"$out"
[ ! -s "$out" ] || fail "getters that do not follow base.h"

# What ends an object is `destroy` or `close`; memory has sl_free, and a device's memory its own pairs.
grep -E '_(free|delete|release|dispose|end|fini)$' "$scratch/functions" |
    grep -vxE 'sl_free|sl_device_free|sl_channel_release' >"$out" || true
[ ! -s "$out" ] || fail "objects are ended by destroy or close"
for pair in create:destroy open:close; do
    make=${pair%:*} end=${pair#*:}
    sed -n "s/_$make\$//p" "$scratch/functions" | while read -r noun; do
        grep -qx "${noun}_$end" "$scratch/functions" || echo "${noun}_$make has no ${noun}_$end"
    done
    sed -n "s/_$end\$//p" "$scratch/functions" | while read -r noun; do
        grep -qE "^void .*\b${noun}_$end\(|^SL_API void ${noun}_$end\(" "$scratch/headers" || echo "${noun}_$end is not void"
    done
done >"$out"
[ ! -s "$out" ] || fail "making and ending do not go together"

# The version: macros, text, program and library say the same.
cat >"$scratch/version.c" <<'EOF'
#include <sluice/base.h>
#define TEXT(x) #x
#define JOIN(a, b, c) TEXT(a) "." TEXT(b) "." TEXT(c)
const char version[] = JOIN(SLUICE_VERSION_MAJOR, SLUICE_VERSION_MINOR, SLUICE_VERSION_PATCH) " " SLUICE_VERSION;
EOF
${CC:-cc} -I "$SLUICE_SOURCE/include" -c "$scratch/version.c" -o "$scratch/version.o" || fail "base.h does not compile"
version=$("$SLUICE" --version)
grep -qa "${version#sluice } ${version#sluice }" "$scratch/version.o" || fail "the macros and $version differ"
