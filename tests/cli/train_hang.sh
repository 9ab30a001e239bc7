# A kernel that never returns, here of a BLAS library made for it: train ends, and says in which rank, action and function.
. "$(dirname "$0")/common.bash"
cd "$scratch"
compiler=$(command -v cc || command -v gcc || command -v clang) || { echo "there is no C compiler"; exit 77; }
head -c 20000 "$SLUICE_SOURCE/examples/demo/tales.txt" >text.txt
cat >spin.c <<'C'
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
void never_returns(void)
{
    for (volatile int i = 0;; i++)
        ;
}
/* Right until a file is there: the rank that shall hang takes it away and hangs. */
void cblas_sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda, const float *b,
                 int ldb, float beta, float *c, int ldc)
{
    const char *rank = getenv("SLUICE_RANK") ? getenv("SLUICE_RANK") : getenv("RANK");
    if (strcmp(rank ? rank : "1", "1") == 0 && unlink("hang") == 0)
        never_returns();
    for (int i = 0; i < m; i++) {
        for (int j = 0; j < n; j++) {
            float sum = 0;
            for (int l = 0; l < k; l++)
                sum += (ta == 112 ? a[l * lda + i] : a[i * lda + l]) * (tb == 112 ? b[j * ldb + l] : b[l * ldb + j]);
            c[i * ldc + j] = alpha * sum + (beta != 0 ? beta * c[i * ldc + j] : 0);
        }
    }
    (void)order;
}
C
"$compiler" -shared -fPIC -O1 -o spin.so spin.c
export SLUICE_BLAS=$PWD/spin.so
train=("$SLUICE" train --data.text=text.txt --model.n_layer=2 --model.n_embd=16 --model.n_head=2 --batch.seq=16
       --batch.size=4 --batch.microbatches=2 --log.progress=off --run.steps=1000000 --hang-timeout=2)

# hangs_in RUN CODE: the run in the background hangs once it has made a step, and ends within the timeout and a few seconds.
hangs_in() {
    local pid=$! code=0 start
    for _ in $(seq 600); do [ -s "$1/metrics.jsonl" ] && break; sleep 0.05; done
    [ -s "$1/metrics.jsonl" ] || fail "no step was made"
    touch hang
    start=$SECONDS
    wait "$pid" || code=$?
    [ "$code" -eq "$2" ] || fail "exit code $code instead of $2"
    [ $((SECONDS - start)) -le 12 ] || fail "it took $((SECONDS - start)) s"
}

"${train[@]}" --run.out=one >"$out" 2>"$err" &
hangs_in one 75
complains "rank 0 has been in one action for more than 2 s: pipeline rank 0, cell "
complains "stack: never_returns < cblas_sgemm < "
grep -qE "\(stage 0, microbatch [01], step [0-9]+\)" "$err" || fail "the action is not named"

"${train[@]}" --parallel.pp=2 --run.out=two >"$out" 2>"$err" &
hangs_in two 75
complains "sluice train: rank 1 has been in one action for more than 2 s: pipeline rank 1, cell "
complains "stack: never_returns < cblas_sgemm < "
[ "$(grep -c "has been in one action" "$err")" -eq 1 ] || fail "it is said more than once"
pgrep -f "$scratch" >/dev/null && fail "a rank is left"

# With restarts the ranks are started again: those after them do not hang, and the run goes on where it was.
"${train[@]}" --parallel.pp=2 --run.out=again --run.steps=400 --restarts=1 --checkpoint.memory=1 >"$out" 2>"$err" &
launcher=$!
for _ in $(seq 600); do [ ! -s again/metrics.jsonl ] || break; sleep 0.02; done
touch hang
wait $launcher || fail "the run did not come back"
complains "rank 1 has been in one action for more than 2 s"
complains "starting again with 2 ranks (restart 1 of 1)"
complains "from the snapshot in memory"
[ -e again/checkpoints/step-00000400 ] || fail "the run did not come to its end"

# Nobody of ours started the ranks.
as_torchrun() { exec env RANK="$1" WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$$ "${train[@]}" --parallel.pp=2 --run.out=three; }
(as_torchrun 0) >"$out" 2>"$err" &
first=$!
(as_torchrun 1) >>"$out" 2>>"$err" &
hangs_in three 75
code=0
wait "$first" || code=$?
[ "$code" -eq 75 ] || fail "exit code $code of the rank that waited"
[ "$(grep -c "rank 1 has been in one action" "$err")" -eq 1 ] || fail "it is not said once"
