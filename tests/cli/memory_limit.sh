# A limit on the address space (ulimit -v) that leaves OpenBLAS no room for its buffers: an error that says so, and what
# helps. OpenBLAS itself would try to map them for ever.
. "$(dirname "$0")/common.bash"
cd "$scratch"
head -c 20000 "$SLUICE_SOURCE/examples/demo/tales.txt" >text.txt
export SLUICE_BLAS=libopenblas.so.0 # used on request alone
train=(train --data.text=text.txt --model.n_layer=2 --model.n_embd=16 --model.n_head=2 --batch.seq=16 --batch.size=4
       --run.steps=2)

# with_memory KIB COMMAND...: the program with this limit.
with_memory() { timeout 60 bash -c 'ulimit -v "$1"; shift; exec "$@"' - "$1" "$SLUICE" "${@:2}"; }

with_memory 120000 --version >/dev/null 2>&1 || { echo "this program needs more than 120 MB to start"; exit 77; }
SLUICE_LOG=debug run 0 "$SLUICE" "${train[@]}" --run.out=free
grep -q "matrix products: OpenBLAS" "$err" || { echo "OpenBLAS is not installed"; exit 77; }

for kib in 100000 120000 150000 200000; do
    run 1 with_memory $kib "${train[@]}" --run.out=limited
    complains "OpenBLAS needs 136 MiB of address space for its buffers (136 a thread), more than the limit (ulimit -v) leaves"
done
run 1 with_memory 280000 "${train[@]}" --parallel.threads=2 --run.out=limited
complains "OpenBLAS needs 272 MiB of address space"
SLUICE_BLAS=none run 0 with_memory 120000 "${train[@]}" --run.out=own
run 0 with_memory 400000 "${train[@]}" --parallel.threads=2 --run.out=enough
