"""Gangs of processes on this machine; their state lies in their run directories only."""

from __future__ import annotations

import fcntl
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_provider_ocidist.backends.base import LogLine
from airflow_provider_ocidist.backends.bundle import agent_bundle
from airflow_provider_ocidist.backends.local import node
from airflow_provider_ocidist.backends.local.plans import KIND, folder_in, make_plan
from airflow_provider_ocidist.backends.work_dir_backend import WorkDirBackend
from airflow_provider_ocidist.errors import BackendError, Cause
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.attempts import Attempt
from airflow_provider_ocidist.model.job import TrainingJob
from airflow_provider_ocidist.model.run import Ending, NodeState, NodeStatus, Plan, RunKey, RunRef, RunStatus
from airflow_provider_ocidist.work_dir.reports import Reported, signed
from airflow_provider_ocidist.work_dir.stored import with_checkpoint

FOLDER = "local"
"""In the run directory: a folder for each node's process, by rank."""
GANG, LOCK, CANCELED, GRACE = "gang.json", "lock", "canceled", "grace.json"
PATIENCE = 60.0
"""Seconds in which a process starts; and after which, beyond `limits.stop_grace`, a cancel that is repeated kills."""


class Local(WorkDirBackend):
    """Starts the nodes of a gang as processes that outlive the one which started them; their lease ends them."""

    kind = KIND
    needs_connection = False

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields
        super().__init__(fields)

    def _work_dir(self) -> str:
        return folder_in(self._fields)

    def plan(self, job: TrainingJob, key: RunKey) -> Plan:
        return make_plan(job, key, self._fields)

    # submit

    def submit(
        self, plan: Plan, stop: threading.Event | None = None, found: Sequence[RunRef] | None = None
    ) -> RunRef:
        del stop, found
        with _locked(Path(plan.run_dir)):
            ref = _gang_in(plan.run_dir) or self._started(plan)
        self.gangs.record(Attempt.of(plan, ref))
        return ref

    def _gangs_of(self, attempt: Attempt) -> list[RunRef]:
        found = _gang_in(attempt.place.run_dir)
        return [] if found is None else [found]

    def _started(self, plan: Plan) -> RunRef:
        if plan.lease:
            # Before there is a node: without a first renewal there is no lease.
            self.directories.renew(plan)
        return _started(plan)

    # look

    def status(self, refs: Sequence[RunRef]) -> list[RunStatus]:
        reported = self._reports.read({ref.run_dir: True for ref in refs})
        return [self._status(ref, reported.get(ref.run_dir)) for ref in refs]

    def _status(self, ref: RunRef, reported: Mapping[int, Reported] | None) -> RunStatus:
        nodes = []
        for rank in range(ref.nodes):
            latest = (reported or {}).get(rank)
            found = replace(_node(ref, rank), report=latest.report if latest else None)
            nodes.append(signed(found, latest))
        status = RunStatus(nodes=tuple(nodes), reports_readable=reported is not None, at=time.time())
        return with_checkpoint(status, ref, self._access)

    def logs(self, ref: RunRef, since: Sequence[float]) -> list[LogLine]:
        lines = [line for rank in range(ref.nodes) for line in _lines(ref, rank) if line.time >= since[rank]]
        return sorted(lines, key=lambda line: line.time)

    # end

    def cancel(self, ref: RunRef, ending: Ending | None = None) -> None:
        self._request_stop(ref, ending)
        for rank in range(ref.nodes):
            if _node(ref, rank).state.terminal:
                continue
            mark = _folder(ref.run_dir, rank) / CANCELED
            mark.touch(exist_ok=True)
            grace = (_read(Path(ref.run_dir, FOLDER, GRACE)) or {}).get("seconds", 0.0) + PATIENCE
            hard = time.time() - mark.stat().st_mtime > grace
            _signal(_folder(ref.run_dir, rank), signal.SIGKILL if hard else signal.SIGTERM)

    def delete(self, ref: RunRef) -> None:
        shutil.rmtree(Path(ref.run_dir) / FOLDER, ignore_errors=True)


def _started(plan: Plan) -> RunRef:
    """Start every node that is not there yet; the gang's own file comes last, and marks it as whole."""
    archive = _archive(plan)
    limits = AgentConfig.from_env(plan.requests[0].body["environment"]).limits
    node.write(Path(plan.run_dir, FOLDER, GRACE), {"seconds": limits.stop_grace})
    for rank, request in enumerate(plan.requests):
        folder = _folder(plan.run_dir, rank)
        if not (folder / node.STARTED).exists():
            _start(folder, archive, request.body)
    ref = RunRef(
        backend=KIND,
        key=plan.key,
        nodes=plan.nodes,
        job_id=plan.run_dir,
        run_ids=tuple(f"{plan.key.name}-{rank}" for rank in range(plan.nodes)),
        run_dir=plan.run_dir,
        submitted_at=time.time(),
        checkpoints_uri=plan.checkpoints_uri,
        has_own_log=True,
        topology=plan.topology,
        lease=plan.lease,
    )
    node.write(Path(plan.run_dir, FOLDER, GANG), ref.to_json())
    return ref


