#!/usr/bin/env bash
# docs/reference-map.md: every name of ours that it cites exists, and every public name of the reference has a row.
. "$(dirname "$0")/common.bash"
cd "$SLUICE_SOURCE"

# The headers, and what the preprocessor makes of their lists.
{ cat include/sluice/*.h; echo '#include <sluice/sluice.h>' | ${CC:-cc} -E -P -I include -; } >"$scratch/public" ||
    fail "sluice.h does not compile"
cat "$scratch/public" src/*/*.[ch] src/*/*/*.[ch] >"$scratch/all"

# cited MAP: "public NAME" or "internal NAME" for what stands in backticks on the right; in parentheses it may be internal.
cited() {
    awk -F'|' '/^\| / && $2 !~ /^ (PyTorch|name) / { sub(/^[^|]*\|[^|]*\|/, ""); print }' "$1" >"$scratch/right"
    sed -E 's/\([^()]*\)//g' "$scratch/right" | grep -oE '`[^`]+`' | tr -d '`' | sed 's/^/public /'
    grep -oE '\([^()]*\)' "$scratch/right" | grep -oE '`[^`]+`' | tr -d '`' | sed 's/^/internal /'
}

# has_field TYPE FIELD: the public struct has it.
has_field() {
    awk -v type="$1" -v field="$2" '
        $0 ~ "^typedef struct (SL_NAMED_FIELDS )?" type " \\{" { inside = 1; next }
        inside && /^\}/ { inside = 0 }
        inside { sub(/\/\*.*/, ""); if ($0 ~ "[ *]" field "[;,[)]") found = 1 }
        END { exit !found }' "$scratch/public"
}

# unknown MAP: the names that do not exist, with the reason.
unknown() {
    cited "$1" | sort -u | while read -r where name; do
        case $name in
        sluice\ * | */*) [[ $name != */* ]] || compgen -G "$name" >/dev/null || echo "$name: there is no such file" ;;
        *.h) [ -f "include/sluice/$name" ] || echo "$name: there is no such header" ;;
        *\*) grep -q "\b${name%\*}" "$scratch/public" || echo "$name: nothing begins so" ;;
        sl_*.*) has_field "${name%%.*}" "${name#*.}" || echo "$name: there is no such field" ;;
        *)
            if ! grep -qwF -- "$name" "$scratch/all"; then
                echo "$name: it is nowhere"
            elif [ "$where" = public ] && ! grep -qwF -- "$name" "$scratch/public"; then
                echo "$name: it is internal and stands outside parentheses"
            fi
            ;;
        esac
    done
}

# missing MAP NAMES: those without a row.
missing() {
    awk -F'|' '/^\| / { print $2 }' "$1" | grep -oE '`[^`]+`' | grep -oE '[A-Za-z_][A-Za-z_0-9]*' | sort -u >"$scratch/left"
    grep -vE '^(#|$)' "$2" | sort -u | comm -23 - "$scratch/left"
}

# The check itself.
cat >"$scratch/bad.md" <<'END'
| PyTorch | Sluice |
|---|---|
| `right_name`, `Other.method` | `sl_schedule_check`, `sl_step.partial`, (`sl_wiring_create` in `src/pipeline/wiring.c`), `graph.h` |
| `wrong` | `sl_no_such_thing`, `sl_step.nothing`, `sl_wiring_create`, (`src/no/file.c`), `none.h` |
END
printf '# of a test\nright_name\nmethod\nabsent\n' >"$scratch/names"
unknown "$scratch/bad.md" | sort >"$out"
diff - "$out" >"$err" <<'END' || fail "the sample map is not refused as it should be"
none.h: there is no such header
sl_no_such_thing: it is nowhere
sl_step.nothing: there is no such field
sl_wiring_create: it is internal and stands outside parentheses
src/no/file.c: there is no such file
END
[ "$(missing "$scratch/bad.md" "$scratch/names")" = absent ] || fail "a name without a row is not found"

unknown docs/reference-map.md >"$out"
[ ! -s "$out" ] || fail "the map cites what does not exist"
[ "$(cited docs/reference-map.md | wc -l)" -gt 200 ] || fail "the names of the map were not found"
missing docs/reference-map.md "$SLUICE_DATA/reference/names.txt" >"$out"
[ ! -s "$out" ] || fail "names of the reference without a row"
