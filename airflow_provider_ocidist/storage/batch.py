"""copy_all: many copies at a time within one budget; all are checked before any is copied, all are reported."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any

from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.errors import JobFileError, OcidistError, Problem, StorageError
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage import locations
from airflow_provider_ocidist.storage.copy_items import CopyItem
from airflow_provider_ocidist.storage.copying.budget import CopyBudget
from airflow_provider_ocidist.storage.copying.destination import Landing, landing
from airflow_provider_ocidist.storage.copying.resuming import until_whole
from airflow_provider_ocidist.storage.copying.selection import (
    Selection,
    absolute,
    find,
    is_below,
    refuse_loss,
)
from airflow_provider_ocidist.storage.progress import describe
from airflow_provider_ocidist.storage.stores.opening import Stores
from airflow_provider_ocidist.storage.transfer import (
    PART_SIZE,
    THREADS,
    CopyReport,
    TransferProgress,
    copy_selection,
)

AT_A_TIME = 8
"""Number of items at a time; with 64 streams, each then has eight."""
FRESH_S = 60.0
"""Seconds after which the listing of an item's source is repeated before its copy."""
LOGGED_EVERY_S = 5.0
NAMES_SHOWN = 20
"""Most skipped names of one item that a report lists."""
ITEMS_SHOWN = 100
"""Most items that the report of all lists."""


@dataclass(frozen=True, kw_only=True)
class Sides:
    """Opens the places of the two sides."""

    sources: Stores
    targets: Stores

    @classmethod
    def of(cls, source: OciAccess | None = None, target: OciAccess | None = None) -> Sides:
        """Return both sides for these credentials; None: those of this machine."""
        sources = Stores(source)
        return cls(sources=sources, targets=sources if target == source else Stores(target))


@dataclass(frozen=True, kw_only=True)
class Surveyed:
    """An item, its source's files, and their target."""

    item: CopyItem
    found: Selection
    wanted: int
    bytes: int
    landed: Landing
    at: float
    """Time of the listing, on the clock `time.monotonic`."""

    @property
    def root(self) -> str:
        """The root of what is written, as `absolute` returns it."""
        return absolute(self.landed.store)


@dataclass(frozen=True, kw_only=True)
class ItemReport:
    """The result of one item."""

    item: CopyItem
    report: CopyReport | None = None
    error: OcidistError | OSError | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the result in short: names are counted, and the first are listed."""
        places = {
            "item": self.item.number,
            "source": locations.shown(self.item.source),
            "target": locations.shown(self.item.target),
        }
        if self.report is None:
            return {**places, "error": error_text(self.error)}
        return {
            **places,
            "files": self.report.files,
            "bytes": self.report.bytes,
            "seconds": round(self.report.seconds, 3),
            "unchanged": len(self.report.unchanged),
            "resumed_bytes": self.report.resumed_bytes,
            "deleted": len(self.report.deleted),
            "unverified": len(self.report.unverified),
            "skipped": list(self.report.skipped[:NAMES_SHOWN]),
        }

    def __str__(self) -> str:
        if self.report is None:
            return f"item {self.item.number}: {self.item.shown}: failed: {error_text(self.error)}"
        report = self.report
        more = {
            f"{report.resumed_bytes} bytes of them from an earlier attempt": report.resumed_bytes,
            f"{len(report.unchanged)} files were there already": report.unchanged,
            f"{len(report.deleted)} files deleted that only the target had": report.deleted,
            f"{len(report.unverified)} files compared by size only": report.unverified,
            f"{len(report.skipped)} names skipped: {', '.join(report.skipped[:NAMES_SHOWN])}": report.skipped,
        }
        done = f"{report.files} files, {report.bytes} bytes in {report.seconds:.1f} s"
        parts = [done, *(text for text, there in more.items() if there)]
        return f"item {self.item.number}: {self.item.shown}: {'; '.join(parts)}"


@dataclass(frozen=True, kw_only=True)
class BatchReport:
    """The results of all items."""

    items: tuple[ItemReport, ...]
    seconds: float

    @property
    def error(self) -> StorageError | None:
        """One error that names every item that failed."""
        failed = [item for item in self.items if item.error is not None]
        if not failed:
            return None
        lines = "\n  ".join(map(str, failed))
        return StorageError(
            f"{len(failed)} of {len(self.items)} items failed, the others have arrived:\n  {lines}",
            retryable=all(isinstance(item.error, StorageError) and item.error.retryable for item in failed),
        )

    def to_json(self) -> dict[str, Any]:
        reports = [item.report for item in self.items if item.report is not None]
        return {
            "files": sum(report.files for report in reports),
            "bytes": sum(report.bytes for report in reports),
            "unchanged": sum(len(report.unchanged) for report in reports),
            "seconds": round(self.seconds, 3),
            "failed": len(self.items) - len(reports),
            "items": [item.to_json() for item in self.items[:ITEMS_SHOWN]],
            "items_left_out": max(len(self.items) - ITEMS_SHOWN, 0),
        }


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


def survey(items: Sequence[CopyItem], sides: Sides) -> list[Surveyed]:
    """List all sources and targets. Raises JobFileError or StorageError with all faults."""
    with ThreadPoolExecutor(AT_A_TIME, "survey") as pool:
        looked = list(pool.map(lambda item: _look(item, sides), items))
    found = [look for look in looked if isinstance(look, Surveyed)]
    problems = [*clashes(found)]
    if problems:
        raise JobFileError(problems, "the data to copy")
    errors = [(item, look) for item, look in zip(items, looked) if isinstance(look, Exception)]
    if errors:
        lines = "\n  ".join(
            f"item {item.number}: {item.shown}: {error_text(error)}" for item, error in errors
        )
        raise StorageError(
            f"{len(errors)} of {len(items)} items cannot be copied, and so nothing was:\n  {lines}",
            retryable=any(isinstance(error, StorageError) and error.retryable for _, error in errors),
        )
    return found


def _look(item: CopyItem, sides: Sides) -> Surveyed | OcidistError | OSError:
    try:
        return surveyed_of(item, sides)
    except (OcidistError, OSError) as error:
        return error


def surveyed_of(item: CopyItem, sides: Sides) -> Surveyed:
    """List an item's source, and find its target. Raises StorageError, OSError."""
    found = find(item.source, sides.sources)
    landed = landing(item.target, found, sides.targets)
    if item.rules.delete_extra:
        refuse_loss(found, absolute(landed.store))
    wanted = [entry for entry in found.entries if item.rules.wants(entry.name)]
    return Surveyed(
        item=item,
        found=found,
        wanted=len(wanted),
        bytes=sum(entry.size or 0 for entry in wanted),
        landed=landed,
        at=time.monotonic(),
    )


