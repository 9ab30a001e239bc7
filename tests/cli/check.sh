#!/usr/bin/env bash
# sluice check: figures of correct schedules, the first violation of wrong ones, in both formats.
. "$(dirname "$0")/common.bash"
cd "$scratch"

"$SLUICE" plan --schedule 1F1B --ranks 4 --microbatches 8 -o good.csv
run 0 "$SLUICE" check good.csv
silent
cat >expected <<'EOF'
valid         yes
ranks         4
stages        4
microbatches  8
actions       64
makespan      33
bubble        27.27 %
peak slots    4 3 2 1
EOF
diff expected "$out" || fail "the figures of 1F1B"

run 0 "$SLUICE" check good.csv --format json
json_is '?' "actions bubble makespan microbatches peak_slots ranks stages valid"
json_is valid true
json_is ranks 4
json_is stages 4
json_is microbatches 8
json_is actions 64
json_is makespan 33
json_is bubble 0.272727272727
json_is peak_slots "[4,3,2,1]"

# Costs change the time: (M + P - 1)(F + B), and both ways through the pipeline for each message.
run 0 "$SLUICE" check --costs F=2,B=3 good.csv --format=json
json_is makespan 55
run 0 "$SLUICE" check --costs comm=0.5 good.csv --format=json
[ "$("$SLUICE_SUPPORT/json_get" makespan <"$out" | cut -d. -f1)" -ge 36 ] || fail "messages take no time"
"$SLUICE" plan --schedule ZBVZeroBubble --ranks 4 --microbatches 8 --lower -o zbv.csv
run 0 "$SLUICE" check zbv.csv --costs F=1,I=1,W=1,B=2,comm=0 --format json
json_is stages 8


# Costs of every stage from a file; what it does not name is as --costs has it, and B is I and W.
each='{"F":2,"I":1,"W":2}'
echo "{\"stages\":[$each,$each,$each,$each]}" >even.json
run 0 "$SLUICE" check --costs-file even.json good.csv --format=json
json_is makespan 55
echo '{"stages":[{},{},{},{"F":2,"B":4}]}' >slow.json # the last stage: 3 F before it, 8 times 6, 3 B of 2 after it
run 0 "$SLUICE" check --costs-file slow.json good.csv --format=json
json_is makespan 57
run 0 "$SLUICE" check --costs F=3 --costs-file slow.json good.csv --format=json
json_is makespan 63
echo '{"stages":[{"F":2,"reduce":7}]}' >one.json
run 1 "$SLUICE" check --costs-file one.json good.csv
complains "one.json has the costs of 1 stage, the schedule has 4"
run 1 "$SLUICE" check --costs-file nowhere.json good.csv
complains "nowhere.json"

# Standard input.
run 0 bash -c '"$0" check - --format json < good.csv' "$SLUICE"
json_is valid true

# Link capacity: both ranks send before they receive, which runs only while messages may wait.
printf '0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n' >waiting.csv
run 0 "$SLUICE" check waiting.csv
run 0 "$SLUICE" check waiting.csv --link-capacity 1
run 1 "$SLUICE" check waiting.csv --link-capacity 0
complains "deadlock"
run 1 "$SLUICE" check waiting.csv --link-capacity 0 --format json
json_is valid false

# A violation: the line names file, rank, cell and action; the grid marks the cell.
sed '2s/1B0/1B1/' good.csv >bad.csv
run 1 "$SLUICE" check bad.csv
complains "sluice check: bad.csv: rank 1, cell 5, 1B1: "
prints ">1B1<"
prints "ERROR HERE"
prints "rank 0"
cp "$out" grid
[ "$(wc -L <grid)" -le 200 ] || fail "the grid is too wide"
COLUMNS=40 run 1 "$SLUICE" check bad.csv
[ "$(wc -L <"$out")" -le 40 ] || fail "the grid does not fit 40 columns"
run 1 "$SLUICE" check bad.csv --format json
silent
json_is '?' "actions cell error microbatches rank ranks stages valid"
json_is valid false
json_is rank 1
json_is cell 5
[ -n "$("$SLUICE_SUPPORT/json_get" error <"$out")" ] || fail "no error text"

# A missing action is marked behind the last cell.
sed '3s/,2B7$//' good.csv >short.csv
run 1 "$SLUICE" check short.csv
complains "rank 2, cell 15"
prints ">(end)<"

# Files that cannot be read: the error in words and in JSON, with rank and cell if there are any.
sed '2s/1F2/1F2xyz/' good.csv >junk.csv
run 1 "$SLUICE" check junk.csv
complains "sluice check: junk.csv: rank 1, cell 2"
complains "1F2xyz"
[ ! -s "$out" ] || fail "prints figures of a file that is not understood"
run 1 "$SLUICE" check junk.csv --format json
json_is '?' "cell error rank valid"
json_is valid false
json_is rank 1
json_is cell 2
run 1 "$SLUICE" check nowhere.csv --format json
json_is rank null
json_is cell null
json_is error "open nowhere.csv: No such file or directory"
: >empty.csv
run 1 "$SLUICE" check empty.csv
complains "empty.csv"
run 1 "$SLUICE" check "$scratch"
complains "$scratch"
printf '0F0\000,0B0\n' >nul.csv
run 1 "$SLUICE" check nul.csv
complains "nul.csv: rank 0, cell 0"
printf '0F0 , 0B0\r\n1F0,,1B0' >windows.csv
run 0 "$SLUICE" check windows.csv

refuses() {
    local text=$1
    shift
    run 2 "$SLUICE" check "$@"
    complains "$text"
    complains "Try 'sluice check --help'"
}
refuses "an operand is missing"
refuses "'two.csv' is one operand too many" good.csv two.csv
refuses "--costs" good.csv --costs F=fast
refuses "--costs" good.csv --costs F=-1
refuses "--costs" good.csv --costs X=1
refuses "--costs" good.csv --costs F=1,
refuses "--costs needs a value (LIST)" good.csv --costs
refuses "--link-capacity: -1 is outside" good.csv --link-capacity -1
refuses "--link-capacity: '1.5' is not a whole number" good.csv --link-capacity 1.5
refuses "--format: 'xml' is not one of text|json" good.csv --format xml
refuses "--format: '' is not one of" good.csv --format=
