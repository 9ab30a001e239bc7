"""Every family against transformers: logits, loss and gradients of random small models, both ways.

families_check.py MODEL_RUN SCRATCH [FAMILY...]
families_check.py --write FOLDER: writes the reference models of tests/data/models.

transformers makes and saves each model (whole or in shards, f32, bf16 or f16, tied or not); MODEL_RUN computes it from
its files and exports it; transformers loads the export and computes it again. Then both compute rows that hold several
documents: transformers tells them apart by position_ids that begin anew.
"""
import json
import pathlib
import shutil
import subprocess
import sys

import numpy
import torch
import transformers
from safetensors.torch import load_file, save_file

BOUND = 2e-5
BATCH, SEQ, BOUNDARY = 2, 24, 2
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
SMALL = dict(vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.2, bos_token_id=1, eos_token_id=2,
             pad_token_id=None)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, rope_theta=10000.0)
LONG = dict(rope_type="longrope", original_max_position_embeddings=16, rope_theta=10000.0,
            short_factor=[1.0, 1.1, 1.3], long_factor=[1.5, 2.0, 3.5])
PHI = dict(SMALL, hidden_size=32, original_max_position_embeddings=16)
GEMMA = dict(SMALL, head_dim=12)
NEOX = {key: value for key, value in SMALL.items() if key != "num_key_value_heads"}

# name: (class of the configuration, its values, how the folder is saved). `tie` is set both ways below.
CASES = {
    "llama": ("LlamaConfig", dict(SMALL), "f32"),
    "llama-linear": ("LlamaConfig", dict(SMALL, rope_parameters=dict(rope_type="linear", factor=2.0,
                                                                     rope_theta=10000.0)), "f32"),
    "llama-llama3": ("LlamaConfig", dict(SMALL, rope_parameters=dict(
        rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=16, rope_theta=10000.0)), "f32"),
    "llama-yarn": ("LlamaConfig", dict(SMALL, rope_parameters=dict(YARN)), "bf16"),
    "llama-yarn-all": ("LlamaConfig", dict(SMALL, rope_parameters=dict(
        YARN, beta_fast=4.0, beta_slow=0.5, mscale=0.7, mscale_all_dim=0.3, truncate=False)), "f32"),
    "llama-dynamic": ("LlamaConfig", dict(SMALL, max_position_embeddings=16, rope_parameters=dict(
        rope_type="dynamic", factor=2.0, rope_theta=10000.0)), "f32"),
    "smollm2": ("LlamaConfig", dict(SMALL, rms_norm_eps=1e-5, rope_parameters=dict(
        rope_type="default", rope_theta=100000.0)), "f16"),
    "qwen2": ("Qwen2Config", dict(SMALL), "f32 sharded"),
    "qwen2-window": ("Qwen2Config", dict(SMALL, use_sliding_window=True, sliding_window=5, max_window_layers=1),
                     "bf16 sharded"),
    "qwen3": ("Qwen3Config", dict(SMALL, head_dim=12), "f32"),
    "qwen3-yarn": ("Qwen3Config", dict(SMALL, head_dim=12, attention_bias=True, rope_parameters=dict(YARN)), "f16"),
    "mistral": ("MistralConfig", dict(SMALL, sliding_window=7), "bf16"),
    "mistral-full": ("MistralConfig", dict(SMALL, sliding_window=None, head_dim=6), "f32 sharded"),
    "smollm3": ("SmolLM3Config", dict(SMALL, no_rope_layer_interval=2), "f32"),
    "smollm3-list": ("SmolLM3Config", dict(SMALL, no_rope_layers=[0, 1, 1], use_sliding_window=True,
                                           sliding_window=6), "bf16"),
    "phi3": ("Phi3Config", dict(SMALL, sliding_window=9), "f32"),
    "phi3-long": ("Phi3Config", dict(PHI, partial_rotary_factor=0.75, rope_parameters=dict(LONG)), "bf16 sharded"),
    "phi3-short": ("Phi3Config", dict(PHI, original_max_position_embeddings=32, partial_rotary_factor=0.75,
                                      rope_parameters=dict(LONG, original_max_position_embeddings=32)), "f32"),
    "gemma": ("GemmaConfig", dict(GEMMA), "bf16"),
    "gemma2": ("Gemma2Config", dict(GEMMA, sliding_window=6, query_pre_attn_scalar=20, attn_logit_softcapping=2.0,
                                    final_logit_softcapping=3.0), "f32 sharded"),
    "gemma2-uncapped": ("Gemma2Config", dict(GEMMA, sliding_window=6, attn_logit_softcapping=None,
                                             final_logit_softcapping=None), "bf16"),
    "gemma3": ("Gemma3TextConfig", dict(GEMMA, sliding_window=5, query_pre_attn_scalar=20,
                                        sliding_window_pattern=2), "f32"),
    "gemma3-linear": ("Gemma3TextConfig", dict(
        GEMMA, sliding_window=5, layer_types=["full_attention", "sliding_attention", "sliding_attention"],
        rope_parameters=dict(full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1000000.0),
                             sliding_attention=dict(rope_type="default", rope_theta=5000.0))), "bf16 sharded"),
    "olmo2": ("Olmo2Config", dict(SMALL), "f32"),
    "gpt_neox": ("GPTNeoXConfig", dict(NEOX, rotary_pct=0.5), "f32 sharded"),
    "gpt_neox-serial": ("GPTNeoXConfig", dict(NEOX, rotary_pct=0.25, use_parallel_residual=False,
                                              hidden_act="gelu_new"), "f16"),
    "gpt2": ("GPT2Config", dict(vocab_size=61, n_positions=64, n_embd=32, n_layer=3, n_head=4, resid_pdrop=0.0,
                                embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=2), "bf16"),
}
# What tests/data/models keeps, smaller still: its name, tied or not, and how it is saved.
KEPT = {"qwen2-window": ("qwen2", False, "f32 sharded"), "qwen3": ("qwen3", True, "f32"),
        "mistral": ("mistral", False, "bf16"), "smollm3": ("smollm3", True, "f32"),
        "phi3-long": ("phi3", False, "f32"), "gemma": ("gemma", True, "bf16"), "gemma2": ("gemma2", True, "f32"),
        "gemma3": ("gemma3", True, "f32"), "olmo2": ("olmo2", False, "f32"), "gpt_neox": ("gpt_neox", False, "f32"),
        "llama-yarn": ("yarn", False, "f16")}
