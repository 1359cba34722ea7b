"""YAML or mapping -> TrainingJob: the one door, which reports every problem at once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml

from airflow_provider_ocidist import codec, job_schema, kinds, yaml_document
from airflow_provider_ocidist.dialects.base import Translation
from airflow_provider_ocidist.errors import JobFileError, Problem
from airflow_provider_ocidist.job import BackendOptions, TrainingJob, is_placeholder
from airflow_provider_ocidist.job_rules import rules
from airflow_provider_ocidist.yaml_document import Document

DEFAULT_BACKEND = "oci_data_science"
MAX_CHARACTERS = 1_000_000
"""A job file is written by hand; what is longer is another file, or no file at all."""


def load(path: str | Path, *, overrides: Mapping[str, Any] | None = None) -> TrainingJob:
    """Read a job file. Raises JobFileError, also when the file cannot be read."""
    path = Path(path)
    return parse(read(path), source=str(path), base_dir=path.parent, overrides=overrides)


def read(path: Path) -> str:
    """Return the text of a job file. Raises JobFileError when it cannot be read."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MAX_CHARACTERS + 1)
    except OSError as error:
        raise JobFileError([Problem("", f"cannot be read: {error.strerror}")], str(path)) from error
    except UnicodeDecodeError as error:
        raise JobFileError([Problem("", "is not text in UTF-8")], str(path)) from error
    if len(text) > MAX_CHARACTERS:
        raise JobFileError([Problem("", f"is longer than {MAX_CHARACTERS} characters")], str(path))
    return text


