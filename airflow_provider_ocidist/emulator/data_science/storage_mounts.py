"""Storage mounts: folders of this machine that stand for file systems and buckets, shared by all who mount them."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

from airflow_provider_ocidist.emulator import trees
from airflow_provider_ocidist.emulator.context import Context
from airflow_provider_ocidist.emulator.data_science.mount_folder import FileState, MountFolder, unheld
from airflow_provider_ocidist.emulator.data_science.rules import mount_place
from airflow_provider_ocidist.emulator.errors import ApiError
from airflow_provider_ocidist.emulator.nodes.machine import NodeError
from airflow_provider_ocidist.emulator.object_storage import checksums
from airflow_provider_ocidist.emulator.object_storage.catalog import Bucket, BucketCatalog, StoredObject
from airflow_provider_ocidist.emulator.object_storage.headers import checked_name

logger = logging.getLogger(__name__)

Details = Mapping[str, Any]
SYNC_INTERVAL_S = 1.0
SETTLED_S = 0.5
"""Seconds after its last write in which a file is not sent, as the write may go on."""
WHOLE = "."
"""Name that stands for the whole folder."""


class StorageMounts:
    """All that nodes have mounted. Folders of file systems last as long as the emulator's state."""

    def __init__(self, context: Context, catalog: BucketCatalog) -> None:
        self._namespace = context.ids.namespace
        self._catalog = catalog
        self._folder = context.folder / "mounts"
        self._users: Counter[Path] = Counter()
        self._mirrors: dict[Path, Mirror] = {}
        self._tasks: dict[Path, asyncio.Task[None]] = {}

    def folders(self, mounts: Sequence[Details]) -> dict[str, Path]:
        """Return the folder that stands for each mount, by the place where nodes see it."""
        return {str(mount_place(mount)): self._folder_of(mount) for mount in mounts}

    def _folder_of(self, mount: Details) -> Path:
        is_file_system = mount["storageType"] == "FILE_STORAGE"
        names = ("exportId",) if is_file_system else ("namespace", "bucket", "prefix")
        identity = "\0".join(
            [mount["storageType"], *(str(mount.get(name) or "").strip("/") for name in names)]
        )
        return self._folder / hashlib.sha256(identity.encode()).hexdigest()[:16]

    @asynccontextmanager
    async def in_use(self, mounts: Sequence[Details]) -> AsyncIterator[None]:
        """Keep the folders in step with their buckets.

        Raises NodeError when a bucket is not there, and at the end when files that nodes left in it cannot be stored.
        """
        folders: list[Path] = []
        unsent: list[str] = []
        try:
            for mount in mounts:
                folders.append(await self._open(mount))  # noqa: PERF401 - what is open when one fails is closed
            yield
        finally:
            for folder in folders:
                unsent += await self._close(folder)
        if unsent:
            raise NodeError(f"Job run failed: {'; '.join(unsent[:3])}.")

    def problems(self, mounts: Sequence[Details]) -> list[str]:
        """Return what nodes do not find in their mounts although the buckets have it, a line each."""
        mirrors = [
            self._mirrors[folder] for folder in map(self._folder_of, mounts) if folder in self._mirrors
        ]
        return [
            mirror.described(*problem) for mirror in mirrors for problem in sorted(mirror.problems.items())
        ]

    async def _open(self, mount: Details) -> Path:
        folder = self._folder_of(mount)
        folder.mkdir(parents=True, exist_ok=True)
        self._users[folder] += 1
        if mount["storageType"] == "OBJECT_STORAGE":
            if folder not in self._mirrors:
                self._mirrors[folder] = Mirror(
                    self._catalog, self._bucket(mount, folder), _prefix(mount), folder
                )
                self._tasks[folder] = asyncio.create_task(self._keep_in_step(self._mirrors[folder]))
            await self._mirrors[folder].sync()
        return folder

    def _bucket(self, mount: Details, folder: Path) -> Bucket:
        bucket = self._catalog.find_bucket(mount["bucket"]) if mount["namespace"] == self._namespace else None
        if bucket is None:
            self._users[folder] -= 1
            raise NodeError(
                f"Job run could not start: the bucket {mount['bucket']} of the namespace {mount['namespace']},"
                f" to be mounted at {mount_place(mount)}, was not found."
            )
        return bucket

    async def _keep_in_step(self, mirror: Mirror) -> None:
        while True:
            await asyncio.sleep(SYNC_INTERVAL_S)
            await mirror.sync()

    async def _close(self, folder: Path) -> list[str]:
        """Bring a folder in step for the last time; return what of it could not be stored, a line each."""
        mirror = self._mirrors.get(folder)
        if mirror is not None:
            await mirror.sync(settled_s=0)
        # Only now: until all of its files are stored, no other node may remove the folder.
        self._users[folder] -= 1
        if mirror is None:
            return []
        unsent = [mirror.described(*problem) for problem in sorted(mirror.unsent.items())]
        if self._users[folder] == 0:
            del self._mirrors[folder]
            self._tasks.pop(folder).cancel()
            await asyncio.to_thread(trees.remove, _set_aside(folder))
        return unsent

    def reset(self) -> None:
        trees.remove(self._folder)


