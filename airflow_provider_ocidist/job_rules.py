"""Rules across the fields of a job, as far as they can be known without asking any service."""

from __future__ import annotations

import contextlib
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
EXPORT = re.compile(r"[^/\s]+:/\S*")
"""Of a file system: the host, and a path on it."""
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
    if program.source is None:
        if job.image is None and _is_file(job) and program.script and not is_placeholder(program.script):
            yield Problem("program.source", "is needed: there is no image that could hold the code")
    elif not is_placeholder(program.source):
        yield from _local_code(job) if program.is_local else _location("program.source", program.source)
    if program.script:
        yield from _script(job)
    elif job.container is None:
        yield Problem("program.script" if program != Program() else "program", "is needed")


def _script(job: TrainingJob) -> Iterator[Problem]:
    if "\0" in job.program.script:
        yield Problem("program.script", "must not hold a NUL character")
    elif job.program.source is not None and _is_file(job):
        yield from _inside("program.script", job.program.script)


def _is_file(job: TrainingJob) -> bool:
    """Return whether the script is a file of the code, and no module or executable of the node."""
    bare = {argument.lstrip("-").replace("_", "-") for argument in job.launcher.args}
    return not (job.program.module or job.launcher.kind == "command" or "no-python" in bare)


def _paths_in_the_code(job: TrainingJob) -> Iterator[Problem]:
    program = job.program
    for path, value in [
        ("program.working_dir", program.working_dir),
        *((f"program.python_path.{index}", folder) for index, folder in enumerate(program.python_path)),
    ]:
        # Code in an image may be anywhere in it.
        if value is not None and not (program.source is None and job.image and value.startswith("/")):
            yield from _inside(path, value)


def _secret(job: TrainingJob) -> Iterator[Problem]:
    secret, source = job.program.source_secret, job.program.source
    if secret is None:
        return
    if not (secret.startswith("ocid1.vaultsecret.") or is_placeholder(secret)):
        yield Problem(
            "program.source_secret",
            "must be the OCID of a secret, as ocid1.vaultsecret.oc1..., not the secret",
        )
    from airflow_provider_ocidist.agent.git import GIT_URL

    if not (source and (GIT_URL.fullmatch(source) or is_placeholder(source))):
        yield Problem("program.source_secret", "is for code that comes from Git; program.source is none")


def _can_be_argument(text: str) -> bool:
    """Return whether the system takes the text: no NUL character, and no half of a surrogate pair."""
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def _local_code(job: TrainingJob) -> Iterator[Problem]:
    program, source = job.program, job.program.source or ""
    if not os.path.exists(source):  # noqa: PTH110 (says False of what can be no path)
        yield Problem("program.source", f"there is no file or folder {source}")
    elif (
        _is_file(job)
        and program.script
        and not (is_placeholder(program.script) or list(_inside("", program.script)))
    ):
        yield from _script_in(Path(source), posixpath.normpath(program.script), program.working_dir or "")


def _script_in(source: Path, script: str, working_dir: str) -> Iterator[Problem]:
    places = list(_paths(source, script, working_dir))
    try:
        if source.is_dir():
            found = any(_has_file(source, name) for name in places)
        else:
            found = not set(places).isdisjoint(_members(source))
    except (OSError, zipfile.BadZipFile, tarfile.TarError) as error:
        yield Problem("program.source", f"cannot be read: {error}")
        return
    if not found:
        yield Problem("program.script", f"{script!r} is not in {source}{_near(script, source)}")


def _paths(folder: Path, script: str, working_dir: str) -> Iterator[str]:
    """Yield where in a folder its script may be: the folder lies under its own name in the root of the code."""
    for path in (script, posixpath.normpath(posixpath.join(working_dir, script))):
        yield path
        yield path.removeprefix(f"{folder.name}/")


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
    kind = job.launcher.kind
    try:
        if not is_placeholder(kind):
            kinds.load("launchers", kind)
    except LookupError as error:
        yield Problem("launcher.kind", str(error.args[0]))
    for index, text in enumerate(job.launcher.args):
        if not _can_be_argument(text):
            yield Problem(f"launcher.args.{index}", f"no program can be given {text!r}")


def _environment(job: TrainingJob) -> Iterator[Problem]:
    for section, variables in (("env", job.env), ("main_env", job.main_env), ("worker_env", job.worker_env)):
        for name, value in variables.items():
            path = f"{section}.{name}"
            if not (ENVIRONMENT_NAME.fullmatch(name) or is_placeholder(name)):
                yield Problem(path, "is no name for an environment variable: letters, digits and _ only")
            elif name.startswith(OURS):
                yield Problem(path, f"names that begin with {OURS} are ours")
            elif not _can_be_argument(value):
                yield Problem(path, f"an environment variable cannot hold {value!r}")
    if job.worker_env and job.nodes == 1:
        yield Problem("worker_env", "is for the nodes after the first, and there is only one")


