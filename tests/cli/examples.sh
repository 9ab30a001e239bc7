#!/usr/bin/env bash
# The example programs run, alone and on several ranks, with the same numbers, and learn.
. "$(dirname "$0")/common.bash"

# learns NAME RANKS...: the last loss is below a third of the first, and all numbers of ranks print the same.
learns() {
    local name=$1 ranks
    shift
    run 0 "$SLUICE_BUILD/examples/$name"
    cp "$out" "$scratch/alone"
    awk '{ loss[NR] = $NF } END { exit !(NR > 2 && loss[NR] < loss[1] / 3) }' "$scratch/alone" || fail "$name does not learn"
    for ranks in "$@"; do
        run 0 "$SLUICE" launch -n "$ranks" -- "$SLUICE_BUILD/examples/$name"
        cmp "$out" "$scratch/alone" || fail "$name on $ranks ranks prints other numbers"
    done
}
learns 01_callbacks 2 4 5
learns 02_graph 3
learns 04_nested 3
learns 05_device 2

# A family that only this program knows: the library's loop trains, checkpoints, resumes and exports it, and 2 ranks give
# the bits of 1.
for ranks in 1 2; do
    run 0 "$SLUICE_BUILD/examples/03_family" "$SLUICE_SOURCE/examples/demo/tales.txt" "$scratch/family$ranks" $ranks
    prints 'steps 0 to 60, loss '
    prints 'steps 60 to 120, loss '
    prints 'window 6, 3 layers of 48'
    awk -F'[ ,]+' '/^steps 0/ { first = $6 } /^evaluated/ { exit !($3 < first / 3) }' "$out" || fail "03_family does not learn"
    cp "$out" "$scratch/ranks$ranks"
done
cmp "$scratch/ranks1" "$scratch/ranks2" || fail "03_family prints other numbers on 2 ranks"
cmp "$scratch/family1/model/model.safetensors" "$scratch/family2/model/model.safetensors" ||
    fail "03_family has other weights on 2 ranks"
run 1 "$SLUICE" info "$scratch/family1/model"
complains "unknown model_type 'window'; known are gpt2, llama"
