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

# Variables of the environment: those that the sources read are documented, and those that are documented exist (options of
# the build have such names, too).
grep -rohE '"SLUICE_[A-Z_]+"' src tools | tr -d '"' | sort -u >"$scratch/read"
grep -ohE '\bSLUICE_[A-Z_]+\b' "${documents[@]}" include/sluice/*.h | grep -vE '^SLUICE_([A-Z]+_H|VERSION.*)$' | sort -u >"$scratch/told"
grep -hoE '\bSLUICE_[A-Z_]+\b' CMakeLists.txt cmake/*.cmake | sort -u - "$scratch/read" >"$scratch/known"
comm -23 "$scratch/read" "$scratch/told" >"$out"
[ ! -s "$out" ] || fail "the sources read variables that no document tells of"
comm -23 "$scratch/told" "$scratch/known" >"$out"
[ ! -s "$out" ] || fail "the documents tell of variables that nothing reads"

# Options of the program in lines and words that call it: the command's help has them.
unknown_options() {
    sed 's/ && /\n    /g; s/ # .*//' "$@" | { grep -oE '(^ +(\$ )?|`)sluice [a-z]+( [^`]*)?($|`)' || true; } | tr -d '`' |
        while read -r words; do
            set -- ${words#*sluice }
            [ "$1" != bench ] || [ -z "${2:-}" ] || set -- "$1 $2"
            [ "$1" != launch ] || continue # what follows is another program's
            [ -e "$scratch/help.$1" ] || "$SLUICE" $1 --help >"$scratch/help.$1" || return 1
            { grep -oE -- ' --[a-z][a-z._-]+' <<<"$words" || true; } | while read -r option; do
                grep -qE -- "(^|[^a-z.-])$option([^a-z_.-]|\$)" "$scratch/help.$1" || echo "$1 $option"
            done
        done
}

unknown_options "${documents[@]}" >"$out" || fail "a command of the documents has no help"
[ ! -s "$out" ] || fail "the documents give options that do not exist"
printf '    $ sluice plan --ranks 2 && sluice train --no-such-thing=3   # --nor-this\n' >"$scratch/wrong.md"
unknown_options "$scratch/wrong.md" >"$out"
[ "$(cat "$out")" = "train --no-such-thing" ] || fail "an option that does not exist is not found"
