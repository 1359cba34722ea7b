"""KeptList: a list of objects that is read whole once, and then kept up to date by its changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from airflow_provider_ocidist.backends.kubernetes.api import Api
from airflow_provider_ocidist.backends.kubernetes.objects import Obj
from airflow_provider_ocidist.errors import BackendError

LIST_EVERY = 300.0
"""Seconds after which everything is listed again: for about as long a server remembers its changes."""
FORGOTTEN = (410, 504)
"""Statuses of a server that has forgotten the changes since the version, and of one that has not come so far yet."""
FORBIDDEN = 403

Kept = TypeVar("Kept")


class KeptList(Generic[Kept]):
    """Asks for a list once in a while, and in between for its changes only. Safe to share between threads."""

    def __init__(
        self,
        api: Api,
        path: str,
        kept: Callable[[Obj], Kept | None],
        *,
        clock: Callable[[], float] = time.monotonic,
        **selectors: str,
    ) -> None:
        """`kept` returns the part of an object to keep; None: the object is not wanted."""
        self._api = api
        self._path = path
        self._kept = kept
        self._clock = clock
        self._selectors = selectors
        self._lock = threading.Lock()
        self._found: dict[str, Kept] = {}
        """Part that is kept of each object, by uid."""
        self._version = ""
        """Version up to which all changes are known; empty before the first list."""
        self._listed_at = 0.0
        self._may_watch = True

    def now(self) -> list[Kept]:
        """Return the kept parts of all present objects. Raises BackendError."""
        with self._lock:
            if not (self._is_young() and self._has_caught_up()):
                self._list()
            return [*self._found.values()]

    def _is_young(self) -> bool:
        return bool(self._version) and self._may_watch and self._clock() - self._listed_at < LIST_EVERY

    def _list(self) -> None:
        listed_at = self._clock()
        pages = self._api.whole(self._path, self._page, **self._selectors)
        # The version is that of the first page: what changes while the others are read is among the changes.
        self._found = {uid: kept for _, found in pages for uid, kept in found.items()}
        self._version, self._listed_at = pages[0][0], listed_at

    def _page(self, page: Obj) -> tuple[str, dict[str, Kept]]:
        """Return the version of a page, and the kept parts of its objects by uid."""
        found: dict[str, Kept] = {}
        for obj in page.get("items") or ():
            self._note(found, obj)
        return str((page.get("metadata") or {}).get("resourceVersion") or ""), found

    def _note(self, found: dict[str, Kept], obj: Obj) -> None:
        uid, kept = str(obj["metadata"]["uid"]), self._kept(obj)
        if kept is None:
            found.pop(uid, None)
        else:
            found[uid] = kept

    def _has_caught_up(self) -> bool:
        """Apply the changes since the last look; return False where everything must be listed again."""
        try:
            changes = self._api.changes(self._path, self._version, **self._selectors)
            return all(self._take(str(change["type"]), change["object"]) for change in changes)
        except BackendError as error:
            if error.status_code == FORBIDDEN:
                self._may_watch = False
            if error.status_code in (FORBIDDEN, *FORGOTTEN):
                return False
            raise

    def _take(self, change: str, obj: Obj) -> bool:
        """Apply one change; return False for an error in its place."""
        if change == "ERROR":
            return False
        metadata = obj["metadata"]
        if change == "DELETED":
            self._found.pop(str(metadata["uid"]), None)
        elif change != "BOOKMARK":
            self._note(self._found, obj)
        self._version = str(metadata["resourceVersion"])
        return True
