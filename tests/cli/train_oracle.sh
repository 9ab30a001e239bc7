#!/usr/bin/env bash
# The models of tests/data/models, trained through the command line, follow PyTorch: losses, gradients, weights, logits.
. "$(dirname "$0")/common.bash"
compare=$SLUICE_SUPPORT/compare

for model in gpt2-tiny llama-tiny; do
    data=$SLUICE_DATA/models/$model
    for pp in 1 2 4; do
        dir=$scratch/$model-$pp
        run 0 "$SLUICE" train --model.init="$data" --data.tokens="$data/tokens.bin" --data.order=sequential \
            --batch.size=8 --batch.seq=32 --batch.microbatches=4 \
            --optimizer.name=adamw --optimizer.lr=0.003 --optimizer.betas=0.9,0.95 --optimizer.eps=1e-8 \
            --optimizer.weight_decay=0.1 --optimizer.clip=1.0 --optimizer.schedule=constant \
            --parallel.pp=$pp --run.steps=20 --run.out="$dir" --save-grads "$dir.grads"
        run 0 "$compare" curve "$dir/metrics.jsonl" "$data/curve.json" 1e-4
        run 0 "$compare" tensors "$dir.grads" "$data/grads_step0.safetensors" 2e-5
        run 0 "$SLUICE" export --model "$dir" --output "$dir/hf"
        # Element by element: the key biases of GPT-2 have gradient 0, of which Adam makes steps of rounding noise.
        run 0 "$compare" elements "$dir/hf/model.safetensors" "$data/after_20_steps.safetensors" 1e-4
    done
    # The stages give the bits of the whole model, tied weights or not.
    for pp in 2 4; do
        run 0 "$compare" metrics "$scratch/$model-1/metrics.jsonl" "$scratch/$model-$pp/metrics.jsonl"
        run 0 "$compare" checkpoints "$scratch/$model-1/checkpoints/step-00000020" \
            "$scratch/$model-$pp/checkpoints/step-00000020"
        run 0 "$compare" files "$scratch/$model-1.grads" "$scratch/$model-$pp.grads"
    done
    run 0 "$SLUICE" eval --model "$data" --tokens "$data/tokens.bin" --batch 8 --seq 32 --steps 1 \
        --logits "$scratch/logits" --format json
    prints '"perplexity":'
    run 0 "$compare" tensors "$scratch/logits" "$data/reference.safetensors" 2e-5
done
