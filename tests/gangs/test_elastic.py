"""A real gang goes on with fewer machines, and with all of them once there are others."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_ocidist.backends.local import Local
from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.gangs import last_lines
from airflow_provider_ocidist.gangs.actions import Cancel, Fail, GoOnWithout, NodeChange, Replace, Succeed
from airflow_provider_ocidist.gangs.replacements import change_nodes
from airflow_provider_ocidist.gangs.submission import GangSubmitter
from airflow_provider_ocidist.gangs.watch import Watch
from airflow_provider_ocidist.model.drill import DRILL_VARIABLE
from airflow_provider_ocidist.model.run import NodeState
from airflow_provider_ocidist.model.work_dir import AGENT_ARCHIVE, LOCAL
from scripts.emulator_process import Access
from tests.gangs.test_replacements import runs_of
from tests.http_client import http
from tests.training_jobs import BACKEND, a_job, a_key

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


def followed(
    watch: Watch, on_change: Callable[[NodeChange], object] = lambda _: None
) -> tuple[list[type], Succeed | Fail]:
    """Follow a gang to its end as a task does; return which changes were decided, and how it ended."""
    seen: list[type] = []
    while not isinstance(action := watch.look(time.time()), Succeed | Fail):
        match action:
            case NodeChange() as change:
                change_nodes(watch, change, LOG)
                on_change(change)
                seen.append(type(change))
            case Cancel(ending):
                watch.end(ending)
        time.sleep(0.1)
    return seen, action


@pytest.mark.torch
@pytest.mark.slow
def test_of_three_nodes_two_train_on_and_all_three_finish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(last_lines, "LAST_LINES_AFTER", 0.1)
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

    def may_start(change: NodeChange) -> None:
        if isinstance(change, GoOnWithout) and not archive.exists():
            (tmp_path / AGENT_ARCHIVE).rename(archive)

    try:
        seen, action = followed(watch, may_start)
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


# At OCI


COUNTS = """
import json, os, pathlib, time
rank, nodes = int(os.environ["OCIDIST_NODE_RANK"]), int(os.environ["OCIDIST_NODES"])
launch, folder = int(os.environ["OCIDIST_RESTARTS"]), pathlib.Path(os.environ["OCIDIST_CHECKPOINT_DIR"])
folder.mkdir(parents=True, exist_ok=True)
saved = sorted(folder.glob("step-*.txt"))
begun = step = int(saved[-1].stem[5:]) if saved else 0
while not (launch and nodes == 3 and step >= begun + 10):
    step += 1
    if rank == 0:
        with open(os.environ["OCIDIST_PROGRESS_FILE"], "a") as file:
            file.write(json.dumps({"step": step}) + "\\n")
        if step % 10 == 0:
            (folder / "new.tmp").write_text(f"{nodes} nodes")
            (folder / "new.tmp").rename(folder / f"step-{step:06}.txt")
    time.sleep(0.05)
"""


@pytest.mark.slow
def test_of_three_job_runs_two_train_on_and_all_three_finish(
    backend: OciDataScience, emulator: Access, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(last_lines, "LAST_LINES_AFTER", 0.1)
    (tmp_path / "train.py").write_text(COUNTS)
    job = a_job(
        nodes=3,
        program={"source": str(tmp_path), "script": "train.py"},
        backend={**BACKEND, "topology": "job_runs"},
        env={DRILL_VARIABLE: "kill-node@training:node=2,step=8"},
        restarts={"node": 1},
        limits={"stop_grace": 1, "lease": 600, "grow_after": 1},
    )
    # A program without torch: its launcher needs no other number of processes, so the job may not ask for it.
    job = replace(job, min_nodes=2)
    refused = {"display_name": r".*-2\.1", "failure": "Out of host capacity."}
    http.post(f"{emulator.url}/_emulator/nodes", json=refused).raise_for_status()
    record = GangSubmitter(backend, job, LOG, None, threading.Event()).adopt_or_submit(a_key(), None)
    watch = Watch(backend, record, LOG)
    try:
        seen, action = followed(watch)
    finally:
        backend.cancel(watch.record.ref)
        http.delete(f"{emulator.url}/_emulator/nodes").raise_for_status()
    assert isinstance(action, Succeed), action
    ref, status = watch.record.ref, watch.status
    assert status is not None
    assert (seen[0], GoOnWithout in seen) == (Replace, True)
    assert [each.members for each in status.restarts] == [(), (0, 1), (0, 1, 2)]
    # The lost one, and the one that was asked for again when there was a machine.
    assert [(each.cause, each.rank) for each in ref.replaced] == [(Cause.NODE, 2), (Cause.CAPACITY, 2)]
    assert [each[:2] for each in runs_of(backend, ref)] == [(0, 0), (1, 0), (2, 0), (2, 1), (2, 2)]
    assert all(node.state is NodeState.SUCCEEDED for node in status.nodes)
    # What a killed worker would find, who knows only the gang as it was.
    listed = backend.current(record.ref)
    assert [each.cause for each in listed.replaced] == [Cause.NODE, Cause.CAPACITY]
    assert listed.run_ids == ref.run_ids
