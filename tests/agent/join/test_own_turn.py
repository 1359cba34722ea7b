"""A pod that was made in the place of another is no node until the one before counts as lost."""

from __future__ import annotations

import random
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.agent import start as agent
from airflow_provider_ocidist.agent.join import container_restart, own_turn
from airflow_provider_ocidist.agent.join.own_turn import Abandoned, Found, await_own_turn
from airflow_provider_ocidist.agent.stopping import Stop, Stopped, StopSwitch
from airflow_provider_ocidist.errors import AgentError, Cause
from airflow_provider_ocidist.model.agent_config import INSTANCE_VARIABLE, RANK_VARIABLE, AgentConfig
from airflow_provider_ocidist.model.job import Limits, Program
from airflow_provider_ocidist.model.replaced import Replaced
from airflow_provider_ocidist.model.report import NodeReport, Phase, Restart, StopRequest
from airflow_provider_ocidist.model.work_dir import LEASE_FILE, REPLACED_FILE, STOP_FILE, report_of

END = StopRequest(cause=Cause.CANCELED, message="enough")
PATIENCE = 60.0


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_turn, "LOOK_INTERVAL", 0.02)


def config(folder: Path, *, replaces: bool = True, lease: float = 600.0) -> AgentConfig:
    program = Program(script="train.py")
    return AgentConfig(
        limits=Limits(lease=lease),
        run_name="run",
        nodes=3,
        run_dir=str(folder),
        program=program,
        replaces=replaces,
        starts_again=replaces,
    )


def environment(instance: str, rank: int = 1) -> dict[str, str]:
    return {RANK_VARIABLE: str(rank), INSTANCE_VARIABLE: instance}


def a_report(instance: str, incarnation: int = 0, rank: int = 1) -> NodeReport:
    return NodeReport(
        rank=rank,
        phase=Phase.TRAINING,
        address="",
        started_at=1.0,
        heartbeat_at=2.0,
        instance=instance,
        incarnation=incarnation,
    )


def losses(*lost: tuple[int, str]) -> Replaced:
    return Replaced(
        replaced=tuple(Restart(cause=Cause.NODE, message="gone", rank=rank) for rank, _ in lost),
        lost_runs=tuple(instance for _, instance in lost),
    )


def write(folder: Path, name: str, content: bytes) -> None:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(".new")
    new.write_bytes(content)
    new.rename(file)


def turn(
    folder: Path, instance: str, *, patience: float = PATIENCE, switch: StopSwitch | None = None
) -> int | None:
    return await_own_turn(config(folder), environment(instance), switch or StopSwitch(), patience)


def test_the_first_pod_begins_at_once_also_after_it_has_reported(tmp_path: Path) -> None:
    assert turn(tmp_path, "a") == 0
    write(tmp_path, report_of(1), a_report("a").to_json())
    assert turn(tmp_path, "a") == 0


def test_one_that_comes_before_any_has_reported_is_the_first(tmp_path: Path) -> None:
    write(tmp_path, report_of(0), a_report("other", rank=0).to_json())
    write(tmp_path, REPLACED_FILE, losses((0, "x")).to_json())
    assert turn(tmp_path, "b") == 0


def test_where_nothing_is_replaced_nobody_waits_and_nothing_is_read(tmp_path: Path) -> None:
    place = tmp_path / "missing"
    assert await_own_turn(config(place, replaces=False), environment("a"), StopSwitch(), PATIENCE) is None
    assert await_own_turn(config(place), {RANK_VARIABLE: "1"}, StopSwitch(), PATIENCE) is None


def test_a_new_pod_waits_until_the_one_before_counts_as_lost(tmp_path: Path) -> None:
    write(tmp_path, report_of(1), a_report("a").to_json())
    looks = 0
    real = own_turn._look

    def look(*given: Any) -> Found:
        nonlocal looks
        looks += 1
        if looks == 4:
            write(tmp_path, REPLACED_FILE, losses((2, "z"), (1, "a")).to_json())
        return real(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own_turn, "_look", look)
        assert turn(tmp_path, "b") == 1
    assert looks == 4


def test_one_that_was_given_up_itself_ends(tmp_path: Path) -> None:
    write(tmp_path, report_of(1), a_report("a").to_json())
    write(tmp_path, REPLACED_FILE, losses((1, "a")).to_json())
    with pytest.raises(Stopped) as caught:
        turn(tmp_path, "a")
    assert caught.value.stop.is_lost
    assert not isinstance(caught.value, Abandoned), "another has its place"


