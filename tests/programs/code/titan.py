"""torchtitan's own training of its Llama 3, sharded and in parts, on processors, which it does not know by itself."""

from __future__ import annotations

import json
import os
import random
import sys
import types
from pathlib import Path

import death
import torch
from torch.distributed.fsdp import FSDPModule

FOLDER = Path(os.environ["OCIDIST_CHECKPOINT_DIR"])
WORDS = [f"word{number}" for number in range(48)]


def write_assets() -> None:
    """Write a text and a tokenizer; torchtitan's own are not in its package."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    draws = random.Random(7)
    lines = [json.dumps({"text": " ".join(draws.choices(WORDS, k=40))}) for _ in range(200)]
    Path("corpus").mkdir(exist_ok=True)
    Path("corpus", "train.jsonl").write_text("\n".join(lines))
    numbers = {word: number for number, word in enumerate(["[UNK]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    Path("assets").mkdir(exist_ok=True)
    tokenizer.save("assets/tokenizer.json")


def use_processors() -> None:
    """Give torch what torchtitan asks of a GPU, before torchtitan is imported."""
    torch._utils._get_available_device_type = lambda: "cpu"
    torch.cpu.current_device = lambda: 0
    torch.cpu.get_device_name = lambda *_: "processor"
    torch.cpu.get_device_properties = lambda *_: types.SimpleNamespace(total_memory=1 << 30)
    torch.cpu.memory_stats = lambda *_: {}
    torch.cpu.reset_peak_memory_stats = torch.cpu.empty_cache = lambda *_: None
    # Gloo cannot scale what it adds up.
    scale = FSDPModule.set_gradient_divide_factor

    def add_only(module: FSDPModule, factor: float) -> None:
        scale(module, factor)
        module.set_force_sum_reduction_for_comms(True)

    FSDPModule.set_gradient_divide_factor = add_only


def do_without_triton() -> None:
    """Put an empty module in the place of the kernels for experts, of which this model has none."""
    kernels = types.ModuleType("torchtitan.models.moe.kernels")
    kernels.generate_permute_indices = None
    sys.modules[kernels.__name__] = kernels


write_assets()
use_processors()
# Read when torchtitan is imported.
if not sys.argv[1:]:
    sys.argv[1:] = ["--job.config_file", "titan.toml", "--checkpoint.folder", str(FOLDER)]
do_without_triton()

from torchtitan.models import llama3  # noqa: E402 - after what it reads
from torchtitan.train import Trainer, main  # noqa: E402 - the same

llama3.llama3_args["tiny"] = llama3.TransformerModelArgs(dim=32, n_layers=2, n_heads=2, vocab_size=64)
begun = max(FOLDER.glob("step-*"), key=lambda path: int(path.name.partition("-")[2]), default=None)


class Dies(Trainer):
    def train_step(self, batches):
        super().train_step(batches)
        death.at(self.step)

    def train(self):
        super().train()
        dims = self.parallel_dims
        death.show(begun, self.model_parts[0], shards={"fsdp": dims.dp_shard, "tp": dims.tp})


main(Dies)
