"""A training that can be ended at any moment and resumes exactly: a short script with a comment on each step.

    python resumable.py --steps 300                              one process
    torchrun --nproc-per-node=2 resumable.py --steps 300         two; gloo on processors, nccl on GPUs

The model learns a sine; replace `model` and `batch` by your own model and data.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

# ocidist sets both. By hand, checkpoints go into a folder here, and the progress is not read.
CHECKPOINTS = Path(os.environ.get("OCIDIST_CHECKPOINT_DIR", "checkpoints"))
PROGRESS = os.environ.get("OCIDIST_PROGRESS_FILE", os.devnull)


def report(**values: Any) -> None:
    """Append one line of JSON: steps and loss appear in the task's log, on its page and in its result."""
    with Path(PROGRESS).open("a") as file:
        file.write(json.dumps(values) + "\n")


def batch(step: int, rank: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the data of one step on one process.

    It depends on step and rank only, so a resumed training gets the same data as an undisturbed one.
    """
    chance = torch.Generator().manual_seed(step * 10_000 + rank)
    x = torch.rand(32, 1, generator=chance) * 6
    return x.to(device), torch.sin(x).to(device)


def save(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write under another name, then rename, so that the file under its own name is always complete.

    ocidist does not take a file that ends in .tmp for a checkpoint. `newest` finds the highest step by the names.
    """
    CHECKPOINTS.mkdir(parents=True, exist_ok=True)
    path = CHECKPOINTS / f"step-{step:09d}.pt"
    draft = path.with_suffix(".tmp")
    # All that the next step depends on. Without the optimizer's momentum, the weights would differ after a resume.
    torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, draft)
    draft.replace(path)
    report(checkpoint=path.name, step=step)


def newest() -> Path | None:
    """Return the checkpoint to resume from; ocidist has fetched it to every node before the start."""
    return max(CHECKPOINTS.glob("step-*.pt"), default=None)


class StopFlag:
    """Set by SIGTERM, which ocidist sends `limits.stop_grace` (20 s) before it ends the processes."""

    def __init__(self, device: torch.device) -> None:
        self.asked = torch.zeros(1, device=device)
        signal.signal(signal.SIGTERM, lambda *_: self.asked.fill_(1))

    def is_set(self) -> bool:
        """Ask all processes: the signal reaches them in different steps, and all have to stop after the same one."""
        anywhere = self.asked.clone()
        dist.all_reduce(anywhere, op=dist.ReduceOp.MAX)
        return bool(anywhere.item())


def train(steps: int, save_every: int, device: torch.device, pause: float) -> None:
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    done = 0
    if checkpoint := newest():
        # weights_only: a checkpoint cannot run code. map_location: the GPU may be another one now.
        state = torch.load(checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["step"]
    print(f"rank {rank} of {dist.get_world_size()} on {device}, after step {done}", flush=True)
    if done >= steps and rank == 0:
        # A retry after the last step: without this line, a run that trains nothing would count as a failure.
        report(complete=True, step=done, steps=steps)

    parallel, stop = DistributedDataParallel(model), StopFlag(device)
    for step in range(done + 1, steps + 1):
        x, y = batch(step, rank, device)
        loss = nn.functional.mse_loss(parallel(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        stopping = stop.is_set()
        # Rank 0 alone writes: with DistributedDataParallel all processes hold the same weights.
        if rank == 0 and (step % 10 == 0 or step == steps):
            report(step=step, steps=steps, loss=loss.item())
        if rank == 0 and (stopping or step % save_every == 0 or step == steps):
            save(step, model, optimizer)
        if stopping:
            break
        time.sleep(pause)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after each step, for drills")
    args = parser.parse_args()
    # The launcher has set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT; alone, it is a world of one.
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    os.environ.update({name: value for name, value in alone.items() if name not in os.environ})
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        train(args.steps, args.save_every, device, args.pause)
    finally:
        # An exception still ends the process with 1: ocidist reports it, and retries go by its cause.
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
