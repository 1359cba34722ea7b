"""The helper for training scripts: what it saves is whole, comes back, and is written beside the training."""

from __future__ import annotations

import gc
import json
import os
import random
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from airflow_provider_ocidist.job import Checkpoints, Limits, Restarts
from airflow_provider_ocidist.saves import Saves, _is_whole, _made_beside, _put_back, _sees
from tests.agent.gangs import Gang

pytestmark = pytest.mark.torch
SEED = int(os.environ.get("SAVES_SEED", "20261123"))


def model_and_optimizer(seed: int = 0) -> tuple[Any, Any]:
    import torch

    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 4))
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def train(model: Any, optimizer: Any, step: int) -> None:
    import torch

    data = torch.randn(4, 8, generator=torch.Generator().manual_seed(step))
    model(data).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def same(one: Any, other: Any) -> bool:
    import torch

    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def test_the_module_is_imported_without_torch() -> None:
    script = "import sys, airflow_provider_ocidist.saves; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@pytest.mark.parametrize("number", range(4))
def test_a_training_that_ends_anywhere_goes_on_as_if_it_had_not(tmp_path: Path, number: int) -> None:
    draw = random.Random(f"{SEED}.{number}")
    print(f"seed {SEED}.{number}")
    steps, every = draw.randint(4, 20), draw.randint(1, 5)
    ends = draw.randint(1, steps)
    undisturbed = model_and_optimizer()
    for step in range(1, steps + 1):
        train(*undisturbed, step)
    first = model_and_optimizer()
    saves = Saves(*first, folder=tmp_path)
    assert saves.restore() == 0
    for step in range(1, ends + 1):
        train(*first, step)
        if step % every == 0:
            saves.save(step)
    saves.close()
    second = model_and_optimizer(seed=1)
    saves = Saves(*second, folder=tmp_path)
    begins = saves.restore()
    assert begins == ends - ends % every
    if begins == 0:
        second = model_and_optimizer()
    for step in range(begins + 1, steps + 1):
        train(*second, step)
    saves.close()
    assert same(undisturbed[0].state_dict(), second[0].state_dict())
    assert same(undisturbed[1].state_dict()["state"], second[1].state_dict()["state"])


class Waits:
    """Is pickled, by the thread that writes, only when it may be."""

    may_be_written = threading.Event()

    def __reduce__(self) -> tuple[Any, ...]:
        assert self.may_be_written.wait(60)
        return (dict, ())

    def __deepcopy__(self, memo: dict[int, Any]) -> Waits:
        return self


