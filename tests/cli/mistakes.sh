#!/usr/bin/env bash
# What everybody gets wrong once: the same mistake has the same exit code in every command (2: the command line is wrong,
# 1: what it names could not be used), and the message helps.
. "$(dirname "$0")/common.bash"
cd "$scratch"
head -c 5000 "$SLUICE_SOURCE/examples/demo/tales.txt" >text.txt
model=$SLUICE_DATA/models/gpt2-tiny
mkdir letters
printf '{"a":0,"b":1}' >letters/vocab.json
printf '#version: 0.2\n' >letters/merges.txt

# A file or folder that is not there.
for line in "check nowhere" "show nowhere" "info nowhere" "export -m nowhere -o x" "generate -m nowhere" \
    "eval -m nowhere --text text.txt -b 1 -t 8" "eval -m $model --text nowhere -b 1 -t 8" \
    "train --data.text=nowhere" "train --data.tokens=nowhere" "train --data.text=text.txt --model.init=nowhere" \
    "train --data.text=text.txt --parallel.schedule=nowhere.csv" "train -c nowhere" \
    "tokenize -t nowhere -o x text.txt" "tokenize -t letters -o x nowhere" "launch -n 1 nowhere"; do
    run 1 "$SLUICE" $line
    complains nowhere
done
for line in "info nowhere" "generate -m nowhere" "export -m nowhere -o x" "eval -m nowhere --text text.txt -b 1 -t 8"; do
    run 1 "$SLUICE" $line
    complains "open nowhere: No such file or directory"
done

# A file that is broken.
printf 'garbage garbage garbage' >bad.safetensors
printf '0X0\n' >bad.csv
printf 'data: "\xff"' >bad.yaml
mkdir bad
printf '{' >bad/config.json
printf '{' >bad/tokenizer.json
for line in "check bad.csv" "show bad.csv" "info bad.csv" "info bad.safetensors" "info bad" "generate -m bad" \
    "eval -m bad --text text.txt -b 1 -t 8" "export -m bad -o x" "train -c bad.yaml" \
    "train --data.text=text.txt --model.init=bad" "train --data.text=text.txt --parallel.schedule=bad.csv" \
    "tokenize -t bad -o x text.txt"; do
    run 1 "$SLUICE" $line
    complains bad
done

# A place that cannot be written.
for line in "plan --schedule GPipe --ranks 1 --microbatches 1 -o /proc/x/y" \
    "show --schedule GPipe --ranks 1 --microbatches 1 -o /proc/x/y.svg" "export -m $model -o /proc/x/y" \
    "train --data.text=text.txt --run.out=/proc/x/y" "eval -m $model --text text.txt -b 1 -t 8 --logits /proc/x/y"; do
    run 1 "$SLUICE" $line
    complains /proc/x
done

# A folder that this user may not look into. Root may look into all, so root tries it as somebody else.
mkdir locked
chmod 0 locked
other=()
[ "$(id -u)" -ne 0 ] || other=(setpriv --reuid=65534 --regid=65534 --clear-groups)
chmod 755 .
if "${other[@]}" test -x "$SLUICE"; then
    for line in "info $PWD/locked" "generate -m $PWD/locked"; do
        run 1 "${other[@]}" "$SLUICE" $line
        complains "$PWD/locked"
        complains "Permission denied"
    done
fi
chmod 700 locked

# A number out of range, a word that is none of the possible ones, an option that is not there.
for line in "plan --schedule GPipe --ranks 0 --microbatches 1" "show --schedule GPipe --ranks 0 --microbatches 1" \
    "eval -m $model --text text.txt -b 0 -t 8" "eval -m $model --text text.txt -b 1 -t 100000" \
    "generate -m $model --tokens 100000" "generate -m $model --prompt-tokens 100000" \
    "generate -m $model --prompt-tokens 1,x" "train --data.text=text.txt --run.steps=0" \
    "export -m $model -o x --dtype f8" "train --data.text=text.txt --optimizer.name=adam" "check --format xml x.csv" \
    "plan --schedule nothing --ranks 1 --microbatches 1" "train --data.text=text.txt --parallel.schedule=nothing"; do
    run 2 "$SLUICE" $line
    complains "Try 'sluice ${line%% *} --help'."
done

# A misspelled command or option: the one that was probably meant.
run 2 "$SLUICE" trian
complains "did you mean 'train'?"
run 2 "$SLUICE" xyzzy
grep -q 'did you mean' "$err" && fail "a suggestion for a word that is like none"
while read -r command given meant; do
    run 2 "$SLUICE" "$command" "$given"
    complains "did you mean '$meant'?"
done <<'PAIRS'
train --steps=5 --run.steps
train --run.step=5 --run.steps
train --stpes=5 --run.steps
train -steps=5 --run.steps
train --lr=1 --optimizer.lr
train --dryrun --dry-run
plan --rank=2 --ranks
plan --microbatchs=2 --microbatches
check --fromat=json --format
eval --modle=x --model
show --hlep --help
PAIRS
run 2 "$SLUICE" train --frobnicate
grep -q 'did you mean' "$err" && fail "a suggestion for an option that is like none"

# A variable of the environment that means nothing is a mistake of every command, whatever the device.
while read -r variable value valid; do
    for command in train eval plan info bench; do
        run 2 env "$variable=$value" "$SLUICE" $command
        complains "sluice $command: $variable is '$value': it can be $valid"
    done
done <<'VARIABLES'
SLUICE_DEVICE_LINKS fast 0, 1, nccl or mpi
SLUICE_GRAPHS sometimes on or off
VARIABLES

# Every option with a fixed set of values names them all in its help.
for command in $("$SLUICE" --words | grep -v '^-'); do
    "$SLUICE" "$command" --help >help.txt
    for option in $("$SLUICE" "$command" --words=); do
        for word in $("$SLUICE" "$command" --words="$option" | grep -v '^<'); do
            grep -A4 -e "  .*$option " help.txt | grep -qwF -- "$word" || fail "the help of $command $option lacks $word"
        done
    done
done
