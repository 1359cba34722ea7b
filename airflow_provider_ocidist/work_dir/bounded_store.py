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
"""Seconds while the place is silent, or others of its folder are: that has been waited for already."""
SLOWEST = 1_000_000
"""Bytes that a place takes in a second, at least: an archive of code has more time than a report."""
MOST_LEFT = 4
"""Calls to the stores of one folder, one after another, that were not answered: then the folder counts as silent, and
one call is made for all. Each call that is left open keeps a thread."""
ASKED_AGAIN = 60.0
"""Seconds after which what is silent is asked again, twice as many each time that it does not answer either: a mount
that is made anew frees no call to the one before it."""
ASKED_AT_LEAST = 300.0
"""Most seconds between two such calls: after a new mount, leases are renewed in time."""

Found = TypeVar("Found")


class _Silence:
    """The calls that one store, or a whole folder, has not answered, and when it is asked again."""

    def __init__(self, now: float, longest: float = ASKED_AT_LEAST) -> None:
        """`longest`: most seconds between two further calls."""
        self.calls: list[Pending[Any]] = []
        self._longest = longest
        self._asked_at = now
        self._pause, self._asked_again_at = ASKED_AGAIN, now + ASKED_AGAIN

    def has_ended(self) -> bool:
        """Whether one of its calls has returned after all."""
        return any(call.is_made(0.0) for call in self.calls)

    def is_asked(self, now: float) -> bool:
        """Return whether it is time for a further call, which is then the caller's to make."""
        if now < self._asked_again_at:
            return False
        self._asked_at = now
        self._pause = min(2 * self._pause, self._longest)
        self._asked_again_at = now + self._pause
        return True

    def end_pause(self, now: float) -> None:
        """Let the next call be made at once, unless one was made just now."""
        if now - self._asked_at >= ASKED_AGAIN:
            self._asked_again_at = now


class UnansweredCalls:
    """The calls to the stores of one folder that nobody waits for any more. Safe to share between threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, each_by_itself: bool = False) -> None:
        """`each_by_itself`: whether a store is asked however many others of the folder are silent."""
        self._clock = clock
        self._each_by_itself = each_by_itself
        self._lock = threading.Lock()
        self._silent: dict[str, _Silence] = {}
        """Stores that have not answered, by URI."""
        self._in_a_row = 0
        """Number of calls to stores that were not answered since one last was."""
        self._folder: dict[bool, _Silence] = {}
        """The silence of all stores, where they are silent: for those that have been asked in vain, and for others, of
        which one may well answer."""

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
            for each in [of for of, silence in self._silent.items() if silence.has_ended()]:
                self._answered(each)
            silence = self._silent.get(uri)
            if self._folder:
                # One asks for all.
                silence = self._folder[silence is not None]
            if silence is None:
                return min(usual, AMID_SILENCE) if self._in_a_row else usual
            return min(usual, AMID_SILENCE) if silence.is_asked(now) else 0.0

    def _leave(self, uri: str, call: Pending[Any]) -> None:
        now = self._clock()
        with self._lock:
            is_new = uri not in self._silent
            silence = self._silent.setdefault(uri, _Silence(now))
            silence.calls.append(call)
            self._in_a_row += 1
            if self._in_a_row >= MOST_LEFT and not self._folder and not self._each_by_itself:
                # Each call to one of the others is to another one.
                others = _Silence(now if is_new else now - ASKED_AGAIN, ASKED_AGAIN)
                self._folder = {True: _Silence(now), False: others}

    def _answered(self, uri: str) -> None:
        """Note an answer of a store. Where it, or all, had been silent, the others may answer again, too."""
        had_been_silent = self._silent.pop(uri, None) is not None or bool(self._folder)
        self._in_a_row, self._folder = 0, {}
        if had_been_silent:
            now = self._clock()
            for silence in self._silent.values():
                silence.end_pause(now)


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
