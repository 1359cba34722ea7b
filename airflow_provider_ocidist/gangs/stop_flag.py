"""StopFlag: an event that a signal handler may set."""

from __future__ import annotations

import queue
import threading


class StopFlag(threading.Event):
    """An event that a signal handler may set, also while the thread that it interrupts waits for it.

    The lock of a plain Event is held for moments of every wait, and a handler that met one would wait for itself.
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
        """Refuse: what was killed stays killed."""
        raise NotImplementedError

    def wait(self, timeout: float | None = None) -> bool:
        """Return whether it was set within `timeout` seconds."""
        if not self._raised:
            try:
                self._wakes.get(timeout=None if timeout is None else max(0.0, timeout))
            except queue.Empty:
                return self._raised
            # For whoever else waits.
            self._wakes.put(None)
        return self._raised
