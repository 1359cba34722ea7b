"""Ending nodes waits behind nothing, at any home of a service: a silent store, or requests that the service has wait.

Backend `local` has no service: its nodes are processes, which it ends through files of the folder that is their store.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.backends.base import Backend
from airflow_provider_ocidist.backends.kubernetes.refs import name_of
from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.backends.oci_data_science.submission import Submission
from airflow_provider_ocidist.backends.runai.options import runai_fields
from airflow_provider_ocidist.backends.work_dir_backend import WorkDirBackend
from airflow_provider_ocidist.emulator.cluster_settings import ClusterSettings
from airflow_provider_ocidist.emulator.context import Options
from airflow_provider_ocidist.emulator.runai_settings import RunaiSettings
from airflow_provider_ocidist.emulator.server import Emulator
from airflow_provider_ocidist.errors import BackendError, Cause, Overtaken
from airflow_provider_ocidist.gangs.kills import killer_of
from airflow_provider_ocidist.gangs.submission import GangSubmitter
from airflow_provider_ocidist.model.attempts import Attempt
from airflow_provider_ocidist.model.run import Plan, RunRef
from airflow_provider_ocidist.oci_client import clients
from airflow_provider_ocidist.storage.stores.opening import Stores
from airflow_provider_ocidist.work_dir.attempt_index import AttemptIndex, work_dir_of
from tests.backends import clusters
from tests.backends.contract import Home
from tests.backends.silent import Silent
from tests.http_client import http
from tests.training_jobs import BACKEND, a_key

LOG = logging.getLogger(__name__)
PATIENCE = 30.0
"""Seconds for which a test waits for what comes at once, or not before it lets it."""
WAITERS = 3
HOMES = ("job_runs", "multi_node", "pytorchjob", "trainjob", "runai")
NO_IMAGE = "missing:1"
"""Image that a cluster cannot pull: no node has to start for any of this."""


@dataclass(frozen=True)
class Place:
    """A home, and the door for the control of its service."""

    home: Home
    control: str
    reads: str
    """Methods of all its requests but those that end a gang."""
    paths: str
    """Expression for the paths of its service, which may be at one address with the store."""

    def waits_for_all_else(self, status: int) -> None:
        """Let the service answer every request that does not end a gang with a wait of a minute."""
        rule = {"method": self.reads, "path": self.paths, "status": status, "retry_after_s": 60}
        http.post(f"{self.control}/faults", json=rule).raise_for_status()

    def is_well(self) -> None:
        http.delete(f"{self.control}/faults").raise_for_status()

    def calls(self) -> list[dict[str, Any]]:
        found = http.get(f"{self.control}/calls").raise_for_status().json()
        return [{**call, "path": call["path"].partition("?")[0]} for call in found]

    def ends(self, ids: Iterable[str]) -> bool:
        """Whether the service has accepted a request to end each of these: job runs, objects or workloads."""
        accepted = {call["path"] for call in self.calls() if 200 <= call["status"] < 300 and _ends(call)}
        return all(any(each in path.split("/") for path in accepted) for each in ids)

    def ids_of(self, ref: RunRef) -> list[str]:
        """Return what the service has to end of a gang."""
        if self.home.kind == "oci_data_science":
            return list(ref.run_ids)
        return [ref.job_id if self.home.kind == "runai" else name_of(ref)]


def _ends(call: dict[str, Any]) -> bool:
    return bool(call["method"] == "DELETE" or call["path"].endswith("/actions/cancelJobRun"))


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    cluster = ClusterSettings(**clusters.FAST)
    with Emulator(options=Options(kubernetes=cluster, runai=RunaiSettings(lag_s=0.0))) as running:
        no_node = {"never_starts": True}
        http.post(f"{running.url}/_emulator/nodes", json=no_node).raise_for_status()
        yield running


@pytest.fixture(params=HOMES)
def place(request: pytest.FixtureRequest, emulator: Emulator) -> Iterator[Place]:
    """A home whose store is a bucket; nothing of it lives afterwards."""
    found = _place(request.param, emulator)
    yield found
    found.is_well()


def _place(name: str, emulator: Emulator) -> Place:
    access, base = emulator.access, f"{emulator.url}/_emulator"
    fields = {
        "auth": "config_file",
        "config_file": access.config_file,
        "profile": access.profile,
        "region": access.region,
        "endpoint": access.url,
        "work_dir": f"oci://{access.bucket}@{access.namespace}/work/{uuid.uuid4().hex[:8]}",
    }
    if name in ("job_runs", "multi_node"):
        ids = ("compartment_id", "project_id", "subnet_id")
        fields |= {each: getattr(access, each) for each in ids}
        home = Home("oci_data_science", fields, {"backend": {**BACKEND, "topology": name}})
        return Place(home, base, "GET", "/20190101/.*")
    job = {"image": NO_IMAGE, "env": {"OCI_CONFIG_FILE": access.config_file}, "backend": {"kind": name}}
    if name != "runai":
        home = Home(name, {**fields, "kube_config_path": access.kubeconfig}, job)
        return Place(home, f"{base}/kubernetes", "GET|POST|PATCH", ".*")
    plane = access.runai
    assert plane is not None
    extra = {"project": plane["project"], "work_dir": fields["work_dir"]}
    own = runai_fields(plane["url"], plane["client_id"], plane["client_secret"], extra)
    return Place(Home(name, {**fields, **own}, job), f"{plane['url']}/_emulator", "GET|POST|PUT", "/api/.*")


@pytest.fixture
def gang(place: Place, tmp_path: Path) -> Iterator[RunRef]:
    backend = place.home.connect()
    ref = backend.submit(backend.plan(place.home.job(tmp_path / "code"), a_key()))
    yield ref
    place.is_well()
    place.home.connect().cancel(ref)


def silence(backend: Backend, store: Silent) -> None:
    """Let the store of a connected backend be a silent one from now on; its clients of the service stay."""
    if isinstance(backend, OciDataScience):
        backend._storage = replace(backend._storage, endpoint=store.url)
        backend._run_dirs.clear()
        backend._cancel_dirs.clear()
    else:
        assert isinstance(backend, WorkDirBackend)
        backend._access = replace(backend._access, endpoint=store.url)
        backend._stores = Stores(backend._access)
        backend._urgent_stores = Stores(replace(backend._access, urgent=True))
        backend._run_dirs.clear()
        backend._urgent_dirs.clear()


@pytest.fixture
def patient_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let also what is urgent wait for a store longer than these tests wait for a cancel."""
    monkeypatch.setattr(clients, "_URGENT_TIMEOUT_S", 600.0)


