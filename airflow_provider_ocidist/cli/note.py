"""The note of a run, `info.yaml` with the keys of Oracle ADS's; and a command's run: by its note, or its id."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_ocidist import kinds
from airflow_provider_ocidist.cli.completion import complete_with, kinds_of, yaml_files
from airflow_provider_ocidist.cli.connection import add_connection, backend_of
from airflow_provider_ocidist.cli.terminal import Unusable, add_json, hide, say
from airflow_provider_ocidist.errors import BackendError, OcidistError
from airflow_provider_ocidist.model.homes import words_of

if TYPE_CHECKING:
    from airflow_provider_ocidist.backends.base import Backend
    from airflow_provider_ocidist.model.job import TrainingJob
    from airflow_provider_ocidist.model.run import RunKey, RunRecord, RunRef, RunStatus

INFO = "info.yaml"
NOTE_SUFFIXES = (".yaml", ".yml")
"""Ends of the names of notes."""
_ODD_VALUES = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Errors of PyYAML for a value that its tag does not fit, as in `!!timestamp soon`, or for endless nesting."""


def add_target(parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], int]) -> None:
    """Let a command act on a run: its note, or its platform's id, also of a run of another user."""
    target = parser.add_argument(
        "target",
        nargs="?",
        default=INFO,
        metavar="RUN",
        help="file that `ocidist run` wrote; OCID of a job or of one of its job runs; or, with --backend, the id that "
        "`ocidist list` prints, of backend local the run directory (default: %(default)s)",
    )
    complete_with(target, _offered)
    add_connection(parser)
    add_backend(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def add_backend(parser: argparse.ArgumentParser) -> None:
    """Add the argument for the backend of runs without a note."""
    backend = parser.add_argument(
        "--backend",
        default=kinds.DEFAULT_BACKEND,
        metavar="KIND",
        help="backend to ask, unless a file that `ocidist run` wrote names it (default: %(default)s)",
    )
    complete_with(backend, kinds_of("backends"))


def _offered(prefix: str, **_: Any) -> list[str]:
    return [name for name in yaml_files(prefix) if name.endswith("/") or is_note(Path(name))]


def is_note(path: Path) -> bool:
    """Return whether a file is a note, which names the main run in its first lines; reads only those."""
    try:
        with _expanded(path).open(encoding="utf-8", errors="replace") as file:
            start = file.read(2000)
            return "mainJobRunId" in start or start.startswith("begun:")
    except OSError:
        return False


def is_id(target: str, backend: str = kinds.DEFAULT_BACKEND) -> bool:
    """Return whether a target is an id of its home: by the form of those; where they have none, what is no file is."""
    begins = words_of(backend).id_begins
    if begins:
        return target.startswith(begins)
    return not target.endswith(NOTE_SUFFIXES) and not _expanded(target).is_file()


def _expanded(path: str | Path) -> Path:
    return Path(os.path.expanduser(path))  # noqa: PTH111 - that of Path raises for unknown users


def known(options: argparse.Namespace, **fields: Any) -> tuple[Backend, RunRecord]:
    """Return a command's run and its backend; `fields` are defaults for the connection's."""
    from airflow_provider_ocidist.backends.connections import beside
    from airflow_provider_ocidist.model.run import RunRecord

    if is_id(options.target, options.backend):
        return _opened(backend_of(options, options.backend, **fields), options.target)
    record = RunRecord.from_json(read(Path(options.target))["record"])
    return beside(backend_of(options, record.ref.backend, **fields), record.ref.conn_id), record


def _opened(backend: Backend, resource_id: str) -> tuple[Backend, RunRecord]:
    """Return the run that a backend finds by its id, and the backend of its connection, or else the one given."""
    from airflow_provider_ocidist.backends.capabilities import OpensById
    from airflow_provider_ocidist.backends.connections import beside

    record = OpensById.of(backend).open(resource_id)
    try:
        return beside(backend, record.ref.conn_id), record
    except BackendError:
        # A name of Airflow's, which this shell need not know: the connection that found the gang reaches it, too.
        return backend, replace(record, ref=replace(record.ref, conn_id=backend.conn_id))


def hide_secrets_of(backend: Backend, ref: RunRef) -> None:
    """Mask the secrets that the nodes of a run got, and may print, in this command's output."""
    from airflow_provider_ocidist.backends.capabilities import secrets_of_gang

    try:
        hide(secrets_of_gang(backend, ref))
    except OcidistError as error:
        text = f"the run's secrets cannot be read, so only texts in the form of a secret are masked: {error}"
        say(text, "yellow", stderr=True)


def info_of(record: RunRecord) -> dict[str, Any]:
    """Return the content of a run's note."""
    ref = record.ref
    return {
        "jobId": ref.job_id,
        "mainJobRunId": ref.main_run_id,
        "otherJobRunIds": [run_id for run_id in ref.run_ids if run_id != ref.main_run_id],
        "workDir": ref.run_dir,
        "record": record.to_json(),
    }


def begun(path: Path, job: TrainingJob) -> RunKey | None:
    """Return the key of an incomplete run of this job, if the note names one."""
    from airflow_provider_ocidist.model import codec
    from airflow_provider_ocidist.model.run import RunKey

    if not path.exists():
        return None
    try:
        key = codec.decode(RunKey, _load(path)["begun"])
    except (LookupError, TypeError, ValueError):
        key = None
    if key is None or key.dag_id != job.name:
        raise Unusable(f"{path} belongs to an earlier run: remove it, or name another file with --info")
    return key


def note_beginning(path: Path, key: RunKey) -> None:
    from airflow_provider_ocidist.model import codec

    try:
        with path.open("x") as file:
            file.write(_yaml({"begun": codec.encode(key)}))
    except FileExistsError:
        # Of the same key, or just written by another process.
        if _load(path) != {"begun": codec.encode(key)}:
            raise Unusable(f"{path} belongs to another run: name another file with --info") from None
    except OSError as error:
        raise Unusable(f"{path}: {error.strerror}; name another file with --info") from error


def write(path: Path, record: RunRecord) -> None:
    # Written atomically: a partial note would lose the gang.
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(_yaml(info_of(record)))
    new.replace(path)


def note_cancel(path: Path, status: RunStatus | None, now: float) -> None:
    """Note that a command has cancelled the run, which else would count as cancelled by others; raises nothing.

    Not of a run that had ended, or failed, before. `status`: the last state, if known; `now`: by the service's clock.
    """
    from airflow_provider_ocidist.errors import Cause
    from airflow_provider_ocidist.model.run import Ending

    record = noted(path)
    if record is None or record.ending is not None or (status and _has_ended_by_itself(record, status)):
        return
    ending = Ending(cause=Cause.CANCELED, message="the run was cancelled", since=now)
    with suppress(OSError):
        write(path, replace(record, ending=ending))


def _has_ended_by_itself(record: RunRecord, status: RunStatus) -> bool:
    """Whether a cancelled run had ended, or failed, before its cancel."""
    from airflow_provider_ocidist.errors import Cause
    from airflow_provider_ocidist.gangs.diagnoses import CONSEQUENCES, failed_node

    if (failed := failed_node(record, status)) is not None:
        return failed[0] is not Cause.CANCELED
    said = [node.report.cause for node in status.nodes if node.report]
    return status.ended or any(cause not in (Cause.CANCELED, *CONSEQUENCES) for cause in said)


def noted(path: Path) -> RunRecord | None:
    """Return the run of a note; None where there is none, or it is not complete."""
    from airflow_provider_ocidist.model.run import RunRecord

    try:
        return RunRecord.from_json(read(path)["record"])
    except Unusable:
        return None


def read(path: Path) -> dict[str, Any]:
    """Return a note. Raises Unusable if it is not one, or its run is not complete."""
    from airflow_provider_ocidist.model.run import RunRecord

    info = _load(path)
    if isinstance(info, dict) and "begun" in info:
        raise Unusable(
            f"{path}: its run was created only in part: repeat the same `ocidist run` to complete it; "
            f"if `ocidist list` shows nothing of it, remove {path}"
        )
    try:
        RunRecord.from_json(info["record"])
    except (LookupError, TypeError, ValueError) as error:
        raise Unusable(f"{path}: was not written by `ocidist run`") from error
    return dict(info)


def _yaml(value: Any) -> str:
    import yaml

    return str(yaml.safe_dump(value, sort_keys=False))


def _load(path: Path) -> Any:
    import yaml

    try:
        return yaml.safe_load(path.read_text())
    except OSError as error:
        remedy = "name the file that `ocidist run` has written, or an id that `ocidist list` prints, with its --backend"
        raise Unusable(f"{path}: {error.strerror}; {remedy}") from error
    except (yaml.YAMLError, *_ODD_VALUES) as error:
        raise Unusable(f"{path}: was not written by `ocidist run`") from error
