"""Signs of life, and what becomes of them when the store has other worries."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.join import heartbeat as heartbeats
from airflow_provider_ocidist.agent.join.heartbeat import Heartbeat
from airflow_provider_ocidist.agent.join.peer_reports import load_report
from airflow_provider_ocidist.agent.join.silence import LOST_AFTER
from airflow_provider_ocidist.agent.stopping import StopSwitch
from airflow_provider_ocidist.errors import Cause, StorageError
from airflow_provider_ocidist.model.report import NodeReport, Phase, Restart, StopRequest
from airflow_provider_ocidist.model.work_dir import STOP_FILE
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage.stores.local import LocalStore
from scripts.emulator_process import Access
from tests.agent.gangs import until
from tests.http_client import http

SEED = int(os.environ.get("TEST_SEED", "20261127"))
FAILED = Restart(cause=Cause.USER, message="ValueError", rank=1)
OWN = StopRequest(cause=Cause.USER, message="ValueError", rank=1, restarts=(FAILED,))


@pytest.mark.parametrize("beats", [1, 3])
def test_a_beat_without_a_request_makes_one_new_report_however_much_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beats: int
) -> None:
    made: list[NodeReport] = []

    def replaced(before: NodeReport, **changes: object) -> NodeReport:
        made.append(dataclasses.replace(before, **changes))
        return made[-1]

    monkeypatch.setattr(heartbeats, "replaced", replaced)
    report = NodeReport(rank=0, phase=Phase.TRAINING, address="", started_at=0.0, heartbeat_at=0.0)
    heartbeat = Heartbeat(LocalStore(tmp_path), report, StopSwitch())
    heartbeat.watches += [
        lambda: heartbeat.update(moved=len(made)),
        lambda: heartbeat.update(health=(f"beat {len(made)}",)),
        lambda: (heartbeat.launch, heartbeat.restarts),
    ]
    for _ in range(beats):
        heartbeat._beat()
    assert len(made) == beats
    assert load_report(heartbeat.store, 0) == made[-1]


@pytest.fixture
def run_dir(emulator: Access) -> str:
    return f"oci://{emulator.bucket}@{emulator.namespace}/run/{uuid.uuid4().hex}"


@pytest.fixture
def heartbeat(emulator: Access, run_dir: str) -> Iterator[Heartbeat]:
    access = OciAccess(config_file=emulator.config_file, profile=emulator.profile, endpoint=emulator.url)
    now = time.time()
    report = NodeReport(rank=0, phase=Phase.TRAINING, address="", started_at=now, heartbeat_at=now)
    made = Heartbeat.open(run_dir, access, report, StopSwitch())
    made.interval = 0.2
    yield made
    made.finish()


def throttle(emulator: Access, run_dir: str, times: int) -> None:
    """Refuse so many requests about a run, and ask for patience that nobody on a node can afford."""
    rule = {"path": path_of(run_dir), "status": 429, "retry_after_s": 60, "times": times}
    http.post(f"{emulator.url}/_emulator/faults", json=rule).raise_for_status()


def refusals_left(emulator: Access, run_dir: str) -> int:
    rules = http.get(f"{emulator.url}/_emulator").json()["faults"]
    return sum(rule["left"] for rule in rules if rule["path"] == path_of(run_dir))


def path_of(run_dir: str) -> str:
    return f".*{run_dir.rpartition('/')[2]}.*"


def test_a_throttled_node_is_heard_again_before_it_passes_for_dead(
    emulator: Access, run_dir: str, heartbeat: Heartbeat
) -> None:
    heartbeat.start()
    first = heartbeat.written_at
    until(lambda: heartbeat.written_at > first)
    throttle(emulator, run_dir, times=10)
    until(lambda: refusals_left(emulator, run_dir) == 0)
    since = heartbeat.written_at
    until(lambda: heartbeat.written_at > since)
    assert heartbeat.written_at - since < LOST_AFTER / 2


@pytest.fixture
def silent_store() -> Iterator[tuple[str, list[socket.socket]]]:
    """An address that takes every connection and never answers, and the connections that it has got."""
    taken: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def take() -> None:
            with contextlib.suppress(OSError):
                while True:
                    taken.append(server.accept()[0])

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", taken
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)
    for connection in taken:
        connection.close()


def test_a_store_that_never_answers_holds_no_beat_up(
    emulator: Access, silent_store: tuple[str, list[socket.socket]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 3 * heartbeats.ANSWER_LIMIT + heartbeats.INTERVAL < LOST_AFTER, "a beat asks three times"
    monkeypatch.setattr(heartbeats, "ANSWER_LIMIT", 0.2)
    monkeypatch.setattr(heartbeats, "LAST_WORD_LIMIT", 0.0)
    endpoint, taken = silent_store
    access = OciAccess(config_file=emulator.config_file, profile=emulator.profile, endpoint=endpoint)
    now = time.time()
    report = NodeReport(rank=0, phase=Phase.TRAINING, address="", started_at=now, heartbeat_at=now)
    heartbeat = Heartbeat.open("oci://bucket@namespace/run", access, report, StopSwitch())
    heartbeat.interval = 0.1
    heartbeat.start()
    began = time.monotonic()
    until(lambda: len(taken) >= 4)
    heartbeat.finish()
    assert time.monotonic() - began < LOST_AFTER / 2


def test_a_throttled_node_still_asks_the_others_to_stop(
    emulator: Access, run_dir: str, heartbeat: Heartbeat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_provider_ocidist.oci_client.clients._RETRY_AFTER_LIMIT_S", 0.1)
    throttle(emulator, run_dir, times=3)
    heartbeat.ask_all_to_stop(StopRequest(cause=Cause.USER, message="it failed", rank=0))
    request = heartbeat.read_stop_request()
    assert request is not None
    assert request.message == "it failed"


@pytest.mark.parametrize("restored_for", [None, 0, 1, 2])
def test_a_node_is_prepared_only_for_the_launch_that_was_asked_for_last(
    heartbeat: Heartbeat, restored_for: int | None
) -> None:
    asked = [Restart(cause=Cause.NODE, message="gone") for _ in range(3)]
    heartbeat.prepare()
    heartbeat.heed(StopRequest(cause=Cause.NODE, message="gone", restarts=tuple(asked[:2])))
    is_current = restored_for == 2
    assert heartbeat.prepared(restored_for) is is_current
    heartbeat.heed(StopRequest(cause=Cause.NODE, message="gone", restarts=tuple(asked)))
    # It stops for what comes later; before, it takes part in that too.
    assert (heartbeat.switch.stop is not None) is is_current
    assert heartbeat.launch == (2 if is_current else 3)
    assert heartbeat.prepared(3) is not is_current


# A request that is there already


class Unreadable(LocalStore):
    """A run directory that lists its stop request, and cannot read it for so many times."""

    error: Exception
    unanswered = 0

    def read(self, name: str) -> bytes:
        if name == STOP_FILE and self.unanswered:
            self.unanswered -= 1
            raise self.error
        return super().read(name)


def a_node(store: LocalStore, launch: int = 0) -> Heartbeat:
    report = NodeReport(
        rank=1,
        phase=Phase.TRAINING,
        address="",
        started_at=0.0,
        heartbeat_at=0.0,
        restarts=(FAILED,) * launch,
    )
    return Heartbeat(store, report, StopSwitch())


def drawn_request(draw: random.Random) -> StopRequest:
    """Return what counts more than the failure of a node that has not read it."""
    lost = Restart(cause=Cause.PREEMPTED, message="Preempted.", rank=2, lost=(2,))
    return draw.choice(
        [
            StopRequest(cause=Cause.CANCELED, message="enough"),
            StopRequest(cause=Cause.USER, message="crash loop: USER at step 5", rank=0),
            StopRequest(cause=Cause.PREEMPTED, message="Preempted.", restarts=(lost,)),
            StopRequest(cause=Cause.PREEMPTED, message="Preempted.", restarts=(FAILED, lost)),
        ]
    )


@pytest.mark.parametrize("number", range(20))
def test_a_request_that_cannot_be_read_now_is_not_overwritten(tmp_path: Path, number: int) -> None:
    draw = random.Random(f"{SEED}.{number}")
    print(f"seed {SEED}.{number}")
    store, counts = Unreadable(tmp_path), drawn_request(draw)
    store.error = draw.choice(
        [StorageError("refused"), PermissionError("refused"), FileNotFoundError("hidden")]
    )
    store.write(STOP_FILE, counts.to_json())
    node, store.unanswered = a_node(store), 1
    assert node.ask_all_to_stop(OWN) is None
    assert StopRequest.from_json(store.read(STOP_FILE)) == counts
    # Once it can be read, it counts.
    assert node.ask_all_to_stop(OWN) == counts
    assert StopRequest.from_json(store.read(STOP_FILE)) == counts


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_store_that_refuses_to_show_a_request_has_it_overwritten_by_no_node(
    emulator: Access, run_dir: str, heartbeat: Heartbeat, faults: Callable[..., None], status: int
) -> None:
    counts = StopRequest(cause=Cause.CANCELED, message="enough")
    heartbeat.store.write(STOP_FILE, counts.to_json())
    code = "NotAuthorizedOrNotFound" if status != 401 else "NotAuthenticated"
    faults(method="GET", path=path_of(run_dir), status=status, code=code)
    assert heartbeat.ask_all_to_stop(OWN) is None
    http.delete(f"{emulator.url}/_emulator/faults").raise_for_status()
    assert heartbeat.read_stop_request() == counts


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b"\xff\xfe", b'{"cause": "NONE", "message": "m"}', b'{"cause": 3}']
)
def test_a_damaged_request_is_overwritten(tmp_path: Path, text: bytes) -> None:
    store = LocalStore(tmp_path)
    store.write(STOP_FILE, text)
    assert a_node(store).ask_all_to_stop(OWN) == OWN
    assert StopRequest.from_json(store.read(STOP_FILE)) == OWN


def test_a_request_that_has_ended_an_earlier_launch_is_overwritten(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.write(STOP_FILE, OWN.to_json())
    later = StopRequest(cause=Cause.USER, message="ValueError", rank=1, restarts=(FAILED, FAILED))
    assert a_node(store, launch=1).ask_all_to_stop(later) == later
    assert StopRequest.from_json(store.read(STOP_FILE)) == later