def _dependencies(job: TrainingJob) -> Iterator[Problem]:
    wanted = job.dependencies
    if wanted is None:
        return
    if not (wanted.requirements or wanted.packages):
        yield Problem("dependencies", "is empty: name requirements or packages")
    if wanted.requirements is not None:
        yield from _inside("dependencies.requirements", wanted.requirements)
        yield from _requirements_in_the_code(job.program, wanted.requirements)
    for index, package in enumerate(wanted.packages):
        yield from _package(f"dependencies.packages.{index}", package)


def _requirements_in_the_code(program: Program, requirements: str) -> Iterator[Problem]:
    source, below = program.source, program.working_dir or ""
    if source is None or not program.is_local or is_placeholder(source + requirements + below):
        return
    folder = Path(source)
    if list(_inside("", requirements)) or not os.path.exists(folder):  # noqa: PTH110 (told elsewhere)
        return
    wanted = {posixpath.normpath(requirements), posixpath.normpath(posixpath.join(below, requirements))}
    with contextlib.suppress(OSError, zipfile.BadZipFile, tarfile.TarError):
        there = {name for name in wanted if _has_file(folder, name)} if folder.is_dir() else _members(folder)
        if not wanted.intersection(there):
            yield Problem("dependencies.requirements", f"{requirements!r} is not in {source}")


def _package(path: str, package: str) -> Iterator[Problem]:
    """Demand one requirement; an option would change where all the others come from, and what pip does."""
    if is_placeholder(package):
        return
    if package.strip().startswith("-"):
        option = package.strip().split("=")[0].split()[0]
        yield Problem(
            path,
            f"must be a package; pip's option {option} belongs into a requirements file, or in PIP_ variables",
        )
    elif not package.strip() or not _can_be_argument(package) or "\n" in package:
        yield Problem(path, "must be one package, as fire==0.4.0")
    elif re.search(r"\s-", package):
        yield Problem(path, "must be one package without pip's options: they belong into a requirements file")


def _container(job: TrainingJob) -> Iterator[Problem]:
    container = job.container
    if container is None:
        return
    if job.image is None:
        yield Problem("container", "needs an image: name it")
    for name, words in (("entrypoint", container.entrypoint or ()), ("command", container.command)):
        for index, word in enumerate(words):
            if not _can_be_argument(word):
                yield Problem(f"container.{name}.{index}", f"no program can be given {word!r}")
    if container.entrypoint == ():
        yield Problem("container.entrypoint", "is empty: name a program, or leave it out for the image's own")


def _mounts(job: TrainingJob) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for index, mount in enumerate(job.mounts):
        if not is_placeholder(mount.source):
            yield from _mounted(f"mounts.{index}.source", mount.source)
        if is_placeholder(mount.path):
            continue
        where = f"mounts.{index}.path"
        path = posixpath.normpath(mount.path) if mount.path.strip() else ""
        if not path or path in ("/", ".") or "\0" in path:
            yield Problem(where, "must name a folder")
        elif ".." in mount.path.split("/"):
            yield Problem(where, f"must not leave its folder, as {mount.path!r} does")
        elif path in first:
            yield Problem(where, f"is the path of mounts.{first[path]} too")
        first.setdefault(path, index)


def _mounted(where: str, source: str) -> Iterator[Problem]:
    """Demand what a platform mounts: an export, a bucket, or a folder of the work directory."""
    if "://" in source:
        yield from _location(where, source)
    elif not EXPORT.fullmatch(source):
        yield from _inside(where, source)


def _data(job: TrainingJob) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for index, item in enumerate(job.inputs):
        yield from _location(f"inputs.{index}.source", item.source)
        yield from _on_node(f"inputs.{index}.target", item.target)
        target = posixpath.normpath(item.target)
        if target in first and not is_placeholder(target):
            yield Problem(f"inputs.{index}.target", f"is the target of inputs.{first[target]} too")
        first.setdefault(target, index)
    for index, output in enumerate(job.outputs):
        yield from _on_node(f"outputs.{index}.path", output.path)
        # A variable of the node may hold any part of it.
        if not output.uri.startswith("${"):
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
    _paths_in_the_code,
    _secret,
    _launcher,
    _environment,
    _dependencies,
    _container,
    _mounts,
    _data,
    _meeting_points,
    _image,
)


def _on_node(path: str, value: str) -> Iterator[Problem]:
    """Demand an absolute path, or a relative one that stays inside its folder."""
    if not value.startswith("/"):
        yield from _inside(path, value)
    elif ".." in value.split("/") or "\0" in value:
        yield Problem(path, f"must say where it leads, without '..', not {value!r}")


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
