"""Gangs of processes on this machine; their state lies in their run directories only."""

from __future__ import annotations

import errno
import fcntl
import io
import logging
import os
import shutil
import threading
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_provider_ocidist.backends.base import LOG_LINES, LogPart
from airflow_provider_ocidist.backends.bundle import agent_bundle, code_errors, own_work_dir
from airflow_provider_ocidist.backends.capabilities import NamesSecrets, OpensById, ReplacesNodes
from airflow_provider_ocidist.backends.local import log_lines, node, processes
from airflow_provider_ocidist.backends.local.plans import KIND, folder_in, make_plan
from airflow_provider_ocidist.backends.local.processes import NodeProcess
from airflow_provider_ocidist.backends.node_config import expectations, secrets_of_nodes
from airflow_provider_ocidist.backends.work_dir_backend import WorkDirBackend, refuse_if_stopped
from airflow_provider_ocidist.errors import (
    AgentError,
    BackendError,
    Cause,
    JobFileError,
    Problem,
    RunNotFound,
)
from airflow_provider_ocidist.model.agent_config import INCARNATION_VARIABLE, RANK_VARIABLE, AgentConfig
from airflow_provider_ocidist.model.attempts import Attempt
from airflow_provider_ocidist.model.job import TrainingJob
from airflow_provider_ocidist.model.report import Restart
from airflow_provider_ocidist.model.run import Ending, NodeState, NodeStatus, Plan, RunKey, RunRecord, RunRef
from airflow_provider_ocidist.model.work_dir import AGENT_ARCHIVE, LOCAL
from airflow_provider_ocidist.work_dir.attempt_index import work_dir_of

log = logging.getLogger(__name__)

GANG, LOCK, GRACE = "gang.json", "lock", "grace.json"
KILL_AFTER = 60.0
"""Seconds beyond `limits.stop_grace` after which a repeated cancel kills."""
PERMANENT = (errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG)
"""Errors of a place that can be no work directory, whenever it is tried."""
FEWEST_LINES = 1000
"""Least number of lines of a node that one look reads."""


