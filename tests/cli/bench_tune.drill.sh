#!/usr/bin/env bash
# sluice bench tune on an idle machine: predictions within 10 %, in the right order, and the choice among the best.
. "$(dirname "$0")/common.bash"

run 2 "$SLUICE" bench tune --model 3
run 2 "$SLUICE" bench tune --configurations 1
run 0 "$SLUICE" bench tune --format json
cat "$out"
for ((i = 0; i < 6; i++)); do
    for bar in "error <= 0.10" "tau >= 0.8" "chosen <= 0.05"; do
        read -r key sign limit <<<"$bar"
        value=$("$SLUICE_SUPPORT/json_get" "$i.$key" <"$out") || fail "no $key in case $i"
        awk -v value="$value" -v limit="$limit" -v sign="$sign" \
            'BEGIN { exit !(sign == "<=" ? value <= limit : value >= limit) }' || fail "case $i: $key is $value, not $sign $limit"
    done
    "$SLUICE_SUPPORT/json_get" "$i.rows.11.measured_s" <"$out" >/dev/null || fail "case $i has fewer than 12 configurations"
done
