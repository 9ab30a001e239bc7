#!/usr/bin/env bash
# The benchmarks of the runtime print their keys; how fast they are is not tested here.
. "$(dirname "$0")/common.bash"

json_has() { "$SLUICE_SUPPORT/json_get" "$1" <"$out" >/dev/null || fail "stdout is no JSON with $1"; }

run 0 "$SLUICE" bench overhead --ranks 2 --microbatches 4 --steps 2 --rounds 1 --format json
silent
number=0
for schedule in GPipe 1F1B LoopedBFS Interleaved1F1B InterleavedZeroBubble ZBVZeroBubble DualPipeV; do
    json_is cases.$number.schedule $schedule
    json_is cases.$number.ranks 2
    json_has cases.$number.us_per_microbatch_stage
    json_has cases.$number.worst_us_per_microbatch_stage
    json_has cases.$number.traced_us_per_microbatch_stage
    number=$((number + 1))
done
json_is cases.1.stages_per_rank 1
json_is cases.2.stages_per_rank 2
json_is trace.stage_us 100
json_has trace.overhead

run 0 "$SLUICE" bench pipeline --schedule 1f1b --embd 16 --layers 2 --heads 2 --seq 8 --vocab 32 --steps 1 --format json
silent
json_has single_tokens_per_s
json_is cases.0.ranks 2
json_is cases.0.stages 2
for key in schedule tokens_per_s over_single predicted_tokens_per_s bubble; do
    json_has "cases.0.$key"
done
run 0 "$SLUICE" bench pipeline --ranks 1 --stages-per-rank 2 --dtype bf16 --embd 16 --layers 2 --heads 2 --seq 8 --vocab 32 --steps 1 \
    --format json
json_is cases.0.schedule Interleaved1F1B # GPipe and 1F1B have one stage a rank
json_is cases.0.ranks 1
json_is cases.0.stages 2

# Ranks as threads of one process.
run 0 "$SLUICE" bench overhead --ranks 2 --microbatches 4 --steps 2 --rounds 1 --ranks-as threads --schedule ZBVZeroBubble --format json
json_is cases.0.ranks 2
json_is cases.0.schedule ZBVZeroBubble
json_is cases.0.stages_per_rank 2
"$SLUICE_SUPPORT/json_get" cases.1.schedule <"$out" >"$scratch/second" 2>&1 && fail "--schedule: there is a second case"
run 2 "$SLUICE" bench overhead --schedule nonsense
complains "nonsense"
run 0 "$SLUICE" bench pipeline --schedule 1f1b --embd 16 --layers 2 --heads 2 --seq 8 --vocab 32 --steps 1 --ranks-as threads
silent
run 1 "$SLUICE" bench overhead --ranks 2 --rounds 1 --device nonsense --ranks-as threads
complains 'nonsense'
run 1 "$SLUICE" bench comm --device cpu --rounds 1 --ranks-as threads
complains 'device cpu has no links'
run 2 "$SLUICE" bench comm --ranks-as threads
complains '--ranks-as threads is for a --device'

run 2 "$SLUICE" bench pipeline --microbatches 3
complains "3 microbatches do not divide a batch of 8"
run 2 "$SLUICE" bench pipeline --schedule 1F1B --stages-per-rank 2
complains "1F1B"
run 1 "$SLUICE" bench overhead --ranks 1 --rounds 1 --device nonsense
complains "nonsense"
run 2 "$SLUICE" bench pipeline --schedule nonsense
complains "nonsense, 2 ranks: there is no such schedule"

run 0 "$SLUICE" bench sharding --embd 16 --layers 4 --heads 2 --seq 8 --vocab 32 --stages-per-rank 2 --steps 1 --format json
silent
json_is ranks 4
number=0 collectives=2
for mode in none optimizer full; do
    json_is cases.$number.shard $mode
    for key in step_s collective_s exposed_s hidden hideable over_none; do json_has "cases.$number.$key"; done
    json_is cases.$number.collectives $collectives
    collectives=4 # 2 stages: their gradients, their weights
    number=$((number + 1))
done
json_is cases.0.over_none 1
run 2 "$SLUICE" bench sharding --microbatches 3
complains "3 microbatches do not divide a batch of 4"
run 2 "$SLUICE" bench sharding --device nonsense
complains "device nonsense: there are cpu"

run 0 "$SLUICE" bench lengths --embd 16 --layers 1 --rounds 2 --format json
silent
for number in 0 1 2 3; do
    json_is lengths.$number.length $((32 * (number + 1)))
    for key in alone_s in_turn_s; do json_has "lengths.$number.$key"; done
done
json_has in_turn_over_alone
run 2 "$SLUICE" bench lengths --embd 6
complains "head"
