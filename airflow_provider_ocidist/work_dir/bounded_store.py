"""BoundedStore: small files at a place whose calls may never return, such as a mount whose server is gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from airflow_provider_ocidist.errors import StorageError
from airflow_provider_ocidist.storage.locations import shown
from airflow_provider_ocidist.storage.stores.base import Buffer, Entry, OpenUpload, Store
from airflow_provider_ocidist.storage.stores.forwarding import ForwardingStore
from airflow_provider_ocidist.work_dir.parallel import Pending

ANSWERS_WITHIN = 30.0
"""Seconds within which a place has to answer; no request to Object Storage waits longer by much for one answer."""
URGENT_WITHIN = 5.0
"""Seconds for the requests of a cancel."""
AMID_SILENCE = 3.0
"""Seconds while another call to the same place is left open: it has been waited for already."""
SLOWEST = 1_000_000
"""Bytes that a place takes in a second, at least: an archive of code has more time than a report."""
MOST_LEFT = 4
"""Most calls to one place that are left open, each of which keeps a thread; then further ones fail at once."""
ASKED_AGAIN = 60.0
"""Seconds after which one more call is made all the same, twice as many each time that it is not answered either: a
mount that is made anew frees no call to the one before it."""

Found = TypeVar("Found")


class UnansweredCalls:
    """The calls to one place that nobody waits for any more. Safe to share between threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._calls: list[tuple[str, Pending[Any]]] = []
        """Calls, each with the URI of its store."""
        self._pause, self._asked_again_at = ASKED_AGAIN, 0.0

    def answer(self, uri: str, work: Callable[[], Found], usual: float, size: int = 0) -> Found:
        """Return the result of a call to a store; it is waited for `usual` seconds at most. Raises StorageError.

        `size`: bytes that are sent with it, for which it has more time.
        """
        patience = self._patience(uri, usual)
        if patience == 0.0:
            raise _silent(uri, "has not answered an earlier request yet")
        patience += size / SLOWEST
        call = Pending(work)
        if not call.is_made(patience):
            self._leave(uri, call)
            raise _silent(uri, f"has not answered for {patience:.0f} s")
        self._answered(uri)
        return call.result()

    def _patience(self, uri: str, usual: float) -> float:
        """Return for how many seconds a further call to a store is waited for; 0: it is not made."""
        with self._lock:
            self._calls = [(of, call) for of, call in self._calls if not call.is_made(0.0)]
            if not self._calls:
                return usual
            if len(self._calls) >= MOST_LEFT or any(of == uri for of, _ in self._calls):
                now = self._clock()
                if now < self._asked_again_at:
                    return 0.0
                # One asks, for all.
                self._pause *= 2
                self._asked_again_at = now + self._pause
            return min(usual, AMID_SILENCE)

    def _leave(self, uri: str, call: Pending[Any]) -> None:
        with self._lock:
            if not self._calls:
                self._pause = ASKED_AGAIN
                self._asked_again_at = self._clock() + self._pause
            self._calls.append((uri, call))

    def _answered(self, uri: str) -> None:
        """Forget the calls to a store that answers again: the next to another may be answered, too."""
        with self._lock:
            others = [(of, call) for of, call in self._calls if of != uri]
            if len(others) < len(self._calls):
                self._calls = others
                self._pause, self._asked_again_at = ASKED_AGAIN, self._clock()


def bounded(
    store: Store, left_open: UnansweredCalls, *, urgent: bool = False, within: float | None = None
) -> Store:
    """Return a store whose calls end; those to Object Storage have limits of their own. See `BoundedStore`."""
    if store.uri.startswith("oci://"):
        return store
    return BoundedStore(store, left_open, urgent=urgent, within=within)


def usual_patience(*, urgent: bool) -> float:
    """Return the seconds within which a place has to answer a request."""
    return URGENT_WITHIN if urgent else ANSWERS_WITHIN


class BoundedStore(ForwardingStore):
    """A store whose calls raise StorageError where the place does not answer in time.

    No call into a file system, or into the driver of another place, can be interrupted. So each is made in a thread of
    its own, which is left to itself: what it writes may arrive late, as after any request that was not answered. Until
    it returns, few further calls are made to the same store. Large files are read and written without a limit.
    """

    def __init__(
        self,
        store: Store,
        left_open: UnansweredCalls,
        *,
        urgent: bool = False,
        within: float | None = None,
    ) -> None:
        """`left_open` is shared by all stores of one place. `within`: seconds for a call, if not the usual ones."""
        super().__init__(store)
        self._left_open = left_open
        self._urgent, self._within = urgent, within

    def read(self, name: str) -> bytes:
        return self._bounded(lambda: self._store.read(name))

    def write(self, name: str, data: Buffer) -> str | None:
        return self._bounded(lambda: self._store.write(name, data), len(data))

    def write_if(self, name: str, data: Buffer, etag: str | None) -> bool:
        return self._bounded(lambda: self._store.write_if(name, data, etag), len(data))

    def list(self, prefix: str = "") -> list[Entry]:
        return self._bounded(lambda: ForwardingStore.list(self, prefix))

    def list_each(self, prefixes: Sequence[str]) -> Mapping[str, Sequence[Entry]]:
        return self._bounded(lambda: self._store.list_each(prefixes))

    def delete(self, name: str) -> None:
        self._bounded(lambda: self._store.delete(name))

    def sync(self, names: Sequence[str]) -> None:
        self._bounded(lambda: self._store.sync(names))

    def stat(self, name: str) -> Entry:
        return self._bounded(lambda: self._store.stat(name))

    def exists(self, name: str) -> bool:
        return self._bounded(lambda: self._store.exists(name))

    def open_uploads(self, prefix: str = "") -> Sequence[OpenUpload]:
        return self._bounded(lambda: self._store.open_uploads(prefix))

    def abort_upload(self, upload: OpenUpload) -> None:
        self._bounded(lambda: self._store.abort_upload(upload))

    def _bounded(self, work: Callable[[], Found], size: int = 0) -> Found:
        """Return the result of a call, with which `size` bytes are sent. Raises StorageError."""
        usual = usual_patience(urgent=self._urgent) if self._within is None else self._within
        return self._left_open.answer(self.uri, work, usual, size)


def _silent(uri: str, what: str) -> StorageError:
    why = "is it on a mount whose server is gone?"
    return StorageError(f"{shown(uri)} {what}: {why}", uri=uri, retryable=True)
