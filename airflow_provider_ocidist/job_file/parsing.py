"""YAML or mapping -> TrainingJob: the only parser, which reports all problems at once."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from airflow_provider_ocidist import kinds
from airflow_provider_ocidist.errors import JobFileError, Problem
from airflow_provider_ocidist.job_file import candidates, schema, written_values, yaml_document
from airflow_provider_ocidist.job_file.dialects.base import Translation
from airflow_provider_ocidist.job_file.normal_form import normalised
from airflow_provider_ocidist.job_file.overrides import kind_in, overridden_kind, override
from airflow_provider_ocidist.job_file.rules import rules
from airflow_provider_ocidist.job_file.text import base_of, is_uri, place_shown, read
from airflow_provider_ocidist.job_file.written_values import FilledText
from airflow_provider_ocidist.job_file.yaml_document import Document
from airflow_provider_ocidist.model.job import BackendOptions, TrainingJob, is_placeholder

if TYPE_CHECKING:
    from airflow_provider_ocidist.oci_client.credentials import OciAccess

Render = Callable[[str], Any]

__all__ = ["base_of", "build", "dump", "load", "parse", "place_shown", "read"]

DIALECTS = "job_file.dialects"
NO_RANGE = "must be one number, or the least and the most: {min: 2, max: 4}"
RANGE = {"min": "min_nodes", "max": "nodes"}
"""Field of the job for each key of a range of nodes."""
BESIDE_A_QUERY = (
    "is relative to the job file, but an address with a query opens that one file alone: write a whole URI"
)


def load(
    place: str | Path,
    *,
    access: OciAccess | None = None,
    overrides: Mapping[str, Any] | None = None,
    render: Render | None = None,
    templates: bool = False,
) -> TrainingJob:
    """Read a job file at a local path or at any URI. Raises JobFileError and StorageError as `read` and `parse` do.

    `access` opens `oci://`; None: the credentials of this machine. The rest as for `parse`.
    """
    return parse(
        read(place, access=access),
        source=place_shown(place),
        base_dir=base_of(place),
        overrides=overrides,
        render=render,
        templates=templates,
    )


def parse(
    text: str,
    *,
    source: str | None = None,
    base_dir: str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    render: Render | None = None,
    templates: bool = False,
) -> TrainingJob:
    """Return the job that YAML describes. Raises JobFileError with every problem and its line.

    `source` names the text in messages; relative code is resolved in `base_dir`, a folder or a URI, as
    `base_of` returns it, or in the working directory. `overrides` replace values before the check, by dotted
    path: `{"limits.max_runtime": "2h"}`; sections among them are merged. `render` renders Jinja, and raises
    ValueError if it cannot. `templates`: Airflow will render the file later; a placeholder is then valid in
    place of a number too, and counts as the least one.
    """
    document = yaml_document.fill_in(text, render, source) if render else yaml_document.read(text, source)
    return _checked(document, source, base_dir, overrides or {}, texts=FilledText, templates=templates)


def build(
    job: Mapping[str, Any] | TrainingJob,
    *,
    base_dir: str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> TrainingJob:
    """Return the job of a mapping, or check a job made in code. Otherwise as `parse`.

    Text that is a number counts as one, since Jinja in a mapping renders text only.
    """
    value = job.to_mapping() if isinstance(job, TrainingJob) else job
    return _checked(Document(value), None, base_dir, overrides or {}, texts=str, templates=False)


def dump(job: TrainingJob) -> str:
    """Return a job file that `parse` reads as the same job; defaults are left out."""
    return yaml.dump(job.to_mapping(), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    """Safe YAML that loses no character: without quotes, unusual line breaks become blanks."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        style = None if text.isprintable() else '"'
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _Dumper.represent_text)


def _checked(document: Document, source: str | None, *args: Any, **kwargs: Any) -> TrainingJob:
    """Return the job, or raise JobFileError; also where values or overrides are nested too deeply for Python."""
    try:
        return _job_of(document, source, *args, **kwargs)
    except RecursionError:
        raise JobFileError([Problem("", "is nested too deeply")], source) from None


def _job_of(
    document: Document,
    source: str | None,
    base_dir: str | Path | None,
    overrides: Mapping[str, Any],
    *,
    texts: type[str],
    templates: bool,
) -> TrainingJob:
    if not isinstance(document.value, Mapping):
        problem = (
            "is empty" if document.value is None else "must be a section with keys and values at the top"
        )
        raise JobFileError([Problem("", problem, document.line(""))], source)
    home = overridden_kind(overrides, None)
    translation = _translated(document.value, home if isinstance(home, str) else None)
    if not translation.readable:
        raise JobFileError(
            [replace(item, line=document.line(item.path)) for item in translation.problems], source
        )
    problems = [] if translation.mapping is not document.value else _sections_left_empty(document)
    mapping = normalised(written_values.numbers(translation.mapping, texts), "", problems)
    misplaced = override(mapping, overrides, problems)
    job, found = _fields(mapping, templates=templates)
    job = _with_absolute_source(job, Path.cwd() if base_dir is None else base_dir, problems)
    broken = rules(job)
    broken += candidates.rules_of_each(job, broken)
    located = [
        *document.problems,
        *(replace(problem, line=document.line(problem.path)) for problem in translation.problems),
        *misplaced,
        *(_located(item, document, translation, overrides) for item in [*problems, *found, *broken]),
    ]
    if located:
        raise JobFileError(
            sorted(_first_of_each_path(located), key=lambda problem: problem.line or 0), source
        )
    return job


