#!/usr/bin/env bash
# sluice bench kernel: every kernel of the list has a time; one can be chosen; refusals.
. "$(dirname "$0")/common.bash"

small=(--batch 2 --seq 16 --embd 32 --heads 4 --vocab 64 --repeats 1)
run 0 "$SLUICE" bench kernel "${small[@]}" --threads 2 --format json
silent
for op in linear linear_grad_w attention attention_grad layernorm gelu_tanh cross_entropy_grad adamw; do
    grep -qE "\"op\":\"$op\",(\"shape\":\"[0-9x]+\",)?\"seconds\":[0-9]" "$out" || fail "no $op"
done
run 0 "$SLUICE" bench kernel "${small[@]}" --dtype bf16 --format json
silent
[ "$(grep -cE '"limit_share":[0-9]' "$out")" -eq 39 ] || fail "not every kernel has its share of the limit"
run 2 "$SLUICE" bench kernel --dtype f16
run 0 "$SLUICE" bench kernel "${small[@]}" --op softmax
prints "softmax"
grep -q layernorm "$out" && fail "--op does not choose"
run 0 "$SLUICE" bench kernel "${small[@]}" --op products --format json
silent
for shape in 32x32x96 32x32x32 32x32x128 32x128x32 32x32x64; do # rows x in x out: each has its three products
    [ "$(grep -cE "\"op\":\"linear(_grad_[xw])?\",\"shape\":\"$shape\",.*\"limit_share\":[0-9]" "$out")" -eq 3 ] || fail "no products of $shape"
done
run 2 "$SLUICE" bench kernel "${small[@]}" --op nothing
complains "'nothing'"
run 2 "$SLUICE" bench kernel --embd 30 --heads 4
run 0 "$SLUICE" bench kernel "${small[@]}" --op attention --dropout 0.1 --device cpu
run 1 "$SLUICE" bench kernel "${small[@]}" --device tpu
complains "device tpu"
run 0 "$SLUICE" bench kernel --help

run 0 env SLUICE_ISA=scalar "$SLUICE" bench kernel "${small[@]}" --op add
prints "cpu: scalar"
run 0 env SLUICE_ISA=avx9000 "$SLUICE" bench kernel "${small[@]}" --op add
complains "SLUICE_ISA=avx9000"
