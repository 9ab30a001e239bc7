# Shared by the scripts that test a GPU: skips without one, runs cases beside each other, starts and ends MPS.
. "$(dirname "${BASH_SOURCE[0]}")/../cli/common.bash"
compare=$SLUICE_SUPPORT/compare

data=$SLUICE_DATA/models/gpt2-tiny
if ! "$SLUICE" eval --device cuda --model "$data" --tokens "$data/tokens.bin" --batch 1 --seq 8 --steps 1 >"$out" 2>"$err"; then
    grep -qE 'no GPU that can be used|libsluice_cuda' "$err" || fail "eval on the GPU failed"
    cat "$err"
    exit 77
fi

# ---- Cases beside each other ----------------------------------------------------------------------

at_once=${SLUICE_GPU_JOBS:-2} # without MPS processes take turns on the GPU: more at once take longer
: >"$scratch/results"
started=0

# start FUNCTION...: runs a case in the background, at most $at_once at a time. It prints one line, "ok ..." or why not, which is
# shown as soon as it comes, with the time that the case took.
start() {
    while [ "$(jobs -rp | wc -l)" -ge "$at_once" ]; do
        wait -n || true
    done
    timed_case "$@" &
    started=$((started + 1))
}

timed_case() {
    local began said
    began=$(date +%s%N)
    said=$("$@")
    echo "$said" >>results
    echo "$said ($((($(date +%s%N) - began) / 1000000)) ms)"
}

# finish WHAT: waits for all cases and fails if one was not ok.
finish() {
    wait
    local good
    good=$(grep -c '^ok ' results || true)
    if [ "$good" -ne "$started" ]; then
        grep -v '^ok ' results | head -60 >&2 || true
        echo "FAILED: $1: $((started - good)) of $started cases" >&2
        exit 1
    fi
    echo "$1: $good cases"
    : >results
    started=0
}

# ---- MPS ------------------------------------------------------------------------------------------

# start_mps: processes started after it share the GPU without time slices. False, with the reason printed, if that cannot be.
start_mps() {
    if [ -n "${CUDA_MPS_PIPE_DIRECTORY:-}" ]; then
        echo "MPS: the daemon that runs already"
        return 0
    fi
    command -v nvidia-cuda-mps-control >/dev/null || { echo "MPS: not installed here, its cases are left out"; return 1; }
    mkdir -p "$scratch/mps"
    export CUDA_MPS_PIPE_DIRECTORY=$scratch/mps CUDA_MPS_LOG_DIRECTORY=$scratch/mps
    if nvidia-cuda-mps-control -d >"$scratch/mps/start" 2>&1; then
        trap 'stop_mps; rm -rf "$scratch"' EXIT
        return 0
    fi
    unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
    echo "MPS: it does not start here, its cases are left out: $(head -1 "$scratch/mps/start")"
    return 1
}

stop_mps() {
    [ "${CUDA_MPS_PIPE_DIRECTORY:-}" = "$scratch/mps" ] || return 0
    echo quit | timeout 20 nvidia-cuda-mps-control >/dev/null 2>&1 || true
    unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
}
