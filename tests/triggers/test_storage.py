"""New data under a prefix, and new checkpoints: what fires, when, and how often."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest
from airflow.providers.common.compat.sdk import AirflowNotFoundException

from airflow_provider_ocidist.errors import StorageError
from airflow_provider_ocidist.model.fence import Fence
from airflow_provider_ocidist.oci_client import clients as oci_clients
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.sensors import CheckpointSensor
from airflow_provider_ocidist.storage.stores.base import Entry
from airflow_provider_ocidist.triggers import connections, storage, threads
from airflow_provider_ocidist.triggers.connections import OpenedConnection
from airflow_provider_ocidist.triggers.storage import (
    CheckpointTrigger,
    Deliveries,
    Listing,
    NewDataTrigger,
    later_checkpoint,
)
from airflow_provider_ocidist.triggers.threads import in_thread
from scripts.emulator_process import Access
from tests.http_client import http
from tests.storage.published import publish


@pytest.fixture(autouse=True)
def _connections_are_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_connections", {})


def listing(**files: str) -> Listing:
    return Listing(frozenset(files.items()))


def test_what_is_there_at_first_is_no_news():
    deliveries = Deliveries(None, settle=10)
    assert not deliveries.complete(listing(a="1"), 0)
    assert not deliveries.complete(listing(a="1"), 100)


def test_a_delivery_is_reported_once_and_only_when_it_has_come_to_rest():
    deliveries = Deliveries(None, settle=10)
    deliveries.complete(listing(), 0)
    assert not deliveries.complete(listing(a="1"), 5)
    assert not deliveries.complete(listing(a="1", b="1"), 12), "it was still growing"
    assert not deliveries.complete(listing(a="1", b="1"), 20)
    assert deliveries.complete(listing(a="1", b="1"), 22)
    assert not deliveries.complete(listing(a="1", b="1"), 60)


def test_a_delivery_does_not_come_to_rest_while_nobody_can_look():
    """Who delivers may have been kept from it by the same outage."""
    deliveries = Deliveries(None, settle=10)
    deliveries.complete(listing(), 0)
    assert not deliveries.complete(listing(a="1"), 5)
    deliveries.note_unread()
    assert not deliveries.complete(listing(a="1"), 100)
    assert not deliveries.complete(listing(a="1"), 109)
    assert deliveries.complete(listing(a="1"), 110)


def test_what_comes_while_a_look_is_held_up_is_part_of_the_delivery():
    deliveries = Deliveries(None, settle=10)
    deliveries.complete(listing(), 0)
    assert not deliveries.complete(listing(a="1"), 5)
    assert not deliveries.complete(listing(a="1"), 300, asked_at=9), "it was listed at any time since 9"
    assert deliveries.complete(listing(a="1"), 301, asked_at=301)
    at_once = Deliveries(None, settle=0)
    at_once.complete(listing(), 0)
    assert at_once.complete(listing(a="1"), 2, asked_at=1)


def test_a_replaced_file_is_news_and_a_removed_one_is_not():
    deliveries = Deliveries(None, settle=0)
    deliveries.complete(listing(a="1", b="1"), 0)
    assert not deliveries.complete(listing(a="1"), 1)
    assert deliveries.complete(listing(a="2"), 2)


def test_a_replaced_file_is_news_also_where_a_place_has_no_etags(tmp_path: Path):
    """As places that a driver of fsspec reaches."""
    driver, place = fsspec.filesystem("memory"), f"/{uuid.uuid4().hex}"
    driver.pipe_file(f"{place}/a.csv", b"one")
    trigger = NewDataTrigger(f"memory:/{place}/")
    listings = [trigger._listing()]
    for content in (b"twice", b"other"):
        driver.pipe_file(f"{place}/a.csv", content)
        listings.append(trigger._listing())
    assert len({each.digest for each in listings}) == 3
    deliveries = Deliveries(None, settle=0)
    assert [deliveries.complete(each, now) for now, each in enumerate(listings)] == [False, True, True]


def test_what_landed_while_nobody_looked_is_reported():
    before = listing(a="1")
    deliveries = Deliveries(before.digest, settle=0)
    assert deliveries.complete(listing(a="1", b="1"), 0)
    assert not Deliveries(before.digest, settle=0).complete(before, 0)


def test_what_an_earlier_version_has_reported_is_reported_no_second_time():
    """It distinguished files without an etag by their names alone."""
    entries = [Entry(name="a", size=1, etag=None, modified=5.0), Entry(name="b", size=2, etag="x")]
    found = Listing.of(entries, "memory://place")
    known = hashlib.sha256(b"a\0None\nb\0x").hexdigest()
    deliveries = Deliveries(known, settle=0)
    assert not deliveries.complete(found, 0)
    assert deliveries.reported == found.digest != known
    again = Listing.of([replace(entries[0], modified=6.0), entries[1]], "memory://place")
    assert deliveries.complete(again, 1)
    assert Deliveries("another", settle=0).complete(found, 0), "what has landed during the upgrade is news"


class Memory:
    """The state store of one asset."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    async def aget(self, key: str) -> Any:
        return self.values.get(key)

    async def aset(self, key: str, value: Any) -> None:
        self.values[key] = value