def in_a_thread(work: Callable[[], object]) -> threading.Thread:
    def run() -> None:
        # What it meets when the test is over is of no interest.
        with contextlib.suppress(Exception):
            work()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def until(is_done: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_done():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.05)


@pytest.mark.usefixtures("patient_stores")
def test_a_killed_task_cancels_its_gang_while_the_store_is_silent(place: Place, gang: RunRef) -> None:
    backend = place.home.connect()
    if isinstance(backend, OciDataScience):
        # Its clients of the service, which is at one address with the store, exist before that moves.
        backend.ready_to_cancel(gang)
    with Silent() as store:
        silence(backend, store)
        killer = killer_of(backend, gang, 1, LOG)
        in_a_thread(lambda: killer.kill(PATIENCE))
        assert store.was_asked.wait(PATIENCE), "neither the claim nor a stop request is asked for"
        until(lambda: place.ends(place.ids_of(gang)), "the cancel waits for the store")


@pytest.mark.parametrize("status", [429, 503])
def test_a_killed_task_cancels_its_gang_while_all_other_requests_have_to_wait(
    place: Place, gang: RunRef, status: int
) -> None:
    backend = place.home.connect()
    killer = killer_of(backend, gang, 1, LOG)
    place.waits_for_all_else(status)
    waiters = [in_a_thread(lambda: backend.status([gang])) for _ in range(WAITERS)]
    until(
        lambda: sum(call["status"] == status for call in place.calls()) >= WAITERS,
        "no request has to wait: the case is not met",
    )
    in_a_thread(lambda: killer.kill(PATIENCE))
    until(lambda: place.ends(place.ids_of(gang)), "the cancel waits with the others")
    assert any(waiter.is_alive() for waiter in waiters), "nobody has waited: the case is not met"


