"""A training whose saves hardly stop it: the state is copied in memory, and written and sent while it continues.

    torchrun --nproc-per-node=2 saved.py --steps 300

`Saves` makes checkpoints by torch.distributed.checkpoint, with or without shards, and restores the newest whole one. It
can be imported on every node; elsewhere install the package, or copy its file saves.py.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from airflow_provider_ocidist.saves import Saves

PROGRESS = os.environ.get("OCIDIST_PROGRESS_FILE", os.devnull)


def report(**values: Any) -> None:
    """Append one line of JSON: steps and loss appear in the task's log, on its page and in its result."""
    with Path(PROGRESS).open("a") as file:
        file.write(json.dumps(values) + "\n")


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    """Return the data of one step on one process; it depends on step and rank only, a resumed training repeats it."""
    chance = torch.Generator().manual_seed(step * 10_000 + rank)
    x = torch.rand(32, 1, generator=chance) * 6
    return x, torch.sin(x)


def train(steps: int, save_every: int, pause: float) -> None:
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    saves = Saves(model, optimizer)
    done = saves.restore()
    print(f"rank {rank} of {dist.get_world_size()}, after step {done}", flush=True)
    if done >= steps and rank == 0:
        # A retry after the last step: without this line, a run that trains nothing would count as a failure.
        report(complete=True, step=done, steps=steps)
    for step in range(done + 1, steps + 1):
        x, y = batch(step, rank)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if rank == 0 and (step % 10 == 0 or step == steps):
            report(step=step, steps=steps, loss=loss.item())
        if step % save_every == 0 or step == steps:
            # All processes, in the same step; it returns when the copy is made.
            saves.save(step)
        time.sleep(pause)
    # Before the process group goes: the last save is still being written.
    saves.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after each step")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    try:
        train(args.steps, args.save_every, args.pause)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
