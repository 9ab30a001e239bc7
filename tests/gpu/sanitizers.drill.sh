#!/usr/bin/env bash
# compute-sanitizer's tools find nothing in the kernels: memory out of bounds, races in shared memory, barriers that not all
# threads reach, reads of what nobody wrote; in the cases of all ops, and in steps of training.
. "$(dirname "$0")/gpu.bash"
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
[ -x "$sanitizer" ] || { echo "skipped: compute-sanitizer is not installed"; exit 77; }
cd "$scratch"
shares=4

# To racecheck a bulk copy is a write of the thread that starts it, and a barrier that counts its bytes orders nothing: it
# reports every read of what was copied. So what it says of the kernels that copy so does not count.
is_clean() { # LOG
    grep -qE 'ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards' "$1" && return 0
    grep -q 'RACECHECK SUMMARY' "$1" && ! grep 'Race reported' "$1" | grep -qv '_wgmma<'
}

# check NAME TOOL COMMAND...: the command ends well, and the tool has seen it and reports nothing.
check() {
    local log=$1-$2.log code=0 options=()
    # racecheck and synccheck do not know the barriers of cuDNN's kernels for sm_90, at which some warps arrive and others
    # wait. These kernels run, unchecked.
    [[ $2 != racecheck && $2 != synccheck ]] || options=(--kernel-name-exclude kns=cudnn)
    "$sanitizer" --tool $2 "${options[@]}" "${@:3}" >"$log" 2>&1 </dev/null || code=$?
    if [ $code -eq 0 ] && is_clean "$log"; then
        echo "ok $1 $2"
    else
        echo "$2 of $1: exit code $code: $(grep -A4 -m1 -E '^=========  ?[A-Z].*(read|write|access|[Rr]ace|hazard|[Bb]arrier)' "$log" | paste -sd' ')"
    fi
}

ops() { # TOOL SHARE
    SLUICE_GPU_TEST='every_op*' SLUICE_GPU_SHARE=$2/$shares check ops-$2 $1 "$SLUICE_BUILD/tests/gpu_kernels_test"
}

# training TOOL NAME WIDTH DTYPE DROPOUT
training() {
    check train-$2 $1 "$SLUICE" train --device cuda --model.n_layer=2 --model.n_head=2 --model.n_embd=$3 \
        --data.tokens="$data/tokens.bin" --batch.size=2 --batch.seq=64 --batch.microbatches=2 --run.steps=2 \
        --run.out="$1-$2" --precision.dtype=$4 --model.dropout=$5
}

for tool in memcheck racecheck synccheck initcheck; do
    for ((share = 0; share < shares; share++)); do
        start ops $tool $share
    done
    start training $tool f32 64 f32 0.1
    # initcheck does not see the bulk stores with which cuBLASLt and cuDNN write results on sm_90, and takes every read of
    # these results for an error. Rows that are no multiple of 16 bytes are not written so. filled_memory.sh shows for all
    # of them that steps read nothing that nobody wrote.
    start training $tool bf16-odd 42 bf16 0.1
    [ $tool != initcheck ] || continue
    start training $tool bf16 64 bf16 0
    start training $tool bf16-dropout 64 bf16 0.1
done
finish "compute-sanitizer"
