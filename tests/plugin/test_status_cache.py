"""States of gangs: one serves everybody, none takes the API server down."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from airflow_provider_ocidist.backends.base import LogLine, LogPart
from airflow_provider_ocidist.backends.capabilities import NamesSecrets, OpensById, ReplacesNodes
from airflow_provider_ocidist.backends.local import Local
from airflow_provider_ocidist.errors import BackendError, Cause
from airflow_provider_ocidist.model.report import Restart
from airflow_provider_ocidist.model.run import NodeState, RunKey, RunRecord, RunStatus
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.plugin import status_cache as module
from airflow_provider_ocidist.plugin.checkpoint_list import FoundCheckpoints
from airflow_provider_ocidist.plugin.log_tail import LINES, MOST_LINES, log_tail_of
from airflow_provider_ocidist.plugin.status_cache import StatusCache
from airflow_provider_ocidist.plugin.view import goes_on
from tests.plugin.gangs import START, node, record, ref
from tests.training_jobs import a_job, a_key, wait_until

GANG = ref(checkpoints_uri=None)


class Service(OpensById, NamesSecrets):
    """A hook and its backend: returns a status after a while, counts how often it was asked."""

    def __init__(self, *, takes: float = 0.0, error: Exception | None = None) -> None:
        self.takes = takes
        self.state = NodeState.RUNNING
        self.error = error
        self.asked = 0
        self.log: list[LogLine] = []
        self.searches: list[tuple[float, ...]] = []
        self.opened: list[str] = []
        self.gang = GANG
        self.fields = {}
        self.access = self.service_access = OciAccess(region="us-ashburn-1")
        self.go_on = threading.Event()

    def __call__(self, conn_id):
        return self

    def backend(self, kind):
        return self

    @property
    def gangs(self):
        return SimpleNamespace(work_dir=lambda: self.fields.get("work_dir"))

    def status(self, refs):
        self.asked += 1
        self.go_on.wait(self.takes)
        if self.error:
            raise self.error
        return [RunStatus(nodes=(node(0, self.state), node(1, self.state)))]

    def open(self, job_id):
        self.opened.append(job_id)
        return RunRecord(ref=self.gang)

    def secrets_of(self, gang):
        return {"hf_abcdef"}

    def logs_of(self, wanted, most):
        ((gang, since),) = wanted
        self.searches.append(since)
        # Nodes that share a run are read together.
        begins = {
            run: min(at for at, of in zip(since, gang.run_ids, strict=True) if of == run)
            for run in gang.run_ids
        }
        lines = [line for line in self.log if line.time >= begins[gang.run_ids[line.rank]]]
        left = dict.fromkeys(range(gang.nodes), lines[most - 1].time) if len(lines) > most else {}
        return [LogPart(lines[:most], left)]


async def test_many_browsers_cost_one_look():
    service = Service(takes=0.3)
    cache = StatusCache(service)
    found = await asyncio.gather(*(cache.at("oci_default", GANG) for _ in range(20)))
    found.append(await cache.at("oci_default", GANG))
    assert service.asked == 1
    assert all(look.status is not None and look.problem is None for look in found)


async def test_what_is_read_is_what_the_service_says_and_not_the_xcom():
    service = Service()
    forged = ref(run_dir="oci://others@ns/x", log_group_id="ocid1.loggroup.oc1.iad.others")
    cache = StatusCache(service)
    look = await cache.at("oci_default", forged)
    assert look.record.ref == service.gang
    assert look.console_url.startswith("https://cloud.oracle.com/data-science/job-runs/ocid1.")
    await cache.tail("oci_default", forged, 0, START + 10)
    assert service.opened == [forged.job_id], "asked for once"


class Replacing(Service, ReplacesNodes):
    """A service whose nodes others replace."""

    def __init__(self) -> None:
        super().__init__()
        self.gang = replace(GANG, replaces=True)
        self.now = self.gang
        self.looked_at = []

    def current(self, gang):
        return self.now

    def replace_nodes(self, gang, failures):
        raise NotImplementedError

    def end_nodes(self, gang, ranks):
        raise NotImplementedError

    def status(self, refs):
        self.looked_at += refs
        return super().status(refs)


async def test_a_node_that_has_taken_the_place_of_a_lost_one_is_the_one_that_is_looked_at(monkeypatch):
    monkeypatch.setattr(module, "RUNNING_FRESH", 0.0)
    service = Replacing()
    cache = StatusCache(service)
    assert (await cache.at("oci_default", GANG)).record.ref == service.gang
    lost = Restart(cause=Cause.NODE, message="gone", rank=1)
    service.now = replace(service.gang, run_ids=(GANG.run_ids[0], "another"), replaced=(lost,))
    look = await cache.at("oci_default", GANG)
    assert (look.problem, look.record.ref) == (None, service.now)
    assert service.looked_at == [service.gang, service.now]
    service.log = [line(1, START)]
    await cache.tail("oci_default", GANG, 1, START + 10)
    assert service.opened == [GANG.job_id], "the secrets and limits are those of the job"
    # A gang whose job replaces no node costs no further request.
    fixed = Replacing()
    fixed.gang = fixed.now = GANG
    fixed.current = lambda _: pytest.fail("asked for")
    assert (await StatusCache(fixed).at("oci_default", GANG)).problem is None


async def test_the_job_of_another_task_is_not_looked_at():
    service = Service()
    service.gang = ref(key=RunKey(dag_id="others", run_id="r", task_id="t"))
    cache = StatusCache(service)
    look = await cache.at("oci_default", GANG)
    tail = await cache.tail("oci_default", GANG, 0, START + 10)
    assert (look.status, tail.lines, service.asked, service.searches) == (None, (), 0, [])
    assert "is no job of this task" in look.problem
    assert "is no job of this task" in tail.problem


@pytest.mark.parametrize(
    "run_dir, is_read",
    [
        ("/mnt/work/x", True),
        ("/mnt/work", True),
        ("/mnt/work-of-others/x", False),
        ("/mnt/work/../../etc", False),
        ("/etc", False),
        ("file:///mnt/work/x", False),
    ],
)
async def test_of_files_on_this_machine_those_of_the_connections_work_dir_are_read(run_dir, is_read):
    service = Service()
    service.fields = {"work_dir": "/mnt/work/"}
    service.gang = ref(backend="pytorchjob", run_dir=run_dir, checkpoints_uri=None)
    look = await StatusCache(service).at("oci_default", service.gang)
    assert (look.status is not None) == is_read
    assert is_read or "not below the connection's work_dir" in look.problem
    tail = await StatusCache(service).tail("oci_default", service.gang, 0, START + 10)
    assert is_read or "not below the connection's work_dir" in tail.problem
    assert (service.asked > 0) == is_read


@pytest.mark.parametrize("work_dir", [None, "", "oci://bucket@ns/work", "."])
async def test_a_connection_without_a_folder_opens_no_file_of_this_machine(work_dir):
    service = Service()
    service.fields = {"work_dir": work_dir}
    service.gang = ref(backend="pytorchjob", run_dir="/mnt/work/x", checkpoints_uri=None)
    assert (await StatusCache(service).at("oci_default", service.gang)).status is None


async def test_what_nodes_print_of_their_secrets_is_masked():
    service = Service()
    service.log = [LogLine(id="1", time=START, rank=0, text="token=hf_abcdef.")]
    cache = StatusCache(service)
    tail = await cache.tail("oci_default", GANG, 0, START + 10)
    assert [line.text for line in tail.lines] == ["token=***."]
    assert "hf_abcdef" in (await cache.at("oci_default", GANG)).secrets


async def test_a_look_is_done_again_when_it_has_become_old(monkeypatch):
    monkeypatch.setattr(module, "RUNNING_FRESH", 0.0)
    service = Service()
    cache = StatusCache(service)
    await cache.at("oci_default", GANG)
    await cache.at("oci_default", GANG)
    assert service.asked == 2


async def test_a_service_that_fails_leaves_what_was_seen_before_and_says_why(monkeypatch):
    monkeypatch.setattr(module, "RUNNING_FRESH", 0.0)
    service = Service()
    cache = StatusCache(service)
    before = await cache.at("oci_default", GANG)
    service.error = BackendError("the endpoint cannot be reached")
    look = await cache.at("oci_default", GANG)
    assert (look.status, look.at, look.problem) == (
        before.status,
        before.at,
        "the endpoint cannot be reached",
    )


async def test_of_an_error_that_is_not_ours_only_the_kind_is_reported():
    look = await StatusCache(Service(error=RuntimeError("password=hunter2"))).at("oci_default", GANG)
    assert look.problem == "RuntimeError; see the API server's log"


async def test_a_service_that_does_not_answer_holds_no_browser_for_long(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 0.2)
    service = Service(takes=30.0)
    cache = StatusCache(service)
    began = time.monotonic()
    problems = {(await cache.at("oci_default", GANG)).problem for _ in range(3)}
    assert time.monotonic() - began < 10
    assert problems == {"the service has not answered for 0 s"}
    assert service.asked == 1
    service.go_on.set()


async def test_a_service_that_does_not_answer_holds_up_no_page_of_another_connection():
    silent, quick = Service(takes=60), Service()
    cache = StatusCache(lambda conn_id: silent if conn_id == "far" else quick)
    gangs = [replace(GANG, job_id=f"{GANG.job_id}{number}") for number in range(2 * module.THREADS)]
    waiting = [asyncio.create_task(cache.at("far", gang)) for gang in gangs]
    waiting += [asyncio.create_task(cache.tail("far", gang, 0, None)) for gang in gangs]
    try:
        await wait_until_async(lambda: silent.asked == module.THREADS)
        look = await cache.at("oci_default", GANG)
        assert (look.problem, look.status is not None) == (None, True)
        assert (await cache.tail("oci_default", GANG, 0, START + 10)).problem is None
        assert silent.asked == module.THREADS
    finally:
        silent.go_on.set()
        await asyncio.gather(*waiting)


class Place:
    """The checkpoints of a task: lists what is there once it may go on, and counts how often it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked = 0
        self.there = 0
        self.go_on = threading.Event()
        self.error: Exception | None = None
        monkeypatch.setattr(module.CheckpointList, "read", lambda _, uri, access: self.read())

    def read(self) -> FoundCheckpoints:
        self.asked += 1
        found = FoundCheckpoints(older=self.there)
        assert self.go_on.wait(60)
        if self.error is not None:
            raise self.error
        return found


