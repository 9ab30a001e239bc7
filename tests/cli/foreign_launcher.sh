# Ranks that torchrun or srun start on one machine: whatever goes wrong is printed, and printed once.
. "$(dirname "$0")/common.bash"
cd "$scratch"
head -c 20000 "$SLUICE_SOURCE/examples/demo/tales.txt" >text.txt

train=("$SLUICE" train --data.text=text.txt --model.n_layer=4 --model.n_embd=16 --model.n_head=2 --batch.seq=16
       --batch.size=4 --batch.microbatches=2 --parallel.pp=3 --log.progress=off)

# as LAUNCHER RANK COMMAND...: the command with the variables that this launcher gives to a rank of three.
as() {
    local launcher=$1 rank=$2
    shift 2
    case $launcher in
    torchrun) exec env RANK="$rank" WORLD_SIZE=3 LOCAL_WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=$$ "$@" ;;
    srun) exec env SLURM_PROCID="$rank" SLURM_STEP_NUM_TASKS=3 SLURM_STEP_NUM_NODES=1 SLURM_JOB_ID=$$ SLURM_STEP_ID=1 "$@" ;;
    esac
}

# ranks LAUNCHER COMMAND...: three ranks with one output; their pids are in pids.
ranks() {
    local launcher=$1 rank
    shift
    : >"$out"
    : >"$err"
    pids=()
    for rank in 0 1 2; do
        as "$launcher" "$rank" "$@" >>"$out" 2>>"$err" </dev/null &
        pids+=($!)
    done
}

# all_end CODE: the ranks end, those that were not killed with CODE.
all_end() {
    local pid code
    for pid in "${pids[@]}"; do
        code=0
        wait "$pid" 2>/dev/null || code=$?
        [ "$code" -eq "$1" ] || [ "$code" -eq 137 ] || fail "exit code $code instead of $1"
    done
}

printed_once() { # printed_once PATTERN
    grep -q -- "$1" "$err" || fail "nobody says: $1"
    [ "$(grep -c "^sluice train: " "$err")" -eq 1 ] || fail "it is said more than once"
}

for launcher in torchrun srun; do
    ranks "$launcher" "${train[@]}" --run.steps=3 --run.out="$launcher.well"
    all_end 0
    silent

    # A failure of one rank's own: the last one sees the loss.
    ranks "$launcher" "${train[@]}" --run.steps=30 --optimizer.lr=1e6 --optimizer.warmup=0 --optimizer.clip=0 --run.out="$launcher.nan"
    all_end 1
    printed_once "step [0-9]*: \|step [0-9]*): the loss is"

    # A death: whoever is left says it.
    for victim in 0 2; do
        ranks "$launcher" "${train[@]}" --run.steps=100000 --run.out="$launcher.$victim"
        for _ in $(seq 400); do [ -s "$launcher.$victim/metrics.jsonl" ] && break; sleep 0.05; done
        kill -KILL "${pids[victim]}"
        all_end 75
        printed_once "rank $victim died; last doing: "
    done

    # Before the ranks have found each other.
    ranks "$launcher" "${train[@]}" --run.steps=3 --parallel.pp=2 --run.out="$launcher.wrong"
    all_end 2
    printed_once "3 ranks were started, wanted are 2"
done
