"""`ocidist run`: start a job, and save what was created."""

from __future__ import annotations

import argparse
import threading
import uuid
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_ocidist.backends.capabilities import now_at
from airflow_provider_ocidist.backends.connections import beside
from airflow_provider_ocidist.backports import UTC
from airflow_provider_ocidist.cli import going_on, note, watch
from airflow_provider_ocidist.cli.connection import absence_of, add_connection, backend_of, named_by
from airflow_provider_ocidist.cli.files import add_file, load, problems_of, with_lease
from airflow_provider_ocidist.cli.terminal import (
    FINE,
    Unusable,
    add_json,
    counted,
    discard_output,
    last_output,
    local_path,
    print_json,
    say,
    signals_as_ctrl_c,
)
from airflow_provider_ocidist.errors import BackendError
from airflow_provider_ocidist.kinds import DEFAULT_BACKEND
from airflow_provider_ocidist.model.homes import command_on, ways_to_end

LEASE = 7200.0
"""Seconds that nodes go on after the waiting process, or its machine, has died."""

if TYPE_CHECKING:
    from airflow_provider_ocidist.backends.base import Backend
    from airflow_provider_ocidist.errors import Cause
    from airflow_provider_ocidist.gangs.watch import Watch
    from airflow_provider_ocidist.model.job import TrainingJob
    from airflow_provider_ocidist.model.report import Restart
    from airflow_provider_ocidist.model.run import RunKey, RunRecord


def add_run(parser: argparse.ArgumentParser) -> None:
    add_file(parser)
    parser.add_argument(
        "--info",
        type=Path,
        default=Path(note.INFO),
        metavar="FILE",
        help="file for the ids of the run (default: %(default)s)",
    )
    parser.add_argument(
        "--wait",
        action="store_true",
        help="follow the run to its end; Ctrl-C, SIGTERM and SIGHUP end the run too",
    )
    add_connection(parser)
    watch.add_interval(parser)
    add_json(parser, "print JSON; with --wait, one object in each line")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    if not options.wait:
        return _run(options)
    with signals_as_ctrl_c():
        return _run(options)


def _run(options: argparse.Namespace) -> int:
    from airflow_provider_ocidist.gangs.candidates import Candidates

    options.info = local_path(options.info)
    job = load(options.file, options)
    if options.wait:
        job = with_lease(job, LEASE)
    backend = backend_of(options, job.backend.kind)
    key = _begun(options, backend, job) or _key(job)
    with problems_of(options.file, absence_of(options, job.backend.kind)):
        # Raises if something is missing, before anything is saved.
        Candidates(backend, job, _SubmissionLog(may_be_unread=False)).plans(key)
    # Saved first: after any interruption the created gang can be found again.
    note.note_beginning(options.info, key)
    try:
        record = _submit(options, backend, job, key)
    except BaseException:
        say(
            f"not complete; to complete it, repeat the same command (with {options.info})",
            "yellow",
            stderr=True,
        )
        raise
    if options.wait:
        return _wait(options, backend, job, record)
    note.write(options.info, record)
    for report in (_say_whole, _say_started):
        with last_output():
            report(options, record)
    return FINE


def _begun(options: argparse.Namespace, backend: Backend, job: TrainingJob) -> RunKey | None:
    """Return the key of the incomplete run of a note; a note of another run is refused, with how to go on from it."""
    try:
        return note.begun(options.info, job)
    except Unusable as error:
        line = _line_of_note(options, backend, job)
        raise Unusable(f"{error}; {line}" if line else str(error)) from error


def _line_of_note(options: argparse.Namespace, backend: Backend, job: TrainingJob) -> str | None:
    """Return how to go on from the ended run of this job that a note names; None where that is not known at once."""
    record = note.noted(options.info)
    if record is None or (record.ref.key.dag_id, record.ref.backend) != (job.name, job.backend.kind):
        return None
    there = partial(beside, backend, record.ref.conn_id)
    status = going_on.state_in_time(there, record.ref, awaits_end=False)
    if status is None or (record.ending is None and not status.ended):
        return None
    return going_on.line(options, status)


def _say_whole(options: argparse.Namespace, record: RunRecord) -> None:
    nodes = counted(record.ref.nodes, "node")
    say(f"{record.ref.key.name}: {nodes}, saved in {options.info}", "green", stderr=True)


def _key(job: TrainingJob) -> RunKey:
    from airflow_provider_ocidist.model.run import RunKey

    started = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}-{uuid.uuid4().hex[:6]}"
    return RunKey(dag_id=job.name, run_id=started, task_id="run")


