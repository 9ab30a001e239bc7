#!/usr/bin/env bash
# The program as a whole: help, version, man pages and completion of every command; lost output.
. "$(dirname "$0")/common.bash"

run 0 "$SLUICE" --version
grep -qE '^sluice [0-9]+\.[0-9]+\.[0-9]+$' "$out" || fail "--version"
run 2 "$SLUICE"
complains "usage: sluice COMMAND"
run 2 "$SLUICE" frobnicate
complains "there is no command 'frobnicate'"
run 2 "$SLUICE" --frobnicate
complains "there is no option '--frobnicate'"
for help in --help -h help; do
    run 0 "$SLUICE" $help
    prints "usage: sluice COMMAND"
    cp "$out" "$scratch/help"
done

# The commands, as completion gives them; each explains itself on every way.
mapfile -t commands < <("$SLUICE" --words | grep -v '^-')
[ ${#commands[@]} -ge 3 ] || fail "completion knows no commands"
for command in "${commands[@]}"; do
    grep -q "^  $command " "$scratch/help" || fail "--help does not list $command"
    run 0 "$SLUICE" "$command" --help
    silent
    prints "usage: sluice $command"
    prints "Example:"
    grep -q "^  .*sluice .*$command" "$out" || fail "the help of $command has no example"
    [ "$(wc -L <"$out")" -le 110 ] || fail "the help of $command is too wide"
    cp "$out" "$scratch/text"
    run 0 "$SLUICE" help "$command"
    cmp "$out" "$scratch/text" || fail "help $command differs from $command --help"
    run 0 "$SLUICE" "$command" --man
    cp "$out" "$scratch/sluice-$command.1"
    for option in $("$SLUICE" "$command" --words=); do
        grep -qF -- "$option" "$scratch/text" || fail "the help of $command lacks $option"
        grep -qF -- "${option//-/\\-}" "$scratch/sluice-$command.1" || fail "the man page of $command lacks $option"
    done
done
"$SLUICE" --man >"$scratch/sluice.1"
for page in "$scratch"/*.1; do
    man --warnings -l "$page" >"$out" 2>"$err" || fail "man cannot read $(basename "$page")"
    silent
    prints NAME
done

# The examples in the help of the schedule commands run as they stand, one after the other.
mkdir "$scratch/examples"
cd "$scratch/examples"
"$SLUICE" show --schedule GPipe --ranks 2 --microbatches 2 -o trace.json
printf 'text that is long enough for a batch of the plan, again and again. %.0s' {1..200} >text.txt
printf 'model: {n_layer: 4, n_embd: 32, n_head: 2}\ndata: {text: text.txt}\nbatch: {seq: 32}\n' >run.yaml
cp run.yaml llama.yaml
printf 'machines: 1\ndevices: 2\nmemory: 1GB\nflops: 1e11\nbandwidth: 1e10\n' >cluster.yaml
printf 'inside: {latency: 1e-6, bandwidth: 1e9}\nbetween: {latency: 1e-5, bandwidth: 1e8}\n' >>cluster.yaml
for command in plan check show; do
    "$SLUICE" $command --help | sed -n '/^Example:/,$s/^  //p' >"$scratch/lines"
    while read -r line; do
        run 0 bash -c "set -o pipefail; sluice() { \"\$0\" \"\$@\"; }; $line" "$SLUICE"
    done <"$scratch/lines"
done
cd - >/dev/null

# Completion in a shell: commands, options, values, files.
complete_line() {
    PATH=$(dirname "$SLUICE"):$PATH bash -c '
        . "$1"
        COMP_WORDS=("${@:2}") COMP_CWORD=$(($# - 2))
        _sluice
        printf "%s\n" "${COMPREPLY[@]}"' - "$SLUICE_SOURCE/tools/completion/sluice.bash" "$@" >"$out" 2>"$err"
}
complete_line sluice pl
[ "$(cat "$out")" = plan ] || fail "sluice pl<TAB>"
complete_line sluice plan --sta
[ "$(cat "$out")" = --stages-per-rank ] || fail "sluice plan --sta<TAB>"
complete_line sluice plan --schedule Dual
[ "$(cat "$out")" = DualPipeV ] || fail "sluice plan --schedule Dual<TAB>"
complete_line sluice check x.csv --format j
[ "$(cat "$out")" = json ] || fail "sluice check --format j<TAB>"
touch "$scratch/plan.csv"
complete_line sluice check "$scratch/pl"
[ "$(cat "$out")" = "$scratch/plan.csv" ] || fail "sluice check FILE<TAB>"
complete_line sluice show -o "$scratch/pl"
[ "$(cat "$out")" = "$scratch/plan.csv" ] || fail "sluice show -o FILE<TAB>"

complete_line sluice check x.csv --format = j
[ "$(cat "$out")" = json ] || fail "sluice check --format=j<TAB>"
complete_line sluice plan --schedule =
grep -qx DualPipeV "$out" || fail "sluice plan --schedule=<TAB>"
complete_line sluice bench sch
[ "$(cat "$out")" = schedule ] || fail "sluice bench sch<TAB>"
complete_line sluice bench schedule --micro
[ "$(cat "$out")" = --microbatches ] || fail "sluice bench schedule --micro<TAB>"
complete_line sluice bench schedule --format j
[ "$(cat "$out")" = json ] || fail "sluice bench schedule --format j<TAB>"

# Output that does not arrive: a reader that leaves ends it quietly, a full disk or a closed output is an error.
large=(plan --schedule GPipe --ranks 16 --microbatches 20000)
{ "$SLUICE" "${large[@]}" 2>"$err" || true; } | head -c 10 >"$out"
silent
run 1 bash -c '"$@" >/dev/full' - "$SLUICE" "${large[@]}"
complains "No space left on device"
run 1 bash -c '"$@" >/dev/full' - "$SLUICE" --version
complains "sluice: write to standard output: No space left on device"
run 1 bash -c '"$@" >&-' - "$SLUICE" --version
complains "standard output"
run 0 bash -c '"$@" >&- 2>&-' - "$SLUICE" plan --schedule GPipe --ranks 1 --microbatches 1 -o "$scratch/closed.csv"
[ "$(cat "$scratch/closed.csv")" = 0F0,0B0 ] || fail "a file written with standard output closed is wrong"
