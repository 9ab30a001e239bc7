#!/usr/bin/env bash
# sluice bench plan: its keys, and the limits on time. In processor time, for other processes may be at work.
. "$(dirname "$0")/common.bash"

run 0 "$SLUICE" bench plan --format json
silent
for key in schedule_1f1b_s schedule_zbv_s schedule_interleaved_s heuristic_p_s heuristic_2p_s v_half_s v_third_s peak_rss; do
    "$SLUICE_SUPPORT/json_get" $key <"$out" >/dev/null || fail "no $key"
done
json_is heuristic_p_gap 0
json_is heuristic_2p_gap 0
run 2 "$SLUICE" bench plan --format yaml
run 2 "$SLUICE" bench plan extra

if ! sanitized; then
    costs=(--costs F=5,I=6,W=4,comm=1 --release 0)
    within 0.1 "$SLUICE" plan --auto --ranks 64 --microbatches 512 --memory 64 --budget 0 --format json
    within 1 "$SLUICE" plan --auto --placement v --ranks 16 --microbatches 64 --memory 6 "${costs[@]}" --format json
    within 10 "$SLUICE" plan --auto --ranks 1024 --microbatches 8192 --memory 1024 --budget 0 --format json
fi
