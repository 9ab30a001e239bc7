#!/usr/bin/env python3
"""The step of `sluice bench step` in PyTorch, for comparisons on the same GPU or the same cores: the same shapes, bf16
products with f32 weights and gradients (autocast) or f32, fused AdamW, gradient clipping. Prints a line of JSON for each
number of threads.

    python3 bench/torch_step.py --preset gpt2-124m --compile
    python3 bench/torch_step.py --device cpu --dtype f32 --batch 4 --seq 512 --threads 1,4,16
"""
import argparse
import json
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

PRESETS = {
    "gpt2-124m": dict(family="gpt2", batch=32, seq=1024, embd=768, layers=12, heads=12, kv_heads=12, inner=3072, vocab=50304),
    "llama-1.1b": dict(family="llama", batch=8, seq=2048, embd=2048, layers=22, heads=16, kv_heads=4, inner=5632, vocab=32000),
}


class Attention(nn.Module):
    def __init__(self, o, bias):
        super().__init__()
        self.heads, self.kv_heads, self.width = o.heads, o.kv_heads, o.embd // o.heads
        self.q = nn.Linear(o.embd, o.heads * self.width, bias=bias)
        self.kv = nn.Linear(o.embd, 2 * o.kv_heads * self.width, bias=bias)
        self.out = nn.Linear(o.embd, o.embd, bias=bias)

    def forward(self, x, rope):
        b, t, c = x.shape
        q = self.q(x).view(b, t, self.heads, self.width)
        k, v = self.kv(x).view(b, t, 2, self.kv_heads, self.width).unbind(2)
        if rope is not None:
            q, k = rotate(q, *rope), rotate(k, *rope)
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True,
                                           enable_gqa=self.heads != self.kv_heads)
        return self.out(y.transpose(1, 2).reshape(b, t, c))


def rotate(x, cosines, sines):
    first, second = x.chunk(2, -1)
    return torch.cat((first * cosines - second * sines, second * cosines + first * sines), -1)


class Block(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.llama = o.family == "llama"
        norm = nn.RMSNorm if self.llama else nn.LayerNorm
        self.norm1, self.norm2 = norm(o.embd, eps=1e-5), norm(o.embd, eps=1e-5)
        self.attention = Attention(o, not self.llama)
        self.up = nn.Linear(o.embd, (2 if self.llama else 1) * o.inner, bias=not self.llama)
        self.down = nn.Linear(o.inner, o.embd, bias=not self.llama)

    def forward(self, x, rope):
        x = x + self.attention(self.norm1(x), rope)
        h = self.up(self.norm2(x))
        if self.llama:
            gate, up = h.chunk(2, -1)
            return x + self.down(F.silu(gate) * up)
        return x + self.down(F.gelu(h, approximate="tanh"))


class Model(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.llama = o.family == "llama"
        self.tokens = nn.Embedding(o.vocab, o.embd)
        self.places = None if self.llama else nn.Embedding(o.seq, o.embd)
        self.blocks = nn.ModuleList(Block(o) for _ in range(o.layers))
        self.norm = (nn.RMSNorm if self.llama else nn.LayerNorm)(o.embd, eps=1e-5)
        self.head = nn.Linear(o.embd, o.vocab, bias=False)
        if not self.llama:
            self.head.weight = self.tokens.weight
        half = o.embd // o.heads // 2
        angle = torch.outer(torch.arange(o.seq), 10000.0 ** (-torch.arange(half) / half))[None, :, None, :]
        self.register_buffer("cosines", angle.cos().bfloat16(), persistent=False)
        self.register_buffer("sines", angle.sin().bfloat16(), persistent=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, targets):
        x = self.tokens(tokens)
        if self.places is not None:
            x = x + self.places.weight[: tokens.shape[1]]
        rope = (self.cosines, self.sines) if self.llama else None
        for block in self.blocks:
            x = block(x, rope)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.view(-1))


def measure(o, options, threads):
    """Best seconds of a step, and the last loss. None for threads: those that PyTorch takes."""
    on_gpu = options.device == "cuda"
    if threads:
        torch.set_num_threads(threads)
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = True
    model = Model(o).to(options.device)
    step_model = torch.compile(model) if options.compile else model
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW([dict(params=decay, weight_decay=0.1), dict(params=rest, weight_decay=0.0)], lr=1e-4,
                                  betas=(0.9, 0.95), fused=True)
    tokens = torch.randint(o.vocab, (o.batch, o.seq), device=options.device)
    targets = torch.randint(o.vocab, (o.batch, o.seq), device=options.device)

    def step():
        with torch.autocast(options.device, torch.bfloat16, enabled=options.dtype == "bf16"):
            loss = step_model(tokens, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=on_gpu)  # memory that is taken anew costs much on a processor
        return loss

    for _ in range(options.warmup):
        step()
    best = math.inf
    for _ in range(options.repeats):
        if on_gpu:
            torch.cuda.synchronize()
        start = time.perf_counter()
        loss = step()
        if on_gpu:
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best, loss.item(), sum(p.numel() for p in model.parameters())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--preset", choices=PRESETS, default="gpt2-124m")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--dtype", choices=("bf16", "f32"), default="bf16")
    parser.add_argument("--threads", help="numbers of threads, one after the other: 1,4,16")
    for size in ("batch", "seq", "layers", "vocab"):
        parser.add_argument("--" + size, type=int)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=10)
    options = parser.parse_args()
    sizes = dict(PRESETS[options.preset])
    sizes.update({name: value for name, value in vars(options).items() if name in sizes and value})
    o = argparse.Namespace(**sizes)
    for threads in map(int, options.threads.split(",")) if options.threads else (None,):
        best, loss, parameters = measure(o, options, threads)
        result = dict(preset=options.preset, torch=torch.__version__, device=options.device, dtype=options.dtype,
                      threads=torch.get_num_threads(), compiled=options.compile, step_s=best,
                      tokens_per_s=o.batch * o.seq / best, loss=loss, parameters=parameters)
        if options.device == "cuda":
            result["peak_memory"] = torch.cuda.max_memory_allocated()
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
