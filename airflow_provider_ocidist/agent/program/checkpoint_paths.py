"""Checkpoint paths: a checkpoint that the program writes with ocifs below the job's URI lands in the checkpoint folder.

`sitecustomize` loads it in the program's own processes, and only once they import ocifs.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.storage.checkpoint_names import (
    POINTERS,
    UNFINISHED_ENDINGS,
    WEIGHTS_EXTENSIONS,
    place,
)

if TYPE_CHECKING:
    from ocifs import OCIFileSystem
else:
    # `adopt` adds the class that the program imports.
    OCIFileSystem = object

HIDDEN = ".ocidist-{}.tmp"
"""Name of a file that is still written; no entry of the checkpoint folder with it is a checkpoint."""
BUFFER = 1 << 20
LEFT_BEHIND = 60.0
"""Seconds after which an unfinished file that no process has locked is one of a killed process."""


@dataclass(frozen=True)
class Places:
    """Which file of the checkpoint folder a path of Object Storage means."""

    folder: Path
    uri: str
    """URI below which the job stores its checkpoints, as `oci://bucket@namespace/path`."""
    pattern: str | None = None
    """Regular expression for the whole names of checkpoints, where the job has one."""

    def is_root(self, path: str) -> bool:
        """Whether a path is the URI itself; paths are as ocifs has them, without `oci://`."""
        return self._below(path) == ()

    def file(self, path: str) -> Path | None:
        """Return the file or folder that stands for a path below the URI; None for what is no checkpoint."""
        names = self._below(path)
        if not names or any(name in ("", ".", "..") for name in names):
            return None
        return self.folder.joinpath(*names) if is_checkpoint(names[0], self.pattern) else None

    def _below(self, path: str) -> tuple[str, ...] | None:
        """Return the names that lead from the URI to a path; None where the path is elsewhere."""
        bucket, prefix = _parts(self.uri.partition("://")[2])
        its_bucket, key = _parts(path)
        if not _is_same(bucket, its_bucket) or not f"{key}/".startswith(f"{prefix}/"):
            return None
        rest = key[len(prefix) + 1 :]
        return tuple(rest.split("/")) if rest else ()


def is_checkpoint(name: str, pattern: str | None = None) -> bool:
    """Whether an entry with this name is clearly a checkpoint, or one that is still being written.

    Programs store other things beside their checkpoints, too: a folder whose name has no number may be anything.
    """
    for ending in UNFINISHED_ENDINGS:
        name = name.removesuffix(ending)
    placed = place(name, pattern)
    if placed is None:
        return name in POINTERS
    is_file_of_weights = "." in name and name.rpartition(".")[2].lower() in WEIGHTS_EXTENSIONS
    return pattern is not None or placed.number is not None or is_file_of_weights


def _parts(path: str) -> tuple[str, str]:
    bucket, _, key = path.partition("/")
    return bucket, key.strip("/")


def _is_same(bucket: str, other: str) -> bool:
    """Whether `bucket@namespace` is the same bucket as another; both may lack the namespace."""
    (name, _, namespace), (its_name, _, its_namespace) = bucket.partition("@"), other.partition("@")
    return name == its_name and (namespace == its_namespace or not (namespace and its_namespace))


class CheckpointPaths(OCIFileSystem):
    """ocifs, for which the checkpoints below the job's URI are the files of the checkpoint folder.

    What is not there is looked for in the store. Everything else goes to the store, as before.
    """

    checkpoint_places: Places

    def _open(self, path: str, mode: str = "rb", *args: Any, **kwargs: Any) -> Any:
        file, how = self._file(path), mode.replace("b", "")
        if file is None or how not in ("r", "w", "a") or (how == "r" and not file.is_file()):
            return super()._open(path, mode, *args, **kwargs)
        if how == "r":
            return file.open("rb")
        uri, commits = f"oci://{self._strip_protocol(path)}", bool(kwargs.get("autocommit", True))
        save = begin_save(self.checkpoint_places.folder, file, uri, autocommit=commits)
        if how == "a":
            self._fill(save, path)
        return save

    def _fill(self, save: Save, path: str) -> None:
        try:
            with self.open(path, "rb") as before:
                shutil.copyfileobj(before, save, BUFFER)
        except FileNotFoundError:
            return
        except BaseException:
            save.discard()
            raise

    def info(self, path: str, **kwargs: Any) -> Any:
        file = self._file(path)
        if file is not None and file.exists():
            return _info(self._strip_protocol(path), file)
        if self._is_root(path) and self._listed(path):
            return _folder(self._strip_protocol(path))
        return super().info(path, **kwargs)

    def ls(self, path: str, detail: bool = False, **kwargs: Any) -> list[Any]:
        here = self._listed(path)
        if not here:
            return list(super().ls(path, detail=detail, **kwargs))
        names = {each["name"] for each in here}
        with contextlib.suppress(FileNotFoundError):
            stored = super().ls(path, detail=True, **kwargs)
            here += [each for each in stored if each["name"].rstrip("/") not in names]
        return here if detail else sorted(each["name"] for each in here)

    def copy(self, path1: str, path2: str, *args: Any, **kwargs: Any) -> Any:
        if not self._is_concerned(path1, path2):
            return super().copy(path1, path2, *args, **kwargs)
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        files = self.find(source)
        if not files:
            raise FileNotFoundError(path1)
        for each in files:
            with self.open(each, "rb") as read, self.open(target + each[len(source) :], "wb") as write:
                shutil.copyfileobj(read, write, BUFFER)
        return None

    def rename(self, path1: str, path2: str, **kwargs: Any) -> Any:
        if not self._is_concerned(path1, path2):
            return super().rename(path1, path2, **kwargs)
        source, target = self._file(path1), self._file(path2)
        if source is not None and target is not None and source.exists():
            _move(source, target, self.checkpoint_places.folder)
        else:
            self.copy(path1, path2)
            self.rm(path1, recursive=True)
        return None

    def mv(self, path1: str, path2: str, *args: Any, **kwargs: Any) -> Any:
        if self._is_concerned(path1, path2):
            return self.rename(path1, path2)
        return super().mv(path1, path2, *args, **kwargs)

    def rm(self, path: str, recursive: bool = False, **kwargs: Any) -> Any:
        if not self._remove(path, recursive=recursive):
            return super().rm(path, recursive=recursive, **kwargs)
        # An older file of this name may be in the store; it must not appear again.
        with contextlib.suppress(FileNotFoundError):
            super().rm(path, recursive=recursive, **kwargs)
        return None

    def bulk_delete(self, pathlist: list[str], **kwargs: Any) -> Any:
        here = [path for path in pathlist if self._remove(path)]
        for path in here:
            # As in `rm`.
            with contextlib.suppress(FileNotFoundError):
                super().bulk_delete([path], **kwargs)
        return super().bulk_delete([path for path in pathlist if path not in here], **kwargs)

    def touch(self, path: str, *args: Any, **kwargs: Any) -> Any:
        file = self._file(path)
        if file is None:
            return super().touch(path, *args, **kwargs)
        with self.open(path, "wb") as save:
            save.write(kwargs.get("data") or b"")
        return None

    def mkdir(self, path: str, *args: Any, **kwargs: Any) -> Any:
        file = self._file(path)
        if file is None:
            return super().mkdir(path, *args, **kwargs)
        file.mkdir(parents=True, exist_ok=True)
        return None

    def makedirs(self, path: str, exist_ok: bool = False) -> Any:
        file = self._file(path)
        if file is None:
            return super().makedirs(path, exist_ok=exist_ok)
        file.mkdir(parents=True, exist_ok=True)
        return None

    def rmdir(self, path: str, **kwargs: Any) -> Any:
        file = self._file(path)
        if file is None or not file.is_dir():
            return super().rmdir(path, **kwargs)
        file.rmdir()
        return None

    def _file(self, path: Any) -> Path | None:
        bare = self._strip_protocol(path)
        return self.checkpoint_places.file(bare) if isinstance(bare, str) else None

    def _is_root(self, path: Any) -> bool:
        bare = self._strip_protocol(path)
        return isinstance(bare, str) and self.checkpoint_places.is_root(bare)

    def _is_concerned(self, source: Any, target: Any) -> bool:
        file = self._file(source)
        return self._file(target) is not None or (file is not None and file.exists())

    def _listed(self, path: Any) -> list[dict[str, Any]]:
        """Return the entries of a folder that are in the checkpoint folder; of a file itself."""
        bare = self._strip_protocol(path)
        folder = self.checkpoint_places.folder if self._is_root(path) else self._file(path)
        if folder is not None and folder.is_file():
            return [_info(bare, folder)]
        return list(self._entries(bare, folder)) if folder is not None else []

    def _entries(self, bare: str, folder: Path) -> Iterator[dict[str, Any]]:
        # The program's other processes delete and rename what is in it.
        with contextlib.suppress(OSError):
            for name in sorted(each.name for each in folder.iterdir()):
                path = f"{bare}/{name}"
                with contextlib.suppress(OSError):
                    if self._file(path) is not None:
                        yield _info(path, folder / name)

    def _remove(self, path: Any, *, recursive: bool = False) -> bool:
        """Delete what stands for a path in the checkpoint folder; return whether there was anything."""
        if recursive and self._is_root(path):
            removed = [self._remove(each["name"], recursive=True) for each in self._listed(path)]
            return any(removed)
        file = self._file(path)
        if file is None or not file.exists():
            return False
        if file.is_dir() and recursive:
            shutil.rmtree(file)
        else:
            file.unlink()
        return True


def _move(source: Path, target: Path, folder: Path) -> None:
    """Move a file or folder; into a folder that is there as in the store, where the files of both are one folder then.

    The older one is never seen with a part of the newer: sizes alone would not show that.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    if not (source.is_dir() and target.is_dir()):
        source.replace(target)
        return
    for each in sorted(path for path in target.rglob("*") if path.is_file()):
        kept = source / each.relative_to(target)
        if not kept.exists():
            kept.parent.mkdir(parents=True, exist_ok=True)
            each.rename(kept)
    older = folder / HIDDEN.format(os.urandom(8).hex())
    target.rename(older)
    source.rename(target)
    shutil.rmtree(older, ignore_errors=True)