class Holder:
    """An object of the program's that has a state."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def test_the_training_goes_on_and_changes_nothing_of_what_is_being_written(tmp_path: Path) -> None:
    Waits.may_be_written.clear()
    model, optimizer = model_and_optimizer()
    train(model, optimizer, 1)
    saves = Saves(model, optimizer, folder=tmp_path, holder=Holder({"waits": Waits(), "epoch": 3}))
    saved = {name: value.clone() for name, value in model.state_dict().items()}
    saves.save(1)
    for step in range(2, 5):
        train(model, optimizer, step)
    assert not (tmp_path / "step-1" / ".metadata").exists()
    assert not same(saved, model.state_dict())
    Waits.may_be_written.set()
    saves.close()
    other = model_and_optimizer(seed=1)
    holder = Holder({"waits": None, "epoch": 0})
    assert Saves(*other, folder=tmp_path, holder=holder).restore() == 1
    assert same(saved, other[0].state_dict())
    assert holder.state["epoch"] == 3


class Position(NamedTuple):
    epoch: int
    seen: Any


def test_whatever_a_state_is_made_of_is_saved_as_it_was_at_the_call(tmp_path: Path) -> None:
    import numpy as np
    import torch

    Waits.may_be_written.clear()
    state: dict[str, Any] = {
        "position": Position(3, torch.ones(2)),
        "array": np.ones(4),
        "queue": deque([1, 2]),
        "seen": {1, 2},
        "waits": Waits(),
    }
    saves = Saves(*model_and_optimizer(), folder=tmp_path, holder=Holder(state))
    saves.save(1)
    state["position"].seen.add_(1)
    state["array"] += 1
    state["queue"].append(3)
    state["seen"].add(3)
    Waits.may_be_written.set()
    saves.close()
    holder = Holder(dict.fromkeys(state))
    assert Saves(*model_and_optimizer(), folder=tmp_path, holder=holder).restore() == 1
    assert holder.state["position"].epoch == 3
    assert holder.state["position"].seen.tolist() == [1, 1]
    assert holder.state["array"].tolist() == [1, 1, 1, 1]
    assert (list(holder.state["queue"]), holder.state["seen"]) == ([1, 2], {1, 2})


def drawn_state(draw: random.Random, depth: int = 3) -> Any:
    """Return a part of a state, of what optimizers, schedulers and loaders of data have in theirs."""
    import torch

    kind = draw.choice(["dict", "dict", "list", "tuple", "tensor", "number", "none", "counter", "text"])
    if depth and kind == "dict":
        keys = draw.sample([0, 1, 2, "0", "1", "a", "b", "a.b", "a.0", "position"], draw.randint(0, 5))
        return {key: drawn_state(draw, depth - 1) for key in keys}
    if depth and kind in ("list", "tuple"):
        parts = [drawn_state(draw, depth - 1) for _ in range(draw.randint(0, 3))]
        return parts if kind == "list" else tuple(parts)
    if kind == "tensor":
        shape = [draw.randint(0, 3) for _ in range(draw.randint(0, 2))]
        kind = draw.choice([torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool])
        return (torch.rand(shape) * 9).to(kind)
    if kind == "counter":
        return Counter({draw.randint(0, 9): 1, draw.randint(10, 20): 2})
    return {"number": draw.randint(0, 9), "text": "step-1"}.get(kind)


def kinds(value: Any) -> Any:
    """Return a state with the kinds of its parts for their values."""
    if isinstance(value, dict):
        return type(value), {(type(name), name): kinds(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value), [kinds(each) for each in value]
    return getattr(value, "dtype", type(value))


@pytest.mark.parametrize("number", range(8))
def test_a_state_comes_back_as_it_was_whatever_the_fresh_object_has(tmp_path: Path, number: int) -> None:
    draw = random.Random(f"{SEED}.{number}")
    print(f"seed {SEED}.{number}")
    saved = [{"all": [drawn_state(draw) for _ in range(5)]} for _ in range(3)]
    saves = Saves(
        *model_and_optimizer(),
        folder=tmp_path,
        one=Holder(saved[0]),
        two=Holder(saved[1]),
        last=Holder(saved[2]),
    )
    saves.save(1)
    saves.close()
    fresh = [Holder({}), Holder({"all": [drawn_state(draw) for _ in range(5)]}), Holder({"all": None})]
    again = Saves(*model_and_optimizer(), folder=tmp_path, one=fresh[0], two=fresh[1], last=fresh[2])
    assert again.restore() == 1
    for before, after in zip(saved, fresh, strict=True):
        assert kinds(after.state) == kinds(before)
        assert same(after.state, before)


def of_another_kind(value: Any, draw: random.Random, memory: Any) -> Any:
    """Return a state of the same form, whose tensors have other types, or lie over one another."""
    import torch

    if isinstance(value, dict):
        return {name: of_another_kind(each, draw, memory) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [of_another_kind(each, draw, memory) for each in value]
    if not isinstance(value, torch.Tensor):
        return None
    fresh = {
        "integers": torch.zeros(value.shape, dtype=torch.int64),
        "expanded": torch.zeros((), dtype=value.dtype).expand(value.shape),
        "shared": memory[: value.numel()].view(value.shape),
        "without memory": torch.empty(value.shape, dtype=value.dtype, device="meta"),
    }
    return fresh[draw.choice(list(fresh))]


@pytest.mark.parametrize("number", range(8))
def test_a_state_comes_back_as_it_was_whatever_tensors_the_fresh_object_has_in_its_places(
    tmp_path: Path, number: int
) -> None:
    import torch

    draw = random.Random(f"{SEED}.{number}")
    print(f"seed {SEED}.{number}")
    saved = {"all": [drawn_state(draw) for _ in range(8)], "rate": torch.tensor(0.37)}
    saves = Saves(model_and_optimizer()[0], folder=tmp_path, one=Holder(saved))
    saves.save(1)
    saves.close()
    memory = torch.zeros(9)
    fresh = Holder(of_another_kind(saved, draw, memory))
    assert Saves(model_and_optimizer()[0], folder=tmp_path, one=fresh).restore() == 1
    assert kinds(fresh.state) == kinds(saved)
    assert same(fresh.state, saved)
    assert memory.tolist() == [0] * 9


def test_an_average_that_begins_as_the_weights_themselves_changes_nothing_of_them(tmp_path: Path) -> None:
    def with_average(seed: int) -> tuple[Any, Holder]:
        model, _ = model_and_optimizer(seed)
        return model, Holder({"shadow": {name: each.data for name, each in model.named_parameters()}})

    model, average = with_average(0)
    average.state = {"shadow": {name: each + 1 for name, each in average.state["shadow"].items()}}
    saves = Saves(model, folder=tmp_path, average=average)
    saves.save(1)
    saves.close()
    other, fresh = with_average(1)
    assert Saves(other, folder=tmp_path, average=fresh).restore() == 1
    assert same(model.state_dict(), other.state_dict())
    assert same(average.state, fresh.state)


def test_keys_that_torch_would_join_to_one_name_are_two_in_the_checkpoint(tmp_path: Path) -> None:
    import torch

    saved = {"a": {"b": torch.ones(1)}, "a.b": torch.zeros(1), 1: torch.ones(2), "1": torch.zeros(2)}
    saves = Saves(model_and_optimizer()[0], folder=tmp_path, x=Holder({"y": saved}), **{"x.y": Holder(saved)})
    saves.save(1)
    saves.close()
    one, other = Holder({}), Holder({})
    assert Saves(model_and_optimizer()[0], folder=tmp_path, x=one, **{"x.y": other}).restore() == 1
    assert same(one.state, {"y": saved})
    assert same(other.state, saved)


def test_a_further_model_finds_the_versions_of_its_modules(tmp_path: Path) -> None:
    import torch

    class Versioned(torch.nn.Linear):
        _version = 2

        def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *rest: Any) -> None:
            assert metadata.get("version") == 2
            super()._load_from_state_dict(state, prefix, metadata, *rest)  # type: ignore[no-untyped-call]  # not annotated

    saves = Saves(model_and_optimizer()[0], folder=tmp_path, critic=Versioned(2, 2))
    saves.save(1)
    saves.close()
    assert Saves(model_and_optimizer()[0], folder=tmp_path, critic=Versioned(2, 2)).restore() == 1


def two_models() -> tuple[list[Any], Any]:
    import torch

    parts = [each for seed in (0, 7) for each in model_and_optimizer(seed)]
    return parts, torch.optim.lr_scheduler.MultiStepLR(parts[1], milestones=[3, 6])


def test_a_second_optimizer_and_a_scheduler_go_on_as_if_the_training_had_not_ended(tmp_path: Path) -> None:
    def train_both(parts: list[Any], scheduler: Any, steps: range) -> None:
        for step in steps:
            train(*parts[:2], step)
            train(*parts[2:], step)
            scheduler.step()

    def saves_of(parts: list[Any], scheduler: Any) -> Saves:
        others = {"critic": parts[2], "critic_optimizer": parts[3], "scheduler": scheduler}
        return Saves(*parts[:2], folder=tmp_path, **others)

    undisturbed, first, second = two_models(), two_models(), two_models()
    train_both(*undisturbed, range(1, 9))
    train_both(*first, range(1, 5))
    saves = saves_of(*first)
    saves.save(4)
    saves.close()
    saves = saves_of(*second)
    assert saves.restore() == 4
    assert second[1].state_dict() == first[1].state_dict()
    train_both(*second, range(5, 9))
    saves.close()
    for one, other in zip(undisturbed[0], second[0], strict=True):
        assert same(one.state_dict(), other.state_dict())


def test_weights_of_a_further_object_have_their_names_in_the_checkpoint(tmp_path: Path) -> None:
    from airflow_provider_ocidist.cli import dcp_weights

    averaged, _ = model_and_optimizer(seed=3)
    saves = Saves(*model_and_optimizer(), folder=tmp_path, ema=averaged)
    saves.save(1)
    saves.close()
    assert same(dict(averaged.state_dict()), dcp_weights.read(tmp_path / "step-1")["more"]["ema"])


def test_weights_within_a_state_are_exported_by_the_keys_that_lead_to_them(tmp_path: Path) -> None:
    from airflow_provider_ocidist.cli import layouts

    pytest.importorskip("safetensors")
    averaged, _ = model_and_optimizer(seed=3)
    saves = Saves(
        model_and_optimizer()[0], folder=tmp_path, ema=Holder({"of": {"shadow": averaged.state_dict()}})
    )
    saves.save(1)
    saves.close()
    target = tmp_path / "exported"
    layouts.write(tmp_path / "step-1", target, layout="safetensors", file=None, key="more.ema.of.shadow")
    from safetensors.torch import load_file

    assert same(dict(averaged.state_dict()), load_file(target))


def test_a_checkpoint_of_an_earlier_version_is_still_restored(tmp_path: Path) -> None:
    from torch.distributed.checkpoint import state_dict as states
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    model, optimizer = model_and_optimizer()
    train(model, optimizer, 1)
    weights, momentum = states.get_state_dict(model, optimizer)
    more = {"holder": {"epoch": 3}}
    state = {"model": weights, "optimizer": momentum, "more": more, "step": 1}
    save(state, storage_writer=FileSystemWriter(tmp_path / "step-1"), no_dist=True)
    other, holder = model_and_optimizer(seed=1), Holder({"epoch": 0})
    assert Saves(*other, folder=tmp_path, holder=holder).restore() == 1
    assert holder.state == {"epoch": 3}
    assert same(model.state_dict(), other[0].state_dict())


SHARDS = """
import pathlib, sys, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from airflow_provider_ocidist.saves import Saves
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/meet", rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))
class Holder:
    def __init__(self, state):
        self.state = state
    def state_dict(self):
        return self.state
    def load_state_dict(self, state):
        self.state = state
