#!/usr/bin/env bash
# A trace is drawn measured against simulated.
. "$(dirname "$0")/common.bash"

# A trace of a simulation with the default costs: measured and simulated are the same.
run 0 "$SLUICE" show --schedule 1F1B --ranks 4 --microbatches 8 -o "$scratch/trace.json"
run 0 "$SLUICE" show "$scratch/trace.json"
silent
prints "trace.json, step 0: measured 0.033 ms (bubble 27.3 %), simulated 0.033 ms (bubble 27.3 %)"
prints "rank 3"
[ "$(grep -c '^simulated .*%' "$out")" -eq 4 ] || fail "not one simulated row a rank"

# Times stand in the file: one action that took longer than the others delays what was measured.
cat >"$scratch/slow.json" <<JSON
{"traceEvents":[
{"ph":"X","name":"0F0","pid":0,"tid":0,"ts":0,"dur":1000,"args":{"step":7}},
{"ph":"X","name":"1F0","pid":1,"tid":0,"ts":1000,"dur":1000,"args":{"step":7}},
{"ph":"X","name":"1B0","pid":1,"tid":0,"ts":2000,"dur":1000,"args":{"step":7}},
{"ph":"X","name":"0B0","pid":0,"tid":0,"ts":5000,"dur":1000,"args":{"step":7}},
{"ph":"X","name":"0F0","pid":0,"tid":0,"ts":6000,"dur":1000,"args":{"step":8}}]}
JSON
run 0 "$SLUICE" show "$scratch/slow.json" # step 8 is not whole
prints "step 7: measured 6 ms (bubble 66.7 %), simulated 4 ms (bubble 50.0 %)"
for ending in svg png pdf html txt; do
    run 0 "$SLUICE" show "$scratch/slow.json" -o "$scratch/slow.$ending"
    [ -s "$scratch/slow.$ending" ] || fail "no slow.$ending"
done
grep -q "simulated" "$scratch/slow.svg" || fail "the picture lacks the simulated rows"

run 1 "$SLUICE" show "$scratch/slow.json" --step 9
complains "there is no step 9"
run 1 "$SLUICE" show "$scratch/slow.json" --step 8
complains "slow.json"
echo '{"traceEvents":[]}' >"$scratch/empty.json"
run 1 "$SLUICE" show "$scratch/empty.json"
complains "no action"