@pytest.mark.usefixtures("patient_stores")
def test_a_submission_that_is_killed_as_its_gang_is_whole_cancels_it_while_the_store_is_silent(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, stop = place.home.connect(), threading.Event()
    gang = GangSubmitter(backend, place.home.job(tmp_path / "code"), LOG, None, stop)
    errors: list[BackendError] = []

    def submit() -> None:
        try:
            gang.adopt_or_submit(a_key(), None)
        except BackendError as error:
            errors.append(error)

    with Silent() as store:
        made = falls_silent_when_nodes_exist(place, backend, store, monkeypatch)
        submission = in_a_thread(submit)
        assert store.was_asked.wait(PATIENCE), "no record is written: the case is not met"
        assert made
        stop.set()
        until(lambda: place.ends(made), "the cancel waits for the record")
    submission.join(PATIENCE)
    assert [error.cause for error in errors] == [Cause.CANCELED]


class TimeIsOver(BaseException):
    """As Airflow's timeout: no Exception; a signal brings it, to the thread that submits."""


@pytest.fixture
def time_is_over() -> Iterator[Callable[[], None]]:
    """Return a function for other threads, which ends the time of this one."""

    def raise_it(*_: Any) -> None:
        raise TimeIsOver

    before = signal.signal(signal.SIGUSR2, raise_it)
    yield lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR2)
    signal.signal(signal.SIGUSR2, before)


@pytest.mark.usefixtures("patient_stores")
def test_a_task_whose_time_is_over_while_its_gang_is_recorded_cancels_it_while_the_store_is_silent(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, time_is_over: Callable[[], None]
) -> None:
    """A first try without another: nobody would look for the gang, which Airflow has no note of."""
    backend = place.home.connect()
    gang = GangSubmitter(backend, place.home.job(tmp_path / "code"), LOG, None, threading.Event())
    outcome: list[str] = []
    with Silent() as store:
        made = falls_silent_when_nodes_exist(place, backend, store, monkeypatch)

        def end_its_time() -> None:
            outcome.append("no record is written: the case is not met")
            if store.was_asked.wait(PATIENCE):
                time_is_over()
                deadline = time.monotonic() + PATIENCE
                while not place.ends(made) and time.monotonic() < deadline:
                    time.sleep(0.05)
                outcome[:] = ["cancelled"] if place.ends(made) else ["the gang lives on"]
            store.close()

        ends = in_a_thread(end_its_time)
        with pytest.raises(TimeIsOver):
            gang.adopt_or_submit(a_key(), None)
        ends.join()
    assert made
    assert outcome == ["cancelled"]