async def test_a_list_of_checkpoints_that_takes_long_hides_no_state_and_takes_no_thread_of_the_service(
    monkeypatch,
):
    monkeypatch.setattr(module, "RUNNING_FRESH", 0.0)
    monkeypatch.setattr(module, "PATIENCE", 5.0)
    monkeypatch.setattr(module, "LIST_PATIENCE", 0.1)
    place, service = Place(monkeypatch), Service()
    cache = StatusCache(service)
    gangs = [ref(job_id=f"{ref().job_id}{number}") for number in range(2 * module.THREADS)]
    place.there = 7
    try:
        for _ in range(2):
            for service.gang in gangs:
                look = await cache.at("oci_default", service.gang)
                assert (look.problem, look.status is not None) == (None, True)
        assert service.asked == 2 * len(gangs)
        assert place.asked == module.THREADS, "one list of a gang is under way, however often a browser asks"
        monkeypatch.setattr(module, "PATIENCE", 0.5)
        while not look.checkpoints.problem:
            look = await cache.at("oci_default", service.gang)
        assert look.checkpoints.problem == "the place of the checkpoints has not answered for 0 s"
    finally:
        place.go_on.set()
    while (await cache.at("oci_default", service.gang)).checkpoints.older != place.there:
        await asyncio.sleep(0.01)


