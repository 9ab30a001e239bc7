#!/usr/bin/env bash
# Two machines, really: mpirun over two hosts. The bits of one machine, traffic on the network between them alone, hosts that
# disappear, folders that are not shared, and a run that goes on with one host.
. "$(dirname "$0")/common.bash"
. "$(dirname "$0")/hosts.bash"
needs mpirun
[ -f "$SLUICE_BUILD/libsluice_mpi_openmpi.so" ] || { echo "SKIPPED: the plugin for Open MPI was not built" >&2; exit 77; }
hosts_up 500000000 # the second host's clock is half a second ahead

cd "$scratch"
compare=$SLUICE_SUPPORT/compare
head -c 20000 "$SLUICE_SOURCE/examples/demo/tales.txt" >text.txt
arguments=(train --data.text=text.txt --data.order=shuffled --model.n_layer=4 --model.n_embd=32 --batch.size=8
           --batch.seq=32 --batch.microbatches=2 --log.progress=off)
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 SLUICE_HANG_TIMEOUT=3
# Those of docs/several-machines.md, for a hang timeout of 3 s; and the agent that takes ssh's place.
options=(--mca plm_rsh_agent "$scratch/agent" --host hosta:2,hostb:2 -x SLUICE_PLUGIN_PATH -x SLUICE_HANG_TIMEOUT
         --mca oob_tcp_keepalive_time 1 --mca oob_tcp_keepalive_intvl 1 --mca oob_tcp_keepalive_probes 3)
for host in "${hosts[@]}"; do on "$host" sysctl -qw net.ipv4.tcp_retries2=5; done

over_both() { on hosta mpirun "${options[@]}" "$SLUICE" "${arguments[@]}" --parallel.pp=2 --parallel.dp=2 "$@"; }

nothing_left() {
    local host
    for host in "${hosts[@]}"; do
        for _ in $(seq 100); do [ -n "$(host_processes "$host")" ] || break; sleep 0.1; done
        [ -z "$(host_processes "$host")" ] || fail "on $host there is left: $(host_processes "$host")"
    done
}

# ---- Bits and traffic ---------------------------------------------------------------------------
for host in "${hosts[@]}"; do
    [ "$(on "$host" ip -o link | cut -d: -f2 | cut -d@ -f1 | paste -sd' ')" = " lo  veth0" ] || fail "$host has other ways out"
done
before=$(veth_bytes)
run 0 on hosta "$SLUICE" "${arguments[@]}" --parallel.pp=2 --parallel.dp=2 --run.steps=20 --run.out=one
[ $(($(veth_bytes) - before)) -lt 10000 ] || fail "a run on one host uses the network"
before=$(veth_bytes)
run 0 over_both --run.steps=20 --run.out=both --trace 2
bytes=$(($(veth_bytes) - before))
# Activations and their gradients of 8 rows of 32 positions, 32 wide, each way in each step: they have to cross.
[ $bytes -gt $((20 * 2 * 8 * 32 * 32 * 4)) ] || fail "only $bytes bytes went over the network"
run 0 "$compare" metrics one/metrics.jsonl both/metrics.jsonl
run 0 "$compare" checkpoints one/checkpoints/step-00000020 both/checkpoints/step-00000020
# The clocks differ, the timeline does not: two steps lie within less than the difference.
span=$(grep -o '"ts":[0-9.]*' both/trace.json | cut -d: -f2 | sort -n | sed -n '1p;$p' | paste -sd' ' | awk '{ print int($2 - $1) }')
[ "$span" -lt 450000 ] || fail "two steps take $span us on the timeline"
nothing_left
echo "two hosts: $bytes bytes between them in 20 steps, bits as on one; two steps span $span us on the timeline"

# ---- Hosts that disappear -----------------------------------------------------------------------
lose_link() { on hostb ip link set veth0 down; }
find_link() { on hostb ip link set veth0 up; }
lose_processes() { on hostb pkill -KILL sluice; on hostb pkill -KILL orted; }
nothing() { :; }

