#!/usr/bin/env bash
# Validation while training: a share or a file, the loss in every output, the best checkpoint, an early end, and a resume
# that goes on as if nothing had happened.
. "$(dirname "$0")/common.bash"
cd "$scratch"
text=$SLUICE_SOURCE/examples/demo/tales.txt
small=(--model.n_layer=2 --model.n_embd=16 --model.n_head=2 --batch.seq=32 --batch.size=4)
train() { "$SLUICE" train "${small[@]}" --data.text="$text" --log.every=2 "$@"; }
losses() { grep -o '"step":[0-9]*,"loss":[0-9.e-]*,"val_loss":[0-9.e-]*' "$1/metrics.jsonl"; }

# A share of the data: every step line has the last loss, the metrics those of validations, the end the best.
run 0 train --data.val=2% --eval.every=4 --eval.batches=3 --run.steps=10 --run.out=share
prints " val 5."
prints "validation  best loss"
[ "$(losses share | cut -d: -f2 | cut -d, -f1 | xargs)" = "4 8 10" ] || fail "validated: $(losses share)"
run 0 train --data.val=2% --run.steps=10 --run.out=other --dry-run
prints "validate  on a part of it that training does not read: 47 batches of 47 every 100 steps"

# Any mesh gives the same bits.
run 0 train --data.val=2% --eval.every=4 --eval.batches=3 --run.steps=10 --run.out=mesh --parallel.pp=2 --parallel.schedule=ZBVZeroBubble
[ "$(losses mesh)" = "$(losses share)" ] || fail "two ranks validate otherwise: $(losses mesh) and $(losses share)"

# The share is no part of the training data, and a file with it gives the same loss.
bytes=$(stat -c %s "$text")
kept=$((bytes - bytes / 50))
head -c "$kept" "$text" >train.txt
tail -c +$((kept + 1)) "$text" >val.txt
run 0 "$SLUICE" train "${small[@]}" --data.text=train.txt --data.val=val.txt --eval.every=4 --eval.batches=3 --run.steps=10 --run.out=files
[ "$(losses files)" = "$(losses share)" ] || fail "files validate otherwise: $(losses files) and $(losses share)"

# It is what eval measures.
run 0 "$SLUICE" eval -m files --text val.txt -b 4 -t 32 --steps 3
best=$(grep -o '"val_loss":[0-9.]*' files/metrics.jsonl | tail -1 | cut -c12-17)
prints "$best"

# A resumed run goes on alike, and remembers the best.
run 0 train --data.val=2% --eval.every=4 --eval.batches=3 --run.steps=10 --run.out=parts --checkpoint.every=6 --run.steps=6
run 0 train --data.val=2% --eval.every=4 --eval.batches=3 --run.steps=10 --run.out=parts --resume
[ "$(losses parts | grep -v '"step":6,')" = "$(losses share)" ] || fail "resumed: $(losses parts), not $(losses share)"

# Nothing gets better with a learning rate of 0: the first stays the best, its checkpoint is kept, patience runs out.
still=(--data.val=2% --eval.every=2 --eval.batches=1 --optimizer.lr=0 --checkpoint.every=2 --checkpoint.keep=1)
run 0 train "${still[@]}" --run.steps=8 --run.out=best
[ "$(ls best/checkpoints | xargs)" = "step-00000002 step-00000008" ] || fail "kept: $(ls best/checkpoints | xargs)"
run 0 train "${still[@]}" --checkpoint.best=false --run.steps=8 --run.out=last
[ "$(ls last/checkpoints | xargs)" = step-00000008 ] || fail "kept: $(ls last/checkpoints | xargs)"
run 0 train "${still[@]}" --eval.patience=2 --run.steps=20 --run.out=early
prints "done after step 6"
prints "no better validation loss in 2 validations"
run 0 train "${still[@]}" --eval.patience=2 --run.steps=20 --run.out=early --resume
prints "done after step 6: nothing was left to do"
prints "no better validation loss"

run 1 train --data.val=gone.txt --run.out=x
complains "--data.val=gone.txt: open gone.txt"
for share in 0% 100% 1.5 -3%; do
    run 2 train --data.val=$share --run.out=x
    complains "a share is above 0% and below 100%"
done
run 2 train --data.val=0.1% --run.out=x --batch.size=64
complains "a batch has 64 rows of 32 tokens, and the validation data have 9 rows"
run 2 train --eval.patience=3 --run.out=x
complains "--eval.patience=3: there is nothing to validate on: give data.val"
