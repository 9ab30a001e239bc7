#!/usr/bin/env bash
# model.freeze: parameters that fit a pattern are not trained, on any mesh, and cost neither gradients nor state; what is
# trained gets the gradients that it would get anyway. A resumed run goes on alike, also with another list.
. "$(dirname "$0")/common.bash"
cd "$scratch"
compare=$SLUICE_SUPPORT/compare
head -c 20000 "$SLUICE_SOURCE/examples/demo/tales.txt" >text.txt
train() {
    local dir=$1
    shift
    "$SLUICE" train --data.text=text.txt --data.order=shuffled --model.n_layer=4 --model.n_embd=16 --model.n_head=2 \
        --model.dropout=0.1 --batch.size=4 --batch.seq=16 --batch.microbatches=2 --checkpoint.every=3 --checkpoint.keep=9 \
        --run.steps=6 --run.out="$dir" "$@"
}
same() {
    run 0 "$compare" metrics "$1/metrics.jsonl" "$2/metrics.jsonl"
    run 0 "$compare" checkpoints "$1/checkpoints/step-00000006" "$2/checkpoints/step-00000006"
}
# names FILE: those of the tensors in a safetensors file, without their root.
names() { head -c 20000 "$1" | tr '"' '\n' | grep -aE '^(optimizer|transformer)\.' | sed 's/transformer\.//' | sort -u; }
# planned DIR: what every rank took is what was planned, to the byte.
planned() {
    local part
    part=$("$SLUICE_SUPPORT/json_get" ranks <"$1/plan.json")
    [ "$part" = "$("$SLUICE_SUPPORT/json_get" measured <"$1/plan.json")" ] || fail "$1 took other memory than planned"
}

# The embedding, and with it the tied head, and half of the blocks.
lower=(--model.freeze='wte*,wpe.weight,transformer.h.[01].*')
run 0 train start "${lower[@]}" --optimizer.lr=0
run 0 train whole --save-grads whole.safetensors
run 0 train frozen "${lower[@]}" --save-grads frozen.safetensors
planned frozen
run 0 "$compare" subset frozen.safetensors whole.safetensors
[ "$(names frozen.safetensors)" = "$(names whole.safetensors | grep -E '^(h\.[23]|ln_f)')" ] || fail "gradients of $(names frozen.safetensors)"
for run in start frozen; do run 0 "$SLUICE" export --model $run --output $run.hf; done
run 1 "$compare" files frozen.hf/model.safetensors start.hf/model.safetensors
[ "$(sed -n 's/transformer.\(.*\) differs/\1/p' "$out" | sort)" = "$(names frozen.safetensors)" ] || fail "not these alone were trained"
names frozen/checkpoints/step-00000006/rank-00000.safetensors | grep '^optimizer' >state || true
[ "$(sed 's/^optimizer\.exp_avg\(_sq\)*\.//' state | sort -u)" = "$(names frozen.safetensors)" ] || fail "state of $(cat state)"
run 0 train x "${lower[@]}" --dry-run
prints 'parameters (6.59k of them trained)'

# Any ranks give the same bits: ranks without anything to train, sharing replicas, bf16.
run 0 train pp4 "${lower[@]}" --parallel.pp=4
same frozen pp4
planned pp4
run 0 train zero_bubble "${lower[@]}" --parallel.pp=2 --parallel.schedule=ZBVZeroBubble
same frozen zero_bubble
for shard in none optimizer full; do
    run 0 train $shard "${lower[@]}" --parallel.pp=2 --parallel.dp=2 --batch.microbatches=1 --parallel.shard=$shard --precision.dtype=bf16
    planned $shard
    same none $shard
done

# Resumed on other ranks it is the run that was not stopped.
rm -r pp4/checkpoints/step-00000006
run 0 train pp4 "${lower[@]}" --resume --parallel.pp=2
silent
same frozen pp4

# Another list: what is trained now and was not before begins without state, what is not keeps its weights.
rm -r pp4/checkpoints/step-00000006
run 0 train pp4 --model.freeze='h.[12].*,lm_head*' --resume --parallel.pp=2
complains "resumed with model.freeze=h.[12].*,lm_head*, the checkpoint was made with wte*,wpe.weight,transformer.h.[01].*"
run 0 "$SLUICE" export --model pp4 --output pp4.hf
run 0 "$SLUICE" export --model pp4/checkpoints/step-00000003 --output before.hf
run 1 "$compare" files pp4.hf/model.safetensors before.hf/model.safetensors
[ "$(sed -n 's/transformer.\(.*\) differs/\1/p' "$out" | cut -d. -f1-2 | sort -u | xargs)" = "h.0 h.3 ln_f.bias ln_f.weight wpe.weight" ] || fail "other parameters were trained"

run 2 train x --model.freeze='h.0.*,h.9.*'
complains "--model.freeze=h.0.*,h.9.*: no parameter of the model fits 'h.9.*'; the first is transformer.wte.weight, the last transformer.ln_f.bias"
run 2 train x --model.freeze='*'
complains 'no parameter is left to be trained'