def _sections_left_empty(document: Document) -> list[Problem]:
    """Return the sections without content that would mean none of them, as when their last key was commented out."""
    return [
        Problem(name, "is empty: write {} for its defaults, or remove the key")
        for name in schema.optional_sections(TrainingJob)
        if document.is_left_empty(name)
    ]


def _translated(mapping: Mapping[str, Any], home: str | None) -> Translation:
    for name in kinds.names(DIALECTS):
        dialect = kinds.load(DIALECTS, name).DIALECT
        if dialect.matches(mapping):
            translation: Translation = dialect.translate(mapping, home)
            return translation
    if "kind" in mapping and "spec" in mapping:
        known = (
            f"there are {', '.join(kinds.names(DIALECTS))}, and our own form, which has no kind at its top"
        )
        what = f"job files of kind {schema.value_shown(mapping['kind'])} are not supported yet; {known}"
        return Translation(mapping=mapping, problems=(Problem("kind", what),), readable=False)
    return Translation(mapping=mapping)


def _fields(mapping: dict[str, Any], *, templates: bool) -> tuple[TrainingJob, list[Problem]]:
    """Return the job and the problems of its fields; the backend's by the class of its kind."""
    backend = mapping.get("backend", {})
    kind = kind_in(mapping)
    options, problems = _options_class(kind)
    homes = {**{item.name: "backend" for item in fields(options)}, **schema.section_homes(TrainingJob)}
    # The rules need the real options, which replace this one if they can be found.
    stand_in = {"kind": schema.PLACEHOLDER} if isinstance(backend, dict) else backend
    fields_of_range, paths = _range_of_nodes(mapping.get("nodes"))
    job, found = schema.check(
        TrainingJob,
        {**mapping, **fields_of_range, "backend": stand_in},
        homes=homes,
        templates=templates,
    )
    if paths:
        found = [replace(item, path=paths.get(item.path, item.path)) for item in found]
    elif isinstance(mapping.get("nodes"), Mapping):
        found = [replace(item, message=NO_RANGE) if item.path == "nodes" else item for item in found]
    if not isinstance(backend, dict) or problems:
        return job, [*found, *problems]
    # A wrong kind would be reported twice.
    backend = {**backend, "kind": kind}
    chosen, wrong = schema.check(options, backend, at="backend", homes=homes, templates=templates)
    others, faults = candidates.checked(options, backend, homes, templates=templates)
    faults += candidates.of_section(chosen)
    return replace(job, backend=_passed_on(replace(chosen, candidates=others))), [*found, *wrong, *faults]


def _range_of_nodes(nodes: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the job's fields for a range of nodes, and for each the path at which it is written; none for others."""
    if not isinstance(nodes, Mapping) or nodes.keys() != RANGE.keys():
        return {}, {}
    return (
        {field: nodes[key] for key, field in RANGE.items()},
        {field: f"nodes.{key}" for key, field in RANGE.items()},
    )


def _passed_on(options: BackendOptions) -> BackendOptions:
    """Return options whose sections of any form, which go to a platform as they are, hold plain values."""
    values = {item.name: getattr(options, item.name) for item in fields(options)}
    free = {name: value for name, value in values.items() if isinstance(value, Mapping | tuple)}
    return replace(options, **{name: written_values.plain(value) for name, value in free.items()})


def _options_class(kind: Any) -> tuple[type[BackendOptions], list[Problem]]:
    if not isinstance(kind, str):
        return BackendOptions, [Problem("backend.kind", f"must be text, not {schema.value_shown(kind)}")]
    try:
        options: type[BackendOptions] = kinds.load("backends", kind).OPTIONS
    except LookupError as error:
        return BackendOptions, [Problem("backend.kind", str(error.args[0]))]
    return options, []


def _with_absolute_source(job: TrainingJob, base_dir: str | Path, problems: list[Problem]) -> TrainingJob:
    source = job.program.source
    if source is None or not job.program.is_local or is_placeholder(source):
        return job
    if not is_uri(base_dir) and str(base_dir):
        # Links stay as written; an unknown user stays, so that the rules report it.
        written = os.path.join(base_dir, os.path.expanduser(source))  # noqa: PTH111, PTH118 - Path raises
        place = os.path.abspath(written)  # noqa: PTH100 - Path.resolve follows links
    elif source.startswith(("/", "~")):
        return job
    elif not str(base_dir):
        problems.append(Problem("program.source", BESIDE_A_QUERY))
        place = schema.PLACEHOLDER
    else:
        place = _beside(str(base_dir), source)
    return replace(job, program=replace(job.program, source=place))


def _beside(folder: str, name: str) -> str:
    """Return the URI of a relative path; `..` never leads out of the bucket, or off the server."""
    scheme, _, rest = folder.partition("://")
    place, _, path = rest.partition("/")
    below = posixpath.normpath(posixpath.join("/", path, name))
    return f"{scheme}://{place}{below}{'/' if name.endswith('/') and below != '/' else ''}"


def _located(
    problem: Problem, document: Document, translation: Translation, overrides: Mapping[str, Any]
) -> Problem:
    if any(f"{problem.path}.".startswith(f"{path}.") for path in overrides):
        return replace(problem, message=f"{problem.message} (set by an override)")
    theirs = translation.theirs(problem.path)
    return replace(problem, path=theirs, line=document.line(theirs))


def _first_of_each_path(problems: list[Problem]) -> list[Problem]:
    return list({problem.path: problem for problem in reversed(problems)}.values())[::-1]