def sharded(start):
    return distribute_tensor(torch.arange(start, start + 4.0), mesh, [Shard(0)])
model = torch.nn.Linear(1, 1)
saves = Saves(model, folder=sys.argv[1], average=Holder({"shadow": {0: sharded(1)}, "updates": 5}))
saves.save(1)
saves.close()
holder = Holder({"shadow": {0: sharded(9)}, "updates": None})
Saves(model, folder=sys.argv[1], average=holder).restore()
shadow = holder.state["shadow"][0]
print(type(shadow).__name__, shadow.full_tensor().tolist(), holder.state["updates"])
try:
    Saves(model, folder=sys.argv[1], average=Holder({})).restore()
except RuntimeError as error:
    print(error)
integers = Holder({"shadow": {0: sharded(9).to(torch.int64)}})
saves = Saves(model, folder=sys.argv[1], average=Holder({"shadow": {0: sharded(0.25)}}))
saves.save(2)
saves.close()
Saves(model, folder=sys.argv[1], average=integers).restore()
print(integers.state["shadow"][0].full_tensor().tolist())

def critic():
    critic = fully_shard(torch.nn.Linear(4, 4), mesh=mesh)
    return critic, torch.optim.AdamW(critic.parameters(), lr=0.1)

def train(critic, optimizer):
    critic(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()

first, second = critic(), critic()
train(*first)
saves = Saves(model, folder=sys.argv[1], critic=first[0], momentum=first[1])
saves.save(3)
saves.close()
assert Saves(model, folder=sys.argv[1], critic=second[0], momentum=second[1]).restore() == 3
for each in (first, second):
    train(*each)
print(torch.equal(first[0].weight.full_tensor(), second[0].weight.full_tensor()))
dist.destroy_process_group()
"""


NO_TARGET = (
    "average: ('shadow', 0) was saved in shards, and there is no such tensor to restore it into: "
    "let the new object have it before `restore`, as it had when it was saved"
)


def test_a_sharded_state_comes_back_in_shards_and_what_cannot_take_it_is_named(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SHARDS, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "DTensor [1.0, 2.0, 3.0, 4.0] 5",
        NO_TARGET,
        "[0.25, 1.25, 2.25, 3.25]",
        "True",
    ]


AS_IN_2_4 = """
import sys, torch, torch.distributed._tensor, torch.distributed.tensor
# torch's own modules have found it.
import torch.distributed.checkpoint.state_dict, torch.distributed.checkpoint.state_dict_loader
import torch.distributed.checkpoint.state_dict_saver, torch.distributed.checkpoint.filesystem
del torch.distributed.tensor.DTensor
from airflow_provider_ocidist.saves import Saves
model, scheduled = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
saves = Saves(model, folder=sys.argv[1], other=scheduled)
saves.save(1)
saves.close()
print(Saves(model, folder=sys.argv[1], other=scheduled).restore())
"""


def test_it_saves_where_torch_has_sharded_tensors_under_their_former_name_only(tmp_path: Path) -> None:
    # The folder torch/distributed/tensor of torch 2.4.0 has an empty `__init__.py`; the class is in `_tensor`.
    command = [sys.executable, "-c", AS_IN_2_4, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


def test_what_was_cut_off_is_never_restored_and_is_replaced_by_a_save_of_its_step(tmp_path: Path) -> None:
    model, optimizer = model_and_optimizer()
    saves = Saves(model, optimizer, folder=tmp_path)
    train(model, optimizer, 1)
    saves.save(1)
    saves.close()
    (tmp_path / "step-2").mkdir()
    (tmp_path / "step-2" / "__0_0.distcp").write_bytes(b"half")
    (tmp_path / "step-2" / "__7_0.distcp").write_bytes(b"of a larger gang")
    saves = Saves(model, optimizer, folder=tmp_path)
    assert saves.restore() == 1
    saves.save(2)
    saves.close()
    assert sorted(path.name for path in (tmp_path / "step-2").iterdir()) == [".metadata", "__0_0.distcp"]
    assert Saves(model, optimizer, folder=tmp_path).restore() == 2


def test_a_whole_one_of_the_same_step_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    model, _ = model_and_optimizer()
    first = {name: value.clone() for name, value in model.state_dict().items()}
    saves = Saves(model, folder=tmp_path)
    saves.save(1)
    saves.close()
    other, _ = model_and_optimizer(seed=2)
    Waits.may_be_written.clear()
    saves = Saves(other, folder=tmp_path, holder=Holder({"waits": Waits()}))
    saves.save(1)
    time.sleep(0.5)
    assert (tmp_path / "step-1" / ".metadata").is_file()
    found, _ = model_and_optimizer(seed=3)
    shutil.copytree(tmp_path / "step-1", tmp_path / "as-killed" / "step-1")
    assert Saves(found, folder=tmp_path / "as-killed").restore() == 1
    assert same(first, found.state_dict())
    Waits.may_be_written.set()
    saves.close()
    found, _ = model_and_optimizer(seed=3)
    assert Saves(found, folder=tmp_path).restore() == 1
    assert same(other.state_dict(), found.state_dict())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["as-killed", "step-1"]


def test_what_a_process_was_replacing_that_was_killed_is_put_back(tmp_path: Path) -> None:
    model, _ = model_and_optimizer()
    saves = Saves(model, folder=tmp_path)
    saves.save(1)
    saves.close()
    (tmp_path / "step-1").rename(tmp_path / ".step-1.former")
    (tmp_path / ".step-1.part").mkdir()
    (tmp_path / ".step-1.part" / "__0_0.distcp").write_bytes(b"half")
    assert Saves(model_and_optimizer(seed=1)[0], folder=tmp_path).restore() == 1
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]


def test_what_was_being_replaced_is_put_back_where_only_a_half_has_its_name(tmp_path: Path) -> None:
    saves = Saves(model_and_optimizer()[0], folder=tmp_path)
    saves.save(1)
    saves.close()
    (tmp_path / "step-1").rename(tmp_path / ".step-1.former")
    (tmp_path / "step-1").mkdir()
    (tmp_path / "step-1" / "__0_0.distcp").write_bytes(b"half")
    assert Saves(model_and_optimizer(seed=1)[0], folder=tmp_path).restore() == 1
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]


Heard = Callable[[str, str], None]
_hearing: list[Heard] = []
"""Function that hears of each file or folder that this process renames or deletes, before it does."""


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if _hearing and event in ("os.rename", "os.remove"):
        _hearing[-1](event, os.fsdecode(arguments[0]))


@pytest.fixture
def hear() -> Iterator[Callable[[Heard], None]]:
    sys.addaudithook(_hear)
    yield _hearing.append
    _hearing.clear()


@pytest.mark.parametrize("number", [1, 2])
def test_a_replacement_that_fails_or_is_cut_off_costs_no_whole_one(
    tmp_path: Path, hear: Callable[[Heard], None], number: int
) -> None:
    kept, as_killed = tmp_path / "kept", tmp_path / "as-killed"
    model, _ = model_and_optimizer()
    saves = Saves(model, folder=kept)
    saves.save(1)
    saves.close()
    renamed: list[str] = []

    def full(event: str, name: str) -> None:
        # Those of files are torch's.
        if event == "os.rename" and Path(name).is_dir():
            renamed.append(name)
            if len(renamed) == number:
                shutil.copytree(kept, as_killed)
                raise OSError(28, "No space left on device")

    again = Saves(model_and_optimizer(seed=1)[0], folder=kept)
    hear(full)
    again.save(1)
    with pytest.raises(RuntimeError, match=r"step 1 was not saved: .*No space left"):
        again.close()
    assert [path.name for path in kept.iterdir()] == ["step-1"]
    for folder in (kept, as_killed):
        found, _ = model_and_optimizer(seed=2)
        assert Saves(found, folder=folder).restore() == 1
        assert same(model.state_dict(), found.state_dict())
        assert [path.name for path in folder.iterdir()] == ["step-1"]


def test_one_that_is_deleted_counts_as_whole_no_longer_from_the_first_file_on(
    tmp_path: Path, hear: Callable[[Heard], None]
) -> None:
    saves = Saves(model_and_optimizer()[0], folder=tmp_path, keep=1)
    saves.save(1)
    saves.close()
    for number in range(30):
        (tmp_path / "step-1" / f"__{random.random()}_{number}.distcp").write_bytes(b"of another process")
    deleted: list[str] = []
    saves = Saves(model_and_optimizer()[0], folder=tmp_path, keep=1)
    hear(lambda event, name: deleted.append(Path(name).name) if event == "os.remove" else None)
    saves.save(2)
    saves.close()
    assert len(deleted) > 30
    assert deleted[0] == ".metadata"


def test_what_cannot_be_looked_at_is_not_taken_for_what_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As of Python 3.14, these answer an error of the disk by False: what is whole would be deleted as a half.
    for name in ("is_dir", "is_file"):
        monkeypatch.setattr(Path, name, lambda path, name=name: getattr(os.path, name.replace("_", ""))(path))
    broken = tmp_path / ("x" * 300)
    for act in (_is_whole, _made_beside, lambda folder: _put_back(folder, tmp_path)):
        with pytest.raises(OSError, match="name too long"):
            act(broken)
    with pytest.raises(OSError, match="name too long"):
        Saves(model_and_optimizer()[0], folder=broken).restore()
    assert _sees(broken), "the others would take it for another disk"
    assert not _sees(tmp_path / "gone")
    assert Saves(model_and_optimizer()[0], folder=tmp_path / "gone").restore() == 0


def test_each_save_of_a_step_is_begun_in_a_folder_of_its_own(tmp_path: Path) -> None:
    assert _made_beside(tmp_path) is None
    (tmp_path / ".metadata").touch()
    names = [_made_beside(tmp_path) for _ in range(3)]
    assert len(set(names)) == 3
    assert all(name and (tmp_path.parent / name).is_dir() for name in names)


def test_a_thread_that_writes_ends_with_the_saves(tmp_path: Path) -> None:
    def threads() -> set[threading.Thread]:
        return {each for each in threading.enumerate() if each.name.startswith("saves")}

    before = threads()
    saves = Saves(model_and_optimizer()[0], folder=tmp_path)
    saves.save(1)
    assert len(threads() - before) == 1
    saves.close()
    assert threads() <= before


def test_a_program_that_only_saves_removes_what_a_killed_one_has_begun(tmp_path: Path) -> None:
    begun = tmp_path / ".step-1.0123abcd.part"
    begun.mkdir()
    (begun / "__0_0.distcp").write_bytes(b"half")
    saves = Saves(model_and_optimizer()[0], folder=tmp_path)
    saves.save(2)
    saves.close()
    assert [path.name for path in tmp_path.iterdir()] == ["step-2"]


@pytest.mark.parametrize("again", [False, True], ids=["a new step", "a step again"])
def test_another_one_leaves_alone_what_is_being_written_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    monkeypatch.setattr("airflow_provider_ocidist.saves.HELD_WITHIN", 0.1)
    early = Saves(model_and_optimizer()[0], folder=tmp_path)
    first, _ = model_and_optimizer(seed=1)
    Waits.may_be_written.set()
    saves = Saves(first, folder=tmp_path, holder=Holder({"waits": Waits()}))
    if again:
        saves.save(1)
        until_there(tmp_path, "step-1/.metadata")
    Waits.may_be_written.clear()
    saves.save(1)
    until_there(tmp_path, ".step-1*.part" if again else "step-1")
    with pytest.raises(RuntimeError, match="another"):
        Saves(first, folder=tmp_path)
    early.save(1)
    with pytest.raises(RuntimeError, match=r"step 1 was not saved: another .* writes to"):
        early.close()
    Waits.may_be_written.set()
    saves.close()
    found, _ = model_and_optimizer(seed=2)
    assert Saves(found, folder=tmp_path).restore() == 1
    assert same(first.state_dict(), found.state_dict())


def test_another_one_waits_for_a_save_that_soon_ends(tmp_path: Path) -> None:
    Waits.may_be_written.clear()
    first, _ = model_and_optimizer(seed=1)
    saves = Saves(first, folder=tmp_path, holder=Holder({"waits": Waits()}))
    saves.save(1)
    until_there(tmp_path, "step-1")
    timer = threading.Timer(0.3, Waits.may_be_written.set)
    timer.start()
    found, _ = model_and_optimizer(seed=2)
    assert Saves(found, folder=tmp_path).restore() == 1
    timer.join()
    saves.close()
    assert same(first.state_dict(), found.state_dict())


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_process_that_was_forked_while_another_one_writes_does_not_keep_its_folder(tmp_path: Path) -> None:
    Waits.may_be_written.clear()
    saves = Saves(model_and_optimizer()[0], folder=tmp_path, holder=Holder({"waits": Waits()}))
    saves.save(1)
    until_there(tmp_path, "step-1")
    lasts, ends = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ends)
        os.read(lasts, 1)
        os._exit(0)
    Waits.may_be_written.set()
    saves.save(2)
    saves.close()
    os.close(lasts)
    os.close(ends)
    os.waitpid(child, 0)


def test_a_restore_waits_for_the_save_under_way(tmp_path: Path) -> None:
    Waits.may_be_written.clear()
    saves = Saves(model_and_optimizer()[0], folder=tmp_path, holder=Holder({"waits": Waits()}))
    saves.save(2)
    release = threading.Timer(0.5, Waits.may_be_written.set)
    release.start()
    assert saves.restore() == 2
    release.join()
    saves.close()


def test_a_new_one_takes_its_place_though_somebody_deletes_the_one_before_meanwhile(tmp_path: Path) -> None:
    saves = Saves(model_and_optimizer()[0], folder=tmp_path)
    saves.save(1)
    saves.close()
    Waits.may_be_written.clear()
    other, _ = model_and_optimizer(seed=2)
    saves = Saves(other, folder=tmp_path, holder=Holder({"waits": Waits()}))
    saves.save(1)
    until_there(tmp_path, ".step-1*.part")
    shutil.rmtree(tmp_path / "step-1")
    Waits.may_be_written.set()
    saves.close()
    found, _ = model_and_optimizer(seed=3)
    assert Saves(found, folder=tmp_path).restore() == 1
    assert same(other.state_dict(), found.state_dict())


def until_there(folder: Path, pattern: str) -> list[Path]:
    ends = time.monotonic() + 60
    while not (found := list(folder.glob(pattern))):
        assert time.monotonic() < ends
        time.sleep(0.01)
    return found


def test_what_is_being_written_is_no_checkpoint_for_ocidist(tmp_path: Path) -> None:
    from airflow_provider_ocidist.agent.save import entries

    saves = Saves(model_and_optimizer()[0], folder=tmp_path)
    saves.save(1)
    saves.close()
    (tmp_path / "step-1").rename(tmp_path / "step-2")
    Waits.may_be_written.clear()
    saves = Saves(model_and_optimizer()[0], folder=tmp_path, holder=Holder({"waits": Waits()}))
    saves.save(2)
    until_there(tmp_path, ".step-2*.part")
    shutil.copytree(tmp_path / "step-2", tmp_path / ".step-2.former")
    for pattern in (None, r"\.?step-(?P<step>\d+).*"):
        assert [found.path.name for found in entries.candidates(tmp_path, pattern)] == ["step-2"]
    assert not any(entries.is_unplaced(path.name) for path in tmp_path.iterdir())
    Waits.may_be_written.set()
    saves.close()


CUT_OFF = """
import os, shutil, sys
import torch
# Once, before the forks.
import torch.distributed.checkpoint.state_dict, torch.distributed.checkpoint.state_dict_loader
import torch.distributed.checkpoint.state_dict_saver, torch.distributed.checkpoint.filesystem
from airflow_provider_ocidist.saves import Saves

def filled(number):
    model = torch.nn.Linear(4, 4)
    with torch.no_grad():
        for each in model.parameters():
            each.fill_(number)
    return model

def train(folder):
    saves = Saves(filled(1), folder=folder, keep=1)
    for number in (1, 1):
        saves.save(number)
    saves.close()

def left_by_an_earlier_run(folder):
    os.makedirs(f"{folder}/step-9")
    # In a file system in memory, what was made last is deleted first.
    for name in (".metadata", "__0_0.distcp"):
        shutil.copy(f"{sys.argv[1]}/whole/step-1/{name}", f"{folder}/step-9")

def killed_at(last, folder):
    left = [last]
    def count(event, arguments):
        if event in ("os.remove", "os.rename", "os.rmdir", "os.mkdir"):
            left[0] -= 1
            if left[0] == 0:
                os._exit(9)
    sys.addaudithook(count)
    train(folder)
    os._exit(0)

def refused(folder):
    def refuse(event, arguments):
        if event == "os.remove" and os.fspath(arguments[0]).endswith(".metadata"):
            raise PermissionError(13, "refused")
    sys.addaudithook(refuse)
    train(folder)
    os._exit(0)

def look(last, folder):
    model = filled(0)
    step = Saves(model, folder=folder).restore()
    assert step in (1, 9), os.listdir(folder)
    assert set(model.bias.tolist()) == {1.0}
    os._exit(0)

def apart(act, *arguments):
    child = os.fork()
    if child == 0:
        try:
            act(*arguments)
        except BaseException as error:
            print(arguments, repr(error), flush=True)
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def save_first(folder):
    saves = Saves(filled(1), folder=folder)
    saves.save(1)
    saves.close()
    os._exit(0)

assert apart(save_first, f"{sys.argv[1]}/whole") == 0
for last in range(1, 100):
    folder = f"{sys.argv[1]}/{last}"
    left_by_an_earlier_run(folder)
    ended = apart(killed_at, last, folder)
    assert ended in (0, 9), ended
    assert apart(look, last, folder) == 0, last
    if ended == 0:
        print("all", last > 10)
        break

folder = f"{sys.argv[1]}/refused"
left_by_an_earlier_run(folder)
assert apart(refused, folder) == 0
assert apart(look, "refused", folder) == 0, "what cannot be marked as deleted must keep its data"
"""


def test_a_process_that_is_killed_at_any_change_to_the_folder_leaves_no_half_that_counts_as_whole(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CUT_OFF, str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "all True\n"), done.stderr


SAME_STEP_AGAIN = """
import sys
import torch
from airflow_provider_ocidist.saves import Saves

model = torch.nn.Linear(64, 64)
saves = Saves(model, folder=sys.argv[1])
for number in range(1, 100_000):
    with torch.no_grad():
        for each in model.parameters():
            each.fill_(number)
    saves.save(7)
    if number == 2:
        print("first", flush=True)
"""


@pytest.mark.parametrize("number", range(3))
def test_a_process_that_is_killed_while_it_saves_a_step_again_leaves_a_whole_one(
    tmp_path: Path, number: int
) -> None:
    import torch

    draw = random.Random(f"{SEED}.{number}")
    print(f"seed {SEED}.{number}")
    for _ in range(2):
        saving = subprocess.Popen(
            [sys.executable, "-c", SAME_STEP_AGAIN, str(tmp_path)], stdout=subprocess.PIPE
        )
        assert saving.stdout is not None
        assert saving.stdout.readline() == b"first\n"
        time.sleep(draw.random() * 0.1)
        saving.kill()
        saving.wait()
        saving.stdout.close()
        model = torch.nn.Linear(64, 64)
        assert Saves(model, folder=tmp_path).restore() == 7
        assert len({float(value) for each in model.parameters() for value in each.detach().flatten()}) == 1


OF_TWO = """
import os, pathlib, sys, time
import torch
import torch.distributed as dist
from airflow_provider_ocidist.saves import Saves

meeting, folder, rank = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
dist.init_process_group("gloo", init_method=f"file://{meeting / 'meet'}", rank=rank, world_size=2)

class Waits:
    def __init__(self, number):
        self.number = number
    def __reduce__(self):
        if self.number == 2:
            (meeting / "held").touch()
            while not (meeting / "go").exists():
                time.sleep(0.01)
        return (dict, ())
    def __deepcopy__(self, memo):
        return self

class Holder:
    def state_dict(self):
        return {"waits": Waits(number)}
    def load_state_dict(self, state):
        pass

model = torch.nn.Linear(4, 4)
saves = Saves(model, folder=folder, holder=Holder())
for number in (1, 2, 3):
    with torch.no_grad():
        for each in model.parameters():
            each.fill_(number)
    saves.save(7)
with torch.no_grad():
    for each in model.parameters():
        each.zero_()
# On disks of their own the second node has no `.metadata`: ocidist fetches it there.
there = saves.restore()
assert (there, float(model.bias[0])) == ((0, 0.0) if meeting.name == "own" else (7, 3.0)), there
saves.close()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("ranks", ["given", "in the environment"])
@pytest.mark.parametrize("disks", ["shared", "own"])
def test_two_nodes_save_a_step_again_on_a_shared_folder_and_on_disks_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disks: str, ranks: str
) -> None:
    monkeypatch.setattr("airflow_provider_ocidist.saves.HELD_WITHIN", 0.1)
    folders = [tmp_path / (f"node-{rank}" if disks == "own" else "both") for rank in range(2)]
    meeting, reports = tmp_path / disks, tmp_path / "progress.jsonl"
    meeting.mkdir()
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "LOCAL_RANK")}
    nodes = [
        subprocess.Popen(
            [sys.executable, "-c", OF_TWO, str(meeting), str(folder), str(rank)],
            env={
                **clean,
                "OCIDIST_PROGRESS_FILE": str(reports),
                **({} if ranks == "given" else {"RANK": str(rank), "LOCAL_RANK": "0"}),
            },
        )
        for rank, folder in enumerate(folders)
    ]
    try:
        until_there(meeting, "held")
        is_there = (folders[0] / "step-7" / ".metadata").is_file()
        assert is_there == (disks == "shared"), "the one before stays until the new one is whole"
        with pytest.raises(RuntimeError, match="another"):
            Saves(model_and_optimizer()[0], folder=folders[0])
        (meeting / "go").touch()
        assert [node.wait(120) for node in nodes] == [0, 0]
    finally:
        for node in nodes:
            node.kill()
            node.wait()
    assert {path.name for folder in folders for path in folder.iterdir()} == {"step-7"}
    assert (folders[0] / "step-7" / ".metadata").is_file()
    assert reports.read_text().count("step-7") == 3, "one process reports each"


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_the_last_ones_stay_and_other_files_are_left_alone(tmp_path: Path, keep: int) -> None:
    (tmp_path / "notes-1").mkdir()
    model, _ = model_and_optimizer()
    saves = Saves(model, folder=tmp_path, keep=keep)
    for step in range(10, 40, 10):
        saves.save(step)
    saves.close()
    kept = [f"step-{step}" for step in (10, 20, 30)][-keep:]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["notes-1", *kept])


