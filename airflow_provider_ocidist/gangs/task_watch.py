"""TaskWatch: a watch that writes to the log of an Airflow task, across processes. No Airflow."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Protocol

from airflow_provider_ocidist.agent.train.shared_log import level_of
from airflow_provider_ocidist.backends.base import Backend, LogLine, LogPart
from airflow_provider_ocidist.backports import UTC, Self
from airflow_provider_ocidist.gangs.gang_log import GangLog
from airflow_provider_ocidist.gangs.log_follower import LogFollower
from airflow_provider_ocidist.gangs.task_log import TaskLog, logs_at
from airflow_provider_ocidist.gangs.watch import Watch
from airflow_provider_ocidist.model.log_cursor import LogCursor
from airflow_provider_ocidist.model.masking import masked_text
from airflow_provider_ocidist.model.run import RunRecord

BEGINNING = datetime.fromtimestamp(0, UTC)
KEPT_BACK = 10_000
"""Number of newest lines, at least, that the next process logs again if this one's part of the log may be lost."""


class IsWritten(Protocol):
    """Waits until all lines logged so far are in the log; returns False if some may not be."""

    def __call__(self, *, patience: float | None = None) -> bool:
        """`patience`: most seconds to wait; None: as long as is usual."""


def written_at_once(*, patience: float | None = None) -> bool:
    """Return that all lines are in the log: a worker's are when its part of the task has ended."""
    del patience
    return True


class TaskWatch(Watch):
    """Looks at the gang of one try of a task, in turn on a worker and in a triggerer.

    The log's cursor is saved in the run directory: a restarted triggerer has no other record of it. It covers only
    lines that are known to be in the log, so that the next process logs some lines again, and misses none.
    """

    def __init__(
        self,
        backend: Backend,
        record: RunRecord,
        logger: TaskLog,
        try_number: int,
        *,
        leaves_the_end: bool = False,
        is_written: IsWritten = written_at_once,
        may_be_lost: bool = False,
    ) -> None:
        """`try_number` is that of the try whose log this is. `leaves_the_end`: see Watch.

        `is_written`: waits until all lines logged so far are in the log.
        `may_be_lost`: whether others read this process's part of the log only after it has handed over.
        """
        self._lines = TaskGangLog(logger, record, try_number, keeps_back=KEPT_BACK if may_be_lost else 0)
        self._is_written = is_written
        self._saving = threading.Lock()
        self._written = record.logs_since
        """Unix times, by rank, up to which the lines are known to be in the log."""
        super().__init__(backend, record, logger, gang_log=self._lines, leaves_the_end=leaves_the_end)

    def go_on(self) -> Self:
        """Continue at the cursor that another process has saved, if any; one request. Raises nothing."""
        if not self.record.ref.has_log:
            return self
        saved = self.backend.directories.load_cursor(self.record.ref)
        if saved is not None and self._lines.go_on(saved):
            self._written = saved.newest
            self.record = replace(self.record, logs_since=saved.newest)
        return self

    def keep_lease(self) -> bool:
        """Renew the lease as every watch does, and save the log's cursor with each renewal."""
        due = self.lease_due_at
        kept = super().keep_lease()
        if kept and self.lease_due_at > due:
            # Others' leases are renewed after this one: what is not in the log yet is saved at the next renewal.
            self.save_cursor(patience=0.0)
        return kept

    def save_cursor(self, patience: float | None = None) -> None:
        """Save the log's cursor if it has advanced, for when this process is gone. Raises nothing. Blocks."""
        with self._saving:
            self._save(self._lines.to_save(), patience)

    def hand_over(self) -> RunRecord:
        """Save the log's cursor, and return the record for the next process. Raises nothing. Blocks."""
        with self._saving:
            self._save(self._lines.to_hand_over())
            self.record = replace(self.record, logs_since=self._written)
        return self.record

    def _save(self, cursor: LogCursor | None, patience: float | None = None) -> None:
        if cursor is None:
            return
        if not self._is_written(patience=patience):
            self._lines.save_later(cursor)
            return
        self.backend.directories.save_cursor(self.record.ref, cursor)
        self._written = cursor.newest

    def _take(self, part: LogPart, now: float) -> None:
        # The record follows when the lines are known to be in the log.
        self._lines.take_lines(part, now)


