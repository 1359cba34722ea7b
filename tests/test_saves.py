"""The helper for training scripts: what it saves is whole, comes back, and is written beside the training."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from airflow_provider_ocidist.job import Checkpoints, Limits, Restarts
from airflow_provider_ocidist.saves import Saves
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
    told = [json.loads(line) for line in file.read_text().splitlines()]
    assert told == [{"checkpoint": f"step-{step}", "step": step} for step in (1, 2)]
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