@pytest.mark.parametrize("number", range(5))
def test_what_an_earlier_run_has_left_in_the_folder_costs_no_later_save_its_place(
    tmp_path: Path, number: int
) -> None:
    draw = random.Random(f"{SEED}.{number}")
    print(f"seed {SEED}.{number}")
    keep, left = draw.randint(1, 3), sorted(draw.sample(range(100, 1000), draw.randint(1, 4)))
    model, _ = model_and_optimizer()
    for steps in (left, first := list(range(draw.randint(1, 90), 2000, draw.randint(200, 400)))):
        saves = Saves(model, folder=tmp_path, keep=keep)
        for count, step in enumerate(steps, 1):
            saves.save(step)
            saves.close() if count == len(steps) else saves._finish()
            there = {path.name for path in tmp_path.iterdir()}
            assert there >= {f"step-{each}" for each in steps[max(0, count - keep) : count]}, steps
            assert len(there) <= keep
    assert there == {f"step-{each}" for each in first[-keep:]}


@pytest.mark.parametrize("found_by", ["save", "close"])
def test_a_save_that_failed_is_an_error_of_the_next_call_and_names_the_step(
    tmp_path: Path, found_by: str
) -> None:
    (tmp_path / "file").write_text("no folder")
    model, _ = model_and_optimizer()
    saves = Saves(model, folder=tmp_path / "file" / "checkpoints")
    saves.save(7)
    with pytest.raises(RuntimeError, match=r"the checkpoint of step 7 was not saved: "):
        saves.save(8) if found_by == "save" else saves.close()
    saves.close()


