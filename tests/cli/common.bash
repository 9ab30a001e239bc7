# Shared by the command line tests: `. "$(dirname "$0")/common.bash"` gives a scratch directory and the checks below.
set -euo pipefail
export LC_ALL=C
unset SLUICE_LOG NO_COLOR COLUMNS

scratch=$(mktemp -d "${TMPDIR:-/tmp}/sluice-test-XXXXXX")
trap 'rm -rf "$scratch"' EXIT
out=$scratch/.out err=$scratch/.err

fail() {
    echo "FAILED: $*" >&2
    [ -f "$out" ] && { echo "--- stdout"; head -c 4000 "$out"; } >&2
    [ -f "$err" ] && { echo "--- stderr"; head -c 4000 "$err"; } >&2
    exit 1
}

# run CODE COMMAND...: runs it with stdout in $out and stderr in $err and checks its exit code.
run() {
    local expected=$1 code=0
    shift
    "$@" >"$out" 2>"$err" </dev/null || code=$?
    [ "$code" -eq "$expected" ] || fail "exit code $code instead of $expected: $*"
}

# prints TEXT / complains TEXT: the last run had TEXT in stdout / stderr. silent: it had nothing in stderr.
prints() { grep -qF -- "$1" "$out" || fail "stdout lacks: $1"; }
complains() { grep -qF -- "$1" "$err" || fail "stderr lacks: $1"; }
silent() { [ ! -s "$err" ] || fail "stderr is not empty"; }

# json_is PATH VALUE: the last run printed JSON that has VALUE at PATH (see json_get.c).
json_is() {
    local value
    value=$("$SLUICE_SUPPORT/json_get" "$1" <"$out") || fail "stdout is no JSON with $1"
    [ "$value" = "$2" ] || fail "$1 is $value, not $2"
}

# tokens_at MODEL PLACE: the tokens of a model of tests/data/models from a place of its places.json on.
tokens_at() {
    local folder=$SLUICE_DATA/models/$1 first
    first=$((2 * $2 * $("$SLUICE_SUPPORT/json_get" stride <"$folder/places.json")))
    tail -c +$((first + 1)) "$folder/tokens.bin"
    head -c $first "$folder/tokens.bin"
}

# within SECONDS COMMAND...: `run 0`, in less processor time than that. The best of five turns: other processes take the
# caches and the clock rate of this one, for a while. Not under a sanitizer, which slows everything down.
within() {
    local limit=$1 TIMEFORMAT='%U %S'
    shift
    for _ in 1 2 3 4 5; do
        { time run 0 "$@" 2>&3; } 3>&2 2>"$scratch/times"
        ! awk -v limit="$limit" '{ exit !($1 + $2 < limit) }' "$scratch/times" || return 0
    done
    fail "$limit seconds or more: $*"
}
sanitized() { grep -qE '^SLUICE_SANITIZE:STRING=.+' "$SLUICE_BUILD/CMakeCache.txt"; }
