"""The zip that carries the agent and the user's code to the nodes. Python 3.9 imports it, for the tests of nodes."""

from __future__ import annotations

import base64
import contextlib
import functools
import io
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from airflow_provider_ocidist import __version__
from airflow_provider_ocidist.agent.train.first_process import FORWARDED
from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.errors import BackendError, Cause, Unopenable
from airflow_provider_ocidist.storage import locations
from airflow_provider_ocidist.work_dir.parallel import Pending

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
WORK_DIR_ANSWERS_WITHIN = 5.0
"""Seconds for a look whether the work directory lies in a folder of code; it may be on a mount whose server is gone."""
BOOT_VARIABLE = "OCIDIST_BOOT"
"""Variable with the program that fetches the agent, as `boot_text` returns it."""

BLOCK_SIGNALS = f"""\
import os, signal
if os.getpid() == 1:
    signal.pthread_sigmask(signal.SIG_BLOCK, ({", ".join(f"signal.{number.name}" for number in FORWARDED)}))
"""
"""Keeps signals until the agent takes them: the kernel drops those that process 1 of a container has no handler for."""


def _filled(script: str) -> str:
    values = {
        "VERSION": __version__,
        "BOOT_VARIABLE": BOOT_VARIABLE,
        "OLDEST": OLDEST_PYTHON,
        "BLOCK_SIGNALS\n": BLOCK_SIGNALS,
    }
    return functools.reduce(lambda text, name: text.replace(name, str(values[name])), values, script)


NODE_SCRIPT = _filled("""\
import sys
if sys.version_info < OLDEST:
    sys.exit(
        "ocidist: this node runs Python %d.%d, the agent needs %d.%d or later: choose another image or environment"
        % (sys.version_info[:2] + OLDEST)
    )
BLOCK_SIGNALS
import pathlib
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from airflow_provider_ocidist.agent.__main__ import run_and_exit
run_and_exit()
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
BLOCK_SIGNALS
import base64, zlib
boot = os.environ.pop("BOOT_VARIABLE")
run_and_exit = None
try:
    from airflow_provider_ocidist import __version__
    if __version__ == "VERSION":
        from airflow_provider_ocidist.agent.__main__ import run_and_exit
except ImportError:
    pass
if run_and_exit:
    run_and_exit()
exec(zlib.decompress(base64.b64decode(boot)))
""")
"""Any Python reads it, so that an old one can report it. Files in the folder it starts in must not pass for modules.

An image may have been built from an earlier checkout of the same version: its agent counts as another if it has no
`run_and_exit`, for its `main` keeps the signals blocked that are blocked here.
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
"""Folders and files of the code that are not sent to nodes."""
ARCHIVE_DATE = (1980, 1, 1, 0, 0, 0)
"""Time of every file in an archive, so that equal content gives equal bytes."""
UNREADABLE = (OSError, ValueError, zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError)
"""Exceptions of reading and packing code: no such file, a broken archive, a name that none can hold."""


@dataclass(frozen=True)
class _Member:
    """A file of an archive that is made here."""

    name: str
    data: bytes
    executable: bool = False

    def below(self, place: str) -> _Member:
        return _Member(f"{place}/{self.name}", self.data, self.executable)


def agent_bundle(code: str | None, work_dir: str | None = None) -> bytes:
    """Return the job artifact: the agent, and the user's code under `code/` when there is a local one.

    Equal content gives equal bytes, so that the same submission repeated is the same request. A `work_dir` inside the
    code is left out: it holds what runs have written, and others write there meanwhile. Raises BackendError for one
    that is the folder of the code.
    """
    if code is None:
        return _agent_archive()
    members = (member.below(f"{ROOT}/code") for member in _code_members(Path(code), work_dir))
    return _zip(members, behind=_agent_archive())


def own_work_dir(code: str | None, work_dir: str | None) -> str | None:
    """Return why a work directory cannot be used with a folder of code: it is that folder. None where it can."""
    try:
        is_own = code is not None and os.path.isdir(code) and _identity(Path(code)) in _identities(work_dir)  # noqa: PTH112 (says False of no path)
    except (OSError, ValueError):
        # Raised where the code is read.
        return None
    if not is_own:
        return None
    return (
        f"{work_dir} is the folder program.source too, so what runs write would be sent to the nodes as code: "
        "name a folder inside it, such as .ocidist, or one beside it"
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
        for _, file in _folder_files(path):
            size += file.stat().st_size
            if size > limit:
                break
    except (OSError, ValueError):
        # The error is raised where the file is read.
        pass
    return size


def code_bundle(code: str, work_dir: str | None = None) -> bytes:
    """Return the user's code alone, as `agent_bundle` has it; to a container it travels apart from the agent."""
    return _zip(_code_members(Path(code), work_dir))


