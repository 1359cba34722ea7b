"""A folder on this machine, or on a file system that it has mounted."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from airflow_provider_ocidist.errors import StorageError
from airflow_provider_ocidist.storage.locations import is_unfinished, safe_name, unfinished_name
from airflow_provider_ocidist.storage.stores import Download, Entry, Store, Upload, not_the_promised_size


class LocalStore(Store):
    """Files of a local folder. Symbolic links are followed while they stay inside it."""

    def __init__(self, root: str | Path, *, strict: bool = False) -> None:
        """`strict`: refuse to read a file that was touched since it was listed."""
        self.root = Path(root)
        self.uri = str(root)
        self.strict = strict
        self.skipped: tuple[str, ...] = ()
        """What the last `list` left out: links that lead outside or nowhere, sockets, pipes."""

    def read(self, name: str) -> bytes:
        path = self._path(name)
        with local_errors(path):
            return path.read_bytes()

    def write(self, name: str, data: bytes) -> None:
        upload = self.upload(name, len(data), len(data))
        try:
            upload.write(0, 0, data)
            upload.commit()
        except BaseException:
            upload.abort()
            raise

    def list(self, prefix: str = "") -> list[Entry]:
        skipped: set[str] = set()
        folder = prefix.rpartition("/")[0]
        found: list[Entry] = []
        with local_errors(self.root):
            walk = self._walk(self.root / folder, f"{folder}/" if folder else "", frozenset(), skipped)
            found.extend(entry for entry in walk if entry.name.startswith(prefix))
        self.skipped = tuple(sorted(skipped))
        return sorted(found, key=lambda entry: entry.name)

    def delete(self, name: str) -> None:
        path = self._path(name)
        with local_errors(path):
            path.unlink(missing_ok=True)
        # Object stores know no folders: an empty one that stayed behind would look like a leftover.
        for parent in path.parents:
            if parent == self.root:
                break
            try:
                parent.rmdir()
            except OSError:
                break

    def stat(self, name: str) -> Entry:
        path = self._path(name)
        with local_errors(path):
            status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise FileNotFoundError(errno.ENOENT, "not a file", str(path))
        return _entry(name, status)

    def upload(self, name: str, size: int | None, part_size: int) -> Upload:  # noqa: ARG002 - contract
        return LocalUpload(self._path(name))

    def download(self, entry: Entry, part_size: int) -> Download:
        return LocalDownload(self._path(entry.name), entry, part_size, strict=self.strict)

    def _path(self, name: str) -> Path:
        return self.root / safe_name(name)

    def _walk(self, folder: Path, prefix: str, above: frozenset[str], skipped: set[str]) -> Iterator[Entry]:
        real = os.path.realpath(folder)
        if real in above:
            skipped.add(prefix.rstrip("/"))
            return
        try:
            children = list(os.scandir(folder))
        except (FileNotFoundError, NotADirectoryError):
            return
        for child in children:
            name = prefix + child.name
            if is_unfinished(child.name):
                continue
            if child.is_symlink() and not self._inside(child.path):
                skipped.add(name)
            elif child.is_dir():
                yield from self._walk(Path(child.path), f"{name}/", above | {real}, skipped)
            elif child.is_file():
                with contextlib.suppress(FileNotFoundError):  # files come and go while we look
                    yield _entry(name, child.stat())
            else:
                skipped.add(name)

    def _inside(self, link: str) -> bool:
        root = os.path.realpath(self.root)
        target = os.path.realpath(link)
        return Path(target).exists() and os.path.commonpath([root, target]) == root


class LocalDownload(Download):
    """Ranges of a local file."""

    def __init__(self, path: Path, entry: Entry, part_size: int, *, strict: bool) -> None:
        self.path = path
        self.entry = entry
        self.part_size = part_size
        self.strict = strict

    def read(self, offset: int, length: int) -> bytes:
        with local_errors(self.path), self.path.open("rb", buffering=0) as file:
            self._check(os.fstat(file.fileno()))
            pieces: list[bytes] = []
            while length > 0:
                piece = os.pread(file.fileno(), length, offset)
                if not piece:
                    raise not_the_promised_size(str(self.path), self.entry.size, offset)
                pieces.append(piece)
                offset, length = offset + len(piece), length - len(piece)
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def finish(self) -> None:
        with local_errors(self.path):
            self._check(self.path.stat())

    def _check(self, status: os.stat_result) -> None:
        if self.strict and _etag(status) != self.entry.etag:
            raise StorageError(f"{self.path} changed while it was read", uri=str(self.path))


class LocalUpload(Upload):
    """A file that is written beside its place and moved there when it is whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.part = path.with_name(unfinished_name(path.name))
        with local_errors(path):
            self.descriptor = self._create()

    def _create(self) -> int:
        # The folder may vanish between the two calls, when someone deletes the last file in it.
        for _ in range(3):
            self.part.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                return os.open(self.part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        raise StorageError(f"cannot create {self.part}: its folder keeps vanishing", uri=str(self.path))

    def write(self, index: int, offset: int, data: bytes) -> None:  # noqa: ARG002 - contract
        with local_errors(self.path):
            view = memoryview(data)
            while view:
                written = os.pwrite(self.descriptor, view, offset)
                view, offset = view[written:], offset + written

    def commit(self) -> None:
        with local_errors(self.path):
            descriptor, self.descriptor = self.descriptor, -1
            os.close(descriptor)  # network file systems report a full disk here
            if self._is_device():
                raise StorageError(f"{self.path}: is no file, and is not replaced by one", uri=str(self.path))
            self.part.replace(self.path)

    def _is_device(self) -> bool:
        """Whether a device, socket or pipe is there: renaming a file to its name would take it away."""
        try:
            mode = self.path.lstat().st_mode
        except FileNotFoundError:
            return False
        return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode))

    def abort(self) -> None:
        with contextlib.suppress(OSError):
            if self.descriptor >= 0:
                os.close(self.descriptor)
        with contextlib.suppress(OSError):
            self.part.unlink(missing_ok=True)


_FULL = {
    errno.ENOSPC: "no space left on the file system",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file is larger than this process or file system allows",
}


@contextmanager
def local_errors(path: Path) -> Iterator[None]:
    """Turn what the operating system says into one StorageError; absence stays FileNotFoundError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        reason = _FULL.get(error.errno or 0) or (error.strerror or str(error)).lower()
        raise StorageError(f"{path}: {reason}", uri=str(path)) from error
    except UnicodeEncodeError as error:
        raise StorageError(f"{path!r}: its name cannot be written here", uri=str(path)) from error


def _entry(name: str, status: os.stat_result) -> Entry:
    return Entry(name=name, size=status.st_size, etag=_etag(status), modified=status.st_mtime)


def _etag(status: os.stat_result) -> str:
    return f"{status.st_mtime_ns:x}-{status.st_size:x}-{status.st_ino:x}"
