"""Faults of a node of which the fault matrix knows: the training goes on, or ends with the right cause."""

from __future__ import annotations

import random
import socket
import time
import uuid
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.join.heartbeat import Heartbeat
from airflow_provider_ocidist.agent.join.silence import SILENT_AFTER
from airflow_provider_ocidist.agent.join.topology import master_port
from airflow_provider_ocidist.agent.stopping import StopSwitch
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.job import Checkpoints, LauncherOptions, Limits, Program
from airflow_provider_ocidist.launchers.base import Placement
from airflow_provider_ocidist.launchers.torchrun import LAUNCHER as TORCHRUN
from airflow_provider_ocidist.model.report import NodeReport, Phase
from airflow_provider_ocidist.model.run_key import RunKey
from airflow_provider_ocidist.storage.stores.opening import open_store
from tests.agent.gangs import Gang, processes_with, until
from tests.agent.monitor.test_peers import Gangway

STANDS_STILL = {
    "an endless loop": "while True:\n        pass",
    "a lock that is taken twice": (
        "import threading\n    lock = threading.Lock()\n    lock.acquire()\n    lock.acquire()"
    ),
    "a message that never comes": "import socket\n    a, b = socket.socketpair()\n    a.recv(1)",
}


@pytest.mark.parametrize("how", STANDS_STILL)
def test_a_rank_that_stands_still_by_whatever_is_a_hang_and_is_shown_where(tmp_path: Path, how: str) -> None:
    script = f"import os, time\ndef stuck_here():\n    {STANDS_STILL[how]}\nprint('step 5')\nstuck_here()"
    with Gang(tmp_path, script, nodes=1, limits=Limits(hang_timeout=4.0, stop_grace=2.0)) as gang:
        assert gang.run() == [75]
        report, said = gang.agents[0].report, gang.agents[0].stderr.read_text()
    assert report.cause is Cause.HANG
    assert "the last step was 5" in (report.message or "")
    assert "in stuck_here" in said


