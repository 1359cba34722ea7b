"""A folder on this machine, or on a file system that it has mounted."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from airflow_provider_ocidist.errors import StorageError
from airflow_provider_ocidist.storage.locations import finished_name, is_partial_file, safe_name
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
from airflow_provider_ocidist.storage.stores.local_files import (
    READ_SIZE,
    etag_of,
    fsync,
    local_errors,
    refuse_links_above,
)
from airflow_provider_ocidist.storage.stores.local_upload import LocalUpload


class LocalStore(Store):
    """Files of a local folder, which may itself be a symbolic link.

    A link to a file of the folder is listed as a file. What is behind a link to a folder has two names: deleting or
    replacing one of them would lose the other. So only a source lists it, while the link stays inside, and nothing is
    written or deleted behind a link.
    """

    streams = True

    def __init__(self, root: str | Path, *, strict: bool = False, follows: bool = False) -> None:
        """`strict`: refuse to read a file that was touched since it was listed, also one that has only grown.

        `follows`: see `as_source`.
        """
        self.folder: Path = Path(root)
        self.uri = str(root)
        self.strict = strict
        self.follows = follows
        self.skipped: tuple[str, ...] = ()  # links that are not followed, sockets, pipes

    def as_source(self) -> LocalStore:
        return LocalStore(self.uri, strict=self.strict, follows=True)

    def read(self, name: str) -> bytes:
        path = self._path(name)
        with local_errors(path):
            return path.read_bytes()

    def write_if(self, name: str, data: Buffer, etag: str | None) -> bool:
        path = self._own_path(name)
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
        path = self._own_path(name)
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

    def sync(self, names: Sequence[str]) -> None:
        paths = [self._path(name) for name in names]
        # A file is found again by the folders above it.
        folders = {folder for path in paths for folder in path.parents if folder.is_relative_to(self.folder)}
        with local_errors(self.folder):
            for path in [*paths, *folders]:
                fsync(path)

    def stat(self, name: str) -> Entry:
        path = self._path(name)
        with local_errors(path):
            status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise FileNotFoundError(errno.ENOENT, "not a file", str(path))
        return _entry(name, status, self._behind(path) if path.is_symlink() else None)

    def upload(self, name: str, size: int | None, part_size: int, origin: Origin | None = None) -> Upload:  # noqa: ARG002 - contract
        return LocalUpload(self._own_path(name), origin)

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
            elif child.name.startswith(start) and child.is_dir() and not child.is_symlink():
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

    def _own_path(self, name: str) -> Path:
        """Return where a file is written or deleted. Raises StorageError for what would lie behind a link."""
        path = self._path(name)
        with local_errors(path):
            refuse_links_above(self.folder, name)
        return path

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
            is_link = child.is_symlink()
            if is_link and (not self._inside(child.path) or (child.is_dir() and not self.follows)):
                skipped.add(name)
            elif child.is_dir():
                yield from self._walk(Path(child.path), f"{name}/", above | {real}, skipped)
            elif child.is_file():
                with contextlib.suppress(FileNotFoundError):  # files come and go while we look
                    yield _entry(name, child.stat(), self._behind(child.path) if is_link else None)
            else:
                skipped.add(name)

    def _inside(self, link: str) -> bool:
        root = os.path.realpath(self.folder)
        target = os.path.realpath(link)
        return Path(target).exists() and os.path.commonpath([root, target]) == root

    def _behind(self, link: str | Path) -> str:
        return os.path.relpath(os.path.realpath(link), os.path.realpath(self.folder))


class LocalDownload(Download):
    """Ranges of a local file."""

    def __init__(self, path: Path, entry: Entry, part_size: int, *, strict: bool) -> None:
        self.path = path
        self.entry = entry
        self.part_size = part_size
        self.strict = strict
        self._first: dict[int, os.stat_result] = {}
        """Status of the file when it was first opened, under 0: what several threads find is set once."""
        self._read: dict[int, tuple[int, int]] = {}
        """Count of the bytes that were read from an offset on, and their checksum; none where no change is allowed."""

    def pieces(self, offset: int, length: int) -> Iterator[bytes]:
        with local_errors(self.path), self.path.open("rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            self._check(status)
            self._first.setdefault(0, status)
            begin, checksum = offset, 0
            while length > 0:
                piece = os.pread(file.fileno(), min(length, READ_SIZE), offset)
                if not piece:
                    raise not_the_promised_size(str(self.path), self.entry.size, offset)
                offset, length = offset + len(piece), length - len(piece)
                if not self.strict:
                    checksum = zlib.crc32(piece, checksum)
                    self._read[begin] = offset - begin, checksum
                yield piece

    def finish(self) -> None:
        with local_errors(self.path):
            status = self.path.stat()
        self._check(status)
        before = self._first.get(0, status)
        # Its parts would be of two contents. What is appended, as to a log, leaves what was there as it was.
        if not (
            _is_as_before(before, status) or (_has_grown(before, status) and self._was_only_appended_to())
        ):
            raise self._changed()

    def _was_only_appended_to(self) -> bool:
        """Whether a file that has grown still holds what was read of it: else it was written again, and longer."""
        with local_errors(self.path), self.path.open("rb", buffering=0) as file:
            return all(
                _checksum_of(file.fileno(), offset, length) == checksum
                for offset, (length, checksum) in self._read.items()
            )

    def _check(self, status: os.stat_result) -> None:
        if self.strict and etag_of(status) != self.entry.etag:
            raise self._changed()

    def _changed(self) -> StorageError:
        return StorageError(f"{self.path} changed while it was read", uri=str(self.path))


def _is_as_before(before: os.stat_result, now: os.stat_result) -> bool:
    # Not the inode: some mounts give a file another one when they have forgotten it.
    return (before.st_mtime_ns, before.st_size) == (now.st_mtime_ns, now.st_size)


def _has_grown(before: os.stat_result, now: os.stat_result) -> bool:
    return now.st_ino == before.st_ino and now.st_size > before.st_size


def _checksum_of(descriptor: int, offset: int, length: int) -> int | None:
    """Return the checksum of a range of an open file; None where it has become shorter."""
    checksum, end = 0, offset + length
    while offset < end:
        piece = os.pread(descriptor, min(end - offset, READ_SIZE), offset)
        if not piece:
            return None
        checksum, offset = zlib.crc32(piece, checksum), offset + len(piece)
    return checksum


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


def _entry(name: str, status: os.stat_result, behind: str | None = None) -> Entry:
    return Entry(
        name=name, size=status.st_size, etag=etag_of(status), modified=status.st_mtime, behind=behind
    )
