#!/usr/bin/env bash
# sluice eval, export and info on the models of tests/data: PyTorch's logits, a bit-equal round trip, descriptions.
. "$(dirname "$0")/common.bash"
compare=$SLUICE_SUPPORT/compare
models=$SLUICE_DATA/models

for model in gpt2-tiny llama-tiny; do
    data=$models/$model
    run 0 "$SLUICE" eval --model "$data" --tokens "$data/tokens.bin" --batch 8 --seq 32 --steps 1 \
        --logits "$scratch/logits" --format json
    prints '"perplexity":'
    run 0 "$compare" tensors "$scratch/logits" "$data/reference.safetensors" 2e-5

    # Read and written again: the same bits, and what Hugging Face looks for.
    run 0 "$SLUICE" export --model "$data" --output "$scratch/$model"
    run 0 "$compare" files "$scratch/$model/model.safetensors" "$data/model.safetensors"
    run 0 "$SLUICE" export --model "$scratch/$model" --output "$scratch/$model-sharded" --shard-gb 0.001
    [ -f "$scratch/$model-sharded/model.safetensors.index.json" ] || [ -f "$scratch/$model-sharded/model.safetensors" ]
    run 0 "$SLUICE" eval --model "$scratch/$model-sharded" --tokens "$data/tokens.bin" --batch 8 --seq 32 --steps 1 \
        --logits "$scratch/again"
    run 0 "$compare" files "$scratch/logits" "$scratch/again"
done
for key in architectures model_type vocab_size n_positions n_embd n_layer n_head activation_function tie_word_embeddings; do
    grep -q "\"$key\"" "$scratch/gpt2-tiny/config.json" || fail "config.json lacks $key"
done
for key in architectures model_type hidden_size intermediate_size num_key_value_heads rms_norm_eps rope_theta; do
    grep -q "\"$key\"" "$scratch/llama-tiny/config.json" || fail "config.json lacks $key"
done

run 0 "$SLUICE" eval --model "$models/gpt2-tiny" --tokens "$models/gpt2-tiny/tokens.bin" --batch 8 --seq 32
prints '(20 batches, 5120 tokens'
run 2 "$SLUICE" eval --model "$models/gpt2-tiny" --tokens "$models/gpt2-tiny/tokens.bin" --batch 8 --seq 65
complains '--seq 65: the model has 64 positions'
# Sizes that are not given: 8 rows of all 64 positions, less if the file is shorter.
run 0 "$SLUICE" eval --model "$models/gpt2-tiny" --tokens "$models/gpt2-tiny/tokens.bin"
prints '(10 batches, 5120 tokens'
head -c 402 "$models/gpt2-tiny/tokens.bin" >"$scratch/few.bin"
run 0 "$SLUICE" eval --model "$models/gpt2-tiny" --tokens "$scratch/few.bin"
prints '(1 batch, 192 tokens'
head -c 40 "$models/gpt2-tiny/tokens.bin" >"$scratch/few.bin"
run 0 "$SLUICE" eval --model "$models/gpt2-tiny" --tokens "$scratch/few.bin"
prints '(1 batch, 19 tokens'
head -c 2 "$models/gpt2-tiny/tokens.bin" >"$scratch/few.bin"
run 2 "$SLUICE" eval --model "$models/gpt2-tiny" --tokens "$scratch/few.bin"
complains "few.bin has 1 token; a sequence of 64 needs one more than its length"
run 2 "$SLUICE" eval --model "$models/gpt2-tiny" --batch 8 --seq 32
complains 'give either --tokens or --text'
run 1 "$SLUICE" eval --model "$models/gpt2-tiny" --tokens "$models/llama-tiny/tokens.bin" --batch 8 --seq 32
complains 'llama-tiny/tokens.bin'
run 1 "$SLUICE" eval --model "$scratch" --tokens "$models/gpt2-tiny/tokens.bin" --batch 8 --seq 32
complains "$scratch: neither a Hugging Face folder"
run 1 "$SLUICE" export --model "$models/gpt2-tiny" --output /proc/model

# A model with a value that is not finite is not evaluated, nor exported.
cp -r "$scratch/gpt2-tiny" "$scratch/nan"
size=$(stat -c %s "$scratch/nan/model.safetensors")
printf '\xff\xff\xff\xff' | dd of="$scratch/nan/model.safetensors" bs=1 seek=$((size - 8)) conv=notrunc status=none
run 1 "$SLUICE" eval --model "$scratch/nan" --tokens "$models/gpt2-tiny/tokens.bin" --batch 8 --seq 32
grep -qE 'nan: element [0-9]+ of .* is -?nan' "$err" || fail "the NaN is not named"
run 1 "$SLUICE" export --model "$scratch/nan" --output "$scratch/nan2"

# An export over an older one leaves nothing of it.
run 0 "$SLUICE" export --model "$models/gpt2-tiny" --output "$scratch/twice" --shard-gb 0.0001
touch "$scratch/twice/merges.txt" "$scratch/twice/README"
run 0 "$SLUICE" export --model "$models/gpt2-tiny" --output "$scratch/twice" --overwrite
[ "$(ls -A "$scratch/twice" | tr '\n' ' ')" = 'README config.json model.safetensors ' ] || fail "$(ls -A "$scratch/twice")"

run 0 "$SLUICE" info "$models/gpt2-tiny"
prints 'Hugging Face folder'
prints 'parameters    128592'
run 0 "$SLUICE" info "$models/gpt2-tiny/tokens.bin"
prints 'tokens        5121'
run 0 "$SLUICE" info "$models/gpt2-tiny/reference.safetensors" --format json
prints '"shape":"[8, 32, 257]"'
run 0 "$SLUICE" info "$SLUICE_DATA/schedules/GPipe_pp2_mb4_v1.compute.csv"
prints 'correct       yes'
printf '0B0,0F0\n' >"$scratch/wrong.csv"
run 0 "$SLUICE" info "$scratch/wrong.csv"
prints 'correct       no: rank 0, cell 0 0B0'
run 1 "$SLUICE" info "$scratch/nothing"
run 1 "$SLUICE" info "$scratch"
complains 'neither a run, a checkpoint'

# Names in a file command no terminal.
header='{"a\u001b[31m":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
printf "\\x$(printf %02x ${#header})\0\0\0\0\0\0\0%sx" "$header" >"$scratch/red.safetensors"
run 0 "$SLUICE" info "$scratch/red.safetensors"
prints 'a?[31m'
! grep -q $'\x1b' "$out" || fail "an escape sequence came out"
