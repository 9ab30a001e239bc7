#!/usr/bin/env bash
# sluice info: what it knows it describes, what it does not know it does not call something else.
. "$(dirname "$0")/common.bash"
cd "$scratch"
models=$SLUICE_DATA/models

# Without a file: the version, the devices and NCCL, or why there is none, and how messages go.
run 0 "$SLUICE" info
prints 'version       '
grep -qE '^cpu           cpu: ' "$out" || fail "the processor is not described"
grep -qE '^cuda          (cuda:0: |device cuda: libsluice_cuda.so |cuda: there is no GPU)' "$out" || fail "the GPU is not described"
grep -qE '^nccl          (2\.[0-9.]+$|libsluice_nccl.so |NCCL is not installed: )' "$out" || fail "NCCL is not described"
grep -qE '^messages      (host memory: there is no GPU$|device memory on one machine, (NCCL 2|host memory \()|(NCCL|host memory).*: .)' "$out" ||
    fail "the way of messages is not described"
run 0 env SLUICE_PLUGIN_PATH=/nowhere "$SLUICE" info --format json
json_is version "$("$SLUICE" --version | grep -oE '[0-9]+\.[0-9.]+' | head -1)"
run 1 "$SLUICE" eval --device cuda:7 --model "$models/gpt2-tiny" --tokens "$models/gpt2-tiny/tokens.bin" --batch 1 --seq 8
complains cuda
run 2 "$SLUICE" eval --device gpu --model "$models/gpt2-tiny" --tokens "$models/gpt2-tiny/tokens.bin" --batch 1 --seq 8
complains 'device gpu: there are cpu, cuda, cuda:INDEX and auto'
run 0 "$SLUICE" eval --device auto --model "$models/gpt2-tiny" --tokens "$models/gpt2-tiny/tokens.bin" --batch 1 --seq 8 --steps 1

# Files of others, under any name.
cp "$SLUICE" program.bin
run 1 "$SLUICE" info "$SLUICE"
complains 'it is a program or library (ELF)'
run 1 "$SLUICE" info program.bin
complains 'it is a program or library (ELF)'
printf 'PK\003\004rest of it' >weights.bin
run 1 "$SLUICE" info weights.bin
complains 'zip archive'
printf 'A\000B\000C\000' >data
run 1 "$SLUICE" info data
complains 'a name that ends in .bin'
cp data data.bin
run 0 "$SLUICE" info data.bin
prints 'kind          token file'

# Broken safetensors stay safetensors.
printf 'these are no tensors' >broken.safetensors
run 1 "$SLUICE" info broken.safetensors
complains 'broken.safetensors: a header of'
head -c 100 "$models/gpt2-tiny/reference.safetensors" >cut.safetensors
run 1 "$SLUICE" info cut.safetensors
complains 'past the end of the file'
: >empty.safetensors
run 1 "$SLUICE" info empty.safetensors
complains empty.safetensors

# Text need not be ASCII; llm.c's tokens have a header and need no name.
printf 'na\303\257ve \342\202\254 text\n%s' "$(printf 'x%.0s' {1..60})" >text
run 0 "$SLUICE" info text
prints 'kind          text'
printf '\303\257%.0s' {1..33} >umlauts # the head ends inside a character
run 0 "$SLUICE" info umlauts
prints 'kind          text'
mkdir letters
printf '{"a":0,"b":1}' >letters/vocab.json
printf '#version: 0.2\n' >letters/merges.txt
printf 'abba' >abba.txt
run 0 "$SLUICE" tokenize -t letters -f llmc -o tokens abba.txt
run 0 "$SLUICE" info tokens
prints 'format        llmc'

# Exported JSON ends in a newline, and so does every other JSON file.
run 0 "$SLUICE" export -m "$models/gpt2-tiny" -o model --shard-gb 0.001
"$SLUICE" show --schedule GPipe --ranks 2 --microbatches 2 -o trace.json
for path in model/*.json trace.json; do
    [ "$(tail -c 1 "$path" | od -An -tx1 | tr -d ' ')" = 0a ] || fail "$path does not end in a newline"
done
