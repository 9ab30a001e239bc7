#!/usr/bin/env bash
# sluice bench compile: its keys, and the limits on time and memory for a whole pipeline of 64 ranks and of 4096 stages.
. "$(dirname "$0")/common.bash"

field() { sed -n "s/.*\"$1\":\([0-9.e+-]*\).*/\1/p" "$out"; }

run 0 "$SLUICE" bench compile --ranks 2 --stages-per-rank 1 --layers 2 --microbatches 4 --format json
silent
for key in actions build_s compile_s half_s peak_rss message_bytes; do
    [ -n "$(field $key)" ] || fail "no $key"
done
[ "$(field stages)" -eq 2 ] || fail "other stages than asked for"
run 0 "$SLUICE" bench compile --ranks 2 --layers 4 --microbatches 4
prints "with half the microbatches"
run 2 "$SLUICE" bench compile --ranks 64 --stages-per-rank 64 --layers 1
complains "stage"

# compiles_within SECONDS OPTION...: and in little memory.
compiles_within() {
    within "$1" "$SLUICE" bench compile "${@:2}" --format json
    awk -v m="$(field peak_rss)" 'BEGIN { exit !(m > 0 && m < 1024 * 1024 * 1024) }' || fail "1 GiB or more: ${*:2}"
}
if ! sanitized; then
    compiles_within 2
    compiles_within 5 --ranks 64 --stages-per-rank 64 --layers 1024 --microbatches 64
fi
