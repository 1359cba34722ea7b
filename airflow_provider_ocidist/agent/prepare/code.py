"""Code: fetches the user's program to this node."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from airflow_provider_ocidist.agent.prepare import disk
from airflow_provider_ocidist.agent.prepare.workspace import (
    PACKAGE_ROOT,
    Workspace,
    fresh_folder,
    workspace_of,
)
from airflow_provider_ocidist.agent.stopping import StopSwitch
from airflow_provider_ocidist.agent.store_retries import cannot_be_fetched
from airflow_provider_ocidist.errors import AgentError, Cause, StorageError
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.job import Program
from airflow_provider_ocidist.model.work_dir import COMMIT_FILE
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage.locations import shown, shown_in
from airflow_provider_ocidist.storage.stores.base import Store

logger = logging.getLogger(__name__)

CODE_VARIABLE = "OCIDIST_CODE_DIR"
"""Variable with the folder of code in an image."""


def fetch_code(
    config: AgentConfig, environ: Mapping[str, str], access: OciAccess, switch: StopSwitch
) -> Workspace:
    """Fetch the code, if it is not here. Raises AgentError when it, or its script, is not available.

    A script for the launcher `command` may be looked for later, by `workspace.with_executable`.
    """
    program, executable = config.program, config.launcher.kind == "command"
    if program.source is None:
        return workspace_of(program, _code_beside_us(environ), executable=executable)
    # Most nodes have their code in place, and need none of these.
    from airflow_provider_ocidist.agent.prepare import git, vault
    from airflow_provider_ocidist.model.git_source import parse

    folder = fresh_folder("code", environ)
    switch.check()
    repository = parse(program.source)
    if repository:
        secret = vault.read_secret(program.source_secret, access) if program.source_secret else None
        commit = git.clone(repository, folder, secret, environ, switch)
        return replace(workspace_of(program, folder, executable=executable), commit=commit)
    _copy(program, program.source, folder, access, switch)
    return workspace_of(program, folder, executable=executable)


def announce(commit: str | None, store: Store) -> None:
    """Publish node 0's commit for the other nodes. Raises StorageError."""
    if commit is not None:
        store.write(COMMIT_FILE, commit.encode())


def announced(store: Store) -> str | None:
    """Return the commit that node 0 has published; None: it has not. Raises StorageError."""
    try:
        return store.read(COMMIT_FILE).decode()
    except FileNotFoundError:
        return None


def require_same(commit: str | None, store: Store) -> None:
    """Raise AgentError when node 0 has announced another commit than this node's."""
    if commit is None:
        return
    with fetch_errors("the commit that node 0 trains", Path.cwd()):
        other = store.read(COMMIT_FILE).decode()
    if other != commit:
        raise AgentError(
            f"this node has the code at {commit[:12]}, node 0 at {other[:12]}: its branch moved while the nodes "
            "started; run again, or name a commit in program.source",
            cause=Cause.DATA,
        )


def _code_beside_us(environ: Mapping[str, str]) -> Path:
    if CODE_VARIABLE in environ:
        return Path(environ[CODE_VARIABLE]).absolute()
    beside = PACKAGE_ROOT / "code"
    return beside if beside.is_dir() else Path.cwd()


def _copy(program: Program, source: str, folder: Path, access: OciAccess, switch: StopSwitch) -> None:
    """Fetch a script, an archive or a folder; the folder keeps its name, below ours."""
    from airflow_provider_ocidist.agent.prepare import archives
    from airflow_provider_ocidist.storage.locations import parse
    from airflow_provider_ocidist.storage.transfer import copy

    if program.source_secret:
        raise AgentError(
            f"program.source_secret opens Git repositories, but {shown(source)} is not Git: leave it out",
            cause=Cause.CONFIG,
        )
    with fetch_errors(f"the code {shown(source)}", folder):
        name = parse(source).name
        if name.endswith(archives.ARCHIVE_SUFFIXES) and not Path(source).is_dir():
            archive = folder.with_name(name)
            copy(source, str(archive), access=access, cancel=switch.event)
            archives.unpack(archive, folder)
            archive.unlink()
        else:
            copy(source, str(folder / name) if name else str(folder), access=access, cancel=switch.event)
    switch.check()


@contextlib.contextmanager
def fetch_errors(what: str, folder: Path) -> Iterator[None]:
    """Turn storage failures into an AgentError that names what could not be fetched."""
    try:
        yield
    except (StorageError, OSError) as error:
        if disk.is_full(error):
            raise disk.full_error(what, folder) from error
        raise cannot_be_fetched(what, error, shown_in(str(error))) from error