SMALLER = dict(hidden_size=16, intermediate_size=20, num_hidden_layers=2, num_attention_heads=2,
               num_key_value_heads=1)


def make(case, tie, smaller=False):
    """A random model; its norms and biases are no ones and zeros, so that a mistake in them shows."""
    torch.manual_seed(5)
    config_class, values, _ = CASES[case]
    if smaller:
        values = {key: SMALLER.get(key, value) for key, value in values.items()}
    config = getattr(transformers, config_class)(**values, tie_word_embeddings=tie)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.1 * torch.randn_like(parameter)
    return model


def save(model, folder, how, shard="20KB"):
    shutil.rmtree(folder, ignore_errors=True)
    model.to(DTYPES[how.split()[0]]).save_pretrained(folder, max_shard_size=shard if "sharded" in how else "1GB")
    (folder / "generation_config.json").unlink(missing_ok=True)


def load(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                             attn_implementation="eager")


def compute(model, tokens, positions=None):
    """Logits, loss and the gradients by the names of the files."""
    model.train()
    model.zero_grad()
    inputs, targets = torch.tensor(tokens[:, :-1]), torch.tensor(tokens[:, 1:])
    logits = model(inputs, position_ids=positions, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten().long())
    loss.backward()
    result = {"logits": logits.detach(), "loss": loss.detach()}
    for name, parameter in model.named_parameters():
        result["grad." + name] = parameter.grad
    if model.config.model_type == "gpt_neox" and "grad.lm_head.weight" in result:
        result["grad.embed_out.weight"] = result.pop("grad.lm_head.weight")  # its name in the files
    return result


