"""Meanwhile: something is done again and again while a thread sends a checkpoint, which may take minutes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def meanwhile(
    look: Callable[[], object], *, every: float, until: threading.Event, name: str
) -> Iterator[None]:
    """Call `look` every so many seconds, in a thread of this name, while the caller is in the block.

    That ends before where `until` is set. `look` raises nothing.
    """
    left = threading.Event()

    def run() -> None:
        while not left.wait(every) and not until.is_set():
            look()

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        left.set()
        thread.join()
