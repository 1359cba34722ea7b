"""Gangs of processes on this machine: the same contract as on a service, and no service."""

from __future__ import annotations

import errno
import fcntl
import io
import json
import logging
import math
import os
import random
import re
import resource
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from airflow_provider_ocidist.backends.local import Local, log_lines, node, processes
from airflow_provider_ocidist.errors import BackendError, Cause, JobFileError, RunNotFound
from airflow_provider_ocidist.gangs.submission import GangSubmitter
from airflow_provider_ocidist.job_file import parsing
from airflow_provider_ocidist.model import work_dir
from airflow_provider_ocidist.model.attempts import Attempt, End
from airflow_provider_ocidist.model.job import TrainingJob
from airflow_provider_ocidist.model.run import NodeState, RunKey, RunRecord, RunRef, RunStatus
from airflow_provider_ocidist.model.work_dir import LOCAL
from tests.agent.gangs import processes_with
from tests.agent.save.small_disk import small_disk
from tests.training_jobs import PROGRAMS, a_key, wait_until


@pytest.fixture
def backend(tmp_path: Path) -> Local:
    return Local.connect({"work_dir": str(tmp_path / "work")})


@pytest.fixture(autouse=True)
def _no_process_is_left(tmp_path: Path) -> Iterator[None]:
    """Set up before `ends`, so that it looks after that has cancelled."""
    yield
    deadline = time.monotonic() + 60
    while (left := processes_with(str(tmp_path / "work"))) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


def a_job(nodes: int = 2, seconds: float = 0.5, script: str = "steps.py", **changes: Any) -> TrainingJob:
    return parsing.build(
        {
            "name": "steps",
            "nodes": nodes,
            "program": {"source": str(PROGRAMS), "script": script, "args": ["--seconds", str(seconds)]},
            "launcher": {"kind": "python"},
            "checkpoints": {},
            "limits": {"stop_grace": 1},
            "backend": {"kind": "local"},
            **changes,
        }
    )


def submitter(backend: Local, job: TrainingJob) -> GangSubmitter:
    return GangSubmitter(backend, job, logging.getLogger("test"), None, threading.Event())


def running(status: RunStatus) -> bool:
    return all(item.state is NodeState.RUNNING and item.report for item in status.nodes)


def eventually(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def pids(ref: RunRef) -> list[int]:
    return [
        found["pid"]
        for rank in range(ref.nodes)
        if (found := json.loads(Path(ref.run_dir, LOCAL, str(rank), node.STARTED).read_text()))
    ]


def node_processes(ref: RunRef) -> list[int]:
    """Return the living processes of a gang that run a node."""
    found = []
    for pid in processes_with(ref.key.name):
        with suppress(OSError):
            if b"local/node.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def test_a_gang_is_found_by_its_run_directory_alone_whatever_work_dir_its_job_names(
    backend: Local, tmp_path: Path, ends: Callable[[RunRef], RunRef]
) -> None:
    job = a_job(
        1, seconds=60, limits={"stop_grace": 1, "hang_timeout": 77}, work_dir=str(tmp_path / "work/own")
    )
    plan = backend.plan(job, a_key())
    ref = ends(backend.submit(plan))
    for name in (ref.job_id, f"{ref.job_id}/../{ref.key.name}/"):
        found = backend.open(name)
        assert (found.ref, found.hang_timeout, found.expects) == (ref, 77, plan.expects)
    moved = tmp_path / "moved" / LOCAL
    moved.mkdir(parents=True)
    (moved / "gang.json").write_bytes(Path(ref.run_dir, LOCAL, "gang.json").read_bytes())
    odd = tmp_path / "odd" / LOCAL
    odd.mkdir(parents=True)
    (odd / "gang.json").write_text('{"run_dir": 1}')
    (tmp_path / "file").touch()
    others = [
        str(moved.parent),
        str(odd.parent),
        str(tmp_path),
        str(tmp_path / "work"),
        str(tmp_path / "file"),
    ]
    for other in (*others, f"{ref.job_id}/local", f"{ref.job_id}x", "steps"):
        with pytest.raises(RunNotFound, match=f"{other} is no run directory"):
            backend.open(other)
    backend.cancel(ref)
    wait_until(backend, ref, lambda status: status.ended)
    assert backend.open(ref.job_id).ref == ref


