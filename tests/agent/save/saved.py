"""Checkpoints as torch and its frameworks write them: names and bytes, in the order in which they are written."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import shutil
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Save:
    """One save of a program."""

    kind: str
    name: str
    """Of the entry in the checkpoint folder."""
    files: tuple[tuple[str, bytes], ...]
    """Relative to the checkpoint folder."""

    @property
    def content(self) -> dict[str, bytes]:
        """The files of the entry itself."""
        inside = ((path, data) for path, data in self.files if path.split("/")[0] == self.name)
        return {path.partition("/")[2] or path: data for path, data in inside}


def move(folder: Path, to: Path) -> Path:
    """Rename a folder as a program does that has written for longer than a tick of the kernel's clock."""
    for each, _, _ in os.walk(folder):
        os.utime(each, (1, 1))
    return folder.rename(to)


# torch is imported where it is used: each worker collects these tests, and few run them.
def torch_bytes(value: Any, *, legacy: bool = False) -> bytes:
    import torch

    buffer = io.BytesIO()
    torch.save(value, buffer, _use_new_zipfile_serialization=not legacy)
    return buffer.getvalue()


def some_state(random_: random.Random, **more: Any) -> dict[str, Any]:
    import torch

    size = random_.randrange(200, 4000)
    tensors = {f"layer.{number}": torch.rand(size) for number in range(random_.randrange(1, 6))}
    return {"model": tensors, "epoch": 3, **more}


def rng_state_bytes() -> bytes:
    import torch

    return torch_bytes({"cpu": torch.get_rng_state()})


def safetensors_bytes(random_: random.Random) -> bytes:
    header, data = {}, b""
    for number in range(random_.randrange(1, 5)):
        tensor = random_.randbytes(random_.randrange(1, 9000))
        header[f"w{number}"] = {
            "dtype": "U8",
            "shape": [len(tensor)],
            "data_offsets": [len(data), len(data) + len(tensor)],
        }
        data += tensor
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def _torch_file(step: int, random_: random.Random) -> Save:
    name = f"step-{step:06}.pt"
    return Save("torch", name, ((name, torch_bytes(some_state(random_))),))


def _legacy_file(step: int, random_: random.Random) -> Save:
    name = f"model_step_{step}.pth"
    return Save("legacy", name, ((name, torch_bytes(some_state(random_), legacy=True)),))


def _lightning(step: int, random_: random.Random) -> Save:
    name = f"epoch={step // 100}-step={step}.ckpt"
    return Save("lightning", name, ((name, torch_bytes(some_state(random_, global_step=step))),))


def _last(step: int, random_: random.Random) -> Save:
    return Save("last", "last.ckpt", (("last.ckpt", torch_bytes(some_state(random_, global_step=step))),))


def _snapshot(step: int, random_: random.Random) -> Save:
    state = some_state(random_, finished_epoch=step)
    return Save("snapshot", "snapshot.pt", (("snapshot.pt", torch_bytes(state)),))


def _one_safetensors(step: int, random_: random.Random) -> Save:
    name = f"step_{step}.safetensors"
    return Save("safetensors", name, ((name, safetensors_bytes(random_)),))


def _trainer(step: int, random_: random.Random) -> Save:
    files = {
        "config.json": json.dumps({"model_type": "gpt2"}).encode(),
        "model.safetensors": safetensors_bytes(random_),
        "training_args.bin": torch_bytes({"lr": 0.1}),
        "optimizer.pt": torch_bytes(some_state(random_)),
        "scheduler.pt": torch_bytes({"last_epoch": step}),
        "rng_state.pth": rng_state_bytes(),
        "trainer_state.json": json.dumps({"global_step": step, "log_history": []}, indent=2).encode(),
    }
    return _folder("trainer", f"checkpoint-{step}", files)


def _sharded_trainer(step: int, random_: random.Random) -> Save:
    shards = [f"model-{number:05}-of-00003.safetensors" for number in (1, 2, 3)]
    index = {"weight_map": {f"w{number}": shard for number, shard in enumerate(shards)}}
    files = {
        "config.json": b"{}",
        **{shard: safetensors_bytes(random_) for shard in shards},
        "model.safetensors.index.json": json.dumps(index).encode(),
        "optimizer.pt": torch_bytes(some_state(random_)),
        "scheduler.pt": torch_bytes({"last_epoch": step}),
        "rng_state_0.pth": rng_state_bytes(),
        "rng_state_1.pth": rng_state_bytes(),
        "trainer_state.json": json.dumps({"global_step": step}).encode(),
    }
    return _folder("sharded trainer", f"checkpoint-{step}", files)