# disappears NAME HOW BACK PATTERN: a long run that loses the second host, ends within 30 s and says which it was; then one
# host finishes it.
disappears() {
    local name=$1 began code=0 took job
    over_both --run.steps=100000 --checkpoint.every=10 --checkpoint.keep=3 --run.out="$name" >"$name.out" 2>"$name.err" &
    job=$!
    for _ in $(seq 600); do [ ! -e "$name/checkpoints/step-00000010/manifest.json" ] || break; sleep 0.05; done
    [ -s "$name/metrics.jsonl" ] || fail "$name did not start: $(cat "$name.err")"
    "$2"
    began=$SECONDS
    for _ in $(seq 300); do kill -0 $job 2>/dev/null || break; sleep 0.1; done
    kill -0 $job 2>/dev/null && fail "mpirun still runs 30 s after $name: $(cat "$name.err")"
    wait $job || code=$?
    took=$((SECONDS - began))
    cp "$name.err" "$err"
    [ $code -ne 0 ] || fail "exit code 0 after $name"
    grep -qE "$4" "$name.err" || fail "nobody says which host was lost"
    "$3"
    nothing_left
    steps=$(($(wc -l <"$name/metrics.jsonl") + 20))
    run 0 on hosta "$SLUICE" "${arguments[@]}" --parallel.pp=2 --parallel.dp=2 --run.steps=$steps --run.out="$name" --resume
    run 0 on hosta "$SLUICE" "${arguments[@]}" --parallel.pp=2 --parallel.dp=2 --run.steps=$steps --run.out="$name.whole"
    run 0 "$compare" checkpoints {"$name","$name.whole"}/checkpoints/"$(printf 'step-%08d' $steps)"
    echo "$name: all ended after $took s, exit code $code; one host went on to step $steps with the same bits"
}
disappears link_down lose_link find_link 'rank [23] on hostb gave no sign of life for 3 s'
disappears killed lose_processes nothing 'hostb'

# ---- Folders ------------------------------------------------------------------------------------
run 2 over_both --run.steps=20 --run.out=/tmp/own # /tmp is each host's own
complains 'rank 2 on hostb does not see what rank 0 on hosta writes to this folder: all machines have to share it'
on hosta test ! -e /tmp/own/metrics.jsonl || fail "the run had begun"

# ---- Starting again: the loop of docs/several-machines.md ---------------------------------------
rm -f again.done
(
    for _ in 1 2 3; do
        code=0
        over_both --run.steps=400 --checkpoint.every=10 --run.out=again --resume >>again.out 2>>again.err || code=$?
        case $code in 75 | 134 | 137 | 139 | 205) ;; *) break ;; esac
    done
    echo $code >again.done
) &
for _ in $(seq 600); do [ ! -e again/checkpoints/step-00000010/manifest.json ] || break; sleep 0.05; done
on hostb pkill -KILL -o sluice
for _ in $(seq 1200); do [ ! -e again.done ] || break; sleep 0.05; done
[ "$(cat again.done)" = 0 ] || fail "the run did not come back: $(cat again.err)"
run 0 "$SLUICE" "${arguments[@]}" --parallel.pp=2 --parallel.dp=2 --run.steps=400 --run.out=straight
run 0 "$compare" checkpoints straight/checkpoints/step-00000400 again/checkpoints/step-00000400
run 0 "$compare" metrics straight/metrics.jsonl again/metrics.jsonl
nothing_left

# ---- The host itself goes -----------------------------------------------------------------------
power_off() { host_dies hostb; }
host_processes() { [ "$1" = hostb ] || on "$1" ps -eo pid,args --no-headers | grep -vE '^ *1 |sleep 1000|ps -eo' || true; }
disappears power_off power_off nothing 'rank [23] on hostb gave no sign of life for 3 s|hostb'
