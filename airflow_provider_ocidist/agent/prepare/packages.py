"""Packages: installs the job's dependencies with pip, for the training's interpreter."""

from __future__ import annotations

import logging
import re
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from airflow_provider_ocidist.agent.prepare import command, disk
from airflow_provider_ocidist.agent.prepare.overlay import Overlay, make_overlay
from airflow_provider_ocidist.agent.prepare.wheels import WheelCache
from airflow_provider_ocidist.agent.prepare.workspace import Workspace, found_in, fresh_folder, roots
from airflow_provider_ocidist.agent.stopping import StopSwitch
from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.errors import AgentError, Cause
from airflow_provider_ocidist.model.agent_config import CONFIG_VARIABLE
from airflow_provider_ocidist.model.job import Dependencies

logger = logging.getLogger(__name__)

NETWORK = re.compile(
    r"NewConnectionError|ConnectTimeout|ReadTimeout|Read timed out|Connection refused|Connection reset"
    r"|name resolution|Name or service not known|Max retries exceeded|ProxyError|SSLError|CERTIFICATE_VERIFY"
    r"|Network is unreachable|IncompleteRead|Could not fetch URL"
)
CULPRITS = (
    re.compile(r"No matching distribution found for (.+)"),
    re.compile(r"Failed building wheel for (\S+)"),
    re.compile(
        r"Failed to build (?:installable wheels for some pyproject\.toml based projects )?\(?([^\s(),]+)"
    ),
    re.compile(r"[Ii]nvalid requirement: (.+?)(?::|$)"),
    re.compile(r"Cannot install (.+?) because"),
    re.compile(r"Collecting (\S+)"),
)
"""Patterns for the package that pip could not install; the last: the one that it was collecting."""
LAST_LINES = 4


@dataclass(frozen=True, kw_only=True)
class Pip:
    """Pip of this node, and where it installs to."""

    environ: Mapping[str, str]
    switch: StopSwitch
    folder: Path
    """Folder that relative paths in requirements begin in."""
    overlay: Overlay
    """Overlay that pip installs to."""

    def run(self, *arguments: str) -> command.Finished:
        """Run one of pip's commands and log its output. Raises Stopped."""
        quiet = ("--disable-pip-version-check", "--no-input")
        return command.run(
            [str(self.overlay.python), "-m", "pip", *arguments[:1], *quiet, *arguments[1:]],
            self.environ,
            self.switch,
            folder=self.folder,
            on_line=_show,
        )


def install(
    dependencies: Dependencies,
    workspace: Workspace,
    environ: Mapping[str, str],
    switch: StopSwitch,
    cache: WheelCache,
) -> Workspace:
    """Install requirements and packages above those of the interpreter; return the workspace with where they went.

    Raises AgentError that names the package: cause CONFIG, or DATA where network or disk failed.
    """
    if not (dependencies.requirements or dependencies.packages):
        return workspace
    wanted = _wanted(dependencies, workspace)
    if find_spec("pip") is None:
        raise AgentError(
            f"the job's dependencies need pip, and {sys.executable} has none: choose an image that has it, "
            "or one that contains the packages",
            cause=Cause.CONFIG,
        )
    started = time.monotonic()
    pip = _pip(workspace, environ, switch)
    if not cache.install(pip):
        with cache.noting() as notes:
            done = pip.run("install", "--progress-bar=off", *notes, *wanted)
        if done.exit_code:
            cache.give_up()
            raise _failure(done.output, pip)
        cache.offer(pip)
    logger.info("installed the dependencies in %.1f s", time.monotonic() - started)
    return replace(workspace, overlay=pip.overlay)


def _wanted(dependencies: Dependencies, workspace: Workspace) -> list[str]:
    wanted: list[str] = []
    if dependencies.requirements:
        path = found_in([workspace.working_dir, *roots(workspace.code)], dependencies.requirements)
        if path is None:
            raise AgentError(
                f"the requirements file {dependencies.requirements!r} is not in the code: "
                "correct dependencies.requirements",
                cause=Cause.CONFIG,
            )
        wanted += ["-r", str(path)]
    return [*wanted, *(word for package in dependencies.packages for word in _words(package))]


def _words(package: str) -> list[str]:
    """Return the words of pip's command line for one entry: options are split, as ADS does, and packages stay whole.

    Raises AgentError where it names neither.
    """
    try:
        words = shlex.split(package) if package.lstrip().startswith("-") else [package.strip()]
    except ValueError:
        words = []
    if not any(words) or not package.isprintable():
        raise AgentError(
            f"dependencies.packages contains {package!r}, which is neither a package nor an option of pip",
            cause=Cause.CONFIG,
        )
    return words


def _pip(workspace: Workspace, environ: Mapping[str, str], switch: StopSwitch) -> Pip:
    inherited = {name: value for name, value in environ.items() if name != CONFIG_VARIABLE}
    settings = {
        "PIP_ROOT_USER_ACTION": "ignore",
        **inherited,
        "PYTHONUNBUFFERED": "1",
        "LC_ALL": "C.UTF-8",
    }
    try:
        overlay = make_overlay(fresh_folder("packages", environ))
    except OSError as error:
        raise AgentError(
            f"there is no place for the job's dependencies: {error}", cause=Cause.DATA
        ) from error
    return Pip(environ=settings, switch=switch, folder=workspace.working_dir, overlay=overlay)


def _show(line: str) -> None:
    if line.strip():
        logger.info("pip: %s", line)


def _failure(output: str, pip: Pip) -> AgentError:
    if any(text in output for text in disk.FULL_TEXTS):
        return disk.full_error("the job's dependencies", pip.overlay.folder)
    errors = [line for line in output.splitlines() if re.match(r"\s*(?:ERROR|error)\b", line)]
    said = " / ".join(line.strip() for line in (errors or output.splitlines())[-LAST_LINES:])
    culprit = _culprit(output)
    subject = f"pip cannot install {culprit}" if culprit else "pip cannot install the job's dependencies"
    if NETWORK.search(output):
        return AgentError(f"{subject}: its index cannot be reached: {said}", cause=Cause.DATA)
    return AgentError(f"{subject}: {said}", cause=Cause.CONFIG)


def _culprit(output: str) -> str | None:
    for pattern in CULPRITS:
        found: Sequence[str] = pattern.findall(output)
        if found:
            return found[-1].strip()
    return None
