#!/usr/bin/env bash
# What cannot work is refused before anything starts: the key and the place named, nothing written. A value that is wrong
# in itself gives exit code 2, a file that cannot be used 1.
. "$(dirname "$0")/common.bash"
cd "$scratch"

tokens=$SLUICE_DATA/models/gpt2-tiny/tokens.bin
: >empty.txt
printf 'short' >short.txt
printf 'a%.0s' {1..5000} >text.txt

# refused MESSAGE ARGUMENT...: a value is wrong. unusable: a file is.
ended() {
    local code=$1 message=$2
    shift 2
    run "$code" "$SLUICE" train --run.out=out --run.steps=2 "$@"
    complains "$message"
    [ ! -e out ] || fail "the folder was made: $*"
}
refused() { ended 2 "$@"; }
unusable() { ended 1 "$@"; }

refused 'no data: give data.tokens or data.text'
unusable '--data.tokens=nowhere.bin: ' --data.tokens=nowhere.bin
unusable 'empty' --data.text=empty.txt
refused '--batch.seq=8: a row needs 9 tokens, short.txt has 5' --data.text=short.txt --batch.seq=8
refused "--data.order: 'random' is not one of sequential|shuffled" --data.text=text.txt --data.order=random
refused "there is no option '--data.color'" --data.text=text.txt --data.color=red
refused '--batch.size=7: 7 rows cannot be shared equally by 2 replicas' --data.text=text.txt --batch.size=7 \
    --parallel.dp=2 --batch.microbatches=2
# Said once, not by each rank, also if who started this ignores the end of children.
run 2 env --ignore-signal=CHLD "$SLUICE" train --run.out=out --run.steps=2 --data.text=text.txt --batch.size=7 --parallel.dp=2 \
    --batch.microbatches=2
[ "$(grep -c 'cannot be shared equally' "$err")" -eq 1 ] || fail "a refusal comes once"
refused '--batch.microbatches=9: 9 microbatches, but a replica has only 8 rows' --data.text=text.txt \
    --batch.microbatches=9
refused '-n 3: the ranks are parallel.pp 2 x parallel.dp 1' --data.text=text.txt --parallel.pp=2 -n 3
refused '-n 3: the ranks are parallel.pp 1 x parallel.dp 2' --data.text=text.txt --parallel.dp=2 -n 3
refused '--parallel.schedule=ForwardOnly: it has no backward actions' --data.text=text.txt \
    --parallel.schedule=ForwardOnly
refused '--parallel.schedule=2F2B: ' --data.text=text.txt --parallel.schedule=2F2B
refused '--parallel.pp=1000: the model cannot be cut into 1000 stages' --data.text=text.txt --parallel.pp=1000 \
    --parallel.schedule=GPipe
refused '--parallel.split=transformer.h.9: ' --data.text=text.txt --parallel.pp=2 --parallel.split=transformer.h.9
refused '--precision.dtype=f16: f16 gradients underflow' --data.text=text.txt --precision.dtype=f16
run 0 "$SLUICE" train --data.text=text.txt --precision.dtype=bf16 --dry-run
prints 'precision bf16, f32 master weights, f32 gradients'
refused '--parallel.memory_gb=0.001: rank 0 needs ' --data.text=text.txt --parallel.memory_gb=0.001

# A plan that does not fit is printed whole; then comes by how much, and what would fit, which does.
run 2 "$SLUICE" train --data.text=text.txt --batch.size=8 --parallel.memory_gb=0.03 --dry-run
prints "predicted: "
complains " too much; this would fit: "
remedy=$(sed -n 's/.*this would fit: \([^ ]*\) .*/\1/p' "$err")
run 0 "$SLUICE" train --data.text=text.txt --batch.size=8 --parallel.memory_gb=0.03 "--$remedy" --dry-run
run 2 "$SLUICE" train --data.text=text.txt --batch.size=8 --parallel.memory_gb=0.03 --dry-run --format json
prints '"fits":false'
unusable '--model.init=nowhere: ' --data.text=text.txt --model.init=nowhere
refused '--model.n_layer=3: this comes from model.init' --data.tokens="$tokens" \
    --model.init="$SLUICE_DATA/models/gpt2-tiny" --model.n_layer=3
refused '--batch.seq=65: 65 tokens, but the model has 64 positions' --data.tokens="$tokens" \
    --model.init="$SLUICE_DATA/models/gpt2-tiny" --batch.seq=65

# Dropout comes from model.init unless it is given; 0 is given, too.
cp -r "$SLUICE_DATA/models/gpt2-tiny" dropping
sed -i -E 's/"(attn|embd|resid)_pdrop": [0-9.]+/"\1_pdrop": 0.1/' dropping/config.json
dropping=("$SLUICE" train --data.tokens="$tokens" --model.init=dropping --batch.seq=16 --dry-run)
run 0 "${dropping[@]}"
prints ', dropout 0.1 from dropping'
run 0 "${dropping[@]}" --model.dropout=0
prints ', dropout 0 from dropping'
run 0 "${dropping[@]}" --model.dropout=0.25
prints ', dropout 0.25 from dropping'

# A token past the vocabulary: file and offset are named.
unusable "$tokens" --data.tokens="$tokens" --model.vocab=10
complains 'token'

