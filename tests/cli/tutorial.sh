#!/usr/bin/env bash
# Every command of docs/tutorial.md does what the page says: they are taken from it and run in order. Trainings have a
# fifth of the page's steps, with SLUICE_TEST_FULL all.
. "$(dirname "$0")/common.bash"
cd "$SLUICE_SOURCE"
PATH=$(dirname "$SLUICE"):$PATH

# Commands are indented by 4 and start with one of these words; a here-document goes on to its end.
commands=$scratch/commands
awk -v scratch="$scratch" '
    !/^    / { next }
    { line = substr($0, 5); gsub("/tmp/", scratch "/", line) }
    document { printf "%s\n", line; if (line == "YAML") document = 0; next }
    line ~ /^(sluice (train|info|generate|eval|export|launch) |timeout|cmp|ls|head|cat|build\/release\/examples) ?/ {
        if (line ~ /^cat .*<</) document = 1
        printf "%s\n", line
    }' docs/tutorial.md >"$commands"
[ "$(grep -c '^sluice' "$commands")" -ge 14 ] || fail "the tutorial has lost its commands"
sed -i "s|build/release/examples|'$SLUICE_BUILD'/examples|" "$commands"
if [ -z "${SLUICE_TEST_FULL:-}" ]; then
    sed -i -E 's/^(  steps: )300$/\160/; s/^(  every: )100$/\120/; s/^(timeout -s INT )3 /\11.5 /
               s/(run\.steps=)50 /\110 /; s/(eval\.every=)50 /\110 /; s/(run\.steps=)310$/\162/; s/(--steps )20$/\14/' "$commands"
    [ "$(grep -cE '^  steps: 60$|^  every: 20$|INT 1\.5 |run\.steps=10 |eval\.every=10 |run\.steps=62$|--steps 4$' "$commands")" -eq 7 ] ||
        fail "the lengths of the page's trainings are not those expected here"
fi

document=
while IFS= read -r line; do
    if [ -n "$document" ]; then
        document+=$line$'\n'
        [ "$line" = YAML ] || continue
        line=$document document=
    elif [[ $line == *'<<'* ]]; then
        document=$line$'\n'
        continue
    fi
    case $line in
    *--batch.microbatches=5*) run 2 bash -c "$line" ;; # the page shows how it is refused
    timeout*) bash -c "$line" >"$out" 2>"$err" </dev/null || true ;; # where it stops depends on the machine
    *) run 0 bash -c "$line" ;;
    esac
    case $line in
    *--trace\ 2) grep -q 'bubble .* measured' "$out" || fail "no measured bubble" ;;
    *--resume*) grep -q '^done after step' "$out" || fail "the run did not go on" ;;
    esac
done <"$commands"
[ -f "$scratch/tales-hf/model.safetensors" ] || fail "nothing was exported"
