"""What every backend keeps, with real nodes. A backend joins by a class of its own:

class TestContract(Contract):
    @pytest.fixture(scope="class")
    @classmethod
    def home(cls, ...) -> Home: ...
"""

from __future__ import annotations

import json
import logging
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist import kinds
from airflow_provider_ocidist.backends.base import Backend
from airflow_provider_ocidist.backends.capabilities import secrets_of_gang
from airflow_provider_ocidist.errors import BackendError, Cause
from airflow_provider_ocidist.gangs.actions import Fail, Succeed
from airflow_provider_ocidist.gangs.decisions import decide
from airflow_provider_ocidist.gangs.stop_flag import StopFlag
from airflow_provider_ocidist.gangs.submission import GangSubmitter
from airflow_provider_ocidist.job import TrainingJob
from airflow_provider_ocidist.job_file import parsing
from airflow_provider_ocidist.model.attempts import Attempt, End
from airflow_provider_ocidist.model.codec import encode
from airflow_provider_ocidist.model.run import NodeState, RunKey, RunRecord, RunRef, RunStatus
from airflow_provider_ocidist.operators import gang_cleanup
from airflow_provider_ocidist.operators.task_jobs import TaskConnection
from airflow_provider_ocidist.plugin.log_tail import log_tail_of
from tests.training_jobs import a_key, wait_until

LOG = logging.getLogger("contract")
SEED = random.randrange(10_000)
LEASE = 4.0
PROGRAM = """\
import os, pathlib, signal, sys, time
rank, seconds, end = int(os.environ["RANK"]), float(sys.argv[1]), sys.argv[2]
for step in (1, 2):
    print(f"step {step}/2 of {rank}", flush=True)
    time.sleep(seconds / 2)
if rank == int(os.environ["WORLD_SIZE"]) - 1:
    if end == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(int(end))
if rank == 0:
    folder = pathlib.Path(os.environ["OCIDIST_CHECKPOINT_DIR"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "step-000002.bin").write_bytes(b"weights")
"""
SUBMIT = """
import json, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from tests.backends.contract import Home, submit
told = json.loads(sys.argv[2])
home = Home(**told["home"])
job = home.job(Path(told["folder"]), nodes=2, seconds=60)
print("begins", flush=True)
submit(home.connect(), job, home.key(told["key"]), 1)
"""
ROOT = Path(__file__).parents[2]
SECRET = "of-the-contract-hunter22"