class Fails:
    """Cannot be pickled, by the thread that writes."""

    def __reduce__(self) -> tuple[Any, ...]:
        raise OSError(28, "No space left on device")

    def __deepcopy__(self, memo: dict[int, Any]) -> Fails:
        return self


@pytest.mark.parametrize("step", [1, 2])
def test_a_save_that_failed_leaves_nothing_but_the_whole_one_of_its_step(tmp_path: Path, step: int) -> None:
    saves = Saves(model_and_optimizer()[0], folder=tmp_path)
    saves.save(1)
    saves.close()
    saves = Saves(model_and_optimizer()[0], folder=tmp_path, holder=Holder({"fails": Fails()}))
    saves.save(step)
    with pytest.raises(RuntimeError, match=f"step {step} was not saved: .*No space left"):
        saves.close()
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]
    assert Saves(model_and_optimizer()[0], folder=tmp_path).restore() == 1


def test_a_step_is_a_whole_number_of_any_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np
    import torch

    reports = tmp_path / "progress.jsonl"
    monkeypatch.setenv("OCIDIST_PROGRESS_FILE", str(reports))
    saves = Saves(model_and_optimizer()[0], folder=tmp_path / "kept")
    for step in (np.int64(3), torch.tensor(4)):
        saves.save(step)  # type: ignore[arg-type]  # programs count with what they have
    with pytest.raises(TypeError):
        saves.save(100.0)  # type: ignore[arg-type]  # the same
    saves.close()
    assert [json.loads(line)["step"] for line in reports.read_text().splitlines()] == [3, 4]
    assert Saves(model_and_optimizer()[0], folder=tmp_path / "kept").restore() == 4