async def test_the_last_view_of_a_gang_has_the_checkpoints_of_its_end(monkeypatch):
    monkeypatch.setattr(module, "RUNNING_FRESH", 0.0)
    monkeypatch.setattr(module, "LIST_PATIENCE", 0.1)
    place, service = Place(monkeypatch), Service()
    cache, service.gang = StatusCache(service), ref()
    try:
        assert not (await cache.at("oci_default", service.gang)).checkpoints.older
        service.state = NodeState.SUCCEEDED
        place.there = 1
        look = await cache.at("oci_default", service.gang)
        assert look.status.ended
        assert goes_on(record(state="success"), look), "the list was begun before the end"
    finally:
        place.go_on.set()
    monkeypatch.setattr(module, "LIST_PATIENCE", 30.0)
    while goes_on(record(state="success"), look):
        look = await cache.at("oci_default", service.gang)
    assert (look.checkpoints.older, place.asked) == (1, 2)
    await cache.at("oci_default", service.gang)
    assert (service.asked, place.asked) == (2, 2)


async def test_a_list_that_fails_says_so_in_its_own_place(monkeypatch):
    place, service = Place(monkeypatch), Service()
    service.gang = ref()
    place.error = RuntimeError("password=hunter2")
    place.go_on.set()
    look = await StatusCache(service).at("oci_default", service.gang)
    assert (look.problem, look.status is not None) == (None, True)
    assert (
        look.checkpoints.problem
        == "the checkpoints cannot be read now: RuntimeError; see the API server's log"
    )


