"""A store that is away when another launch is to be asked for."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.agent.join import store_wait
from airflow_provider_ocidist.agent.join.store_wait import StoreWait
from airflow_provider_ocidist.agent.stopping import Stop
from airflow_provider_ocidist.errors import Cause, StorageError
from airflow_provider_ocidist.model.report import StopRequest
from airflow_provider_ocidist.model.work_dir import STOP_FILE, report_of
from airflow_provider_ocidist.storage.stores.base import Buffer, Entry
from airflow_provider_ocidist.storage.stores.local import LocalStore
from tests.agent.gangs import until
from tests.agent.join.test_heartbeat import FAILED, OWN, a_node


class Gone(LocalStore):
    """A store that answers nothing while it is away, and then may take a request whose answer is lost."""

    is_gone = True
    lost_answers = 0

    def read(self, name: str) -> bytes:
        self._answer(name)
        return super().read(name)

    def stat(self, name: str) -> Entry:
        self._answer(name)
        return super().stat(name)

    def write_if(self, name: str, data: Buffer, etag: str | None) -> bool:
        self._answer(name)
        is_written = super().write_if(name, data, etag)
        if self.lost_answers:
            self.lost_answers -= 1
            raise self._away(name)
        return is_written

    def _answer(self, name: str) -> None:
        if self.is_gone:
            raise self._away(name)

    def _away(self, name: str) -> StorageError:
        return StorageError(f"503: {name}", uri=self.uri, retryable=True)


@pytest.fixture
def gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gone:
    monkeypatch.setattr(store_wait, "ASK_INTERVAL", 0.02)
    monkeypatch.setattr(store_wait, "LONGEST_ASK_INTERVAL", 0.05)
    return Gone(tmp_path)


def in_the_background(work: Callable[[], Any]) -> list[Any]:
    """Return the list to which the result of the work is added."""
    found: list[Any] = []
    threading.Thread(target=lambda: found.append(work()), daemon=True).start()
    return found


def looks(store: Gone, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of what is asked of a store."""
    asked: list[str] = []
    answer = store._answer

    def noted(name: str) -> None:
        asked.append(name)
        answer(name)

    monkeypatch.setattr(store, "_answer", noted)
    return asked


@pytest.mark.parametrize("lost_answers", [0, 1, 2])
def test_a_node_asks_for_another_launch_until_the_store_is_back_and_then_for_one(
    gone: Gone, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, lost_answers: int
) -> None:
    asked = looks(gone, monkeypatch)
    node, other = a_node(gone), a_node(gone)
    wait = StoreWait(node)
    later = StopRequest(cause=Cause.USER, message="of another node", rank=0, restarts=(FAILED,))
    first = in_the_background(lambda: wait.ask_all_to_stop(OWN, 600.0))
    second = in_the_background(lambda: StoreWait(other).ask_all_to_stop(later, 600.0))
    until(lambda: len(asked) > 20)
    assert (first, second) == ([], [])
    gone.lost_answers = lost_answers
    gone.is_gone = False
    until(lambda: first and second)
    # Either node may be the first: both know the one launch that follows, whether its answer was lost or not.
    assert first == second == [StopRequest.from_json(gone.read(STOP_FILE))]
    assert not wait.is_away
    assert sum("waits for the store" in message for message in caplog.messages) == 2


def test_a_node_that_is_to_end_waits_for_no_store(gone: Gone, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = looks(gone, monkeypatch)
    node = a_node(gone)
    wait = StoreWait(node)
    waiting = in_the_background(lambda: wait.ask_all_to_stop(OWN, 600.0))
    until(lambda: len(asked) > 5)
    node.switch.ask(Stop(message="this node was stopped by SIGTERM"))
    until(lambda: waiting == [None])
    assert wait.until_it_answers(600.0)


def test_a_node_in_whose_place_another_is_asks_for_nothing_once_the_store_is_back(
    gone: Gone, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = looks(gone, monkeypatch)
    node = a_node(gone)
    wait = StoreWait(node)
    waiting = in_the_background(lambda: wait.ask_all_to_stop(OWN, 600.0))
    until(lambda: len(asked) > 5)
    # It was silent for long enough to be replaced.
    node.written_at -= 60.0
    in_its_place = dataclasses.replace(node.report, incarnation=1)
    LocalStore(gone.folder).write(report_of(1), in_its_place.to_json())
    gone.is_gone = False
    until(lambda: waiting == [None])
    assert node.switch.is_lost
    assert not gone.exists(STOP_FILE)


def test_the_limit_counts_from_the_first_time_that_the_store_did_not_answer(
    gone: Gone, caplog: pytest.LogCaptureFixture
) -> None:
    node = a_node(gone)
    wait = StoreWait(node)
    assert wait.until_it_answers(0.1)
    began = time.monotonic()
    # The limit is over: no further wait begins, however many ask for one.
    assert all(wait.until_it_answers(0.1) for _ in range(20))
    assert wait.ask_all_to_stop(OWN, 0.1) is None
    assert wait.is_away
    assert time.monotonic() - began < 60.0
    assert sum("waits for the store" in message for message in caplog.messages) == 1
    gone.is_gone = False
    assert not wait.until_it_answers(0.1)
    assert not wait.is_away


def test_a_request_that_the_store_refuses_alone_is_written_once_it_takes_it(
    gone: Gone, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone.is_gone, refused = False, [3]
    write = gone.write_if

    def refuses(*arguments: Any) -> bool:
        if refused[0]:
            refused[0] -= 1
            raise StorageError("403")
        return write(*arguments)

    monkeypatch.setattr(gone, "write_if", refuses)
    node = a_node(gone)
    wait = StoreWait(node)
    assert wait.ask_all_to_stop(OWN, 600.0) == OWN
    refused[0] = 10**6
    gone.delete(STOP_FILE)
    assert wait.ask_all_to_stop(OWN, 0.3) is None
