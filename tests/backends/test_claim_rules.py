"""A try that gives up ends its gang, unless a later try of its task owns that."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.backends import claims
from airflow_provider_ocidist.backends.claims import end_unless_overtaken, overtaken, overtaken_by
from airflow_provider_ocidist.errors import BackendError, Overtaken
from airflow_provider_ocidist.model.run import Plan, RunRef, Tries
from airflow_provider_ocidist.storage.stores.opening import open_store
from airflow_provider_ocidist.work_dir.run_dir_stores import RunDirStores
from airflow_provider_ocidist.work_dir.run_directories import RunDirectories
from tests.service_in_memory import LIVE, Model
from tests.training_jobs import a_key


@pytest.fixture
def ref(tmp_path: Path) -> RunRef:
    return Model().has(a_key(), [LIVE, LIVE], run_dir=str(tmp_path / "run"))


@pytest.fixture
def directories() -> RunDirectories:
    return RunDirectories(RunDirStores(open_store), RunDirStores(open_store))


class Silent:
    """A work directory that does not answer until the test is over."""

    def __init__(self) -> None:
        self.answers = threading.Event()

    def claimed_by(self, gang: Any) -> int:
        assert gang is not None
        self.answers.wait(60)
        return 9


@pytest.fixture
def silent() -> Iterator[Any]:
    place = Silent()
    yield place
    place.answers.set()


def test_who_owns_a_gang_or_came_later_gives_it_up_and_who_came_earlier_learns_the_owner(
    directories: RunDirectories, ref: RunRef
) -> None:
    assert overtaken_by(directories, ref, 1) is None, "nobody has claimed it"
    directories.claim(ref, 3)
    for earlier in (1, 2):
        error = overtaken_by(directories, ref, earlier)
        assert isinstance(error, Overtaken)
        assert (error.try_number, str(error)) == (
            3,
            f"{ref.key.name} is left running: try 3 of its task owns it",
        )
    for owner in (3, 4):
        assert overtaken_by(directories, ref, owner) is None


def test_a_plan_of_one_try_is_asked_about_by_its_number_and_a_plan_without_tries_is_nobody_elses(
    directories: RunDirectories, ref: RunRef
) -> None:
    directories.claim(ref, 3)

    def plan(tries: Tries | None) -> Plan:
        return Plan(
            key=ref.key,
            backend=ref.backend,
            nodes=ref.nodes,
            topology="one run for each node",
            reason="the test says so",
            requests=(),
            run_dir=ref.run_dir,
            tries=tries,
        )

    error = overtaken(plan(Tries(try_number=2, max_tries=5)), directories)
    assert isinstance(error, Overtaken)
    assert error.try_number == 3
    assert overtaken(plan(Tries(try_number=3, max_tries=5)), directories) is None
    assert overtaken(plan(None), directories) is None


def test_without_an_answer_in_time_the_gang_is_this_trys(
    silent: Any, ref: RunRef, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert overtaken_by(silent, ref, 1, within=0.05) is None
    monkeypatch.setattr(claims, "CLAIM_PATIENCE", 0.05)
    assert overtaken_by(silent, ref, 1) is None
    assert caplog.messages == []
    # Who may wait for longer than a killed process learns it.
    threading.Timer(0.3, silent.answers.set).start()
    error = overtaken_by(silent, ref, 1, within=60)
    assert error is not None
    assert error.try_number == 9


def test_a_killed_process_waits_within_the_five_seconds_that_airflow_leaves_it() -> None:
    assert 0 < claims.CLAIM_PATIENCE < 5 < claims.GIVE_UP_CLAIM_PATIENCE


def test_an_error_of_the_answer_is_logged_and_the_gang_is_this_trys(
    ref: RunRef, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def claimed_by(self, gang: Any) -> int:
            raise RuntimeError(f"no word on {gang.key.name}")

    broken: Any = Broken()
    with caplog.at_level(logging.WARNING):
        assert overtaken_by(broken, ref, 1) is None
        # Also where it counts from 0: nothing is known of any try.
        assert overtaken_by(broken, ref, 0) is None
    assert set(caplog.messages) == {
        f"{ref.key.name}: a later try's claim could not be read, so it counts as this try's: no word on {ref.key.name}"
    }


def test_a_gang_is_ended_unless_it_is_a_later_trys_and_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    ended: list[bool] = []
    said: list[str] = []
    end_unless_overtaken(None, lambda: ended.append(True), lambda *words: said.append(words[0] % words[1:]))
    assert (ended, said) == ([True], [])
    later = Overtaken("run is left running: try 3 owns it", 3)
    end_unless_overtaken(later, lambda: ended.append(True), lambda *words: said.append(words[0] % words[1:]))
    assert (ended, said) == ([True], [str(later)])
    with caplog.at_level(logging.INFO):
        end_unless_overtaken(later, lambda: ended.append(True))
    assert (ended, caplog.messages) == ([True], [str(later)])

    def refuse() -> None:
        raise BackendError("busy")

    with pytest.raises(BackendError, match="busy"):
        end_unless_overtaken(None, refuse)
