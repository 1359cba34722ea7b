"""Airflow's task logs in Object Storage: `[logging] remote_base_log_folder = oci://connection@bucket/logs`."""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Callable, Generator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from airflow_provider_ocidist.backports import Self
from airflow_provider_ocidist.errors import OcidistError, StorageError, service_error_in
from airflow_provider_ocidist.provider_info import DEFAULT_CONN_ID

# Airflow imports this module while it starts: imports from Airflow are made on first use.
if TYPE_CHECKING:
    from airflow_provider_ocidist.storage.stores.base import Store

Found = TypeVar("Found")


class OciTaskLogs:
    """A RemoteLogIO of Airflow: uploads the log of a task when its process ends, and reads it back.

    A task that defers has several processes, maybe on several machines; each appends its own lines.

    :param folder: `oci://connection@bucket/logs`, or `oci://bucket@namespace/logs` with a `conn_id`
    :param conn_id: connection of type `oci`; None: the one in `folder`, or else `oci_default`
    :param local_folder: where Airflow writes logs
    :param delete_local: whether to remove a local log after its upload
    """

    processors: tuple[Any, ...] = ()

    def __init__(
        self, folder: str, *, conn_id: str | None, local_folder: str | Path, delete_local: bool = False
    ) -> None:
        self.conn_id, self.uri = connection_and_folder(folder, conn_id)
        self.local_folder = Path(local_folder)
        self.delete_local = delete_local

    @classmethod
    def from_config(cls) -> Self:
        """Return the instance for Airflow's settings; Airflow calls this."""
        from airflow.configuration import conf

        return cls(
            conf.get_mandatory_value("logging", "remote_base_log_folder"),
            conn_id=conf.get("logging", "remote_log_conn_id", fallback=None),
            local_folder=Path(conf.get_mandatory_value("logging", "base_log_folder")).expanduser(),
            delete_local=conf.getboolean("logging", "delete_local_logs", fallback=False),
        )

    def upload(self, path: os.PathLike[str] | str, ti: Any = None) -> None:  # noqa: ARG002 - Airflow's signature
        """Upload one log. Raises OcidistError, which Airflow then logs on the worker."""
        local = self.local_folder / path
        if not local.is_file():
            return
        name = local.relative_to(self.local_folder).as_posix()
        content = local.read_bytes()
        self._use(lambda store: store.write(name, _joined(_sent(store, name), content)))
        if self.delete_local:
            self._delete(local, size=len(content))

    def _delete(self, local: Path, *, size: int) -> None:
        """Delete a log of which so many bytes were uploaded, and its folder if that is empty then.

        Beside it are logs of other attempts and of the trigger: they are still written, or their upload has failed. The
        process of a task that is resumed here may have this log open, and have written nothing yet. The folders above
        stay: another process may be about to make its own in them.
        """
        with contextlib.suppress(OSError):
            if is_open_elsewhere(local) or not _put_aside(local, size):
                return
            local.parent.rmdir()

    def stream(self, relative_path: str, ti: Any) -> tuple[list[str], list[Generator[str]]]:  # noqa: ARG002 - Airflow's
        """Return the places and the lines of the logs of one attempt, including its trigger's."""
        try:
            # Not `attempt=10.log`, which begins with `attempt=1` too.
            names = self._use(lambda store: [entry.name for entry in store.list(relative_path)])
            texts = [self._store.read(name).decode(errors="replace") for name in names]
        except (OcidistError, FileNotFoundError) as error:
            return [f"{self.uri}/{relative_path}: {error}"], []
        return [f"{self.uri}/{name}" for name in names], [_lines(text) for text in texts]

    def read(self, relative_path: str, ti: Any) -> tuple[list[str], list[str] | None]:
        """Return the same as texts, for Airflow before 3.1."""
        sources, streams = self.stream(relative_path, ti)
        return sources, ["\n".join(lines) for lines in streams] or None

    def _use(self, work: Callable[[Store], Found]) -> Found:
        """Return the result of `work`; after a refusal, that of another try with the connection as it is now.

        The processes that show logs and run triggers live on for weeks, in which a key is replaced.
        """
        was_kept = "_store" in vars(self)
        try:
            return work(self._store)
        except StorageError as error:
            refusal = service_error_in(error)
            if not was_kept or refusal is None or refusal.retryable:
                raise
        vars(self).pop("_store", None)
        return work(self._store)

    @cached_property
    def _store(self) -> Store:
        from airflow_provider_ocidist.hooks.oci import OciHook
        from airflow_provider_ocidist.storage.stores.opening import open_store

        return open_store(self.uri, OciHook(self.conn_id).access)


def _sent(store: Store, name: str) -> bytes:
    with contextlib.suppress(FileNotFoundError):
        return store.read(name)
    return b""


def connection_and_folder(folder: str, conn_id: str | None) -> tuple[str, str]:
    """Return the connection and the folder in OCI's form. Raises ValueError for another kind of place.

    The part before the `@` is the connection, unless another connection is named: then it is the bucket.
    """
    url = urlsplit(folder)
    if url.scheme != "oci" or not url.netloc:
        raise ValueError(f"{folder} is not a place for logs: write oci://connection@bucket/logs")
    before, at, after = url.netloc.rpartition("@")
    if at and conn_id in (None, "", before):
        return before, f"oci://{after}{url.path.rstrip('/')}"
    return conn_id or DEFAULT_CONN_ID, f"oci://{url.netloc}{url.path.rstrip('/')}"


def _put_aside(local: Path, size: int) -> bool:
    """Delete a log of this size that nobody else has open; return whether it is deleted."""
    # Under another name, nobody can open it between the look and its end.
    aside = local.with_name(f".{local.name}.{os.getpid()}.sent")
    local.rename(aside)
    if aside.stat().st_size == size and not is_open_elsewhere(aside):
        aside.unlink()
        return True
    # Not by a rename: there may be a new log of its name by now.
    os.link(aside, local)
    aside.unlink()
    return False


def is_open_elsewhere(path: Path) -> bool:
    """Whether another process of this machine has a file open, as far as this one may see."""
    real, own = os.path.realpath(path), f"/proc/{os.getpid()}/"
    for descriptor in glob.iglob("/proc/[0-9]*/fd/*"):  # noqa: PTH207 - Path.glob stops at a process that ends
        with contextlib.suppress(OSError):
            # Not by its status: that of a file on a mount that does not answer takes forever.
            if not descriptor.startswith(own) and str(Path(descriptor).readlink()) == real:
                return True
    return False


def _lines(text: str) -> Generator[str]:
    """Yield the lines; Airflow accepts generators only, no other iterators."""
    # Not `splitlines`: Airflow writes a line separator of Unicode as it is, within a line of JSON.
    lines = text.split("\n")
    yield from (line.removesuffix("\r") for line in (lines if lines[-1] else lines[:-1]))


def _joined(sent: bytes, local: bytes) -> bytes:
    """Return the whole log; the part uploaded from here before is the beginning of the local file, or all of it.

    Other workers may have uploaded theirs before, between, and after it.
    """
    if local.startswith(sent):
        return local
    new = local[_length_sent(sent, local) :]
    return sent + (b"" if sent.endswith(b"\n") or not new else b"\n") + new


def _length_sent(sent: bytes, local: bytes) -> int:
    """Return how much of the local file, in whole lines from its beginning, was uploaded, in its order."""
    at = length = 0
    lines = sent.splitlines()
    for line in local.splitlines(keepends=True):
        found = next((index for index in range(at, len(lines)) if lines[index] == line.rstrip(b"\r\n")), None)
        if found is None:
            break
        at, length = found + 1, length + len(line)
    return length
