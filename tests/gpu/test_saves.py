"""Saves from a GPU: what is copied, how much memory that takes, and where a killed training goes on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.job import Checkpoints, Limits, Restarts
from airflow_provider_ocidist.saves import Saves
from tests.agent.gangs import Gang

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def model_and_optimizer() -> tuple[Any, Any]:
    import torch

    # No power of two of bytes: torch's own pinned memory would take 1.45 times as much.
    model = torch.nn.Sequential(*[torch.nn.Linear(1700, 1700) for _ in range(4)]).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 1700, device="cuda")).sum().backward()
    optimizer.step()
    return model, optimizer


def test_what_is_written_is_what_the_gpu_held_when_it_was_saved(tmp_path: Path) -> None:
    import torch

    model, optimizer = model_and_optimizer()
    before = [each.detach().clone() for each in model.parameters()]
    saves = Saves(model, optimizer, folder=tmp_path)
    saves.save(1)
    with torch.no_grad():
        for each in model.parameters():
            each.zero_()
    saves.close()
    assert Saves(model, optimizer, folder=tmp_path).restore() == 1
    assert all(torch.equal(*each) for each in zip(before, model.parameters(), strict=True))
    assert {each.device.type for each in model.parameters()} == {"cuda"}


def test_the_copy_takes_as_much_pinned_memory_as_the_state_and_none_of_the_gpu(tmp_path: Path) -> None:
    import torch

    model, optimizer = model_and_optimizer()
    saves = Saves(model, optimizer, folder=tmp_path)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before, pinned = torch.cuda.memory_allocated(), torch.cuda.host_memory_stats()["allocated_bytes.current"]
    saves.save(1)
    assert torch.cuda.max_memory_allocated() == before
    copies = [each for each in saves._buffers.values() if each.numel() > 1]
    assert all(each.is_pinned() for each in copies)
    state = sum(each.nbytes for each in copies)
    assert state >= 3 * sum(each.nbytes for each in model.parameters())
    assert torch.cuda.host_memory_stats()["allocated_bytes.current"] - pinned <= 1.01 * state
    saves.close()
    del copies
    # Pinned memory that was not given back could not be pinned again.
    again = Saves(model, optimizer, folder=tmp_path)
    again.save(2)
    again.close()


TRAINS = """
import os, signal
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
import torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from airflow_provider_ocidist.saves import Saves
torch.use_deterministic_algorithms(True)
launch, gpu = int(os.environ["OCIDIST_RESTARTS"]), torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(gpu)
dist.init_process_group("nccl", device_id=gpu)
# As much as two launches at a time would not have.
large = torch.empty(int(0.6 * torch.cuda.mem_get_info()[1]), dtype=torch.uint8, device=gpu)

def built():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8)).to(gpu)
    fully_shard(model)
    return model, torch.optim.Adam(model.parameters(), lr=0.01)

def train(model, optimizer, step):
    data = torch.randn(16, 64, generator=torch.Generator().manual_seed(step)).to(gpu)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(data).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

def show(name, model):
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    print(f"{name} {sum(value.double().sum().item() for value in whole.values())!r}", flush=True)

if launch == 0:
    undisturbed = built()
    for step in range(1, 13):
        train(*undisturbed, step)
    show("undisturbed:", undisturbed[0])
model, optimizer = built()
saves = Saves(model, optimizer)
begun = saves.restore()
print("begun after", begun, flush=True)
for step in range(begun + 1, 13):
    train(model, optimizer, step)
    print("step", step, flush=True)
    if step % 3 == 0:
        saves.save(step)
    if step == 8 and launch == 0:
        saves._finish()
        os.kill(os.getpid(), signal.SIGKILL)
saves.close()
show("launched again:", model)
dist.destroy_process_group()
"""


def test_a_killed_process_frees_its_gpu_and_the_next_one_ends_with_the_same_weights(tmp_path: Path) -> None:
    with Gang(
        tmp_path,
        TRAINS,
        kind="torchrun",
        checkpoints=Checkpoints(uri=str(tmp_path / "kept")),
        restarts=Restarts(program=1, node=1),
        limits=Limits(stop_grace=5.0, join_timeout=60.0),
    ) as one:
        assert one.run() == [0], one.agents[0].stderr.read_text()
        printed, report = one.agents[0].stdout.read_text(), one.agents[0].report
    (restart,) = report.restarts
    print(f"from the kill to the first new step: {restart.seconds} s, {report.recoveries}")
    assert re.findall(r"begun after (\d+)", printed) == ["0", "6"]
    undisturbed, again = (
        re.findall(rf"{name}: (.*)$", printed, re.MULTILINE) for name in ("undisturbed", "launched again")
    )
    assert undisturbed
    assert again == undisturbed
    assert report.checkpoint
    assert report.checkpoint.step == 12
