"""Storage mounts: folders of this machine that stand for file systems and buckets, shared by all who mount them."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_ocidist.emulator.context import Context
from airflow_provider_ocidist.emulator.data_science.rules import mount_place
from airflow_provider_ocidist.emulator.nodes.machine import NodeError
from airflow_provider_ocidist.emulator.object_storage import checksums
from airflow_provider_ocidist.emulator.object_storage.catalog import Bucket, Catalog, StoredObject

logger = logging.getLogger(__name__)

Details = Mapping[str, Any]
SYNC_INTERVAL_S = 1.0
SETTLED_S = 0.5
"""A file that was written to within this time is not sent yet: somebody is still at it."""


class StorageMounts:
    """All that nodes have mounted. Folders of file systems last as long as the emulator's state."""

    def __init__(self, context: Context, catalog: Catalog) -> None:
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
        """Keep the folders in step with their buckets. Raises NodeError when a bucket is not there."""
        folders: list[Path] = []
        try:
            for mount in mounts:
                folders.append(await self._open(mount))  # noqa: PERF401 - what is open when one fails is closed
            yield
        finally:
            for folder in folders:
                await self._close(folder)

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

    async def _close(self, folder: Path) -> None:
        self._users[folder] -= 1
        mirror = self._mirrors.get(folder)
        if mirror is None:
            return
        await mirror.sync(settled_s=0)
        if self._users[folder] == 0 and folder in self._mirrors:
            del self._mirrors[folder]
            self._tasks.pop(folder).cancel()
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    def reset(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def _prefix(mount: Details) -> str:
    prefix = str(mount.get("prefix") or "").strip("/")
    return f"{prefix}/" if prefix else ""


@dataclass(frozen=True, slots=True)
class FileState:
    """What changes when somebody writes to a file."""

    size: int
    modified_ns: int


class Mirror:
    """A folder that follows a bucket, and is followed by it; where both have changed, the folder wins."""

    def __init__(self, catalog: Catalog, bucket: Bucket, prefix: str, folder: Path) -> None:
        self._catalog = catalog
        self._bucket = bucket
        self._prefix = prefix
        self._folder = folder
        self._known: dict[str, tuple[str, FileState]] = {}
        """What both sides were when they were last the same: etag and file, by name."""
        self._turn = asyncio.Lock()

    async def sync(self, settled_s: float = SETTLED_S) -> None:
        async with self._turn:
            try:
                files = await asyncio.to_thread(self._files)
                for name in {*files, *self._objects(), *self._known}:
                    await self._sync_one(name, files.get(name), settled_s)
            except OSError as error:
                # A node may have removed what is being read; the next look sees it as it is.
                logger.warning("a mounted bucket could not be brought in step: %s", error)

    def _objects(self) -> list[str]:
        names = [
            name[len(self._prefix) :]
            for name in self._catalog.index(self._bucket)
            if name.startswith(self._prefix)
        ]
        # A bucket may hold names that no folder can.
        return [name for name in names if not {"", ".", ".."}.intersection(name.split("/"))]

    def _files(self) -> dict[str, FileState]:
        found = {}
        for path in self._folder.rglob("*"):
            if path.is_file() and not path.is_symlink():
                status = path.stat()
                found[path.relative_to(self._folder).as_posix()] = FileState(
                    status.st_size, status.st_mtime_ns
                )
        return found

    async def _sync_one(self, name: str, file: FileState | None, settled_s: float) -> None:
        stored = self._catalog.find(self._bucket, self._prefix + name)
        etag, known = self._known.get(name, (None, None))
        if file != known:
            if file is None:
                if stored is not None and stored.etag == etag:
                    self._catalog.delete(stored)
                    stored = None
            elif _age(file) >= settled_s:
                await self._send(name)
                return
            else:
                return
        if stored is None:
            self._known.pop(name, None)
            (self._folder / name).unlink(missing_ok=True)
        elif stored.etag != etag or file is None:
            await self._fetch(name, stored)

    async def _send(self, name: str) -> None:
        path = self._folder / name
        before = path.stat()
        received = await self._catalog.files.receive(_pieces(path), checksums.wanted({}))
        stored = StoredObject(
            bucket_id=self._bucket.id,
            name=self._prefix + name,
            files=[received.path.name],
            sizes=[received.size],
            checksums={"content-md5": received.md5, **checksums.headers_of(received.digests)},
            headers={},
            storage_tier=self._bucket.storage_tier,
        )
        self._catalog.put(stored)
        self._known[name] = (stored.etag, FileState(before.st_size, before.st_mtime_ns))

    async def _fetch(self, name: str, stored: StoredObject) -> None:
        path = self._folder / name
        release = self._catalog.files.hold(stored.files)
        try:
            segments = [segment.path for segment in self._catalog.segments(stored)]
            await asyncio.to_thread(_join, segments, path)
        finally:
            release()
        status = path.stat()
        self._known[name] = (stored.etag, FileState(status.st_size, status.st_mtime_ns))


def _age(file: FileState) -> float:
    return time.time() - file.modified_ns / 1e9


async def _pieces(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            yield piece


def _join(segments: Sequence[Path], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.mounting")
    with fresh.open("wb") as target:
        for segment in segments:
            with segment.open("rb") as source:
                shutil.copyfileobj(source, target, 1 << 20)
    fresh.replace(path)
