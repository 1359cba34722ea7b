"""StopFlag: an event that a signal handler may set."""

from __future__ import annotations

import queue
import threading


class StopFlag(threading.Event):
    """An event that a signal handler may set, even while the interrupted thread waits for it.

    Every wait briefly holds the lock of a plain Event; a handler that needed it at such a moment would deadlock.
    """

    def __init__(self) -> None:
        super().__init__()
        self._raised = False
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()

    def is_set(self) -> bool:
        return self._raised

    def set(self) -> None:
        self._raised = True
        self._wakes.put(None)

    def clear(self) -> None:
        """Raise NotImplementedError: a kill is final."""
        raise NotImplementedError

    def wait(self, timeout: float | None = None) -> bool:
        """Return whether it was set within `timeout` seconds."""
        if not self._raised:
            try:
                self._wakes.get(timeout=None if timeout is None else max(0.0, timeout))
            except queue.Empty:
                return self._raised
            # Wake the next waiting thread.
            self._wakes.put(None)
        return self._raised
