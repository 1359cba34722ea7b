"""Rules across the fields of a job, as far as they can be known without asking any service."""

from __future__ import annotations

import difflib
import os
import posixpath
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from airflow_provider_ocidist import kinds
from airflow_provider_ocidist.errors import Problem, StorageError
from airflow_provider_ocidist.job import Program, TrainingJob, is_placeholder
from airflow_provider_ocidist.storage import locations

MAX_NAME = 255
MAX_NODES = 1000
"""More is a slip of the finger: a plan holds a request for each."""
ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
OURS = "OCIDIST_"
COMMON_SCHEMES = {"oci", "file", "s3", "gs", "http", "https"}
"""Known without fsspec, whose import takes longer than all the rest of a check."""


Rule = Callable[[TrainingJob], Iterator[Problem]]


def rules(job: TrainingJob) -> list[Problem]:
    """Return everything that is wrong with a job whose fields, each by itself, are right."""
    return [problem for rule in (*_RULES, *_rules_of_the_place(job)) for problem in rule(job)]


def _rules_of_the_place(job: TrainingJob) -> tuple[Rule, ...]:
    """Return what only this kind of backend asks for."""
    if job.backend.kind not in kinds.names("backends"):
        return ()
    place: tuple[Rule, ...] = kinds.load("backends", job.backend.kind).RULES
    return place


def _name(job: TrainingJob) -> Iterator[Problem]:
    if not job.name.strip():
        yield Problem("name", "must not be blank")
    if len(job.name) > MAX_NAME:
        yield Problem("name", f"has {len(job.name)} characters; {MAX_NAME} are allowed")
    elif not job.name.isprintable():
        yield Problem("name", "must not hold line breaks or other invisible characters")


def _nodes(job: TrainingJob) -> Iterator[Problem]:
    if job.nodes > MAX_NODES:
        yield Problem("nodes", f"must be at most {MAX_NODES}")


def _program(job: TrainingJob) -> Iterator[Problem]:
    program = job.program
    for index, text in enumerate(program.args):
        if not _can_be_argument(text):
            yield Problem(f"program.args.{index}", f"no program can be given {text!r}")
    if not program.script:
        yield Problem("program.script", "must not be empty")
        return
    if program.working_dir is not None:
        yield from _inside("program.working_dir", program.working_dir)
    if program.source is None:
        if job.image is None and not program.module and not is_placeholder(program.script):
            yield Problem("program.source", "is needed: there is no image that could hold the code")
    elif not is_placeholder(program.source):
        yield from (_local_code(program) if program.is_local else _location("program.source", program.source))
    if program.source is not None and not program.module:
        yield from _inside("program.script", program.script)


def _can_be_argument(text: str) -> bool:
    """Return whether the system takes the text: no NUL character, and no half of a surrogate pair."""
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def _local_code(program: Program) -> Iterator[Problem]:
    source = program.source or ""
    if not os.path.exists(source):  # noqa: PTH110 (says False of what can be no path)
        yield Problem("program.source", f"there is no file or folder {source}")
    elif not (program.module or is_placeholder(program.script) or list(_inside("", program.script))):
        yield from _script_in(Path(source), posixpath.normpath(program.script))


def _script_in(source: Path, script: str) -> Iterator[Problem]:
    try:
        found = _has_file(source, script) if source.is_dir() else script in _members(source)
    except (OSError, zipfile.BadZipFile, tarfile.TarError) as error:
        yield Problem("program.source", f"cannot be read: {error}")
        return
    if not found:
        yield Problem("program.script", f"{script!r} is not in {source}{_near(script, source)}")


def _has_file(folder: Path, name: str) -> bool:
    return os.path.isfile(folder / name)  # noqa: PTH113 (says False of what can be no path)


def _members(source: Path) -> list[str]:
    if zipfile.is_zipfile(source):
        with zipfile.ZipFile(source) as archive:
            return archive.namelist()
    if tarfile.is_tarfile(source):
        with tarfile.open(source) as tar:
            return [posixpath.normpath(name) for name in tar.getnames()]
    return [source.name]