@dataclass(frozen=True)
class Home:
    """Where a backend runs: enough to reach it from another process."""

    kind: str
    fields: Mapping[str, Any]
    """Of the connection."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """What a job file has for this backend: `backend`, `image`."""

    def connect(self) -> Backend:
        """Return the backend as another process has it."""
        backend: Backend = kinds.load("backends", self.kind).BACKEND.connect(self.fields)
        return backend

    def job(self, folder: Path, **wanted: Any) -> TrainingJob:
        """Return a job as `given` has it."""
        return parsing.build(self.given(folder, **wanted))

    def given(self, folder: Path, *, nodes: int = 2, seconds: float = 0.4, end: str = "0") -> dict[str, Any]:
        """Return a job, as a file has it, whose last node ends in this way: an exit code, or `killed`."""
        folder.mkdir(exist_ok=True)
        (folder / "train.py").write_text(PROGRAM)
        env = {"CONTRACT_TOKEN": SECRET, **self.changes.get("env", {})}
        return {
            "name": "contract",
            "nodes": nodes,
            "program": {"source": str(folder), "script": "train.py", "args": [str(seconds), end]},
            "launcher": {"kind": "python"},
            "checkpoints": {},
            "limits": {"stop_grace": 1},
            **self.changes,
            "env": env,
        }

    def key(self, told: Mapping[str, Any]) -> RunKey:
        return RunKey(**told)


def submit(backend: Backend, job: TrainingJob, key: RunKey, number: int) -> RunRecord:
    gang = GangSubmitter(backend, job, LOG, None, threading.Event())
    return gang.adopt_or_submit(key, None, number)


def running(status: RunStatus) -> bool:
    return all(node.state is NodeState.RUNNING and node.report for node in status.nodes)


@dataclass
class Ended:
    """A gang that has ended, and what those who submitted it were given."""

    home: Home
    job: TrainingJob
    key: RunKey
    refs: list[RunRef]
    status: RunStatus

    @property
    def ref(self) -> RunRef:
        return self.refs[0]

    def action(self) -> Any:
        record = RunRecord.of(self.ref, self.job, self.home.connect().plan(self.job, self.key).expects)
        return decide(record, self.status, time.time())


class Contract:
    """The tests. Gangs that only have to end are begun together, so that their times do not add up."""

    @pytest.fixture(scope="class")
    @classmethod
    def folder(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return tmp_path_factory.mktemp("contract") / "code"

    @pytest.fixture(scope="class")
    @classmethod
    def ended(cls, home: Home, folder: Path) -> Iterator[Mapping[str, Ended]]:
        jobs = {
            "well": home.job(folder),
            "exits 3": home.job(folder, end="3"),
            "killed": home.job(folder, nodes=1, end="killed"),
            "left alone": _with_lease(home.job(folder, nodes=1, seconds=300)),
        }
        keys = {name: a_key() for name in jobs}
        backends = {name: home.connect() for name in jobs}
        refs: dict[str, list[RunRef]] = {}
        try:
            with ThreadPoolExecutor(8) as pool:
                asked = {
                    name: [
                        pool.submit(home.connect().submit, backends[name].plan(job, keys[name]))
                        for _ in range(3 if name == "well" else 1)
                    ]
                    for name, job in jobs.items()
                }
                for name, answers in asked.items():
                    refs[name] = [answer.result() for answer in answers]
            yield {
                name: Ended(
                    home,
                    jobs[name],
                    keys[name],
                    refs[name],
                    wait_until(backends[name], refs[name][0], _has_ended),
                )
                for name in jobs
            }
        finally:
            for name, found in refs.items():
                backends[name].cancel(found[0])

    @pytest.fixture
    def ends(self, home: Home) -> Iterator[Callable[[RunRef], RunRef]]:
        refs: list[RunRef] = []
        yield lambda ref: refs.append(ref) or ref
        for ref in refs:
            home.connect().cancel(ref)

    def test_one_key_submitted_by_several_at_once_is_one_gang(self, ended: Mapping[str, Ended]) -> None:
        refs = ended["well"].refs
        assert len(refs) == 3
        assert {ref.run_ids for ref in refs} == {refs[0].run_ids}
        assert {ref.job_id for ref in refs} == {refs[0].job_id}

    def test_two_nodes_train_to_a_checkpoint(self, ended: Mapping[str, Ended]) -> None:
        status = ended["well"].status
        assert [node.state for node in status.nodes] == [NodeState.SUCCEEDED] * 2, status
        assert [node.exit_code for node in status.nodes] == [0, 0]
        assert status.checkpoint is not None
        assert status.checkpoint_problem is None
        assert isinstance(ended["well"].action(), Succeed)

    def test_each_line_of_each_node_arrives_once(self, home: Home, ended: Mapping[str, Ended]) -> None:
        ref, backend = ended["well"].ref, home.connect()
        wanted = {(rank, f"step {step}/2 of {rank}") for rank in range(2) for step in (1, 2)}
        deadline = time.monotonic() + 60
        while True:
            lines = [line for line in backend.logs(ref, [0.0, 0.0]) if line.text.startswith("step ")]
            if len(lines) >= len(wanted) or time.monotonic() > deadline:
                break
            time.sleep(0.5)
        assert sorted((line.rank, line.text) for line in lines) == sorted(wanted)
        assert [line.time for line in lines] == sorted(line.time for line in lines)
        # A process that goes on where another has stopped knows lines by their ids.
        assert {line.id for line in home.connect().logs(ref, [0.0, 0.0])} >= {line.id for line in lines}
        assert len({line.id for line in lines}) == len(lines)

    def test_the_last_lines_of_each_node_are_its_own(self, home: Home, ended: Mapping[str, Ended]) -> None:
        ref, backend = ended["well"].ref, home.connect()
        for rank in range(2):
            deadline = time.monotonic() + 60
            while True:
                tail = log_tail_of(backend, ref, rank, time.time())
                said = [line.text for line in tail.lines if line.text.startswith("step ")]
                if len(said) == 2 or time.monotonic() > deadline:
                    break
                time.sleep(0.5)
            assert said == [f"step {step}/2 of {rank}" for step in (1, 2)], tail.problem
            assert {line.rank for line in tail.lines} == {rank}

    def test_another_process_finds_the_gang_by_its_task(self, home: Home, ended: Mapping[str, Ended]) -> None:
        well, backend = ended["well"], home.connect()
        assert [ref.job_id for ref in backend.gangs.find(backend.plan(well.job, well.key))] == [
            well.ref.job_id
        ]
        other = replace(well.key, run_id="another")
        assert backend.gangs.find(backend.plan(well.job, other)) == []

    def test_a_retry_adopts_a_success(self, home: Home, ended: Mapping[str, Ended]) -> None:
        well = ended["well"]
        assert submit(home.connect(), well.job, well.key, 2).ref.run_ids == well.ref.run_ids

    def test_a_program_that_exits_with_a_code_is_the_users_fault(self, ended: Mapping[str, Ended]) -> None:
        found = ended["exits 3"]
        assert found.status.nodes[1].state is NodeState.FAILED, found.status
        assert found.status.nodes[1].exit_code == 3
        action = found.action()
        assert isinstance(action, Fail)
        assert action.cause is Cause.USER

    def test_a_program_that_is_killed_is_named_so(self, ended: Mapping[str, Ended]) -> None:
        (node,) = ended["killed"].status.nodes
        assert node.state is NodeState.FAILED
        assert "SIGKILL" in str(node.report and node.report.message)
        assert isinstance(ended["killed"].action(), Fail)

    def test_nodes_that_nobody_waits_for_end_by_their_lease(self, ended: Mapping[str, Ended]) -> None:
        (node,) = ended["left alone"].status.nodes
        assert node.report is not None
        assert node.report.cause is Cause.ABANDONED
        assert f"for {LEASE:g}s (limits.lease)" in str(node.report.message)

    def test_a_submitter_that_is_killed_leaves_one_gang_to_the_next_and_a_clear_ends_it(
        self, home: Home, folder: Path, ends: Callable[[RunRef], RunRef]
    ) -> None:
        key, backend = a_key(), home.connect()
        print("seed", SEED)
        told = {"home": {**vars(home)}, "folder": str(folder), "key": encode(key)}
        arguments = [sys.executable, "-c", SUBMIT, str(ROOT), json.dumps(told)]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"begins\n"
            time.sleep(random.Random(SEED).uniform(0, 0.6))
            child.kill()
        job = home.job(folder, seconds=60)
        first = ends(submit(backend, job, key, 2).ref)
        assert first.complete
        wait_until(backend, first, running)
        assert SECRET in secrets_of_gang(home.connect(), first)
        assert [ref.job_id for ref in home.connect().gangs.find(backend.plan(job, key))] == [first.job_id]
        again = submit(home.connect(), job, key, 3).ref
        assert (again.job_id, again.run_ids) == (first.job_id, first.run_ids)
        assert backend.directories.claimed_by(first) == 3
        cleared = ends(submit(home.connect(), job, replace(key, generation=5), 4).ref)
        assert cleared.key.generation > first.key.generation
        assert backend.status([first])[0].ended
        for _ in range(2):
            backend.cancel(cleared)
        status = wait_until(backend, cleared, _has_ended)
        assert NodeState.SUCCEEDED not in {node.state for node in status.nodes}
        backend.gangs.close(cleared, End(succeeded=False))
        backend.cancel(cleared)
        backend.delete(cleared)
        wait_until(
            backend, cleared, lambda found: {node.state for node in found.nodes} == {NodeState.MISSING}
        )

    def test_a_gang_that_is_left_over_is_ended_by_the_task_that_ends_trainings(
        self,
        home: Home,
        folder: Path,
        ends: Callable[[RunRef], RunRef],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        key = a_key()
        left = ends(submit(home.connect(), home.job(folder, nodes=1, seconds=60), key, 1).ref)
        connection = {"conn_type": "oci", "extra": dict(home.fields)}
        monkeypatch.setenv("AIRFLOW_CONN_LEFT_OVER", json.dumps(connection))
        monkeypatch.setattr(gang_cleanup, "SETTLED_AFTER", 0.0)
        # Its worker was killed before it could publish the gang.
        monkeypatch.setattr(gang_cleanup, "_published_by", lambda _: None)
        cleanup = gang_cleanup.GangCleanup(TaskConnection("left_over"), None, None, 60.0, StopFlag(), LOG)
        assert cleanup.end_all([key]) == [left.key.name]
        assert home.connect().status([left])[0].ended

    def test_a_submission_that_is_stopped_leaves_nothing_alive(self, home: Home, folder: Path) -> None:
        job, backend, looks = home.job(folder, seconds=60), home.connect(), 0
        while True:
            stop, plan = StoppedAfter(looks), backend.plan(job, a_key())
            try:
                ref = backend.submit(plan, stop)
            except BackendError:
                looks += 1
                for ref in backend.gangs.found(plan.key, [Attempt.of(plan)]):
                    wait_until(backend, ref, _has_ended)
            else:
                backend.cancel(ref)
                break
        assert looks


class StoppedAfter(threading.Event):
    """Is set when it has been looked at so often."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self._left = looks

    def is_set(self) -> bool:
        self._left -= 1
        return self._left < 0


def _with_lease(job: TrainingJob) -> TrainingJob:
    """Return a job with a lease that is shorter than a job file may have it."""
    return replace(job, limits=replace(job.limits, lease=LEASE))


def _has_ended(status: RunStatus) -> bool:
    return status.ended and status.reports_readable