def watched(uri: str, memory: Memory | None = None) -> NewDataTrigger:
    path, arguments = NewDataTrigger(uri, poll_interval=0.05, settle=0.2).serialize()
    assert path == "airflow_provider_ocidist.triggers.storage.NewDataTrigger"
    made = NewDataTrigger(**arguments)
    made.asset_state_store = memory
    return made


def test_a_file_that_lands_in_a_folder_fires_even_if_the_triggerer_was_away(tmp_path: Path):
    memory = Memory()

    async def first() -> dict[str, Any]:
        events = watched(str(tmp_path), memory).run()
        waiting = asyncio.create_task(anext(events))
        while not memory.values:
            await asyncio.sleep(0.01)
        (tmp_path / "day1.csv").write_text("1,2,3\n")
        event = await asyncio.wait_for(waiting, 20)
        waiting = asyncio.create_task(anext(events))
        await asyncio.sleep(0.5)
        waiting.cancel()
        return event.payload

    assert asyncio.run(first()) == {"uri": str(tmp_path), "files": 1, "bytes": 6}
    (tmp_path / "day2.csv").write_text("4\n")
    event = asyncio.run(asyncio.wait_for(anext(watched(str(tmp_path), memory).run()), 20))
    assert event.payload["files"] == 2


class Interrupted(NewDataTrigger):
    """Finds one of two files; then its place cannot be read for longer than a delivery needs to come to rest."""

    delivered: float | None = None
    looks = 0

    def _listing(self) -> Listing:
        self.looks += 1
        if self.looks == 1:
            return listing()
        if self.delivered is None:
            self.delivered = time.monotonic()
            return listing(a="1")
        if time.monotonic() - self.delivered < 2 * self.settle:
            self.looks = 2
            raise StorageError("the store does not answer", retryable=True)
        # The other file follows once the store answers again.
        return listing(a="1") if self.looks == 3 else listing(a="1", b="1")


def test_half_a_delivery_is_no_event_after_an_outage_of_the_store():
    trigger = Interrupted("oci://bucket@ns/incoming", poll_interval=0.05, settle=0.3)
    event = asyncio.run(asyncio.wait_for(anext(trigger.run()), 60))
    assert event.payload["files"] == 2


class WithoutConnection(NewDataTrigger):
    """Finds a file at its second look; at the third one Airflow does not have the connection."""

    looks = 0

    def __init__(self, *args: Any, define: Callable[[bool], None], **more: Any) -> None:
        super().__init__(*args, **more)
        self._define = define

    def _listing(self) -> Listing:
        self.looks += 1
        self._define(self.looks != 3)
        return super()._listing()

    def _listing_by(self, opened: OpenedConnection) -> Listing:
        assert opened.hook.uri("incoming")
        return listing() if self.looks == 1 else listing(a="1")