class Local(ReplacesNodes, NamesSecrets, OpensById, WorkDirBackend[Mapping[str, list[NodeStatus]]]):
    """Starts the nodes of a gang as processes that outlive the one which started them; their lease ends them."""

    kind = KIND
    needs_connection = False

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields
        super().__init__(fields)

    def _work_dir(self) -> str:
        return folder_in(self._fields)

    def plan(self, job: TrainingJob, key: RunKey) -> Plan:
        plan = make_plan(job, key, self._fields)
        if refused := own_work_dir(plan.code, work_dir_of(plan.run_dir)):
            raise JobFileError([Problem("work_dir", refused)], job.name)
        return plan

    # submit

    def _adopted(self, plan: Plan, found: Sequence[RunRef]) -> RunRef | None:
        # It may lie in another work directory than the one that the settings name now.
        with _work_dir_errors():
            return next((ref for ref in found if ref.key == plan.key), None) or _gang_in(plan.run_dir)

    def _created(self, plan: Plan, stop: threading.Event | None) -> RunRef:
        with _work_dir_errors(), _locked(Path(plan.run_dir)):
            return _gang_in(plan.run_dir) or self._started(plan, stop)

    def _gangs_of(self, attempt: Attempt) -> list[RunRef]:
        found = _gang_in(attempt.place.run_dir)
        return [] if found is None else [found]

    def _started(self, plan: Plan, stop: threading.Event | None) -> RunRef:
        """Start every node that is not there yet; the gang's own file comes last, and marks it as whole."""
        if plan.lease:
            # Before there is a node: without a first renewal there is no lease.
            self.directories.renew(plan)
        bundle = _bundle(plan)
        archive = _archive(bundle)
        limits = AgentConfig.from_env(plan.requests[0].body["environment"]).limits
        node.write(Path(plan.run_dir, LOCAL, GRACE), {"seconds": limits.stop_grace})
        if plan.replaces:
            Path(plan.run_dir, LOCAL, AGENT_ARCHIVE).write_bytes(bundle)
        run_ids = tuple(f"{plan.key.name}-{rank}" for rank in range(plan.nodes))
        ref = RunRef.of(plan, plan.run_dir, run_ids, has_own_log=True)
        try:
            for process, request in zip(_processes(ref), plan.requests, strict=True):
                refuse_if_stopped(plan, stop)
                process.start(archive, request.body["python"], request.body["environment"])
        except BackendError:
            self.cancel(ref)
            raise
        node.write(Path(plan.run_dir, LOCAL, GANG), ref.to_json())
        return ref

    def current(self, ref: RunRef) -> RunRef:
        found = _gang_in(ref.run_dir)
        return ref if found is None else replace(ref, run_ids=found.run_ids, **_replaced_in(found))

    def replace_nodes(self, ref: RunRef, failures: Sequence[Restart]) -> RunRef:
        with _locked(Path(ref.run_dir)):
            now = self.current(ref)
            if now.replaced != ref.replaced:
                # Another process was faster.
                return now
            for failure in failures:
                now = _with_one(now, failure)
            node.write(Path(ref.run_dir, LOCAL, GANG), now.to_json())
        return now

    def end_nodes(self, ref: RunRef, ranks: Sequence[int]) -> None:
        for rank in ranks:
            # It was silent: nothing that it could still save would count.
            _process(ref, rank).kill()

    # find without a plan

    def open(self, resource_id: str) -> RunRecord:
        """Return the gang of a run directory, which is its id here, in whichever work directory its job has named."""
        place = os.path.normpath(Path(resource_id).expanduser().absolute())
        try:
            ref = _gang_in(place)
        except (OSError, TypeError, ValueError):
            ref = None
        if ref is None or ref.run_dir != place:
            raise RunNotFound(
                f"{resource_id} is no run directory: name the folder of the run in the job's work_dir, by default "
                f"{self._work_dir()}",
                status_code=404,
                cause=Cause.CONFIG,
            )
        for process in _processes(ref):
            with suppress(AgentError):
                config = AgentConfig.from_env(process.environment())
                return RunRecord.of(ref, config, expectations(config))
        # With its nodes their configuration has gone.
        if not all(status.state.terminal for status in _states(ref)):
            log.warning(
                "%s: the variables of its nodes cannot be read, as those of another user's processes or of another "
                "machine: no limit of the job applies, and what it has to save is not known",
                ref.key.name,
            )
        return RunRecord(ref=ref, lease=ref.lease, logs_since=(ref.submitted_at,) * ref.nodes)

    # look

    def _look(self, refs: Sequence[RunRef]) -> dict[str, list[NodeStatus]]:
        return {ref.run_dir: _states(ref) for ref in refs}

    def _reads_all(self, ref: RunRef, seen: Mapping[str, list[NodeStatus]]) -> bool:
        return any(node.state.terminal for node in seen[ref.run_dir])

    def _nodes(self, ref: RunRef, seen: Mapping[str, list[NodeStatus]], reported: object) -> list[NodeStatus]:
        del reported
        return seen[ref.run_dir]

    def logs_of(
        self, wanted: Sequence[tuple[RunRef, Sequence[float]]], most: int = LOG_LINES
    ) -> list[LogPart]:
        each = max(FEWEST_LINES, most // max(1, sum(ref.nodes for ref, _ in wanted)))
        return [_log_part(ref, since, each) for ref, since in wanted]

    def secrets_of(self, ref: RunRef) -> set[str]:
        """Return them as long as a node runs: its variables are stored nowhere else."""
        return secrets_of_nodes(process.environment() for process in _processes(ref))

    # end

    def cancel(self, ref: RunRef, ending: Ending | None = None) -> None:
        self.directories.request_end(ref, ending)
        grace = (processes.read(Path(ref.run_dir, LOCAL, GRACE)) or {}).get("seconds", 0.0) + KILL_AFTER
        # Also what has just taken the place of another.
        now = self.current(ref)
        for process, found in zip(_processes(now), _states(now), strict=True):
            if not found.state.terminal:
                process.cancel(grace)

    def delete(self, ref: RunRef) -> None:
        shutil.rmtree(Path(ref.run_dir) / LOCAL, ignore_errors=True)


def _processes(ref: RunRef) -> list[NodeProcess]:
    return [_process(ref, rank) for rank in range(ref.nodes)]


def _process(ref: RunRef, rank: int) -> NodeProcess:
    incarnation = ref.incarnation(rank)
    return NodeProcess(Path(ref.run_dir, LOCAL, f"{rank}.{incarnation}" if incarnation else str(rank)))


def _replaced_in(ref: RunRef) -> dict[str, Any]:
    return {"replaced": ref.replaced, "lost_seconds": ref.lost_seconds}


def _with_one(ref: RunRef, failure: Restart) -> RunRef:
    """Start a node in the place of one that has failed, unless it was; return the gang with it."""
    rank = failure.rank
    assert rank is not None
    lost = _process(ref, rank).state() or {}
    now = time.time()
    seconds = max(0.0, lost.get("finished_at", now) - lost.get("started_at", now))
    run_ids = (
        *ref.run_ids[:rank],
        f"{ref.key.name}-{rank}.{ref.incarnation(rank) + 1}",
        *ref.run_ids[rank + 1 :],
    )
    made = replace(
        ref, run_ids=run_ids, replaced=(*ref.replaced, failure), lost_seconds=ref.lost_seconds + seconds
    )
    living = next((each for each in _processes(ref) if each.environment()), None)
    if living is None:
        raise BackendError(
            f"{ref.key.name}: none of its nodes lives, so a new node cannot get their variables"
        )
    own = {RANK_VARIABLE: str(rank), INCARNATION_VARIABLE: str(made.incarnation(rank))}
    try:
        archive = _archive(Path(ref.run_dir, LOCAL, AGENT_ARCHIVE).read_bytes())
    except (OSError, zipfile.BadZipFile) as error:
        raise BackendError(f"what the nodes of {ref.key.name} run cannot be read: {error}") from error
    _process(made, rank).start(archive, living.python, {**living.environment(), **own})
    return made


def _states(ref: RunRef) -> list[NodeStatus]:
    missing = NodeState.PENDING if Path(ref.run_dir, LOCAL).exists() else NodeState.MISSING
    return [
        NodeStatus(rank=rank, run_id=ref.run_ids[rank], **(process.state() or {"state": missing}))
        for rank, process in enumerate(_processes(ref))
    ]


def _bundle(plan: Plan) -> bytes:
    with code_errors(plan.code):
        return agent_bundle(plan.code, work_dir_of(plan.run_dir))


def _archive(bundle: bytes) -> zipfile.ZipFile:
    return zipfile.ZipFile(io.BytesIO(bundle))


def _gang_in(run_dir: str) -> RunRef | None:
    found = processes.read(Path(run_dir, LOCAL, GANG))
    return None if found is None else RunRef.from_json(found)


@contextmanager
def _locked(run_dir: Path) -> Iterator[None]:
    """Let one process at a time start the gang of a run directory. Raises BackendError where nothing can be written."""
    folder = run_dir / LOCAL
    with ExitStack() as stack:
        with _work_dir_errors():
            folder.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context((folder / LOCK).open("a"))
            # NFS may refuse it, as long as its lock service does not answer.
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _work_dir_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        is_jobs = error.errno in PERMANENT
        raise BackendError(
            f"work_dir cannot be used: {error}{'; name another work_dir' if is_jobs else ''}",
            cause=Cause.CONFIG if is_jobs else Cause.SERVICE,
            retryable=not is_jobs,
        ) from error


def _log_part(ref: RunRef, since: Sequence[float], most: int) -> LogPart:
    lines, unread = [], {}
    for rank, process in enumerate(_processes(ref)):
        found, left = log_lines.read(
            process.folder / node.LOG, rank, since[rank], most, incarnation=ref.incarnation(rank)
        )
        lines += found
        if left is not None:
            unread[rank] = left
    return LogPart(sorted(lines, key=lambda line: line.time), unread)
