"""Memory: how many bytes a copy may hold at a time."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterable

from airflow_provider_ocidist.storage.stores.base import Buffer

SMALL = 256 << 10
"""Most bytes of a file or piece that is moved whole, in ordinary memory."""


class Memory:
    """A budget in bytes; one request larger than all of it may run alone."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._changed = threading.Condition()

    def take(self, amount: int, timeout: float) -> bool:
        """Take so many bytes, until `give`; return False when there is no room for them within `timeout` seconds."""
        with self._changed:
            fits = self._changed.wait_for(lambda: not self.used or self.used + amount <= self.limit, timeout)
            if fits:
                self.used += amount
            return fits

    def give(self, amount: int) -> None:
        with self._changed:
            self.used -= amount
            self._changed.notify_all()


def gathered(pieces: Iterable[bytes], length: int) -> Buffer:
    """Return pieces of so many bytes as one.

    Allocated by the system: allocations of many threads fragment each one's heap, and with
    parts of this size the process ends up with three times what it uses.
    """
    if length <= SMALL:
        return b"".join(pieces)
    buffer = mmap.mmap(-1, length)
    for piece in pieces:
        buffer.write(piece)
    return memoryview(buffer)[: buffer.tell()]
