"""Runs found plans, lowered, in PyTorch's schedule runtime and compares losses and gradients with one process.

usage: schedules_check.py SLUICE
Each plan splits I from W and is read as it was written, with its SEND and RECV, by as many processes as it has ranks.
"""
import os
import subprocess
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

WIDTH, ROWS = 8, 3  # of a layer, of a microbatch
COSTS = "F=10,I=12,W=8,comm=1"
PLANS = [
    # placement, ranks, stages a rank, microbatches, memory
    ("linear", 2, 1, 5, "2"),
    ("linear", 4, 1, 8, "4"),
    ("linear", 4, 1, 10, "8"),
    ("interleaved", 2, 2, 6, "3"),
    ("interleaved", 4, 2, 8, "6"),
    ("interleaved", 2, 3, 4, "4"),
    ("v", 2, 2, 6, "2"),
    ("v", 3, 2, 7, "3"),
    ("v", 4, 2, 8, "4"),
]


def stage_module(stage):
    torch.manual_seed(stage)
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH)).double()


def batch(microbatches):
    torch.manual_seed(1000)
    shape = (ROWS * microbatches, WIDTH)
    return torch.randn(shape, dtype=torch.float64), torch.randn(shape, dtype=torch.float64)


def loss_of(output, target):
    return torch.nn.functional.mse_loss(output, target)


class Stage(PipelineStage):
    """Gloo cannot send to its own rank, which PyTorch tries at the turn of a V when it opens its connections."""

    def _get_init_p2p_neighbors_ops(self):
        return [op for op in super()._get_init_p2p_neighbors_ops() if op.group_peer != self.group_rank]


def stages_of(placement, ranks, chunks, rank):
    if placement == "v":
        return [rank, 2 * ranks - 1 - rank]
    return [rank + chunk * ranks for chunk in range(chunks)]


def alone(stages, microbatches):
    """Losses of all microbatches and gradients of all stages, in one process."""
    model = torch.nn.Sequential(*[stage_module(stage) for stage in range(stages)])
    inputs, targets = batch(microbatches)
    losses = []
    for x, y in zip(inputs.chunk(microbatches), targets.chunk(microbatches)):
        losses.append(loss_of(model(x), y))
        losses[-1].backward()
    return torch.stack(losses).detach(), [[p.grad for p in stage.parameters()] for stage in model]


def run_rank(rank, plan, path, port):
    placement, ranks, chunks, microbatches, _ = plan
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    own, count = stages_of(placement, ranks, chunks, rank), ranks * chunks
    modules = {stage: stage_module(stage) for stage in own}
    stages = [Stage(modules[stage], stage, count, torch.device("cpu")) for stage in own]
    schedule = _PipelineScheduleRuntime(stages, microbatches, loss_fn=loss_of, scale_grads=False)
    schedule._load_csv(path, format="compute_comms")
    inputs, targets = batch(microbatches)
    losses = []
    schedule.step(*([inputs] if 0 in own else []), **({"target": targets, "losses": losses} if count - 1 in own else {}))
    expected_losses, expected = alone(count, microbatches)
    for stage in own:
        for ours, theirs in zip([p.grad for p in modules[stage].parameters()], expected[stage]):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14, msg=lambda text: f"stage {stage}: {text}")
    if count - 1 in own:
        torch.testing.assert_close(torch.stack(losses).detach(), expected_losses, rtol=1e-12, atol=1e-14)
    dist.barrier()
    dist.destroy_process_group()


def check(sluice, plan, folder, port):
    placement, ranks, chunks, microbatches, memory = plan
    path = os.path.join(folder, "plan.csv")
    command = [sluice, "plan", "--auto", "--placement", placement, "--ranks", str(ranks), "--microbatches", str(microbatches),
               "--memory", memory, "--costs", COSTS, "--lower", "-o", path]
    if placement == "interleaved":
        command += ["--stages-per-rank", str(chunks)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    cells = open(path).read().replace("\n", ",").split(",")
    assert any("I" in cell and "W" not in cell for cell in cells) and any("SEND_F" in cell for cell in cells), command
    mp.spawn(run_rank, (plan, path, port), nprocs=ranks)
    print(f"{placement}, {ranks} ranks, {chunks} stages each, {microbatches} microbatches, memory {memory}: equal", flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as work:
        for number, each in enumerate(PLANS):
            check(sys.argv[1], each, work, 29600 + number)
    print(f"{len(PLANS)} plans ran in PyTorch {torch.__version__}")
