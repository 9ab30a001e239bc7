#!/usr/bin/env bash
# sluice bench schedule: its keys, the choice of size, and the limits on time and memory for 10 million actions.
. "$(dirname "$0")/common.bash"

field() { sed -n "s/.*\"$1\":\([0-9.e+-]*\).*/\1/p" "$out"; }

run 0 "$SLUICE" bench schedule --schedule dualpipev --ranks 2 --microbatches 4 --stages-per-rank 2 --format json
silent
for key in actions generate_s lower_s check_s simulate_s peak_rss; do
    [ -n "$(field $key)" ] || fail "no $key"
done
[ "$(field compute_actions)" -eq 31 ] || fail "DualPipeV has other actions"

run 0 "$SLUICE" bench schedule --ranks 2 --microbatches 4
prints "simulate"
run 2 "$SLUICE" bench schedule --format yaml
run 2 "$SLUICE" bench schedule --ranks 0
run 2 "$SLUICE" bench nothing
complains "there is no benchmark 'nothing'"
run 2 "$SLUICE" bench schedule --schedule nothing
complains "there is no schedule 'nothing'"
run 2 "$SLUICE" bench schedule --schedule GPipe --stages-per-rank 2
complains "GPipe: 2 stages a rank"

# The examples of the help run; the first is the one below.
run 0 "$SLUICE" bench schedule --help
mapfile -t examples < <(sed -n '/^Example:/,$s/^  sluice //p' "$out")
[ "${examples[0]}" = "bench schedule --format json" ] || fail "the first example is another one"
for example in "${examples[@]:1}"; do
    # shellcheck disable=SC2086 # words
    run 0 "$SLUICE" $example
done

# 10 million actions, in processor time: the program has one thread, so on a machine of its own that is the time it takes.
if ! sanitized; then
    within 10 "$SLUICE" bench schedule --format json
    awk -v a="$(field actions)" 'BEGIN { exit !(a >= 10000000) }' || fail "fewer than 10 million actions"
    awk -v m="$(field peak_rss)" 'BEGIN { exit !(m > 0 && m < 1.5 * 1024 * 1024 * 1024) }' || fail "1.5 GiB or more"
    for part in generate_s lower_s check_s simulate_s; do
        awk -v t="$(field $part)" 'BEGIN { exit !(t > 0) }' || fail "$part is not measured"
    done
fi