def tokens_of(vocab):
    return numpy.random.default_rng(7).integers(0, vocab, (BATCH, SEQ + 1)).astype(numpy.int32)


def documents_of(tokens):
    """Tokens with ends of documents in the first row, and the place of each in its own. The second row is one document:
    angles that depend on the longest one are those of the row."""
    tokens = numpy.where(tokens == BOUNDARY, BOUNDARY + 1, tokens)
    tokens[0, [4, 5, 16]] = BOUNDARY
    positions = numpy.zeros((BATCH, SEQ), numpy.int64)
    for row, place in numpy.argwhere(tokens[:, :SEQ - 1] != BOUNDARY):
        positions[row, place + 1] = positions[row, place] + 1
    return tokens, torch.tensor(positions)


def compare(what, given, expected):
    """The largest relative error of a tensor."""
    worst = 0.0
    if set(given) != set(expected):
        raise SystemExit(f"{what}: other tensors: {sorted(set(given) ^ set(expected))}")
    for name, value in expected.items():
        size = value.double().norm().item()
        error = (given[name].double() - value.double()).norm().item()
        error = error / size if size > 1e-4 else error  # a bias of keys moves nothing: its gradient is rounding
        if not error <= BOUND:
            raise SystemExit(f"{what}: {name} differs by {error:.2e}; {BOUND:.0e} is allowed")
        worst = max(worst, error)
    return worst


def check(program, scratch, case, tie):
    how = CASES[case][2]
    folder, copy, out = scratch / case, scratch / (case + "-copy"), scratch / "out.safetensors"
    save(make(case, tie), folder, how)
    model = load(folder)
    tokens = tokens_of(model.config.vocab_size)
    tokens.tofile(scratch / "tokens.i32")
    expected = compute(model, tokens)
    shutil.rmtree(copy, ignore_errors=True)
    for stages in (1, 3):
        subprocess.run([program, folder, scratch / "tokens.i32", str(BATCH), str(SEQ), str(stages), out, copy,
                        how.split()[0], "20000" if "sharded" in how else "0"], check=True)
        ours = compare(f"{case} in {stages} stages", load_file(out), expected)
    if ("sharded" in how) != (copy / "model.safetensors.index.json").exists():
        raise SystemExit(f"{case}: the export is not sharded as asked for")
    theirs = compare(f"{case} exported", compute(load(copy), tokens), expected)
    tokens, positions = documents_of(tokens)
    tokens.tofile(scratch / "tokens.i32")
    subprocess.run([program, folder, scratch / "tokens.i32", str(BATCH), str(SEQ), "2", out, str(BOUNDARY)], check=True)
    apart = compare(f"{case} with documents", load_file(out), compute(model, tokens, positions))
    print(f"{case:16} {'tied' if tie else 'untied':7}{how:13} ours {ours:.1e}   exported {theirs:.1e}   documents {apart:.1e}")


def write(folder):
    for case, (name, tie, how) in KEPT.items():
        target = folder / (name + "-tiny")
        save(make(case, tie, smaller=True), target, how, "8KB")
        model = load(target)
        tokens = tokens_of(model.config.vocab_size)
        save_file({"tokens": torch.tensor(tokens), **{name: value.contiguous()
                                                      for name, value in compute(model, tokens).items()}},
                  target / "reference.safetensors")
        config = json.loads((target / "config.json").read_text())
        print(target.name, config["model_type"], sum(f.stat().st_size for f in target.iterdir()), "bytes")


def main():
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(2)
    if sys.argv[1] == "--write":
        return write(pathlib.Path(sys.argv[2]))
    program, scratch = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    scratch.mkdir(parents=True, exist_ok=True)
    for case in sys.argv[3:] or CASES:
        for tie in (True, False):
            check(program, scratch, case, tie)
    return None


if __name__ == "__main__":
    sys.exit(main())
