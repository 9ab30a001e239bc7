#!/usr/bin/env bash
# sluice plan -c: the whole configuration, from the file to a run; clusters; what it refuses.
. "$(dirname "$0")/common.bash"
cd "$scratch"

for ((i = 0; i < 40; i++)); do echo "There was a well, and nobody knew how deep it was. A stone said: I do."; done >tale.txt
cat >run.yaml <<'YAML'
model: {n_layer: 2, n_head: 2, n_embd: 32}
data: {text: tale.txt}
batch: {size: 8, seq: 16}
run: {steps: 2, out: out}
log: {progress: "off"}
YAML

# The best one as text, JSON and file; train runs the file, and its memory is what the plan says.
run 0 "$SLUICE" plan -c run.yaml --auto --ranks 2 --top 3 --budget 0.01 -o plan.yaml
silent
prints "pp x dp"
prints "bounded by"
prints "to run it: sluice train -c run.yaml --plan plan.yaml"
[ "$(grep -cE '^[123] +[12] x [12] ' "$out")" -eq 3 ] || fail "the table has not three rows"
grep -q '^parallel:' plan.yaml || fail "no section in the plan"
run 0 "$SLUICE" train -c run.yaml --plan plan.yaml
[ "$(wc -l <out/metrics.jsonl)" -eq 2 ] || fail "the plan did not run two steps"
run 0 "$SLUICE" plan -c run.yaml --auto --ranks 2 --top 2 --budget 0.01 --format json
json_is choices.0.pp "$("$SLUICE_SUPPORT/json_get" choices.0.pp <"$out")"
for key in dp stages_per_rank schedule microbatches rows shard recompute step_s tokens_per_s bubble memory fullest_rank work_s \
    idle_s exchange_s update_s bound_s why; do
    "$SLUICE_SUPPORT/json_get" "choices.1.$key" <"$out" >/dev/null || fail "no $key"
done

# A schedule that was searched for lies beside the plan, wherever both are; show draws it and train runs it.
cat >cluster.yaml <<'YAML'
machines: 1
devices: 2
memory: 1GB
flops: 1e11
bandwidth: 1e10
kernel: 0 # else so small a model is best with one microbatch
inside: {latency: 1e-5, bandwidth: 1e10}
YAML
mkdir folder
run 0 "$SLUICE" plan -c run.yaml --auto --cluster cluster.yaml --batch.size=7 -o folder/best.yaml --top 1
prints found
grep -q 'schedule: best.csv' folder/best.yaml || fail "the plan does not name its schedule"
run 0 "$SLUICE" show folder/best.csv -o best.svg
run 0 "$SLUICE" plan -c run.yaml --auto --cluster cluster.yaml --batch.size=7 -o folder/again.yaml --top 1
cmp folder/best.csv folder/again.csv || fail "the same question has two answers"
run 0 "$SLUICE" train -c run.yaml --plan folder/best.yaml --batch.size=7 --overwrite
run 0 "$SLUICE" train -c run.yaml --plan folder/best.yaml --batch.size=7 --dry-run --format json
json_is fits true

# Large models on many devices are planned here (plan_large.drill.sh has more of them); the data need not be there. What
# does not fit says how many devices would.
cat >large.yaml <<'YAML'
machines: 512
devices: 8
memory: 80GB
flops: 400e12
bandwidth: 3.35e12
inside: {latency: 3e-6, bandwidth: 450e9}
between: {latency: 10e-6, bandwidth: 50e9}
YAML
llama="--model.family=llama --model.n_layer=20 --model.n_embd=8192 --model.n_head=64 --model.n_kv_head=8 --model.n_inner=28672
    --model.vocab=128256 --data.tokens=none.bin --batch.seq=8192 --precision.dtype=bf16"
run 0 "$SLUICE" plan --auto --cluster large.yaml $llama --batch.size=64 --ranks 64 --top 1 --budget 0.001 --format json
memory=$("$SLUICE_SUPPORT/json_get" choices.0.memory <"$out")
awk -v memory="$memory" 'BEGIN { exit !(memory > 0 && memory <= 80e9) }' || fail "$memory bytes do not fit"
run 1 "$SLUICE" plan --auto --cluster large.yaml $llama --batch.size=64 --ranks 2
complains "nothing fits: the least that any configuration on 2 ranks needs is about"
complains "8 of them would be enough"

# Mistakes.
refuses() {
    local code=$1 text=$2
    shift 2
    run "$code" "$SLUICE" plan "$@"
    complains "$text"
    [ ! -s "$out" ] || fail "prints although it fails"
}
refuses 2 "-c goes with --auto" -c run.yaml --schedule 1F1B
refuses 2 "-c chooses schedule, microbatches" -c run.yaml --auto --microbatches 4
refuses 2 "--cluster, --measure and --top go with -c" --auto --ranks 2 --microbatches 2 --top 3
refuses 2 "3 ranks, but the cluster has 2 devices" -c run.yaml --auto --cluster cluster.yaml --ranks 3
refuses 2 "13 ranks: no pipeline of at most" -c run.yaml --auto --ranks 13
refuses 1 "open none.yaml" -c none.yaml --auto
refuses 1 "nothing fits: the least that any configuration on 2 ranks needs" -c run.yaml --auto --ranks 2 \
    --parallel.memory_gb=0.0001
refuses 2 "best.csv: that is the name of the schedule beside the plan" -c run.yaml --auto --cluster cluster.yaml --batch.size=7 \
    -o folder/best.csv --top 1
run 1 "$SLUICE" train -c run.yaml --plan none.yaml
complains "none.yaml"
echo "parallel: {pp: 2, depth: 3}" >wrong.yaml
run 2 "$SLUICE" train -c run.yaml --plan wrong.yaml
complains "wrong.yaml:1:19: parallel.depth: there is no such key"
