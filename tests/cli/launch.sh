# sluice launch: environment, output, exit codes, signals, and that nothing is left behind.
. "$(dirname "$0")/common.bash"
cd "$scratch"

marker="sluice-launch-test-$$" # in the arguments of everything that must not be left
strays() { pgrep -f "$marker" | wc -l; }
nothing_left() { [ "$(strays)" -eq 0 ] || fail "processes are left: $(pgrep -af "$marker")"; }
wait_for() { # wait_for FILE...: until all are there
    local file
    for file in "$@"; do
        for _ in $(seq 600); do [ -e "$file" ] && continue 2; sleep 0.05; done
        fail "$file did not come"
    done
}
ends_with() { # ends_with CODE: the launcher in the background
    local code=0
    wait "$launcher" 2>/dev/null || code=$?
    [ "$code" -eq "$1" ] || fail "exit code $code instead of $1"
}

# Output and environment.
run 0 "$SLUICE" launch -n 3 --tag-output -- bash -c 'echo "rank $SLUICE_RANK of $SLUICE_SIZE"; printf "no newline"'
silent
[ "$(sort "$out")" = "[0] no newline
[0] rank 0 of 3
[1] no newline
[1] rank 1 of 3
[2] no newline
[2] rank 2 of 3" ] || fail "lines are tagged"
[ "$(echo "the input" | "$SLUICE" launch -n 2 --tag-output -- cat)" = "[0] the input" ] || fail "input goes to rank 0"
run 0 "$SLUICE" launch -n 1 --bind core -- bash -c 'taskset -cp $$'
[ "$(sed 's/.*: //' "$out")" = "$(taskset -cp $$ | sed 's/.*: //; s/[-,].*//')" ] || fail "rank 0 has the first core"
cores=$(nproc)
run 0 "$SLUICE" launch -n $((cores + 1)) --bind core --tag-output -- bash -c 'taskset -cp $$ | sed "s/.*: //"'
[ "$(sed -n 's/^\[0\] //p' "$out")" = "$(sed -n "s/^\[$cores\] //p" "$out")" ] || fail "cores are not counted round"
if [ "$cores" -gt 1 ]; then # each rank has its own share, unless somebody else has chosen among the cores
    mask='taskset -cp $$ | sed "s/.*: //"'
    run 0 "$SLUICE" launch -n "$cores" --tag-output -- bash -c "$mask"
    [ "$(sed 's/.*\] //' "$out" | sort -u | wc -l)" -eq "$cores" ] || fail "ranks share cores"
    all=$(taskset -cp $$ | sed 's/.*: //')
    run 0 "$SLUICE" launch -n 1 -- bash -c "$mask"
    prints "$all"
    run 0 "$SLUICE" launch -n $((cores + 1)) -- bash -c "$mask"
    [ "$(sort -u "$out")" = "$all" ] || fail "ranks are bound though there are too many"
    run 0 "$SLUICE" launch -n $((2 * cores)) --tag-output -- bash -c "$mask"
    [ "$(sed 's/.*\] //' "$out" | sort | uniq -c | awk '{ print $1 }' | sort -u)" = 2 ] || fail "a core has not two of the ranks"
    for r in 0 $((cores - 1)); do
        [ "$(sed -n "s/^\[$r\] //p" "$out")" = "$(sed -n "s/^\[$((r + cores))\] //p" "$out")" ] || fail "ranks do not go round"
    done
    run 0 "$SLUICE" launch -n 2 --bind none -- bash -c "$mask"
    [ "$(sort -u "$out")" = "$all" ] || fail "ranks are bound though none shall be"
    run 0 env SLUICE_BIND=none "$SLUICE" launch -n $((2 * cores)) -- bash -c "$mask"
    [ "$(sort -u "$out")" = "$all" ] || fail "ranks are bound though the environment says none"
    run 0 env SLUICE_BIND=none "$SLUICE" launch -n 1 --bind core -- bash -c "$mask"
    prints "${all%%[-,]*}"
    run 0 taskset -c "${all%%[-,]*}" "$SLUICE" launch -n 2 -- bash -c "$mask"
    [ "$(sort -u "$out")" = "${all%%[-,]*}" ] || fail "ranks leave the core that was given"
    if [ "$cores" -gt 2 ]; then
        run 0 taskset -c 0,1 "$SLUICE" launch -n 2 -- bash -c "$mask"
        [ "$(sort -u "$out")" = "0,1" ] || fail "ranks are bound though somebody has chosen cores for them"
    fi
fi
run 0 bash -c "ulimit -n 256; '$SLUICE' launch -n 100 -- true" # two descriptors a rank are enough

run 3 env --ignore-signal=CHLD "$SLUICE" launch -n 2 -- sh -c 'exit 3' # if its caller ignores the end of children

# One rank fails: its exit code, the cause first, the others ended.
run 7 "$SLUICE" launch -n 3 -- bash -c '[ $SLUICE_RANK = 1 ] && exit 7; exec -a "$0" sleep 1000' "$marker"
[ "$(head -1 "$err")" = "sluice launch: rank 1 exited with code 7" ] || fail "the cause comes first"
nothing_left
run 139 "$SLUICE" launch -n 2 -- bash -c '[ $SLUICE_RANK = 0 ] && kill -SEGV $$; exec -a "$0" sleep 1000' "$marker"
complains "rank 0 was killed by signal 11 (Segmentation fault)"
nothing_left
run 4 "$SLUICE" launch -n 2 --grace 1.2 -- bash -c 'trap "" TERM; [ $SLUICE_RANK = 0 ] && exit 4; exec -a "$0" sleep 1000' "$marker"
nothing_left
run 0 "$SLUICE" launch -n 2 -- bash -c '(exec -a "$0" sleep 1000) & exit 0' "$marker"
nothing_left
daemon='setsid bash -c "setsid bash -c \"exec -a \$0 sleep 1000\" \$0 & touch \$1" "$0" daemon.$SLUICE_RANK' # out of its group and session
run 0 "$SLUICE" launch -n 2 -- bash -c "$daemon; sleep 0.2" "$marker"
[ -e daemon.0 ] && [ -e daemon.1 ] || fail "the daemons did not start"
nothing_left
code=0 # output that nobody reads any more ends a rank as it would without the launcher
"$SLUICE" launch -n 1 --tag-output -- bash -c 'while echo line; do sleep 0.01; done' 2>"$err" | head -1 >"$out" || code=$?
[ "$code" -eq 141 ] || fail "exit code $code if nobody reads the output"
complains "rank 0 was killed by signal 13 (Broken pipe)"

# Signals.
"$SLUICE" launch -n 2 -- bash -c 'trap "exit 5" USR1; touch ready.$SLUICE_RANK; while :; do sleep 0.05; done' 2>/dev/null &
launcher=$!
wait_for ready.0 ready.1
kill -USR1 $launcher
ends_with 5
for signal in TERM:143 INT:130 KILL:137; do
    rm -f ready.* daemon.*
    env --default-signal=INT "$SLUICE" launch -n 2 -- bash -c "$daemon;"'(exec -a "$0" sleep 1000) & touch ready.$SLUICE_RANK; wait' "$marker" 2>/dev/null &
    launcher=$!
    wait_for ready.0 ready.1 daemon.0 daemon.1
    kill -"${signal%:*}" $launcher
    ends_with "${signal#*:}"
    for _ in $(seq 20); do [ "$(strays)" -eq 0 ] && break; sleep 0.05; done
    nothing_left
done

# A signal that is ignored stays ignored, for nohup.
rm -f ready.*
env --ignore-signal=HUP "$SLUICE" launch -n 1 -- bash -c 'touch ready.0; for _ in $(seq 40); do sleep 0.05; done' &
launcher=$!
wait_for ready.0
kill -HUP $launcher
ends_with 0

# What cannot be started.
for limit in 40 41 42; do # whichever descriptor is the first that is missing
    run 1 timeout -s KILL 60 bash -c "ulimit -n $limit; '$SLUICE' launch -n 100 -- bash -c 'exec -a \"\$0\" sleep 60' '$marker'"
    complains "Too many open files"
done
nothing_left
run 1 "$SLUICE" launch -n 2 -- ./none
complains "sluice launch: start ./none: No such file or directory"
run 1 env SLUICE_BIND=socket "$SLUICE" launch -n 2 -- true
complains 'SLUICE_BIND is "socket"; auto, none or core are possible'
for wrong in "-n 0 -- true" "-- true" "-n 2" "-n x -- true" "-n 2 --bind socket -- true"; do
    run 2 "$SLUICE" launch $wrong
done
