#!/usr/bin/env bash
# The documents speak of what is there: names, files and variables that they give exist, and no variable goes unmentioned.
. "$(dirname "$0")/common.bash"
cd "$SLUICE_SOURCE"
documents=(README.md DESIGN.md docs/*.md)

# missing_names FILE...: the names sl_... and SL_... in backquotes that no header and no source has.
missing_names() {
    grep -ohE '`[^`]+`' "$@" | grep -oE '\b(sl|SL)_[A-Za-z0-9_]+[A-Za-z0-9]\b' | sort -u >"$scratch/named"
    grep -rohE '\b(sl|SL)_[A-Za-z0-9_]+[A-Za-z0-9]\b' include src | sort -u >"$scratch/defined"
    comm -23 "$scratch/named" "$scratch/defined"
}

missing_names "${documents[@]}" >"$out"
[ ! -s "$out" ] || fail "the documents name what does not exist"
printf 'A `sl_group_open` and a `sl_no_such_thing`.\n' >"$scratch/wrong.md"
missing_names "$scratch/wrong.md" >"$out"
prints sl_no_such_thing
[ "$(wc -l <"$out")" -eq 1 ] || fail "a name that exists is called missing"

# Links between the documents.
for document in "${documents[@]}"; do
    { grep -oE '\]\([^)#:]+\)' "$document" || true; } | sed 's/^](//; s/)$//' | while read -r target; do
        [ -e "$(dirname "$document")/$target" ] || fail "$document links to $target"
    done
done

# Variables of the environment: those that the sources read are told of, and those that are told of exist (options of
# the build have such names, too).
grep -rohE '"SLUICE_[A-Z_]+"' src tools | tr -d '"' | sort -u >"$scratch/read"
grep -ohE '\bSLUICE_[A-Z_]+\b' "${documents[@]}" include/sluice/*.h | grep -vE '^SLUICE_([A-Z]+_H|VERSION.*)$' | sort -u >"$scratch/told"
grep -hoE '\bSLUICE_[A-Z_]+\b' CMakeLists.txt cmake/*.cmake | sort -u - "$scratch/read" >"$scratch/known"
comm -23 "$scratch/read" "$scratch/told" >"$out"
[ ! -s "$out" ] || fail "the sources read variables that no document tells of"
comm -23 "$scratch/told" "$scratch/known" >"$out"
[ ! -s "$out" ] || fail "the documents tell of variables that nothing reads"
