"""TaskWatch: a watch whose lines go to the log of an Airflow task, whichever process goes on with it. No Airflow."""

from __future__ import annotations

import threading
import zlib
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from airflow_provider_ocidist.backends.base import Backend, LogLine, LogPart
from airflow_provider_ocidist.backports import UTC, Self
from airflow_provider_ocidist.gangs.log_cursor import LogFollower
from airflow_provider_ocidist.gangs.watch import TaskLog, Watch
from airflow_provider_ocidist.model.log_cursor import LogCursor
from airflow_provider_ocidist.model.masking import masked_text
from airflow_provider_ocidist.model.run import RunRecord

BEGINNING = datetime.fromtimestamp(0, UTC)


class TaskWatch(Watch):
    """Looks at the gang of one try of a task, on a worker or in a triggerer, one after the other.

    Up to where the log has come stands in the run directory: a triggerer that is restarted has no other way to know.
    """

    def __init__(
        self,
        backend: Backend,
        record: RunRecord,
        logger: TaskLog,
        number: int,
        *,
        leaves_the_end: bool = False,
    ) -> None:
        """`number` is the try's. `leaves_the_end`: see Watch."""
        super().__init__(backend, record, logger, leaves_the_end=leaves_the_end)
        self._number = number
        self._telling = threading.Lock()
        self._has_told = False
        self._moments = LineMoments(record.ref.nodes)

    def go_on(self) -> Self:
        """Begin where another process has stopped, if it left word; one request. Raises nothing."""
        if self.record.ref.log_group_id is None:
            return self
        told = self.backend.load_cursor(self.record.ref)
        if told is not None and told.number == self._number and _is_as_far(told, self.record):
            self.follower = LogFollower.after(told)
            self.record = replace(self.record, logs_since=told.newest)
        return self

    def keep_lease(self) -> bool:
        """Renew the lease as every watch, and note with each renewal how far the log has come."""
        due = self.lease_due_at
        kept = super().keep_lease()
        if kept and self.lease_due_at > due:
            self.save_cursor()
        return kept

    def save_cursor(self) -> None:
        """Leave word up to where the log has come, if it has come further. Raises nothing. Blocks."""
        with self._telling:
            told = self.follower.told(self._number) if self._has_told else None
            self._has_told = False
        if told is not None:
            self.backend.save_cursor(self.record.ref, told)

    def _take(self, part: LogPart, now: float) -> None:
        # What is noted as told must be told: whoever is killed in between would lose it.
        with self._telling:
            super()._take(part, now)

    def tell_line(self, line: LogLine) -> None:
        """Pass on a line under a time of its own, next to the one at which its node wrote it."""
        self._has_told = True
        log: Any = self._log
        log.info(
            "[node %d] %s", line.rank, masked_text(line.text), timestamp=self._moments.of(line).isoformat()
        )


class LineMoments:
    """Gives each line of a gang a millisecond of its own, the same one in whichever process tells it.

    Airflow shows a task's lines in order of milliseconds, and neighbours that are equal as one: so what was told by a
    triggerer that was killed before it could note it is not shown again, unless another line stands in between.
    """

    FURTHEST = 1000
    """Milliseconds by which a line may stand after its time; what a node writes faster than that shares some."""

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes
        self._newest = [(0.0, 0)] * nodes

    def of(self, line: LogLine) -> datetime:
        """Return when a line is told to have been written: after those of its node that came before it."""
        # The nodes take turns, each a millisecond of every round.
        own = int(line.time * 1000) // self._nodes
        newest, last = self._newest[line.rank]
        if line.time < newest:  # found late
            turn = own
        else:
            turn = max(own, min(last + 1, own + self.FURTHEST // self._nodes))
            self._newest[line.rank] = line.time, turn
        # Lines that share a millisecond, and read alike, are none the less two.
        apart = 100 + zlib.crc32(line.id.encode()) % 800
        return BEGINNING + timedelta(milliseconds=turn * self._nodes + line.rank, microseconds=apart)


def _is_as_far(told: LogCursor, record: RunRecord) -> bool:
    return len(told.newest) == len(record.logs_since) and all(
        newest >= since for newest, since in zip(told.newest, record.logs_since, strict=True)
    )