async def test_a_connection_that_nobody_asks_for_any_more_keeps_no_threads(monkeypatch):
    monkeypatch.setattr(module, "MOST_REMEMBERED", 2)
    cache = StatusCache(Service())
    for number in range(5):
        assert (await cache.at(f"conn{number}", GANG)).problem is None
    assert len(cache._threads) == 2
    gc.collect()
    await wait_until_async(lambda: sum(t.name.startswith("ocidist-page") for t in threading.enumerate()) <= 2)


async def test_threads_end_after_the_last_request_for_their_connection_and_come_back(monkeypatch):
    monkeypatch.setattr(module, "IDLE", 0.1, raising=False)
    before = set(threading.enumerate())

    def ours():
        return {each for each in threading.enumerate() if each.name.startswith("ocidist-page")} - before

    cache = StatusCache(Service())
    for _ in range(2):
        for number in range(3):
            assert (await cache.at(f"conn{number}", GANG)).problem is None
        await wait_until_async(lambda: not ours())
        monkeypatch.setattr(module, "RUNNING_FRESH", 0.0)


async def wait_until_async(is_so):
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_an_answer_that_came_too_late_serves_who_asks_next(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 0.2)
    service = Service(takes=30.0)
    cache = StatusCache(service)
    assert (await cache.at("oci_default", GANG)).status is None
    monkeypatch.setattr(module, "RUNNING_FRESH", 60.0)
    service.go_on.set()
    deadline = time.monotonic() + 20
    while (await cache.at("oci_default", GANG)).status is None:
        assert time.monotonic() < deadline
    assert service.asked == 1


async def test_many_browsers_cost_one_search_of_the_log():
    service = Service()
    cache = StatusCache(service)
    await asyncio.gather(*(cache.tail("oci_default", GANG, 0, START + 10) for _ in range(20)))
    assert len(service.searches) == 1


async def test_only_so_many_gangs_are_remembered(monkeypatch):
    monkeypatch.setattr(module, "MOST_REMEMBERED", 3)
    service = Service()
    cache = StatusCache(service)
    for number in range(8):
        service.gang = ref(key=RunKey(dag_id=f"d{number}", run_id="r", task_id="t"), checkpoints_uri=None)
        await cache.at("oci_default", service.gang)
    assert (len(cache._watched), len(cache._gangs)) == (3, 3)


# the last lines of a node


def line(rank: int, at: float, number: int = 0) -> LogLine:
    return LogLine(id=f"{rank}-{at}-{number}", time=at, rank=rank, text=f"line at {at}")


