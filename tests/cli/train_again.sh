#!/usr/bin/env bash
# Ranks that torchrun or srun start on one machine: the exit codes say whether another start is worth it, and such a start
# goes on with the bits of a run that was never disturbed.
. "$(dirname "$0")/common.bash"
cd "$scratch"
compare=$SLUICE_SUPPORT/compare
head -c 20000 "$SLUICE_SOURCE/examples/demo/tales.txt" >text.txt
train=("$SLUICE" train --data.text=text.txt --model.n_layer=4 --model.n_embd=32 --batch.seq=32 --batch.size=8
       --batch.microbatches=2 --log.progress=off --checkpoint.every=5)

# as LAUNCHER RANK RESTART COMMAND...: the command with the variables that this launcher gives to a rank of two.
as() {
    local launcher=$1 rank=$2 restart=$3
    shift 3
    case $launcher in
    torchrun) exec env RANK="$rank" WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$$ \
        TORCHELASTIC_RESTART_COUNT="$restart" TORCHELASTIC_MAX_RESTARTS=3 "$@" ;;
    srun) exec env SLURM_PROCID="$rank" SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NUM_NODES=1 SLURM_JOB_ID=$$ SLURM_STEP_ID="$restart" \
        SLURM_RESTART_COUNT="$restart" "$@" ;;
    esac
}

one_rank() { (as "$@"); }

# Two ranks in the background; their pids are in pids.
start() { # start LAUNCHER RESTART OPTIONS...
    local launcher=$1 restart=$2 rank
    shift 2
    pids=()
    for rank in 0 1; do
        as "$launcher" "$rank" "$restart" "${train[@]}" --parallel.pp=2 "$@" >>"$out" 2>>"$err" </dev/null &
        pids+=($!)
    done
}

for launcher in torchrun srun; do
    for victim in 0 1; do
        folder=$launcher.$victim
        start $launcher 0 --run.out=$folder --run.steps=1000000 --resume
        for _ in $(seq 600); do ! compgen -G "$folder/checkpoints/step-????????/manifest.json" >/dev/null || break; sleep 0.05; done
        kill -KILL "${pids[victim]}"
        for rank in 0 1; do
            code=0
            wait "${pids[rank]}" 2>/dev/null || code=$?
            [ $rank -eq $victim ] && wanted=137 || wanted=75
            [ $code -eq $wanted ] || fail "exit code $code of rank $rank instead of $wanted"
        done
        steps=$(($(wc -l <$folder/metrics.jsonl) + 20))
        start $launcher 1 --run.out=$folder --run.steps=$steps --resume
        for pid in "${pids[@]}"; do wait "$pid" || fail "the second start ended with $?"; done
        grep -q '"restart":1,"from":"checkpoint","ranks":2,"reason":""' $folder/metrics.jsonl || fail "the metrics do not tell of the restart"
        run 0 "${train[@]}" --run.out=$folder.straight --run.steps=$steps
        step=$(printf 'step-%08d' $steps)
        run 0 "$compare" metrics $folder.straight/metrics.jsonl $folder/metrics.jsonl
        run 0 "$compare" checkpoints $folder.straight/checkpoints/$step $folder/checkpoints/$step
    done

    # What would come again is not worth another start: all ranks say so.
    start $launcher 0 --run.out=$launcher.nan --run.steps=1000 --optimizer.lr=1e6 --optimizer.clip=0
    for pid in "${pids[@]}"; do
        code=0
        wait "$pid" 2>/dev/null || code=$?
        [ $code -eq 1 ] || fail "exit code $code instead of 1"
    done
    run 2 one_rank $launcher 0 0 "${train[@]}" --parallel.pp=2 --run.out=$launcher.restarts --restarts 3
    complains "--restarts: these ranks were not started by this command"
done