@contextlib.contextmanager
def code_errors(code: str | None) -> Iterator[None]:
    """Turn what reading a job's code raises into a BackendError."""
    try:
        yield
    except TimeoutError as error:
        raise BackendError(str(error), retryable=True) from error
    except UNREADABLE as error:
        raise BackendError(f"program.source cannot be read: {code}: {error}", cause=Cause.CONFIG) from error


def unpack(archive: zipfile.ZipFile, folder: Path) -> None:
    """Unpack an archive of ours; its executables stay executable, which zipfile alone forgets."""
    for info in archive.infolist():
        target = Path(archive.extract(info, folder))
        if _is_executable(info.external_attr >> 16):
            target.chmod(target.stat().st_mode | 0o111)


def folder_name(code: Path) -> str:
    """Return the name of a folder of code on the nodes: as it was written, also where that is a link."""
    return code.name if code.name not in ("", "..") else code.resolve().name


def is_sent(folder: Path, name: str, work_dir: str | None = None) -> bool:
    """Return whether the code of a folder has a file of this name on the nodes, as `agent_bundle`. Raises OSError."""
    parts = PurePosixPath(name).parts
    if ".." in parts or IGNORED.intersection(parts):
        return False
    place, above = folder, [*_identities(work_dir), _identity(folder)]
    for part in parts[:-1]:
        place /= part
        if not os.path.isdir(place) or (found := _identity(place)) in above:  # noqa: PTH112 (says False of no path)
            return False
        above.append(found)
    return os.path.isfile(folder / name)  # noqa: PTH113 (says False of what can be no path)


def archive_names(code: Path) -> list[str]:
    """Return the names of the files that a node gets from a file of code: an archive's own, or that of the file."""
    if zipfile.is_zipfile(code):
        with zipfile.ZipFile(code) as zipped:
            return [info.filename for info in _zip_files(zipped)]
    if tarfile.is_tarfile(code):
        with tarfile.open(code) as archive:
            return [info.name for info in _tar_files(archive)]
    return [code.name]


@functools.cache
def _agent_archive() -> bytes:
    """Return the agent alone, packed once in each process."""
    members = [_Member(ENTRYPOINT, NODE_SCRIPT.encode())]
    members += [member.below(f"{ROOT}/{PACKAGE.name}") for member in _agent_members()]
    return _zip(members)


def _agent_members() -> Iterator[_Member]:
    for part in AGENT_PARTS:
        path = PACKAGE / part
        if path.is_file():
            yield _Member(part, path.read_bytes())
        else:
            sources = ((name, file) for name, file in _folder_files(path) if name.endswith(".py"))
            yield from (_Member(f"{part}/{name}", file.read_bytes()) for name, file in sorted(sources))


def _code_members(code: Path, work_dir: str | None) -> Iterator[_Member]:
    if refused := own_work_dir(str(code), work_dir):
        raise BackendError(f"work_dir {refused}", cause=Cause.CONFIG)
    if code.is_dir():
        # The program runs beside its folder, as with ADS, so that has to keep its name.
        place = folder_name(code)
        for packed in _present(sorted(_folder_files(code, _identities(work_dir)))):
            yield packed.below(place)
    elif zipfile.is_zipfile(code):
        with zipfile.ZipFile(code) as zipped:
            for member in _zip_files(zipped):
                yield _Member(
                    member.filename, zipped.read(member), _is_executable(member.external_attr >> 16)
                )
    elif tarfile.is_tarfile(code):
        with tarfile.open(code) as archive:
            for info in _tar_files(archive):
                yield _Member(info.name, _content(archive, info), _is_executable(info.mode))
    else:
        yield _file_member(code.name, code)


