#!/usr/bin/env python3
"""The pipelines of `sluice bench pipeline` in PyTorch (torch.distributed.pipelining), for comparisons on the same GPU: the
same shapes, bf16 products with f32 weights and gradients (autocast), fused AdamW. Prints one line of JSON per number of
ranks and schedule; one rank is a plain loop over the microbatches. Ranks that share one GPU get an NCCL_HOSTID each,
without which NCCL refuses them.

    python3 bench/torch_pipeline.py --ranks 1,2,4 --schedules 1F1B,ZBVZeroBubble
"""
import argparse
import json
import os
import socket
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.pipelining import PipelineStage, schedules

from torch_step import Block


class Part(nn.Module):
    """Stage `index` of `count`: its share of the blocks, the embeddings if it is the first, the head if it is the last."""

    def __init__(self, o, index, count):
        super().__init__()
        first, last = o.layers * index // count, o.layers * (index + 1) // count
        self.tokens = nn.Embedding(o.vocab, o.embd) if index == 0 else None
        self.places = nn.Embedding(o.seq, o.embd) if index == 0 else None
        self.blocks = nn.ModuleList(Block(o) for _ in range(first, last))
        self.norm = nn.LayerNorm(o.embd, eps=1e-5) if index == count - 1 else None
        self.head = nn.Linear(o.embd, o.vocab, bias=False) if index == count - 1 else None
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, x):
        if self.tokens is not None:
            x = self.tokens(x) + self.places.weight[: x.shape[1]]
        for block in self.blocks:
            x = block(x, None)
        x = x if self.head is None else self.head(self.norm(x))
        return x.to(torch.bfloat16)


def loss_of(logits, targets):
    return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.view(-1))


def stage_indices(name, rank, ranks):
    if name in ("GPipe", "1F1B"):
        return [rank], ranks
    if name in ("ZBVZeroBubble", "DualPipeV"):
        return [rank, 2 * ranks - 1 - rank], 2 * ranks
    return [rank, rank + ranks], 2 * ranks


def make_schedule(name, parts, indices, count, o, device):
    rows = o.batch // o.microbatches
    hidden = torch.empty(rows, o.seq, o.embd, dtype=torch.bfloat16, device=device)
    ids = torch.empty(rows, o.seq, dtype=torch.int64, device=device)
    logits = torch.empty(rows, o.seq, o.vocab, dtype=torch.bfloat16, device=device)
    stages = [PipelineStage(part, index, count, device, input_args=(ids if index == 0 else hidden,),
                            output_args=(logits if index == count - 1 else hidden,))
              for part, index in zip(parts, indices)]
    kind = getattr(schedules, "Schedule" + name)
    return kind(stages[0] if len(indices) == 1 else stages, o.microbatches, loss_fn=loss_of)


def run(rank, ranks, name, o, port):
    device = torch.device("cuda", 0) if o.device == "cuda" else torch.device("cpu")
    if ranks > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), NCCL_HOSTID=f"rank{rank}")
        dist.init_process_group("nccl" if o.device == "cuda" else "gloo", rank=rank, world_size=ranks)
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = True
    indices, count = stage_indices(name, rank, ranks) if ranks > 1 else ([0], 1)
    parts = [Part(o, index, count).to(device) for index in indices]
    schedule = make_schedule(name, parts, indices, count, o, device) if ranks > 1 else None
    optimizer = torch.optim.AdamW([p for part in parts for p in part.parameters()], lr=1e-4, betas=(0.9, 0.95),
                                  fused=o.device == "cuda")
    tokens = torch.randint(o.vocab, (o.batch, o.seq), device=device)
    targets = torch.randint(o.vocab, (o.batch, o.seq), device=device)

    def step():
        if schedule is None:
            for x, y in zip(tokens.chunk(o.microbatches), targets.chunk(o.microbatches)):
                with torch.autocast(o.device, torch.bfloat16):
                    loss = loss_of(parts[0](x), y) / o.microbatches
                loss.backward()
        else:
            with torch.autocast(o.device, torch.bfloat16):
                schedule.step(*([tokens] if 0 in indices else []), **({"target": targets} if count - 1 in indices else {}))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def wait():
        if o.device == "cuda":
            torch.cuda.synchronize()
        if ranks > 1:
            dist.barrier()

    for _ in range(3):
        step()
    wait()
    start = time.perf_counter()
    for _ in range(o.steps):
        step()
    wait()
    seconds = (time.perf_counter() - start) / o.steps
    if rank == 0:
        print(json.dumps(dict(torch=torch.__version__, schedule=name if ranks > 1 else "one process", ranks=ranks,
                              stages=count, step_s=seconds, tokens_per_s=o.batch * o.seq / seconds)), flush=True)
    if ranks > 1:
        dist.destroy_process_group()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--ranks", default="1,2,4", help="numbers of ranks, separated by commas")
    parser.add_argument("--schedules", default="1F1B", help="names, separated by commas")
    for key, value in dict(batch=64, microbatches=8, seq=1024, embd=768, layers=12, heads=12, vocab=50304, steps=10).items():
        parser.add_argument(f"--{key}", type=int, default=value)
    o = parser.parse_args()
    o.family, o.kv_heads, o.inner = "gpt2", o.heads, 4 * o.embd
    for ranks in map(int, o.ranks.split(",")):
        for name in o.schedules.split(",") if ranks > 1 else ["one process"]:
            mp.spawn(run, (ranks, name, o, free_port()), nprocs=ranks)


if __name__ == "__main__":
    main()