def test_the_description_of_a_checkpoint_is_read_once_for_all_further_objects(tmp_path: Path) -> None:
    opened: list[str] = []

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and str(arguments[0]).startswith(str(tmp_path)):
            opened.append(Path(str(arguments[0])).name)

    def reads(count: int) -> int:
        objects = {f"holder_{number}": Holder({"epoch": number}) for number in range(count)}
        saves = Saves(model_and_optimizer()[0], folder=tmp_path, **objects)
        saves.save(1)
        saves.close()
        opened.clear()
        assert saves.restore() == 1
        return opened.count(".metadata")

    sys.addaudithook(note)
    by_torch = reads(0)
    # Torch reads it for the forms, and for the rest.
    assert (by_torch, reads(1), reads(3)) == (1, 3, 3)


def test_memory_of_tensors_that_a_state_has_no_longer_is_released(tmp_path: Path) -> None:
    import torch

    holder = Holder({})
    saves = Saves(torch.nn.Linear(1, 1), folder=tmp_path, holder=holder)
    for step in range(1, 6):
        holder.state = {"window": {step: torch.full((7, 11), step), step + 1: torch.full((7, 11), step + 1)}}
        saves.save(step)
    saves._finish()
    gc.collect()
    held = [each for each in gc.get_objects() if type(each) is torch.Tensor and each.shape == (7, 11)]
    assert len(held) == 4, "two of the state, and a copy of each"
    saves.close()


