#!/usr/bin/env bash
# sluice generate: the same text on any number of ranks, text for byte models, numbers if there is no tokenizer.
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

# A token that ends a text ends it, on any number of ranks, and is not printed; each sample ends on its own.
cp -r "$SLUICE_DATA/models/llama-tiny" whole
tokens() { run 0 "$SLUICE" generate --prompt-tokens 5,6,7 --tokens 40 --seed 3 "$@"; }
tokens --model whole --temperature 0 --ignore-eos
read -ra words <"$out"
[ ${#words[@]} -eq 41 ] || fail "not 40 tokens: ${#words[@]}"
end=${words[20]}
for ((first = 1; first < 20; first++)); do
    [ "${words[first]}" = "$end" ] && break
done
cp -r whole ended
sed -i -E "s/\"eos_token_id\": *[^,}]*/\"eos_token_id\": [255, $end]/" ended/config.json
for ranks in 1 2 3; do
    tokens --model ended --temperature 0 -n $ranks
    [ "$(cat "$out")" = "${words[*]:0:first}" ] || fail "$ranks ranks do not end at $end"
    tokens --model ended --temperature 0 --ignore-eos -n $ranks
    [ "$(cat "$out")" = "${words[*]}" ] || fail "$ranks ranks do not go on with --ignore-eos"
    tokens --model ended --samples 6 -n $ranks
    cp "$out" "samples.$ranks"
done
cmp samples.1 samples.2 && cmp samples.1 samples.3 || fail "the ends of samples depend on the ranks"
tokens --model ended --samples 6 --ignore-eos
# What is printed with the end is what is printed without it, up to the end.
while read -r line; do
    set -- $line
    shift # the prompt
    for word in "$@"; do
        [ "$word" = "$end" ] || [ "$word" = 255 ] && break
        printf ' %s' "$word"
    done
    echo
done < <(grep '^5,6,7' "$out") >expected
cmp expected <(sed -n 's/^5,6,7//p' samples.1) || fail "a sample does not end where it should"
