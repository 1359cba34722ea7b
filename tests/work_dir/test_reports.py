"""Reports of many gangs: read by a budget, in turn, and at once where a node falls silent or the caller needs one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from airflow_provider_ocidist.model.report import NodeReport, Phase
from airflow_provider_ocidist.storage.stores.base import Store
from airflow_provider_ocidist.storage.stores.local import LocalStore
from airflow_provider_ocidist.work_dir.reports import (
    READING_LIMIT,
    READS_AT_A_TIME,
    READS_PER_S,
    SAVED_READS,
    Reports,
)
from airflow_provider_ocidist.work_dir.run_dir_stores import RunDirStores


class Shelf:
    """Run directories of one node each, on a virtual clock."""

    def __init__(self, folder: Any, count: int) -> None:
        self.now = 1000.0
        self.folder = folder
        self.run_dirs = [str(folder / f"gang-{number}") for number in range(count)]
        self.reads: list[str] = []
        self.takes = 0.0
        """Seconds for a read; those that are made side by side share them."""
        self.reports = Reports(RunDirStores(self._open), clock=lambda: self.now)
        for run_dir in self.run_dirs:
            self.beat(run_dir)

    def _open(self, uri: str) -> Store:
        shelf = self

        class Counted(LocalStore):
            def read(self, name: str) -> bytes:
                shelf.reads.append(uri)
                shelf.now += shelf.takes / READS_AT_A_TIME
                return super().read(name)

            def list(self, prefix: str = "") -> Any:
                return [replace(each, modified=shelf.spoke[uri]) for each in super().list(prefix)]

        return Counted(uri)

    spoke: dict[str, float] = {}  # noqa: RUF012 - of the one shelf in a test

    def beat(self, run_dir: str, **changes: Any) -> None:
        self.spoke[run_dir] = self.now
        report = NodeReport(
            rank=0, phase=Phase.TRAINING, address="", started_at=1000.0, heartbeat_at=self.now
        )
        text = replace(report, **changes).to_json() + b" " * int(self.now - 1000)
        LocalStore(run_dir).write("nodes/0.json", text)

    def read(self, *urgent: str) -> dict[str, Any]:
        self.reads.clear()
        return self.reports.read({run_dir: run_dir in urgent for run_dir in self.run_dirs})


def test_of_many_gangs_each_report_is_read_in_turn_and_says_when_it_was_the_newest(tmp_path: Any) -> None:
    shelf = Shelf(tmp_path, 20)
    assert len(shelf.read()) == 20
    times, read = 6, Counter()
    for _ in range(times):
        shelf.now += 1
        for run_dir in shelf.run_dirs:
            shelf.beat(run_dir)
        told = shelf.read()
        read.update(shelf.reads)
        assert len(told) == 20
        for run_dir in shelf.run_dirs:
            assert (told[run_dir][0].at == shelf.now) == (run_dir in shelf.reads)
    budget = SAVED_READS + READS_PER_S * (times - 1)
    assert budget - 1 <= read.total() <= budget + 1
    assert max(read.values()) - min(read[each] for each in shelf.run_dirs) <= 1


def test_a_node_that_falls_silent_is_read_at_once_and_then_known_to_be_silent(tmp_path: Any) -> None:
    shelf = Shelf(tmp_path, 12)
    shelf.read()
    shelf.reports._saved = 0.0
    quiet, *others = shelf.run_dirs
    shelf.now += 1
    shelf.beat(quiet, phase=Phase.DONE, exit_code=1)
    shelf.now += 7
    for run_dir in others:
        shelf.beat(run_dir)
    told = shelf.read()
    assert quiet in shelf.reads
    assert told[quiet][0].report.phase is Phase.DONE
    shelf.now += 30
    assert shelf.read()[quiet][0].at == shelf.now
    assert quiet not in shelf.reads


def test_what_the_caller_needs_is_read_whatever_was_read_before(tmp_path: Any) -> None:
    shelf = Shelf(tmp_path, 12)
    shelf.read()
    shelf.reports._saved = 0.0
    shelf.now += 0.1
    for run_dir in shelf.run_dirs:
        shelf.beat(run_dir, message="news")
    assert shelf.read(shelf.run_dirs[5])[shelf.run_dirs[5]][0].report.message == "news"
    assert shelf.reads == [shelf.run_dirs[5]]


def test_a_slow_store_holds_no_look_up_and_what_is_left_is_read_in_the_next_ones(tmp_path: Any) -> None:
    shelf = Shelf(tmp_path, 500)
    shelf.takes = 0.2
    first: dict[str, int] = {}
    for look in range(5):
        began = shelf.now
        told = shelf.read()
        assert shelf.now - began <= READING_LIMIT + 2 * shelf.takes
        for run_dir in shelf.reads:
            first.setdefault(run_dir, look)
        assert told.keys() == first.keys()
        shelf.now = began + 10.0
        for run_dir in shelf.run_dirs:
            shelf.beat(run_dir)
    assert first.keys() == set(shelf.run_dirs)


def test_of_a_gang_that_has_ended_all_is_read_however_slow_the_store_is(tmp_path: Any) -> None:
    shelf = Shelf(tmp_path, 100)
    shelf.takes = 60.0
    over = shelf.run_dirs[50:80]
    assert set(over) <= shelf.read(*over).keys()