def _present(files: Iterable[tuple[str, Path]]) -> Iterator[_Member]:
    """Yield files without those that another program removes meanwhile; one that it replaces is there at the end."""
    gone = []
    for name, file in files:
        try:
            member = _file_member(name, file)
        except FileNotFoundError:
            gone.append((name, file))
            continue
        yield member
    for name, file in gone:
        with contextlib.suppress(FileNotFoundError):
            yield _file_member(name, file)


def _file_member(name: str, file: Path) -> _Member:
    return _Member(name, file.read_bytes(), _is_executable(file.stat().st_mode))


def _is_executable(mode: int) -> bool:
    return bool(mode & stat.S_IXUSR)


def _zip_files(archive: zipfile.ZipFile) -> Iterator[zipfile.ZipInfo]:
    return (info for info in archive.infolist() if not info.is_dir())


def _tar_files(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    return (info for info in archive if info.isfile())


def _content(archive: tarfile.TarFile, info: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(info)
    return file.read() if file is not None else b""


def _identities(work_dir: str | None) -> list[tuple[int, int]]:
    """Return the identity of a work directory on this machine; none where there is none.

    Raises TimeoutError where it does not answer: it may lie in the code, and would be sent with it.
    """
    try:
        place = None if work_dir is None else locations.parse(work_dir)
    except Unopenable:
        # The rules of a job report it.
        return []
    if place is None or place.kind != "local":
        return []
    call = Pending(lambda: [_identity(Path(place.path))] if place.is_local_folder else [])
    if not call.is_made(WORK_DIR_ANSWERS_WITHIN):
        raise TimeoutError(
            f"work_dir {place.path} has not answered for {WORK_DIR_ANSWERS_WITHIN:.0f} s: "
            "is it on a mount whose server is gone?"
        )
    return call.result()


def _folder_files(folder: Path, left_out: Sequence[tuple[int, int]] = ()) -> Iterator[tuple[str, Path]]:
    """Yield the files of a folder that are sent, each with its name there. Raises OSError.

    Links are followed, except to a folder that holds them: that would never end.
    """
    above = (*left_out, _identity(folder))
    yield from _files_below(list(os.scandir(folder)), "", above)


def _files_below(
    entries: Sequence[os.DirEntry[str]], place: str, above: tuple[tuple[int, int], ...]
) -> Iterator[tuple[str, Path]]:
    for entry in entries:
        name = place + entry.name
        if entry.name in IGNORED:
            continue
        if entry.is_dir():
            try:
                found = _identity(Path(entry.path))
                inside = [] if found in above else list(os.scandir(entry.path))
            except FileNotFoundError:
                # Another program has removed it meanwhile.
                continue
            yield from _files_below(inside, f"{name}/", (*above, found))
        elif entry.is_file():
            yield name, Path(entry.path)


def _identity(folder: Path) -> tuple[int, int]:
    """Return what is the same for all names of one folder. Raises OSError."""
    found = folder.stat()
    return found.st_dev, found.st_ino


def _zip(members: Iterable[_Member], behind: bytes = b"") -> bytes:
    """Return an archive of these members, behind those of another one."""
    buffer = io.BytesIO(behind)
    with zipfile.ZipFile(buffer, "a", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for member in members:
            info = zipfile.ZipInfo(member.name, ARCHIVE_DATE)
            # One of two modes, so that equal content stays equal bytes whatever the owner lets others do.
            info.external_attr = (stat.S_IFREG | (0o755 if member.executable else 0o644)) << 16
            archive.writestr(info, member.data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()
