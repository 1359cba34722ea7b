"""Shard exchange: the main node asks the others for their parts of a checkpoint, in the run directory; they reply."""

from __future__ import annotations

import json
from typing import TypeVar

from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.errors import StorageError
from airflow_provider_ocidist.model import codec
from airflow_provider_ocidist.model.work_dir import SHARD_BOARD, SHARDS
from airflow_provider_ocidist.storage.checkpoints import ManifestFile
from airflow_provider_ocidist.storage.stores.base import Store

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class ShardRequest:
    """The main node's request to the others: upload your files of this checkpoint."""

    number: int
    name: str
    """Name of the entry in every node's own checkpoint folder."""
    uri: str
    """URI to which all nodes send their files."""
    ranks: tuple[int, ...]
    """Ranks of the nodes that are to answer."""
    written: bool
    """Whether the format shows that every process on every node has written its files."""
    everywhere: bool
    """Whether every node must have files of it: ZeRO has parts on all, without a list of them."""
    leave_out: tuple[str, ...]
    """Files that the main node sends, and that are the same on all nodes."""
    companions: bool = False
    """Whether only companions are requested, which the checkpoint does not require."""


@dataclass(frozen=True, kw_only=True)
class RequestBoard:
    """The main node's current request."""

    request: ShardRequest | None = None
    closed: bool = False
    """Whether there will be no further request."""


@dataclass(frozen=True, kw_only=True)
class ShardReply:
    """A node's answer to a request."""

    files: tuple[ManifestFile, ...] | None = None
    """Files that were uploaded; None: not all yet."""
    fault: str | None = None
    """Reason why the part cannot be sent."""


class ShardExchange:
    """Requests and replies of one launch; those of another mean nothing to it.

    Each call raises OcidistError or OSError where the run directory cannot be read or written.
    """

    def __init__(self, store: Store, launch: int = 0) -> None:
        """`store`: the run directory; `launch`: the number of this launch of the program, from 0."""
        self._store = store
        self._folder = f"{SHARDS}/launch-{launch}" if launch else SHARDS

    def ask(self, request: ShardRequest) -> None:
        self._write(SHARD_BOARD, RequestBoard(request=request))

    def close(self) -> None:
        """Release the other nodes: there will be no further request."""
        self._write(SHARD_BOARD, RequestBoard(closed=True))

    def board(self) -> RequestBoard:
        """Return the main node's board; an empty one before its first request."""
        return self._read(SHARD_BOARD, RequestBoard) or RequestBoard()

    def reply(self, request: ShardRequest, rank: int, reply: ShardReply) -> None:
        self._write(_reply_name(request, rank), reply)

    def reply_of(self, rank: int, request: ShardRequest) -> ShardReply | None:
        """Return a node's reply to a request; None before it has acknowledged it."""
        return self._read(_reply_name(request, rank), ShardReply)

    def _write(self, name: str, value: RequestBoard | ShardReply) -> None:
        self._store.write(f"{self._folder}/{name}", json.dumps(codec.encode(value)).encode())

    def _read(self, name: str, kind: type[T]) -> T | None:
        path = f"{self._folder}/{name}"
        try:
            return codec.read(kind, self._store.read(path))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise StorageError(f"{self._store.uri_of(path)} cannot be read: {error}") from error


def _reply_name(request: ShardRequest, rank: int) -> str:
    return f"{request.number}/{rank}.json"
