#!/usr/bin/env bash
# --restarts: a run that loses a rank comes back by itself, with the bits of one that was never disturbed.
. "$(dirname "$0")/common.bash"
. "$(dirname "$0")/train_restart.bash"

kill_ranks 5 400

# No checkpoint is on disk: what is lost is what came after the last snapshot in memory. A replica's death, too.
run 0 "$SLUICE" "${arguments[@]}" --run.out=pairs --run.steps=400 --parallel.pp=2 --parallel.dp=2
start memory --run.steps=400 --parallel.pp=2 --parallel.dp=2 --checkpoint.memory=5 --checkpoint.every=0 --restarts 1
wait_for_lines memory 12
hit KILL
ends_with 0 memory
complains 'was killed by signal 9 (Killed)'
complains 'starting again with 4 ranks (restart 1 of 1)'
complains 'from the snapshot in memory'
step=$(sed -n 's/^{"step":\([0-9]*\),"restart":1,"from":"memory","ranks":4,"reason":"rank [0-3] was killed.*/\1/p' memory/metrics.jsonl)
[ "$((step % 5))" -eq 0 ] && [ "$step" -ge 10 ] || fail "the metrics do not say where the run went on"
same_as pairs memory 400

# Without snapshots in memory the newest checkpoint serves, and without one the beginning.
start disk --run.steps=400 --parallel.pp=2 --parallel.dp=2 --checkpoint.every=5 --restarts 2
until hit KILL; do sleep 0.01; done
wait_for_lines disk 1 '"restart":1'
wait_for_lines disk 15
hit KILL
ends_with 0 disk
complains 'from the beginning'
complains 'from the checkpoint'
same_as pairs disk 400

# A run of one rank; a rank that is stopped.
start single --run.steps=400 --restarts 1 --checkpoint.memory=1
wait_for_lines single 5
hit KILL
ends_with 0 single
run 0 "$SLUICE" "${arguments[@]}" --run.out=alone --run.steps=400
same_as alone single 400
SLUICE_HANG_TIMEOUT=1 start stopped --run.steps=400 --parallel.pp=2 --restarts 1 --checkpoint.memory=1
wait_for_lines stopped 5
hit STOP
ends_with 0 stopped
complains 'gave no sign of life for 1 s'
complains 'starting again with 2 ranks (restart 1 of 1)'
same_as alone stopped 400

# Restarts end: with the last, when somebody asks for it, and for what would come again.
start used_up --run.steps=100000 --parallel.pp=2 --restarts 1 --checkpoint.memory=1
wait_for_lines used_up 2
hit KILL
wait_for_lines used_up 1 '"restart":1'
hit KILL
ends_with 137 used_up
[ "$(grep -c 'starting again' "$err")" -eq 1 ] || fail "not one restart"
start asked --run.steps=100000 --parallel.pp=2 --restarts 5 --checkpoint.memory=1
wait_for_lines asked 2
kill -TERM "$launcher"
ends_with 143 asked
! grep -q 'starting again' "$err" || fail "started again although the end was asked for"
start spoiled --run.steps=100000 --parallel.pp=2 --restarts 5 --optimizer.lr=1e6 --optimizer.clip=0
ends_with 1 spoiled
! grep -q 'starting again' "$err" || fail "started again although the failure would come again"

# Fewer ranks if those there were do not come to a step: a shorter pipeline has the same bits.
gcc -shared -fPIC -x c -o die.so - <<'END'
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* A machine on which DIE_AT_SIZE ranks cannot live, from the second start on. */
__attribute__((constructor)) static void die(void)
{
    const char *size = getenv("SLUICE_SIZE"), *restart = getenv("SLUICE_RESTART");
    if (size && restart && restart[0] != '0' && strcmp(size, getenv("DIE_AT_SIZE")) == 0)
        kill(getpid(), SIGKILL);
}
END
LD_PRELOAD=$PWD/die.so DIE_AT_SIZE=4 start fewer --run.steps=400 --parallel.pp=4 --checkpoint.memory=5 --restarts 4 --min-ranks 2
wait_for_lines fewer 12
hit KILL
ends_with 0 fewer
[ "$(grep -c 'starting again with 4 ranks' "$err")" -eq 2 ] || fail "not two more starts with 4 ranks"
complains 'starting again with 3 ranks (restart 3 of 4)'
grep -q '"from":"memory","ranks":3' fewer/metrics.jsonl || fail "the metrics lack the start with 3 ranks"
same_as alone fewer 400
LD_PRELOAD=$PWD/die.so DIE_AT_SIZE=2 start replicas --run.steps=400 --parallel.dp=2 --restarts 3 --min-ranks 1 --checkpoint.memory=5
wait_for_lines replicas 12
hit KILL
ends_with 0 replicas
complains 'starting again with 1 rank (restart 3 of 3)'
[ "$(lines replicas)" -eq 400 ] || fail "the run on one rank is not complete"
LD_PRELOAD=$PWD/die.so DIE_AT_SIZE=2 start too_few --run.steps=400 --parallel.pp=2 --restarts 3 --min-ranks 2 --checkpoint.memory=5
wait_for_lines too_few 12
hit KILL
ends_with 137 too_few
[ "$(grep -c 'starting again with 2 ranks' "$err")" -eq 3 ] || fail "not three more starts with 2 ranks"

# The time from a death to the next step, for the demo's model.
cp -r "$SLUICE_SOURCE/examples" .
arguments=(train -c examples/demo/demo.yaml --log.progress=off)
start demo --run.steps=60 --checkpoint.memory=5 --restarts 1
wait_for_lines demo 12
began=$(date +%s%N)
hit KILL
wait_for_lines demo 1 '"restart":1'
count=$(lines demo)
wait_for_lines demo $((count + 1))
took=$((($(date +%s%N) - began) / 1000000))
ends_with 0 demo
echo "$took ms from a rank's death to the next step"
[ "$took" -lt 2000 ] || fail "$took ms from a rank's death to the next step"

# Any program: sluice launch.
run 0 "$SLUICE" launch -n 3 --restarts 2 -- bash -c '[ "$SLUICE_RESTART" -ge 2 ] || kill -KILL $$; echo "here $SLUICE_RESTART $SLUICE_RESTART_REASON"'
[ "$(grep -c '^here 2 rank [0-2] was killed by signal 9' "$out")" -eq 3 ] || fail "not three ranks of the third start"
run 0 "$SLUICE" launch -n 3 --restarts 4 --min-ranks 2 -- bash -c '[ $SLUICE_SIZE -eq 2 ] || exit 75; echo "size $SLUICE_SIZE"'
[ "$(grep -c '^size 2$' "$out")" -eq 2 ] || fail "not the two ranks that are left"
run 75 "$SLUICE" launch -n 2 --restarts 3 -- bash -c 'exit 75'
[ "$(grep -c 'starting again' "$err")" -eq 3 ] || fail "not three restarts"
run 3 "$SLUICE" launch -n 2 --restarts 3 -- bash -c 'exit 3'
! grep -q 'starting again' "$err" || fail "a code of its own is the program's last word"
