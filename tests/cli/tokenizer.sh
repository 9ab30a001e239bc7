#!/usr/bin/env bash
# The tokenizer stays with its model: text is trained on and evaluated in its tokens, a run keeps it in its folder, an
# export has it and nothing of what was there before.
. "$(dirname "$0")/common.bash"
cd "$scratch"

# gpt2-tiny, whose 257 tokens begin with the letters and the blank; "th" is 27, "the" 28, the blank and "the" 29.
mkdir start
cp "$SLUICE_DATA/models/gpt2-tiny/"{config.json,model.safetensors} start
{
    printf '{'
    i=0
    for letter in {a..z}; do
        printf '"%s":%d,' "$letter" "$i"
        i=$((i + 1))
    done
    printf '"Ġ":26,"th":27,"the":28,"Ġthe":29,"<|endoftext|>":30}'
} >start/vocab.json
printf '#version: 0.2\nt h\nth e\nĠ the\n' >start/merges.txt
for _ in {1..60}; do printf 'the cat and the dog see the moon over the hill '; done >text.txt
"$SLUICE" tokenize -t start -o text.bin text.txt >/dev/null
count=$(($(stat -c %s text.bin) / 2))

arguments=(train --model.init=start --batch.seq=16 --batch.size=4 --run.steps=3)
run 0 "$SLUICE" "${arguments[@]}" --data.text=text.txt --dry-run
prints "text.txt: $count tokens (text)"
run 0 "$SLUICE" "${arguments[@]}" --data.text=text.txt --run.out=run
run 0 "$SLUICE" "${arguments[@]}" --data.tokens=text.bin --run.out=twin
cmp <(sed -E 's/,"(ms|tokens_per_s|mfu|peak_memory|peak_gflops)":[^,}]*//g' run/metrics.jsonl) \
    <(sed -E 's/,"(ms|tokens_per_s|mfu|peak_memory|peak_gflops)":[^,}]*//g' twin/metrics.jsonl) ||
    fail "text and its tokens train differently"

# The run needs nothing but its own folder, wherever it lies.
mv start gone
mkdir elsewhere
mv run elsewhere/moved
cd /
run 0 "$SLUICE" generate -m "$scratch/elsewhere/moved" -p 'the cat' --tokens 4
silent
prints 'the cat'
run 0 "$SLUICE" generate -m "$scratch/elsewhere/moved/checkpoints/step-00000003" -p 'the cat' --tokens 4
silent
run 0 "$SLUICE" eval -m "$scratch/elsewhere/moved" --text "$scratch/text.txt" -b 2 -t 16
silent
from_text=$(cut -d' ' -f1-2 "$out")
run 0 "$SLUICE" eval -m "$scratch/elsewhere/moved" --tokens "$scratch/text.bin" -b 2 -t 16
[ "$(cut -d' ' -f1-2 "$out")" = "$from_text" ] || fail "eval --text is not eval --tokens: $from_text"
cd "$scratch"
run 0 "$SLUICE" export -m elsewhere/moved -o model
silent
cmp model/vocab.json gone/vocab.json && cmp model/merges.txt gone/merges.txt || fail "the export lost the tokenizer"
run 0 "$SLUICE" eval -m model --text text.txt -b 2 -t 16
[ "$(cut -d' ' -f1-2 "$out")" = "$from_text" ] || fail "the exported model evaluates to something else"

# Without its files it says so, and goes on in numbers.
rm -r elsewhere/moved/tokenizer
run 0 "$SLUICE" generate -m elsewhere/moved --prompt-tokens 28 --tokens 2
complains 'was trained with a tokenizer whose files are not in'
run 0 "$SLUICE" eval -m elsewhere/moved --text text.txt --tokenizer gone -b 2 -t 16
[ "$(cut -d' ' -f1-2 "$out")" = "$from_text" ] || fail "eval --tokenizer is not the tokenizer"

# A model of bytes: its export has a tokenizer of bytes, and speaks as the run does.
run 0 "$SLUICE" train --data.text=text.txt --model.n_layer=1 --model.n_embd=192 --model.n_head=2 --batch.seq=64 \
    --run.steps=2 --run.out=bytes
run 0 "$SLUICE" export -m bytes -o plain
for model in bytes plain; do
    run 0 "$SLUICE" generate -m $model -p 'the cat' --tokens 20 --seed 5
    cp "$out" $model.txt
done
cmp bytes.txt plain.txt || fail "the exported tokenizer of bytes is another"
run 0 "$SLUICE" tokenize -t plain -o bytes.bin text.txt
[ "$(od -An -v -tu2 bytes.bin | tr -s ' \n' ' ')" = "$(od -An -v -tu1 text.txt | tr -s ' \n' ' ')" ] ||
    fail "a token is not a byte"

# An export into a folder that has a model: only when asked, and then nothing of the old one is left.
touch model/README.md model/model-00001-of-00002.safetensors model/model.safetensors.index.json
cp -r model before
run 2 "$SLUICE" export -m bytes -o model
complains '--overwrite'
diff -r model before || fail "a refused export changed the folder"
run 0 "$SLUICE" export -m bytes -o model --overwrite
[ "$(ls model | xargs)" = "README.md config.json model.safetensors tokenizer.json" ] || fail "left: $(ls model | xargs)"
run 0 "$SLUICE" export -m model -o model --overwrite --shard-gb 0.001 # its own source
[ "$(ls model/*.safetensors | wc -l)" -gt 1 ] || fail "no shards"
run 0 "$SLUICE" generate -m model -p 'the cat' --tokens 20 --seed 5
cmp "$out" plain.txt || fail "an export over its own source is another model"
ls -d -- *.export-* 2>/dev/null && fail "an export left its other folder"
mkdir model/model.safetensors.d
chmod 0750 model
run 0 "$SLUICE" export -m bytes -o model --overwrite
[ "$(stat -c %a model)" = 750 ] || fail "the folder lost its permissions"
[ -d model/model.safetensors.d ] || fail "a folder that is no part of a model is gone"
