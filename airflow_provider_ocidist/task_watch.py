"""TaskWatch: a watch whose lines go to the log of an Airflow task, whichever process goes on with it. No Airflow."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from airflow_provider_ocidist.backends.base import Backend, LogLine, LogPart, ToldLines
from airflow_provider_ocidist.log_follower import LogFollower
from airflow_provider_ocidist.run import RunRecord
from airflow_provider_ocidist.watch import TaskLog, Watch


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
        self._moment = 0.0
        self._same: Counter[tuple[int, str]] = Counter()

    def go_on(self) -> Self:
        """Begin where another process has stopped, if it left word; one request. Raises nothing."""
        if self.record.ref.log_group_id is None:
            return self
        told = self.backend.told(self.record.ref)
        if told is not None and told.number == self._number and _is_as_far(told, self.record):
            self.follower = LogFollower.after(told)
            self.record = replace(self.record, logs_since=told.newest)
        return self

    def keep_lease(self) -> bool:
        """Renew the lease as every watch, and note with each renewal how far the log has come."""
        due = self.lease_due_at
        kept = super().keep_lease()
        if kept and self.lease_due_at > due:
            self.note_told()
        return kept

    def note_told(self) -> None:
        """Leave word up to where the log has come, if it has come further. Raises nothing. Blocks."""
        with self._telling:
            told = self.follower.told(self._number) if self._has_told else None
            self._has_told = False
        if told is not None:
            self.backend.note_told(self.record.ref, told)

    def _take(self, part: LogPart, now: float) -> None:
        # What is noted as told must be told: whoever is killed in between would lose it.
        with self._telling:
            super()._take(part, now)

    def tell_line(self, line: LogLine) -> None:
        """Pass on a line under the time at which its node wrote it.

        Airflow shows the lines of a task in order of time, and two that follow one another and are the same as one: so
        what a triggerer told that was killed before it could note it is not shown again either. What several processes
        of a node wrote in one millisecond is not the same line: each gets a microsecond of its own.
        """
        self._has_told = True
        if line.time != self._moment:
            self._moment, self._same = line.time, Counter()
        nth = self._same[line.rank, line.text]
        self._same[line.rank, line.text] += 1
        written_at = datetime.fromtimestamp(line.time, UTC) + timedelta(microseconds=nth)
        log: Any = self._log
        log.info("[node %d] %s", line.rank, line.text, timestamp=written_at.isoformat())


def _is_as_far(told: ToldLines, record: RunRecord) -> bool:
    return len(told.newest) == len(record.logs_since) and all(
        newest >= since for newest, since in zip(told.newest, record.logs_since, strict=True)
    )
