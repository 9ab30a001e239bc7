#!/usr/bin/env bash
# Whichever algorithms products take, results have the same bits: the first that cuBLASLt proposes, those that trials find, and
# those that an earlier start saved.
. "$(dirname "$0")/gpu.bash"
cd "$scratch"

# loss NAME TRIALS OPTIONS...: of a few steps of a model whose products are large enough to be tried; NAME.err has the log.
loss() {
    SLUICE_CACHE=$scratch/cache SLUICE_TRIALS=$2 SLUICE_LOG=debug timeout 90 "$SLUICE" bench step --preset small --device cuda \
        --repeats 3 --format json "${@:3}" >"$1.json" 2>"$1.err" </dev/null || fail "$1: exit code $?: $(tail -c 300 "$1.err")"
    "$SLUICE_SUPPORT/json_get" loss <"$1.json"
}

for options in "--dtype f32" "--dtype bf16 --batch 64" "--dtype bf16 --microbatches 2"; do
    rm -rf cache
    first=$(loss first off $options)
    [ ! -e cache ] || fail "$options: without trials a choice is saved"
    tried=$(loss tried on $options)
    saved=$(loss saved on $options)
    grep -q 'algorithms with the same bits' tried.err || fail "$options: nothing was tried"
    grep -q 'the saved algorithm is taken' saved.err || fail "$options: no saved choice is taken"
    [ "$first" = "$tried" ] || fail "$options: the loss with trials is $tried, with the first algorithms $first"
    [ "$first" = "$saved" ] || fail "$options: the loss with saved choices is $saved, with the first algorithms $first"
    echo "$options: $first"
done

# In a graph the words that products count with are cleared once.
large=(--preset llama-1.1b --layers 2 --dtype bf16)
graph=$(loss graph on "${large[@]}")
calls=$(SLUICE_GRAPHS=off loss calls on "${large[@]}")
grep -q 'clears the words of [1-9][0-9]* products as it begins' graph.err || fail "no words of products are cleared together"
[ "$graph" = "$calls" ] || fail "the loss of steps as graphs is $graph, call by call $calls"

SLUICE_TRIALS=often run 1 "$SLUICE" bench step --preset small --device cuda
complains "SLUICE_TRIALS is 'often'"