class TaskGangLog(GangLog):
    """Writes to the log of one try of a task, after what another process has written there."""

    def __init__(self, log: TaskLog, record: RunRecord, try_number: int, *, keeps_back: int = 0) -> None:
        """`keeps_back`: number of the newest lines that a saved cursor leaves to the next process, at least."""
        super().__init__(log, record.logs_since)
        self._try_number = try_number
        self._keeps_back = keeps_back
        self._kept_back = 0
        self._marked: LogCursor | None = None
        """Cursor before the lines that `_kept_back` counts."""
        self._earlier: LogCursor | None = None
        """Mark before that one, to be saved: at least `keeps_back` lines are behind it."""
        self._logging = threading.Lock()
        self._has_logged = False
        self._moments = LineMoments(record.ref.nodes)

    def go_on(self, saved: LogCursor) -> bool:
        """Continue at a cursor, unless it is of another try, or behind; return whether that was done."""
        if saved.try_number != self._try_number or not _is_as_far(saved, self.follower.cursor):
            return False
        self.follower = LogFollower.after(saved)
        return True

    def to_save(self) -> LogCursor | None:
        """Return the cursor if it has advanced since the last call, without the lines that are kept back.

        Waits until the lines before it are logged.
        """
        if not self._keeps_back:
            return self.to_hand_over()
        with self._logging:
            cursor, self._earlier = self._earlier, None
            return cursor

    def to_hand_over(self) -> LogCursor | None:
        """Return the cursor of all lines if it has advanced since the last call. Waits until they are logged."""
        with self._logging:
            # What is handed over is newer than any mark.
            self._earlier = None
            advanced, self._has_logged = self._has_logged, False
            return self.follower.to_save(self._try_number) if advanced else None

    def save_later(self, cursor: LogCursor) -> None:
        """Return the cursor at the next call again, though it may not advance: it could not be saved."""
        with self._logging:
            self._has_logged = True
            if self._keeps_back:
                self._earlier = self._earlier or cursor

    def take_lines(self, part: LogPart, now: float) -> bool:
        # Log before the cursor is saved: a process killed in between would otherwise lose lines.
        with self._logging:
            found = super().take_lines(part, now)
            if self._keeps_back and self._kept_back >= self._keeps_back:
                self._earlier, self._marked = self._marked, self.follower.to_save(self._try_number)
                self._kept_back = 0
            return found

    def write_line(self, line: LogLine) -> None:
        """Log a line under a unique time, next to the one at which its node wrote it."""
        self._has_logged = True
        self._kept_back += 1
        logs_at(self._log, level_of(line.text))(
            "[node %d] %s", line.rank, masked_text(line.text), timestamp=self._moments.of(line).isoformat()
        )


class LineMoments:
    """Gives each line of a gang a millisecond of its own, the same in every process that logs it.

    Airflow sorts a task's lines by milliseconds, and shows equal neighbours once: so lines logged by a triggerer
    that was killed before it saved its cursor are not shown twice, unless another line stands in between.
    """

    FURTHEST = 1000
    """Most milliseconds by which a line is shifted after its time; lines that come faster share milliseconds."""

    __slots__ = ("_newest", "_nodes")

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes
        self._newest = [(0.0, 0)] * nodes

    def of(self, line: LogLine) -> datetime:
        """Return the time under which to log a line: after the earlier lines of its node."""
        # Each node has its own millisecond in every round.
        own = int(line.time * 1000) // self._nodes
        newest, last = self._newest[line.rank]
        if line.time < newest:  # found late
            turn = own
        else:
            turn = max(own, min(last + 1, own + self.FURTHEST // self._nodes))
            self._newest[line.rank] = line.time, turn
        # Equal lines in the same millisecond must not be merged.
        apart = 100 + zlib.crc32(line.id.encode()) % 800
        return BEGINNING + timedelta(milliseconds=turn * self._nodes + line.rank, microseconds=apart)


def _is_as_far(saved: LogCursor, known: Sequence[float]) -> bool:
    return len(saved.newest) == len(known) and all(
        newest >= since for newest, since in zip(saved.newest, known, strict=True)
    )
