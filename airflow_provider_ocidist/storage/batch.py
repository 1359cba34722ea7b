"""copy_all: many copies at a time within one budget; all are checked before any is copied, all are reported."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

from airflow_provider_ocidist.errors import OcidistError, StorageError
from airflow_provider_ocidist.storage.batch_reports import BatchReport, ItemReport, error_text
from airflow_provider_ocidist.storage.copy_items import CopyItem
from airflow_provider_ocidist.storage.copying.budget import CopyBudget
from airflow_provider_ocidist.storage.copying.resuming import until_whole
from airflow_provider_ocidist.storage.progress import describe
from airflow_provider_ocidist.storage.survey import AT_A_TIME, Sides, Surveyed, survey, surveyed_of
from airflow_provider_ocidist.storage.transfer import (
    PART_SIZE,
    THREADS,
    CopyReport,
    TransferProgress,
    copy_selection,
)

FRESH_S = 60.0
"""Seconds after which the listing of an item's source is repeated before its copy."""
LOGGED_EVERY_S = 5.0
SIGNAL_INTERVAL = 1.0
"""Seconds after which at the latest a signal ends the wait for the copies."""


def copy_all(
    items: Sequence[CopyItem],
    *,
    sides: Sides,
    write: Callable[[str], object],
    label: str = "copy",
    repeated: bool = False,
    cancel: threading.Event | None = None,
    part_size: int = PART_SIZE,
    threads: int = THREADS,
) -> BatchReport:
    """Copy all items, some at a time; a failed item does not end the others.

    `write` takes each line for the log, which begins with `label`. `repeated`: an earlier attempt may have copied a
    part (see `copy_selection`). `part_size` is in bytes; `threads`: the most of all items together. Raises JobFileError
    for items that conflict, StorageError when a source is missing; then nothing was copied.
    """
    started = time.monotonic()
    surveyed = survey(items, sides)
    if len(surveyed) > 1:
        files, size = sum(one.wanted for one in surveyed), sum(one.bytes for one in surveyed)
        write(f"{label}: {len(surveyed)} items, {files} files, {size} bytes")
    batch = _Batch(surveyed, sides, CopyBudget(threads, part_size), write, label, cancel or threading.Event())
    reports = batch.run(repeated=repeated, part_size=part_size)
    return BatchReport(items=tuple(reports), seconds=time.monotonic() - started)


class _Batch:
    """The copies of one call, with one progress line for all."""

    def __init__(
        self,
        surveyed: Sequence[Surveyed],
        sides: Sides,
        budget: CopyBudget,
        write: Callable[[str], object],
        label: str,
        cancel: threading.Event,
    ) -> None:
        self.surveyed = surveyed
        self.sides = sides
        self.budget = budget
        self.write = write
        self.label = label
        self.cancel = cancel
        self.started = time.monotonic()
        self._logged_at = self.started
        self._lock = threading.Lock()
        self._done = 0
        self._progress = [_progress(files=one.wanted, size=one.bytes) for one in surveyed]

    def run(self, *, repeated: bool, part_size: int) -> list[ItemReport]:
        pool = ThreadPoolExecutor(AT_A_TIME, "items")
        running = [pool.submit(self._run, index, repeated, part_size) for index in range(len(self.surveyed))]
        try:
            # A fault of ours or the caller's ends all; a copy's own error is in its report.
            left = set(running)
            while left:
                # In short waits: Python runs the handler of a signal that another thread took only between them.
                done, left = wait(left, SIGNAL_INTERVAL, FIRST_EXCEPTION)
                for future in done:
                    future.result()
            return [future.result() for future in running]
        except BaseException:
            self.budget.interrupted.set()
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    def _run(self, index: int, repeated: bool, part_size: int) -> ItemReport:
        one = self.surveyed[index]
        try:
            done = ItemReport(item=one.item, report=self._copy(index, repeated, part_size))
        except (OcidistError, OSError) as error:
            done = ItemReport(item=one.item, error=error)
        with self._lock:
            self._done += 1
        self.write(f"{self.label}: {done}")
        return done

    def _copy(self, index: int, repeated: bool, part_size: int) -> CopyReport:
        one, attempts = self.surveyed[index], itertools.count()
        return until_whole(
            lambda: self._attempt(index, one, repeated or next(attempts) > 0, part_size),
            bytes_done=lambda: self._moved(index),
            may_go_on=lambda error: error.retryable and not self._is_over(),
            say=lambda error: self.write(
                f"{self.label}: item {one.item.number} was interrupted: {error_text(error)}; resuming"
            ),
            cancel=self.cancel,
        )

    def _moved(self, index: int) -> int:
        """Return the bytes at an item's target, if its latest attempt has moved any; else it got no further."""
        now = self._progress[index]
        return now.bytes_at_target if now.bytes_done else 0

    def _attempt(self, index: int, one: Surveyed, repeated: bool, part_size: int) -> CopyReport:
        if self._is_over():
            raise StorageError("the copy was stopped before it began", retryable=not self.cancel.is_set())
        if time.monotonic() - one.at >= FRESH_S:
            one = surveyed_of(one.item, self.sides)
        return copy_selection(
            one.found,
            one.landed,
            one.item.rules,
            budget=self.budget,
            repeated=repeated,
            on_progress=lambda now: self._note(index, now),
            cancel=self.cancel,
            part_size=part_size,
        )

    def _is_over(self) -> bool:
        return self.cancel.is_set() or self.budget.interrupted.is_set()

    def _note(self, index: int, now: TransferProgress) -> None:
        with self._lock:
            self._progress[index] = now
            if time.monotonic() - self._logged_at < LOGGED_EVERY_S:
                return
            self._logged_at = time.monotonic()
            total, done = self._sum(), self._done
        several = f"{done}/{len(self.surveyed)} items, " if len(self.surveyed) > 1 else ""
        self.write(describe(self.label, total).replace(": ", f": {several}", 1))

    def _sum(self) -> TransferProgress:
        every = self._progress
        return TransferProgress(
            files_done=sum(now.files_done for now in every),
            files_total=sum(now.files_total for now in every),
            bytes_done=sum(now.bytes_done for now in every),
            bytes_total=sum(now.bytes_total for now in every),
            seconds=time.monotonic() - self.started,
        )


def _progress(*, files: int, size: int) -> TransferProgress:
    return TransferProgress(files_done=0, files_total=files, bytes_done=0, bytes_total=size, seconds=0.0)