def _info(path: str, file: Path) -> dict[str, Any]:
    status = file.stat()
    if file.is_dir():
        return _folder(path)
    return {"name": path, "size": status.st_size, "type": "file", "mtime": status.st_mtime}


def _folder(path: str) -> dict[str, Any]:
    return {"name": path, "size": 0, "type": "directory"}


class Save(io.BufferedWriter):
    """A file that gets its name when it is closed, or its transaction succeeds; never if an exception ended it."""

    def __init__(self, raw: io.FileIO, unfinished: Path, final: Path, *, autocommit: bool = True) -> None:
        super().__init__(raw, BUFFER)
        self._autocommit = autocommit
        self._locked: int | None = None
        """Descriptor that keeps the closed file locked until its transaction ends."""
        self._unfinished = unfinished
        self._final = final
        self._handled = sys.exc_info()[1]
        """Exception that was being handled when the save was begun: it did not end it."""
        self._has_failed = False
        self._is_dropped = False
        """Whether the program has dropped the file without closing it."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BaseException:
            self._has_failed = True
            raise

    def commit(self) -> None:
        """Give the file its name: the transaction in which it was written has succeeded."""
        self.close()
        try:
            if not (self._autocommit or self._has_failed):
                self._finish()
        finally:
            self._end()

    def discard(self) -> None:
        """Close the file without giving it its name."""
        self._has_failed = True
        self.close()
        self._end()

    def close(self) -> None:
        if self.closed:
            return
        # fsspec closes the file after an exception, too, and does not say which it was.
        self._has_failed = self._has_failed or sys.is_finalizing() or self._is_unwinding()
        try:
            if not self._autocommit:
                self._locked = os.dup(self.fileno())
            super().close()
            if self._autocommit and not self._has_failed:
                self._finish()
        except BaseException:
            self._has_failed = True
            raise
        finally:
            self._handled = None
            if self._autocommit or self._has_failed:
                self._end()

    def __del__(self) -> None:
        self._is_dropped = True
        with contextlib.suppress(Exception):
            self.close()
            self._end()

    def _is_unwinding(self) -> bool:
        handled = sys.exc_info()[1]
        return handled is not None and handled is not self._handled

    def _finish(self) -> None:
        self._final.parent.mkdir(parents=True, exist_ok=True)
        if self._is_dropped:
            # Perhaps because of an exception. A rename would prove that the file is whole; so its format must.
            shutil.copyfile(self._unfinished, self._final)
        else:
            self._unfinished.replace(self._final)

    def _end(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._unfinished.unlink()
        if self._locked is not None:
            os.close(self._locked)
            self._locked = None


_FOLDERS: set[Path] = set()
"""Folders in which this process has begun a save before."""


def begin_save(folder: Path, final: Path, uri: str, *, autocommit: bool = True) -> Save:
    """Return the file to which a checkpoint is written before it appears in its folder as `final`.

    `autocommit`: whether closing it is enough; else it waits for `Save.commit`.
    """
    if folder not in _FOLDERS:
        _FOLDERS.add(folder)
        folder.mkdir(parents=True, exist_ok=True)
        delete_left_behind(folder)
        print(f"ocidist: {uri} is written to {final}, from where this node uploads it", file=sys.stderr)
    unfinished = folder / HIDDEN.format(os.urandom(8).hex())
    raw = io.FileIO(os.fspath(unfinished), "xb")
    _lock(raw)
    return Save(raw, unfinished, final, autocommit=autocommit)


def delete_left_behind(folder: Path) -> None:
    """Delete the unfinished files of processes that were killed; other nodes may write to the same folder."""
    for path in folder.glob(HIDDEN.format("*")):
        with contextlib.suppress(OSError), path.open("r+b") as file:
            if time.time() - path.stat().st_mtime >= LEFT_BEHIND and _lock(file):
                path.unlink()


def _lock(file: IO[bytes] | io.FileIO) -> bool:
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def adopt(core: Any, places: Places) -> None:
    """Replace the class of ocifs by one that knows the checkpoint folder; its users import it from `core`."""
    theirs = core.OCIFileSystem
    # The same names: a pickle of it is read in processes that have it in the same place.
    own = {name: getattr(theirs, name) for name in ("__module__", "__qualname__", "__doc__")}
    own = {**own, "checkpoint_places": places}
    core.OCIFileSystem = type(theirs)(theirs.__name__, (CheckpointPaths, theirs), own)
