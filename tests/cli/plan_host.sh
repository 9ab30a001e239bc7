#!/usr/bin/env bash
# A plan for the devices of a cluster's file does not depend on the processor that it is made on.
. "$(dirname "$0")/common.bash"
cd "$scratch"

llama="--model.family=llama --model.n_layer=6 --model.n_embd=4096 --model.n_head=32 --model.n_kv_head=8 --model.n_inner=14336
    --model.vocab=128256 --data.tokens=none.bin --batch.seq=4096 --batch.size=8 --precision.dtype=bf16"
for device in gpu cpu; do
    cat >cluster.yaml <<YAML
machines: 2
devices: 2
device: $device
memory: 28GB
flops: 400e12
bandwidth: 3.35e12
inside: {latency: 3e-6, bandwidth: 450e9}
between: {latency: 10e-6, bandwidth: 50e9}
YAML
    for isa in "" scalar avx2 avx512 avx512_bf16 amx; do # one that this machine does not have is the best it has
        export SLUICE_ISA=$isa
        run 0 "$SLUICE" plan --auto --cluster cluster.yaml $llama --budget 0.01 -o plan.yaml
        cat plan.yaml $(ls plan.csv 2>/dev/null) >>"$out"
        [ -n "$isa" ] || cp "$out" first.txt
        cmp "$out" first.txt || fail "device $device: SLUICE_ISA=$isa makes another plan"
    done
done
