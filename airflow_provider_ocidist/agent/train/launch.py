"""Launch: whether this node has what the job's launcher needs, and the files that it reads."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import Mapping
from importlib.machinery import PathFinder
from pathlib import Path

from airflow_provider_ocidist import kinds
from airflow_provider_ocidist.agent.prepare.overlay import Overlay
from airflow_provider_ocidist.errors import AgentError, Cause
from airflow_provider_ocidist.launchers import ssh
from airflow_provider_ocidist.launchers.base import Launcher
from airflow_provider_ocidist.model.job import LauncherOptions


def load_launcher(options: LauncherOptions) -> Launcher:
    """Return the launcher that a job asks for. Raises AgentError when there is none of that name."""
    try:
        launcher: Launcher = kinds.load("launchers", options.kind).LAUNCHER
    except LookupError as error:
        raise AgentError(str(error), cause=Cause.CONFIG) from error
    return launcher


def check_tools(
    launcher: Launcher, options: LauncherOptions, nodes: int, overlay: Overlay | None = None
) -> None:
    """Raise AgentError when this node lacks a package or a program that the launcher requires.

    `overlay`: what the training has besides our own.
    """
    importlib.invalidate_caches()  # pip may have just installed it
    places = [*([str(overlay.site_packages)] if overlay else []), *sys.path]
    folders = [
        *([str(overlay.scripts)] if overlay else []),
        os.environ.get("PATH", os.defpath),
        *ssh.DAEMON_FOLDERS,
    ]
    for package in launcher.requires:
        if PathFinder.find_spec(package, places) is None:
            raise AgentError(
                f"the launcher {options.kind} needs the Python package {package}, and {sys.executable} has none: "
                "choose an image or environment that has it, or name it in dependencies.packages",
                cause=Cause.CONFIG,
            )
    for tool in launcher.tools(options, nodes):
        if shutil.which(tool, path=os.pathsep.join(folders)) is None:
            raise AgentError(
                f"the launcher {options.kind} needs the program {tool}, which is not on this node's PATH: "
                "choose an image that has it",
                cause=Cause.CONFIG,
            )


def public_key(launcher: Launcher, options: LauncherOptions, nodes: int, folder: Path) -> str | None:
    """Create this node's key where its launcher needs one; return the public half."""
    return ssh.make_key(folder) if launcher.logs_in(options, nodes) else None


def write_files(files: Mapping[str, str], folder: Path) -> None:
    """Write the launcher's files, readable by their owner only."""
    for name, content in files.items():
        path = folder / name
        path.touch(mode=0o600)
        path.write_text(content)
