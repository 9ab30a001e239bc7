#!/usr/bin/env bash
# data.documents: tokens see their own document alone. Any ranks give the same bits, a resumed run goes on alike, and
# validation, evaluation and training read documents by the same rule. A boundary that is not known is refused.
. "$(dirname "$0")/common.bash"
cd "$scratch"
compare=$SLUICE_SUPPORT/compare
# Sentences are documents.
head -c 40000 "$SLUICE_SOURCE/examples/demo/tales.txt" | tr -s '.' '\n' >text.txt
train() {
    local dir=$1
    shift
    "$SLUICE" train --data.text=text.txt --data.order=shuffled --data.val=10% --eval.every=3 --eval.batches=3 --model.n_layer=4 \
        --model.n_embd=16 --model.n_head=2 --batch.size=8 --batch.seq=48 --batch.microbatches=2 --checkpoint.every=3 \
        --run.steps=6 --run.out="$dir" "$@"
}
same() {
    run 0 "$compare" metrics "$1/metrics.jsonl" "$2/metrics.jsonl"
    run 0 "$compare" checkpoints "$1/checkpoints/step-00000006" "$2/checkpoints/step-00000006"
}
differ() { run 1 "$compare" metrics "$1/metrics.jsonl" "$2/metrics.jsonl"; }
kept=(--data.documents=true --data.boundary=10)

run 0 train plain
run 0 train whole "${kept[@]}"
silent
differ plain whole
run 0 train masked "${kept[@]}" --data.boundary_loss=false
differ whole masked
run 0 train ends "${kept[@]}" --data.boundary=32
differ whole ends
run 0 train x "${kept[@]}" --data.boundary_loss=false --dry-run
prints 'documents kept apart; token 10 ends one, and the first of the next is no target'

# Any ranks: the stages beyond the first know the documents, too.
run 0 train pp4 "${kept[@]}" --parallel.pp=4 --parallel.recompute='h.*'
same whole pp4
run 0 train zero_bubble "${kept[@]}" --data.boundary_loss=false --parallel.pp=2 --parallel.schedule=ZBVZeroBubble
same masked zero_bubble
for pp in 1 2; do
    run 0 train llama$pp "${kept[@]}" --model.family=mistral --model.sliding_window=7 --model.dropout=0.1 --parallel.pp=$pp \
        --precision.dtype=bf16
done
same llama1 llama2

# Resumed on other ranks it is the run that was not stopped. A change of the rule is not overlooked.
rm -r pp4/checkpoints/step-00000006
run 0 train pp4 "${kept[@]}" --resume --parallel.pp=2
silent
same whole pp4
rm -r pp4/checkpoints/step-00000006
run 0 train pp4 --resume
complains 'resumed with data.documents=false, the checkpoint was made with true'
run 0 "$SLUICE" info whole --format json
json_is boundary 10

# eval finds the loss of the last validation: the same documents, the same rows.
tail -c 4000 text.txt >val.txt
run 0 train val "${kept[@]}" --data.val=val.txt
last=$(tail -n 1 val/metrics.jsonl | "$SLUICE_SUPPORT/json_get" val_loss)
evaluate() { run 0 "$SLUICE" eval -m val --text val.txt --batch 8 --seq 48 --steps 3 --format json "$@"; }
evaluate --boundary 10
awk -v a="$last" -v b="$("$SLUICE_SUPPORT/json_get" loss <"$out")" 'BEGIN { exit !(a - b < 2e-6 && b - a < 2e-6) }' || fail "eval differs from $last"
evaluate
awk -v a="$last" -v b="$("$SLUICE_SUPPORT/json_get" loss <"$out")" 'BEGIN { exit !(a - b > 1e-4 || b - a > 1e-4) }' || fail "eval sees no documents"
run 2 "$SLUICE" eval -m val --text val.txt --batch 8 --seq 48 --boundary 256
complains 'the boundary 256 is not in the vocabulary of 256 tokens'

# The boundary that a model's own folder names: its tokenizer's before that of config.json. Text has none.
mkdir folder
cp "$SLUICE_DATA/models/gpt2-tiny"/{model.safetensors,tokens.bin} folder
sed 's/"eos_token_id": 0/"eos_token_id": 5/' "$SLUICE_DATA/models/gpt2-tiny/config.json" >folder/config.json
own() {
    "$SLUICE" train --model.init=folder --batch.seq=16 --batch.size=4 --run.steps=1 --run.out=own --data.documents=true "$@"
}
run 0 own --data.tokens=folder/tokens.bin --dry-run
prints 'documents kept apart; token 5 ends one'
cp "$SLUICE_DATA/tokenizers/gpt2.json" folder/tokenizer.json
run 0 own --data.tokens=folder/tokens.bin --dry-run
prints 'documents kept apart; token 0 ends one'
run 2 own --data.text=text.txt
complains 'data.documents=true: text has no tokens that end a document: make a token file with sluice tokenize --end'

# The planner measures layers with documents.
cat >run.yaml <<'YAML'
model: {n_layer: 1, n_embd: 16, n_head: 2}
data: {text: text.txt, documents: true, boundary: 10}
batch: {size: 4, seq: 32}
run: {steps: 2, out: planned}
YAML
run 0 "$SLUICE" plan -c run.yaml --auto --ranks 1 --measure -o plan.yaml
run 0 "$SLUICE" train -c run.yaml --plan plan.yaml

# Mistakes.
run 2 train x --data.documents=true
complains 'data.documents=true: which token ends a document is not known'
complains 'give data.boundary'
run 2 train x --data.documents=true --data.boundary=256
complains 'data.boundary=256: token 256 is not below the vocabulary 256'
run 2 train x --data.boundary=10
complains 'data.boundary=10: documents are not kept apart: data.documents is false'
run 2 train x --data.boundary_loss=false
complains 'data.boundary_loss=false: documents are not kept apart'
run 0 train x --data.documents=true --data.boundary=1 --dry-run
complains 'none of its first'