def test_a_task_whose_time_is_over_just_when_its_gang_was_created_ends_it(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = place.home.connect()
    made = is_over_when_nodes_exist(place, backend, monkeypatch)
    gang = GangSubmitter(backend, place.home.job(tmp_path / "code"), LOG, None, threading.Event())
    with pytest.raises(TimeIsOver):
        gang.adopt_or_submit(key := a_key(), None)
    assert made
    # Where no list shows whose it is, its nodes find a stop request as soon as they begin.
    plan = backend.plan(place.home.job(tmp_path / "code"), key)
    assert place.ends(made) or backend.directories.stop_requested(plan)


@pytest.mark.parametrize("ends_by", ["its time is over", "it is killed"])
def test_a_try_that_has_lost_its_gang_to_a_later_one_ends_nothing_of_it(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends_by: str
) -> None:
    backend, stop = place.home.connect(), threading.Event()
    gang = GangSubmitter(backend, place.home.job(tmp_path / "code"), LOG, None, stop)
    made: list[RunRef] = []

    def record_created(_: Plan, ref: RunRef) -> None:
        made.append(ref)
        # Airflow took this try for dead, and the next has found its gang.
        place.home.connect().directories.claim(ref, 2)
        if ends_by == "its time is over":
            raise TimeIsOver
        stop.set()

    monkeypatch.setattr(backend.gangs, "record_created", record_created)
    with pytest.raises(TimeIsOver if ends_by == "its time is over" else BackendError):
        gang.adopt_or_submit(a_key(), None)
    (ref,) = made
    lives = not place.ends(place.ids_of(ref)) and not backend.directories.stop_requested(ref)
    place.home.connect().cancel(ref)
    assert lives


@pytest.mark.parametrize("place", ["job_runs"], indirect=True)
@pytest.mark.parametrize("how", ["interrupted", "refused"])
def test_a_try_that_creates_a_gang_in_part_leaves_it_to_the_later_one_that_has_claimed_it(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """There a gang consists of many; the later try completes what it has found."""
    backend, key = place.home.connect(), a_key()
    plan = backend.plan(place.home.job(tmp_path / "code"), key)
    made: list[str] = []
    create = Submission._created

    def created(submission: Submission, job_id: str, number: int, body: Any) -> Any:
        if number == 0:
            run = create(submission, job_id, number, body)
            made.append(str(run.id))
            place.home.connect().directories.claim(plan, 2)
            return run
        until(lambda: backend.directories.claimed_by(plan) == 2, "the case is not met")
        raise TimeIsOver if how == "interrupted" else BackendError("no machine", cause=Cause.CAPACITY)

    monkeypatch.setattr(Submission, "_created", created)
    gang = GangSubmitter(backend, place.home.job(tmp_path / "code"), LOG, None, threading.Event())
    with pytest.raises(TimeIsOver if how == "interrupted" else Overtaken):
        gang.adopt_or_submit(key, None)
    lives = not any(place.ends([each]) for each in made) and not backend.directories.stop_requested(plan)
    for ref in backend.gangs.find(plan):
        backend.cancel(ref)
    assert made
    assert lives


@pytest.mark.usefixtures("patient_stores")
@pytest.mark.parametrize("is_answered", [True, False])
def test_what_a_task_whose_time_is_over_has_asked_for_is_cancelled_while_the_store_is_silent(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_answered: bool
) -> None:
    """In the pause before it asks again, and just after its gang was created; Airflow has no note of it."""
    backend, key = place.home.connect(), a_key()
    gang = GangSubmitter(backend, place.home.job(tmp_path / "code"), LOG, None, threading.Event())
    if not is_answered:
        answers_nothing(backend, monkeypatch)
    outcome: list[str] = []
    with Silent() as store:

        def watch(ids: list[str]) -> None:
            deadline = time.monotonic() + PATIENCE
            while not place.ends(ids) and time.monotonic() < deadline:
                time.sleep(0.05)
            outcome.append("cancelled" if place.ends(ids) else "the gang lives on")
            store.close()

        with contextlib.suppress(TimeIsOver), gang.ended_if_interrupted(key, 1):
            with contextlib.suppress(BackendError):
                gang.adopt_or_submit(key, None)
            plan = backend.plan(place.home.job(tmp_path / "code"), key)
            ids = [each for ref in backend.gangs.find(plan) for each in place.ids_of(ref)]
            assert ids, "nothing was created: the case is not met"
            silence(backend, store)
            watcher = in_a_thread(lambda: watch(ids))
            raise TimeIsOver
        watcher.join()
    assert outcome == ["cancelled"]


def answers_nothing(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the service create what is asked for, and its answers be lost; nothing is cleaned up meanwhile."""

    def lost(create: Callable[..., object], *given: Any) -> Any:
        create(*given)
        raise BackendError("no answer", retryable=True)

    if isinstance(backend, OciDataScience):
        runs = Submission.runs
        monkeypatch.setattr(Submission, "runs", lambda *given: lost(runs, *given))
        monkeypatch.setattr(backend.gangs, "_cleaned_up", lambda *_: {})
    else:
        assert isinstance(backend, WorkDirBackend)
        created = backend._created
        monkeypatch.setattr(backend, "_created", lambda *given: lost(created, *given))


def test_a_gang_whose_record_cannot_be_written_is_waited_for(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is recorded before its creation leads to it; a failed submission would leave it to itself."""
    backend = place.home.connect()
    record = backend.gangs.record

    def fails(attempt: Attempt) -> None:
        if attempt.ref is not None:
            raise BackendError("the store is full")
        record(attempt)

    monkeypatch.setattr(backend.gangs, "record", fails)
    job, key = place.home.job(tmp_path / "code"), a_key()
    first = GangSubmitter(backend, job, LOG, None, threading.Event()).adopt_or_submit(key, None)
    later = GangSubmitter(place.home.connect(), job, LOG, None, threading.Event()).adopt_or_submit(
        key, None, 2
    )
    backend.cancel(first.ref)
    assert later.ref.job_id == first.ref.job_id


def test_a_gang_whose_record_could_not_be_written_is_recorded_once_the_store_takes_it(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its ids a later try would not find it once the service has deleted what has ended (backend.ttl)."""
    backend, key = place.home.connect(), a_key()
    with monkeypatch.context() as patched:
        write = AttemptIndex.write

        def fails(index: AttemptIndex, attempt: Attempt) -> None:
            if attempt.ref is not None:
                raise BackendError("the store is full")
            write(index, attempt)

        patched.setattr(AttemptIndex, "write", fails)
        job = place.home.job(tmp_path / "code")
        ref = GangSubmitter(backend, job, LOG, None, threading.Event()).adopt_or_submit(key, None).ref
    backend.cancel(ref)
    index = backend.gangs.index(work_dir_of(ref.run_dir))
    assert [each.ref for each in index.read(key)] == [None]
    backend.gangs.record_again(ref)
    until(lambda: index.read(key)[0].ref is not None, "it is not recorded")
    (found,) = index.read(key)
    assert found.ref is not None
    assert (found.ref.job_id, found.ref.run_ids) == (ref.job_id, ref.run_ids)


def is_over_when_nodes_exist(place: Place, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let the time be over once the service has accepted every node; return a list for what it has to end then."""
    made: list[str] = []
    if isinstance(backend, OciDataScience):
        create_runs = Submission.runs

        def runs(submission: Submission, job_id: str, existing: Any) -> Any:
            made.extend(str(run.id) for run in create_runs(submission, job_id, existing).values())
            raise TimeIsOver

        monkeypatch.setattr(Submission, "runs", runs)
    else:
        assert isinstance(backend, WorkDirBackend)
        create = backend._created

        def created(*given: Any) -> RunRef:
            made.extend(place.ids_of(create(*given)))
            raise TimeIsOver

        monkeypatch.setattr(backend, "_created", created)
    return made


def falls_silent_when_nodes_exist(
    place: Place, backend: Backend, store: Silent, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """Let the store fall silent once the service has accepted every node; return a list for what it has to end then."""
    made: list[str] = []
    if isinstance(backend, OciDataScience):
        create_runs = Submission.runs

        def runs(submission: Submission, job_id: str, existing: Any) -> Any:
            found = create_runs(submission, job_id, existing)
            made.extend(str(run.id) for run in found.values())
            silence(backend, store)
            return found

        monkeypatch.setattr(Submission, "runs", runs)
    else:
        assert isinstance(backend, WorkDirBackend)
        create = backend._created

        def created(*given: Any) -> RunRef:
            ref = create(*given)
            made.extend(place.ids_of(ref))
            silence(backend, store)
            return ref

        monkeypatch.setattr(backend, "_created", created)
    return made
