"""A folder on this machine, or on a file system that it has mounted."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from airflow_provider_ocidist.errors import StorageError
from airflow_provider_ocidist.storage.locations import (
    finished_name,
    is_partial_file,
    safe_name,
    unfinished_name,
)
from airflow_provider_ocidist.storage.stores.base import (
    Buffer,
    Checksum,
    Download,
    Entry,
    OpenUpload,
    Origin,
    Store,
    Upload,
    not_the_promised_size,
)
from airflow_provider_ocidist.storage.stores.checksums import in_text, md5_of
from airflow_provider_ocidist.storage.stores.journal import Journal, places_digest, this_boot

_READ = 256 << 10


class LocalStore(Store):
    """Files of a local folder. Symbolic links are followed while they stay inside it."""

    streams = True

    def __init__(self, root: str | Path, *, strict: bool = False) -> None:
        """`strict`: refuse to read a file that was touched since it was listed."""
        self.folder: Path = Path(root)
        self.uri = str(root)
        self.strict = strict
        self.skipped: tuple[str, ...] = ()  # links that lead outside or nowhere, sockets, pipes

    def read(self, name: str) -> bytes:
        path = self._path(name)
        with local_errors(path):
            return path.read_bytes()

    def write_if(self, name: str, data: Buffer, etag: str | None) -> bool:
        path = self._path(name)
        with local_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with _locked(path.parent):
                return super().write_if(name, data, etag)

    def list(self, prefix: str = "") -> list[Entry]:
        skipped: set[str] = set()
        folder = prefix.rpartition("/")[0]
        found: list[Entry] = []
        with local_errors(self.folder):
            walk = self._walk(self.folder / folder, f"{folder}/" if folder else "", frozenset(), skipped)
            found.extend(entry for entry in walk if entry.name.startswith(prefix))
        self.skipped = tuple(sorted(skipped))
        return sorted(found, key=lambda entry: entry.name)

    def delete(self, name: str) -> None:
        path = self._path(name)
        with local_errors(path):
            path.unlink(missing_ok=True)
        # Object stores have no folders: an empty one would look like a leftover.
        for parent in path.parents:
            if parent == self.folder:
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

    def upload(self, name: str, size: int | None, part_size: int, origin: Origin | None = None) -> Upload:  # noqa: ARG002 - contract
        return LocalUpload(self._path(name), origin)

    def open_uploads(self, prefix: str = "") -> Sequence[OpenUpload]:
        found = []
        with local_errors(self.folder):
            for part in self._unfinished(prefix):
                with contextlib.suppress(FileNotFoundError):  # it has just arrived
                    name = part.relative_to(self.folder).as_posix()
                    written = part.stat().st_mtime
                    found.append(OpenUpload(name=finished_name(name), id=name, begun_at=written))
        return found

    def _unfinished(self, prefix: str) -> Iterator[Path]:
        folder, _, start = prefix.rpartition("/")
        for child in (self.folder / folder).glob("*"):
            if is_partial_file(child.name):
                yield from [child] if finished_name(child.name).startswith(start) else []
            elif child.name.startswith(start) and child.is_dir():
                yield from (part for part in child.rglob(".*.part") if is_partial_file(part.name))

    def abort_upload(self, upload: OpenUpload) -> None:
        self.delete(upload.id)

    def download(self, entry: Entry, part_size: int) -> Download:
        return LocalDownload(self._path(entry.name), entry, part_size, strict=self.strict)

    def checksum_by_reading(self, entry: Entry, part_size: int | None) -> Checksum:
        size = entry.size or 0
        step = part_size or max(size, 1)
        download = self.download(entry, step)
        digests = [
            md5_of(download.pieces(offset, min(step, size - offset)))
            for offset in range(0, max(size, 1), step)
        ]
        return Checksum(value=in_text(digests, whole=part_size is None), part_size=part_size)

    def _path(self, name: str) -> Path:
        return self.folder / safe_name(name)

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
            if is_partial_file(child.name):
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
        root = os.path.realpath(self.folder)
        target = os.path.realpath(link)
        return Path(target).exists() and os.path.commonpath([root, target]) == root


class LocalDownload(Download):
    """Ranges of a local file."""

    def __init__(self, path: Path, entry: Entry, part_size: int, *, strict: bool) -> None:
        self.path = path
        self.entry = entry
        self.part_size = part_size
        self.strict = strict

    def pieces(self, offset: int, length: int) -> Iterator[bytes]:
        with local_errors(self.path), self.path.open("rb", buffering=0) as file:
            self._check(os.fstat(file.fileno()))
            while length > 0:
                piece = os.pread(file.fileno(), min(length, _READ), offset)
                if not piece:
                    raise not_the_promised_size(str(self.path), self.entry.size, offset)
                yield piece
                offset, length = offset + len(piece), length - len(piece)

    def finish(self) -> None:
        with local_errors(self.path):
            self._check(self.path.stat())

    def _check(self, status: os.stat_result) -> None:
        if self.strict and _etag(status) != self.entry.etag:
            raise StorageError(f"{self.path} changed while it was read", uri=str(self.path))


class LocalUpload(Upload):
    """A file that is written beside its place and moved there when it is whole.

    With an origin, a later attempt finds the name beside the place again, and a journal next to it records
    what was written. Two uploads cannot share them; the second has none.
    """

    streams = True

    def __init__(self, path: Path, origin: Origin | None = None) -> None:
        self.path = path
        self.journal: Journal | None = None
        self.written: list[tuple[int, int]] = []
        with local_errors(path):
            if origin:
                self._resume(origin)
            if self.journal is None:
                self.part = path.with_name(unfinished_name(path.name))
                self.descriptor = self._create(os.O_EXCL)

    def _resume(self, origin: Origin) -> None:
        key = places_digest(origin.uri, str(self.path))
        # After a restart it is unknown which bytes had reached the disk.
        subject = {"from": origin.uri, "etag": origin.etag, "size": origin.size, "boot": this_boot()}
        journal = Journal.open(
            self.path.with_name(unfinished_name(f"{self.path.name[:32]}.journal", key)), subject
        )
        if journal is None:
            return
        self.part = self.path.with_name(unfinished_name(self.path.name, key))
        try:
            self._open_part(journal)
        except BaseException:
            journal.remove()
            raise
        self.journal = journal

    def _open_part(self, journal: Journal) -> None:
        """Open the partial file, or start over where it does not match the journal."""
        self.descriptor = self._create(0)
        self.written = merged_ranges(journal.records)
        if self.written and os.fstat(self.descriptor).st_size < self.written[-1][1]:
            self.written = []
            journal.forget()
        if not self.written:
            os.ftruncate(self.descriptor, 0)

    def _create(self, more: int) -> int:
        # The folder may vanish between the two calls, when someone deletes the last file in it.
        for _ in range(3):
            with contextlib.suppress(FileNotFoundError):
                return os.open(self.part, os.O_RDWR | os.O_CREAT | more, 0o666)
            self.part.parent.mkdir(parents=True, exist_ok=True)
        raise StorageError(f"cannot create {self.part}: its folder keeps disappearing", uri=str(self.path))

    @property
    def written_to(self) -> Path:
        return self.part

    def missing(self, offset: int, length: int) -> Sequence[tuple[int, int]]:
        return gaps(self.written, offset, length)

    def write(self, index: int, offset: int, data: Buffer) -> None:  # noqa: ARG002 - contract
        with local_errors(self.path):
            view, start = memoryview(data), offset
            while view:
                count = os.pwrite(self.descriptor, view, start)
                view, start = view[count:], start + count
        if self.journal:
            self.journal.add([offset, offset + len(data)])

    def read_back(self, offset: int, length: int) -> Iterator[bytes]:
        with local_errors(self.path):
            while length > 0 and (piece := os.pread(self.descriptor, min(length, _READ), offset)):
                yield piece
                offset, length = offset + len(piece), length - len(piece)

    def commit(self) -> str:
        with local_errors(self.path):
            status = os.fstat(self.descriptor)
            descriptor, self.descriptor = self.descriptor, -1
            os.close(descriptor)  # network file systems report a full disk here
            if self._is_device():
                raise StorageError(f"{self.path}: is not a file, so no file replaces it", uri=str(self.path))
            self.part.replace(self.path)
        if self.journal:
            self.journal.remove()
        return _etag(status)

    def _is_device(self) -> bool:
        """Whether a device, socket or pipe is there: renaming a file to its name would delete it."""
        try:
            mode = self.path.lstat().st_mode
        except FileNotFoundError:
            return False
        return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode))

    def suspend(self) -> None:
        if self.journal is None:
            self.abort()
            return
        self._close()
        self.journal.close()

    def abort(self) -> None:
        self._close()
        with contextlib.suppress(OSError):
            self.part.unlink(missing_ok=True)
        if self.journal:
            self.journal.remove()

    def _close(self) -> None:
        with contextlib.suppress(OSError):
            if self.descriptor >= 0:
                os.close(self.descriptor)
        self.descriptor = -1


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a folder against others that call this, where its file system can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def merged_ranges(ranges: Iterable[Sequence[int]]) -> list[tuple[int, int]]:
    """Return ranges, from start to end, as few as they can be, in order."""
    found: list[tuple[int, int]] = []
    for start, end in sorted((int(start), int(end)) for start, end in ranges):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def gaps(written: Sequence[tuple[int, int]], offset: int, length: int) -> list[tuple[int, int]]:
    """Return offsets and lengths of what is not written between two places."""
    found, place, end = [], offset, offset + length
    for start, stop in written:
        if stop <= place:
            continue
        if start >= end:
            break
        if start > place:
            found.append((place, start - place))
        place = stop
    if place < end:
        found.append((place, end - place))
    return found


_FULL = {
    errno.ENOSPC: "no space left on the file system",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file is larger than this process or file system allows",
}


@contextmanager
def local_errors(path: Path) -> Iterator[None]:
    """Turn the operating system's errors into one StorageError; absence stays FileNotFoundError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        reason = _FULL.get(error.errno or 0) or (error.strerror or str(error)).lower()
        raise StorageError(f"{path}: {reason}", uri=str(path)) from error
    except UnicodeEncodeError as error:
        raise StorageError(f"{str(path)!r}: its name cannot be written here", uri=str(path)) from error


def _entry(name: str, status: os.stat_result) -> Entry:
    return Entry(name=name, size=status.st_size, etag=_etag(status), modified=status.st_mtime)


def _etag(status: os.stat_result) -> str:
    return f"{status.st_mtime_ns:x}-{status.st_size:x}-{status.st_ino:x}"
