#!/usr/bin/env bash
# Every family of models through the command line: trained in one stage and in two with the same bits, exported,
# evaluated, generating the same text on one rank and on two; and started from random weights.
. "$(dirname "$0")/common.bash"
compare=$SLUICE_SUPPORT/compare
cd "$scratch"
for ((i = 0; i < 400; i++)); do printf '\\x%02x\\x00' $((i * 37 % 61)); done >escaped
printf "$(cat escaped)" >tokens.bin

for model in qwen2 qwen3 mistral smollm3 phi3 gemma gemma2 gemma3 olmo2 gpt_neox yarn; do
    data=$SLUICE_DATA/models/$model-tiny
    for pp in 1 2; do
        run 0 "$SLUICE" train --model.init="$data" --data.tokens=tokens.bin --batch.size=4 --batch.seq=24 \
            --batch.microbatches=2 --parallel.pp=$pp --run.steps=2 --run.out="$model-$pp" --log.progress=off
        run 0 "$SLUICE" generate --model "$data" --prompt-tokens 5,6,7 --tokens 20 --temperature 0 -n $pp
        cp "$out" text-$pp
    done
    run 0 "$compare" checkpoints "$model-1/checkpoints/step-00000002" "$model-2/checkpoints/step-00000002"
    cmp text-1 text-2 || fail "$model: two ranks write another text"
    run 0 "$SLUICE" export --model "$model-2" --output "$model-hf"
    run 0 "$SLUICE" eval --model "$model-hf" --tokens tokens.bin --batch 2 --seq 24 --steps 1
    prints 'loss'
done
run 0 "$SLUICE" info gemma3-hf
prints 'family        gemma3_text'

run 0 "$SLUICE" train --model.family=gemma2 --model.sliding_window=8 --data.tokens=tokens.bin --model.n_layer=2 \
    --model.n_embd=32 --batch.seq=24 --run.steps=1 --precision.dtype=bf16 --run.out=new --log.progress=off
run 0 "$SLUICE" export --model new --output new-hf
grep -q '"sliding_window": 8' new-hf/config.json || fail "the window was lost"
grep -q '"query_pre_attn_scalar": 8' new-hf/config.json || fail "the scale does not follow the heads"

# What a folder lacks or has too much of is named with the file.
cp -r "$SLUICE_DATA/models/mistral-tiny" wrong
sed -i 's/"hidden_size": 16/"hidden_size": 20/' wrong/config.json
run 1 "$SLUICE" eval --model wrong --tokens tokens.bin --batch 2 --seq 24
complains "wrong: 'model.embed_tokens.weight' is [61, 16], the model needs [61, 20]"
sed -i 's/"model_type": "mistral"/"model_type": "mixtral"/' wrong/config.json
run 1 "$SLUICE" eval --model wrong --tokens tokens.bin --batch 2 --seq 24
complains "wrong/config.json: unknown model_type 'mixtral'"
