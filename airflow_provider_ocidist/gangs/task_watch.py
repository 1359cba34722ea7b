"""TaskWatch: a watch that writes to the log of an Airflow task, across processes. No Airflow."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from airflow_provider_ocidist.backends.base import Backend, LogLine, LogPart
from airflow_provider_ocidist.backports import UTC, Self
from airflow_provider_ocidist.gangs.gang_log import GangLog
from airflow_provider_ocidist.gangs.log_follower import LogFollower
from airflow_provider_ocidist.gangs.task_log import TaskLog
from airflow_provider_ocidist.gangs.watch import Watch
from airflow_provider_ocidist.model.log_cursor import LogCursor
from airflow_provider_ocidist.model.masking import masked_text
from airflow_provider_ocidist.model.run import RunRecord

BEGINNING = datetime.fromtimestamp(0, UTC)


class TaskWatch(Watch):
    """Looks at the gang of one try of a task, in turn on a worker and in a triggerer.

    The log's cursor is saved in the run directory: a restarted triggerer has no other record of it.
    """

    def __init__(
        self,
        backend: Backend,
        record: RunRecord,
        logger: TaskLog,
        try_number: int,
        *,
        leaves_the_end: bool = False,
    ) -> None:
        """`try_number` is that of the try whose log this is. `leaves_the_end`: see Watch."""
        self._lines = TaskGangLog(logger, record, try_number)
        super().__init__(backend, record, logger, gang_log=self._lines, leaves_the_end=leaves_the_end)

    def go_on(self) -> Self:
        """Continue at the cursor that another process has saved, if any; one request. Raises nothing."""
        if not self.record.ref.has_log:
            return self
        saved = self.backend.directories.load_cursor(self.record.ref)
        if saved is not None and self._lines.go_on(saved):
            self.record = replace(self.record, logs_since=saved.newest)
        return self

    def keep_lease(self) -> bool:
        """Renew the lease as every watch does, and save the log's cursor with each renewal."""
        due = self.lease_due_at
        kept = super().keep_lease()
        if kept and self.lease_due_at > due:
            self.save_cursor()
        return kept

    def save_cursor(self) -> None:
        """Save the log's cursor if it has advanced. Raises nothing. Blocks."""
        saved = self._lines.to_save()
        if saved is not None:
            self.backend.directories.save_cursor(self.record.ref, saved)


class TaskGangLog(GangLog):
    """Writes to the log of one try of a task, after what another process has written there."""

    def __init__(self, log: TaskLog, record: RunRecord, try_number: int) -> None:
        super().__init__(log, record.logs_since)
        self._try_number = try_number
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
        """Return the cursor if it has advanced since the last call. Waits until the lines before it are logged."""
        with self._logging:
            advanced, self._has_logged = self._has_logged, False
            return self.follower.to_save(self._try_number) if advanced else None

    def take_lines(self, part: LogPart, now: float) -> bool:
        # Log before the cursor is saved: a process killed in between would otherwise lose lines.
        with self._logging:
            return super().take_lines(part, now)

    def write_line(self, line: LogLine) -> None:
        """Log a line under a unique time, next to the one at which its node wrote it."""
        self._has_logged = True
        log: Any = self._log
        log.info(
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
