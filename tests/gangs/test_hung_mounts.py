"""One gang whose work directory is on a mount that hangs: the poller, and the leases of all others, go on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.gangs import poller as poller_module
from airflow_provider_ocidist.gangs.leases import LeaseKeeper
from airflow_provider_ocidist.gangs.poller import Poller
from airflow_provider_ocidist.gangs.task_watch import TaskWatch
from airflow_provider_ocidist.gangs.watch import Watch
from airflow_provider_ocidist.model.run import RunRecord
from airflow_provider_ocidist.model.work_dir import LEASE_FILE
from airflow_provider_ocidist.storage.stores.base import Store
from airflow_provider_ocidist.work_dir import bounded_store
from scripts.emulator_process import Access
from scripts.idle_gangs import IdleGangs, idle_gangs
from tests.gangs.test_poller import until
from tests.work_dir.hung_mounts import HungMount

LOG = logging.getLogger("test")
GANGS = 4


@pytest.fixture(scope="module")
def idle(emulator: Access) -> Iterator[IdleGangs]:
    with idle_gangs(emulator, GANGS) as gangs:
        gangs.report(gangs.records)
        yield gangs


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[HungMount]:
    found = HungMount(tmp_path)
    yield found
    found.close()


class Source(OciDataScience):
    """A backend whose gangs may be on the mount, and the source of itself."""

    mount: HungMount

    def _store(self, run_dir: str) -> Store:
        return self.mount.store(run_dir) if run_dir.startswith("/") else super()._store(run_dir)

    @property
    def backend(self) -> Source:
        return self

    def refresh(self, *, anew: bool) -> None:
        del anew


class Waiting:
    """A process that waits for a gang."""

    def __init__(self, poller: Poller, watch: Watch) -> None:
        self.outcomes: list[Any] = []
        self.has_outcome = threading.Event()
        self.watch = watch
        self.followed = poller.follow(watch, 0.2, self._take)

    def _take(self, outcome: Any) -> None:
        self.outcomes.append(outcome)
        self.has_outcome.set()


@pytest.fixture
def source(idle: IdleGangs, mount: HungMount, monkeypatch: pytest.MonkeyPatch) -> Source:
    monkeypatch.setattr(poller_module, "GATHERING", 0.05)
    monkeypatch.setattr(bounded_store, "ANSWERS_WITHIN", 0.5)
    made = Source.connect(idle.emulator.connection_fields(work_dir=idle.emulator.work_dir))
    made.mount = mount
    return made


def moved(record: RunRecord, folder: Path, **changes: Any) -> RunRecord:
    """Return the record of a gang whose run directory is on the mount."""
    return replace(record, ref=replace(record.ref, run_dir=str(folder / "work" / "run")), **changes)


def test_the_others_are_looked_at_and_end_while_the_mount_of_one_hangs(
    idle: IdleGangs, source: Source, mount: HungMount, tmp_path: Path
) -> None:
    hung, ends, *rest = idle.records
    poller = Poller(source)
    there = Waiting(poller, Watch(source, moved(hung, tmp_path), LOG))
    others = [Waiting(poller, Watch(source, record, LOG)) for record in (ends, *rest)]
    until(lambda: mount.calls)
    idle.backend.cancel(ends.ref)
    assert others[0].has_outcome.wait(30), "the look at all waits for the mount"
    assert not any(other.outcomes for other in others[1:])
    assert not there.outcomes, "a mount that hangs is an outage of the store, not the end of a gang"
    assert there.watch.status is not None
    assert len(mount.calls) == 1, "each call that hangs keeps a thread"
    mount.answer()
    # It is read again as soon as the mount answers.
    until(lambda: len(mount.calls) > 1, 30)
    for waiting in (there, *others[1:]):
        poller.leave(waiting.followed)


def test_the_leases_of_others_are_renewed_while_the_mount_of_one_hangs(
    idle: IdleGangs, source: Source, mount: HungMount, tmp_path: Path
) -> None:
    hung, _, *rest = (replace(record, lease=3.0) for record in idle.records)
    keeper = LeaseKeeper()
    watches = [Watch(source, record, LOG) for record in (moved(hung, tmp_path, lease=3.0), *rest)]
    for watch in watches:
        keeper.keep(watch)
    renewed: dict[str, set[bytes]] = {record.ref.run_dir: set() for record in rest}

    def all_twice() -> bool:
        for run_dir, found in renewed.items():
            store, prefix = source._run_dirs.at(run_dir)
            if store.exists(prefix + LEASE_FILE):
                found.add(store.read(prefix + LEASE_FILE))
        return all(len(found) >= 3 for found in renewed.values())

    until(all_twice, 30)
    assert mount.calls
    for watch in watches:
        keeper.leave(watch)


def test_who_takes_over_a_gang_goes_on_without_the_cursor_that_a_mount_does_not_show(
    idle: IdleGangs, source: Source, tmp_path: Path
) -> None:
    record = moved(idle.records[0], tmp_path)
    assert record.ref.has_log
    taken: list[TaskWatch] = []
    thread = threading.Thread(
        target=lambda: taken.append(TaskWatch(source, record, LOG, 1).go_on()), daemon=True
    )
    thread.start()
    thread.join(30)
    assert taken, "it waits for the mount"
