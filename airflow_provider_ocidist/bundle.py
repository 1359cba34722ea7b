"""The zip that carries the agent and the user's code to the nodes."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

PACKAGE = Path(__file__).parent
AGENT_PARTS = (
    "__init__.py",
    "errors.py",
    "codec.py",
    "kinds.py",
    "job.py",
    "oci_clients.py",
    "agent",
    "launchers",
    "storage",
)
"""What a node needs of this package: standard library at import, no Airflow."""
ROOT = "ocidist"
ENTRYPOINT = f"{ROOT}/node.py"
NODE_SCRIPT = """\
import pathlib, sys
if sys.version_info < (3, 11):
    sys.exit(
        "ocidist: this node runs Python %d.%d, the agent needs 3.11 or later: choose another image or conda environment"
        % sys.version_info[:2]
    )
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from airflow_provider_ocidist.agent.__main__ import main
sys.exit(main())
"""
IGNORED = {
    "__pycache__",
    ".git",
    ".venv",
    ".ipynb_checkpoints",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
}
EPOCH = (1980, 1, 1, 0, 0, 0)


def agent_bundle(code: str | None) -> bytes:
    """Return the job artifact: the agent, and the user's code under `code/` when there is a local one.

    Equal content gives equal bytes, so that the same submission repeated is the same request.
    """
    members = [(ENTRYPOINT, NODE_SCRIPT.encode())]
    members += [(f"{ROOT}/{PACKAGE.name}/{name}", data) for name, data in _agent_members()]
    if code is not None:
        members += [(f"{ROOT}/code/{name}", data) for name, data in _code_members(Path(code))]
    return _zip(members)


def code_bundle(code: str) -> bytes:
    """Return the user's code alone, for images that hold the agent already."""
    return _zip(_code_members(Path(code)))


def _agent_members() -> Iterator[tuple[str, bytes]]:
    for part in AGENT_PARTS:
        path = PACKAGE / part
        if path.is_file():
            yield part, path.read_bytes()
        else:
            yield from (
                (f"{part}/{name}", data) for name, data in _folder_members(path) if name.endswith(".py")
            )


def _code_members(code: Path) -> Iterator[tuple[str, bytes]]:
    if code.is_dir():
        yield from _folder_members(code)
    elif zipfile.is_zipfile(code):
        with zipfile.ZipFile(code) as zipped:
            yield from ((info.filename, zipped.read(info)) for info in zipped.infolist() if not info.is_dir())
    elif tarfile.is_tarfile(code):
        with tarfile.open(code) as archive:
            yield from ((info.name, _content(archive, info)) for info in archive if info.isfile())
    else:
        yield code.name, code.read_bytes()


def _content(archive: tarfile.TarFile, info: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(info)
    return file.read() if file is not None else b""


def _folder_members(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if path.is_file() and not IGNORED.intersection(relative.parts):
            yield relative.as_posix(), path.read_bytes()


def _zip(members: Iterable[tuple[str, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, data in members:
            archive.writestr(zipfile.ZipInfo(name, EPOCH), data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()