@pytest.mark.parametrize("seed", range(20))
def test_a_partition_shorter_than_the_patience_ends_nothing_and_a_longer_one_names_the_node(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    gang = Gangway(tmp_path)
    gang.beat(1)
    gang.beat(2)
    assert gang.looks(5, beating=(1, 2)) == []
    for _ in range(5):
        gang.answering = False
        assert gang.looks(rng.randint(1, int(SILENT_AFTER) - 1)) == []
        gang.answering = True
        assert gang.looks(rng.randint(2, 10), beating=(1, 2)) == []
    gang.answering = False
    assert gang.looks(SILENT_AFTER + 5)[0].startswith("node 1 ")


@pytest.mark.parametrize("late", [0, 1, 2])
def test_whichever_node_comes_last_is_waited_for(tmp_path: Path, late: int) -> None:
    script = "import os\nprint('trained on', os.environ['RANK'])"
    limits = Limits(join_timeout=120.0, stop_grace=2.0)
    with Gang(tmp_path, script, nodes=3, limits=limits) as gang:
        for agent in list(gang.start(*(rank for rank in range(3) if rank != late))):
            agent.shows(lambda agent=agent: agent.waits)
        gang.start(late)
        assert [agent.wait() for agent in gang.agents] == [0, 0, 0]


@pytest.mark.parametrize("seed", range(10))
def test_torchrun_waits_as_long_for_a_node_as_the_agents_do(seed: int) -> None:
    patience = random.Random(seed).uniform(60, 7200)
    nodes = Placement(
        rank=1,
        nodes=3,
        processes_per_node=2,
        master_address="10.0.0.1",
        address="10.0.0.2",
        addresses=("10.0.0.1", "10.0.0.2", "10.0.0.3"),
        rendezvous_id="r",
        join_timeout=patience,
    )
    command = " ".join(TORCHRUN.command(Program(script="x.py"), LauncherOptions(kind="torchrun"), nodes))
    assert f"join_timeout={round(patience)}" in command
    assert f"read_timeout={round(patience)}" in command


def test_a_port_that_is_taken_ends_the_attempt_and_the_next_has_another(tmp_path: Path) -> None:
    script = "import os\nprint('trained in', os.environ['TORCHELASTIC_RUN_ID'])"
    options = {"nodes": 2, "kind": "torchrun", "limits": Limits(join_timeout=60.0, stop_grace=2.0)}
    first, second = two_attempts_of_one_task()
    with socket.socket() as taken:
        taken.bind(("", master_port("127.0.99.1", first)))
        taken.listen()
        with Gang(tmp_path, script, name=first, **options) as gang:
            gang.start()
            rendezvous = until(lambda: rendezvous_of(gang))
            codes = [agent.wait() for agent in gang.agents]
            reports = [agent.report for agent in gang.agents]
        assert 0 not in codes
        causes = {report.cause for report in reports}
        assert Cause.NODE in causes, [report.message for report in reports]
        assert causes <= {Cause.NODE, None}
        # The next one starts in what this one has left, and its port is still taken.
        with Gang(tmp_path, script, name=second, **options) as gang:
            assert gang.run() == [0, 0]
            trained_in = {agent.stdout.read_text().split()[-1] for agent in gang.agents}
    assert len(trained_in) == 1
    assert trained_in != {rendezvous}


def two_attempts_of_one_task() -> list[str]:
    """Return the names of two attempts whose ports differ: of 9000 tasks, one has attempts with the same."""
    for _ in range(5):
        task = RunKey(dag_id="dag", run_id=uuid.uuid4().hex, task_id="train")
        names = [replace(task, attempt=attempt).name for attempt in (1, 2)]
        if len({master_port("127.0.99.1", name) for name in names}) > 1:
            break
    return names


def rendezvous_of(gang: Gang) -> str | None:
    """Return the id under which the processes of torchrun meet, as soon as one has been started."""
    for pid in processes_with(gang.name):
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            found = [word.partition("=")[2] for word in words if word.startswith("--rdzv-id=")]
            if found:
                return found[0]
    return None


def test_what_the_program_does_to_the_agents_files_does_not_end_the_training(tmp_path: Path) -> None:
    script = """
import os, pathlib, shutil, time
folder = pathlib.Path(os.environ["OCIDIST_CHECKPOINT_DIR"])
folder.mkdir(parents=True, exist_ok=True)
shutil.rmtree(pathlib.Path(os.environ["OCIDIST_PROGRESS_FILE"]).parent)
for step in (1, 2, 3):
    print("step", step, flush=True)
    new = folder / f".step-{step}"
    new.write_bytes(b"x" * 1000)
    new.rename(folder / f"step-{step}.bin")
    time.sleep(1.5)
"""
    checkpoints = Checkpoints(uri=str(tmp_path / "safe"))
    with Gang(tmp_path, script, checkpoints=checkpoints) as gang:
        assert gang.run() == [0], gang.agents[0].stderr.read_text()
        report = gang.agents[0].report
    assert report.checkpoint is not None
    assert report.checkpoint.step == 3


def test_a_fault_of_a_watch_stops_neither_beats_nor_other_watches(tmp_path: Path) -> None:
    now = time.time()
    report = NodeReport(rank=0, phase=Phase.TRAINING, address="", started_at=now, heartbeat_at=now)
    heartbeat = Heartbeat(open_store(str(tmp_path)), report, StopSwitch())
    heartbeat.interval = 0.02
    looked: list[int] = []
    heartbeat.watches += [lambda: 1 / 0, lambda: looked.append(1)]
    heartbeat.start()
    until(lambda: len(looked) > 5)
    written = heartbeat.written_at
    until(lambda: heartbeat.written_at > written)
    heartbeat.finish(phase=Phase.DONE)
    left = NodeReport.from_json(open_store(str(tmp_path)).read("nodes/0.json"))
    assert left.phase is Phase.DONE