# A schedule that does not fit the run, or is not one.
printf '0F0,0B0\n' >one.csv
refused '--parallel.schedule=one.csv: it is for 1 ranks, parallel.pp is 2' --data.text=text.txt --parallel.pp=2 \
    --parallel.schedule=one.csv
refused '--parallel.schedule=one.csv: it has 1 microbatches, batch.microbatches is 4' --data.text=text.txt \
    --parallel.schedule=one.csv
printf '0B0,0F0\n' >wrong.csv
unusable '--parallel.schedule=wrong.csv: ' --data.text=text.txt --parallel.schedule=wrong.csv --batch.microbatches=1

printf '0F0,1F0,1B0,0B0\n' >two.csv
refused '--parallel.stages_per_rank=3: the schedule has 2 stages on 1 ranks' --data.text=text.txt \
    --parallel.schedule=two.csv --batch.microbatches=1 --parallel.stages_per_rank=3

# The file: line, column and key.
cat >run.yaml <<'YAML'
data:
  text: text.txt
batch:
  size: 6
  microbatch: 2
YAML
refused 'run.yaml:5:3: batch.microbatch: there is no such key; there are size, seq, microbatches' -c run.yaml
sed -i 's/microbatch:/microbatches:/; s/2$/two/' run.yaml
refused "run.yaml:5:17: batch.microbatches: 'two' is not a whole number" -c run.yaml
sed -i 's/two$/7/' run.yaml
refused 'run.yaml:5:17: batch.microbatches: 7 microbatches, but a replica has only 6 rows' -c run.yaml
unusable 'open nowhere.yaml: No such file or directory' -c nowhere.yaml

printf 'data:\n  text: "\xff"\n' >bytes.yaml
unusable 'bytes.yaml:2:10: invalid leading UTF-8 octet' -c bytes.yaml
printf -- '---\n# nothing\n...\n' >nothing.yaml
refused 'no data: give data.tokens or data.text' -c nothing.yaml

# Defaults fit what is given: microbatches the rows, the pipeline the ranks.
run 0 "$SLUICE" train --data.text=text.txt --batch.size=6 --parallel.dp=2 -n 4 --dry-run
prints '2 replicas x 3 microbatches of 1 row'
prints 'schedule  1F1B, 2 stages on 2 ranks'

# Modules may be named without what all names begin with, as the plan prints them.
for module in h.1 transformer.h.1; do
    run 0 "$SLUICE" train --data.text=text.txt -n 2 --parallel.split=$module --parallel.recompute=h.0 --dry-run
    grep -qE '^1 +1 .* h\.1\.ln_1\.layernorm \.\. ' "$out" || fail "the second stage does not begin at $module"
done

# The plan of what does work, without a trace of it on disk.
sed -i 's/7$/2/' run.yaml
run 0 "$SLUICE" train -c run.yaml --parallel.pp=2 --dry-run
silent
prints 'schedule  1F1B, 2 stages on 2 ranks'
prints 'predicted: '
prints 'to run it: sluice train -c run.yaml --parallel.pp=2'
[ ! -e out ] || fail "--dry-run wrote something"
cp text.txt "it's here.txt"
run 0 "$SLUICE" train --dry-run "--data.text=it's here.txt"
eval "set -- $(sed -n 's/^to run it: //p' "$out")"
[ "$3" = "--data.text=it's here.txt" ] || fail "a shell would not read the line as it was given: $3"

# A folder that holds a run is not overwritten.
run 0 "$SLUICE" train -c run.yaml --run.steps=1 --run.out=first
run 2 "$SLUICE" train -c run.yaml --run.steps=1 --run.out=first
complains '--run.out=first: first holds a run (checkpoint of step 1): continue it with --resume, replace it with --overwrite'
run 2 "$SLUICE" train -c run.yaml --run.steps=1 --run.out=first --overwrite --resume
complains 'either --resume or --overwrite'

# Unless it is asked for: then nothing of the old run is left, and what is not of a run stays.
touch first/notes.txt first/trace.json
mkdir first/checkpoints/step-00000007.damaged first/tokenizer
touch first/tokenizer/vocab.json
run 0 "$SLUICE" train -c run.yaml --run.steps=2 --run.out=first --overwrite -n 2
prints 'done after step 2'
grep -q '^resumed' "$out" && fail "it resumed"
[ "$(ls first/checkpoints | xargs)" = "step-00000002 step-00000007.damaged" ] || fail "left: $(ls first/checkpoints | xargs)"
[ "$(grep -c '"loss"' first/metrics.jsonl)" -eq 2 ] || fail "metrics of the old run are left"
[ -e first/notes.txt ] && [ ! -e first/trace.json ] && [ ! -e first/tokenizer ] || fail "left: $(ls first | xargs)"
run 0 "$SLUICE" train -c run.yaml --run.steps=1 --run.out=fresh --overwrite

# Nor does a run start whose gradients could not be written; they may lie in its own folder.
run 1 "$SLUICE" train -c run.yaml --run.steps=1 --run.out=second --save-grads nowhere/grads
complains 'open nowhere/grads for writing: No such file or directory'
run 0 "$SLUICE" train -c run.yaml --run.steps=1 --run.out=second --save-grads second/grads
[ -s second/grads ] || fail "no gradients"
