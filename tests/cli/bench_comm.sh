#!/usr/bin/env bash
# sluice bench comm prints its keys, and beside each size a memcpy of that size; how fast they are is not tested here.
. "$(dirname "$0")/common.bash"

get() { "$SLUICE_SUPPORT/json_get" "$1" <"$out" || fail "stdout is no JSON with $1"; }

run 0 "$SLUICE" bench comm --rounds 1 --mpirun "" --format json
silent
json_is "?" "cases memcpy_gb_per_s"
json_is "#cases" 10
json_is "?cases.0" "bytes gb_per_s latency_us memcpy_gb_per_s read_gb_per_s transport"
json_is cases.0.transport local
json_is cases.0.bytes 8
json_is cases.9.bytes $((64 << 20))
json_is memcpy_gb_per_s "$(get cases.9.memcpy_gb_per_s)" # of memory, and not of a cache
for key in latency_us gb_per_s read_gb_per_s memcpy_gb_per_s; do
    for case in 0 4 9; do
        [[ $(get "cases.$case.$key") =~ [1-9] ]] || fail "$key of case $case is zero"
    done
done

run 2 "$SLUICE" bench comm --rounds 0
run 0 "$SLUICE" bench comm --help
prints "memcpy_gb_per_s"
