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
