"""Which nodes of a gang are lost is recorded once, by the first that finds it, and read by each that comes next."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.errors import BackendError, Cause
from airflow_provider_ocidist.model.replaced import Replaced
from airflow_provider_ocidist.model.report import Restart
from airflow_provider_ocidist.model.run import RunRef
from airflow_provider_ocidist.model.work_dir import REPLACED_FILE, report_of
from airflow_provider_ocidist.storage.stores.local import LocalStore
from airflow_provider_ocidist.storage.stores.opening import open_store
from airflow_provider_ocidist.work_dir import lost_runs
from airflow_provider_ocidist.work_dir.run_dir_stores import RunDirStores
from tests.gangs.test_replacement_rules import a_ref, a_report


def losses(count: int, who: str = "") -> Replaced:
    return Replaced(
        replaced=tuple(Restart(cause=Cause.NODE, message="gone", rank=rank) for rank in range(count)),
        lost_runs=tuple(f"run{rank}{who}" for rank in range(count)),
        lost_seconds=10.0 * count,
    )


@pytest.fixture
def ref(tmp_path: Path) -> RunRef:
    return a_ref(run_dir=str(tmp_path / "run"))


def knows(ref: RunRef, known: Replaced) -> RunRef:
    return a_ref(run_dir=ref.run_dir, replaced=known.replaced, lost_runs=known.lost_runs)


def leave(ref: RunRef, name: str, content: bytes) -> None:
    file = Path(ref.run_dir, name)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


DIRS = RunDirStores(open_store)


def test_before_a_loss_none_is_recorded(ref: RunRef) -> None:
    assert lost_runs.read(DIRS, ref) == Replaced()


@pytest.mark.parametrize("number", range(10))
def test_of_several_processes_one_records_each_loss_and_the_others_learn_what_it_has_recorded(
    ref: RunRef, number: int
) -> None:
    draw = random.Random(f"20261127.{number}")
    print(f"seed 20261127.{number}")
    known = dict.fromkeys("abc", Replaced())
    recorded = Replaced()
    for _ in range(12):
        who = draw.choice([*known])
        mine = losses(len(known[who].replaced) + 1, who)
        found = lost_runs.record(DIRS, knows(ref, known[who]), mine)
        if known[who].replaced == recorded.replaced:
            recorded = mine
        assert found == recorded == lost_runs.read(DIRS, ref)
        known[who] = found


def test_what_another_process_records_at_the_same_time_counts(ref: RunRef) -> None:
    other, written = losses(1, "other"), 0

    class Busy(LocalStore):
        def write_if(self, name: str, data: bytes, etag: str | None) -> bool:
            nonlocal written
            written += 1
            if written == 1:
                leave(ref, REPLACED_FILE, other.to_json())
            return super().write_if(name, data, etag)

    assert lost_runs.record(RunDirStores(Busy), ref, losses(1, "mine")) == other
    assert lost_runs.read(DIRS, ref) == other
    assert written == 1, "what another has recorded is not written again"


def test_gangs_in_one_bucket_are_kept_apart(ref: RunRef, tmp_path: Path) -> None:
    """There one store serves all run directories, each by a prefix."""

    class OneStore:
        def at(self, run_dir: str) -> Any:
            return LocalStore(tmp_path), f"{Path(run_dir).name}/"

    one: Any = OneStore()
    other = a_ref(run_dir=str(tmp_path / "other"))
    lost_runs.record(one, ref, losses(2))
    leave(ref, report_of(1), a_report(1, instance="here").to_json())
    assert lost_runs.read(one, ref) == losses(2)
    assert lost_runs.read(one, other) == Replaced()
    assert (tmp_path / "run" / REPLACED_FILE).exists()
    (found,) = lost_runs.reports(one, ref, [1]).values()
    assert found
    assert found.instance == "here"
    assert lost_runs.reports(one, other, [1]) == {1: None}


def test_the_last_reports_are_returned_of_exactly_the_ranks_that_are_asked_for(
    ref: RunRef, caplog: pytest.LogCaptureFixture
) -> None:
    for rank in (0, 1):
        leave(ref, report_of(rank), a_report(rank).to_json())
    leave(ref, report_of(2), b"{")
    assert lost_runs.reports(DIRS, ref, [1, 2, 3]) == {1: a_report(1), 2: None, 3: None}
    (message,) = caplog.messages
    assert message.startswith(f"{report_of(2)} is not the report of a node: "), (
        "the damaged one, and no other"
    )


@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff", b'{"replaced": 7}'], ids=repr)
def test_a_damaged_record_is_an_error_that_names_the_run_and_is_never_overwritten(
    ref: RunRef, content: bytes
) -> None:
    leave(ref, REPLACED_FILE, content)
    for asked in (
        lambda: lost_runs.read(DIRS, ref),
        lambda: lost_runs.record(DIRS, ref, losses(1)),
    ):
        with pytest.raises(BackendError, match=f"^{ref.key.name}: .") as caught:
            asked()
        assert caught.value.retryable
        assert caught.value.__cause__ is not None
    assert Path(ref.run_dir, REPLACED_FILE).read_bytes() == content


def test_a_place_that_cannot_be_read_is_an_error_that_may_pass(ref: RunRef) -> None:
    Path(ref.run_dir).write_text("in the way")
    for asked in (
        lambda: lost_runs.record(DIRS, ref, losses(1)),
        lambda: lost_runs.reports(RunDirStores(_down), ref, [1]),
        lambda: lost_runs.read(RunDirStores(_down), ref),
    ):
        with pytest.raises(BackendError, match=f"^{ref.key.name}: ") as caught:
            asked()
        assert caught.value.retryable


def _down(uri: str) -> Any:
    raise OSError(f"{uri} does not answer")
