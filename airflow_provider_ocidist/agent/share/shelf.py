"""Shelf: the pieces that this node has and reads, as a log that the other nodes follow."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from airflow_provider_ocidist.backports import StrEnum, dataclass

MOST_NEWS = 5000
"""Most entries of the log in one answer."""
RENAMED_WITHIN = 1.0
"""Seconds in which a file that is being renamed, or its folder, is there again."""
LOOK = 0.02
"""Seconds between two looks for such a file."""


class News(StrEnum):
    """What a node has to say of a piece."""

    READS = "reads"
    HAS = "has"
    DROPS = "drops"
    """The read has failed: it is another node's turn."""
    RESTS = "rests"
    """The node reads nothing more, of any piece."""


class FilePlace:
    """Where a file lies: its name changes as it is completed."""

    def __init__(self, final: Path) -> None:
        self.final = final
        self.now = final

    def open(self) -> BinaryIO:
        """Return the file, opened. Raises OSError."""
        deadline = time.monotonic() + RENAMED_WITHIN
        while True:
            for path in (self.now, self.final):
                with contextlib.suppress(FileNotFoundError):
                    return path.open("rb", buffering=0)
            if time.monotonic() > deadline:
                raise FileNotFoundError(self.final)
            time.sleep(LOOK)


@dataclass(frozen=True, kw_only=True)
class HeldPiece:
    """One piece on this node's disk."""

    place: FilePlace
    offset: int
    length: int
    digest: str
    """Digest of what came from the store: the file may have been changed since."""


class Shelf:
    """What this node can give to the others."""

    def __init__(self) -> None:
        self._log: list[tuple[News, str]] = []
        self._held: dict[str, HeldPiece] = {}
        self._changed = threading.Condition()
        self._is_closed = False

    def reads(self, piece: str) -> None:
        self._note(News.READS, piece)

    def drops(self, piece: str) -> None:
        self._note(News.DROPS, piece)

    def rests(self) -> None:
        self._note(News.RESTS, "")

    def has(self, piece: str, held: HeldPiece) -> None:
        if piece not in self._held:
            self._held[piece] = held
            self._note(News.HAS, piece)

    def held(self, piece: str) -> HeldPiece | None:
        return self._held.get(piece)

    def news(self, since: int, timeout: float) -> Sequence[tuple[News, str]]:
        """Return what was added to the log after so many entries, as soon as there is something; [] at the timeout."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or len(self._log) > since, timeout)
            return self._log[since : since + MOST_NEWS]

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _note(self, news: News, piece: str) -> None:
        with self._changed:
            self._log.append((news, piece))
            self._changed.notify_all()