def clashes(surveyed: Sequence[Surveyed]) -> Iterator[Problem]:
    """Yield a problem for items that write the same file, read what another writes, or delete what it copies."""
    if len(surveyed) == 1:
        return
    writers: dict[str, Surveyed] = {}
    for one in surveyed:
        for place in _written(one):
            other = writers.setdefault(place, one)
            if other is not one:
                yield _problem(
                    one,
                    f"would write {locations.shown(place)}, and so would item {other.item.number}: separate them",
                )
                break
    for one in surveyed:
        if one.found.is_tree:
            yield from _of_tree(one, surveyed)
        for entry in one.found.entries:
            place = f"{absolute(one.found.store)}/{entry.name}"
            if place in writers and writers[place] is not one:
                yield _problem(one, _reads_what(writers[place]))
                break


def _of_tree(one: Surveyed, surveyed: Sequence[Surveyed]) -> Iterator[Problem]:
    source = absolute(one.found.store)
    for other in surveyed:
        if other is one:
            continue
        if is_below(other.root, source) and not one.found.pattern and one.item.number != other.item.number:
            yield _problem(one, _reads_what(other))
        if one.item.rules.delete_extra and (is_below(other.root, one.root) or is_below(one.root, other.root)):
            yield _problem(
                one, f"would delete what item {other.item.number} copies: give them folders of their own"
            )
        elif one.item.rules.delete_extra and _reads_below(other, one.root):
            yield _problem(
                one, f"would delete what item {other.item.number} reads: give them folders of their own"
            )


def _reads_below(one: Surveyed, folder: str) -> bool:
    source = absolute(one.found.store)
    return is_below(source, folder) or (
        is_below(folder, source)
        and any(is_below(f"{source}/{entry.name}", folder) for entry in one.found.entries)
    )


def _reads_what(writer: Surveyed) -> str:
    return f"reads where item {writer.item.number} writes: put it in a task of its own, after this one"


def _problem(one: Surveyed, message: str) -> Problem:
    return Problem(f"item {one.item.number}, {one.item.shown}", message)


def _written(one: Surveyed) -> Iterator[str]:
    for entry in one.found.entries:
        if one.item.rules.wants(entry.name):
            yield f"{one.root}/{one.landed.rename or entry.name}"


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
            done, _ = wait(running, return_when=FIRST_EXCEPTION)
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
            bytes_done=lambda: self._progress[index].bytes_done,
            may_go_on=lambda error: error.retryable and not self._is_over(),
            say=lambda error: self.write(
                f"{self.label}: item {one.item.number} was interrupted: {error_text(error)}; resuming"
            ),
            cancel=self.cancel,
        )

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


def error_text(error: BaseException | None) -> str:
    """Return an error's message, without secrets in web addresses."""
    return locations.shown_in(str(error))