def _archive(plan: Plan) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(io.BytesIO(agent_bundle(plan.code)))
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise BackendError(f"the code cannot be read: {error}", cause=Cause.CONFIG) from error


def _start(folder: Path, archive: zipfile.ZipFile, body: Mapping[str, Any]) -> None:
    archive.extractall(folder / "app")
    with (folder / node.ERROR).open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, node.__file__, str(folder), body["python"]],
            env={**_inherited(), **body["environment"]},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            start_new_session=True,
        )
    # While this process lives, it has to reap its child.
    threading.Thread(target=process.wait, name="node", daemon=True).start()
    _wait_for(folder / node.STARTED, folder / node.ERROR)


def _inherited() -> dict[str, str]:
    """Return this process's environment without that of Airflow, which holds connections and keys."""
    return {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW_")}


def _wait_for(file: Path, errors: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not file.exists():
        if time.monotonic() > deadline:
            raise BackendError(f"a node did not start: {errors.read_text()[-500:] or errors}", retryable=True)
        time.sleep(0.02)


def _gang_in(run_dir: str) -> RunRef | None:
    try:
        return RunRef.from_json(json.loads(Path(run_dir, FOLDER, GANG).read_text()))
    except FileNotFoundError:
        return None


@contextmanager
def _locked(run_dir: Path) -> Iterator[None]:
    """Let one process at a time start the gang of a run directory."""
    folder = run_dir / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _folder(run_dir: str, rank: int) -> Path:
    return Path(run_dir, FOLDER, str(rank))


def _read(file: Path) -> dict[str, Any] | None:
    with suppress(FileNotFoundError):
        return dict(json.loads(file.read_text()))
    return None


def _node(ref: RunRef, rank: int) -> NodeStatus:
    folder = _folder(ref.run_dir, rank)
    started, ended = _read(folder / node.STARTED), _read(folder / node.ENDED)
    canceled = (folder / CANCELED).exists()
    elsewhere = started is not None and started.get("machine", node.here()) != node.here()
    if ended is None and started is not None and not elsewhere and not _lives(started):
        # It may just have ended.
        ended = _read(folder / node.ENDED)
    found = NodeStatus(rank=rank, run_id=ref.run_ids[rank], state=NodeState.PENDING)
    if started is None:
        return found if Path(ref.run_dir, FOLDER).exists() else replace(found, state=NodeState.MISSING)
    found = replace(found, started_at=started["at"])
    if ended is not None:
        code = ended["exit_code"]
        state = NodeState.SUCCEEDED if code == 0 else NodeState.CANCELED if canceled else NodeState.FAILED
        return replace(found, state=state, details=f"exit code {code}", finished_at=ended["at"])
    if elsewhere:
        return replace(found, state=NodeState.UNKNOWN, details=_out_of_sight(started["machine"], folder))
    if _lives(started):
        return replace(found, state=NodeState.ENDING if canceled else NodeState.RUNNING)
    gone = NodeState.CANCELED if canceled else NodeState.FAILED
    return replace(found, state=gone, details="its process is gone", cause=None if canceled else Cause.NODE)


def _out_of_sight(machine: Mapping[str, str], folder: Path) -> str:
    return (
        f"its process was started on {machine['host']}, in another container, or before a restart, and cannot be seen "
        f"from here ({node.here()['host']}): look from there; a stop request and its lease reach it all the same; "
        f"when that machine is gone, remove {folder.parent}"
    )


def _lives(started: Mapping[str, Any]) -> bool:
    if started.get("machine", node.here()) != node.here():
        return False
    try:
        os.kill(started["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return bool(started["began"] == node.began(started["pid"]))


def _signal(folder: Path, number: int) -> None:
    """Signal a node, and all of its processes where it has to be killed."""
    started = _read(folder / node.STARTED)
    if started is None or not _lives(started):
        return
    with suppress(ProcessLookupError):
        if number == signal.SIGKILL:
            os.killpg(started["pid"], number)
        else:
            os.kill(started["pid"], number)


def _lines(ref: RunRef, rank: int) -> Iterator[LogLine]:
    try:
        text = (_folder(ref.run_dir, rank) / node.LOG).read_text(encoding="utf-8")
    except FileNotFoundError:
        return
    for number, line in enumerate(text.splitlines()):
        with suppress(ValueError, LookupError):
            # The last write may be in progress.
            found = json.loads(line)
            yield LogLine(id=f"{rank}-{number}", time=found["time"], rank=rank, text=found["text"])