@pytest.fixture
def define(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Gives Airflow the connection `away`, or takes it away, as an outage of its secrets backend does."""
    monkeypatch.setattr(connections, "KEPT_FOR", 0.0)
    found = {"conn_type": "oci", "extra": {"work_dir": "/srv/work"}}

    def define(is_there: bool) -> None:
        if is_there:
            monkeypatch.setenv("AIRFLOW_CONN_AWAY", json.dumps(found))
        else:
            monkeypatch.delenv("AIRFLOW_CONN_AWAY", raising=False)

    return define


def test_a_delivery_amid_an_outage_of_the_secrets_backend_is_an_event_after_it(
    define: Callable[[bool], None], capsys: pytest.CaptureFixture[str]
):
    """Without a state store, a trigger that Airflow starts again would take it for what it finds at first."""
    trigger = WithoutConnection("incoming", "away", 0.05, 0.3, define=define)
    event = asyncio.run(asyncio.wait_for(anext(trigger.run()), 60))
    assert event.payload["files"] == 1
    assert trigger.looks > 3
    said = capsys.readouterr().out
    assert said.count("The conn_id `away` isn't defined; will look again") == 1


@pytest.mark.parametrize("is_first", [True, False], ids=["task", "trigger"])
def test_a_connection_that_was_there_is_waited_for_and_one_that_never_was_fails_the_task(
    define: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, is_first: bool
):
    monkeypatch.setattr(storage, "FIRST_LOOK_AFTER", 0.0)
    (tmp_path / "step-7.pt").write_bytes(b"x")
    publish(tmp_path / "step-7.pt", str(tmp_path / "place"), step=7)
    read, asked = OpenedConnection.store, []

    def store(opened: OpenedConnection, uri: str) -> Any:
        asked.append(uri)
        define(len(asked) > 2)
        assert opened.hook.uri("x")
        return read(opened, uri)

    monkeypatch.setattr(OpenedConnection, "store", store)
    if is_first:
        with pytest.raises(AirflowNotFoundException):
            CheckpointSensor(task_id="wait", uri=str(tmp_path / "place"), conn_id="away").poke({})
    else:
        trigger = CheckpointTrigger(str(tmp_path / "place"), "away", 5, 0.05)
        event = asyncio.run(asyncio.wait_for(anext(trigger.run()), 60))
        assert event.payload["step"] == 7
        assert len(asked) == 3


def test_a_sensor_that_has_looked_once_waits_for_its_connection(
    define: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    read = OpenedConnection.store

    def store(opened: OpenedConnection, uri: str) -> Any:
        assert opened.hook.uri("x")
        return read(opened, uri)

    monkeypatch.setattr(OpenedConnection, "store", store)
    sensor = CheckpointSensor(task_id="wait", uri=str(tmp_path), conn_id="away")
    for is_there in (True, False, True, False):
        define(is_there)
        assert not sensor.poke({})


def test_each_look_of_a_rescheduled_sensor_knows_that_an_earlier_one_had_an_answer(
    define: Callable[[bool], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    read = OpenedConnection.store

    def store(opened: OpenedConnection, uri: str) -> Any:
        assert opened.hook.uri("x")
        return read(opened, uri)

    monkeypatch.setattr(OpenedConnection, "store", store)
    noted: dict[str, Any] = {}
    notes = SimpleNamespace(get=noted.get, set=noted.__setitem__)
    given: Any = {"task_state_store": notes, "ti": SimpleNamespace(try_number=1)}

    def look() -> bool:
        """Look as a process of its own, which has only what Airflow keeps for it."""
        sensor = CheckpointSensor(task_id="wait", uri=str(tmp_path), conn_id="away", mode="reschedule")
        return bool(sensor.poke(given))

    define(False)
    with pytest.raises(AirflowNotFoundException):
        look()
    for is_there in (True, False, False, True, False):
        define(is_there)
        assert not look()


@pytest.mark.parametrize("mode", ["poke", "reschedule"])
def test_a_defect_ends_the_wait_after_a_few_looks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: str):
    noted: dict[str, Any] = {}
    notes = SimpleNamespace(get=noted.get, set=noted.__setitem__)
    given: Any = {"task_state_store": notes, "ti": SimpleNamespace(try_number=1)}

    def sensor() -> CheckpointSensor:
        return CheckpointSensor(task_id="wait", uri=str(tmp_path), mode=mode)

    def fails(*_: Any) -> Any:
        raise TypeError("a defect")

    one = sensor()
    assert not one.poke(given)
    monkeypatch.setattr(storage, "later_checkpoint", fails)
    for _ in range(storage.MOST_DEFECTS - 1):
        assert not (one if mode == "poke" else sensor()).poke(given)
    with pytest.raises(TypeError, match="a defect"):
        (one if mode == "poke" else sensor()).poke(given)


def test_looks_at_a_store_that_does_not_answer_delay_no_trigger_of_a_gang(monkeypatch: pytest.MonkeyPatch):
    answered, asked = threading.Event(), []

    def silent(*_: Any) -> Any:
        asked.append(threading.current_thread())
        answered.wait()
        raise StorageError("the store does not answer", retryable=True)

    monkeypatch.setattr(NewDataTrigger, "_listing", silent)
    monkeypatch.setattr(storage, "later_checkpoint", silent)
    monkeypatch.setattr(storage, "FIRST_LOOK_AFTER", 0.0)

    async def many() -> str:
        waiting = [
            asyncio.create_task(anext(trigger.run()))
            for _ in range(threads.THREADS)
            for trigger in (watched("oci://b@ns/x"), CheckpointTrigger("oci://b@ns/x", "oci_default", 1, 0.1))
        ]
        while len(asked) < threads.THREADS:
            await asyncio.sleep(0.01)
        try:
            return await asyncio.wait_for(in_thread(lambda: "a gang is watched"), 30)
        finally:
            answered.set()
            for each in waiting:
                each.cancel()

    assert asyncio.run(many()) == "a gang is watched"


def test_a_relative_place_lies_in_the_work_dir_of_the_connection(tmp_path: Path, monkeypatch):
    monkeypatch.setenv(
        "AIRFLOW_CONN_OCI_DEFAULT", json.dumps({"conn_type": "oci", "extra": {"work_dir": str(tmp_path)}})
    )
    (tmp_path / "incoming").mkdir()
    (tmp_path / "incoming" / "day1.csv").write_text("1,2,3\n")
    found = NewDataTrigger("incoming")._listing()
    assert (found.uri, found.bytes) == (f"{tmp_path}/incoming", 6)


def test_a_relative_place_without_a_work_dir_is_refused(monkeypatch):
    monkeypatch.setenv("AIRFLOW_CONN_OCI_DEFAULT", json.dumps({"conn_type": "oci", "extra": {}}))
    with pytest.raises(
        StorageError, match="'incoming' is relative, and the connection 'oci_default' has no work_dir"
    ):
        NewDataTrigger("incoming")._listing()


def test_an_event_does_not_show_what_opens_a_web_address():
    address = "https://objectstorage.us-ashburn-1.oraclecloud.com/p/the-secret/n/ns/b/bucket/o"
    store = SimpleNamespace(list=list, uri=address)
    store.as_source = lambda: store
    opened: Any = SimpleNamespace(hook=SimpleNamespace(uri=str), store=lambda _: store)
    assert NewDataTrigger(address)._listing_by(opened).uri == address.replace("the-secret", "***")


@pytest.fixture
def folder(emulator: Access, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in emulator.airflow_env().items():
        monkeypatch.setenv(name, value)
    return f"oci://{emulator.bucket}@{emulator.namespace}/watched/{uuid.uuid4().hex[:8]}"


def published(emulator: Access, folder: str, tmp_path: Path, step: int) -> None:
    from airflow_provider_ocidist.oci_client.credentials import access_of

    file = tmp_path / f"step-{step}.pt"
    file.write_bytes(b"x")
    publish(file, folder, step=step, access=access_of(emulator.connection_fields()))


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The services for which a client was made, from here on."""
    made: list[str] = []
    real = oci_clients.client

    def client(access: OciAccess, service: Any) -> Any:
        made.append(service)
        return real(access, service)

    monkeypatch.setattr(oci_clients, "client", client)
    return made


def test_all_looks_by_one_connection_share_a_client(folder: str, clients: list[str], monkeypatch):
    for number in range(3):
        assert not CheckpointSensor(task_id="wait", uri=f"{folder}/{number}").poke({})
        assert not NewDataTrigger(f"{folder}/{number}/")._listing().files
    assert clients == ["object_storage"]
    monkeypatch.setattr(connections, "KEPT_FOR", 0.0)
    monkeypatch.setenv(
        "AIRFLOW_CONN_OCI_DEFAULT", json.dumps({"conn_type": "oci", "extra": {"auth": "none"}})
    )
    with pytest.raises(StorageError, match="auth is 'none'"):
        NewDataTrigger(folder)._listing()


def test_a_refusal_is_met_with_the_connection_as_it_is_now(
    emulator: Access, folder: str, clients: list[str], monkeypatch: pytest.MonkeyPatch
):
    rule = {"path": f".*/{emulator.bucket}/o.*", "status": 401, "times": 2}
    NewDataTrigger(folder)._listing()
    http.post(f"{emulator.url}/_emulator/faults", json=rule).raise_for_status()
    with pytest.raises(StorageError, match="does not accept these credentials"):
        NewDataTrigger(folder)._listing()
    assert len(clients) == 1, "it was made a moment ago"
    monkeypatch.setattr(connections, "RENEW_EVERY", 0.0)
    assert not NewDataTrigger(folder)._listing().files
    assert len(clients) == 2


def test_the_sensor_waits_for_a_later_checkpoint(emulator: Access, folder: str, tmp_path: Path):
    sensor = CheckpointSensor(task_id="wait", uri=folder, after_step=10)
    assert not sensor.poke({})
    published(emulator, folder, tmp_path, 10)
    assert not sensor.poke({})
    published(emulator, folder, tmp_path, 20)
    assert sensor.poke({})
    assert sensor.execute({})["step"] == 20


def test_a_later_checkpoint_counts_though_a_newer_one_has_no_step(tmp_path: Path):
    place = str(tmp_path / "place")
    for name, step in (("step-300.pt", 300), ("best.pt", None), ("step-100.pt", 100)):
        (tmp_path / name).write_bytes(b"1")
        publish(tmp_path / name, place, step=step)
    assert found_after(place, 200) == f"{place}/step-300.pt"
    assert found_after(place, 99) == f"{place}/step-100.pt", "the newest that counts"
    assert found_after(place, -1) == f"{place}/step-100.pt"
    assert found_after(place, 300) is None


@pytest.mark.parametrize("overtaken", [Fence(attempt=1), Fence(generation=0, attempt=7)])
def test_a_checkpoint_of_an_overtaken_attempt_is_not_waited_for(tmp_path: Path, overtaken: Fence):
    place, latest = str(tmp_path / "place"), Fence(generation=1, attempt=2)
    for step, fence in ((900, overtaken), (10, latest)):
        (tmp_path / f"step-{step}.pt").write_bytes(b"1")
        publish(tmp_path / f"step-{step}.pt", place, step=step, fence=fence)
    assert found_after(place, 500) is None
    assert found_after(place, 9) == found_after(place, -1) == f"{place}/step-10.pt.attempt-2"


def found_after(place: str, step: int) -> str | None:
    found = later_checkpoint(place, "oci_default", step)
    return found and found["uri"]


def test_the_trigger_finds_a_checkpoint_that_comes_later(
    emulator: Access, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path, arguments = CheckpointTrigger(folder, "oci_default", 5, 0.05).serialize()

    async def wait() -> dict[str, Any]:
        monkeypatch.setattr("airflow_provider_ocidist.triggers.storage.FIRST_LOOK_AFTER", 0.0)
        waiting = asyncio.create_task(anext(CheckpointTrigger(**arguments).run()))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        await asyncio.to_thread(published, emulator, folder, tmp_path, 7)
        return (await asyncio.wait_for(waiting, 20)).payload

    found = asyncio.run(wait())
    assert found["step"] == 7
    assert found["uri"].startswith(folder)
    assert path.endswith("CheckpointTrigger")
