#!/usr/bin/env bash
# Training data in several files: lists, folders, patterns and mixtures; the order of the rows does not depend on the
# ranks, and a resumed run goes on with the next one. What cannot be read is refused by name.
. "$(dirname "$0")/common.bash"
cd "$scratch"
compare=$SLUICE_SUPPORT/compare
text=$SLUICE_SOURCE/examples/demo/tales.txt
train() {
    local dir=$1
    shift
    "$SLUICE" train --model.n_layer=2 --model.n_embd=16 --model.n_head=2 --batch.seq=32 --batch.size=8 --batch.microbatches=2 \
        --checkpoint.every=4 --run.steps=8 --run.out="$dir" "$@"
}
same() { run 0 "$compare" metrics "$1/metrics.jsonl" "$2/metrics.jsonl"; }

# One text in three files is that text: as a folder, a pattern and a list, in the order of the names.
head -c 30000 "$text" >whole.txt
mkdir shards
split -b 11000 -d whole.txt shards/part_
run 0 train whole --data.text=whole.txt --data.order=shuffled
run 0 train folder --data.text=shards --data.order=shuffled
same whole folder
run 0 train pattern --data.text='shards/part_*' --data.order=shuffled --parallel.pp=2
same whole pattern
run 0 train list --data.text='[shards/part_00, "shards/part_0[12]"]' --data.order=shuffled
same whole list
run 0 train list --data.text=shards --dry-run --run.out=x
prints 'data      shards/part_00 and 2 more files: 30000 tokens (bytes)'

# A mixture, straight through and resumed on other ranks.
tail -c 9000 "$text" >other.txt
cat >mixed.yaml <<'YAML'
data:
  text:
    - {path: shards, weight: 3}
    - {path: other.txt, weight: 1}
  order: shuffled
  val: 10%
eval: {every: 4, batches: 2}
YAML
run 0 train mixed -c mixed.yaml
run 0 train ranks -c mixed.yaml --parallel.pp=2 --parallel.schedule=ZBVZeroBubble
same mixed ranks
rm -r ranks/checkpoints/step-00000008
run 0 train ranks -c mixed.yaml --resume
silent
same mixed ranks
run 0 "$compare" checkpoints mixed/checkpoints/step-00000008 ranks/checkpoints/step-00000008
run 0 train x -c mixed.yaml --dry-run
prints '          other.txt: 9000 tokens (bytes), 25% of the rows, '

# A change is not overlooked: of one file of many, or of a weight.
rm -r ranks/checkpoints/step-00000008
printf 'X' | dd of=shards/part_02 bs=1 seek=99 conv=notrunc status=none
run 0 train ranks -c mixed.yaml --resume
complains 'shards/part_00 and 2 more files, with what is mixed with it, has changed since the checkpoint was made'
rm -r ranks/checkpoints/step-00000008
run 0 train ranks -c mixed.yaml --resume --data.text='[{path: shards, weight: 1}, {path: other.txt, weight: 1}]'
complains 'resumed with data.text=[{path: "shards", weight: 1}, {path: "other.txt", weight: 1}]'
complains 'made with [{path: "shards", weight: 3}, {path: "other.txt", weight: 1}]'

# numpy's arrays are token files, too.
# npy TYPE COUNT DATA: as numpy writes it.
npy() {
    printf '\x93NUMPY\x01\x00\x76\x00%-117s\n' "{'descr': '$1', 'fortran_order': False, 'shape': ($2,), }"
    cat "$3"
}
head -c 10240 "$SLUICE_SOURCE/tests/data/models/gpt2-tiny/tokens.bin" >tokens.bin
npy '<u2' 5120 tokens.bin >tokens.npy
run 0 train bin --data.tokens=tokens.bin
run 0 train npy --data.tokens=tokens.npy
same bin npy
run 0 "$SLUICE" info tokens.npy --format json
json_is format npy
json_is tokens 5120
run 0 "$SLUICE" eval -m bin --tokens tokens.npy --batch 2 --seq 32 --steps 2

# A file that is cut while the run reads it ends the run with its name.
mkdir cut
for i in 0 1; do cp tokens.bin cut/$i.bin; done
train gone --data.tokens=cut --run.steps=1000000 --checkpoint.every=0 >"$out" 2>"$err" </dev/null &
run=$!
for _ in $(seq 300); do
    [ -s gone/metrics.jsonl ] && break
    sleep 0.1
done
truncate -s 100 cut/1.bin
code=0
wait $run || code=$?
[ $code -eq 1 ] || fail "exit code $code, not 1"
complains 'read cut/1.bin: it had 10240 bytes when it was opened, now it has 100'

# Refused by name.
cp cut/0.bin short.bin
truncate -s 10 short.bin
mkdir empty wide
run 1 train x --data.tokens='none_*.bin'
complains '--data.tokens=none_*.bin: no file fits the pattern none_*.bin'
run 1 train x --data.tokens=empty
complains 'the folder empty has no .bin or .npy file'
run 2 train x --data.tokens='[{path: tokens.bin, weight: 0}]'
complains 'a weight is a number above 0'
run 2 train x --data.tokens='[{path: tokens.bin, weight: 2}, {path: short.bin, weight: 1}]'
complains 'a row needs 33 tokens, short.bin has 5'
head -c 512 /dev/zero >zeros
npy '<i8' 64 zeros >wide/a.npy
cp tokens.bin wide/b.bin
run 1 train x --data.tokens=wide
complains 'wide/b.bin has tokens of the type uint16, wide/a.npy has int64; files that are read together have one type'
run 2 train x --data.tokens='[{path: wide/a.npy, weight: 1}, {path: tokens.bin, weight: 1}]'
complains 'tokens.bin has tokens of the type uint16, wide/a.npy has int64'
run 1 train x --data.tokens='[tokens.bin, cut/0.bin]' --model.vocab=40
complains 'tokens.bin: token'
complains 'past the vocabulary of 40'
