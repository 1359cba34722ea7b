"""A node that its platform starts again does nothing: its gang is retried whole."""

from __future__ import annotations

import errno
import random
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent import store_retries
from airflow_provider_ocidist.agent.join import container_restart, run_directory
from airflow_provider_ocidist.agent.stopping import Stop, StopSwitch
from airflow_provider_ocidist.errors import AgentError, Cause, StorageError
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.job import Limits, Program
from airflow_provider_ocidist.model.report import NodeReport, Phase, Restart, StopRequest
from airflow_provider_ocidist.model.work_dir import LEASE_FILE, STOP_FILE, report_of
from airflow_provider_ocidist.storage.stores.base import Buffer
from airflow_provider_ocidist.storage.stores.local import LocalStore
from airflow_provider_ocidist.storage.stores.local_files import local_errors

PATIENCE = 600.0


def config(folder: Path, *, starts_again: bool = True) -> AgentConfig:
    return AgentConfig(
        run_name="run",
        nodes=3,
        run_dir=str(folder),
        program=Program(script="train.py"),
        starts_again=starts_again,
    )


def write(folder: Path, report: NodeReport) -> Path:
    file = folder / report_of(report.rank)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(report.to_json())
    return file


def a_report(rank: int, phase: Phase, code: int = 3) -> NodeReport:
    exit_code = code if phase is Phase.DONE else None
    return NodeReport(
        rank=rank, phase=phase, address="", started_at=1.0, heartbeat_at=2.0, exit_code=exit_code
    )


def environment(rank: int) -> dict[str, str]:
    return {"PET_NODE_RANK": str(rank), "PET_NNODES": "3"}


def test_only_a_node_of_this_rank_that_has_begun_is_a_second_start(tmp_path: Path) -> None:
    seed = random.randrange(10_000)
    print("seed", seed)
    draw = random.Random(seed)
    for number in range(40):
        folder = tmp_path / str(number)
        folder.mkdir()
        begun = {rank: draw.choice(list(Phase)) for rank in range(3) if draw.random() < 0.5}
        for rank, phase in begun.items():
            write(folder, a_report(rank, phase, draw.choice((0, 3))))
        rank = draw.randrange(3)
        before = {file: file.read_bytes() for file in folder.rglob("*.json")}
        found_before = container_restart.report_before(config(folder), environment(rank), StopSwitch())
        assert (found_before is not None) == (rank in begun)
        assert {file: file.read_bytes() for file in folder.rglob("*.json")} == before, (
            "to look changes nothing"
        )
        if found_before is not None:
            container_restart.close_report(found_before, config(folder), environment(rank), StopSwitch())
        for file, content in before.items():
            found, was = NodeReport.from_json(file.read_bytes()), NodeReport.from_json(content)
            if found.rank == rank and was.phase is not Phase.DONE:
                assert (found.phase, found.lost, found.exit_code) == (Phase.DONE, True, None)
                assert found.message
            elif found.rank == rank:
                assert found == replace(was, lost=was.exit_code != 0)
            else:
                assert found == was


def test_where_nobody_starts_a_node_again_nothing_is_looked_up(tmp_path: Path) -> None:
    write(tmp_path, a_report(0, Phase.TRAINING))
    assert (
        container_restart.report_before(config(tmp_path, starts_again=False), environment(0), StopSwitch())
        is None
    )


def test_a_damaged_report_is_an_error_and_not_a_first_start(tmp_path: Path) -> None:
    write(tmp_path, a_report(0, Phase.TRAINING)).write_bytes(b"{")
    with pytest.raises(AgentError):
        container_restart.report_before(config(tmp_path), environment(0), StopSwitch())


class Away(LocalStore):
    """A run directory whose store does not answer the first requests."""

    faults = 2
    fault: Exception

    def _answer(self) -> None:
        Away.faults -= 1
        if Away.faults >= 0:
            with local_errors(Path(self.uri)):
                raise Away.fault

    def read(self, name: str) -> bytes:
        self._answer()
        return super().read(name)

    def write(self, name: str, data: Buffer) -> str | None:
        self._answer()
        return super().write(name, data)


