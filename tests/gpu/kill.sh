#!/usr/bin/env bash
# `sluice train` on ranks that share one GPU and are killed, stopped or fail at random moments of a step: everybody ends, in
# time, with a message that says who and where, and nothing is left. failure_test.c has more moments.
. "$(dirname "$0")/gpu.bash"
cd "$scratch"
limit_ms=1000 # from the event to the end of the last process; a stopped rank has the hang timeout before
hang_timeout=2
at_once=2
cp "$SLUICE_DATA/models/gpt2-tiny/tokens.bin" tokens.bin
arguments=(train --device cuda --model.vocab=257 --model.n_layer=8 --model.n_embd=64 --model.n_head=4 --batch.seq=32 --batch.size=8 --batch.microbatches=8
    --parallel.schedule=ZBVZeroBubble --log.progress=off --log.peak_gflops=1000 --run.steps=1000000 --hang-timeout=$hang_timeout)

# The launcher, the ranks' keeper, the ranks: one, or all of them in one.
family() {
    local keeper
    echo "$1"
    keeper=$(pgrep -P "$1" || true)
    [ -z "$keeper" ] || { echo "$keeper"; pgrep -P "$keeper" || true; }
}

# A process whose first thread is a zombie lives on while others of its threads take down what it had of the GPU.
lives() {
    local threads=("/proc/$1/task"/*)
    [ ${#threads[@]} -gt 1 ] || { [ -e "/proc/$1/stat" ] && [ "$(sed 's/.*) //; s/ .*//' "/proc/$1/stat" 2>/dev/null)" != Z ]; }
}

# await_end PID...: until none of them is there, 20 s at most.
await_end() {
    local pid turn
    for ((turn = 0; turn < 2000; turn++)); do
        for pid in "$@"; do
            if lives "$pid"; then
                sleep 0.01
                continue 2
            fi
        done
        return 0
    done
    return 1
}

now_ms() { echo $(($(date +%s%N) / 1000000)); }

# position NUMBER KIND EVENT RANKS: one run and its end.
# Events: kill and stop a rank, kill the launcher, spoil the data (a rank reads a token past the vocabulary), diverge (a
# rank finds a number that is none). Ranks that are threads of one process are killed together.
position() {
    local name="$1 $3 of $2, $4 ranks" kind=$2 event=$3 ranks=$4 dir=run-$1 launcher victims victim=-1 code=0 began took expected limit=$limit_ms
    local settings=(--optimizer.lr=1e-3)
    [ "$event" != diverge ] || settings=(--optimizer.name=sgd --optimizer.clip=0 --optimizer.lr=1000 --optimizer.warmup=$((10 + RANDOM % 1000)))
    cp tokens.bin "$dir.bin"
    "$SLUICE" "${arguments[@]}" "${settings[@]}" --data.tokens="$dir.bin" --parallel.pp="$ranks" --ranks-as "$kind" \
        --run.out="$dir" >"$dir.out" 2>"$dir.err" </dev/null &
    launcher=$!
    for ((turn = 0; turn < 3000; turn++)); do
        [ "$(cat "$dir/metrics.jsonl" 2>/dev/null | wc -l)" -lt $([ $event = diverge ] && echo 1 || echo 6) ] || break
        lives $launcher || break
        sleep 0.02
    done
    mapfile -t victims < <(family $launcher)
    if ! lives $launcher && [ $event != diverge ]; then
        kill -KILL $launcher 2>/dev/null || true
        echo "$name: it did not start: $(head -c 400 "$dir.err" | tr '\n' ' ')"
        return
    fi
    if [ $kind = processes ] && ls -l "/proc/$launcher/fd" "/proc/${victims[1]:-none}/fd" 2>/dev/null | grep nvidia >"$dir.gpu"; then
        echo "$name: who waits for the ranks has opened the GPU, too"
        kill -KILL "${victims[@]}"
        return
    fi
    sleep "0.$((RANDOM % 3))$((RANDOM % 10))$((RANDOM % 10))"
    began=$(now_ms)
    case $event in
    kill | stop)
        victim=0
        [ $kind = threads ] || victim=$((2 + RANDOM % ranks))
        kill -s ${event^^} "${victims[victim]}"
        ;;
    launcher) kill -KILL $launcher ;;
    spoil) tr '\0-\377' '\377' <tokens.bin | dd of="$dir.bin" conv=notrunc status=none ;;
    esac
    await_end "${victims[@]}" || { echo "$name: still there after 20 s: $(head -c 300 "$dir.err")"; kill -KILL "${victims[@]}"; return; }
    took=$(($(now_ms) - began))
    [ $event != diverge ] || took=$(($(now_ms) - $(stat -c %.3Y "$dir/metrics.jsonl" | tr -d .)))
    wait $launcher || code=$?
    case $kind-$event in
    processes-kill) expected="rank $((victim - 2)) was killed by signal 9 .*; last doing: step [0-9]*[ ,]" ;;
    processes-stop) expected="rank $((victim - 2)) gave no sign of life for $hang_timeout s; last doing: rank $((victim - 2)): step [0-9]*[ ,]" ;;
    *-spoil) expected="rank [0-$((ranks - 1))] failed: .*$dir.bin: token [0-9]* (byte offset [0-9]*) is 65535, past the vocabulary of 257" ;;
    *-diverge) expected="rank [0-$((ranks - 1))] failed: .* is -\\?\\(nan\\|inf\\)" ;;
    *) expected= ;;
    esac
    [ $event != stop ] || limit=$((limit_ms + 1000 * hang_timeout))
    if [ $code -eq 0 ]; then
        echo "$name: exit code 0"
    elif [ -n "$expected" ] && ! grep -q -- "$expected" "$dir.err"; then
        echo "$name: exit code $code; it does not say '$expected' but: $(head -c 400 "$dir.err" | tr '\n' ' ')"
    elif [ $took -gt $limit ]; then
        echo "$name: $took ms to the end"
    else
        echo "ok $name: $took ms, exit code $code: $(head -c 200 "$dir.err" | head -1)"
    fi
    rm -rf "$dir"
}