def _near(script: str, folder: Path) -> str:
    near = difflib.get_close_matches(script, [path.name for path in folder.glob("*.py")], n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _launcher(job: TrainingJob) -> Iterator[Problem]:
    try:
        kinds.load("launchers", job.launcher.kind)
    except LookupError as error:
        yield Problem("launcher.kind", str(error.args[0]))


def _environment(job: TrainingJob) -> Iterator[Problem]:
    for name, value in job.env.items():
        if not ENVIRONMENT_NAME.fullmatch(name):
            yield Problem(f"env.{name}", "is no name for an environment variable: letters, digits and _ only")
        elif name.startswith(OURS):
            yield Problem(f"env.{name}", f"names that begin with {OURS} are ours")
        elif not _can_be_argument(value):
            yield Problem(f"env.{name}", f"an environment variable cannot hold {value!r}")


def _data(job: TrainingJob) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for index, item in enumerate(job.inputs):
        yield from _location(f"inputs.{index}.source", item.source)
        yield from _inside(f"inputs.{index}.target", item.target)
        target = posixpath.normpath(item.target)
        if target in first and not is_placeholder(target):
            yield Problem(f"inputs.{index}.target", f"is the target of inputs.{first[target]} too")
        first.setdefault(target, index)
    for index, output in enumerate(job.outputs):
        yield from _inside(f"outputs.{index}.path", output.path)
        yield from _location(f"outputs.{index}.uri", output.uri)


def _meeting_points(job: TrainingJob) -> Iterator[Problem]:
    if job.work_dir is not None:
        yield from _location("work_dir", job.work_dir)
    if job.checkpoints is not None:
        yield from _inside("checkpoints.path", job.checkpoints.path)
        if job.checkpoints.uri is not None:
            yield from _location("checkpoints.uri", job.checkpoints.uri)


def _image(job: TrainingJob) -> Iterator[Problem]:
    if (
        job.image is not None
        and not is_placeholder(job.image)
        and (not job.image or re.search(r"\s", job.image))
    ):
        yield Problem("image", "is no name of an image, as region.ocir.io/namespace/image:tag")


_RULES: tuple[Rule, ...] = (
    _name,
    _nodes,
    _program,
    _launcher,
    _environment,
    _data,
    _meeting_points,
    _image,
)


def _inside(path: str, value: str) -> Iterator[Problem]:
    """Demand a relative path that stays inside its folder."""
    if is_placeholder(value):
        return
    if not value.strip() or "\0" in value:
        yield Problem(path, "must not be empty")
    elif value.startswith(("/", "~")) or "://" in value:
        yield Problem(path, f"must be a relative path, not {value!r}")
    elif ".." in value.split("/"):
        yield Problem(path, f"must not leave its folder, as {value!r} does")


def _location(path: str, uri: str) -> Iterator[Problem]:
    """Demand a place that every node can reach by the same text."""
    if is_placeholder(uri) or uri.startswith(("/", "git@")):
        return
    scheme, separator, _ = uri.partition("://")
    if not separator:
        yield Problem(
            path, f"must be a URI, as oci://bucket@namespace/path, or an absolute path, not {uri!r}"
        )
        return
    scheme = scheme.rpartition("::")[2]
    if scheme.startswith("git+"):
        return
    if scheme not in COMMON_SCHEMES and scheme not in (known := _schemes()):
        near = difflib.get_close_matches(scheme, known, n=1)
        yield Problem(path, f"nothing reads {scheme}://" + (f"; did you mean {near[0]}://?" if near else ""))
        return
    try:
        locations.parse(uri)
    except StorageError as error:
        yield Problem(path, str(error))


def _schemes() -> list[str]:
    from fsspec.registry import known_implementations

    return list(known_implementations)
