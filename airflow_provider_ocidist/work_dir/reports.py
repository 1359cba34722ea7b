"""Reports: the last reports of the nodes of many gangs, read from their run directories."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from airflow_provider_ocidist.errors import BackendError, StorageError
from airflow_provider_ocidist.model.report import NodeReport
from airflow_provider_ocidist.model.run import NodeStatus, RunRef
from airflow_provider_ocidist.model.work_dir import NODES_FOLDER, rank_of
from airflow_provider_ocidist.storage.stores.base import Entry, Store
from airflow_provider_ocidist.work_dir.parallel import in_parallel
from airflow_provider_ocidist.work_dir.run_dir_stores import RunDirStores

log = logging.getLogger(__name__)

FEW = 10
"""Most gangs of which every changed report is read at each look."""
READS_PER_S = 2.0
"""Reports read per second if there are more gangs, of nodes that are only known to be running."""
SAVED_READS = 60
"""Most of these reads that quiet looks leave to a later one."""
FIRST_READS = 200
"""Most reports that one look reads of nodes without any read report."""
LIKELY_LAST_AFTER = 6.0
"""Seconds without a heartbeat, which comes every two, after which a report is likely the node's last."""
READS_AT_A_TIME = 6
"""Reports read at a time. In the triggerer all threads share one interpreter with the event loop, which must not wait
long."""
READING_LIMIT = 5.0
"""Seconds of reading in one look; a slow store must not delay the states of the runs."""


@dataclass(frozen=True, slots=True)
class Reported:
    """What one node reported, and when."""

    report: NodeReport | None
    """Report of the node; None: the file holds none that this version can read."""
    etag: str | None
    at: float
    """Unix time at which the report was the newest."""
    is_newest: bool = True
    """Whether the report is still the newest, by the last list."""
    sign: str | None = None
    """Mark that changes whenever the node writes, whether that was read or not."""


def of_now(reported: Mapping[int, Reported], ref: RunRef) -> Mapping[int, Reported]:
    """Return the reports by rank; of a rank whose newest report is a lost node's, only that there is one."""
    if not ref.replaced:
        return reported
    return {
        rank: replace(each, report=None) if _is_stale(each.report, ref.incarnation(rank)) else each
        for rank, each in reported.items()
    }


def _is_stale(report: NodeReport | None, incarnation: int) -> bool:
    return report is not None and report.incarnation < incarnation


def signed(node: NodeStatus, reported: Reported | None) -> NodeStatus:
    """Return a node with its report, and with the report's mark in the list of its run directory."""
    if reported is None:
        return node
    return replace(node, report=reported.report, report_is_newest=reported.is_newest, sign=reported.sign)


@dataclass(slots=True)
class _RunDir:
    """What is known of one run directory."""

    known: dict[str, Reported] = field(default_factory=dict)
    """Reports by the names of their files, which are the same in all run directories."""
    entries: Sequence[Entry] = ()
    """Entries as listed in this look; none between looks."""

    def unread(self) -> list[Entry]:
        return [entry for entry in self.entries if not self._is_current(entry)]

    def _is_current(self, entry: Entry) -> bool:
        known = self.known.get(_file_of(entry))
        return known is not None and known.etag is not None and known.etag == entry.etag

    def listed(self, entries: Sequence[Entry], now: float) -> None:
        self.entries = entries
        for entry in entries:
            if self._is_current(entry):
                name = _file_of(entry)
                self.known[name] = replace(self.known[name], at=now)

    def by_rank(self, now: float) -> dict[int, Reported]:
        """Return what is known of each node that the list has."""
        return {
            rank: replace(known, is_newest=known.at == now, sign=_sign(entry, known))
            for entry in self.entries
            if (rank := rank_of(entry.name)) is not None and (known := self.known.get(_file_of(entry)))
        }

    @property
    def read_at(self) -> float:
        """When the stalest of the reports that were read was last known to be the newest."""
        return min((known.at for known in self.known.values()), default=0.0)


