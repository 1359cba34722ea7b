"""A forecast of the hourly demand for electricity, by weather and hour. Most example DAGs train it.

    python demand.py --data readings/                                one process
    torchrun --nproc-per-node=2 demand.py --data readings/           two; gloo on processors, nccl on GPUs
    python demand.py --data readings/ --examine model/               no training: prints the model's error

Learns from every `*.csv` below `--data`, with the columns hour, temperature and demand. It continues from the newest
file in `$OCIDIST_CHECKPOINT_DIR` (else `checkpoints/`) up to `--epochs`.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import re
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

CHECKPOINTS = Path(os.environ.get("OCIDIST_CHECKPOINT_DIR", "checkpoints"))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a folder of CSV files")
    parser.add_argument("--epochs", type=int, default=int(os.environ.get("EPOCHS", "200")))
    parser.add_argument("--learning-rate", type=float, default=float(os.environ.get("LEARNING_RATE", "0.02")))
    parser.add_argument("--checkpoint-every", type=int, default=100, help="epochs")
    parser.add_argument("--examine", type=Path, help="a folder with a checkpoint")
    return parser.parse_args()


def read_hours(folder: Path) -> tuple[Tensor, Tensor]:
    """Return the features of each hour, and its demand in GW; hours without a reading are left out."""
    known, demand = [], []
    for path in sorted(folder.rglob("*.csv")):
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                if all(row.values()):
                    angle = 2 * math.pi * int(row["hour"][11:13]) / 24
                    known.append([math.sin(angle), math.cos(angle), float(row["temperature"]) / 20])
                    demand.append([float(row["demand"]) / 1000])
    if not known:
        raise SystemExit(f"no hour with a reading in any *.csv below {folder}")
    return torch.tensor(known), torch.tensor(demand)


def new_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 1))


def newest_checkpoint(folder: Path) -> Path | None:
    """Return the checkpoint of the greatest number; what only resembles the name is a save that was cut off."""
    name = re.compile(r"epoch-(\d+)\.pt")
    found = {int(match[1]): path for path in folder.glob("*") if (match := name.fullmatch(path.name))}
    return found[max(found)] if found else None


def report_complete() -> None:
    """Report to ocidist that nothing was left to train: else a retry after the last step would count as a failure."""
    with Path(os.environ.get("OCIDIST_PROGRESS_FILE", os.devnull)).open("a") as file:
        file.write('{"complete": true}\n')


def save_checkpoint(epoch: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write under another name, then rename, so that the file under its own name is always complete."""
    CHECKPOINTS.mkdir(parents=True, exist_ok=True)
    path = CHECKPOINTS / f"epoch-{epoch:06d}.pt"
    partial = path.with_suffix(".tmp")
    torch.save({"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, partial)
    partial.replace(path)


def train(args: argparse.Namespace, device: torch.device) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    known, demand = (values[rank::world].to(device) for values in read_hours(args.data))
    model = new_model().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.learning_rate)
    first = 0
    if checkpoint := newest_checkpoint(CHECKPOINTS):
        state = torch.load(checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"]
    if rank == 0:
        print(f"{len(demand)} hours on each of {world} processes, from epoch {first}")
        if first >= args.epochs:
            report_complete()

    parallel = DistributedDataParallel(model)
    for epoch in range(first + 1, args.epochs + 1):
        loss = F.mse_loss(parallel(known), demand)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if rank == 0 and (epoch % 20 == 0 or epoch == args.epochs):
            print(f"step {epoch}/{args.epochs} loss {loss.item():.5f}")
        if rank == 0 and (epoch % args.checkpoint_every == 0 or epoch == args.epochs):
            save_checkpoint(epoch, model, optimizer)


@torch.no_grad()
def examine(args: argparse.Namespace) -> None:
    checkpoint = newest_checkpoint(args.examine)
    if checkpoint is None:
        raise SystemExit(f"there is no model in {args.examine}")
    model = new_model()
    model.load_state_dict(torch.load(checkpoint, map_location="cpu", weights_only=True)["model"])
    known, demand = read_hours(args.data)
    print(f"step 1/1 loss {F.mse_loss(model(known), demand).item():.5f}")


def main() -> None:
    args = parse_arguments()
    sys.stdout.reconfigure(line_buffering=True)
    if args.examine:
        examine(args)
        return
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    os.environ.update({name: value for name, value in alone.items() if name not in os.environ})
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    train(args, device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
