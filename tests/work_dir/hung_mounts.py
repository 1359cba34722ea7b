"""A place whose file system does not answer, as a mount whose server is gone: its calls do not return until it does."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from airflow_provider_ocidist.storage.stores.base import Buffer, Entry, OpenUpload
from airflow_provider_ocidist.storage.stores.local import LocalStore


class HungMount:
    """Hangs the calls of its stores in the kernel, which waits for somebody to open the other end of a pipe."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._pipe = folder / "hangs"
        os.mkfifo(self._pipe)
        self._writer: int | None = None
        self.calls: list[str] = []

    def store(self, root: str) -> LocalStore:
        return _StoreThere(root, self)

    def wait(self, call: str) -> None:
        self.calls.append(call)
        # Blocks in open(2) while nobody writes.
        os.close(os.open(self._pipe, os.O_RDONLY))

    def answer(self) -> None:
        """Answer all calls from now on, also those that wait."""
        if self._writer is None:
            self._writer = os.open(self._pipe, os.O_RDWR)

    def close(self) -> None:
        self.answer()
        if self._writer is not None:
            os.close(self._writer)


class _StoreThere(LocalStore):
    def __init__(self, root: str, mount: HungMount) -> None:
        super().__init__(root)
        self._mount = mount

    def read(self, name: str) -> bytes:
        self._mount.wait(f"read {name}")
        return super().read(name)

    def write(self, name: str, data: Buffer) -> str | None:
        self._mount.wait(f"write {name}")
        return super().write(name, data)

    def write_if(self, name: str, data: Buffer, etag: str | None) -> bool:
        self._mount.wait(f"write_if {name}")
        return super().write_if(name, data, etag)

    def list(self, prefix: str = "") -> list[Entry]:
        self._mount.wait(f"list {prefix}")
        return super().list(prefix)

    def sync(self, names: Sequence[str]) -> None:
        self._mount.wait(f"sync {names}")
        super().sync(names)

    def open_uploads(self, prefix: str = "") -> Sequence[OpenUpload]:
        self._mount.wait(f"open_uploads {prefix}")
        return super().open_uploads(prefix)

    def abort_upload(self, upload: OpenUpload) -> None:
        self._mount.wait(f"abort_upload {upload.name}")
        super().abort_upload(upload)

    def stat(self, name: str) -> Entry:
        self._mount.wait(f"stat {name}")
        return super().stat(name)

    def delete(self, name: str) -> None:
        self._mount.wait(f"delete {name}")
        super().delete(name)


def hanging(mounts: Sequence[tuple[Path, HungMount]], uri: str) -> LocalStore | None:
    """Return the store at a URI that one of these mounts holds; None: none does."""
    return next((mount.store(uri) for folder, mount in mounts if uri.startswith(str(folder))), None)
