"""Checkpoint paths: a checkpoint that the program writes with ocifs below the job's URI lands in the checkpoint folder.

`sitecustomize` loads it in the program's own processes, and only once they import ocifs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_ocidist.agent.program.checkpoint_places import Places
from airflow_provider_ocidist.agent.program.checkpoint_saves import BUFFER, HIDDEN, Save, begin_save

if TYPE_CHECKING:
    from ocifs import OCIFileSystem
else:
    # `adopt` adds the class that the program imports.
    OCIFileSystem = object


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
    if target.is_symlink():
        # The files behind it belong to another name.
        target.unlink()
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


def adopt(core: Any, places: Places) -> None:
    """Replace the class of ocifs by one that knows the checkpoint folder; its users import it from `core`."""
    theirs = core.OCIFileSystem
    # The same names: a pickle of it is read in processes that have it in the same place.
    own = {name: getattr(theirs, name) for name in ("__module__", "__qualname__", "__doc__")}
    own = {**own, "checkpoint_places": places}
    core.OCIFileSystem = type(theirs)(theirs.__name__, (CheckpointPaths, theirs), own)