def test_one_that_waits_ends_with_the_run_with_its_patience_and_by_a_signal(tmp_path: Path) -> None:
    write(tmp_path, report_of(1), a_report("a").to_json())
    with pytest.raises(AgentError, match="did not record in time") as caught:
        turn(tmp_path, "b", patience=0.1)
    assert caught.value.cause is Cause.NODE
    switch = StopSwitch()
    threading.Timer(0.1, switch.ask, (Stop(message="SIGTERM"),)).start()
    with pytest.raises(Stopped, match="SIGTERM") as signalled:
        turn(tmp_path, "b", switch=switch)
    assert not isinstance(signalled.value, Abandoned)
    write(tmp_path, STOP_FILE, END.to_json())
    with pytest.raises(Abandoned, match="enough"):
        turn(tmp_path, "b")


def test_one_that_waits_ends_once_nobody_waits_for_the_run_by_its_own_clock(tmp_path: Path) -> None:
    write(tmp_path, report_of(1), a_report("a").to_json())
    write(tmp_path, LEASE_FILE, b"1")
    renewals = 0
    real = own_turn._look

    def look(*given: Any) -> Found:
        nonlocal renewals
        if renewals < 20:
            renewals += 1
            write(tmp_path, LEASE_FILE, str(renewals).encode())
        return real(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own_turn, "_look", look)
        with pytest.raises(Abandoned, match="nobody has waited for this run"):
            await_own_turn(config(tmp_path, lease=0.6), environment("b"), StopSwitch(), PATIENCE)
    assert renewals == 20, "as long as it is renewed the node waits"
    # Without a first renewal there is no lease.
    (tmp_path / LEASE_FILE).unlink()
    with pytest.raises(AgentError, match="did not record in time"):
        await_own_turn(config(tmp_path, lease=0.05), environment("b"), StopSwitch(), 1.0)


def test_another_launch_is_no_reason_for_a_waiting_pod_to_end(tmp_path: Path) -> None:
    restart = Restart(cause=Cause.NODE, message="gone", rank=1, lost=(1,))
    found = Found(lost=Replaced(), before=a_report("a"), request=replace(END, restarts=(restart,)))
    assert found.turn(1, "b") is None
    assert replace(found, lost=losses((1, "a"))).turn(1, "b") == 1


def test_of_any_pods_only_the_one_that_is_there_after_the_last_loss_is_a_node() -> None:
    seed = random.randrange(10_000)
    print("seed", seed)
    draw = random.Random(seed)
    for _ in range(200):
        made = [f"pod-{number}" for number in range(draw.randint(1, 6))]
        # Some have reported and were lost; of the others nothing is known.
        lost = draw.randrange(len(made))
        known = losses(*((1, each) for each in made[:lost]))
        reporter = draw.choice([None, *range(lost + 1)])
        before = None if reporter is None else a_report(made[reporter], reporter)
        found = Found(lost=known, before=before, request=None)
        for number, each in enumerate(made):
            if number < lost:
                with pytest.raises(Stopped):
                    found.turn(1, each)
            else:
                is_taken = reporter == lost and number != lost
                assert found.turn(1, each) == (None if is_taken else lost)


def test_a_second_start_in_a_pod_is_distinguished_from_a_pod_in_the_place_of_another(tmp_path: Path) -> None:
    write(tmp_path, report_of(1), a_report("a").to_json())
    for instance, is_second in (("a", True), ("b", False)):
        before = container_restart.report_before(config(tmp_path), environment(instance), StopSwitch())
        assert (before is not None) == is_second


@pytest.mark.parametrize("end", ["nobody needs it", "signal", "another has its place"])
def test_a_waiting_pod_that_nobody_needs_ends_for_good_and_later_than_the_others_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    write(tmp_path, report_of(1), a_report("a").to_json())
    if end == "another has its place":
        write(tmp_path, REPLACED_FILE, losses((1, "b")).to_json())
    else:
        write(tmp_path, STOP_FILE, END.to_json())
    switch, stays = StopSwitch(), []

    class Event(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            stays.append(timeout)
            return end == "signal"

    switch.event = Event()
    monkeypatch.setattr(agent, "StopSwitch", lambda: switch)
    monkeypatch.setattr(switch, "ask_on_signals", lambda: None)
    for name, value in {**config(tmp_path).to_env(), **environment("b")}.items():
        monkeypatch.setenv(name, value)
    # A platform that starts again what has failed leaves alone what ends with 0.
    assert agent.run_node([]) == (0 if end == "nobody needs it" else 143)
    assert stays == ([] if end == "another has its place" else [container_restart.STAY])
