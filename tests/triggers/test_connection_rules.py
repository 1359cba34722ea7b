"""One connection for all triggers of a process: read once, read again when it was refused, and never behind a lock."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import logging
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_provider_ocidist.backports import cached_property
from airflow_provider_ocidist.errors import BackendError, StorageError
from airflow_provider_ocidist.gangs.poller import Poller
from airflow_provider_ocidist.gangs.reconnection import RENEW_EVERY
from airflow_provider_ocidist.storage.stores.local import LocalStore
from airflow_provider_ocidist.triggers import connections as module
from airflow_provider_ocidist.triggers.connections import (
    KEPT_FOR,
    LogOf,
    OpenedConnection,
    SharedConnection,
    is_refusal,
    location_of,
    shared_connection,
    shared_storage,
)
from airflow_provider_ocidist.triggers.threads import ASKING_THREADS

pytestmark = pytest.mark.airflow

REFUSED = BackendError("not authenticated", status_code=401)
BUSY = BackendError("the service asks for patience", status_code=429, retryable=True)


class Hook:
    """A connection that is read when its fields are first asked for, as `OciHook` does it."""

    def __init__(self, airflow: Airflow, conn_id: str, kind: str | None) -> None:
        self.conn_id, self.kind, self._airflow = conn_id, kind, airflow
        self.access = ("access of", conn_id)

    @cached_property
    def fields(self) -> dict[str, Any]:
        return self._airflow.read(self.conn_id, self.kind)

    def backend(self) -> Any:
        return SimpleNamespace(kind=self.kind, fields=self.fields, reconnect=self._airflow.reconnected.append)


class Airflow:
    """Airflow's connections, of one name; counts the readings, on a clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.fields: dict[str, Any] = {"token": 1}
        self.readings: list[tuple[str, str | None]] = []
        self.error: Exception | None = None
        self.reconnected: list[dict[str, Any]] = []

    def monotonic(self) -> float:
        return self.now

    def hook(self, conn_id: str, *, kind: str | None = None, gangs_conn_id: str | None = None) -> Any:
        del gangs_conn_id
        return Hook(self, conn_id, kind)

    def read(self, conn_id: str, kind: str | None) -> dict[str, Any]:
        self.readings.append((conn_id, kind))
        if self.error is not None:
            raise self.error
        return dict(self.fields)


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> Airflow:
    airflow = Airflow()
    monkeypatch.setattr(module, "OciHook", airflow.hook)
    monkeypatch.setattr(module, "time", airflow)
    return airflow


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 60))


def token(opened: OpenedConnection) -> int:
    return int(opened.hook.fields["token"])


def refused_for(*tokens: int, error: Exception = REFUSED) -> Callable[[OpenedConnection], int]:
    """Return work that is refused for these tokens."""

    def work(opened: OpenedConnection) -> int:
        if token(opened) in tokens:
            raise error
        return token(opened)

    return work


# For storage


def test_a_connection_is_read_once_for_as_long_as_it_is_kept(airflow: Airflow) -> None:
    connection = SharedConnection("oci_x")
    assert connection.use(token) == 1
    airflow.fields["token"] = 2
    airflow.now += KEPT_FOR - 1
    assert connection.use(token) == 1
    assert airflow.readings == [("oci_x", None)]
    airflow.now += 1
    assert connection.use(token) == 2
    assert len(airflow.readings) == 2
    assert KEPT_FOR == 300.0


def test_what_was_refused_is_tried_again_with_the_connection_as_it_is_now_and_that_is_kept(
    airflow: Airflow,
) -> None:
    connection = SharedConnection("oci_x")
    connection.use(token)
    airflow.fields["token"] = 2
    airflow.now += RENEW_EVERY
    assert connection.use(refused_for(1)) == 2
    assert connection.use(token) == 2
    assert len(airflow.readings) == 2


def test_what_was_just_read_is_not_read_again_and_its_refusal_is_raised(airflow: Airflow) -> None:
    connection = SharedConnection("oci_x")
    connection.use(token)
    airflow.now += RENEW_EVERY - 1
    with pytest.raises(BackendError, match="not authenticated"):
        connection.use(refused_for(1))
    assert len(airflow.readings) == 1


