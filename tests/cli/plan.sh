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
        # shellcheck disable=SC2086 # no word where it is empty
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
refuses "--schedule NAME is missing"
refuses "--ranks P is missing" --schedule GPipe --microbatches 2
refuses "--microbatches M is missing" --schedule GPipe --ranks 2
refuses "--ranks: 'two' is not a whole number" --schedule GPipe --ranks two --microbatches 2
refuses "--ranks: '2x' is not a whole number" --schedule GPipe --ranks 2x --microbatches 2
refuses "--ranks: 0 is outside 1 to" --schedule GPipe --ranks 0 --microbatches 2
refuses "--ranks: -1 is outside 1 to" --schedule GPipe --ranks -1 --microbatches 2
refuses "--microbatches: 99999999999 is outside" --schedule GPipe --ranks 2 --microbatches 99999999999
refuses "--stages-per-rank: 0 is outside" "${good[@]}" --stages-per-rank 0
refuses "--stages-per-rank needs a value (V)" "${good[@]}" --stages-per-rank
refuses "--lower takes no value" "${good[@]}" --lower=yes
refuses "there is no option '--frobnicate'" "${good[@]}" --frobnicate
refuses "there is no option '-x'" "${good[@]}" -x
refuses "'extra' is one operand too many" "${good[@]}" extra
refuses "NoSuchSchedule" --schedule NoSuchSchedule --ranks 2 --microbatches 2
refuses "stages" --schedule ZBVZeroBubble --ranks 2 --microbatches 2 --stages-per-rank 3

# Where the plan cannot be written: exit code 1 and nothing left behind.
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
