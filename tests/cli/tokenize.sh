#!/usr/bin/env bash
# sluice tokenize: text to token files of every form and back, and what it refuses.
. "$(dirname "$0")/common.bash"
cd "$scratch"

# A tokenizer for lower-case letters and the blank: ids 0-25 and 26, "th" 27, "the" 28, the blank and "the" 29.
mkdir tok
{
    printf '{'
    i=0
    for letter in {a..z}; do
        printf '"%s":%d,' "$letter" "$i"
        i=$((i + 1))
    done
    printf '"Ġ":26,"th":27,"the":28,"Ġthe":29,"<|endoftext|>":30}'
} >tok/vocab.json
printf '#version: 0.2\nt h\nth e\nĠ the\n' >tok/merges.txt

printf 'the the a' >text.txt
run 0 "$SLUICE" tokenize --tokenizer tok -o text.bin text.txt
prints "9 bytes, 4 tokens: text.bin"
silent
[ "$(od -An -tu2 text.bin | xargs)" = "28 29 26 0" ] || fail "the tokens are $(od -An -tu2 text.bin)"
for format in nanogpt llmc llmc-u32; do
    run 0 "$SLUICE" tokenize -t tok -f "$format" --end -o "$format.bin" text.txt
    run 0 "$SLUICE" tokenize -t tok --decode "$format.bin"
    [ "$(cat "$out")" = "the the a<|endoftext|>" ] || fail "$format comes back as $(cat "$out")"
done
[ "$(stat -c %s llmc.bin)" -eq $((1024 + 10)) ] || fail "the llmc file has $(stat -c %s llmc.bin) bytes"
[ "$(stat -c %s llmc-u32.bin)" -eq $((1024 + 20)) ] || fail "the llmc-u32 file has $(stat -c %s llmc-u32.bin) bytes"
run 0 "$SLUICE" tokenize -t tok -d -o back.txt text.bin
cmp text.txt back.txt || fail "the text did not come back"

printf 'a<|endoftext|>b' >special.txt
run 0 "$SLUICE" tokenize -t tok --special -o special.bin special.txt
[ "$(od -An -tu2 special.bin | xargs)" = "0 30 1" ] || fail "the tokens are $(od -An -tu2 special.bin)"

run 1 "$SLUICE" tokenize -t tok -o x.bin special.txt
complains "no token for the byte 0x3c"
[ ! -e x.bin ] || fail "a failed run left its output"
run 1 "$SLUICE" tokenize -t tok -o x.bin gone.txt
complains "gone.txt"
run 1 "$SLUICE" tokenize -t nowhere -o x.bin text.txt
complains "nowhere has neither tokenizer.json nor"
printf '\377\000' >bad.bin
run 1 "$SLUICE" tokenize -t tok -d bad.bin
complains "token 0 is 255"
run 2 "$SLUICE" tokenize -t tok text.txt
complains "--output is missing"
run 2 "$SLUICE" tokenize -o x.bin text.txt
run 2 "$SLUICE" tokenize -t tok -o x.bin -f wav text.txt
run 2 "$SLUICE" tokenize -t tok -d --end text.bin
complains "--decode goes with none of"

# Many documents: files, a folder, lines, JSON, standard input; the end comes after each of them.
mkdir docs
printf 'the' >docs/1.txt
printf 'a the' >docs/2.txt
for inputs in "docs/1.txt docs/2.txt" docs; do
    run 0 "$SLUICE" tokenize -t tok --end -o many.bin $inputs
    prints "8 bytes, 2 documents, 5 tokens: many.bin"
    [ "$(od -An -tu2 many.bin | xargs)" = "28 30 0 29 30" ] || fail "the tokens are $(od -An -tu2 many.bin)"
done
printf 'the\n\na the\r\n' >lines.txt
printf '{"text": "the", "n": 1}\n{"text": "a the"}\n' >lines.jsonl
run 0 "$SLUICE" tokenize -t tok --end --lines -o lines.bin lines.txt
cmp many.bin lines.bin || fail "lines give other tokens than files"
run 0 "$SLUICE" tokenize -t tok --end --json text -o json.bin lines.jsonl
cmp many.bin json.bin || fail "JSON gives other tokens than files"
"$SLUICE" tokenize -t tok --end --lines -o stdin.bin - <lines.txt >/dev/null || fail "standard input was not taken"
cmp many.bin stdin.bin || fail "standard input gives other tokens than files"
printf '{"text": 7}\n' >bad.jsonl
run 1 "$SLUICE" tokenize -t tok --json text -o x.bin bad.jsonl
complains "bad.jsonl, line 1 has no text 'text'"
mkdir empty
run 2 "$SLUICE" tokenize -t tok -o x.bin empty
complains "the folder empty has no file"
run 2 "$SLUICE" tokenize -t tok --lines --json text -o x.bin lines.txt
complains "do not go together"

# The number of threads changes no token.
for i in $(seq 2000); do printf 'the a the  th %s\n' $((i % 7)); done | tr '0-6' 'a-g' | tr '\n' ' ' >long.txt
cat long.txt long.txt long.txt long.txt >longer.txt
for threads in 1 2 3 7; do
    run 0 "$SLUICE" tokenize -t tok --threads $threads -o "long.$threads.bin" longer.txt
    cmp long.1.bin "long.$threads.bin" || fail "$threads threads give other tokens"
done

# The threads share the work: with all documents in one batch and with one that is larger than a batch.
for i in $(seq 60); do cat longer.txt; done | tr -d '\n' >one.txt
run 0 "$SLUICE" tokenize -t tok --threads 1 -o one.1.bin one.txt
run 0 "$SLUICE" tokenize -t tok -o one.bin one.txt
cmp one.1.bin one.bin || fail "all cores give other tokens than one thread"

# On a terminal it says how far it is, and clears the line; elsewhere it says nothing.
silent
script -qec "'$SLUICE' tokenize -t tok -o one.bin longer.txt one.txt" typescript >/dev/null || fail "it fails on a terminal"
grep -aqE '[0-9.]+ MiB, [0-9]+ tokens, [0-9.]+ MiB/s' typescript || fail "no progress on a terminal"
grep -aq "tokens: one.bin" typescript || fail "no result on a terminal"
