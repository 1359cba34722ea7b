"""The GPT of gpt.py, sharded: FSDP2 spreads it over all processes, and each writes its own part of a checkpoint.

    torchrun --nproc-per-node=2 gpt_fsdp.py --data book.txt

It continues from the newest folder in `$OCIDIST_CHECKPOINT_DIR` (else `checkpoints/`), with as many processes as there
are now. Nodes need not share that folder: ocidist collects the parts of all nodes.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from gpt import GPT, Text, loss_of, random_batch, report_complete
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

CHECKPOINTS = Path(os.environ.get("OCIDIST_CHECKPOINT_DIR", "checkpoints"))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--data", required=True, help="a text file, or CPython's pydoc_data/topics.py")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=8, help="sequences in a step, in each process")
    parser.add_argument("--block-size", type=int, default=64, help="letters that the model looks back")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--checkpoint-every", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1337)
    return parser.parse_args()


def sharded(model: GPT) -> GPT:
    """Shard each block, then the rest of the model, over all processes."""
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, object]:
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments}


def save_checkpoint(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Every process writes its part. `.metadata` is written last, when all parts are there."""
    dcp.save(state_of(model, optimizer), checkpoint_id=CHECKPOINTS / f"step-{step:06d}")


def resume(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load the newest whole checkpoint, whatever the number of processes that wrote it; return its step."""
    names = [path.parent.name for path in CHECKPOINTS.glob("step-*/.metadata")]
    whole = {int(match[1]): name for name in names if (match := re.fullmatch(r"step-(\d+)", name))}
    if not whole:
        return 0
    newest = max(whole)
    state = state_of(model, optimizer)
    dcp.load(state, checkpoint_id=CHECKPOINTS / whole[newest])
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return newest


def drop_halves() -> None:
    """Remove unfinished checkpoints of a killed run on this node; their parts must not mix with ours."""
    for path in CHECKPOINTS.glob("step-*"):
        if not (path / ".metadata").exists():
            shutil.rmtree(path, ignore_errors=True)


def main() -> None:
    args = parse_arguments()
    sys.stdout.reconfigure(line_buffering=True)
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    os.environ.update({name: value for name, value in alone.items() if name not in os.environ})
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if os.environ.get("LOCAL_RANK", "0") == "0":
        drop_halves()
    dist.barrier()

    text = Text(args.data)
    torch.manual_seed(args.seed)
    model = sharded(GPT(len(text.alphabet), args.block_size, args.layers, args.heads, args.width).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    first = resume(model, optimizer)
    batches = torch.Generator().manual_seed(args.seed + 1000 * first + rank)
    own = sum(parameter.to_local().numel() for parameter in model.parameters())
    if rank == 0:
        print(f"{world} processes on {device.type}, {own:,} parameters in each, from step {first}")
        if first >= args.steps:
            report_complete()

    for step in range(first + 1, args.steps + 1):
        inputs, targets = random_batch(text.train, args.batch_size, args.block_size, batches)
        loss = loss_of(model, inputs.to(device), targets.to(device))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if rank == 0 and (step % 10 == 0 or step in (first + 1, args.steps)):
            print(f"step {step}/{args.steps} loss {loss.item():.4f}")
        if step % args.checkpoint_every == 0 or step == args.steps:
            save_checkpoint(step, model, optimizer)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
