#!/usr/bin/env bash
# sluice plan: the CSV of each schedule, every option, and what it refuses.
. "$(dirname "$0")/common.bash"

run 0 "$SLUICE" plan --schedule GPipe --ranks 2 --microbatches 2
silent
printf '0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n' | diff - "$out" || fail "GPipe on 2 ranks with 2 microbatches"

# Names in any case, values after a blank or '=', and the default number of stages a rank.
run 0 "$SLUICE" plan --schedule=gpipe --ranks=2 --microbatches=2
printf '0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n' | diff - "$out" || fail "gpipe with ="
run 0 "$SLUICE" plan --schedule interleaved1f1b --ranks 2 --microbatches 4
cp "$out" "$scratch/default.csv"
run 0 "$SLUICE" plan --schedule Interleaved1F1B --ranks 2 --microbatches 4 --stages-per-rank 2
cmp "$out" "$scratch/default.csv" || fail "two stages a rank are not the default of Interleaved1F1B"
run 0 "$SLUICE" plan --schedule Interleaved1F1B --ranks 2 --microbatches 4 --stages-per-rank 3
prints 5F0
run 0 "$SLUICE" plan --schedule 1F1B --ranks 2 --microbatches 3 --forward-only
printf '0F0,0F1,0F2\n1F0,1F1,1F2\n' | diff - "$out" || fail "forward only"

# What every generator gives is correct, lowered or not, into a file as on standard output.
for name in $("$SLUICE" plan --words=--schedule); do
    for lower in "" --lower; do
        # shellcheck disable=SC2086 # no word if it is empty
        run 0 "$SLUICE" plan --schedule "$name" --ranks 4 --microbatches 8 $lower -o "$scratch/plan.csv"
        [ ! -s "$out" ] || fail "-o prints too"
        # shellcheck disable=SC2086
        run 0 "$SLUICE" plan --schedule "$name" --ranks 4 --microbatches 8 $lower
        cmp "$out" "$scratch/plan.csv" || fail "$name $lower differs between file and standard output"
        ! grep -qE '(^|,)(,|$)' "$out" || fail "$name $lower has idle cells"
        run 0 "$SLUICE" check "$scratch/plan.csv"
        prints "valid         yes"
    done
    grep -q SEND_F "$scratch/plan.csv" || fail "$name --lower sends nothing"
done
run 0 "$SLUICE" plan --schedule GPipe --ranks 1 --microbatches 1 -o -
prints 0F0,0B0

# With waits: the form of PyTorch 2.15; one for each send and each reduction, right over links that hold nothing.
for name in $("$SLUICE" plan --words=--schedule); do
    for waits in at-once late; do
        run 0 "$SLUICE" plan --schedule "$name" --ranks 3 --microbatches 6 --lower --waits "$waits" -o "$scratch/waits.csv"
        tr , '\n' < "$scratch/waits.csv" > "$scratch/cells"
        for kind in SEND_F SEND_B REDUCE_GRAD; do
            [ "$(grep -cE "^[0-9]+$kind" "$scratch/cells")" = "$(grep -c "WAIT_$kind" "$scratch/cells")" ] ||
                fail "$name --waits $waits has not one wait for each $kind"
        done
        run 0 "$SLUICE" check "$scratch/waits.csv" --link-capacity 0
        prints "valid         yes"
    done
done
run 0 "$SLUICE" plan --schedule 1F1B --ranks 2 --microbatches 2 --lower
cp "$out" "$scratch/plain.csv"
run 0 "$SLUICE" plan --schedule 1F1B --ranks 2 --microbatches 2 --lower --waits none
cmp "$out" "$scratch/plain.csv" || fail "--waits none adds something"