class Reports:
    """Reads what has changed since the last look, of many gangs no more than there is time for.

    A list of the run directories shows which nodes still write, in few calls. Reports are read at once where the
    caller asks for it, and where a node seems to have written its last one. Otherwise gangs are read in turn, and
    each report holds the time at which it was the newest.
    """

    def __init__(self, run_dirs: RunDirStores, clock: Callable[[], float] = time.time) -> None:
        self._run_dirs = run_dirs
        self._clock = clock
        self._dirs: dict[str, _RunDir] = {}
        self._saved = float(SAVED_READS)
        self._read_at = clock()

    def read(self, wanted: Mapping[str, bool]) -> dict[str, dict[int, Reported]]:
        """Return the reports in run directories, by rank; a directory that cannot be read now is left out.

        `wanted` holds for each directory whether all that has changed in it must be read.
        """
        now = self._clock()
        readable = self._list(wanted, now)
        failed = self._read_some(readable, {run_dir for run_dir in readable if wanted[run_dir]}, now)
        read = {
            run_dir: found.by_rank(now)
            for run_dir in readable
            if run_dir not in failed and self._all_known(found := self._dirs[run_dir])
        }
        for run_dir in readable:
            self._dirs[run_dir].entries = ()
        return read

    def forget(self, run_dir: str) -> None:
        """Drop what is kept of a run directory that is no longer read."""
        self._dirs.pop(run_dir, None)

    @staticmethod
    def _all_known(found: _RunDir) -> bool:
        return all(_file_of(entry) in found.known for entry in found.entries)

    def _list(self, run_dirs: Iterable[str], now: float) -> list[str]:
        """List all directories; return those that could be listed."""
        places: dict[str, tuple[Store, dict[str, str]]] = {}
        for run_dir in run_dirs:
            try:
                store, prefix = self._run_dirs.at(run_dir)
            except (StorageError, BackendError, OSError) as error:
                log.warning("%s cannot be read now: %s", run_dir, error)
                continue
            places.setdefault(store.uri, (store, {}))[1][f"{prefix}{NODES_FOLDER}/"] = run_dir
        return [run_dir for store, here in places.values() for run_dir in self._list_place(store, here, now)]

    def _list_place(self, store: Store, here: Mapping[str, str], now: float) -> list[str]:
        """List the directories in one place, each by its prefix there."""
        try:
            found = store.list_each(list(here))
        except (StorageError, BackendError, OSError) as error:
            log.warning("%s: the run directories cannot be read now: %s", store.uri, error)
            return []
        for prefix, run_dir in here.items():
            self._dirs.setdefault(run_dir, _RunDir()).listed(found[prefix], now)
        return list(here.values())

    def _read_some(self, run_dirs: list[str], urgent: set[str], now: float) -> set[str]:
        """Read the reports that are due; return the directories in which that failed."""
        chosen = [
            (run_dir, entry)
            for run_dir in self._chosen(run_dirs, urgent, now)
            for entry in self._dirs[run_dir].unread()
        ]
        until = self._clock() + READING_LIMIT
        failures = in_parallel(
            lambda item: self._read(*item, now, math.inf if item[0] in urgent else until),
            chosen,
            READS_AT_A_TIME,
        )
        return {run_dir for (run_dir, _), failed in zip(chosen, failures, strict=True) if failed}

    def _chosen(self, run_dirs: list[str], urgent: set[str], now: float) -> list[str]:
        if len(run_dirs) <= FEW:
            return run_dirs
        latest = max(
            (_modified(entry) for each in run_dirs for entry in self._dirs[each].entries), default=0.0
        )
        self._saved = min(SAVED_READS, self._saved + READS_PER_S * (now - self._read_at))
        self._read_at = now
        chosen, first_reads = [], FIRST_READS
        for run_dir in sorted(run_dirs, key=lambda each: self._dirs[each].read_at):
            found = self._dirs[run_dir]
            unread = found.unread()
            if run_dir in urgent or any(latest - _modified(entry) > LIKELY_LAST_AFTER for entry in unread):
                chosen.append(run_dir)
            elif any(_file_of(entry) not in found.known for entry in unread):
                if first_reads > 0:
                    first_reads -= len(unread)
                    chosen.append(run_dir)
            elif unread and self._saved >= 1:
                self._saved -= len(unread)
                chosen.append(run_dir)
        return chosen

    def _read(self, run_dir: str, entry: Entry, now: float, until: float) -> bool:
        """Read one report, or leave it for the next look when it is too late; return whether that failed."""
        if self._clock() > until:
            return False
        try:
            store, _ = self._run_dirs.at(run_dir)
            text = store.read(entry.name)
        except (StorageError, BackendError, OSError) as error:
            log.warning("%s: %s cannot be read now: %s", run_dir, entry.name, error)
            return True
        report = report_in(store.uri_of(entry.name), text)
        self._dirs[run_dir].known[_file_of(entry)] = Reported(report, entry.etag, now)
        return False


def _file_of(entry: Entry) -> str:
    """Return the name of a file in its folder, one text for all gangs: a thousand wait in one process."""
    return sys.intern(entry.name.rpartition("/")[2])


def _sign(entry: Entry, known: Reported) -> str:
    if known.etag is not None and known.etag == entry.etag:
        # Of two equal texts one is kept.
        return known.etag
    beat = known.report.heartbeat_at if known.report else None
    # Some stores give no etag; then every report is read at every poll, and its content shows that it is new.
    return entry.etag or f"{entry.modified}/{beat}"


def _modified(entry: Entry) -> float:
    return entry.modified or 0.0


def report_in(place: str, text: bytes) -> NodeReport | None:
    """Return the report that a file holds; None, with a warning, where it is damaged or of another version."""
    try:
        return NodeReport.from_json(text)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        # Of another version, or no report at all: the rest of the gang is still read.
        log.warning("%s is not the report of a node: %s", place, error)
        return None
