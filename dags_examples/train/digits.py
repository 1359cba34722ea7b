"""An image classifier, trained on several machines: Oracle's PyTorch tutorial, with handwritten digits for CIFAR-10.

    python digits.py                                           one process
    torchrun --nproc-per-node=2 digits.py --epochs 3           two; gloo on processors, nccl on GPUs

Its network and arguments are the tutorial's. Its data come with scikit-learn, so it downloads nothing.
It continues from the newest file in `$OCIDIST_CHECKPOINT_DIR` (else `checkpoints/`).
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import re
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CHECKPOINTS = Path(os.environ.get("OCIDIST_CHECKPOINT_DIR", "checkpoints"))
TEST_IMAGES = 297


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument(
        "--data-dir", help="a folder with digits.csv.gz; without one, scikit-learn's own copy"
    )
    parser.add_argument("--epochs", default=10, type=int)
    parser.add_argument("--batch-size", default=16, type=int, help="images in a step, in each process")
    parser.add_argument("--workers", default=2, type=int, help="data loading workers of each process")
    parser.add_argument("--learning-rate", default=0.001, type=float)
    parser.add_argument("--momentum", default=0.9, type=float)
    parser.add_argument("--output-dir", default="outputs", help="where the trained model goes")
    parser.add_argument("--print-freq", default=20, type=int, help="steps between two lines")
    parser.add_argument("--backend", default="gloo", help="gloo, nccl or mpi")
    parser.add_argument("--timeout", default=30, type=int, help="minutes to wait for the other processes")
    parser.add_argument("--images", default=1500, type=int, help="how many to learn from, 1500 at most")
    return parser.parse_args()


# Data and model


def load_images(data_dir: str | None, count: int) -> tuple[TensorDataset, TensorDataset]:
    """Return images to train and to test on: 8x8 grey images, converted to 32x32 in colour as in CIFAR-10."""
    if data_dir:
        import numpy as np

        table = np.loadtxt(Path(data_dir) / "digits.csv.gz", delimiter=",")
        pixels, labels = table[:, :-1], table[:, -1]
    else:
        from sklearn.datasets import load_digits

        pixels, labels = load_digits(return_X_y=True)
    grey = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 8 - 1
    images = F.interpolate(grey, size=32).expand(-1, 3, -1, -1)
    numbers = torch.tensor(labels, dtype=torch.int64)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    test, train = order[:TEST_IMAGES], order[TEST_IMAGES:][:count]
    return TensorDataset(images[train], numbers[train]), TensorDataset(images[test], numbers[test])


class Net(nn.Module):
    """The tutorial's three convolutions and three layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 3)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.conv3 = nn.Conv2d(64, 128, 3)
        self.fc1 = nn.Linear(128 * 6 * 6, 120)
        self.dropout = nn.Dropout(p=0.2)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x))
        x = self.pool(F.relu(self.conv2(x)))
        x = self.pool(F.relu(self.conv3(x)))
        x = self.dropout(F.relu(self.fc1(x.flatten(1))))
        return self.fc3(F.relu(self.fc2(x)))


@torch.no_grad()
def accuracy(model: nn.Module, data: TensorDataset, device: torch.device) -> float:
    """Return the share of images that the model classifies correctly."""
    model.eval()
    right = sum(
        (model(images.to(device)).argmax(1) == labels.to(device)).sum().item()
        for images, labels in DataLoader(data, batch_size=64)
    )
    model.train()
    return right / len(data)


# Training


def newest_checkpoint(name: str = r"step-(\d+)\.pt") -> Path | None:
    """Return the checkpoint of the greatest number; what only resembles the name is a save that was cut off."""
    found = {
        int(match[1]): path for path in CHECKPOINTS.glob("*") if (match := re.fullmatch(name, path.name))
    }
    return found[max(found)] if found else None


def report_complete() -> None:
    """Report to ocidist that nothing was left to train: else a retry after the last step would count as a failure."""
    with Path(os.environ.get("OCIDIST_PROGRESS_FILE", os.devnull)).open("a") as file:
        file.write('{"complete": true}\n')


def save_checkpoint(step: int, epoch: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write under another name, then rename, so that the file under its own name is always complete."""
    CHECKPOINTS.mkdir(parents=True, exist_ok=True)
    path = CHECKPOINTS / f"step-{step:06d}.pt"
    partial = path.with_suffix(".tmp")
    state = {"step": step, "epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, partial)
    partial.replace(path)


def train(args: argparse.Namespace, device: torch.device) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    train_set, test_set = load_images(args.data_dir, args.images)
    sampler = DistributedSampler(train_set, world, rank)
    loader = DataLoader(train_set, args.batch_size, sampler=sampler, num_workers=args.workers)
    torch.manual_seed(0)
    model = Net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.learning_rate, momentum=args.momentum)
    step = first_epoch = 0
    if checkpoint := newest_checkpoint():
        state = torch.load(checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step, first_epoch = state["step"], state["epoch"]
    steps = step + (args.epochs - first_epoch) * len(loader)
    if rank == 0:
        print(f"{len(train_set)} images, {world} processes on {device.type}, from epoch {first_epoch}")
        if first_epoch >= args.epochs:
            report_complete()

    parallel = DistributedDataParallel(model)
    for epoch in range(first_epoch, args.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            loss = F.cross_entropy(parallel(images.to(device)), labels.to(device))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            step += 1
            if rank == 0 and (step % args.print_freq == 0 or step == steps):
                print(f"step {step}/{steps} loss {loss.item():.4f} epoch {epoch + 1}")
        if rank == 0:
            save_checkpoint(step, epoch + 1, model, optimizer)

    if rank == 0:
        folder = Path(args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), folder / "digits_net.pt")
        right = accuracy(model, test_set, device)
        (folder / "report.json").write_text(json.dumps({"steps": step, "accuracy": right}))
        print(f"accuracy on {len(test_set)} images: {right:.1%}")


def main() -> None:
    args = parse_arguments()
    sys.stdout.reconfigure(line_buffering=True)
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    os.environ.update({name: value for name, value in alone.items() if name not in os.environ})
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    dist.init_process_group(args.backend, timeout=dt.timedelta(minutes=args.timeout))
    train(args, device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
