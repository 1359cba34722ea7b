"""`ocidist run | status | logs | watch | cancel | show-config`: a gang from a terminal."""

from __future__ import annotations

import argparse
import os
import threading
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_ocidist.cli.connection import add_connection, connection_of
from airflow_provider_ocidist.cli.files import problem_line, read
from airflow_provider_ocidist.cli.terminal import (
    FAILED,
    FINE,
    WRONG,
    Unusable,
    print_json,
    print_yaml,
    say,
)
from airflow_provider_ocidist.errors import BackendError, JobFileError

if TYPE_CHECKING:
    from airflow_provider_ocidist.backends.base import Backend
    from airflow_provider_ocidist.job import TrainingJob
    from airflow_provider_ocidist.run import RunKey, RunRecord, RunStatus
    from airflow_provider_ocidist.supervisor import Action

INFO = "info.yaml"
COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "bright_cyan", "bright_magenta", "bright_green")


def add(commands: Any) -> None:
    start = commands.add_parser("run", help="start a job; what was created is noted in a file")
    start.add_argument("file", metavar="FILE", help="job file, YAML")
    start.add_argument("--nodes", type=int, metavar="N", help="replaces the number of nodes in the file")
    start.add_argument("--info", type=Path, default=Path(INFO), metavar="FILE", help="default: %(default)s")
    start.add_argument("--wait", action="store_true", help="follow it to its end; Ctrl-C ends the run too")
    start.set_defaults(run=_run)
    _add_connection(start)
    for name, handler, text in (
        ("status", _status, "say how a run is doing"),
        ("logs", _logs, "print what its nodes have written"),
        ("watch", _watch, "follow the logs of all nodes to the end; Ctrl-C leaves the run alone"),
        ("cancel", _cancel, "end all nodes of a run"),
        ("show-config", _show_config, "print what was created"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument(
            "info", nargs="?", type=Path, default=Path(INFO), metavar="INFO", help="default: %(default)s"
        )
        command.set_defaults(run=handler)
        _add_connection(command)


def _add_connection(command: argparse.ArgumentParser) -> None:
    add_connection(command)
    command.add_argument("--interval", type=float, default=2.0, metavar="SECONDS", help=argparse.SUPPRESS)
    command.add_argument("--json", action="store_true", help="print JSON")


# start


def _run(options: argparse.Namespace) -> int:
    try:
        job = _job(options)
        backend = _backend(options, job.backend.kind)
        key = _begun(options.info, job) or _key(job)
        backend.plan(job, key)  # complains of what is missing before anything is noted
    except JobFileError as error:
        for problem in error.problems:
            say(problem_line(options.file, problem), "red", stderr=True)
        return WRONG
    # Noted first: whatever cuts this off, a gang that was created can be found again.
    _note_beginning(options.info, key)
    try:
        record = _submit(backend, job, key)
        _write(options.info, record)
    except BaseException:
        say(f"not complete; the same command goes on where it was, by {options.info}", "yellow", stderr=True)
        raise
    say(f"{record.ref.key.name}: {record.ref.nodes} nodes, noted in {options.info}", "green", stderr=True)
    if not options.wait:
        return _say_ref(options, record)
    try:
        return _follow(options, backend, record)
    except KeyboardInterrupt:
        _cancel_at_once(options, backend, record)
        raise


def _submit(backend: Backend, job: TrainingJob, key: RunKey) -> RunRecord:
    from airflow_provider_ocidist.gang import Gang

    return Gang(backend, job, _Printer(), None, threading.Event()).adopt_or_submit(key, None)


def _cancel_at_once(options: argparse.Namespace, backend: Backend, record: RunRecord) -> None:
    try:
        backend.cancel(record.ref)
    except BackendError as error:
        raise Unusable(f"{error}; the nodes may still run: `ocidist cancel {options.info}`") from error
    say("cancelled", "yellow", stderr=True)


def _job(options: argparse.Namespace) -> TrainingJob:
    from airflow_provider_ocidist import job_file

    overrides = {} if options.nodes is None else {"nodes": options.nodes}
    return job_file.parse(
        read(options.file), source=options.file, base_dir=Path(options.file).parent, overrides=overrides
    )


def _key(job: TrainingJob) -> RunKey:
    from airflow_provider_ocidist.run import RunKey

    started = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}-{uuid.uuid4().hex[:6]}"
    return RunKey(dag_id=job.name, run_id=started, task_id="run")


def _backend(options: argparse.Namespace, kind: str) -> Backend:
    from airflow_provider_ocidist import kinds

    backend: Backend = kinds.load("backends", kind).BACKEND.connect(connection_of(options))
    return backend


# the note of a run


def _begun(path: Path, job: TrainingJob) -> RunKey | None:
    """Return the key of a run of this job that was cut off before it was complete, if the note tells of one."""
    from airflow_provider_ocidist import codec
    from airflow_provider_ocidist.run import RunKey

    if not path.exists():
        return None
    try:
        key = codec.decode(RunKey, _load(path)["begun"])
    except (LookupError, TypeError, ValueError):
        key = None
    if key is None or key.dag_id != job.name:
        raise Unusable(f"{path} is of an earlier run: remove it, or name another with --info")
    return key


def _note_beginning(path: Path, key: RunKey) -> None:
    from airflow_provider_ocidist import codec

    try:
        with path.open("x") as file:
            file.write(_yaml({"begun": codec.encode(key)}))
    except FileExistsError:
        # Of the same key, or made this very moment by another of us.
        if _load(path) != {"begun": codec.encode(key)}:
            raise Unusable(f"{path} is of another run: name another with --info") from None
    except OSError as error:
        raise Unusable(f"{path}: {error.strerror}; name another place with --info") from error


def _write(path: Path, record: RunRecord) -> None:
    ref = record.ref
    info = {
        "jobId": ref.job_id,
        "mainJobRunId": ref.main_run_id,
        "otherJobRunIds": [run_id for run_id in ref.run_ids if run_id != ref.main_run_id],
        "workDir": ref.run_dir,
        "record": record.to_json(),
    }
    # Whole or not at all: half a note would be a lost gang.
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(_yaml(info))
    new.replace(path)


def _yaml(value: Any) -> str:
    import yaml

    return str(yaml.safe_dump(value, sort_keys=False))


def _load(path: Path) -> Any:
    import yaml

    try:
        return yaml.safe_load(path.read_text())
    except OSError as error:
        raise Unusable(f"{path}: {error.strerror}; name the file that `ocidist run` has written") from error
    except (yaml.YAMLError, ValueError) as error:
        raise Unusable(f"{path}: is no note of `ocidist run`") from error


def _read(path: Path) -> dict[str, Any]:
    from airflow_provider_ocidist.run import RunRecord

    info = _load(path)
    if isinstance(info, dict) and "begun" in info:
        raise Unusable(f"{path}: its run is not complete: the same `ocidist run` again goes on where it was")
    try:
        RunRecord.from_json(info["record"])
    except (LookupError, TypeError, ValueError) as error:
        raise Unusable(f"{path}: is no note of `ocidist run`") from error
    return dict(info)


def _known(options: argparse.Namespace) -> tuple[Backend, RunRecord]:
    from airflow_provider_ocidist.run import RunRecord

    record = RunRecord.from_json(_read(options.info)["record"])
    return _backend(options, record.ref.backend), record


# look


def _status(options: argparse.Namespace) -> int:
    from airflow_provider_ocidist.watch import describe

    backend, record = _known(options)
    (status,) = backend.status([record.ref])
    if options.json:
        print_json(_status_json(record, status))
        return FINE
    say(describe(status), "bold")
    for node in status.nodes:
        phase = f" {node.report.phase}" if node.report else ""
        cause = f" {node.report.cause}" if node.report and node.report.cause else ""
        say(
            f"node {node.rank}: {node.state}{phase}{cause}  {node.details or ''}".rstrip(), _colour(node.rank)
        )
    return FINE


def _status_json(record: RunRecord, status: RunStatus) -> dict[str, Any]:
    from airflow_provider_ocidist.run import TrainingResult

    return {**TrainingResult.of(record, status).to_json(), "ended": status.ended}


def _logs(options: argparse.Namespace) -> int:
    backend, record = _known(options)
    for line in backend.logs(record.ref, record.logs_since):
        if options.json:
            print_json({"time": line.time, "rank": line.rank, "text": line.text})
        else:
            say(f"[node {line.rank}] {line.text}", _colour(line.rank))
    return FINE


def _watch(options: argparse.Namespace) -> int:
    backend, record = _known(options)
    return _follow(options, backend, record)


def _follow(options: argparse.Namespace, backend: Backend, record: RunRecord) -> int:
    from airflow_provider_ocidist.supervisor import Cancel, Fail, Succeed
    from airflow_provider_ocidist.watch import Watch

    watch = Watch(backend, record, _Printer())
    while True:
        match _look(watch):
            case Succeed():
                assert watch.status is not None
                if options.json:
                    print_json(_status_json(watch.record, watch.status))
                checkpoint = watch.status.checkpoint
                say(f"succeeded; newest checkpoint: {checkpoint.uri if checkpoint else 'none'}", "green")
                return FINE
            case Fail(cause, message):
                say(f"{cause}: {message}", "red", stderr=True)
                return FAILED
            case Cancel(ending):
                watch.end(ending)
        time.sleep(watch.pause(options.interval))


def _look(watch: Any) -> Action:
    action: Action = watch.look(time.time())
    return action


class _Printer:
    """What a watch says, on the terminal: lines of nodes in the node's colour, the rest in bold."""

    def info(self, msg: Any, /, *args: Any) -> None:
        text = str(msg) % args
        if text.startswith("[node "):
            say(text, _colour(int(text[6 : text.index("]")])))
        else:
            say(text, "bold", stderr=True)

    def warning(self, msg: Any, /, *args: Any) -> None:
        say(str(msg) % args, "yellow", stderr=True)


def _colour(rank: int) -> str:
    return COLOURS[rank % len(COLOURS)]


# end


def _cancel(options: argparse.Namespace) -> int:
    backend, record = _known(options)
    backend.cancel(record.ref)
    deadline = time.monotonic() + 60
    while not (status := backend.status([record.ref])[0]).ended:
        if time.monotonic() > deadline:
            raise BackendError("the nodes have not ended within 60 s; look again with `ocidist status`")
        time.sleep(options.interval)
    say(f"{record.ref.key.name}: {', '.join(sorted({node.state for node in status.nodes}))}")
    return FINE


def _show_config(options: argparse.Namespace) -> int:
    info = _read(options.info)
    (print_json if options.json else print_yaml)(info)
    return FINE


def _say_ref(options: argparse.Namespace, record: RunRecord) -> int:
    if options.json:
        print_json(record.ref.to_json())
    else:
        say(f"ocidist watch {options.info}")
    return FINE