# Wrong command lines: exit code 2, the option named, a pointer to the help, nothing on standard output.
refuses() {
    local text=$1
    shift
    run 2 "$SLUICE" plan "$@"
    complains "$text"
    complains "Try 'sluice plan --help'"
    [ ! -s "$out" ] || fail "prints although the command line is wrong"
}
good=(--schedule GPipe --ranks 2 --microbatches 2)
refuses "--schedule NAME or --auto is missing" --ranks 2 --microbatches 2
refuses "--ranks P is missing" --schedule GPipe --microbatches 2
refuses "--microbatches M is missing" --schedule GPipe --ranks 2
refuses "--ranks: 'two' is not a whole number" --schedule GPipe --ranks two --microbatches 2
refuses "--ranks: '2x' is not a whole number" --schedule GPipe --ranks 2x --microbatches 2
refuses "--ranks: 0 is outside 1 to" --schedule GPipe --ranks 0 --microbatches 2
refuses "--ranks: -1 is outside 1 to" --schedule GPipe --ranks -1 --microbatches 2
refuses "--microbatches: 99999999999 is outside" --schedule GPipe --ranks 2 --microbatches 99999999999
refuses "--stages-per-rank: 0 is outside" "${good[@]}" --stages-per-rank 0
refuses "--stages-per-rank needs a value (V)" "${good[@]}" --stages-per-rank
refuses "--waits goes with --lower" "${good[@]}" --waits late
refuses "--waits" "${good[@]}" --lower --waits soon
refuses "--lower takes no value" "${good[@]}" --lower=yes
refuses "there is no option '--frobnicate'" "${good[@]}" --frobnicate
refuses "there is no option '-x'" "${good[@]}" -x
refuses "'extra' is one operand too many" "${good[@]}" extra
refuses "NoSuchSchedule" --schedule NoSuchSchedule --ranks 2 --microbatches 2
refuses "stages" --schedule ZBVZeroBubble --ranks 2 --microbatches 2 --stages-per-rank 3

refuses "either --schedule or --auto, not both" "${good[@]}" --auto
refuses "--forward-only goes with --schedule alone" --auto --ranks 2 --microbatches 2 --forward-only
refuses "--costs: F: 'nan' is not a number" --auto --ranks 2 --microbatches 2 --costs F=nan
refuses "--costs: W" --auto --ranks 2 --microbatches 2 --costs W=-1
refuses "F of stage 0 takes no time" --auto --ranks 2 --microbatches 2 --costs F=0,I=0,W=0
refuses "--memory: 'much' is not a number" --auto --ranks 2 --microbatches 2 --memory much
refuses "--memory: 0 is no memory" --auto --ranks 2 --microbatches 2 --memory 0
refuses "--release: 1.5 is outside 0 to 1" --auto --ranks 2 --microbatches 2 --release 1.5
refuses "80000 stages: at most 65535" --auto --ranks 40000 --microbatches 2 --placement v
refuses "--placement linear has 1 stage a rank, not 2" --auto --ranks 4 --microbatches 2 --placement linear --stages-per-rank 2
run 1 "$SLUICE" plan --auto --ranks 4 --microbatches 8 --placement v --memory 0.75
complains "a memory of 0.75 is too little: rank 0 holds 1 for one microbatch, so 1 is the least that would do"

# --auto: the figures as JSON, the CSV in a file alone; check sees the makespan that was promised.
costs=F=10,I=12,W=8,comm=1
run 0 "$SLUICE" plan --auto --ranks 4 --microbatches 8 --costs $costs --memory 4 --format json -o "$scratch/auto.csv"
silent
json_is makespan 294
json_is stage_time 294
json_is bound_makespan 294
json_is gap_makespan 0
json_is gap_stage_time 0
json_is peak_memory.0 4
json_is method rounds
for key in bubble bubble_stage bound_stage_time plan_seconds; do
    "$SLUICE_SUPPORT/json_get" $key <"$out" >/dev/null || fail "no $key"
done
run 0 "$SLUICE" check "$scratch/auto.csv" --costs $costs --format json
json_is makespan 294

# As text: a table, best first, with the reason if a schedule does not fit.
run 0 "$SLUICE" plan --auto --ranks 4 --microbatches 8 --costs $costs --memory 4
silent
[ "$(sed -n 2p "$out" | cut -c1-14)" = "found (rounds)" ] || fail "the found plan is not the first"
prints "lower bound"
grep -qE '^ZB-1p +294 ' "$out" || fail "ZB-1p is not in the table"
grep -qE '^ZB-2p +needs a memory of 8, there is 4' "$out" || fail "no reason for ZB-2p"
grep -qE '^V-Half +is made for a V of 2 stages a rank' "$out" || fail "no reason for V-Half"
run 0 "$SLUICE" plan --schedule ZB-1p --ranks 4 --microbatches 8 --costs $costs --format json
json_is method ZB-1p
json_is makespan 294
run 1 "$SLUICE" plan --schedule ZB-2p --ranks 4 --microbatches 8 --costs $costs --memory 7
complains "ZB-2p needs a memory of 8, there is 7"

