"""InFlight: what a copy is sending in parts, so that another process can abort it after this one was killed."""

from __future__ import annotations

import threading
from collections.abc import Callable

from airflow_provider_ocidist.model.report import Sending


class InFlight:
    """The uploads that copies have begun and neither committed nor aborted. Safe to share between threads."""

    def __init__(self, note: Callable[[tuple[Sending, ...]], object]) -> None:
        """`note` is called with all of them after each change."""
        self._note = note
        self._open: dict[str, Sending] = {}
        self._lock = threading.Lock()

    def begun(self, folder: str, name: str, upload_id: str | None) -> None:
        if upload_id is not None:
            with self._lock:
                self._open[upload_id] = Sending(folder=folder, name=name, upload_id=upload_id)
                self._note(tuple(self._open.values()))

    def ended(self, upload_id: str | None) -> None:
        with self._lock:
            if upload_id in self._open:
                del self._open[upload_id]
                self._note(tuple(self._open.values()))