def _set_aside(folder: Path) -> Path:
    """Free the folder's name at once, so that the next node that mounts the bucket need not wait and loses nothing."""
    left = folder.with_name(f"{folder.name}-{uuid4().hex}")
    with suppress(FileNotFoundError):  # a program has removed it
        folder.rename(left)
    return left


def _prefix(mount: Details) -> str:
    prefix = str(mount.get("prefix") or "").strip("/")
    return f"{prefix}/" if prefix else ""


class Mirror:
    """A folder and a bucket, synchronized both ways; where both have changed, the folder wins."""

    def __init__(self, catalog: BucketCatalog, bucket: Bucket, prefix: str, folder: Path) -> None:
        self._catalog = catalog
        self._bucket = bucket
        self._prefix = prefix
        self._folder = MountFolder(folder)
        self._known: dict[str, tuple[str, FileState]] = {}
        """State of both sides when they were last the same: etag and file, by name."""
        self._turn = asyncio.Lock()
        self.problems: dict[str, str] = {}
        """Reasons why objects are not in the folder, or files not in the bucket, by name."""

    async def sync(self, settled_s: float = SETTLED_S) -> None:
        """Bring both sides in step. A failure of one name is logged, and does not stop the others."""
        async with self._turn:
            try:
                files = await asyncio.to_thread(self._folder.files)
            except OSError as error:
                self._note({WHOLE: f"it cannot be read: {_reason(error)}"})
                return
            if not self._catalog.has(self._bucket):
                self._note({WHOLE: "the bucket was deleted"})
                return
            objects = self._objects()
            problems = unheld(objects)
            for name in {*files, *objects, *self._known} - problems.keys():
                try:
                    await self._sync_one(name, files.get(name), settled_s)
                except FileNotFoundError:
                    pass  # the node has removed it meanwhile; the next pass sees its new state
                except (OSError, UnicodeError, ApiError) as error:
                    problems[name] = _reason(error)
            self._note(problems)

    def _note(self, problems: dict[str, str]) -> None:
        for name, reason in problems.items():
            if self.problems.get(name) != reason:
                logger.warning("%s", self.described(name, reason))
        self.problems = problems

    def described(self, name: str, reason: str) -> str:
        """Return a line about one of the problems."""
        shown = f"{self._prefix}{name}".encode(errors="backslashreplace").decode()
        return f"{shown or WHOLE} of the bucket {self._bucket.name} is not in step with its mount: {reason}"

    @property
    def unsent(self) -> dict[str, str]:
        """The problems of files that a node wrote: their content is nowhere else."""
        if WHOLE in self.problems:
            return self.problems
        files = self._folder.files()
        return {
            name: reason
            for name, reason in self.problems.items()
            if name in files and files[name] != self._known.get(name, (None, None))[1]
        }

    def _objects(self) -> list[str]:
        index = self._catalog.index(self._bucket)
        return [name[len(self._prefix) :] for name in index if name.startswith(self._prefix)]

    async def _sync_one(self, name: str, file: FileState | None, settled_s: float) -> None:
        stored = self._catalog.find(self._bucket, self._prefix + name)
        etag, known = self._known.get(name, (None, None))
        if file != known:
            if file is None:
                if stored is not None and stored.etag == etag:
                    self._catalog.delete(stored)
                    stored = None
            elif _age(file) >= settled_s:
                await self._send(name, file)
                return
            else:
                return
        if stored is None:
            self._known.pop(name, None)
            self._folder.remove(name)
        elif stored.etag != etag or file is None:
            await self._fetch(name, stored)

    async def _send(self, name: str, state: FileState) -> None:
        object_name = checked_name(self._prefix + name)
        with self._folder.open(name) as file:
            received = await self._catalog.files.receive(_pieces(file), checksums.wanted({}))
        stored = StoredObject(
            bucket_id=self._bucket.id,
            name=object_name,
            files=[received.path.name],
            sizes=[received.size],
            checksums={"content-md5": received.md5, **checksums.headers_of(received.digests)},
            headers={},
            storage_tier=self._bucket.storage_tier,
        )
        self._catalog.put(stored)
        self._known[name] = (stored.etag, state)

    async def _fetch(self, name: str, stored: StoredObject) -> None:
        release = self._catalog.files.hold(stored.files)
        try:
            segments = [segment.path for segment in self._catalog.segments(stored)]
            state = await asyncio.to_thread(self._folder.write, name, segments)
        finally:
            release()
        self._known[name] = (stored.etag, state)


def _reason(error: OSError | UnicodeError | ApiError) -> str:
    if isinstance(error, ApiError):
        return error.message
    if isinstance(error, UnicodeError):
        return "its name is not UTF-8"
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return "a symbolic link or a file stands where its folder should be"
    return error.strerror or str(error)


def _age(file: FileState) -> float:
    return time.time() - file.modified_ns / 1e9


async def _pieces(file: BinaryIO) -> AsyncIterator[bytes]:
    while piece := file.read(1 << 20):
        yield piece
