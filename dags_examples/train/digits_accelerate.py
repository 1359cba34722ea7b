"""The classifier of digits.py, written for Hugging Face Accelerate, which finds its processes and devices itself.

    accelerate launch digits_accelerate.py --epochs 3

It continues from the newest folder in `$OCIDIST_CHECKPOINT_DIR` (else `checkpoints/`).
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import suppress
from pathlib import Path

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from digits import Net, accuracy, load_images, newest_checkpoint, report_complete
from torch.utils.data import DataLoader

CHECKPOINTS = Path(os.environ.get("OCIDIST_CHECKPOINT_DIR", "checkpoints"))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--epochs", default=3, type=int)
    parser.add_argument("--batch-size", default=16, type=int, help="images in a step, in each process")
    parser.add_argument("--learning-rate", default=1e-3, type=float)
    parser.add_argument("--print-freq", default=20, type=int, help="steps between two lines")
    parser.add_argument("--images", default=1500, type=int, help="how many to learn from, 1500 at most")
    return parser.parse_args()


def save_checkpoint(accelerator: Accelerator, step: int) -> None:
    """Write under another name, then rename, so that the file under its own name is always complete."""
    path = CHECKPOINTS / f"step-{step:06d}"
    partial = path.with_suffix(".tmp")
    accelerator.save_state(str(partial))
    accelerator.wait_for_everyone()
    # Processes of one node share a disk, those of two nodes may not: where they do, one of them is the first.
    if accelerator.is_local_main_process:
        with suppress(FileNotFoundError):
            partial.replace(path)
    accelerator.wait_for_everyone()


def main() -> None:
    args = parse_arguments()
    sys.stdout.reconfigure(line_buffering=True)
    accelerator = Accelerator()
    train_set, test_set = load_images(None, args.images)
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    loader = DataLoader(train_set, args.batch_size, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step = 0
    if checkpoint := newest_checkpoint(r"step-(\d+)"):
        accelerator.load_state(str(checkpoint))
        step = int(checkpoint.name.removeprefix("step-"))
    steps = args.epochs * len(loader)
    accelerator.print(
        f"{accelerator.num_processes} processes, {accelerator.distributed_type}, from step {step}"
    )
    if step >= steps and accelerator.is_main_process:
        report_complete()

    for _ in range(step // len(loader), args.epochs):
        for images, labels in loader:
            loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            step += 1
            if step % args.print_freq == 0 or step == steps:
                accelerator.print(f"step {step}/{steps} loss {loss.item():.4f}")
        save_checkpoint(accelerator, step)

    if accelerator.is_main_process:
        right = accuracy(accelerator.unwrap_model(model), test_set, accelerator.device)
        print(f"accuracy on {len(test_set)} images: {right:.1%}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
