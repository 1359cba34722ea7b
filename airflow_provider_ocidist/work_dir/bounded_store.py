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
"""Seconds while the place, or another of its folder, is silent: that has been waited for already."""
SHORTEST = 0.5
"""Seconds for each of many places that become silent one after another; a call that returns later counts, too."""
SLOWEST = 1_000_000
"""Bytes that a place takes in a second, at least: an archive of code has more time than a report."""
ASKED_AGAIN = 60.0
"""Seconds after which one of the silent places of a folder is asked again, twice as many each time that it does not
answer either: a mount that is made anew frees no call to the one before it, and each call that is left open keeps a
thread."""
LONGEST_PAUSE = 300.0
"""Most seconds between two such calls."""

Found = TypeVar("Found")


class _Silent:
    """A store that has not answered: its calls that are left open, and when its turn to be asked again is."""

    def __init__(self, call: Pending[Any]) -> None:
        self.calls = [call]
        self.asked_at = self.turn_at = 0.0

    def has_answered(self) -> bool:
        """Whether one of its calls was answered after all; forgets those that have failed, as by a time-out."""
        ended = [call for call in self.calls if call.is_made(0.0)]
        self.calls = [call for call in self.calls if call not in ended]
        return any(map(_is_answer, ended))


class UnansweredCalls:
    """The calls to the stores of one folder that nobody waits for any more. Safe to share between threads.

    A store that is not known as silent is asked whenever it is needed. Of all that are silent one is asked from time to
    time, each in its turn; once one answers, the others are asked, too.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._silent: dict[str, _Silent] = {}
        """Stores that have not answered, by URI."""
        self._in_a_row = 0
        """Number of stores that have become silent since one last answered."""
        self._pause, self._next_turn_at = ASKED_AGAIN, 0.0

    def answer(
        self, uri: str, work: Callable[[], Found], usual: float, size: int = 0, *, opens: bool = False
    ) -> Found:
        """Return the result of a call to a store; it is waited for `usual` seconds at most. Raises StorageError.

        `size`: bytes that are sent with it, for which it has more time. `opens`: whether it may have asked nothing.
        """
        patience = self._patience(uri, usual)
        if patience == 0.0:
            raise _silent(uri, "has not answered an earlier request yet")
        patience += size / SLOWEST
        call = Pending(work)
        if not call.is_made(patience):
            self._leave(uri, call)
            raise _silent(uri, f"has not answered for {patience:.0f} s")
        if not opens:
            with self._lock:
                self._answered(uri)
        return call.result()

    def forget(self, uri: str) -> None:
        """Drop what is known of a store that is not asked any more."""
        with self._lock:
            self._silent.pop(uri, None)

    def _patience(self, uri: str, usual: float) -> float:
        """Return for how many seconds a further call to a store is waited for; 0: it is not made."""
        now = self._clock()
        with self._lock:
            for each in [of for of, silent in self._silent.items() if silent.has_answered()]:
                self._answered(each)
            silent = self._silent.get(uri)
            if silent is None:
                return min(usual, max(AMID_SILENCE / self._in_a_row, SHORTEST)) if self._in_a_row else usual
            if now < max(silent.turn_at, self._next_turn_at):
                return 0.0
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
            self._note_asked(silent, now)
            return min(usual, AMID_SILENCE)

    def _leave(self, uri: str, call: Pending[Any]) -> None:
        now = self._clock()
        with self._lock:
            if uri in self._silent:
                self._silent[uri].calls.append(call)
                return
            if not self._silent:
                self._pause = ASKED_AGAIN
            self._in_a_row += 1
            self._silent[uri] = _Silent(call)
            self._note_asked(self._silent[uri], now)

    def _note_asked(self, silent: _Silent, now: float) -> None:
        """Give all others their turns before this one's next."""
        silent.asked_at = now
        self._next_turn_at = now + self._pause
        silent.turn_at = now + self._pause * len(self._silent)

    def _answered(self, uri: str) -> None:
        """Note an answer of a store. Where it had been silent, others may answer again, too."""
        self._in_a_row = 0
        if self._silent.pop(uri, None) is None:
            return
        self._pause, self._next_turn_at = ASKED_AGAIN, self._clock()
        for silent in self._silent.values():
            silent.turn_at = min(silent.turn_at, silent.asked_at + ASKED_AGAIN)


def _is_answer(call: Pending[Any]) -> bool:
    """Whether a call has ended as those to a place that is there do."""
    try:
        call.result()
    except StorageError as error:
        return not error.retryable
    except Exception:  # noqa: BLE001 - such as that a file is not there
        return True
    return True


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
    one returns, few further calls are made to the same store. Large files are read and written without a limit.
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
    why = "" if "://" in uri else ": is it on a mount whose server is gone?"
    return StorageError(f"{shown(uri)} {what}{why}", uri=uri, retryable=True)
