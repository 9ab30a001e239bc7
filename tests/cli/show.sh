#!/usr/bin/env bash
# sluice show: the text grid, every kind of file, and what it refuses.
. "$(dirname "$0")/common.bash"
cd "$scratch"
"$SLUICE" plan --schedule 1F1B --ranks 2 --microbatches 3 -o plan.csv
generated=(--schedule 1F1B --ranks 2 --microbatches 3)

run 0 "$SLUICE" show plan.csv
silent
cat >expected <<'EOF'
plan.csv: 2 ranks, 2 stages, 3 microbatches, makespan 12, bubble 25.0 %

time    0                   5                   10
rank 0  0F0 0F1 ........0B0---- 0F2 0B1---- ....0B2----
rank 1  ....1F0 1B0---- 1F1 1B1---- 1F2 1B2---- ........

          bubble   slots   memory
rank 0    25.0 %       2        2
rank 1    25.0 %       1        1
EOF
diff expected "$out" || fail "the grid of 1F1B"
run 0 "$SLUICE" show "${generated[@]}"
tail -n +2 "$out" | diff <(tail -n +2 expected) - || fail "a generated schedule looks different from its file"
prints "1F1B: 2 ranks"
run 0 bash -c '"$0" show - < plan.csv' "$SLUICE"
prints "standard input: 2 ranks"

# Folded to the width, without colors unless on a terminal.
COLUMNS=40 run 0 "$SLUICE" show plan.csv
[ "$(sed 1d "$out" | wc -L)" -le 40 ] || fail "the grid does not fit 40 columns"
[ "$(grep -c '^rank 1  [.1]' "$out")" -ge 2 ] || fail "the grid was not folded"
! grep -q $'\033' "$out" || fail "colors in a pipe"
on_terminal() { script -qec "$*" /dev/null >"$out" </dev/null; }
if command -v script >/dev/null; then
    on_terminal "env TERM=xterm COLUMNS=100 '$SLUICE' show plan.csv"
    grep -q $'\033' "$out" || fail "no colors on a terminal"
    on_terminal "env TERM=xterm NO_COLOR=1 '$SLUICE' show plan.csv"
    ! grep -q $'\033' "$out" || fail "NO_COLOR is not honoured"
    on_terminal "env TERM=xterm NO_COLOR=1 COLUMNS=100 '$SLUICE' show --schedule 1F1B --ranks 32 --microbatches 128"
    [ "$(grep -c '^rank 31' "$out")" -eq 2 ] || fail "a large schedule is not condensed on a terminal"
    [ "$(grep '^rank 31' "$out" | wc -L)" -le 100 ] || fail "the condensed grid is too wide"
    prints "FFF"
fi

# Every format, from a file and generated, with costs.
for ending in svg png pdf html json txt SVG; do
    run 0 "$SLUICE" show plan.csv --costs F=1,B=2,comm=0.5 -o "drawn.$ending"
    silent
    [ ! -s "$out" ] || fail "-o prints too"
    [ -s "drawn.$ending" ] || fail "drawn.$ending is empty"
    run 0 "$SLUICE" show "${generated[@]}" -o "again.$ending"
done
[ "$(head -c 8 drawn.png | od -An -tx1)" = " 89 50 4e 47 0d 0a 1a 0a" ] || fail "drawn.png is no PNG"
[ "$(head -c 5 drawn.pdf)" = "%PDF-" ] || fail "drawn.pdf is no PDF"
head -c 100 drawn.svg | grep -q '^<svg ' || fail "drawn.svg is no SVG"
for action in 0F0 0F2 1B2; do
    grep -q ">$action</text>" drawn.svg || fail "drawn.svg lacks $action"
    grep -q "<title>$action on rank" drawn.svg || fail "drawn.svg does not describe $action"
done
run 0 "$SLUICE" show --schedule InterleavedZeroBubble --ranks 4 --microbatches 8 --stages-per-rank 4 -o wide.svg
for action in 0F0 12F3 15W7; do
    grep -q ">$action</text>" wide.svg || fail "wide.svg has no room for $action"
done
grep -q 'SEND_F' drawn.svg || fail "drawn.svg has no messages although they take time"
head -1 drawn.html | grep -q '<!DOCTYPE html>' || fail "drawn.html is no page"
! grep -oE '(src|href)="?https?:' drawn.html || fail "drawn.html reaches into the network"
grep -q '^rank 1' drawn.txt || fail "drawn.txt has no grid"
cp drawn.json "$out"
json_is traceEvents.0.ph M
json_is '#traceEvents' "$(grep -c '"ph":' drawn.json)"

# Every stage with costs of its own: the slow one is drawn longer.
echo '{"stages":[{},{"F":4,"I":2,"W":2}]}' >slow.json
run 0 "$SLUICE" show "${generated[@]}" --costs-file slow.json -o slow.json.svg
run 0 "$SLUICE" show "${generated[@]}" -o even.svg
! cmp -s slow.json.svg even.svg || fail "costs of a stage change nothing"
echo '{"stages":[{}]}' >one.json
run 1 "$SLUICE" show "${generated[@]}" --costs-file one.json
complains "one.json has the costs of 1 stage, the schedule has 2"

# A file that replaces one is whole; a failure leaves the old one.
cp drawn.svg old.svg
run 1 "$SLUICE" show nowhere.csv -o old.svg
complains "nowhere.csv: No such file or directory"
cmp drawn.svg old.svg || fail "a failure touched the old file"
mkdir empty
(ulimit -f 1; trap '' XFSZ; run 1 "$SLUICE" show "${generated[@]}" -o empty/x.html)
complains "empty/x.html"
complains "File too large"
[ -z "$(ls -A empty)" ] || fail "a half-written file was left behind"

# A page has its limit, and says what has none.
run 1 "$SLUICE" show --schedule GPipe --ranks 8 --microbatches 30000 -o empty/large.html
complains "too many for a page"
complains ".svg"
[ -z "$(ls -A empty)" ] || fail "a page that was refused is there"

# A wrong schedule is shown as check shows it.
sed '2s/1B0/1B1/' plan.csv >bad.csv
run 1 "$SLUICE" show bad.csv -o bad.svg
complains "sluice show: bad.csv: rank 1, cell 1"
prints ">1B1<"
[ ! -e bad.svg ] || fail "a wrong schedule was drawn"
run 1 "$SLUICE" show "$scratch/bad.csv"
complains "sluice show: $scratch/bad.csv: rank 1, cell 1"

refuses() {
    local text=$1
    shift
    run 2 "$SLUICE" show "$@"
    complains "$text"
    complains "Try 'sluice show --help'"
}
refuses "FILE or --schedule NAME is missing"
refuses "FILE or --schedule NAME is missing" --ranks 2
refuses "either FILE or --schedule, not both" plan.csv --schedule 1F1B
refuses "--schedule needs --ranks P and --microbatches M" --schedule 1F1B --ranks 2
refuses "'b' is one operand too many" a b
refuses "ends in none of" plan.csv -o drawn.gif
refuses "ends in none of" plan.csv -o drawn
refuses "--costs" plan.csv --costs F
refuses "NoSuch" --schedule NoSuch --ranks 2 --microbatches 2
refuses "-o needs a value (FILE)" plan.csv -o
