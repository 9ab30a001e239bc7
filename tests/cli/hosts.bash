# Two hosts on one machine, for the drills: each has namespaces of its own for network, host name, processes, IPC, mounts
# and the monotonic clock, with a /dev/shm, a /tmp and a /run of its own. A veth pair is the only way between them. The
# folder $scratch is shared. Sourced after common.bash.
hosts=(hosta hostb)
addresses=(192.0.2.1 192.0.2.2) # TEST-NET-1; they exist in the namespaces alone
declare -A host_init=()         # process 1 of each host, as seen from outside

needs() { # needs COMMAND...: leaves the drill out if one is missing
    local command
    for command; do
        command -v "$command" >/dev/null || { echo "SKIPPED: there is no $command here" >&2; exit 77; }
    done
}

# What becomes process 1 of a host: prepares its mounts, then waits for what runs there. Arguments: name, shared folders.
host_main() {
    local name=$1 path
    shift
    mkdir -p "$scratch/$name.sys" "$scratch/$name.tmp"
    hostname "$name"
    mount --make-rprivate /
    mount -t proc proc /proc
    mount -t sysfs sysfs "$scratch/$name.sys" # shows the links of this network
    mount -t tmpfs tmpfs "$scratch/$name.tmp"
    for path; do # what the host shares stays where it is
        case $path in /tmp/*)
            mkdir -p "$scratch/$name.tmp/${path#/tmp/}"
            mount --rbind "$path" "$scratch/$name.tmp/${path#/tmp/}"
        esac
    done
    mount --rbind "$scratch/$name.tmp" /tmp
    mount -t tmpfs tmpfs /dev/shm
    mount -t tmpfs tmpfs /run
    mount --bind "$scratch/hosts" /etc/hosts
    ip link set lo up
    touch "$scratch/$name.up"
    while :; do sleep 1000 & wait $! || true; done
}

# on HOST COMMAND...: runs the command there.
on() {
    local host=$1
    shift
    nsenter -t "${host_init[$host]}" -m -u -i -n -p -T --wd="$PWD" -- "$@"
}

# hosts_up [NANOSECONDS]: makes the hosts; the clock of the second is ahead by so much.
hosts_up() {
    local i name starter
    [ "$(id -u)" -eq 0 ] || { echo "SKIPPED: only root may make namespaces here" >&2; exit 77; }
    needs unshare nsenter ip hostname
    if ! unshare -m -u -i -n -p -T --fork mount --make-rprivate / 2>"$err"; then
        echo "SKIPPED: namespaces are not allowed here: $(cat "$err")" >&2
        exit 77
    fi
    printf '127.0.0.1 localhost\n%s hosta\n%s hostb\n' "${addresses[@]}" >"$scratch/hosts"
    trap 'hosts_down; rm -rf "$scratch"' EXIT
    export scratch
    export -f host_main
    for i in 0 1; do
        name=${hosts[i]}
        # The clock can be set only before the first process of its namespace starts.
        unshare -m -u -i -n -T bash -c '
            echo "monotonic 0 $1" >/proc/self/timens_offsets
            exec unshare -p --fork --kill-child bash -euc "host_main $2 $3 $4 $5"' \
            - $((i * ${1:-0})) "$name" "$scratch" "$SLUICE_BUILD" "$SLUICE_SOURCE" >"$scratch/$name.log" 2>&1 &
        starter=$!
        for _ in $(seq 200); do [ ! -e "$scratch/$name.up" ] || break; sleep 0.05; done
        [ -e "$scratch/$name.up" ] || fail "$name did not come up: $(cat "$scratch/$name.log")"
        host_init[$name]=$(pgrep -P "$starter")
    done
    ip link add veth0 netns "${host_init[hosta]}" type veth peer name veth0 netns "${host_init[hostb]}"
    for i in 0 1; do
        on "${hosts[i]}" ip addr add "${addresses[i]}/24" dev veth0
        on "${hosts[i]}" ip link set veth0 up
    done
    start_agents
}

# host_dies HOST: all its processes at once.
host_dies() { kill -KILL "${host_init[$1]}" 2>/dev/null || true; }

hosts_down() {
    local name
    for name in "${!host_init[@]}"; do host_dies "$name"; done
    [ -z "${agents:-}" ] || kill "$agents" 2>/dev/null || true
    wait 2>/dev/null || true
}

# Bytes that have gone through the veth pair so far, both ways.
veth_bytes() {
    local counters=$scratch/hosta.sys/class/net/veth0/statistics
    echo $(($(on hosta cat $counters/rx_bytes) + $(on hosta cat $counters/tx_bytes)))
}

# Processes of a host other than its first and those that only wait for it.
host_processes() { on "$1" ps -eo pid,args --no-headers | grep -vE '^ *1 |sleep 1000|ps -eo' || true; }

# ---- The remote agent ---------------------------------------------------------------------------
# What sshd is elsewhere. From inside a host another one cannot be entered, so the agent leaves the command in the shared
# folder, a loop outside runs it, and the agent waits for its exit code.
start_agents() {
    mkfifo "$scratch/requests"
    cat >"$scratch/agent" <<END
#!/bin/bash
# agent HOST COMMAND...: a stand-in for ssh
dir=\$(mktemp -d "$scratch/request-XXXXXX")
printf '%s' "\$1" >"\$dir/host"
shift
printf '%s' "\$*" >"\$dir/command"
echo "\$dir" >"$scratch/requests"
for ((i = 0; i < 12000; i++)); do
    [ ! -e "\$dir/code" ] || { cat "\$dir/output"; exit "\$(cat "\$dir/code")"; }
    sleep 0.05
done
exit 255
END
    chmod +x "$scratch/agent"
    serve_agents &
    agents=$!
}

serve_agents() {
    trap - EXIT
    local dir
    exec 7<>"$scratch/requests"
    while read -r dir <&7; do
        (
            exec 7<&-
            code=0
            on "$(cat "$dir/host")" sh -c "$(cat "$dir/command")" >"$dir/output" 2>&1 </dev/null || code=$?
            echo "$code" >"$dir/code.new"
            mv "$dir/code.new" "$dir/code"
        ) &
    done
}
