"""Exported models in `transformers`, safetensors files in the safetensors library and TensorBoard files in its own reader.

usage: exports_check.py SLUICE TEXT FOLDER
Both ways: what we write is read by the others, and what they write by us.
"""
import json
import os
import shutil
import subprocess
import sys

import numpy
import torch
from safetensors import safe_open
from safetensors.numpy import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

sluice, text, folder = sys.argv[1:4]
os.makedirs(folder, exist_ok=True)
torch.manual_seed(1)
logging.disable_progress_bar()
failures = 0


def check(what, holds, detail=""):
    global failures
    failures += not holds
    print(f"{what}: {'ok' if holds else 'WRONG'}{' ' + str(detail) if detail != '' else ''}")


def run(*arguments):
    return subprocess.run([sluice, *map(str, arguments)], check=True, capture_output=True, text=True).stdout


def fresh(name):
    path = f"{folder}/{name}"
    shutil.rmtree(path, ignore_errors=True)
    return path


BATCH, SEQ = 2, 24
corpus = open(text, "rb").read()
tokens = torch.tensor([[corpus[row * SEQ + i] for i in range(SEQ + 1)] for row in range(BATCH)])


def logits_of_ours(model):
    """The logits and the loss of our own evaluation on the first rows of the text."""
    path = f"{folder}/logits.safetensors"
    with open(f"{folder}/first.bin", "wb") as file:
        file.write(numpy.frombuffer(corpus[: BATCH * SEQ + 1], numpy.uint8).astype(numpy.uint16).tobytes())
    run("eval", "--model", model, "--tokens", f"{folder}/first.bin", "--batch", BATCH, "--seq", SEQ, "--steps", 1,
        "--logits", path)
    both = load_file(path)
    return torch.from_numpy(both["logits"]), float(both["loss"][0])


def compare_logits(what, model, ours):
    logits, loss = ours
    with torch.no_grad():
        theirs = model.float().eval()(tokens[:, :-1]).logits
    error = float((theirs - logits).norm() / theirs.norm())
    check(f"{what}: logits", error < 2e-5, f"{error:.1e}")
    expected = torch.nn.functional.cross_entropy(theirs.reshape(-1, theirs.shape[-1]), tokens[:, 1:].reshape(-1))
    check(f"{what}: loss", abs(loss - float(expected)) < 2e-5, f"{loss:.5f}")


def compare_tensors(what, path, expected):
    """Every tensor of the file as the library reads it."""
    with safe_open(path, "pt") as file:
        same = all(torch.equal(file.get_tensor(name), expected[name]) for name in file.keys() if name in expected)
        check(f"{what}: tensors", same and len(set(file.keys()) & set(expected)) >= len(file.keys()) - 1, len(file.keys()))


# ---- Trained by us, exported, read by them ----
families = {
    "gpt2": ["--model.family=gpt2"],
    "llama": ["--model.family=llama", "--model.n_kv_head=2", "--model.tie=false"],
    "llama_tied": ["--model.family=llama", "--model.tie=true"],
}
size = ["--model.n_layer=2", "--model.n_embd=32", "--model.n_head=4", "--batch.seq=32", "--batch.size=4", "--run.steps=4"]
for name, keys in families.items():
    out, exported = fresh(f"{name}-run"), fresh(f"{name}-hf")
    run("train", f"--data.text={text}", f"--run.out={out}", *size, *keys, "--parallel.pp=2")
    for options in ([], ["--shard-gb", "0.00004"], ["--dtype", "bf16"]):
        run("export", "--model", out, "--output", exported, "--overwrite", *options)
        model, report = AutoModelForCausalLM.from_pretrained(exported, output_loading_info=True, dtype="auto")
        what = f"{name} {' '.join(options)}".strip()
        check(f"{what}: loads whole", not report["missing_keys"] and not report["unexpected_keys"], report if report["missing_keys"] else "")
        if options != ["--dtype", "bf16"]:
            compare_logits(what, model, logits_of_ours(out))
        else:
            check(f"{what}: dtype", model.dtype == torch.bfloat16, model.dtype)
            compare_logits(what, model, logits_of_ours(exported))
    run("export", "--model", out, "--output", exported, "--overwrite")
    whole = AutoModelForCausalLM.from_pretrained(exported, dtype="auto")
    compare_tensors(name, f"{exported}/model.safetensors", whole.state_dict())
    tokenizer = AutoTokenizer.from_pretrained(exported)
    ids = tokenizer("A tale, é\n", add_special_tokens=False)["input_ids"]
    check(f"{name}: tokenizer", ids == list("A tale, é\n".encode()), ids)

    # ---- Written by them, read by us ----
    theirs = fresh(f"{name}-theirs")
    random = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(exported)).float()
    random.save_pretrained(theirs, max_shard_size="40KB")
    check(f"{name}: theirs is in shards", os.path.exists(f"{theirs}/model.safetensors.index.json"))
    compare_logits(f"{name}: written by transformers", random, logits_of_ours(theirs))

# ---- TensorBoard ----
out = fresh("board-run")
run("train", f"--data.text={text}", f"--run.out={out}", *size, "--log.tensorboard=true", "--data.val=5%", "--eval.every=2",
    "--eval.batches=2")
events = EventAccumulator(f"{out}/tensorboard")
events.Reload()
tags = events.Tags()["scalars"]
metrics = [json.loads(line) for line in open(f"{out}/metrics.jsonl")]
keys = {"val/loss": "val_loss", "memory/peak": "peak_memory"}
for tag in tags:
    key = keys.get(tag, tag.split("/")[-1])
    series = {event.step: event.value for event in events.Scalars(tag)}
    expected = {line["step"]: line[key] for line in metrics if line.get(key) is not None}
    same = set(series) == set(expected) and all(abs(series[step] - expected[step]) <= 1e-6 * abs(expected[step]) for step in series)
    check(f"TensorBoard: {tag}", same, f"{len(series)} steps" if same else (series, expected))
check("TensorBoard: tags", {"train/loss", "val/loss", "train/grad_norm", "train/lr"} <= set(tags), tags)
sys.exit(1 if failures else 0)
