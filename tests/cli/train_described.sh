#!/usr/bin/env bash
# --dry-run for a GPU that is not here: the plan is for it, its memory decides what fits, and it cannot train.
. "$(dirname "$0")/common.bash"
cd "$scratch"
head -c 40000 "$SLUICE_SOURCE/examples/demo/tales.txt" >text.txt
small=(train --data.text=text.txt --model.n_layer=4 --model.n_embd=256 --model.n_head=4 --batch.seq=128 --batch.size=8
       --precision.dtype=bf16)
field() { "$SLUICE_SUPPORT/json_get" "$1" <"$out"; }

run 0 "$SLUICE" "${small[@]}" --parallel.pp=4 --device h200 --dry-run
silent
prints "device    NVIDIA H200 by its data sheet, 150 GB; each rank has one"
! grep -q "to run it\|share" "$out" || fail "it is not this machine that would run it"

# The rates are the GPU's: more of both takes less time.
for gpu in h200 a100-40gb l4; do
    run 0 "$SLUICE" "${small[@]}" --device $gpu --dry-run --format json
    json_is device $gpu
    field step_s >$gpu
done
awk '{ t[FILENAME] = $1 } END { exit !(0 < t["h200"] && t["h200"] < t["a100-40gb"] && t["a100-40gb"] < t["l4"]) }' \
    h200 a100-40gb l4 || fail "the slower GPU is not slower"

# However small the kernels of a model are, each takes its time: more of them, more time.
tiny=(train --data.text=text.txt --model.n_embd=64 --model.n_head=4 --batch.seq=64 --batch.size=8 --precision.dtype=bf16
      --device h200 --dry-run --format json)
for layers in 2 4; do
    for parts in 1 4; do
        run 0 "$SLUICE" "${tiny[@]}" --model.n_layer=$layers --batch.microbatches=$parts
        field step_s >tiny.$layers.$parts
    done
done
awk '{ t[FILENAME] = $1 } END { exit !(t["tiny.2.1"] > 5e-5 && t["tiny.2.1"] < 1e-3 && t["tiny.4.1"] > 1.4 * t["tiny.2.1"] &&
     t["tiny.2.4"] > 3 * t["tiny.2.1"]) }' tiny.* || fail "kernels take no time: $(head tiny.*)"

# Attention's gradient has a matrix of bf16 for each head as workspace: half the rows, half of it.
large=(train --data.text=text.txt --model.n_layer=12 --model.n_embd=4096 --model.n_head=32 --batch.seq=2048 --batch.size=8
       --precision.dtype=bf16 --dry-run --format json)
run 0 "$SLUICE" "${large[@]}" --batch.microbatches=8 --device h200
json_is fits true
[ "$(field ranks.0.activations)" -gt $((32 * 2048 * 2048 * 2)) ] || fail "the workspace is not counted"
run 2 "$SLUICE" "${large[@]}" --batch.microbatches=8 --device l4
complains "the device has 23.6 GB"

# The driver keeps something for each kernel of a step, which is one graph: as much for each microbatch.
context=()
for parts in 1 2 4; do
    run 0 "$SLUICE" "${small[@]}" --batch.microbatches=$parts --device h200 --dry-run --format json
    context+=("$(field ranks.0.context)")
done
graph=$((context[1] - context[0]))
[ $graph -gt 0 ] && [ $((context[2] - context[1])) -eq $((2 * graph)) ] || fail "graphs are not counted: ${context[*]}"

# Activations that lie idle go to the host: none, as few as make it fit, or all, which takes longer.
idle=(train --data.text=text.txt --model.n_layer=12 --model.n_embd=1024 --model.n_head=16 --batch.seq=1024 --batch.size=64
      --batch.microbatches=16 --precision.dtype=bf16 --device rtx4090 --dry-run --format json --parallel.schedule)
run 2 "$SLUICE" "${idle[@]}"=GPipe --parallel.offload=none
complains "4.25 GB too much"
run 0 "$SLUICE" "${idle[@]}"=GPipe
json_is fits true
few=$(field ranks.0.offload) quick=$(field step_s)
[ "$few" -gt 0 ] || fail "nothing goes to the host"
run 0 "$SLUICE" "${idle[@]}"=GPipe --parallel.offload=40GB
json_is fits true
[ "$(field ranks.0.offload)" -gt "$few" ] || fail "not all goes to the host"
awk "BEGIN { exit !($(field step_s) > $quick) }" || fail "copies take no time"
run 0 "$SLUICE" "${idle[@]}"=1F1B --parallel.offload=40GB # one microbatch at a time leaves nothing idle
json_is ranks.0.offload 0
run 2 "$SLUICE" "${idle[@]}"=GPipe --parallel.offload=lots
complains "parallel.offload"
run 2 "$SLUICE" "${small[@]}" --dry-run --parallel.offload=1GB
complains "activations on the cpu are on the host already"

run 2 "$SLUICE" "${small[@]}" --device h200 --run.out=never
complains "--device h200: a GPU by its data sheet can be planned for (--dry-run), not used"
[ ! -e never ] || fail "something was written"
run 2 "$SLUICE" "${small[@]}" --device h300 --dry-run
complains "device h300: there are cpu, cuda, cuda:INDEX and auto, and for plans GPUs by name: b200, h200"
