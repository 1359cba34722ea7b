"""Fetch: the user's code and inputs, and the checkpoint to go on from, onto this node."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import airflow_provider_ocidist
from airflow_provider_ocidist.agent.config import AgentConfig
from airflow_provider_ocidist.agent.stopping import StopSwitch
from airflow_provider_ocidist.errors import AgentError, Cause, StorageError
from airflow_provider_ocidist.job import Input, Program
from airflow_provider_ocidist.oci_clients import OciAccess

logger = logging.getLogger(__name__)

CODE_VARIABLE = "OCIDIST_CODE_DIR"
PACKAGE_ROOT = Path(airflow_provider_ocidist.__file__).parents[1]
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
GIT_URL = re.compile(
    r"(?P<url>(?:git\+|git@|ssh://|git://).*?|[a-z+]+://.*?\.git|/.*?\.git)(?:#(?P<ref>[^#]+)|@(?P<at>[^@#/:]+))?"
)
"""A ref follows `#`; or `@`, as pip has it, where it holds no slash (`git@host/path` names a user)."""
INPUTS_AT_A_TIME = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Workspace:
    """Where the user's program lies, and where it runs."""

    code: Path
    working_dir: Path
    program: Program
    """With the script's absolute path."""


def fetch_code(
    config: AgentConfig, environ: Mapping[str, str], access: OciAccess, switch: StopSwitch
) -> Workspace:
    """Bring the code here, if it is elsewhere. Raises AgentError when it, or its script, cannot be had."""
    source = config.program.source
    code = _code_beside_us(environ) if source is None else _bring(source, Path.cwd() / "code", access, switch)
    working_dir = code / (config.program.working_dir or "")
    if not working_dir.is_dir():
        raise AgentError(f"the working directory {working_dir} does not exist", cause=Cause.CONFIG)
    return Workspace(code=code, working_dir=working_dir, program=_locate(config.program, code, working_dir))


def _code_beside_us(environ: Mapping[str, str]) -> Path:
    if CODE_VARIABLE in environ:
        return Path(environ[CODE_VARIABLE]).absolute()
    beside = PACKAGE_ROOT / "code"
    return beside if beside.is_dir() else Path.cwd()


def _locate(program: Program, code: Path, working_dir: Path) -> Program:
    if program.module:
        return program
    places = [code / program.script, working_dir / program.script]
    for path in places:
        if path.is_file():
            return replace(program, script=str(path))
    raise AgentError(
        f"the script {program.script!r} is not in {code}: correct program.script", cause=Cause.CONFIG
    )


def _bring(source: str, folder: Path, access: OciAccess, switch: StopSwitch) -> Path:
    git = GIT_URL.fullmatch(source)
    if git:
        _clone(git["url"].removeprefix("git+"), git["ref"] or git["at"], folder, switch)
        return folder
    from airflow_provider_ocidist.storage.transfer import copy

    is_archive = source.endswith(ARCHIVES)
    is_single = source.rpartition("/")[2].endswith(".py")
    target = folder.with_name(source.rpartition("/")[2]) if is_archive else folder
    with storage_errors(f"the code {source}"):
        copy(source, f"{target}/" if is_single else str(target), access=access, cancel=switch.event)
    if is_archive:
        _unpack(target, folder)
    return folder


def _unpack(archive: Path, folder: Path) -> None:
    import tarfile
    import zipfile

    try:
        if archive.suffix == ".zip":
            with zipfile.ZipFile(archive) as content:
                content.extractall(folder)  # noqa: S202 - zipfile keeps names inside
        else:
            with tarfile.open(archive) as content:
                content.extractall(folder, filter="data")
    except (zipfile.BadZipFile, tarfile.TarError, OSError) as error:
        raise AgentError(f"the code {archive.name} cannot be unpacked: {error}", cause=Cause.DATA) from error


def _clone(url: str, ref: str | None, folder: Path, switch: StopSwitch) -> None:
    """Fetch one commit and nothing of its history; `ref` is a branch, a tag, or a commit."""
    for arguments in (
        ["init", "--quiet", str(folder)],
        ["-C", str(folder), "fetch", "--quiet", "--depth=1", "--", url, ref or "HEAD"],
        ["-C", str(folder), "checkout", "--quiet", "FETCH_HEAD"],
    ):
        switch.check()
        _git(arguments, _without_password(url))


def _git(arguments: Sequence[str], shown_url: str) -> None:
    # Asking for a password would wait for ever: nobody sits at a node.
    environ = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(["git", *arguments], env=environ, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise AgentError("git is not installed on this node", cause=Cause.CONFIG) from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise AgentError(
            f"the code {shown_url} cannot be fetched: {_without_password(last)}", cause=Cause.DATA
        )


def _without_password(text: str) -> str:
    return re.sub(r"://[^/@\s]*@", "://", text)


def fetch_inputs(inputs: Sequence[Input], working_dir: Path, access: OciAccess, switch: StopSwitch) -> None:
    """Copy all inputs, some at a time. Raises AgentError with the first that cannot be had."""
    if not inputs:
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(INPUTS_AT_A_TIME, "inputs") as pool:
        list(pool.map(lambda item: _fetch_input(item, working_dir, access, switch), inputs))


def _fetch_input(item: Input, working_dir: Path, access: OciAccess, switch: StopSwitch) -> None:
    from airflow_provider_ocidist.storage.transfer import copy

    target = f"{working_dir / item.target}{'/' if item.target.endswith('/') else ''}"
    with storage_errors(f"the input {item.source}"):
        report = copy(item.source, target, access=access, cancel=switch.event)
    if report.files == 0:
        raise AgentError(f"the input {item.source} is empty", cause=Cause.DATA)
    logger.info(
        "fetched %s: %d files, %d bytes in %.1f s", item.source, report.files, report.bytes, report.seconds
    )


@contextlib.contextmanager
def storage_errors(what: str) -> Iterator[None]:
    """Turn failures of storage into an AgentError that names what could not be had."""
    try:
        yield
    except (StorageError, OSError) as error:
        raise AgentError(f"{what} cannot be fetched: {error}", cause=Cause.DATA) from error


def environment_paths(workspace: Workspace, environ: Mapping[str, str]) -> str:
    """Return PYTHONPATH for the program: its own folders first, then what the node has."""
    inherited = environ.get("PYTHONPATH", "")
    paths = [str(workspace.working_dir), str(workspace.code), *inherited.split(os.pathsep), *_package_path()]
    return os.pathsep.join(dict.fromkeys(path for path in paths if path))


def _package_path() -> list[str]:
    """Let the program use our package too; but site-packages must not come before the standard library."""
    import sysconfig

    root = str(PACKAGE_ROOT)
    return [] if root in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")) else [root]
