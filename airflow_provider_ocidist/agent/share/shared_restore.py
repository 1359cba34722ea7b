"""SharedRestore: the checkpoint that a gang resumes from, which its nodes read together where that saves something."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from airflow_provider_ocidist.agent.share.exchange import Exchange
from airflow_provider_ocidist.agent.share.shared_store import SharedStore
from airflow_provider_ocidist.agent.share.turns import WORTH_SHARING
from airflow_provider_ocidist.storage.stores.base import Store


class SharedRestore:
    """Makes of a checkpoint's store one that is read together with the other nodes."""

    def __init__(self, exchange: Exchange, cancel: threading.Event, *, number: int) -> None:
        """`number`: after those of the inputs, the same on all nodes."""
        self._exchange = exchange
        self._cancel = cancel
        self._number = number
        self._made: list[SharedStore] = []

    @property
    def borrowed(self) -> int:
        """Bytes that came from other nodes."""
        return sum(each.borrowed_bytes for each in self._made)

    def __call__(self, store: Store, place_of: Callable[[str], Path], size: int) -> Store:
        """Return the store of `size` bytes as the nodes share it, or as it is; `place_of`: where a file will lie."""
        if not self._exchange.others or store.folder or size < WORTH_SHARING:
            return store
        self._exchange.begin(self._cancel)
        shared = SharedStore(store, self._exchange, place_of, self._cancel, number=self._number)
        self._made.append(shared)
        return shared