def test_what_is_refused_twice_is_raised_and_asked_for_no_third_time(airflow: Airflow) -> None:
    connection = SharedConnection("oci_x")
    connection.use(token)
    airflow.now += RENEW_EVERY
    with pytest.raises(BackendError, match="not authenticated"):
        connection.use(refused_for(1))
    assert len(airflow.readings) == 2


@pytest.mark.parametrize("error", [BUSY, StorageError("the disk is full"), ValueError("no business of ours")])
def test_what_is_no_refusal_is_raised_at_once(airflow: Airflow, error: Exception) -> None:
    connection = SharedConnection("oci_x")
    connection.use(token)
    airflow.now += KEPT_FOR - 1
    with pytest.raises(type(error)) as caught:
        connection.use(refused_for(1, error=error))
    assert caught.value is error
    assert len(airflow.readings) == 1


def test_what_another_thread_has_read_since_the_refusal_serves_both(airflow: Airflow) -> None:
    connection = SharedConnection("oci_x")
    connection.use(token)
    airflow.now += RENEW_EVERY
    airflow.fields["token"] = 2

    def work(opened: OpenedConnection) -> int:
        if token(opened) == 1:
            connection.use(refused_for(1))
            raise REFUSED
        return token(opened)

    assert connection.use(work) == 2
    assert len(airflow.readings) == 2


def passed_on(error: BackendError) -> StorageError:
    """Return what a store raises where its service has answered so."""
    raised = StorageError(f"the object: {error}")
    raised.__cause__ = error
    return raised


@pytest.mark.parametrize(
    "error, is_one",
    [
        (REFUSED, True),
        (BUSY, False),
        (passed_on(REFUSED), True),
        (passed_on(BUSY), False),
        (StorageError("the disk is full"), False),
        (ValueError("x"), False),
    ],
)
def test_a_refusal_is_an_answer_that_asking_again_does_not_change(error: Exception, *, is_one: bool) -> None:
    assert is_refusal(error) is is_one