def _submit(options: argparse.Namespace, backend: Backend, job: TrainingJob, key: RunKey) -> RunRecord:
    from airflow_provider_ocidist.gangs.submission import GangSubmitter

    log = _SubmissionLog(may_be_unread=not options.wait)
    submitter = GangSubmitter(backend, job, log, None, threading.Event())
    return submitter.submit_or_end(key) if options.wait else submitter.submit_and_leave(key)


class _SubmissionLog:
    """A submission's log, on the terminal."""

    def __init__(self, *, may_be_unread: bool) -> None:
        """`may_be_unread`: whether a reader that leaves ends nothing: else it would leave a gang half made."""
        self._may_be_unread = may_be_unread

    def info(self, msg: Any, /, *args: Any) -> None:
        self._say(str(msg) % args, "bold")

    def warning(self, msg: Any, /, *args: Any) -> None:
        self._say(str(msg) % args, "yellow")

    def error(self, msg: Any, /, *args: Any) -> None:
        self._say(str(msg) % args, "red")

    def _say(self, text: str, style: str) -> None:
        with last_output() if self._may_be_unread else nullcontext():
            say(text, style, stderr=True)


def _wait(options: argparse.Namespace, backend: Backend, job: TrainingJob, record: RunRecord) -> int:
    from airflow_provider_ocidist.gangs.another_gang import GangToReplace

    before: list[Restart] = []
    while True:
        try:
            there = beside(backend, record.ref.conn_id)
            return _wait_for_one(options, there, record, partial(_raise_for_another_gang, there, job, before))
        except GangToReplace as lost:
            say(f"{lost}; creating another gang, which resumes the training", "yellow", stderr=True)
        record = _submit(options, backend, job, record.ref.key)


def _raise_for_another_gang(
    backend: Backend, job: TrainingJob, before: list[Restart], followed: Watch, cause: Cause, message: str
) -> None:
    """Raise GangToReplace if the job allows another gang after the loss of a machine. `before`: earlier losses."""
    from airflow_provider_ocidist.gangs import another_gang
    from airflow_provider_ocidist.model.attempts import End

    status = followed.status
    failure = another_gang.lost_gang(cause, message, status) if status and status.ended else None
    if failure is None or another_gang.why_no_gang(job.restarts, before, failure) is not None:
        return
    before.append(failure)
    end = End(succeeded=False, try_number=1, failure=failure, restarts=status.restarts if status else ())
    backend.gangs.close(followed.record.ref, end)
    raise another_gang.GangToReplace(f"{cause}: {message}")


def _wait_for_one(
    options: argparse.Namespace,
    backend: Backend,
    record: RunRecord,
    on_failed: Callable[[Watch, Cause, str], object],
) -> int:
    from airflow_provider_ocidist.gangs.another_gang import GangToReplace

    try:
        note.write(options.info, record)
        _say_whole(options, record)
        return watch.to_the_end(
            options,
            backend,
            record,
            may_end_it=True,
            on_replaced=lambda ref: note.write(options.info, replace(record, ref=ref)),
            on_failed=on_failed,
            to_go_on=partial(going_on.line, options),
        )
    except GangToReplace:
        raise
    except BaseException as error:
        # Whatever ends this process ends the nodes: nobody else waits for them.
        _cancel_at_once(options, backend, record)
        if isinstance(error, BrokenPipeError):
            discard_output()
            raise Unusable("nobody reads the output any more, so the run was cancelled") from error
        raise


def _cancel_at_once(options: argparse.Namespace, backend: Backend, record: RunRecord) -> None:
    try:
        backend.cancel(record.ref)
    except BackendError as error:
        command = command_on("cancel", DEFAULT_BACKEND, str(options.info), named_by(options))
        ways = ways_to_end(record.ref.backend, command)
        raise Unusable(f"{error}; the nodes may still run; to end them: {ways}") from error
    _say_cancelled("cancelled")
    # The note names the nodes that have replaced others.
    ref = (note.noted(options.info) or record).ref
    status = going_on.state_in_time(lambda: backend, ref, awaits_end=True)
    note.note_cancel(options.info, status, now_at(backend))
    line = going_on.line(options, status) if status else going_on.where_to_look(options)
    if line:
        _say_cancelled(line)


def _say_cancelled(text: str) -> None:
    """Say what follows a cancel: it is done, so no output that fails makes an error of it."""
    with suppress(Unusable), last_output():
        say(text, "yellow", stderr=True)


def _say_started(options: argparse.Namespace, record: RunRecord) -> None:
    if options.json:
        print_json(record.ref.to_json())
    else:
        say(command_on("watch", DEFAULT_BACKEND, str(options.info), named_by(options)))
