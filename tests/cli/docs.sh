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

# Variables of the environment: the same in the sources and in the documents or help texts.
grep -rohE '"SLUICE_[A-Z_]+"' src tools | tr -d '"' | sort -u >"$scratch/read"
grep -ohE '\bSLUICE_[A-Z_]+\b' "${documents[@]}" include/sluice/*.h | sort -u >"$scratch/told"
comm -3 "$scratch/read" <(grep -vE '^SLUICE_[A-Z]+_H$' "$scratch/told") >"$out"
[ ! -s "$out" ] || fail "variables that the sources read and those that the documents tell of differ"

# The schedule on the front page is what the program prints, and the commands below it run.
front=$SLUICE_SOURCE/README.md
cd "$scratch"
sed -n '/^    \$ sluice show /,/^[^ ]/{ s/^    //p; /^$/p }' "$front" >shown
read -ra words < <(sed -n '1s/^\$ sluice //p' shown)
run 0 "$SLUICE" "${words[@]}"
sed 1d shown | diff - <(head -n "$(($(wc -l <shown) - 1))" "$out") || fail "the README shows another schedule"
sed -nE 's/^    sluice ((plan|check|show) [^#]*).*/\1/p' "$front" >commands
[ "$(wc -l <commands)" -ge 3 ] || fail "the README has lost its commands"
while read -ra words; do
    run 0 "$SLUICE" "${words[@]}"
done <commands
