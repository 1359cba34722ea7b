"""A small GPT that learns to continue a text, letter by letter.

    python gpt.py --data book.txt                              one process
    torchrun --nproc-per-node=2 gpt.py --data book.txt         two; gloo on processors, nccl on GPUs

It continues from the newest file in `$OCIDIST_CHECKPOINT_DIR` (else `checkpoints/`), and writes `metrics.jsonl`,
`sample.txt` and `summary.json` into `outputs/`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import runpy
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

CHECKPOINTS = Path(os.environ.get("OCIDIST_CHECKPOINT_DIR", "checkpoints"))
OUTPUTS = Path("outputs")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--data", required=True, help="a text file, or CPython's pydoc_data/topics.py")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=16, help="sequences in a step, over all processes")
    parser.add_argument("--block-size", type=int, default=64, help="letters that the model looks back")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--eval-every", type=int, default=50)
    parser.add_argument("--checkpoint-every", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1337)
    parser.add_argument("--sample", type=int, default=400, help="letters to write at the end")
    return parser.parse_args()


# Text


class Text:
    """Letters as numbers: nine tenths to train on, one tenth to test on."""

    def __init__(self, path: str) -> None:
        text = read_text(path)
        self.alphabet = sorted(set(text))
        index = {letter: number for number, letter in enumerate(self.alphabet)}
        numbers = torch.tensor([index[letter] for letter in text])
        self.train, self.validation = numbers.split(
            [len(numbers) * 9 // 10, len(numbers) - len(numbers) * 9 // 10]
        )

    def decode(self, numbers: Tensor) -> str:
        return "".join(self.alphabet[number] for number in numbers.tolist())


def read_text(path: str) -> str:
    if path.endswith(".py"):
        topics = runpy.run_path(path).get("topics")
        if isinstance(topics, dict):
            return "\n".join(topics.values())
    return Path(path).read_text(encoding="utf-8")


def random_batch(numbers: Tensor, size: int, block: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return `size` random passages, and the same passages one letter further on."""
    starts = torch.randint(len(numbers) - block, (size,), generator=generator)
    passages = torch.stack([numbers[start : start + block + 1] for start in starts])
    return passages[:, :-1], passages[:, 1:]


# Model


class Block(nn.Module):
    """One transformer block: attention to earlier letters, then a feed-forward network."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.think = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm_1(x))
        return x + self.think(self.norm_2(x))

    def attend(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.query_key_value(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.project(seen.transpose(1, 2).reshape(batch, length, width))


class GPT(nn.Module):
    """The whole model: takes letters, returns the logits of each next letter."""

    def __init__(self, letters: int, block_size: int, layers: int, heads: int, width: int) -> None:
        super().__init__()
        self.block_size = block_size
        self.letter = nn.Embedding(letters, width)
        self.position = nn.Parameter(torch.zeros(block_size, width))
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, letters, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, letters: Tensor) -> Tensor:
        x = self.letter(letters) + self.position[: letters.shape[1]]
        return self.head(self.norm(self.blocks(x)))

    @torch.no_grad()
    def write(self, start: Tensor, length: int) -> Tensor:
        text = start[None]
        for _ in range(length):
            odds = self(text[:, -self.block_size :])[:, -1].softmax(-1)
            text = torch.cat([text, torch.multinomial(odds, 1)], dim=1)
        return text[0]


def loss_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


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


def save_checkpoint(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write under another name, then rename, so that the file under its own name is always complete."""
    CHECKPOINTS.mkdir(parents=True, exist_ok=True)
    path = CHECKPOINTS / f"step-{step:06d}.pt"
    partial = path.with_suffix(".tmp")
    torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, partial)
    partial.replace(path)


def learning_rate(step: int, args: argparse.Namespace) -> float:
    """Rise over the first steps, then fall along a cosine to a tenth."""
    warm = min(1.0, (step + 1) / 20)
    return args.learning_rate * warm * (0.55 + 0.45 * math.cos(math.pi * step / args.steps))


def validation_loss(model: nn.Module, text: Text, args: argparse.Namespace, device: torch.device) -> float:
    """Return the loss on the same few passages each time."""
    generator = torch.Generator().manual_seed(args.seed)
    with torch.no_grad():
        inputs, targets = random_batch(text.validation, 64, args.block_size, generator)
        return loss_of(model, inputs.to(device), targets.to(device)).item()