@pytest.mark.parametrize(
    "fault",
    [
        StorageError("the store is down", retryable=True),
        OSError(errno.ESTALE, "stale file handle"),
        OSError(errno.ETIMEDOUT, "connection timed out"),
        OSError(errno.ENOSPC, "no space left on device"),
    ],
    ids=str,
)
def test_a_store_that_does_not_answer_for_a_moment_makes_no_node_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    begun = a_report(0, Phase.TRAINING)
    write(tmp_path, begun)
    monkeypatch.setattr(run_directory, "open_store", lambda uri, _: Away(uri))
    monkeypatch.setattr(store_retries, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(Away, "faults", 2)
    monkeypatch.setattr(Away, "fault", fault, raising=False)
    place = config(tmp_path), environment(0), StopSwitch()
    assert container_restart.report_before(*place) == begun
    Away.faults = 2
    container_restart.close_report(begun, *place)
    assert NodeReport.from_json((tmp_path / report_of(0)).read_bytes()).lost


@pytest.mark.parametrize(
    "fault, cause",
    [
        (StorageError("the store is down", retryable=True), Cause.SERVICE),
        (OSError(errno.ESTALE, "stale file handle"), Cause.SERVICE),
        (OSError(errno.EACCES, "permission denied"), Cause.CONFIG),
    ],
    ids=str,
)
def test_a_fault_that_does_not_pass_in_time_has_the_cause_that_airflow_may_retry_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception, cause: Cause
) -> None:
    monkeypatch.setattr(run_directory, "open_store", lambda uri, _: Away(uri))
    monkeypatch.setattr(store_retries, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(Away, "faults", 10**6)
    monkeypatch.setattr(Away, "fault", fault, raising=False)
    limited = config(tmp_path)
    limited = replace(limited, limits=replace(limited.limits, join_timeout=0.05))
    with pytest.raises(AgentError) as caught:
        container_restart.report_before(limited, environment(0), StopSwitch())
    assert caught.value.cause is cause


def idling(
    folder: Path,
    switch: StopSwitch,
    ends: list[bool],
    lease: float = 600.0,
    *,
    replaces: bool = True,
    patience: float = PATIENCE,
) -> threading.Thread:
    """Return a thread in which a node idles; `ends`: gets whether nobody needs it any more."""
    limited = replace(config(folder), replaces=replaces, limits=Limits(lease=lease))
    given = (limited, environment(0), switch, patience if replaces else 0.0)

    def idle() -> None:
        ends.append(container_restart.wait_for_end(*given))

    waiting = threading.Thread(target=idle, daemon=True)
    waiting.start()
    return waiting


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container_restart, "LOOK_INTERVAL", 0.02)
    monkeypatch.setattr(container_restart, "STAY", 0.1)


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize("is_ended", [True, False])
def test_one_that_idles_says_why_it_does_no_longer_and_stays_for_the_last_save_of_the_others_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_ended: bool
) -> None:
    waits: list[float | None] = []

    class Event(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout)
            return False

    if is_ended:
        request = StopRequest(cause=Cause.CANCELED, message="enough")
        (tmp_path / STOP_FILE).write_bytes(request.to_json())
    switch = StopSwitch()
    switch.event = Event()
    limited = replace(config(tmp_path), replaces=True)
    assert container_restart.wait_for_end(limited, environment(0), switch, 0.2)
    assert set(waits[:-1]) == {container_restart.LOOK_INTERVAL}
    assert waits[-1] == (container_restart.STAY if is_ended else 0.0)
    (line,) = [each for each in caplog.messages if each.startswith("the node stays idle no longer: ")]
    assert line.endswith("enough" if is_ended else ": no other pod has taken its place in time")


@pytest.mark.usefixtures("_quick")
def test_one_that_idles_where_another_pod_may_come_ends_with_the_run(tmp_path: Path) -> None:
    restart = Restart(cause=Cause.NODE, message="gone", rank=0)
    request = StopRequest(cause=Cause.NODE, message="another launch", restarts=(restart,))
    (tmp_path / STOP_FILE).write_bytes(request.to_json())
    waiting = idling(tmp_path, StopSwitch(), ends := [])
    waiting.join(0.5)
    assert waiting.is_alive(), "another pod may take its place"
    for content in (b"{", request.to_json(), replace(request, restarts=()).to_json()):
        (tmp_path / "new").write_bytes(content)
        (tmp_path / "new").rename(tmp_path / STOP_FILE)
    waiting.join(30)
    assert ends == [True]


@pytest.mark.usefixtures("_quick")
def test_one_that_idles_where_another_pod_may_come_ends_once_nobody_waits_for_the_run(tmp_path: Path) -> None:
    waiting = idling(tmp_path, StopSwitch(), ends := [], lease=0.6)
    waiting.join(1.2)
    assert waiting.is_alive(), "without a first renewal there is no lease"
    (tmp_path / LEASE_FILE).write_bytes(b"1")
    waiting.join(30)
    assert ends == [True]


@pytest.mark.usefixtures("_quick")
def test_one_in_whose_place_no_other_pod_comes_ends_with_its_patience(tmp_path: Path) -> None:
    waiting = idling(tmp_path, StopSwitch(), ends := [], patience=0.3)
    waiting.join(30)
    assert ends == [True]


@pytest.mark.usefixtures("_quick")
def test_while_the_task_may_read_its_log_one_that_idles_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container_restart, "STAY", 600.0)
    request = StopRequest(cause=Cause.CANCELED, message="enough")
    (tmp_path / STOP_FILE).write_bytes(request.to_json())
    switch = StopSwitch()
    waiting = idling(tmp_path, switch, ends := [])
    waiting.join(0.5)
    assert waiting.is_alive()
    switch.ask(Stop(message="deleted"))
    waiting.join(30)
    assert ends == [False]


def test_a_report_of_the_node_in_its_place_is_left_alone(tmp_path: Path) -> None:
    own = replace(a_report(0, Phase.TRAINING), instance="a")
    for later in (replace(own, instance="b", incarnation=1), replace(own, incarnation=1)):
        file = write(tmp_path, later)
        container_restart.close_report(own, config(tmp_path), environment(0), StopSwitch())
        assert NodeReport.from_json(file.read_bytes()) == later
    file = write(tmp_path, replace(own, heartbeat_at=9.0))
    container_restart.close_report(own, config(tmp_path), environment(0), StopSwitch())
    assert NodeReport.from_json(file.read_bytes()).lost


def test_it_stays_until_it_is_ended(tmp_path: Path) -> None:
    switch = StopSwitch()
    waiting = idling(tmp_path, switch, ends := [], replaces=False)
    time.sleep(0.05)
    assert waiting.is_alive()
    switch.ask(Stop(message="deleted"))
    waiting.join(30)
    assert ends == [False]