# positions COUNT: events in turn, as processes and threads, on 4 and 2 ranks.
positions() {
    local i events=('processes kill' 'processes stop' 'threads spoil' 'processes diverge' 'processes launcher'
        'processes kill' 'threads kill' 'processes spoil' 'threads diverge' 'processes kill')
    for ((i = 0; i < $1; i++)); do
        start position $i ${events[i % 10]} $((i / 10 % 2 ? 2 : 4))
    done
}

# nothing_is_left: no process of ours, no shared object, no memory of the GPU; and the next run starts and ends.
nothing_is_left() {
    local turn
    ! pgrep -f "run.out=run-" >/dev/null || fail "a process is left: $(pgrep -af 'run.out=run-' | head -3)"
    diff <(ls /dev/shm) shm_before >"$out" || fail "shared memory is left"
    for ((turn = 0; turn < 50; turn++)); do
        [ "$(memory_used)" -gt "$memory_before" ] || break
        sleep 0.1
    done
    [ "$(memory_used)" -le "$memory_before" ] || fail "memory of the GPU is left: $(memory_used) MiB in use, $memory_before before"
    run 0 "$SLUICE" "${arguments[@]}" --data.tokens=tokens.bin --parallel.pp=4 --ranks-as threads --run.steps=6 --run.out=next
    run 0 "$SLUICE" "${arguments[@]}" --data.tokens=tokens.bin --parallel.pp=4 --run.steps=6 --run.out=next --overwrite
}

memory_used() { nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits | awk '{ sum += $1 } END { print sum }'; }

ls /dev/shm >shm_before
memory_before=$(memory_used)

positions 10
finish "kills, stops and faults"
nothing_is_left