def _distributed(step: int, random_: random.Random) -> Save:
    import torch
    from torch.distributed import checkpoint as dcp

    place = Path(tempfile.mkdtemp())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            writer = dcp.FileSystemWriter(place, thread_count=3)
            dcp.save(
                {f"w{number}": torch.rand(random_.randrange(10, 3000)) for number in range(7)},
                storage_writer=writer,
            )
        files = {path.name: path.read_bytes() for path in place.iterdir()}
    finally:
        shutil.rmtree(place)
    parts = sorted(name for name in files if name != ".metadata")
    random_.shuffle(parts)
    return _folder("distributed", f"step-{step}", {name: files[name] for name in [*parts, ".metadata"]})


def _accelerate(step: int, random_: random.Random) -> Save:
    files = {
        "model.safetensors": safetensors_bytes(random_),
        "optimizer.bin": torch_bytes(some_state(random_)),
        "scheduler.bin": torch_bytes({"last_epoch": step}),
        "random_states_0.pkl": pickle.dumps({"random_state": random_.getstate()}),
    }
    return _folder("accelerate", f"checkpoint_{step}", files)


def _deepspeed(step: int, random_: random.Random) -> Save:
    name = f"global_step{step}"
    model = some_state(random_, dp_world_size=3, mp_world_size=1)
    files = {
        "mp_rank_00_model_states.pt": torch_bytes(model),
        **{
            f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt": torch_bytes(some_state(random_))
            for rank in range(3)
        },
    }
    save = _folder("deepspeed", name, files)
    return Save(save.kind, name, (*save.files, ("latest", name.encode())))


def _zero_3(step: int, random_: random.Random) -> Save:
    """The third stage of ZeRO parts the model too: there is no file of the model as such."""
    name = f"global_step{step}"
    model = some_state(random_, dp_world_size=2, mp_world_size=1)
    files = {
        **{f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt": torch_bytes(model) for rank in range(2)},
        **{
            f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt": torch_bytes(some_state(random_))
            for rank in range(2)
        },
    }
    save = _folder("zero 3", name, files)
    return Save(save.kind, name, (*save.files, ("latest", name.encode())))


def _trainer_with_deepspeed(step: int, random_: random.Random) -> Save:
    parts = {f"global_step{step}/{path}": data for path, data in _zero_3(step, random_).content.items()}
    files = {
        "config.json": b"{}",
        **parts,
        "latest": f"global_step{step}".encode(),
        "scheduler.pt": torch_bytes({"last_epoch": step}),
        "rng_state_0.pth": rng_state_bytes(),
        "rng_state_1.pth": rng_state_bytes(),
        "trainer_state.json": json.dumps({"global_step": step}).encode(),
    }
    return _folder("trainer with deepspeed", f"checkpoint-{step}", files)


def _accelerate_with_deepspeed(step: int, random_: random.Random) -> Save:
    parts = {f"pytorch_model/{path}": data for path, data in _deepspeed(step, random_).content.items()}
    files = {
        **parts,
        "latest": b"pytorch_model",
        "scheduler.bin": torch_bytes({"last_epoch": step}),
        "random_states_0.pkl": pickle.dumps({"random_state": random_.getstate()}),
    }
    return _folder("accelerate with deepspeed", f"checkpoint_{step}", files)


def _opaque(step: int, random_: random.Random) -> Save:
    """Files of formats that nobody knows, of the same sizes each time."""
    files = {f"part-{number}.dat": random_.randbytes(3000 + number) for number in range(4)}
    return _folder("opaque", f"step-{step}", files)


def _folder(kind: str, name: str, files: dict[str, bytes]) -> Save:
    return Save(kind, name, tuple((f"{name}/{path}", data) for path, data in files.items()))


KINDS: dict[str, Callable[[int, random.Random], Save]] = {
    "torch": _torch_file,
    "legacy": _legacy_file,
    "lightning": _lightning,
    "last": _last,
    "snapshot": _snapshot,
    "safetensors": _one_safetensors,
    "trainer": _trainer,
    "sharded trainer": _sharded_trainer,
    "distributed": _distributed,
    "accelerate": _accelerate,
    "deepspeed": _deepspeed,
    "zero 3": _zero_3,
    "trainer with deepspeed": _trainer_with_deepspeed,
    "accelerate with deepspeed": _accelerate_with_deepspeed,
    "opaque": _opaque,
}
PROVED_BY_FORMAT = sorted(set(KINDS) - {"accelerate", "accelerate with deepspeed", "opaque"})