def parse(
    text: str,
    *,
    source: str | None = None,
    base_dir: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> TrainingJob:
    """Return the job that YAML describes. Raises JobFileError with every problem and its line.

    `source` names the text in messages; local paths in it are relative to `base_dir`, or to the working
    directory. `overrides` replace values before the check, by dotted path: `{"limits.max_runtime": "2h"}`;
    sections among them are added to what is there.
    """
    return _checked(yaml_document.read(text, source), source, base_dir, overrides or {})


def build(
    job: Mapping[str, Any] | TrainingJob,
    *,
    source: str | None = None,
    base_dir: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> TrainingJob:
    """Return the job that a mapping describes, or a hand-made job checked again. Otherwise as `parse`."""
    value = to_mapping(job) if isinstance(job, TrainingJob) else job
    return _checked(Document(value), source, base_dir, overrides or {})


def to_yaml(job: TrainingJob) -> str:
    """Return a job file that `parse` reads back as the same job; defaults are left out."""
    return yaml.safe_dump(to_mapping(job), sort_keys=False, allow_unicode=True)


def to_mapping(job: TrainingJob) -> dict[str, Any]:
    """Return a job in the form that `build` takes."""
    value = dict(codec.encode(job))
    # A backend's options leave out their own kind, as it is their default.
    return value | {"backend": {"kind": job.backend.kind, **value.get("backend", {})}}


def _checked(
    document: Document, source: str | None, base_dir: Path | None, overrides: Mapping[str, Any]
) -> TrainingJob:
    if not isinstance(document.value, Mapping):
        problem = (
            "is empty" if document.value is None else "must be a section with keys and values at the top"
        )
        raise JobFileError([Problem("", problem, document.line(""))], source)
    translation = _translated(document.value)
    if not translation.readable:
        raise JobFileError(
            [replace(item, line=document.line(item.path)) for item in translation.problems], source
        )
    problems: list[Problem] = []
    mapping = _plain(translation.mapping, "", problems)
    misplaced = _override(mapping, overrides, problems)
    job, found = _fields(mapping)
    job = _with_absolute_source(job, base_dir or Path.cwd())
    located = [
        *document.problems,
        *(replace(problem, line=document.line(problem.path)) for problem in translation.problems),
        *misplaced,
        *(_located(item, document, translation, overrides) for item in [*problems, *found, *rules(job)]),
    ]
    if located:
        raise JobFileError(
            sorted(_first_of_each_path(located), key=lambda problem: problem.line or 0), source
        )
    return job


def _translated(mapping: Mapping[str, Any]) -> Translation:
    for name in kinds.names("dialects"):
        dialect = kinds.load("dialects", name).DIALECT
        if dialect.matches(mapping):
            translation: Translation = dialect.translate(mapping)
            return translation
    if "kind" in mapping and "spec" in mapping:
        known = (
            f"there are {', '.join(kinds.names('dialects'))}, and our own form, which has no kind at its top"
        )
        what = f"job files of kind {job_schema.shown(mapping['kind'])} are not supported yet; {known}"
        return Translation(mapping=mapping, problems=(Problem("kind", what),), readable=False)
    return Translation(mapping=mapping)


def _plain(value: Any, path: str, problems: list[Problem]) -> Any:
    """Return a copy for each place: dicts with text as keys, lists, and single values in our words."""
    match value:
        case Mapping():
            return {
                _key(key, path, problems): _plain(item, _below(path, key), problems)
                for key, item in value.items()
            }
        case list() | tuple():
            return [_plain(item, _below(path, index), problems) for index, item in enumerate(value)]
        case set() | frozenset():
            problems.append(Problem(path, "must be a list: a set has no order"))
            return []
        case os.PathLike():
            return os.fspath(value)
        case timedelta():
            return value.total_seconds()
    return value


def _key(key: Any, path: str, problems: list[Problem]) -> str:
    if isinstance(key, bool) or not isinstance(key, str | int | float):
        problems.append(Problem(path, f"a name must be text, not {job_schema.shown(key)}: put it in quotes"))
    return str(key)


def _below(path: str, part: object) -> str:
    return f"{path}.{part}" if path else str(part)


def _override(
    mapping: dict[str, Any], overrides: Mapping[str, Any], problems: list[Problem]
) -> list[Problem]:
    """Put values in their places; return those for which there is none."""
    misplaced = []
    for path, given in overrides.items():
        value = _plain(given, path, problems)
        holder: Any = mapping
        *above, last = path.split(".")
        for part in above:
            holder = _entered(holder, part)
        if isinstance(holder, dict):
            holder[last] = _merged(holder.get(last), value)
        elif isinstance(holder, list) and last.isdecimal() and int(last) < len(holder):
            holder[int(last)] = _merged(holder[int(last)], value)
        else:
            misplaced.append(Problem(path, "there is no such place in the job to put this value"))
    return misplaced


def _entered(holder: Any, part: str) -> Any:
    if isinstance(holder, dict):
        if holder.get(part) is None:
            holder[part] = {}
        return holder[part]
    return (
        holder[int(part)]
        if isinstance(holder, list) and part.isdecimal() and int(part) < len(holder)
        else None
    )


def _merged(old: Any, new: Any) -> Any:
    if isinstance(old, dict) and isinstance(new, dict):
        return old | {key: _merged(old.get(key), value) for key, value in new.items()}
    return new


def _fields(mapping: dict[str, Any]) -> tuple[TrainingJob, list[Problem]]:
    """Return the job and what is wrong with its fields; the backend's by the class that its kind names."""
    backend = mapping.get("backend", {})
    kind = backend.get("kind", DEFAULT_BACKEND) if isinstance(backend, dict) else DEFAULT_BACKEND
    options, problems = _options_class(kind)
    homes = {**{item.name: "backend" for item in fields(options)}, **job_schema.section_homes(TrainingJob)}
    # The rules of a place are for the real options, which replace this one if they can be known.
    stand_in = {"kind": job_schema.PLACEHOLDER} if isinstance(backend, dict) else backend
    job, found = job_schema.check(TrainingJob, {**mapping, "backend": stand_in}, homes=homes)
    if not isinstance(backend, dict) or problems:
        return job, [*found, *problems]
    # A wrong kind would only be told twice.
    chosen, wrong = job_schema.check(options, {**backend, "kind": kind}, at="backend", homes=homes)
    return replace(job, backend=chosen), [*found, *wrong]


def _options_class(kind: Any) -> tuple[type[BackendOptions], list[Problem]]:
    if not isinstance(kind, str):
        return BackendOptions, [Problem("backend.kind", f"must be text, not {job_schema.shown(kind)}")]
    try:
        options: type[BackendOptions] = kinds.load("backends", kind).OPTIONS
    except LookupError as error:
        return BackendOptions, [Problem("backend.kind", str(error.args[0]))]
    return options, []


def _with_absolute_source(job: TrainingJob, base_dir: Path) -> TrainingJob:
    source = job.program.source
    if source is None or not job.program.is_local or is_placeholder(source):
        return job
    # Links stay as they are written; a user that does not exist stays for the rules to find.
    absolute = os.path.abspath(base_dir / os.path.expanduser(source))  # noqa: PTH100, PTH111
    return replace(job, program=replace(job.program, source=absolute))


def _located(
    problem: Problem, document: Document, translation: Translation, overrides: Mapping[str, Any]
) -> Problem:
    if any(f"{problem.path}.".startswith(f"{path}.") for path in overrides):
        return replace(problem, message=f"{problem.message} (set by an override)")
    theirs = translation.theirs(problem.path)
    return replace(problem, path=theirs, line=document.line(theirs))


def _first_of_each_path(problems: list[Problem]) -> list[Problem]:
    return list({problem.path: problem for problem in reversed(problems)}.values())[::-1]
