"""The zip that carries the agent and the user's code to the nodes."""

from __future__ import annotations

import base64
import contextlib
import functools
import io
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from airflow_provider_ocidist import __version__
from airflow_provider_ocidist.errors import BackendError, Cause

PACKAGE = Path(__file__).parents[1]
AGENT_PARTS = (
    "__init__.py",
    "backports.py",
    "errors.py",
    "kinds.py",
    "saves.py",
    "model",
    "oci_client",
    "agent",
    "launchers",
    "storage",
)
"""Parts of this package that a node needs: standard library at import, no Airflow; Python as `OLDEST_PYTHON` has it."""
OLDEST_PYTHON = (3, 9)
"""Oldest Python of a node. docs/nodes.md names what that excludes."""
ROOT = "ocidist"
ENTRYPOINT = f"{ROOT}/node.py"
BOOT_VARIABLE = "OCIDIST_BOOT"
"""Variable with the program that fetches the agent, as `boot_text` returns it."""


def _filled(script: str) -> str:
    values = {"VERSION": __version__, "BOOT_VARIABLE": BOOT_VARIABLE, "OLDEST": OLDEST_PYTHON}
    return functools.reduce(lambda text, name: text.replace(name, str(values[name])), values, script)


NODE_SCRIPT = _filled("""\
import sys
if sys.version_info < OLDEST:
    sys.exit(
        "ocidist: this node runs Python %d.%d, the agent needs %d.%d or later: choose another image or environment"
        % (sys.version_info[:2] + OLDEST)
    )
import pathlib
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from airflow_provider_ocidist.agent.__main__ import main
sys.exit(main())
""")
BOOT_SCRIPT = _filled("""
import io, sys, tempfile, zipfile
config = json.loads(os.environ["OCIDIST_CONFIG"])
place = config["run_dir"].rstrip("/") + "/agent.zip"
try:
    own = os.environ.get("OCI_CLI_CONFIG_FILE") or os.environ.get("OCI_CONFIG_FILE")
    if place.startswith("oci://") and own is None:
        content = read_object(place, os.environ, config.get("oci_endpoint"), config.get("oci_region"))
    elif "://" in place and not place.startswith("file://"):
        import fsspec
        with fsspec.open(place, "rb", **({"config": own} if place.startswith("oci://") else {})) as file:
            content = file.read()
    else:
        content = open(place.removeprefix("file://"), "rb").read()
    home = os.environ.get("HOME", "")
    folder = tempfile.mkdtemp(prefix="ocidist-agent-", dir=home if home and os.access(home, os.W_OK) else None)
    zipfile.ZipFile(io.BytesIO(content)).extractall(folder)
except (RequestError, ImportError, ValueError, OSError, zipfile.BadZipFile) as error:
    sys.exit(
        f"ocidist: the agent cannot be fetched from {place}: {error}. Remedy: see that this node may read work_dir, "
        "and write to HOME or TMPDIR; or choose an image that contains airflow-provider-ocidist VERSION"
    )
os.execv(sys.executable, [sys.executable, folder + "/ocidist/node.py"])
""")
"""Goes on where `oci_client.request` ends."""
START_SCRIPT = _filled("""\
import sys
if sys.version_info < OLDEST:
    sys.exit("ocidist: the python3 of this image is %d.%d, the agent needs %d.%d or later: choose another image"
        % (sys.version_info[:2] + OLDEST))
sys.path.remove("")
import base64, os, zlib
boot = os.environ.pop("BOOT_VARIABLE")
try:
    import airflow_provider_ocidist as ours
    here = ours.__version__ == "VERSION"
except ImportError:
    here = False
if here:
    from airflow_provider_ocidist.agent.__main__ import main
    sys.exit(main())
exec(zlib.decompress(base64.b64decode(boot)))
""")
"""Any Python reads it, so that an old one can report it. Files in the folder it starts in must not pass for modules."""
IGNORED = {
    "__pycache__",
    ".git",
    ".venv",
    ".ipynb_checkpoints",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
}
"""Folders that are not sent to nodes."""
ARCHIVE_DATE = (1980, 1, 1, 0, 0, 0)
"""Time of every file in an archive, so that equal content gives equal bytes."""
UNREADABLE = (OSError, ValueError, zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError)
"""Exceptions of reading and packing code: no such file, a broken archive, a name that none can hold."""


def agent_bundle(code: str | None) -> bytes:
    """Return the job artifact: the agent, and the user's code under `code/` when there is a local one.

    Equal content gives equal bytes, so that the same submission repeated is the same request.
    """
    if code is None:
        return _agent_archive()
    return _zip(
        [(f"{ROOT}/code/{name}", data) for name, data in _code_members(Path(code))], behind=_agent_archive()
    )


def boot_text() -> str:
    """Return the program that fetches the agent into an image that has nothing but Python, as text without blanks."""
    program = (PACKAGE / "oci_client/request.py").read_text() + BOOT_SCRIPT
    return base64.b64encode(zlib.compress(program.encode(), 9)).decode()


def code_size(code: str, limit: int) -> int:
    """Return how many bytes the user's code has before it is packed; counting ends above the limit."""
    path, size = Path(code), 0
    try:
        if not path.is_dir():
            return path.stat().st_size
        for member in _folder_files(path):
            size += member.stat().st_size
            if size > limit:
                break
    except (OSError, ValueError):
        # The error is raised where the file is read.
        pass
    return size


def code_bundle(code: str) -> bytes:
    """Return the user's code alone; to a container it travels apart from the agent."""
    return _zip(_code_members(Path(code)))


@contextlib.contextmanager
def code_errors(code: str | None) -> Iterator[None]:
    """Turn what reading a job's code raises into a BackendError."""
    try:
        yield
    except UNREADABLE as error:
        raise BackendError(f"program.source cannot be read: {code}: {error}", cause=Cause.CONFIG) from error


@functools.cache
def _agent_archive() -> bytes:
    """Return the agent alone, packed once in each process."""
    members = [(ENTRYPOINT, NODE_SCRIPT.encode())]
    members += [(f"{ROOT}/{PACKAGE.name}/{name}", data) for name, data in _agent_members()]
    return _zip(members)


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
        # The program runs beside its folder, as with ADS, so that has to keep its name.
        yield from ((f"{code.resolve().name}/{name}", data) for name, data in _folder_members(code))
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
    for path in sorted(_folder_files(folder)):
        yield path.relative_to(folder).as_posix(), path.read_bytes()


def _folder_files(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.is_file() and not IGNORED.intersection(path.relative_to(folder).parts):
            yield path


def _zip(members: Iterable[tuple[str, bytes]], behind: bytes = b"") -> bytes:
    """Return an archive of these members, behind those of another one."""
    buffer = io.BytesIO(behind)
    with zipfile.ZipFile(buffer, "a", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, data in members:
            archive.writestr(zipfile.ZipInfo(name, ARCHIVE_DATE), data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()
