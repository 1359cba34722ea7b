"""Learn which of two spirals a point is on: a small training that is really distributed, on CPUs and GPUs alike.

It resumes from the newest checkpoint, prints steps that ocidist understands, and writes its result into outputs/.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

# ocidist sets both. By hand, checkpoints go into a folder here, and nobody reads the progress.
CHECKPOINTS = Path(os.environ.get("OCIDIST_CHECKPOINT_DIR", "checkpoints"))
PROGRESS = Path(os.environ.get("OCIDIST_PROGRESS_FILE", os.devnull))


def spirals(points: int) -> TensorDataset:
    """Return points of two spirals, the same on every node, with the number of the spiral that each is on."""
    noise = torch.Generator().manual_seed(0)
    spiral = torch.arange(points) % 2
    radius = torch.linspace(0.1, 1.0, points)
    angle = 3 * math.pi * radius + math.pi * spiral
    place = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)
    return TensorDataset(place + 0.02 * torch.randn(points, 2, generator=noise), spiral.float())


def newest_checkpoint() -> Path | None:
    found = [path for path in CHECKPOINTS.glob("step-*.pt") if path.stem.partition("-")[2].isdecimal()]
    return max(found, key=lambda path: int(path.stem.partition("-")[2]), default=None)


def save_checkpoint(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write under another name, then rename: under its own name a checkpoint is always complete."""
    CHECKPOINTS.mkdir(parents=True, exist_ok=True)
    draft = CHECKPOINTS / "draft.pt"
    torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, draft)
    draft.rename(CHECKPOINTS / f"step-{step:06d}.pt")


def train(args: argparse.Namespace, device: torch.device) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)).to(
        device
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=args.learning_rate)
    step = 0
    if checkpoint := newest_checkpoint():
        state = torch.load(checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    print(f"rank {rank} of {world} on {device}, beginning after step {step}", flush=True)
    if step >= args.steps and rank == 0:
        # A retry after the last step: without this line, a run that trains nothing would count as a failure.
        with PROGRESS.open("a") as file:
            file.write(json.dumps({"complete": True, "step": step, "steps": args.steps}) + "\n")
    parallel = DistributedDataParallel(model)
    data = spirals(2048)
    sampler: DistributedSampler = DistributedSampler(data, seed=step)
    loss_of = nn.BCEWithLogitsLoss()
    epoch, loss = 0, torch.tensor(math.nan)
    while step < args.steps:
        sampler.set_epoch(epoch)
        epoch += 1
        for places, labels in DataLoader(data, batch_size=args.batch_size, sampler=sampler):
            step += 1
            optimizer.zero_grad()
            loss = loss_of(parallel(places.to(device)).squeeze(1), labels.to(device))
            loss.backward()
            optimizer.step()
            if rank == 0 and (step % 20 == 0 or step == args.steps):
                print(f"step {step}/{args.steps} loss {loss.item():.4f}", flush=True)
            if rank == 0 and (step % args.checkpoint_every == 0 or step == args.steps):
                save_checkpoint(step, model, optimizer)
            if step == args.steps:
                break
    if rank == 0:
        report(model, data, step, device)


def report(model: nn.Module, data: TensorDataset, step: int, device: torch.device) -> None:
    places, labels = data.tensors
    with torch.no_grad():
        right = ((model(places.to(device)).squeeze(1) > 0).float().cpu() == labels).float().mean().item()
    outputs = Path("outputs")
    outputs.mkdir(exist_ok=True)
    (outputs / "summary.json").write_text(json.dumps({"steps": step, "accuracy": right}))
    print(f"{right:.1%} of the points are classified correctly", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument("--checkpoint-every", type=int, default=100)
    parser.add_argument("--local_rank", type=int, help="given by DeepSpeed's launcher")
    args = parser.parse_args()
    # The launcher sets the addresses of all processes.
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        train(args, device)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