# Every placement; a plan runs through the checker over links that hold nothing.
for placement in linear interleaved v; do
    run 0 "$SLUICE" plan --auto --ranks 3 --microbatches 5 --placement $placement --memory 2 --budget 0.02 --lower \
        -o "$scratch/auto.csv"
    run 0 "$SLUICE" check "$scratch/auto.csv" --link-capacity 0
done
run 0 "$SLUICE" plan --auto --ranks 2 --microbatches 5 --objective stage-time --budget 0.02 --format json

# Costs of every stage from a file, memory in bytes.
cat >"$scratch/costs.json" <<'JSON'
{"stages":[{"F":10,"I":12,"W":8,"activation":1048576},{"F":11,"I":10,"W":8,"activation":2097152}], "comm":1}
JSON
run 0 "$SLUICE" plan --auto --ranks 2 --microbatches 6 --costs-file "$scratch/costs.json" --memory 4MiB --format json
json_is peak_memory.1 4194304
run 1 "$SLUICE" plan --auto --ranks 2 --microbatches 6 --costs-file "$scratch/costs.json" --memory 1MiB
complains "rank 1 holds 2097152 for one microbatch, so 2097152 is the least that would do"
refuses "costs.json has the costs of 2 stages; 3 ranks with 1 each have 3" --auto --ranks 3 --microbatches 6 \
    --costs-file "$scratch/costs.json"
for wrong in '{' '[]' '{"stages":[]}' '{"stages":[{"F":-1}]}' '{"stages":[{"F":"1"}]}' '{"stages":[{"G":1}]}' \
    '{"stages":[1]}' '{"stages":[{"F":1}],"com":1}'; do
    echo "$wrong" >"$scratch/wrong.json"
    run 1 "$SLUICE" plan --auto --ranks 1 --microbatches 1 --costs-file "$scratch/wrong.json"
    complains "$scratch/wrong.json"
done

# If the plan cannot be written: exit code 1 and nothing left behind.
run 1 "$SLUICE" plan "${good[@]}" -o /dev/full
complains "write /dev/full: No space left on device"
run 1 "$SLUICE" plan "${good[@]}" -o "$scratch/none/plan.csv"
complains "open $scratch/none/plan.csv for writing: No such file or directory"
run 1 "$SLUICE" plan "${good[@]}" -o "$scratch"
complains "Is a directory"
mkdir "$scratch/empty"
(ulimit -f 1; trap '' XFSZ; run 1 "$SLUICE" plan --schedule GPipe --ranks 8 --microbatches 4000 -o "$scratch/empty/big.csv")
complains "$scratch/empty/big.csv: write the schedule: File too large"
[ -z "$(ls -A "$scratch/empty")" ] || fail "a half-written file was left behind"

# What the planner finds, train runs: the losses are those of 1F1B.
train=("$SLUICE" train --data.text="$SLUICE_SOURCE/examples/demo/tales.txt" --model.n_layer=4 --model.n_embd=16
       --model.n_head=2 --batch.seq=16 --batch.size=4 --batch.microbatches=4 --run.steps=2 --log.progress=off
       --parallel.pp=2)
losses() { grep -o '"loss":[^,]*' "$scratch/$1/metrics.jsonl"; }
run 0 "${train[@]}" --run.out="$scratch/plain"
for placement in linear v; do
    run 0 "$SLUICE" plan --auto --ranks 2 --microbatches 4 --placement $placement --costs F=10,I=12,W=8,comm=1 \
        --memory 2 --budget 0.1 -o "$scratch/$placement.csv"
    run 0 "${train[@]}" --parallel.schedule="$scratch/$placement.csv" --run.out="$scratch/$placement"
    [ "$(losses $placement)" = "$(losses plain)" ] || fail "another loss under the $placement plan"
done
