#!/usr/bin/env bash
# sluice convert: a checkpoint of any mesh becomes one of any other with the same bits, and runs go on from it alike.
. "$(dirname "$0")/common.bash"

cd "$scratch"
printf 'It was the best of times, it was the worst of times. %.0s' {1..80} >text.txt
train() { # OUT, overrides
    local folder=$1
    shift
    run 0 "$SLUICE" train --data.text=text.txt --model.n_layer=4 --model.n_embd=32 --model.n_head=2 --batch.size=4 \
        --batch.seq=16 --batch.microbatches=2 --run.steps=4 --log.peak_gflops=1 --run.out="$folder" "$@"
}
files() { ls "$1"/checkpoints/step-*/*.safetensors | wc -l; }
same() { "$SLUICE_SUPPORT/compare" checkpoints "$1" "$2" >"$out" 2>"$err" || fail "$1 and $2 differ"; }

train out --run.steps=2
step=checkpoints/step-00000002

# Every mesh from every other; each holds the same tensors.
from=out
for mesh in "2 1 none 2" "2 2 full 4" "4 3 optimizer 12" "1 2 full 2" "1 1 none 1" "2 3 none 2"; do
    read -r pp dp shard count <<<"$mesh"
    to=mesh-$pp-$dp-$shard
    run 0 "$SLUICE" convert "$from" "$to" --pp "$pp" --dp "$dp" --shard "$shard"
    grep -q "wrote $to/$step" "$out" || fail "convert does not say what it wrote"
    [ "$(files "$to")" = "$count" ] || fail "$to has $(files "$to") files, $count expected"
    same "out/$step" "$to/$step"
    run 0 "$SLUICE" info "$to/$step" --verify
    prints "pp $pp x dp $dp, shard $shard"
    from=$to
done
run 0 "$SLUICE" convert "mesh-4-3-optimizer/$step" group --pp 1 --dp 4 --shard full --shard-group 2
[ "$(files group)" = 2 ] || fail "a group of 2 replicas writes $(files group) files"
same "out/$step" "group/$step"

# A run goes on from it as from the original: the same bits at the end.
run 0 "$SLUICE" train --resume --data.text=text.txt --model.n_layer=4 --model.n_embd=32 --model.n_head=2 --batch.size=4 \
    --batch.seq=16 --batch.microbatches=2 --run.steps=4 --log.peak_gflops=1 --run.out=out
run 0 "$SLUICE" train --resume --data.text=text.txt --model.n_layer=4 --model.n_embd=32 --model.n_head=2 --batch.size=4 \
    --batch.seq=16 --batch.microbatches=2 --run.steps=4 --log.peak_gflops=1 --run.out=mesh-2-2-full --parallel.pp=2
same out/checkpoints/step-00000004 mesh-2-2-full/checkpoints/step-00000004

# A run that shares its weights among replicas cuts every tensor as a conversion to its mesh does.
shardings() { grep '"sharding"' "$1/$step/manifest.json" | sed 's/,$//; s/\],"xxh3".*//'; }
for mesh in "1 2 full" "2 2 optimizer"; do
    read -r pp dp shard <<<"$mesh"
    train "run-$shard" --run.steps=2 --parallel.pp="$pp" --parallel.dp="$dp" --parallel.shard="$shard"
    run 0 "$SLUICE" convert "run-$shard" "whole-$shard" --pp 1 --dp 1
    run 0 "$SLUICE" convert "whole-$shard" "again-$shard" --pp "$pp" --dp "$dp" --shard "$shard"
    same "run-$shard/$step" "whole-$shard/$step"
    [ "$(files "run-$shard")" = "$((pp * dp))" ] || fail "run-$shard has $(files "run-$shard") files"
    shardings "run-$shard" >"$scratch/expected"
    shardings "again-$shard" >"$out"
    [ "$(wc -l <"$out")" -gt 100 ] || fail "the shardings were not found"
    diff "$scratch/expected" "$out" >"$err" || fail "the shardings of run-$shard are not those of a conversion to its mesh"
    same "run-$shard/$step" "again-$shard/$step"
done

# What is refused.
run 2 "$SLUICE" convert out mesh-1-1-none
grep -q "holds checkpoints" "$err" || fail "a run that has checkpoints is not refused"
run 2 "$SLUICE" convert out x --dp 3 --shard full --shard-group 2
grep -q "a shard group of 2 does not divide 3 replicas" "$err" || fail "a shard group that does not divide"
run 1 "$SLUICE" convert nowhere x
run 2 "$SLUICE" convert out x --pp 50
grep -q "cannot be cut into 50 stages" "$err" || fail "more ranks than the model has parts"
[ ! -e x ] || fail "a refused conversion leaves a folder"
