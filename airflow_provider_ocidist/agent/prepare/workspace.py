"""Workspace: the user's program on this node, its working directory and import path."""

from __future__ import annotations

import contextlib
import difflib
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import airflow_provider_ocidist
from airflow_provider_ocidist.agent.prepare.overlay import Overlay
from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.errors import AgentError, Cause
from airflow_provider_ocidist.model.job import Program

logger = logging.getLogger(__name__)

PACKAGE_ROOT = Path(airflow_provider_ocidist.__file__).parents[1]


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """The user's program, and its working directory."""

    code: Path
    """Folder of the clone or of the unpacked archive, or the folder that holds the script or the project's folder."""
    working_dir: Path
    program: Program
    """Program with the script's absolute path; with the bare name of an executable that the code lacks, until
    `with_executable` has found it."""
    commit: str | None = None
    """Commit of code that came from Git."""
    overlay: Overlay | None = None
    """Packages that were installed for this job."""


def workspace_of(program: Program, code: Path, *, executable: bool = False) -> Workspace:
    """Return the workspace of a program whose code is in a folder.

    Without `program.working_dir` that is the folder from which the path of the script was written: the root of a clone
    or archive, a project's folder, or the one that holds it if the path includes the project's name, as ADS requires.
    An `executable` may also be on `PATH`: of one that the code lacks the name is kept, as the job's packages may yet
    bring it. Raises AgentError when folder or script are missing.
    """
    working_dir = _working_dir(program, code)
    found = None if program.module else found_in([working_dir, *roots(code)], program.script)
    if found is None and not (program.module or (executable and "/" not in program.script)):
        raise _missing(program.script, code)
    if found is not None and executable:
        _make_executable(found)
    located = replace(program, script=str(found)) if found else program
    return Workspace(code=code, working_dir=working_dir, program=located)


def with_executable(workspace: Workspace, environ: Mapping[str, str]) -> Workspace:
    """Return the workspace with the path of an executable that is not in the code: that of the job's packages, else
    that of the node.

    Raises AgentError when there is none.
    """
    name = workspace.program.script
    if workspace.program.module or "/" in name:
        return workspace
    path = shutil.which(name, path=program_paths(workspace, environ))
    if path is None:
        raise _missing(name, workspace.code)
    return replace(workspace, program=replace(workspace.program, script=path))


def _make_executable(script: Path) -> None:
    """Let a script be started: neither a bucket nor every service that unpacks code keeps this of a file."""
    mode = script.stat().st_mode
    # In an image the file may be another user's; its start then says that it must not be started.
    with contextlib.suppress(OSError):
        if not mode & stat.S_IXUSR:
            script.chmod(mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)


def roots(code: Path) -> list[Path]:
    """Return the folder of the code and, where the code is nothing but one project's folder, that folder."""
    shown = (
        [path for path in sorted(code.iterdir()) if not path.name.startswith(".")] if code.is_dir() else []
    )
    is_clone = (code / ".git").exists()
    return [code, shown[0]] if len(shown) == 1 and shown[0].is_dir() and not is_clone else [code]


def found_in(folders: list[Path], name: str) -> Path | None:
    """Return the first file of this name below one of the folders."""
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def _working_dir(program: Program, code: Path) -> Path:
    if program.working_dir is None:
        return next((root for root in roots(code) if (root / _file_of(program)).is_file()), code)
    for root in roots(code):
        if (root / program.working_dir).is_dir():
            return root / program.working_dir
    raise AgentError(
        f"the working directory {program.working_dir!r} is not in the code{_there(code)}: "
        "correct program.working_dir",
        cause=Cause.CONFIG,
    )


def _file_of(program: Program) -> str:
    return f"{program.script.replace('.', '/')}.py" if program.module else program.script


def _missing(script: str, code: Path) -> AgentError:
    return AgentError(
        f"the script {script!r} is not in {code}{_near(script, code)}: correct program.script",
        cause=Cause.CONFIG,
    )


def _there(code: Path) -> str:
    names = sorted(path.name for root in roots(code) for path in root.iterdir() if path.is_dir())
    return f", which has {', '.join(names[:8])}" if names else ""


def _near(script: str, code: Path) -> str:
    names = [str(path.relative_to(root)) for root in roots(code) for path in sorted(root.glob("*.py"))]
    near = difflib.get_close_matches(script, names, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def environment_paths(workspace: Workspace, environ: Mapping[str, str]) -> str:
    """Return PYTHONPATH for the program: its own folders first, then what the node has."""
    inherited = environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = [*map(str, _own_paths(workspace)), *inherited, *_package_path()]
    return os.pathsep.join(dict.fromkeys(path for path in paths if path))


def program_paths(workspace: Workspace, environ: Mapping[str, str]) -> str:
    """Return PATH for the program: what was installed for the job first, then what the node has."""
    own = [str(workspace.overlay.scripts)] if workspace.overlay else []
    return os.pathsep.join([*own, environ.get("PATH", os.defpath)])


def _own_paths(workspace: Workspace) -> Iterator[Path]:
    yield workspace.working_dir
    for name in workspace.program.python_path:
        path = workspace.working_dir / name
        if not path.is_dir():
            logger.warning("program.python_path names %s, which is not a folder on this node", name)
        yield path
    for root in roots(workspace.code):
        # A package's own folder must not be on the path: its `types.py` would hide Python's.
        if not (root / "__init__.py").exists():
            yield root
    if workspace.overlay:
        yield workspace.overlay.site_packages


def _package_path() -> list[str]:
    """Let the program import our package too; but site-packages must not precede the standard library."""
    import sysconfig

    root = str(PACKAGE_ROOT)
    return [] if root in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")) else [root]


def fresh_folder(name: str, environ: Mapping[str, str]) -> Path:
    """Return a new path on this node, beside us if possible; it holds no earlier attempt's files."""
    places = [
        Path.cwd(),
        *([Path(environ["HOME"])] if environ.get("HOME") else []),
        Path(tempfile.gettempdir()),
    ]
    for place in places:
        if os.access(place, os.W_OK | os.X_OK):
            if not (place / name).exists():
                return place / name
            return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=place)) / name
    raise AgentError(
        f"this node has no folder to write to: {', '.join(map(str, places))} are all read-only",
        cause=Cause.CONFIG,
    )