def test_none_to_keep_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep is 0: at least one checkpoint must stay"):
        Saves(model_and_optimizer()[0], folder=tmp_path, keep=0)


def test_ocidist_hears_of_each_whole_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "progress.jsonl"
    monkeypatch.setenv("OCIDIST_PROGRESS_FILE", str(file))
    monkeypatch.setenv("OCIDIST_CHECKPOINT_DIR", str(tmp_path / "kept"))
    saves = Saves(model_and_optimizer()[0])
    saves.save(1)
    saves.save(2)
    saves.close()
    reports = [json.loads(line) for line in file.read_text().splitlines()]
    assert reports == [{"checkpoint": f"step-{step}", "step": step} for step in (1, 2)]
    assert (tmp_path / "kept" / "step-2" / ".metadata").exists()


TRAINS = """
import os, signal, torch, torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from airflow_provider_ocidist.saves import Saves
dist.init_process_group("gloo")
rank, victim, launch = dist.get_rank(), 1, int(os.environ["OCIDIST_RESTARTS"])
def built():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    if os.environ["SHARDED"] == "yes":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    else:
        model = torch.nn.parallel.DistributedDataParallel(model)
    return model, torch.optim.Adam(model.parameters(), lr=0.01)
def train(model, optimizer, step):
    data = torch.randn(4, 8, generator=torch.Generator().manual_seed(step * 100 + rank))
    model(data).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
def show(name, model):
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    if rank == 0:
        print(f"{name} {sum(value.double().sum().item() for value in whole.values())!r}", flush=True)
if launch == 0:
    undisturbed = built()
    for step in range(1, 13):
        train(*undisturbed, step)
    show("undisturbed:", undisturbed[0])
model, optimizer = built()
saves = Saves(model, optimizer)
for step in range(saves.restore() + 1, 13):
    train(model, optimizer, step)
    if step % 3 == 0:
        saves.save(step)
    if step == 8 and launch == 0 and rank == victim:
        # Its last save may or may not be whole by now.
        os.kill(os.getpid(), signal.SIGKILL)
saves.close()
show("launched again:", model)
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind, sharded", [("torchrun", "yes"), ("python", "no")])
def test_two_nodes_save_restore_and_end_as_undisturbed_ones(tmp_path: Path, kind: str, sharded: str) -> None:
    with Gang(
        tmp_path,
        TRAINS,
        nodes=2,
        kind=kind,
        checkpoints=Checkpoints(uri=str(tmp_path / "kept"), path="checkpoints"),
        restarts=Restarts(program=1, node=1),
        limits=Limits(stop_grace=5.0, join_timeout=60.0),
    ) as two:
        assert two.run(SHARDED=sharded) == [0, 0]
        printed = "".join(agent.stdout.read_text() for agent in two.agents)
        report = next(agent.report for agent in two.agents if agent.report.main)
        there = [list((two.code(rank) / "checkpoints").glob("step-*")) for rank in range(2)]
    assert all(len(each) <= 2 for each in there), "each node keeps two on its own disk"
    assert len(report.restarts) == 1
    assert report.checkpoint is not None
    assert report.checkpoint.step == 12
    undisturbed, again = (
        re.findall(rf"^{name}: (.*)$", printed, re.MULTILINE) for name in ("undisturbed", "launched again")
    )
    assert len(undisturbed) == 1
    assert again == undisturbed