def refuse_if_nothing_to_train(args: argparse.Namespace, text: Text, share: int) -> None:
    if min(share, args.steps) < 1 or len(text.validation) <= args.block_size + 1:
        raise SystemExit(
            f"nothing to train: {args.steps} steps, {share} sequences a process, "
            f"{len(text.validation)} letters to be examined on"
        )


def begin_or_resume(
    args: argparse.Namespace, text: Text, device: torch.device
) -> tuple[GPT, torch.optim.Optimizer, int]:
    """Return model and optimizer as the newest checkpoint has them, and its step; 0 without a checkpoint."""
    torch.manual_seed(args.seed)
    model = GPT(len(text.alphabet), args.block_size, args.layers, args.heads, args.width).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    checkpoint = newest_checkpoint()
    if checkpoint is None:
        return model, optimizer, 0
    state = torch.load(checkpoint, map_location=device, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return model, optimizer, state["step"]


def learn(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: tuple[Tensor, Tensor], rate: float
) -> Tensor:
    """Take one step; return the loss before it."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    loss = loss_of(model, *batch)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss


def train(args: argparse.Namespace, device: torch.device) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    text = Text(args.data)
    share = args.batch_size // world
    refuse_if_nothing_to_train(args, text, share)
    model, optimizer, first = begin_or_resume(args, text, device)
    parallel = DistributedDataParallel(model)
    batches = torch.Generator().manual_seed(args.seed + 1000 * first + rank)
    report = Report(args, text, model, device, first) if rank == 0 else None
    if report is not None and first >= args.steps:
        report_complete()
    for step in range(first + 1, args.steps + 1):
        inputs, targets = random_batch(text.train, share, args.block_size, batches)
        batch = inputs.to(device), targets.to(device)
        loss = learn(parallel, optimizer, batch, learning_rate(step - 1, args))
        if report is not None:
            report.add(step, loss)
            if step % args.checkpoint_every == 0 or step == args.steps:
                save_checkpoint(step, model, optimizer)
    if report is not None:
        report.finish()


# What is printed, and written into `outputs/`


class Report:
    """Loss and speed of a training, from its first process."""

    def __init__(
        self, args: argparse.Namespace, text: Text, model: GPT, device: torch.device, first: int
    ) -> None:
        """`first`: the step that the training goes on from."""
        self.args, self.text, self.model, self.device, self.first = args, text, model, device, first
        self.world = dist.get_world_size()
        self.share = args.batch_size // self.world
        self.parameters = sum(p.numel() for p in model.parameters())
        print(
            f"{self.parameters:,} parameters, {len(text.train):,} letters, seed {args.seed}, from step {first}"
        )
        print(
            f"{self.world} processes on {device.type}, {self.share} sequences of {args.block_size} letters each"
        )
        OUTPUTS.mkdir(exist_ok=True)
        self.metrics = (OUTPUTS / "metrics.jsonl").open("a" if first else "w")
        self.began = time.perf_counter()
        self.first_val = self.val_loss = validation_loss(model, text, args, device)

    def add(self, step: int, loss: Tensor) -> None:
        """Print every tenth step, and the first and the last."""
        last = self.args.steps
        if step % 10 and step not in (self.first + 1, last):
            return
        if step % self.args.eval_every == 0 or step == last:
            self.val_loss = validation_loss(self.model, self.text, self.args, self.device)
        seconds = time.perf_counter() - self.began
        speed = (step - self.first) * self.share * self.world * self.args.block_size / seconds
        record = {"step": step, "loss": loss.item(), "val_loss": self.val_loss, "time": seconds}
        print(f"step {step}/{last} loss {loss.item():.4f} val {self.val_loss:.4f} tokens/s {speed:.0f}")
        print(json.dumps(record), file=self.metrics, flush=True)

    def finish(self) -> None:
        """Write a text of the model's own, and a summary."""
        start = self.text.validation[:1].to(self.device)
        sample = self.text.decode(self.model.write(start, self.args.sample))
        (OUTPUTS / "sample.txt").write_text(sample + "\n", encoding="utf-8")
        summary = {
            "val_loss_first": self.first_val,
            "val_loss_last": self.val_loss,
            "steps": self.args.steps,
            "resumed_from": self.first,
            "parameters": self.parameters,
            "processes": self.world,
            "seconds": round(time.perf_counter() - self.began, 2),
        }
        (OUTPUTS / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")


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
    train(args, device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
