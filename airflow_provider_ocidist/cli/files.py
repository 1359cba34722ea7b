"""Job files of commands: on this machine or at any URI, with values replaced from the command line."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_provider_ocidist.cli.completion import complete_with, yaml_files
from airflow_provider_ocidist.cli.connection import connection_of
from airflow_provider_ocidist.cli.terminal import Unusable, hide
from airflow_provider_ocidist.errors import JobFileError, Problem, StorageError
from airflow_provider_ocidist.model.masking import secrets_in

if TYPE_CHECKING:
    from airflow_provider_ocidist.model.job import TrainingJob
    from airflow_provider_ocidist.oci_client.credentials import OciAccess

TOPOLOGIES = ("auto", "job_runs", "multi_node")
PROGRAMS_OWN = ("program.args", "env", "main_env", "worker_env", "container.command", "container.entrypoint")
"""Parts of a job in which braces may be meant as they stand."""


class WrongFile(Exception):
    """A job file has errors."""

    def __init__(self, file: str, problems: Sequence[Problem], hint: str | None = None) -> None:
        super().__init__(file)
        self.hint = hint
        self.problems = tuple(problems)
        self.lines = [problem_line(file, problem) for problem in problems]


def add_file(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for a job file and replacements of its values."""
    file = parser.add_argument("file", metavar="FILE", help="path or URI of a job file")
    complete_with(file, yaml_files)
    add_overrides(parser)


def add_overrides(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", type=int, metavar="N", help="replace the number of nodes in the file")
    parser.add_argument("--topology", choices=TOPOLOGIES, help="replace backend.topology in the file")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="replace any value in the file, such as limits.max_runtime=2h; lists and sections as JSON, such as "
        'program.args=\'["200", "0.5"]\'; may be repeated',
    )


def load(file: str, options: argparse.Namespace, *, templates: bool = False) -> TrainingJob:
    """Return the job in a file. Raises WrongFile, and Unusable when it cannot be read.

    `templates`: the file may still hold Jinja that Airflow renders.
    """
    from airflow_provider_ocidist.job_file import parsing

    text = read(file, options)
    hide(_secrets_given(text, options))
    with problems_of(parsing.place_shown(file)):
        job = parsing.parse(
            text,
            source=parsing.place_shown(file),
            base_dir=parsing.base_of(file),
            overrides=_overrides(options),
            templates=templates,
        )
        if not templates and (problems := list(_templates_in(job.to_mapping()))):
            raise JobFileError(problems, parsing.place_shown(file))
    hide(secrets_in(job.to_mapping()))
    return job


def _templates_in(value: object, path: str = "") -> Iterator[Problem]:
    """Yield a problem for each template, but for those in what is the program's own."""
    from airflow_provider_ocidist.model.job import is_placeholder

    if path in PROGRAMS_OWN:
        return
    if isinstance(value, str) and is_placeholder(value):
        why = "contains Jinja, which only Airflow fills in: write the value, or give it by"
        yield Problem(path, f"{why} --set {path}=VALUE")
    elif isinstance(value, dict | list | tuple):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        for name, part in parts:
            yield from _templates_in(part, f"{path}.{name}" if path else str(name))


def with_lease(job: TrainingJob, lease: float | None) -> TrainingJob:
    """Return the job with this default lease, in seconds."""
    if job.limits.lease is not None:
        return job
    return replace(job, limits=replace(job.limits, lease=lease))


def _secrets_given(text: str, options: argparse.Namespace) -> set[str]:
    """Return the secrets in a file and in replacements of its values: error messages may quote them."""
    from airflow_provider_ocidist.job_file import yaml_document

    given: list[object] = list(getattr(options, "set", ()))
    with suppress(JobFileError):
        given.append(yaml_document.read(text).value)
    return secrets_in(given)


def read(file: str, options: argparse.Namespace) -> str:
    from airflow_provider_ocidist.job_file import parsing

    try:
        return parsing.read(file, access=_access(file, options))
    except JobFileError as error:
        raise Unusable(f"{parsing.place_shown(file)}: {error.problems[0].message}") from error
    except StorageError as error:
        raise Unusable(f"{parsing.place_shown(file)}: cannot be read: {error}") from error


def _access(file: str, options: argparse.Namespace) -> OciAccess | None:
    if not file.startswith("oci://"):
        return None
    from airflow_provider_ocidist.oci_client.credentials import access_of

    return access_of(connection_of(options))


def _overrides(options: argparse.Namespace) -> dict[str, object]:
    given: dict[str, object] = {}
    for text in getattr(options, "set", ()):
        path, separator, value = text.partition("=")
        if not separator or not path:
            raise Unusable(f"--set {text}: write it as PATH=VALUE")
        given[path] = value_of(path, value)
    for name, path in (("nodes", "nodes"), ("topology", "backend.topology")):
        if getattr(options, name, None) is not None:
            given[path] = getattr(options, name)
    return given


def value_of(path: str, text: str) -> object:
    """Return a list or section written as JSON; any other text is read as in the file."""
    if not text.lstrip().startswith(("[", "{")) or text.lstrip().startswith("{{"):
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        raise Unusable(f"--set {path}: is not valid JSON: {error}") from error
    except RecursionError:
        raise Unusable(f"--set {path}: is nested too deeply") from None


@contextmanager
def problems_of(file: str, hint: Callable[[Sequence[Problem]], str] | None = None) -> Iterator[None]:
    """Turn errors of a job into errors of its file; `hint` makes a last line of them."""
    try:
        yield
    except JobFileError as error:
        raise WrongFile(file, error.problems, hint and hint(error.problems)) from error


def problem_line(file: str, problem: Problem) -> str:
    """Return a problem in the form of compilers, so that editors and terminals find the line."""
    place = f"{file}:{problem.line}" if problem.line is not None else file
    return f"{place}: {replace(problem, line=None)}"
