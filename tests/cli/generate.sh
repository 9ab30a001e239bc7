#!/usr/bin/env bash
# sluice generate: the same text on any number of ranks, text for byte models, numbers where there is no tokenizer.
. "$(dirname "$0")/common.bash"
cd "$scratch"
head -c 30000 "$SLUICE_SOURCE/examples/demo/tales.txt" >text.txt
run 0 "$SLUICE" train --data.text=text.txt --model.n_layer=3 --model.n_embd=48 --batch.seq=64 --optimizer.lr=5e-3 \
    --run.steps=150 --run.out=out --log.progress=off

generate() { run 0 "$SLUICE" generate --model out --prompt 'Once' --tokens 50 "$@"; }
generate --temperature 0
[ "$(wc -c <"$out")" -eq 55 ] || fail "not 4 + 50 bytes and a line break"
grep -q '^Once th' "$out" || fail "nothing was learned"
cp "$out" greedy
for ranks in 2 3; do
    generate --temperature 0 -n $ranks
    cmp "$out" greedy || fail "$ranks ranks write another text"
done
generate --temperature 0.9 --top-k 20 --top-p 0.95 --seed 5 --samples 3
prints '--- sample 3 ---'
cp "$out" samples
generate --temperature 0.9 --top-k 20 --top-p 0.95 --seed 5 --samples 3 -n 3
cmp "$out" samples || fail "3 ranks choose other samples"
generate --temperature 0.9 --seed 6 --samples 3
cmp -s "$out" samples && fail "another seed gives the same text"

run 0 "$SLUICE" generate --model "$SLUICE_DATA/models/llama-tiny" --prompt-tokens 5,6,7 --tokens 4 --temperature 0
grep -qE '^5,6,7( [0-9]+){4}$' "$out" || fail "numbers are expected"
run 0 "$SLUICE" generate --model "$SLUICE_DATA/models/llama-tiny" --prompt-tokens 5,6,7
grep -qE '^5,6,7( [0-9]+){61}$' "$out" || fail "64 positions leave room for 61 tokens"
run 2 "$SLUICE" generate --model "$SLUICE_DATA/models/llama-tiny" --prompt text
complains 'no tokenizer beside it'
run 2 "$SLUICE" generate --model out --prompt Once --tokens 61
complains "more than the model's 64 positions"
run 2 "$SLUICE" generate --model out --prompt Once --tokens 61 -n 2
complains "more than the model's 64 positions"
run 2 "$SLUICE" generate --model out --prompt '' --tokens 3
complains 'the prompt is empty'
