#!/usr/bin/env bash
# 100 moments at which a rank is killed, is stopped, hangs, leaves or finds an error (failure_test.c), several beside each
# other. SLUICE_GPU_SHARE=K/N runs those whose number is K modulo N. Afterwards no process, no shared object and no memory of
# the GPU is left, and a run starts and ends as before.
. "$(dirname "$0")/gpu.bash"
cd "$scratch"
at_once=${SLUICE_GPU_JOBS:-2}
share=${SLUICE_GPU_SHARE:-0/1}
test=$SLUICE_BUILD/tests/gpu_failure_test

memory_used() { nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits | awk '{ sum += $1 } END { print sum }'; }
ls /dev/shm >shm_before
memory_before=$(memory_used)

# part NUMBER: one of the shares of this share. Each position is printed as it ends, and why it failed.
part() {
    local own=${share%/*} shares=${share#*/}
    if SLUICE_GPU_LOCK=lock SLUICE_GPU_POSITIONS=100 SLUICE_GPU_SHARE=$((own + shares * $1))/$((shares * at_once)) "$test" 2>&1 >/dev/null |
        sed -u 's/^/    /' >&2; then
        echo "ok part $1"
    else
        echo "part $1"
    fi
}

for ((i = 0; i < at_once; i++)); do
    start part "$i"
done
finish "shares of the positions"

! pgrep -f "$test" >/dev/null || fail "a process is left: $(pgrep -af "$test" | head -3)"
diff <(ls /dev/shm) shm_before >"$out" || fail "shared memory is left"
for ((turn = 0; turn < 50; turn++)); do
    [ "$(memory_used)" -gt "$memory_before" ] || break
    sleep 0.1
done
[ "$(memory_used)" -le "$memory_before" ] || fail "memory of the GPU is left: $(memory_used) MiB in use, $memory_before before"
run 0 "$SLUICE" train --device cuda --model.vocab=257 --model.n_layer=8 --model.n_embd=64 --model.n_head=4 --batch.seq=32 --batch.size=8 \
    --batch.microbatches=8 --parallel.schedule=ZBVZeroBubble --parallel.pp=2 --log.progress=off --log.peak_gflops=1000 --run.steps=6 --run.out=next \
    --data.tokens="$data/tokens.bin"
