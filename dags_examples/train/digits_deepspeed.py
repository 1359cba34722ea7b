"""The classifier of digits.py, written for DeepSpeed: ZeRO keeps a part of the optimizer in each process.

    deepspeed digits_deepspeed.py --epochs 3

It continues from the newest folder in `$OCIDIST_CHECKPOINT_DIR` (else `checkpoints/`). All processes write to
it; nodes need not share it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import deepspeed
import deepspeed.ops
import torch
import torch.distributed as dist
import torch.nn.functional as F
from digits import Net, accuracy, load_images, newest_checkpoint, report_complete
from torch.utils.data import DataLoader, DistributedSampler

CHECKPOINTS = Path(os.environ.get("OCIDIST_CHECKPOINT_DIR", "checkpoints"))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--epochs", default=3, type=int)
    parser.add_argument("--batch-size", default=16, type=int, help="images in a step, in each process")
    parser.add_argument("--learning-rate", default=1e-3, type=float)
    parser.add_argument("--zero-stage", default=2, type=int, choices=range(4))
    parser.add_argument("--print-freq", default=20, type=int, help="steps between two lines")
    parser.add_argument("--images", default=1500, type=int, help="how many to learn from, 1500 at most")
    parser.add_argument("--local_rank", type=int, help="given by DeepSpeed's launcher")
    return parser.parse_args()


def configuration(args: argparse.Namespace) -> dict[str, object]:
    return {
        "train_micro_batch_size_per_gpu": args.batch_size,
        "zero_optimization": {"stage": args.zero_stage},
        "steps_per_print": 1_000_000,  # we print our own
    }


def save_checkpoint(engine: deepspeed.DeepSpeedEngine, step: int) -> None:
    """Let all processes write under another name, then rename, so that the folder under its own name is complete."""
    name = f"step-{step:06d}"
    draft = CHECKPOINTS / f".{name}.part"
    shutil.rmtree(draft, ignore_errors=True)
    dist.barrier()
    engine.save_checkpoint(str(CHECKPOINTS), draft.name, save_latest=False)
    dist.barrier()
    # The first process of those that share the folder does it: nodes share one, or have one each.
    with suppress(FileNotFoundError):
        draft.rename(CHECKPOINTS / name)
    if dist.get_rank() == 0:
        (CHECKPOINTS / "latest").write_text(name)


def main() -> None:
    args = parse_arguments()
    sys.stdout.reconfigure(line_buffering=True)
    on_gpus = torch.cuda.is_available()
    if not on_gpus:
        # DeepSpeed would compile collectives over shared memory first, for half a minute, and need a compiler.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("nccl" if on_gpus else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    train_set, test_set = load_images(None, args.images)
    sampler = DistributedSampler(train_set, world, rank)
    loader = DataLoader(train_set, args.batch_size, sampler=sampler)
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    engine, _, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=configuration(args))
    step = 0
    if checkpoint := newest_checkpoint(r"step-(\d+)"):
        engine.load_checkpoint(str(CHECKPOINTS), checkpoint.name)
        step = int(checkpoint.name.removeprefix("step-"))
    steps = args.epochs * len(loader)
    if rank == 0:
        print(f"{world} processes, ZeRO stage {args.zero_stage}, from step {step}")
        if step >= steps:
            report_complete()

    for epoch in range(step // len(loader), args.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            loss = F.cross_entropy(engine(images.to(engine.device)), labels.to(engine.device))
            engine.backward(loss)
            engine.step()
            step += 1
            if rank == 0 and (step % args.print_freq == 0 or step == steps):
                print(f"step {step}/{steps} loss {loss.item():.4f}")
        save_checkpoint(engine, step)

    right = accuracy(engine.module, test_set, engine.device) if args.zero_stage < 3 else None
    if rank == 0 and right is not None:
        print(f"accuracy on {len(test_set)} images: {right:.1%}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