def test_a_folder_of_this_machine_needs_no_client_and_a_bucket_has_one_for_all(
    airflow: Airflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = OpenedConnection("oci_x")
    assert isinstance(opened.store(str(tmp_path)), LocalStore)
    made: list[Any] = []

    class Clients:
        def __init__(self, access: Any) -> None:
            made.append(access)

        def open(self, uri: str) -> str:
            return f"store of {uri}"

    monkeypatch.setattr("airflow_provider_ocidist.storage.stores.opening.Stores", Clients)
    assert [opened.store(f"oci://b@n/{name}") for name in "xy"] == [
        "store of oci://b@n/x",
        "store of oci://b@n/y",
    ]
    assert made == [("access of", "oci_x")]


# For gangs


def test_a_connection_is_opened_once_with_one_poller_for_all_that_use_it(airflow: Airflow) -> None:
    connection = SharedConnection("oci_x", "model")

    async def opened() -> list[Poller]:
        return [await connection.open() for _ in range(3)]

    pollers = run(opened())
    assert len(set(map(id, pollers))) == 1
    assert isinstance(pollers[0], Poller)
    assert airflow.readings == [("oci_x", "model")]
    assert connection.backend is connection.connect()
    assert connection.backend.kind == "model"


def test_all_who_open_it_at_the_same_time_get_the_same(airflow: Airflow) -> None:
    connection = SharedConnection("oci_x", "model")

    async def opened() -> list[Poller]:
        return list(await asyncio.gather(*(connection.open() for _ in range(20))))

    assert len(set(map(id, run(opened())))) == 1
    assert len(airflow.readings) == 1


def test_an_open_connection_is_had_at_once_and_one_that_others_are_opening_is_not_waited_for(
    airflow: Airflow,
) -> None:
    connection = SharedConnection("oci_x", "model")
    with connection._lock:
        # As while Airflow does not answer another caller.
        alone = run(connection.at_once(anew=False))
    assert (alone.kind, airflow.readings) == ("model", [("oci_x", "model")])
    opened = connection.connect()
    assert opened is not alone
    assert run(connection.at_once(anew=False)) is opened
    assert len(airflow.readings) == 2
    assert airflow.reconnected == []


def test_a_cancel_that_was_refused_has_the_connection_read_anew_once_for_all_that_ask(
    airflow: Airflow,
) -> None:
    connection = SharedConnection("oci_x", "model")
    connection.connect()

    async def asked() -> list[Any]:
        return list(await asyncio.gather(*(connection.at_once(anew=True) for _ in range(9))))

    assert all(each is connection.backend for each in run(asked()))
    assert airflow.reconnected == [{"token": 1}], "also where it reads as before: a key file may have changed"
    run(asked())
    assert len(airflow.reconnected) == 2


def test_a_connection_that_airflow_does_not_return_is_not_waited_for_and_what_was_read_before_serves(
    airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert module.READ_AGAIN_WITHIN == 10.0
    monkeypatch.setattr(module, "READ_AGAIN_WITHIN", 0.1)
    connection = SharedConnection("oci_x", "model")
    backend, release = connection.connect(), threading.Event()
    read = airflow.hook

    def hangs(conn_id: str, **more: Any) -> Any:
        release.wait(60)
        return read(conn_id, **more)

    monkeypatch.setattr(module, "OciHook", hangs)

    async def asked() -> None:
        assert await connection.at_once(anew=True) is backend
        assert airflow.reconnected == []
        release.set()
        while not airflow.reconnected:
            await asyncio.sleep(0.01)

    run(asked())


def test_a_renewal_that_airflow_never_answers_is_asked_for_again(
    airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READ_AGAIN_WITHIN", 0.1)
    connection = SharedConnection("oci_x", "model")
    connection.connect()
    lost, asked_at = threading.Event(), []
    read = airflow.hook

    def hangs_once(conn_id: str, **more: Any) -> Any:
        asked_at.append(airflow.now)
        if len(asked_at) == 1:
            lost.wait(60)
        return read(conn_id, **more)

    monkeypatch.setattr(module, "OciHook", hangs_once)

    async def asked() -> None:
        try:
            for seconds in (0.0, module.FORGOTTEN_AFTER - 1, 1.0):
                airflow.now += seconds
                await connection.at_once(anew=True)
            assert len(asked_at) == 2
        finally:
            lost.set()

    run(asked())
    assert airflow.reconnected


def test_no_end_of_a_gang_waits_behind_other_questions_that_airflow_does_not_answer(
    airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READ_LIMIT", 0.0)
    connections = [SharedConnection(f"oci_{number}", "model") for number in range(ASKING_THREADS + 1)]
    answers = threading.Event()

    def hangs(*, anew: bool) -> None:
        assert answers.wait(60), anew

    async def ended() -> None:
        loop = asyncio.get_running_loop()
        for each in connections:
            await each.open()
            each.reconnect = hangs  # type: ignore[method-assign]  # Airflow, which hangs
            with pytest.raises(BackendError, match="Airflow does not answer"):
                await loop.run_in_executor(None, partial(each.refresh, anew=True))
        try:
            await asyncio.wait_for(SharedConnection("oci_x", "model").at_once(anew=False), 10)
        finally:
            answers.set()

    run(ended())
    assert airflow.readings[-1] == ("oci_x", "model")


def test_a_connection_that_cannot_be_read_again_is_said_and_the_backend_goes_on(
    airflow: Airflow, caplog: pytest.LogCaptureFixture
) -> None:
    connection = SharedConnection("oci_x", "model")
    backend = connection.connect()
    airflow.error = RuntimeError("Airflow's database is down")
    assert run(connection.at_once(anew=True)) is backend
    assert airflow.reconnected == []
    (said,) = [each for each in caplog.records if each.name == module.__name__]
    assert (said.levelno, said.getMessage()) == (
        logging.WARNING,
        "the connection could not be read again: Airflow's database is down",
    )


def test_an_edited_connection_is_taken_over_and_one_that_reads_as_before_only_when_that_is_asked_for(
    airflow: Airflow,
) -> None:
    connection = SharedConnection("oci_x", "model")
    connection.connect()
    connection.reconnect(anew=False)
    assert airflow.reconnected == []
    airflow.fields["token"] = 2
    connection.reconnect(anew=False)
    connection.reconnect(anew=False)
    assert airflow.reconnected == [{"token": 2}]
    connection.reconnect(anew=True)
    assert airflow.reconnected == [{"token": 2}] * 2


@pytest.mark.parametrize("anew", [True, False])
def test_a_thread_that_airflow_gives_no_connection_has_the_event_loop_read_it(
    airflow: Airflow, *, anew: bool
) -> None:
    connection = SharedConnection("oci_x", "model")
    readers: list[str] = []
    read = connection.reconnect

    def reconnect(*, anew: bool) -> None:
        readers.append(threading.current_thread().name)
        read(anew=anew)

    connection.reconnect = reconnect  # type: ignore[method-assign]  # to see where it is called

    async def refreshed() -> None:
        await connection.open()
        await asyncio.get_running_loop().run_in_executor(None, lambda: connection.refresh(anew=anew))

    run(refreshed())
    (reader,) = readers
    assert reader.startswith("ocidist-asking")
    assert len(airflow.reconnected) == anew
    # All gangs of the connection wait for so long.
    assert module.READ_LIMIT <= 5.0


def test_while_airflow_hangs_one_refresh_is_under_way_and_the_next_look_waits_for_none(
    airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READ_LIMIT", 0.2)
    connection = SharedConnection("oci_x", "model")
    answers = threading.Event()
    readers: list[str] = []
    read = connection.reconnect

    def reconnect(*, anew: bool) -> None:
        readers.append(threading.current_thread().name)
        assert answers.wait(60)
        read(anew=anew)

    connection.reconnect = reconnect  # type: ignore[method-assign]  # Airflow, which hangs

    def look() -> str | None:
        try:
            connection.refresh(anew=True)
        except BackendError as error:
            return str(error)
        return None

    async def looks() -> None:
        await connection.open()
        loop = asyncio.get_running_loop()
        try:
            for _ in range(40):
                said = await asyncio.wait_for(loop.run_in_executor(None, look), 30)
                assert said == "Airflow does not answer when it is asked for the connection oci_x"
            assert len(readers) <= 1
        finally:
            answers.set()
        while not airflow.reconnected:
            await asyncio.sleep(0.05)
        assert len(airflow.reconnected) == 1, "what is answered late counts"
        # The first question may not have ended yet; the second one is waited for.
        monkeypatch.setattr(module, "READ_LIMIT", 30.0)
        while await loop.run_in_executor(None, look) is not None:
            await asyncio.sleep(0.01)

    run(looks())
    assert len(readers) == 2


def test_a_question_that_airflow_never_answers_is_asked_again_ever_more_rarely(
    airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READ_LIMIT", 0.1)
    connection = SharedConnection("oci_x", "model")
    lost, readers = threading.Event(), []
    read = connection.reconnect

    def reconnect(*, anew: bool) -> None:
        readers.append(airflow.now)
        if len(readers) < 3:
            assert lost.wait(60)
        read(anew=anew)

    connection.reconnect = reconnect  # type: ignore[method-assign]  # Airflow, which hangs

    def look(seconds: float) -> str | None:
        airflow.now += seconds
        try:
            connection.refresh(anew=False)
        except BackendError as error:
            return str(error)
        return None

    async def looks() -> None:
        await connection.open()
        loop = asyncio.get_running_loop()

        async def asked(seconds: float, questions: int) -> str | None:
            said = await loop.run_in_executor(None, look, seconds)
            while len(readers) < questions:
                await asyncio.sleep(0.01)
            assert len(readers) == questions
            return said

        try:
            assert await asked(0.0, 1)
            assert await asked(module.FORGOTTEN_AFTER - 1, 1)
            assert await asked(1.0, 2)
            assert await asked(2 * module.FORGOTTEN_AFTER - 1, 2)
            monkeypatch.setattr(module, "READ_LIMIT", 30.0)
            assert await asked(1.0, 3) is None
        finally:
            lost.set()

    run(looks())
    assert module.FORGOTTEN_AFTER == 300.0


def test_an_answer_that_comes_after_that_to_a_later_question_changes_nothing(airflow: Airflow) -> None:
    connection = SharedConnection("oci_x", "model")
    connection.connect()
    read, lost = airflow.read, threading.Event()
    late: list[threading.Thread] = []

    def overtaken(*of: Any) -> dict[str, Any]:
        found = read(*of)
        airflow.read = read  # type: ignore[method-assign]  # answers as before from here on
        late.append(threading.current_thread())
        assert lost.wait(60)
        return found

    airflow.read = overtaken  # type: ignore[method-assign]  # Airflow, which answers late
    airflow.fields["token"] = 2
    first = threading.Thread(target=lambda: connection.reconnect(anew=True))
    first.start()
    while not late:
        threading.Event().wait(0.01)
    airflow.now += 1
    airflow.fields["token"] = 3
    connection.reconnect(anew=True)
    lost.set()
    first.join(60)
    assert airflow.reconnected == [{"token": 3}]


def test_a_refresh_that_ends_just_when_its_time_is_over_is_no_error_of_its_own(
    airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    class JustThen(concurrent.futures.Future[None]):
        def result(self, timeout: float | None = None) -> None:
            if timeout is None:
                return super().result()
            self.set_result(None)
            raise concurrent.futures.TimeoutError

    def begun(work: Coroutine[Any, Any, Any], loop: Any) -> concurrent.futures.Future[None]:
        del loop
        work.close()
        return JustThen()

    monkeypatch.setattr(module, "READ_LIMIT", 0.1)
    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", begun)
    connection = SharedConnection("oci_x", "model")
    run(connection.open())
    with pytest.raises(BackendError, match="Airflow does not answer"):
        connection.refresh(anew=False)


def test_an_edit_is_taken_over_though_the_reading_before_it_has_failed(airflow: Airflow) -> None:
    connection = SharedConnection("oci_x", "model")
    connection.connect()
    airflow.error = RuntimeError("Airflow's database is down")
    with pytest.raises(RuntimeError):
        connection.reconnect(anew=True)
    airflow.error = None
    airflow.fields["token"] = 2
    connection.reconnect(anew=False)
    assert airflow.reconnected == [{"token": 2}]


def test_connections_are_shared_by_their_name_kind_and_place_and_storage_is_one_of_its_own() -> None:
    one = shared_connection("oci_x", "model", ("oc1", "fra"))
    assert shared_connection("oci_x", "model", ("oc1", "fra")) is one
    others = [
        shared_connection("oci_y", "model", ("oc1", "fra")),
        shared_connection("oci_x", "other", ("oc1", "fra")),
        shared_connection("oci_x", "model", ("oc1", "iad")),
        shared_connection("oci_x", "model"),
        shared_storage("oci_x"),
    ]
    assert len({id(each) for each in (one, *others)}) == 6
    assert shared_storage("oci_x") is others[-1]
    assert [(each.conn_id, each.kind) for each in (one, others[-1])] == [("oci_x", "model"), ("oci_x", None)]


@pytest.mark.parametrize(
    "kind, job_id, compartment, place",
    [
        ("oci_data_science", "ocid1.datasciencejob.oc1.fra.x", "c", ("oc1", "fra", "c")),
        ("oci_data_science", "ocid1.datasciencejob.oc1.fra.x", None, ("oc1", "fra", "")),
        ("local", "/srv/v1.2.3.4/run", None, ("",)),
    ],
)
def test_the_place_of_a_gang_is_what_its_id_names_and_its_compartment(
    kind: str, job_id: str, compartment: str | None, place: tuple[str, ...]
) -> None:
    assert location_of(kind, job_id, compartment) == place


TASK: contextvars.ContextVar[str] = contextvars.ContextVar("TASK", default="nobody's")


class Lines:
    """A logger that writes to the log of the task that the context names, as Airflow's do."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, str, dict[str, Any]]] = []
        self.meeting = threading.Barrier(2)

    def _write(self, level: str, msg: str, *args: Any, **fields: Any) -> None:
        if fields.get("together"):
            self.meeting.wait(60)
        self.lines.append((TASK.get(), level, msg % args, fields))

    def info(self, msg: str, *args: Any, **fields: Any) -> None:
        self._write("info", msg, *args, **fields)

    def warning(self, msg: str, *args: Any, **fields: Any) -> None:
        self._write("warning", msg, *args, **fields)


def test_a_line_goes_to_the_log_of_who_made_the_logger_from_any_thread_and_from_two_at_once() -> None:
    lines = Lines()

    def made() -> LogOf:
        TASK.set("train's")
        return LogOf(cast("Any", lines))

    log = contextvars.copy_context().run(made)
    log.info("step %d", 7, rank=1)
    log.warning("step %d", 8, rank=2)
    threads = [
        threading.Thread(target=write, args=("both",), kwargs={"together": True})
        for write in (log.info, log.warning)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert lines.lines[:2] == [
        ("train's", "info", "step 7", {"rank": 1}),
        ("train's", "warning", "step 8", {"rank": 2}),
    ]
    assert sorted(line[:3] for line in lines.lines[2:]) == [
        ("train's", "info", "both"),
        ("train's", "warning", "both"),
    ]
    assert TASK.get() == "nobody's"
