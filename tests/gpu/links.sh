#!/usr/bin/env bash
# `sluice train` on ranks that share one GPU: the losses and checkpoints of one rank, bit for bit, as threads and as
# processes, under named schedules and one that was searched for. matrix_test.c has all schedules.
. "$(dirname "$0")/gpu.bash"
cd "$scratch"
head -c 20000 "$SLUICE_SOURCE/examples/demo/tales.txt" >text.txt
arguments=(train --device cuda --data.text=text.txt --model.n_layer=8 --model.n_embd=64 --model.n_head=4 --batch.seq=32 --batch.size=8
    --batch.microbatches=8 --log.progress=plain --run.steps=4)

# way_environment WAY: what chooses how messages go.
way_environment() {
    case $1 in
    device) echo SLUICE_DEVICE_LINKS= ;; # the default
    host) echo SLUICE_DEVICE_LINKS=0 ;;
    esac
}

# train_case SCHEDULE RANKS KIND WAY: a run; its losses and weights are those of one rank.
train_case() {
    local schedule=$1 ranks=$2 kind=$3 way=$4 name="$1 on $2 ranks, $3, messages in $4 memory"
    local dir="$1-$2-$3-$4" reference=one value=$1 code=0
    [ "$schedule" != LoopedBFS ] || reference=one-LoopedBFS # it goes backward through the microbatches in falling order
    [ ! -e "$schedule-$ranks.csv" ] || value=$schedule-$ranks.csv
    env "$(way_environment "$way")" timeout 40 "$SLUICE" "${arguments[@]}" --run.out="$dir" --parallel.pp="$ranks" --parallel.schedule="$value" \
        --ranks-as "$kind" >"$dir.out" 2>"$dir.err" </dev/null || code=$?
    if [ $code -ne 0 ]; then
        echo "$name: exit code $code: $(head -c 300 "$dir.err" | head -2 | tr '\n' ' ')"
    elif [ "$ranks" -gt 1 ] && ! grep -q "messages $way memory" "$dir.out"; then
        echo "$name: it says $(grep -o 'messages .*' "$dir.out")"
    elif ! "$compare" metrics "$reference/metrics.jsonl" "$dir/metrics.jsonl" >"$dir.diff" 2>&1; then
        echo "$name: other losses: $(head -1 "$dir.diff")"
    elif ! "$compare" checkpoints "$reference/checkpoints/step-00000004" "$dir/checkpoints/step-00000004" >"$dir.diff" 2>&1; then
        echo "$name: other weights: $(head -1 "$dir.diff")"
    else
        echo "ok $name"
    fi
    rm -rf "$dir"
}

run 0 "$SLUICE" plan --auto --placement v --ranks 4 --microbatches 8 --costs F=1,I=1.1,W=0.9,comm=0.1 -o auto-4.csv
run 0 "$SLUICE" "${arguments[@]}" --run.out=one
run 0 "$SLUICE" "${arguments[@]}" --run.out=one-LoopedBFS --parallel.schedule=LoopedBFS
start train_case ZBVZeroBubble 4 threads device
start train_case LoopedBFS 2 threads device
SLUICE_OVERLAP=on start train_case DualPipeV 2 processes device # ranks that share a GPU do not overlap by themselves
start train_case auto 4 processes device
start train_case 1F1B 2 threads host
start train_case Interleaved1F1B 2 processes host
finish "runs on several ranks"
if start_mps; then
    start train_case 1F1B 4 processes device
    finish "runs with MPS"
fi
