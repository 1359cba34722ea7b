"""A real gang goes on with fewer machines, and with all of them once there are others."""

from __future__ import annotations

import logging
import re
import threading
import time
from pathlib import Path

import pytest

from airflow_provider_ocidist.backends.local import Local
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.gangs import watch as watches
from airflow_provider_ocidist.gangs.decisions import Fail, GoOnWithout, Replace, Succeed
from airflow_provider_ocidist.gangs.replacements import change_nodes
from airflow_provider_ocidist.gangs.submission import GangSubmitter
from airflow_provider_ocidist.gangs.watch import Watch
from airflow_provider_ocidist.model.drill import DRILL_VARIABLE
from airflow_provider_ocidist.model.work_dir import AGENT_ARCHIVE, LOCAL
from tests.training_jobs import a_job, a_key

LOG = logging.getLogger("elastic")
TOTAL = 150
TRAINS = f"""
import os, pathlib, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
folder = pathlib.Path(os.environ["OCIDIST_CHECKPOINT_DIR"])
saved = sorted(folder.glob("step-*.pt"))
state = torch.load(saved[-1]) if saved else {{"step": 0, "weights": torch.zeros(4)}}
if rank == 0:
    print(f"world {{world}} from step {{state['step']}}", flush=True)
for step in range(state["step"] + 1, {TOTAL} + 1):
    # The mean of all processes: the update is the same for any number of them.
    gradient = torch.full((4,), 3.0 * step)
    dist.all_reduce(gradient)
    state = {{"step": step, "weights": state["weights"] * 0.5 + gradient / world}}
    if step % (2 if world == 2 else 5) == 0 and rank == 0:
        torch.save(state, folder / "new.tmp")
        (folder / "new.tmp").rename(folder / f"step-{{step:03}}.pt")
    if rank == 0:
        print(f"step: {{step}} ", flush=True)
    # Minutes, while a node is missing: it comes before the end.
    time.sleep(2.0 if world == 2 else 0.05)
dist.destroy_process_group()
"""


@pytest.mark.torch
@pytest.mark.slow
def test_of_three_nodes_two_train_on_and_all_three_finish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(watches, "LAST_LINES_AFTER", 0.1)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(TRAINS)
    job = a_job(
        nodes={"min": 2, "max": 3},
        program={"source": str(tmp_path / "code"), "script": "train.py"},
        launcher={"kind": "torchrun"},
        backend={"kind": "local"},
        env={DRILL_VARIABLE: "kill-node@training:node=2,step=25"},
        restarts={"node": 1},
        limits={"stop_grace": 1, "lease": 600, "grow_after": 1},
    )
    backend = Local.connect({"work_dir": str(tmp_path / "work")})
    record = GangSubmitter(backend, job, LOG, None, threading.Event()).adopt_or_submit(a_key(), None)
    watch = Watch(backend, record, LOG)
    # As long as there is nothing to start a node with, each replacement is refused.
    archive = Path(record.ref.run_dir, LOCAL, AGENT_ARCHIVE)
    archive.rename(tmp_path / AGENT_ARCHIVE)
    seen: list[type] = []
    try:
        while not isinstance(action := watch.look(time.time()), Succeed | Fail):
            if isinstance(action, Replace | GoOnWithout):
                change_nodes(watch, action, LOG)
                seen.append(type(action))
            if isinstance(action, GoOnWithout) and not archive.exists():
                (tmp_path / AGENT_ARCHIVE).rename(archive)
            time.sleep(0.1)
        lines = [line.text for line in backend.logs(watch.record.ref, [0.0] * 3)]
    finally:
        backend.cancel(watch.record.ref)
    assert isinstance(action, Succeed), action
    assert seen[0] is Replace
    assert GoOnWithout in seen
    worlds = [match for line in lines if (match := re.fullmatch(r"world (\d) from step (\d+)", line))]
    assert [int(each[1]) for each in worlds] == [3, 2, 3]
    assert all(int(each[2]) for each in worlds[1:]), "each goes on from a checkpoint"
    assert [(each.cause, each.rank) for each in watch.record.ref.replaced] == [(Cause.CAPACITY, 2)]
    assert watch.record.members == (0, 1, 2)
    assert watch.status is not None
    assert watch.status.checkpoint is not None
    assert watch.status.checkpoint.step == TOTAL
    weights = torch.zeros(4)
    for step in range(1, TOTAL + 1):
        weights = weights * 0.5 + 3.0 * step
    last = torch.load(Path(watch.status.checkpoint.uri, f"step-{TOTAL:03}.pt"))
    assert torch.equal(last["weights"], weights)
