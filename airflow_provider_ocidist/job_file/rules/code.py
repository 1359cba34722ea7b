"""Whether the code exists, with the program and its requirements in it."""

from __future__ import annotations

import contextlib
import difflib
import os
import posixpath
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from airflow_provider_ocidist.backends import bundle
from airflow_provider_ocidist.errors import Problem
from airflow_provider_ocidist.job_file.rules.values import arguments, inside, location, on_node
from airflow_provider_ocidist.model.job import Program, TrainingJob, is_placeholder

USER = re.compile(
    r"(?P<scheme>[A-Za-z][\w+.-]*)://"
    r"(?P<user>[^/?#\s@:]*)(?::(?P<password>(?!\d+(?:[/?#]|$))[^?#\s@]*|[^/?#\s@]*))?@"
)
"""Login before the host of a URI. A password may hold a slash, though it should not; a port is none."""
WEB = ("http", "https", "ftp", "ftps")
"""Ends of schemes whose user may be a token, as GitHub takes one: `https://ghp_x@github.com/o/r.git`."""
NO_TOKENS = ("", "git")


def program(job: TrainingJob) -> Iterator[Problem]:
    program = job.program
    yield from arguments("program.args", program.args)
    if program.source is None:
        if job.image is None and _is_file(job) and program.script and not is_placeholder(program.script):
            yield Problem("program.source", "is needed: there is no image that could contain the code")
    elif holds_credentials(program.source):
        what = "contains a password or token, which the service would store as plain text: put it into a Vault secret"
        yield Problem("program.source", f"{what} and name that in 'source_secret'")
    elif not is_placeholder(program.source):
        yield from _local_code(job) if program.is_local else location("program.source", program.source)
    if program.script:
        yield from _script(job)
    elif job.container is None:
        yield Problem("program.script" if program != Program() else "program", "is needed")


def holds_credentials(uri: str) -> bool:
    """Return whether a URI has a password, or a user that may be a token, before its host."""
    for found in USER.finditer(uri):
        is_web = re.split("[+:]", found["scheme"].lower())[-1] in WEB
        if found["password"] or (is_web and found["user"] not in NO_TOKENS):
            return True
    return False


def _script(job: TrainingJob) -> Iterator[Problem]:
    if "\0" in job.program.script:
        yield Problem("program.script", "must not contain a NUL character")
    elif job.program.source is not None and _is_file(job):
        # The image may hold the script, and the code only its imports.
        yield from (on_node if job.image else inside)("program.script", job.program.script)


def _is_file(job: TrainingJob) -> bool:
    """Return whether the script is a file of the code, not a module or executable of the node."""
    bare = {argument.lstrip("-").replace("_", "-") for argument in job.launcher.args}
    return not (job.program.module or job.launcher.kind == "command" or "no-python" in bare)


def paths_in_the_code(job: TrainingJob) -> Iterator[Problem]:
    program = job.program
    value = program.working_dir
    # Code in an image may be anywhere in it.
    if value is not None and not (program.source is None and job.image and value.startswith("/")):
        yield from inside("program.working_dir", value)
    for index, folder in enumerate(program.python_path):
        # Any folder of the node, as `../libs` beside the working directory: nothing is copied by this.
        if not folder or "\0" in folder or ":" in folder:
            yield Problem(f"program.python_path.{index}", "must be one folder, without colons")


def secret(job: TrainingJob) -> Iterator[Problem]:
    secret, source = job.program.source_secret, job.program.source
    if secret is None:
        return
    if not (secret.startswith("ocid1.vaultsecret.") or is_placeholder(secret)):
        yield Problem(
            "program.source_secret",
            "must be the OCID of a secret, as ocid1.vaultsecret.oc1..., not the secret",
        )
    from airflow_provider_ocidist.model.git_source import GIT_URL

    if not (source and (GIT_URL.fullmatch(source) or is_placeholder(source))):
        yield Problem("program.source_secret", "is for code that comes from Git; program.source is not Git")


def _local_code(job: TrainingJob) -> Iterator[Problem]:
    program, source = job.program, job.program.source or ""
    if not os.path.exists(source):  # noqa: PTH110 (says False of what can be no path)
        yield Problem("program.source", f"there is no file or folder {source}")
    elif refused := bundle.own_work_dir(source, job.work_dir):
        yield Problem("work_dir", refused)
    elif (
        _is_file(job)
        and program.script
        and not (is_placeholder(program.script) or list(inside("", program.script)))
    ):
        script = posixpath.normpath(program.script)
        yield from _script_in(Path(source), script, program.working_dir or "", job.work_dir)


def script_file(job: TrainingJob) -> Path | None:
    """Return the script of a job whose code is on this machine; None for one in an archive, or that is no file."""
    program = job.program
    if program.source is None or not program.is_local or not program.script or not _is_file(job):
        return None
    source = Path(program.source)
    if source.is_file():
        return source if source.name == program.script else None
    with contextlib.suppress(*bundle.UNREADABLE):
        for name in _paths(source, posixpath.normpath(program.script), program.working_dir or ""):
            if bundle.is_sent(source, name, job.work_dir):
                return source / name
    return None


def _script_in(source: Path, script: str, working_dir: str, work_dir: str | None = None) -> Iterator[Problem]:
    places = list(_paths(source, script, working_dir))
    try:
        found = bool(_sent(source, places, work_dir))
    except bundle.UNREADABLE as error:
        yield Problem("program.source", f"cannot be read: {error}")
        return
    if not found:
        yield Problem("program.script", f"{script!r} is not in {source}{_near(script, source)}")


def _paths(folder: Path, script: str, working_dir: str) -> Iterator[str]:
    """Yield the possible places of a script in a folder, which is under its own name in the root of the code."""
    for path in (script, posixpath.normpath(posixpath.join(working_dir, script))):
        yield path
        yield path.removeprefix(f"{bundle.folder_name(folder)}/")


def _sent(source: Path, names: Iterable[str], work_dir: str | None = None) -> set[str]:
    """Return which of these files are sent with the code. Raises what `bundle.UNREADABLE` lists."""
    if source.is_dir():
        return {name for name in names if bundle.is_sent(source, name, work_dir)}
    return {posixpath.normpath(name) for name in bundle.archive_names(source)}.intersection(names)


def _near(script: str, folder: Path) -> str:
    near = difflib.get_close_matches(script, [path.name for path in folder.glob("*.py")], n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def requirements_in_the_code(program: Program, requirements: str) -> Iterator[Problem]:
    source, below = program.source, program.working_dir or ""
    if source is None or not program.is_local or is_placeholder(source + requirements + below):
        return
    folder = Path(source)
    if list(inside("", requirements)) or not os.path.exists(folder):  # noqa: PTH110 (reported elsewhere)
        return
    wanted = {posixpath.normpath(requirements), posixpath.normpath(posixpath.join(below, requirements))}
    with contextlib.suppress(*bundle.UNREADABLE):
        if not _sent(folder, wanted):
            yield Problem("dependencies.requirements", f"{requirements!r} is not in {source}")