def test_the_last_lines_are_searched_for_in_ever_wider_windows():
    service = Service()
    service.log = [line(1, START + second) for second in range(0, 3600, 10)]
    tail = log_tail_of(service, ref(), 1, START + 3600)
    assert [each.rank for each in tail.lines] == [1] * LINES
    assert tail.lines[-1].time == START + 3590
    assert len(service.searches) > 1
    assert all(since[0] == float("inf") for since in service.searches), "of no other node"


def test_a_silent_node_is_searched_for_once_from_the_beginning():
    service = Service()
    assert log_tail_of(service, ref(), 0, START + 100_000).lines == ()
    assert service.searches[-1][0] < START
    assert len(service.searches) < 10


def test_of_nodes_that_share_a_run_only_the_wanted_ones_lines_are_shown():
    service = Service()
    service.log = [line(rank, START + second) for second in range(5) for rank in range(2)]
    tail = log_tail_of(service, ref(run_ids=("one", "one")), 1, START + 10)
    assert {each.rank for each in tail.lines} == {1}
    assert len(tail.lines) == 5


def test_beside_nodes_that_write_very_much_only_the_last_seconds_are_read():
    shared, end = ref(run_ids=("one", "one")), START + 100_000
    service = Service()
    service.log = [line(0, end - 1000 + number / 100, number) for number in range(100_000)]
    tail = log_tail_of(service, shared, 0, end)
    assert [each.id for each in tail.lines] == [each.id for each in service.log[-LINES:]]
    assert "printed nothing in the last 20 s" in log_tail_of(service, shared, 1, end).problem
    service.log = [line(0, end - 19 + number / MOST_LINES, number) for number in range(19 * MOST_LINES)]
    tail = log_tail_of(service, shared, 0, end)
    assert [each.id for each in tail.lines] == [each.id for each in service.log[-LINES:]]
    assert len(service.searches) < 10


def test_a_gang_without_a_log_group_says_so():
    assert "log_group_id" in log_tail_of(Service(), ref(log_group_id=None), 0, START).problem


async def test_a_gang_of_this_machines_processes_is_shown_if_it_lies_in_the_connections_folder(
    tmp_path, monkeypatch
):
    for name in ("work", "other"):
        connection = {"conn_type": "oci", "extra": {"work_dir": str(tmp_path / name)}}
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(connection))
    backend = Local.connect({"work_dir": str(tmp_path / "work")})
    job = a_job(nodes=1, seconds=0.1, backend={"kind": "local"})
    gang = backend.submit(backend.plan(job, a_key()))
    wait_until(backend, gang, lambda status: status.ended)
    cache = StatusCache()
    look = await cache.at("work", gang)
    assert look.problem is None
    assert [(each.state, each.exit_code) for each in look.status.nodes] == [(NodeState.SUCCEEDED, 0)]
    assert [each.step for each in look.checkpoints.items] == [1]
    tail = await cache.tail("work", gang, 0, time.time())
    assert "step 1/1 loss 1.0000" in [line.text for line in tail.lines]
    look = await cache.at("other", gang)
    assert look.status is None
    assert "is not below the connection's work_dir" in look.problem


@pytest.mark.parametrize(
    "other, said",
    [
        (None, "Airflow has no connection 'fra': define it, or correct the name"),
        (
            "kubernetes",
            "connection 'fra' is of type 'kubernetes', and backend oci_data_science needs one of type",
        ),
    ],
)
async def test_a_page_names_what_is_wrong_with_the_connection_of_a_gang(monkeypatch, other, said):
    monkeypatch.setenv("AIRFLOW_CONN_OCI_DEFAULT", json.dumps({"conn_type": "oci"}))
    if other is not None:
        monkeypatch.setenv("AIRFLOW_CONN_FRA", json.dumps({"conn_type": other}))
    cache = StatusCache()
    gang = replace(GANG, conn_id="fra")
    assert said in str((await cache.at("oci_default", gang)).problem)
    assert said in str((await cache.tail("oci_default", gang, 0, None)).problem)