def test_an_executable_of_the_code_starts_and_so_does_the_one_that_it_calls(
    backend: Local, tmp_path: Path, ends: Callable[[RunRef], RunRef]
) -> None:
    project = tmp_path / "project"
    (project / "bin").mkdir(parents=True)
    (project / "start").write_text('#!/bin/sh\nexec "$(dirname "$0")/bin/train"\n')
    (project / "bin/train").write_text("#!/bin/sh\necho trained\n")
    for path in (project / "start", project / "bin/train"):
        path.chmod(0o755)
    job = a_job(
        1,
        program={"source": str(project), "script": "start"},
        launcher={"kind": "command"},
        checkpoints={"required": False},
    )
    ref = ends(backend.submit(backend.plan(job, a_key())))
    (found,) = wait_until(backend, ref, lambda status: status.ended).nodes
    assert (found.state, found.details) == (NodeState.SUCCEEDED, "exit code 0")


def test_living_nodes_whose_variables_cannot_be_read_are_watched_without_limits_and_a_warning_says_so(
    backend: Local,
    ends: Callable[[RunRef], RunRef],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    job = a_job(1, seconds=60, limits={"stop_grace": 1, "hang_timeout": 77})
    ref = ends(backend.submit(backend.plan(job, a_key())))
    # As those of a process of another user.
    monkeypatch.setattr(processes.NodeProcess, "environment", lambda _: {})
    assert backend.open(ref.job_id).hang_timeout is None
    assert "no limit of the job applies" in caplog.text
    caplog.clear()
    backend.cancel(ref)
    wait_until(backend, ref, lambda status: status.ended)
    backend.open(ref.job_id)
    assert not caplog.text


def test_two_nodes_train_to_a_checkpoint_and_each_line_arrives_once(
    backend: Local, ends: Callable[[RunRef], RunRef]
) -> None:
    ref = ends(backend.submit(backend.plan(a_job(), a_key())))
    status = wait_until(backend, ref, lambda found: found.ended)
    assert [item.state for item in status.nodes] == [NodeState.SUCCEEDED] * 2
    assert status.checkpoint is not None
    assert Path(status.checkpoint.uri, "manifest.json").exists()
    lines = backend.logs(ref, [0.0, 0.0])
    assert {line.rank for line in lines} == {0, 1}
    assert len({line.id for line in lines}) == len(lines)
    after = max(line.time for line in lines) + 1
    assert backend.logs(ref, [after, after]) == []


def test_every_file_of_a_work_directory_has_its_row_in_the_table(
    backend: Local, ends: Callable[[RunRef], RunRef], tmp_path: Path
) -> None:
    job = a_job(limits={"stop_grace": 1, "lease": 60}, restarts={"program": 1})
    record = submitter(backend, job).adopt_or_submit(a_key(), None, 2)
    ref = ends(record.ref)
    wait_until(backend, ref, lambda found: found.ended)
    backend.gangs.close(ref, End(succeeded=True))
    backend.cancel(ref)
    folder = tmp_path / "work"
    files = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    rows = [row for line in str(work_dir.__doc__).splitlines() for row in rows_of(line)]
    assert {name for name in files if not any(row.fullmatch(name) for row in rows)} == set()
    assert len([row for row in rows if any(row.fullmatch(name) for name in files)]) >= 10


def test_a_success_beside_a_node_that_lives_is_looked_up_until_that_has_ended(
    backend: Local,
) -> None:
    key = a_key()
    plan, later = (backend.plan(a_job(), replace(key, attempt=number)) for number in (1, 2))
    ref = RunRef(
        backend="local",
        key=key,
        nodes=2,
        job_id="gang",
        run_ids=("one", "two"),
        run_dir=plan.run_dir,
        submitted_at=1.0,
    )
    backend.gangs.record(Attempt.of(plan, ref))
    success = End(succeeded=True, try_number=1, alive=True)
    backend.gangs.close(ref, success)
    backend.gangs.record(Attempt.of(later))
    assert [each.end for each in backend.gangs.attempts(plan)] == [success, None]
    backend.gangs.close_ended(ref)
    assert [each.end for each in backend.gangs.attempts(plan)] == [None]
    assert backend.gangs.ends(ref) == [replace(success, alive=False)]
    assert backend.gangs.leave(Attempt.of(plan, ref)).end == End(succeeded=False)
    assert backend.gangs.leave(replace(Attempt.of(plan, ref), end=success)).end == replace(
        success, alive=False
    )
    assert backend.gangs.ends(ref) == [replace(success, alive=False)]


def rows_of(line: str) -> list[re.Pattern[str]]:
    """Return what the paths in the first column of the table stand for."""
    paths = re.findall(r"`(.+?)`", line.split(" | ", maxsplit=1)[0]) if line.startswith("| `") else []
    return [re.compile("".join(map(_meaning, re.findall(PARTS, path)))) for path in paths]


PARTS = r"<\w+>|\.\.\.|\d+|."


def _meaning(part: str) -> str:
    """Return the pattern for a part of such a path: a name, anything below, a number, or itself."""
    if part.startswith("<"):
        return "[^/]+"
    return ".+" if part == "..." else r"\d+" if part.isdecimal() else re.escape(part)


def test_a_node_sees_the_machines_environment_without_airflows_own(
    backend: Local,
    ends: Callable[[RunRef], RunRef],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_OTHER_TEAM", "oci://?passphrase=hunter22")
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", "hunter22")
    monkeypatch.setenv("OF_THE_MACHINE", "1")
    source = tmp_path / "source"
    source.mkdir()
    (source / "show.py").write_text("import os\nprint(*sorted(os.environ))\n")
    job = a_job(
        nodes=1,
        program={"source": str(source), "script": "show.py"},
        checkpoints=None,
        env={"OF_THE_JOB": "1"},
    )
    ref = ends(backend.submit(backend.plan(job, a_key())))
    wait_until(backend, ref, lambda found: found.ended)
    names = {name for line in backend.logs(ref, [0.0]) for name in line.text.split()}
    assert {"OF_THE_MACHINE", "OF_THE_JOB", "PATH"} <= names
    assert not {name for name in names if name.startswith("AIRFLOW_")}


def test_any_submitters_any_number_of_times_make_one_gang(
    backend: Local, ends: Callable[[RunRef], RunRef]
) -> None:
    plan = backend.plan(a_job(seconds=60), a_key())
    with ThreadPoolExecutor(4) as pool:
        refs = list(pool.map(lambda _: Local.connect({}).submit(plan), range(4)))
    ends(refs[0])
    assert len({ref.run_ids for ref in refs}) == 1
    wait_until(backend, refs[0], running)
    assert sorted(node_processes(refs[0])) == sorted(pids(refs[0]))


KILLED = """
import os, sys, threading
sys.path.insert(0, sys.argv[1])
from airflow_provider_ocidist.backends import local
from airflow_provider_ocidist.backends.local.processes import NodeProcess
from airflow_provider_ocidist.model import codec
from tests.backends.local.test_local import a_job
from airflow_provider_ocidist.model.run import RunKey
number = int(sys.argv[4])
real, left = getattr(NodeProcess, sys.argv[5]), [number]
def last(*args, **kwargs):
    left[0] -= 1
    if left[0] < 0:
        os._exit(9)
    return real(*args, **kwargs)
setattr(NodeProcess, sys.argv[5], last)
backend = local.Local.connect({"work_dir": sys.argv[2]})
backend.submit(backend.plan(a_job(nodes=3, seconds=60), RunKey(dag_id="dag", run_id=sys.argv[3], task_id="train")))
os._exit(0)
"""


@pytest.mark.parametrize("step, number", [("start", 0), ("start", 1), ("_wait_for", 0), ("_wait_for", 2)])
def test_a_submitter_that_is_killed_amid_its_submission_leaves_one_gang_to_the_next(
    backend: Local, ends: Callable[[RunRef], RunRef], tmp_path: Path, step: str, number: int
) -> None:
    key = a_key()
    root = str(Path(__file__).parents[3])
    arguments = [root, str(tmp_path / "work"), key.run_id, str(number), step]
    killed = subprocess.run([sys.executable, "-c", KILLED, *arguments], cwd=root, check=False, timeout=120)
    assert killed.returncode == 9
    ref = ends(backend.submit(backend.plan(a_job(nodes=3, seconds=60), key)))
    status = wait_until(backend, ref, running)
    assert len(status.nodes) == 3
    assert sorted(node_processes(ref)) == sorted(pids(ref))


def test_a_retry_adopts_and_a_clear_ends_the_gang_and_begins_another(
    backend: Local, ends: Callable[[RunRef], RunRef]
) -> None:
    key, job = a_key(), a_job(nodes=1, seconds=60)
    first = submitter(backend, job).adopt_or_submit(replace(key, generation=1), None, 1).ref
    ends(first)
    again = submitter(backend, job).adopt_or_submit(replace(key, generation=1), None, 2).ref
    assert (again.key, again.run_ids) == (first.key, first.run_ids)
    cleared = submitter(backend, job).adopt_or_submit(replace(key, generation=4), None, 3).ref
    ends(cleared)
    assert cleared.key.generation > first.key.generation
    assert backend.status([first])[0].ended
    assert backend.directories.claimed_by(first) == 2


def test_cancel_ends_every_process_and_may_be_repeated(
    backend: Local, ends: Callable[[RunRef], RunRef]
) -> None:
    ref = ends(backend.submit(backend.plan(a_job(seconds=60), a_key())))
    wait_until(backend, ref, running)
    for _ in range(3):
        backend.cancel(ref)
    # A node says how it has ended, and is gone a moment later.
    status = wait_until(backend, ref, lambda found: found.ended and not node_processes(ref))
    assert {item.state for item in status.nodes} == {NodeState.CANCELED}
    backend.cancel(ref)
    backend.delete(ref)
    assert {item.state for item in backend.status([ref])[0].nodes} == {NodeState.MISSING}


@pytest.mark.parametrize("seed", range(2))
def test_a_node_whose_process_is_killed_has_failed_and_its_number_is_nobodys(
    backend: Local, ends: Callable[[RunRef], RunRef], seed: int
) -> None:
    ref = ends(backend.submit(backend.plan(a_job(seconds=60), a_key())))
    wait_until(backend, ref, running)
    victim = random.Random(seed).randrange(2)
    os.kill(pids(ref)[victim], signal.SIGKILL)
    status = wait_until(backend, ref, lambda found: found.nodes[victim].state is NodeState.FAILED)
    assert status.nodes[victim].cause is Cause.NODE
    # The number of a process that is gone may be given to another: that one is never signalled.
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        started = Path(ref.run_dir, LOCAL, str(victim), node.STARTED)
        told = json.loads(started.read_text())
        node.write(started, {**told, "pid": stranger.pid})
        backend.cancel(ref)
        assert backend.status([ref])[0].nodes[victim].state.terminal
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_no_process_of_a_node_outlives_the_one_that_is_looked_at(
    backend: Local, ends: Callable[[RunRef], RunRef]
) -> None:
    ref = ends(backend.submit(backend.plan(a_job(nodes=1, seconds=600), a_key())))
    wait_until(backend, ref, running)
    os.kill(pids(ref)[0], signal.SIGKILL)
    assert wait_until(backend, ref, lambda found: found.ended).nodes[0].state is NodeState.FAILED
    # A retry begins at once: beside it, nothing may train.
    eventually(lambda: not processes_with(ref.key.name))


def test_a_python_that_cannot_be_run_is_a_fault_of_the_job(
    backend: Local, ends: Callable[[RunRef], RunRef], tmp_path: Path
) -> None:
    missing = backend.plan(a_job(backend={"kind": "local", "python": "/no/such/python"}), a_key())
    with pytest.raises(BackendError, match=r"python is not a program .*/no/such/python") as caught:
        backend.submit(missing)
    assert (caught.value.cause, caught.value.retryable) == (Cause.CONFIG, False)
    broken = tmp_path / "python"
    broken.write_bytes(b"\0")
    broken.chmod(0o755)
    job = a_job(nodes=1, backend={"kind": "local", "python": str(broken)})
    ref = ends(backend.submit(backend.plan(job, a_key())))
    (found,) = wait_until(backend, ref, lambda status: status.ended).nodes
    assert (found.state, found.cause) == (NodeState.FAILED, Cause.CONFIG)
    assert f"backend.python cannot be run: {broken}" in str(found.details)


def test_when_one_node_does_not_start_no_other_stays(backend: Local) -> None:
    plan = backend.plan(a_job(nodes=2, seconds=600), a_key())
    folder = Path(plan.run_dir, LOCAL, "1")
    folder.mkdir(parents=True)
    (folder / "app").write_text("no folder")
    with pytest.raises(BackendError, match="a node did not start"):
        backend.submit(plan)
    eventually(lambda: not processes_with(plan.key.name))


def test_a_node_that_dies_as_it_starts_is_not_waited_for(
    backend: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = backend.plan(a_job(nodes=1), a_key())
    monkeypatch.setattr(node, "__file__", "/no/such/script")
    monkeypatch.setattr(processes, "START_TIMEOUT", math.inf)
    with pytest.raises(BackendError, match="/no/such/script"):
        backend.submit(plan)


TO_END_AT_ONCE = """
import os, pathlib, signal, sys
from airflow_provider_ocidist.backends.local import node
real = node.write
def write(file, value):
    real(file, value)
    if file.name == node.STARTED:
        os.kill(os.getpid(), signal.SIGTERM)
node.write = write
sys.exit(node.main(pathlib.Path(sys.argv[1]), sys.executable))
"""


def test_a_node_that_is_to_end_as_soon_as_others_know_of_it_ends(tmp_path: Path) -> None:
    (tmp_path / node.ENTRYPOINT).parent.mkdir(parents=True)
    (tmp_path / node.ENTRYPOINT).write_text("import time; time.sleep(600)")
    command = [sys.executable, "-c", TO_END_AT_ONCE, str(tmp_path)]
    subprocess.run(command, cwd=Path(__file__).parents[3], check=False, timeout=60)
    assert json.loads((tmp_path / node.ENDED).read_text())["exit_code"] == -signal.SIGTERM


def test_a_long_log_is_read_from_where_it_is_wanted(backend: Local, tmp_path: Path) -> None:
    file, count = tmp_path / "log.jsonl", 50_000
    file.write_text(
        "".join(json.dumps({"time": float(each), "text": f"line {each}"}) + "\n" for each in range(count))
    )
    for since in (0.0, 1.0, 777.5, count / 2, count - 1.0):
        first = math.ceil(since)
        lines, unread = log_lines.read(file, 3, since, most=2)
        assert [line.text for line in lines] == [
            f"line {each}" for each in range(first, min(first + 2, count))
        ]
        assert unread == (first + 2.0 if first + 2 < count else None)
    # The same line has the same id, wherever reading began.
    (early,) = [line for line in log_lines.read(file, 3, 0.0, most=count)[0] if line.time == 40_000]
    assert log_lines.read(file, 3, 40_000.0, most=1)[0] == [early]
    assert log_lines.read(file, 3, math.inf, most=1) == ([], None)
    with file.open("rb") as counted:
        assert count_read(counted, count - 1.0) < file.stat().st_size / 5


def count_read(log: BinaryIO, since: float) -> int:
    """Return how many bytes of a log lie from where it would be read on."""
    return log.seek(0, 2) - log_lines._start(log, since)


def test_the_secrets_of_living_nodes_are_known_to_another_process(
    backend: Local, ends: Callable[[RunRef], RunRef]
) -> None:
    job = a_job(nodes=1, seconds=600, env={"API_TOKEN": "of-the-job-hunter22"})
    ref = ends(backend.submit(backend.plan(job, a_key())))
    assert "of-the-job-hunter22" in Local.connect({}).secrets_of(ref)


@pytest.mark.parametrize("written", ["~/runs", "runs", "file:///srv/runs"])
def test_a_work_directory_is_one_folder_for_every_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    wanted = "/srv/runs" if "://" in written else str(tmp_path / "runs")
    connected = Local.connect({"work_dir": written})
    plan = connected.plan(a_job(), a_key())
    assert plan.run_dir == f"{wanted}/{plan.key.name}"
    assert str(plan.checkpoints_uri).startswith(f"{wanted}/")
    assert connected._work_dir() == wanted


def test_a_program_that_fails_is_reported_with_its_exception(
    backend: Local, ends: Callable[[RunRef], RunRef], tmp_path: Path
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("raise ValueError('boom')\n")
    program = {"source": str(tmp_path / "code"), "script": "train.py"}
    ref = ends(backend.submit(backend.plan(a_job(nodes=1, program=program), a_key())))
    status = wait_until(backend, ref, lambda found: found.ended)
    assert status.nodes[0].state is NodeState.FAILED
    assert status.nodes[0].report is not None
    assert "ValueError: boom" in str(status.nodes[0].report.message)


def test_a_renewed_lease_lies_where_the_nodes_look(backend: Local, ends: Callable[[RunRef], RunRef]) -> None:
    limits = {"stop_grace": 1, "lease": 60}
    ref = ends(backend.submit(backend.plan(a_job(nodes=1, seconds=600, limits=limits), a_key())))
    wait_until(backend, ref, running)
    assert ref.lease == 60
    backend.directories.renew(ref)
    assert Path(ref.run_dir, "lease.json").exists()


def test_a_cancel_that_is_repeated_kills_what_is_stopped_once_its_grace_is_over(
    backend: Local, ends: Callable[[RunRef], RunRef]
) -> None:
    ref = ends(backend.submit(backend.plan(a_job(nodes=1, seconds=60), a_key())))
    wait_until(backend, ref, running)
    for pid in processes_with(ref.key.name):
        if pid not in pids(ref):
            os.kill(pid, signal.SIGSTOP)
    for _ in range(2):
        backend.cancel(ref)
    assert backend.status([ref])[0].nodes[0].state is NodeState.ENDING
    mark = Path(ref.run_dir, LOCAL, "0", processes.CANCELED_FILE)
    # As if the first cancel had been a minute ago.
    first = mark.stat().st_mtime - 62.0
    os.utime(mark, (first, first))
    for _ in range(2):
        backend.cancel(ref)
    assert mark.stat().st_mtime == pytest.approx(first, abs=0.01)
    wait_until(backend, ref, lambda status: status.ended)
    # Also what could not end itself.
    eventually(lambda: not processes_with(ref.key.name))


MACHINES = ("another machine", "another container", "before a restart")


@pytest.mark.parametrize("where", MACHINES)
def test_a_gang_that_was_started_elsewhere_is_not_taken_for_dead(
    backend: Local, ends: Callable[[RunRef], RunRef], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    ref = ends(backend.submit(backend.plan(a_job(nodes=1, seconds=60), a_key())))
    wait_until(backend, ref, running)
    here = node.here()
    part = dict(zip(MACHINES, ("host", "processes", "boot"), strict=True))[where]
    with monkeypatch.context() as moved:
        moved.setattr(node, "here", lambda: {**here, part: "other"})
        # The same number may be another process there.
        (found,) = backend.status([ref])[0].nodes
        assert found.state is NodeState.UNKNOWN
        assert f"was started on {here['host']}" in str(found.details)
        assert backend.gangs.find(backend.plan(a_job(nodes=1), ref.key)) == [ref]
        # It ends by the stop request, which lies in the folder that both see.
        backend.cancel(ref)
        wait_until(backend, ref, lambda status: status.ended)
    wait_until(backend, ref, lambda status: status.ended and not node_processes(ref))


@pytest.mark.parametrize("nodes", [1, 3])
def test_gangs_of_one_machine_have_addresses_of_their_own(backend: Local, nodes: int) -> None:
    keys = [replace(a_key(), run_id=str(number)) for number in range(50)]
    found = [
        request.body["environment"]["OCIDIST_ADDRESSES"]
        for key in keys
        for request in backend.plan(a_job(nodes=nodes), key).requests[:1]
    ]
    assert len(set(found)) == 50
    assert all(address.startswith("127.") for text in found for address in text.split(","))


def test_elsewhere_than_on_linux_a_single_node_has_the_only_loopback_address(
    backend: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    (request,) = backend.plan(a_job(nodes=1), a_key()).requests
    assert request.body["environment"]["OCIDIST_ADDRESSES"] == "127.0.0.1"


@pytest.mark.parametrize(
    "changes, path",
    [
        ({"image": "iad.ocir.io/ns/i:1", "container": {"command": ["x"]}, "program": {}}, "container"),
        ({"mounts": [{"source": "oci://b@n/x", "path": "/data"}]}, "mounts.0"),
        ({"nodes": 255}, "nodes"),
    ],
)
def test_what_this_machine_cannot_do_is_named_by_its_path(changes: dict[str, Any], path: str) -> None:
    with pytest.raises(JobFileError) as caught:
        a_job(**changes)
    assert path in {problem.path for problem in caught.value.problems}


def test_a_work_directory_elsewhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JobFileError, match="must be a folder of this machine"):
        Local.connect({}).plan(a_job(work_dir="oci://bucket@namespace/work"), a_key())
    # What the connection says may be meant for another backend.
    plan = Local.connect({"work_dir": "oci://bucket@namespace/work"}).plan(a_job(), a_key())
    assert Path(plan.run_dir).is_absolute()


def test_the_record_of_a_gang_survives_json(backend: Local, ends: Callable[[RunRef], RunRef]) -> None:
    job = a_job(nodes=1)
    plan = backend.plan(job, a_key())
    record = RunRecord.of(ends(backend.submit(plan)), job, plan.expects)
    assert RunRecord.from_json(record.to_json()).ref == record.ref
    assert isinstance(record.ref.key, RunKey)


ELSEWHERE = f"""
name: steps
nodes: 1
image: iad.ocir.io/namespace/train:1
program: {{source: {PROGRAMS}, script: steps.py, args: ["--seconds", "0.2"]}}
launcher: {{kind: python}}
checkpoints: {{}}
backend: {{kind: oci_data_science, shape: VM.GPU.A10.1, compartment_id: ocid1.compartment.oc1..x}}
"""


def test_the_command_line_runs_here_what_is_meant_for_another_backend(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(ELSEWHERE)
    command = [sys.executable, "-m", "airflow_provider_ocidist.cli", "run", "job.yaml"]
    done = subprocess.run(
        [*command, "--set", "backend.kind=local", "--wait"],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "succeeded" in done.stdout + done.stderr
    assert list((tmp_path / ".ocidist" / "checkpoints").glob("*/*/manifest.json"))
    logs = subprocess.run(
        [*command[:3], "logs"],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert logs.returncode == 0, logs.stderr
    assert "step 1/1" in logs.stdout


@contextmanager
def kept_signals() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def a_node_of(tmp_path: Path, agent: str) -> list[str]:
    """Make the folder of a node whose agent is this code; return the command that runs the node."""
    (tmp_path / node.ENTRYPOINT).parent.mkdir(parents=True)
    (tmp_path / node.ENTRYPOINT).write_text(agent)
    return [sys.executable, node.__file__, str(tmp_path), sys.executable]


CHATTY = "for number in range(20_000): print(f'line {number}')\nprint('done', flush=True)"


def test_a_node_whose_log_has_no_room_runs_to_its_own_end_and_says_that_lines_are_missing(
    tmp_path: Path,
) -> None:
    command = a_node_of(tmp_path, f"{CHATTY}\nraise SystemExit(3)")
    (tmp_path / node.LOG).symlink_to("/dev/full")
    subprocess.run(command, check=False, timeout=120)
    ended = json.loads((tmp_path / node.ENDED).read_text())
    assert (ended["exit_code"], ended.get("error")) == (3, None)
    found = processes.NodeProcess(tmp_path).state() or {}
    assert found["state"] is NodeState.FAILED
    assert "cause" not in found
    assert found["details"] == "exit code 3; its log is incomplete: No space left on device"


def test_a_log_goes_on_where_its_disk_has_room_again(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "1024k") as place:
        folder, filler = place / "node", place / "filler"
        agent = (
            f"import os\n{CHATTY}\nos.unlink({str(filler)!r})\n"
            "for number in range(3): print('later', number, flush=True)"
        )
        command = a_node_of(folder, agent)
        filler.write_bytes(b"0" * 900_000)
        subprocess.run(command, check=True, timeout=120)
        lines = [line.text for line in log_lines.read(folder / node.LOG, 0, 0.0, most=100_000)[0]]
        ended = json.loads((folder / node.ENDED).read_text())
    assert ended["exit_code"] == 0
    printed = [*(f"line {number}" for number in range(20_000)), "done", "later 0", "later 1", "later 2"]
    (gap,) = (number for number, line in enumerate(lines) if line not in printed)
    assert lines[gap] == "ocidist: lines of this node are missing here: No space left on device"
    after = lines[gap + 1 :]
    assert 0 < gap < 20_000
    assert lines[:gap] == printed[:gap]
    assert after == printed[-len(after) :]
    assert len(after) >= 3


def fills_disk(place: Path) -> str:
    """Return an agent that prints, fills the disk of a folder and fails."""
    return f"""{CHATTY}
try:
    with open({str(place / "filler")!r}, "wb", buffering=0) as file:
        while True:
            file.write(b"0" * 4096)
except OSError:
    raise SystemExit(5)
"""


def test_how_a_node_has_ended_is_recorded_on_a_disk_that_it_has_filled(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "256k") as place:
        agent = fills_disk(place)
        done = subprocess.run(a_node_of(place / "node", agent), check=False, timeout=120)
        assert done.returncode == 5
        found = processes.NodeProcess(place / "node").state() or {}
    assert found["state"] is NodeState.FAILED
    assert "cause" not in found
    assert str(found["details"]).startswith("exit code 5")


def test_a_file_system_that_takes_a_new_block_for_what_is_overwritten_costs_the_log_and_not_the_end(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path / "disk", "256k") as place:
        # A hole, so that the room which was taken is none: btrfs and ZFS copy on write.
        makes_hole = f"import os\nos.truncate({str(place / 'node/ended.new')!r}, 0)\n"
        agent = makes_hole + fills_disk(place)
        done = subprocess.run(a_node_of(place / "node", agent), check=False, timeout=120)
        assert done.returncode == 5
        found = processes.NodeProcess(place / "node").state() or {}
    assert found["details"] == "exit code 5; its log is incomplete: No space left on device"


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE])
def test_a_machine_that_cannot_start_the_agent_for_a_moment_is_no_fault_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(node.subprocess, "Popen", refuse)
    with kept_signals():
        assert node.run(tmp_path, sys.executable) == node.NOT_RUN
    found = processes.NodeProcess(tmp_path).state() or {}
    assert (found["state"], found["cause"]) == (NodeState.FAILED, Cause.NODE)
    assert found["details"] == f"its agent could not be started: {sys.executable}: {os.strerror(number)}"


def test_an_agent_for_which_there_are_no_more_files_to_open_is_no_fault_of_the_job(tmp_path: Path) -> None:
    command = a_node_of(tmp_path, "print('done')")

    def leave_too_few() -> None:
        # Three streams, the lock and two more; the agent's output needs another.
        resource.setrlimit(resource.RLIMIT_NOFILE, (6, 6))

    done = subprocess.run(command, check=False, timeout=120, preexec_fn=leave_too_few)
    assert done.returncode == node.NOT_RUN
    found = processes.NodeProcess(tmp_path).state() or {}
    assert (found["state"], found["cause"]) == (NodeState.FAILED, Cause.NODE)


def test_the_interpreter_of_a_node_is_known_also_where_its_path_is_no_text(tmp_path: Path) -> None:
    python = tmp_path / os.fsdecode(b"caf\xe9") / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("ocidist/node.py", "import time; time.sleep(600)")
    found = processes.NodeProcess(tmp_path / "work" / "0")
    try:
        found.start(zipfile.ZipFile(archive), str(python), {})
        assert found.python == str(python)
        assert found.state()["state"] is NodeState.RUNNING
    finally:
        found.kill()


@pytest.mark.parametrize(
    "name, value, said",
    [("PYTHONHOME", "/no/such/folder", "/no/such/folder"), ("PYTHONPATH", "{}", "no json is here")],
)
def test_variables_that_mislead_python_are_those_of_the_jobs_own_python(
    backend: Local, ends: Callable[[RunRef], RunRef], tmp_path: Path, name: str, value: str, said: str
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('no json is here')")
    job = a_job(nodes=1, env={name: value.format(tmp_path)})
    ref = ends(backend.submit(backend.plan(job, a_key())))
    (found,) = wait_until(backend, ref, lambda status: status.ended).nodes
    assert (found.state, found.details) == (NodeState.FAILED, "exit code 1")
    lines = log_lines.read(Path(ref.run_dir, LOCAL, "0", node.LOG), 0, 0.0, most=100)[0]
    assert any(said in line.text for line in lines)


def test_variables_that_are_too_long_for_the_system_are_a_fault_of_the_job(backend: Local) -> None:
    plan = backend.plan(a_job(nodes=1, env={"LONG": "x" * 200_000}), a_key())
    with pytest.raises(BackendError, match="longer than this system allows; put them into a file") as caught:
        backend.submit(plan)
    assert (caught.value.cause, caught.value.retryable) == (Cause.CONFIG, False)


def below_a_file(tmp_path: Path) -> Path:
    (tmp_path / "file").touch()
    return tmp_path / "file/work"


def of_a_name_that_is_too_long(tmp_path: Path) -> Path:
    return tmp_path / ("long" * 100)


def where_nobody_may_write(_: Path) -> Path:
    # Root may not either.
    return Path("/sys/work")


@pytest.mark.parametrize("place", [below_a_file, of_a_name_that_is_too_long, where_nobody_may_write])
def test_a_work_directory_that_cannot_be_one_is_named_and_is_a_fault_of_the_job(
    tmp_path: Path, place: Callable[[Path], Path]
) -> None:
    backend = Local.connect({"work_dir": str(place(tmp_path))})
    with pytest.raises(BackendError, match=r"work_dir cannot be used: .*/work|long") as caught:
        backend.submit(backend.plan(a_job(nodes=1), a_key()))
    assert (caught.value.cause, caught.value.retryable) == (Cause.CONFIG, False)


def test_a_work_directory_that_cannot_be_locked_for_a_moment_is_tried_again(
    backend: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    # As NFS does whose lock service starts again.
    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(BackendError, match=r"work_dir cannot be used: .*No locks available") as caught:
        backend.submit(backend.plan(a_job(nodes=1), a_key()))
    assert caught.value.retryable


def test_a_submission_for_which_the_disk_has_no_room_is_tried_again(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "64k") as place:
        (place / "filler").write_bytes(b"0" * 65_536)
        backend = Local.connect({"work_dir": str(place / "work")})
        with pytest.raises(BackendError, match="No space left on device") as caught:
            backend.submit(backend.plan(a_job(nodes=1), a_key()))
    assert (caught.value.cause, caught.value.retryable) == (Cause.SERVICE, True)


@pytest.mark.parametrize("name", ["two words", "50%", "a:b", "\u00fc", "#x?y", "a'b\"c", "-x", "two\nlines"])
def test_a_work_directory_of_any_name_takes_a_gang_and_its_checkpoint(
    tmp_path: Path, ends: Callable[[RunRef], RunRef], name: str
) -> None:
    backend = Local.connect({"work_dir": str(tmp_path / "work" / name)})
    ref = ends(backend.submit(backend.plan(a_job(nodes=1), a_key())))
    status = wait_until(backend, ref, lambda status: status.ended)
    assert status.nodes[0].state is NodeState.SUCCEEDED
    assert status.checkpoint is not None
    assert status.checkpoint.uri.startswith(str(tmp_path / "work" / name))


def test_variables_that_are_no_text_reach_a_node_and_the_one_that_takes_its_place(
    backend: Local, ends: Callable[[RunRef], RunRef], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOT_TEXT", os.fsdecode(b"caf\xe9"))
    ref = ends(backend.submit(backend.plan(a_job(nodes=1, seconds=60), a_key())))
    found = processes.NodeProcess(Path(ref.run_dir, LOCAL, "0")).environment()
    # A replacement starts with these.
    assert os.fsencode(found["NOT_TEXT"]) == b"caf\xe9"
