"""Far writers: what other nodes that share the checkpoint folder have open for writing there, by their reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from airflow_provider_ocidist.agent.join.peer_reports import PeerLiveness, read_report
from airflow_provider_ocidist.agent.save.entries import Candidate, Signature
from airflow_provider_ocidist.agent.save.open_files import open_files_in, open_for_writing
from airflow_provider_ocidist.model.report import NodeReport
from airflow_provider_ocidist.storage.stores.base import Store

BEATS = 2
"""Number of new reports after which a doubt passes: the first may stem from a look before the last write."""
MOST_NAMES = 16
"""Most names of entries that a report carries."""


def written_entries(folder: Path) -> tuple[str, ...]:
    """Return the names of the entries of a folder to which a process of this node's training could still write."""
    names = {
        name.split("/")[1] for name in open_files_in(folder, open_for_writing(mapped=False)) if "/" in name
    }
    return tuple(sorted(names)[:MOST_NAMES])


class FarWriters:
    """Shows the main node which other nodes may still write to the folder that they share with it."""

    def __init__(
        self, store: Store, ranks: Sequence[int], *, patient: Callable[[], bool], launch: int | None = None
    ) -> None:
        """`store`: the run directory; `ranks`: of the nodes that share the folder.

        `patient`: whether one that is silent is waited for. `launch`: the one that writes; who has gone back for a
        later one writes no more. None: not known.
        """
        self._store = store
        self._ranks = tuple(ranks)
        self._launch = launch
        self._peers = PeerLiveness(store, patient=patient)
        self._heard: dict[Path, tuple[Signature, dict[int, tuple[float, int]]]] = {}
        """Content of each entry, with the last heartbeat of each rank and the number of new ones since that content was
        seen."""

    def doubt(self, item: Candidate) -> str | None:
        """Return why a node may still write to an entry, None where none does."""
        content, heard = self._heard.get(item.path, (None, {}))
        if content != item.signature:
            heard = {}
        self._heard[item.path] = (item.signature, heard)
        # Each node is asked at once, so that the waits for all begin at the same time.
        doubts = [self._doubt_of(rank, item.path.name, heard) for rank in self._ranks]
        return next((doubt for doubt in doubts if doubt), None)

    def have_ended(self) -> bool:
        """Whether the program has ended on all of them, as far as can be known."""
        return all(self._has_ended(rank) for rank in self._ranks)

    def _doubt_of(self, rank: int, name: str, heard: dict[int, tuple[float, int]]) -> str | None:
        report = read_report(self._store, rank)
        if report is not None and name in (report.writing or ()):
            # A program that has ended in any other way than with 0 had it open until then.
            heard.pop(rank, None)
            return f"node {rank}, which shares the folder, has a file of it open for writing"
        if report is not None and self._is_done(report):
            return None
        if report is None or report.writing is None or self._beats(report, heard) < BEATS:
            return (
                f"node {rank}, which shares the folder, has not reported since that it does not write to it"
            )
        return None

    def _beats(self, report: NodeReport, heard: dict[int, tuple[float, int]]) -> int:
        beat, count = heard.get(report.rank, (report.heartbeat_at, 0))
        heard[report.rank] = (report.heartbeat_at, count + (beat != report.heartbeat_at))
        return heard[report.rank][1]

    def _has_ended(self, rank: int) -> bool:
        report = read_report(self._store, rank)
        return (report is not None and self._is_done(report)) or self._peers.ended(rank)

    def _is_done(self, report: NodeReport) -> bool:
        """Whether the program of that launch has ended there."""
        is_later = self._launch is not None and len(report.restarts) > self._launch
        return report.program_has_ended or is_later
