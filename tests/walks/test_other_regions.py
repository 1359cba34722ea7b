"""A job's candidate at another connection: a second emulated region of the same tenancy, a second cluster."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import shlex
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, TaskDeferred
from airflow.sdk import DAG

from airflow_provider_ocidist.backends.capabilities import near
from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.backends.oci_data_science.calls import pages
from airflow_provider_ocidist.cli import main as cli
from airflow_provider_ocidist.errors import BackendError, JobFileError
from airflow_provider_ocidist.gangs.candidates import Candidates
from airflow_provider_ocidist.gangs.drills import Drilled, DrillStopped, carry_out
from airflow_provider_ocidist.gangs.submission import GangSubmitter
from airflow_provider_ocidist.hooks.oci import OciHook
from airflow_provider_ocidist.job_file import parsing
from airflow_provider_ocidist.model.attempts import Attempt
from airflow_provider_ocidist.model.homes import cancel_command
from airflow_provider_ocidist.model.run import NodeState, RunKey, RunRecord, RunRef
from airflow_provider_ocidist.oci_client.credentials import access_of
from airflow_provider_ocidist.operators import DistributedTrainingOperator
from airflow_provider_ocidist.operators.gang_cleanup import GangCleanup
from airflow_provider_ocidist.operators.task_jobs import TaskConnection
from airflow_provider_ocidist.plugin.records import TaskId, ref_in
from airflow_provider_ocidist.plugin.status_cache import StatusCache
from airflow_provider_ocidist.sensors.run_wait import RunWait
from airflow_provider_ocidist.storage.stores.opening import open_store
from airflow_provider_ocidist.triggers import DistributedTrainingTrigger
from scripts.emulator_process import Access, EmulatorProcess
from tests.http_client import http
from tests.training_jobs import BACKEND, PROGRAMS, a_key, wait_until
from tests.walks.test_capacity import NO_CAPACITY, Ti, context, defers

pytestmark = pytest.mark.slow

FRANKFURT = "eu-frankfurt-1"
LIVE = ("ACCEPTED", "IN_PROGRESS", "NEEDS_ATTENTION")
SHARED_KEYS = ("api_key.pem", "issuer.pem", "session.pem")
log = logging.getLogger("regions")


@dataclass(frozen=True)
class Region:
    """One emulated region, and the connection to it."""

    access: Access
    fields: dict[str, Any]

    def nodes(self, **rule: Any) -> None:
        """Let its nodes fail to start."""
        http.post(f"{self.access.url}/_emulator/nodes", json=rule).raise_for_status()

    def faults(self, **rule: Any) -> None:
        http.post(f"{self.access.url}/_emulator/faults", json=rule).raise_for_status()

    def heal(self) -> None:
        for what in ("nodes", "faults"):
            http.delete(f"{self.access.url}/_emulator/{what}").raise_for_status()

    def runs(self, key: RunKey) -> list[Any]:
        """Return the job runs of a task, oldest first."""
        client = OciDataScience.connect(self.fields)._client
        found = [
            run
            for run in pages(client.list_job_runs, self.access.compartment_id)
            if (run.freeform_tags or {}).get("ocidist-task") == key.task_digest
        ]
        return sorted(found, key=lambda run: run.time_accepted)

    def live(self, key: RunKey) -> set[str]:
        return {run.id for run in self.runs(key) if run.lifecycle_state in LIVE}


@pytest.fixture(scope="module")
def second(emulator: Access, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Access]:
    """The same tenancy in another region: its own service, buckets, networks and logs."""
    folder = tmp_path_factory.mktemp("frankfurt")
    home, state = Path(emulator.config_file).parent, folder / "state"
    state.mkdir()
    for name in SHARED_KEYS:
        shutil.copy(home / name, state / name)
    ids = json.loads((home / "installation.json").read_text())
    tenancy = {name: ids[name] for name in ("namespace", "tenancy_id", "user_id", "compartment_id")}
    (state / "installation.json").write_text(json.dumps({**tenancy, "region": FRANKFURT}))
    with EmulatorProcess(folder) as access:
        yield access


@pytest.fixture
def ashburn(emulator: Access, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[Region]:
    region = Region(emulator, fields)
    _define(monkeypatch, "OCI_DEFAULT", region.fields)
    yield region
    region.heal()


@pytest.fixture
def frankfurt(second: Access, monkeypatch: pytest.MonkeyPatch) -> Iterator[Region]:
    region = Region(second, second.connection_fields())
    _define(monkeypatch, "OCI_FRANKFURT", region.fields)
    yield region
    region.heal()


def _define(monkeypatch: pytest.MonkeyPatch, name: str, fields: dict[str, Any], kind: str = "oci") -> None:
    monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps({"conn_type": kind, "extra": fields}))


@pytest.fixture
def ti(ashburn: Region, frankfurt: Region) -> Iterator[Ti]:
    ti = Ti()
    yield ti
    end_all(key_of(ti), ashburn, frankfurt)


@pytest.fixture
def key(ashburn: Region, frankfurt: Region) -> Iterator[RunKey]:
    key = a_key()
    yield key
    end_all(key, ashburn, frankfurt)


def end_all(key: RunKey, *regions: Region) -> None:
    for region in regions:
        client = OciDataScience.connect(region.fields)._client
        for run_id in region.live(key):
            with contextlib.suppress(Exception):
                client.cancel_job_run(run_id)


def key_of(ti: Ti) -> RunKey:
    return RunKey(dag_id=ti.dag_id, run_id=ti.run_id, task_id=ti.task_id)


def job_of(*candidates: dict[str, Any], seconds: float = 0.2, **changes: Any) -> dict[str, Any]:
    return {
        "name": "steps",
        "nodes": 2,
        "program": {"source": str(PROGRAMS), "script": "steps.py", "args": ["--seconds", str(seconds)]},
        "launcher": {"kind": "python"},
        "checkpoints": {},
        "limits": {"stop_grace": 1, **changes.pop("limits", {})},
        "backend": {**BACKEND, "candidates": list(candidates or [{"conn_id": "oci_frankfurt"}])},
        **changes,
    }


def a_task(*candidates: dict[str, Any], arguments: Any = None, **changes: Any) -> DistributedTrainingOperator:
    given = {"deferrable": False, "poll_interval": 0.2, **(arguments or {})}
    with DAG("dag", schedule=None):
        return DistributedTrainingOperator(task_id="train", job=job_of(*candidates, **changes), **given)


def submitter(*candidates: dict[str, Any], notes: Any = None, **changes: Any) -> GangSubmitter:
    """Return what a worker of its own submits with."""
    job = parsing.build(job_of(*candidates, **{"seconds": 60, **changes}))
    reach = TaskConnection("oci_default").backend
    return GangSubmitter(reach(job.backend.kind), job, log, notes, threading.Event(), reach=reach)


def at_the_gang(ref: RunRef) -> OciDataScience:
    backend = near(OciHook("oci_default").backend("oci_data_science"), ref)
    assert isinstance(backend, OciDataScience)
    return backend


# it trains there


def test_a_gang_that_finds_no_machines_trains_in_the_other_region_and_says_so(
    ti: Ti, ashburn: Region, frankfurt: Region
) -> None:
    ashburn.nodes(failure=NO_CAPACITY)
    result = a_task().execute(context(ti))
    ref = RunRef.from_json(ti.xcoms["run"])
    assert (ref.key.attempt, ref.candidate, ref.conn_id) == (2, "conn_id oci_frankfurt", "oci_frankfurt")
    assert result["candidate"] == "conn_id oci_frankfurt"
    assert {run.lifecycle_state for run in ashburn.runs(ref.key)} <= {"FAILED", "CANCELED"}
    assert {run.id for run in frankfurt.runs(ref.key)} == set(ref.run_ids)
    # The work directory is the task's own: all that the nodes have written is in the first region.
    assert result["checkpoint_uri"].startswith(ashburn.fields["work_dir"])
    assert frankfurt.access.bucket == ashburn.access.bucket
    here, there = (
        open_store(ref.run_dir, access_of(region.fields)).list("") for region in (ashburn, frankfurt)
    )
    assert list(here)
    assert list(there) == []
    # A page of the region in which it runs.
    assert ti.xcoms["oci_job_run_link"].startswith(frankfurt.access.url)
    assert ti.xcoms["oci_checkpoint_link"].startswith(ashburn.access.url)


def test_what_was_refused_in_one_region_is_remembered_for_that_alone(
    key: RunKey, ashburn: Region, frankfurt: Region
) -> None:
    for region in (ashburn, frankfurt):
        region.nodes(never_starts=True)
    refused = {"method": "POST", "path": "/20190101/jobRuns", "status": 400, "code": "LimitExceeded"}
    ashburn.faults(**refused, times=2)
    first = submitter().adopt_or_submit(key, None).ref
    assert (first.conn_id, first.key.attempt) == ("oci_frankfurt", 2)
    other = a_key()
    try:
        # Another task skips the region without asking.
        later = submitter().adopt_or_submit(other, None).ref
        assert (later.conn_id, later.key.attempt) == ("oci_frankfurt", 1)
        assert ashburn.runs(other) == []
    finally:
        end_all(other, ashburn, frankfurt)
    backend = OciHook("oci_default").backend("oci_data_science")
    job = parsing.build(job_of())
    here, there = backend.directories.refusals.of(Candidates(backend, job, log).plans(key))
    assert here is not None
    assert there is None


def test_a_gang_in_the_other_region_stays_there_when_the_first_has_machines_again(
    key: RunKey, ashburn: Region, frankfurt: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    for region in (ashburn, frankfurt):
        region.nodes(never_starts=True)
    ashburn.faults(method="POST", path="/20190101/jobRuns", status=400, code="LimitExceeded", times=2)
    first = submitter().adopt_or_submit(key, None).ref
    ashburn.heal()
    monkeypatch.setattr("airflow_provider_ocidist.model.refusal.REMEMBERED", 0.0)
    adopted = submitter().adopt_or_submit(key, None, 2).ref
    assert (adopted.run_ids, adopted.conn_id) == (first.run_ids, "oci_frankfurt")
    assert ashburn.live(key) == set()
    assert frankfurt.live(key) == set(first.run_ids)


def test_a_task_whose_job_names_no_candidate_any_more_adopts_the_gang_in_the_other_region(
    key: RunKey, ashburn: Region, frankfurt: Region
) -> None:
    for region in (ashburn, frankfurt):
        region.nodes(never_starts=True)
    ashburn.faults(method="POST", path="/20190101/jobRuns", status=400, code="LimitExceeded", times=2)
    first = submitter().adopt_or_submit(key, None).ref
    adopted = submitter({"shape": "VM.Standard.E5.Flex"}).adopt_or_submit(key, None, 2).ref
    assert (adopted.run_ids, adopted.conn_id) == (first.run_ids, "oci_frankfurt")
    assert ashburn.live(key) == set()


def test_a_clear_ends_the_gang_in_the_other_region_before_it_begins_one_in_the_first(
    key: RunKey, ashburn: Region, frankfurt: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    for region in (ashburn, frankfurt):
        region.nodes(never_starts=True)
    ashburn.faults(method="POST", path="/20190101/jobRuns", status=400, code="LimitExceeded", times=2)
    first = submitter().adopt_or_submit(key, None).ref
    monkeypatch.setattr("airflow_provider_ocidist.model.refusal.REMEMBERED", 0.0)
    cleared = submitter().adopt_or_submit(replace(key, generation=2), None, 2).ref
    assert (cleared.conn_id, cleared.key.generation) == (None, 2)
    assert frankfurt.live(key) == set()
    assert ashburn.live(key) == set(cleared.run_ids)
    assert set(first.run_ids).isdisjoint(cleared.run_ids)


# crashes


class Killed(BaseException):
    """Stands for a SIGKILL: nothing catches it on its way."""


@pytest.mark.parametrize("before", ["begun", "job", "answered"])
def test_a_worker_that_dies_while_it_creates_in_the_other_region_leaves_one_gang(
    key: RunKey, ashburn: Region, frankfurt: Region, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    for region in (ashburn, frankfurt):
        region.nodes(never_starts=True)
    monkeypatch.setattr("airflow_provider_ocidist.backends.oci_data_science.gangs.STALE", 0.2)
    ashburn.faults(method="POST", path="/20190101/jobRuns", status=400, code="LimitExceeded", times=2)
    notes = Notes()
    dying = submitter(notes=notes)
    there = dying._backend.connections.at("oci_frankfurt")

    def die(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        if before == "begun":
            patched.setattr(there.gangs, "_begin_own", die)
        elif before == "job":
            patched.setattr(there, "submit", die)
        else:
            real = there.submit
            patched.setattr(there, "submit", lambda *given: (real(*given), die()))
        # The end of what is interrupted would be a SIGKILL's too.
        patched.setattr(dying, "end_asked", lambda *_: None)
        with pytest.raises(Killed):
            dying.adopt_or_submit(key, None)
    at = [attempt.place.conn_id for attempt in recorded(key)]
    assert "oci_frankfurt" in at or before == "begun", "its place was recorded before anything was created"
    ref = submitter(notes=notes).adopt_or_submit(key, None, 2).ref
    assert ref.complete
    assert ashburn.live(key) | frankfurt.live(key) == set(ref.run_ids)
    if before == "answered":
        assert ref.conn_id == "oci_frankfurt"


class Notes(dict[str, Any]):
    """Airflow's store of a task's state."""

    def set(self, key: str, value: Any, **_: Any) -> None:
        self[key] = json.loads(json.dumps(value))

    def delete(self, key: str) -> None:
        self.pop(key, None)


def recorded(key: RunKey) -> list[Attempt]:
    backend = OciHook("oci_default").backend("oci_data_science")
    return backend.gangs.recorded(key, None, ())


def test_while_the_connection_of_an_earlier_gang_is_missing_no_second_gang_is_begun(
    key: RunKey, ashburn: Region, frankfurt: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    for region in (ashburn, frankfurt):
        region.nodes(never_starts=True)
    ashburn.faults(method="POST", path="/20190101/jobRuns", status=400, code="LimitExceeded", times=2)
    first = submitter().adopt_or_submit(key, None).ref
    monkeypatch.delenv("AIRFLOW_CONN_OCI_FRANKFURT")
    edited = submitter({"shape": "VM.Standard.E5.Flex"})
    with pytest.raises(BackendError, match=r"may still be running.*'oci_frankfurt'.*define that connection"):
        edited.adopt_or_submit(key, None, 2)
    assert ashburn.live(key) == set()
    # The last try gives up: the nodes find a stop request, and the message names them.
    (left,) = edited.cancel_earlier(key, 2, BackendError("enough"))
    assert "connection 'oci_frankfurt'" in left
    assert first.run_ids[0] in left
    backend = OciHook("oci_default").backend("oci_data_science")
    assert backend.directories.stop_requested(first)


# ended where it is


def test_a_task_that_is_killed_ends_its_gang_in_the_other_region(
    ti: Ti, ashburn: Region, frankfurt: Region
) -> None:
    ashburn.nodes(failure=NO_CAPACITY)
    task, raised = a_task(seconds=60), []

    def run() -> None:
        try:
            task.execute(context(ti))
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        wait_for(lambda: RunRef.from_json(ti.xcoms["run"]).conn_id if "run" in ti.xcoms else None)
        ref = RunRef.from_json(ti.xcoms["run"])
        wait_until(at_the_gang(ref), ref, lambda status: status.nodes[0].state is NodeState.RUNNING)
    finally:
        task.on_kill()
        thread.join(60)
    assert isinstance(raised[0], AirflowFailException)
    wait_until(at_the_gang(ref), ref, lambda status: status.ended)
    assert frankfurt.live(ref.key) == ashburn.live(ref.key) == set()


def wait_for(done: Callable[[], Any], seconds: float = 120.0) -> None:
    pause = threading.Event()
    for _ in range(int(seconds / 0.1)):
        if done():
            return
        pause.wait(0.1)
    raise AssertionError(f"not within {seconds} s")


def submitted_there(key: RunKey, ashburn: Region, seconds: float = 60) -> RunRecord:
    ashburn.faults(method="POST", path="/20190101/jobRuns", status=400, code="LimitExceeded", times=2)
    record = submitter(seconds=seconds).adopt_or_submit(key, None)
    assert record.ref.conn_id == "oci_frankfurt"
    return record


class Trigger(DistributedTrainingTrigger):
    """A trigger of a task that waits nowhere else."""

    def _still_owned(self, record: RunRecord) -> bool:
        del record
        return False


@defers
def test_a_deferred_task_trains_there_and_its_trigger_watches_that_region(
    ti: Ti, ashburn: Region, frankfurt: Region
) -> None:
    ashburn.nodes(failure=NO_CAPACITY)
    arguments = {"deferrable": True}
    with pytest.raises(TaskDeferred) as raised:
        a_task(arguments=arguments).execute(context(ti))
    for _ in range(6):
        deferred = raised.value
        event = asyncio.run(fired(deferred.trigger))
        try:
            result = a_task(arguments=arguments).resume(context(ti), event, **(deferred.kwargs or {}))
            break
        except TaskDeferred as again:
            raised.value = again
    assert result["candidate"] == "conn_id oci_frankfurt"
    ref = RunRef.from_json(ti.xcoms["run"])
    assert {run.id for run in frankfurt.runs(ref.key)} == set(ref.run_ids)


async def fired(trigger: DistributedTrainingTrigger) -> dict[str, Any]:
    path, arguments = trigger.serialize()
    assert path.endswith(".DistributedTrainingTrigger")
    async for event in DistributedTrainingTrigger(**json.loads(json.dumps(arguments))).run():
        return dict(event.payload)
    raise AssertionError("the trigger has no event")


@defers
def test_a_deferred_task_that_a_user_ends_ends_its_gang_in_that_region(
    key: RunKey, ashburn: Region, frankfurt: Region
) -> None:
    record = submitted_there(key, ashburn)
    owner = {"dag_id": "dag", "run_id": key.run_id, "task_id": "train", "map_index": -1, "try_number": 1}

    async def killed() -> None:
        trigger = Trigger("oci_default", record.to_json(), owner, 0.2)
        await trigger.on_kill()

    asyncio.run(killed())
    wait_until(at_the_gang(record.ref), record.ref, lambda status: status.ended)
    assert frankfurt.live(key) == set()


def test_a_sensor_waits_for_a_run_in_another_region(key: RunKey, ashburn: Region, frankfurt: Region) -> None:
    record = submitted_there(key, ashburn, seconds=0.2)
    wait = RunWait(record.ref.to_json(), "oci_default", require_checkpoint=True, poke_interval=0.2, log=log)
    from airflow_provider_ocidist.model.kept_evidence import Kept

    wait.begin(Kept())
    found: list[Any] = []
    wait_for(lambda: found.append(wait.result_of(wait.look())) or found[-1])
    assert found[-1]["checkpoint_uri"].startswith(ashburn.fields["work_dir"])
    assert wait.trigger().record["ref"]["conn_id"] == "oci_frankfurt"


def test_a_cleanup_ends_what_runs_in_another_region(
    key: RunKey, ashburn: Region, frankfurt: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_provider_ocidist.gangs.stop_flag import StopFlag
    from airflow_provider_ocidist.operators import gang_cleanup

    monkeypatch.setattr(gang_cleanup, "SETTLED_AFTER", 0.0)
    monkeypatch.setattr(gang_cleanup, "_published_by", lambda _: None)
    frankfurt.nodes(never_starts=True)
    record = submitted_there(key, ashburn)
    cleanup = GangCleanup(TaskConnection("oci_default"), None, None, 60.0, StopFlag(), log)
    assert cleanup.end_all([key]) == [record.ref.key.name]
    assert frankfurt.live(key) == set()


# the page, and the command line


def test_the_page_shows_a_gang_in_another_region_only_where_its_service_says_the_same(
    key: RunKey, ashburn: Region, frankfurt: Region
) -> None:
    frankfurt.nodes(never_starts=True)
    ref = submitted_there(key, ashburn).ref
    task = TaskId(dag_id=key.dag_id, run_id=key.run_id, task_id=key.task_id)
    assert ref_in(ref.to_json(), task) == ref
    shown = asyncio.run(StatusCache().at("oci_default", ref))
    assert shown.problem is None
    assert shown.status is not None
    assert shown.console_url is not None
    assert shown.console_url.startswith(frankfurt.access.url)
    forged = asyncio.run(StatusCache().at("oci_default", replace(ref, conn_id="oci_other")))
    assert forged.status is None
    elsewhere = asyncio.run(StatusCache().at("oci_default", replace(ref, conn_id=None)))
    assert elsewhere.status is None
    assert ref_in({**ref.to_json(), "conn_id": "../x"}, task) is None


def test_the_command_line_runs_and_cancels_in_another_region(
    ashburn: Region, frankfurt: Region, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import yaml

    frankfurt.nodes(never_starts=True)
    ashburn.faults(method="POST", path="/20190101/jobRuns", status=400, code="LimitExceeded", times=2)
    file, info = tmp_path / "job.yaml", tmp_path / "info.yaml"
    file.write_text(yaml.safe_dump(job_of()))
    assert cli(["plan", str(file), "--json"]) == 0
    (candidate,) = json.loads(capsys.readouterr().out)["candidates"]
    assert candidate["candidate"] == "conn_id oci_frankfurt"
    assert candidate["machine"]["region"] == FRANKFURT
    assert cli(["run", str(file), "--info", str(info)]) == 0
    ref = RunRecord.from_json(yaml.safe_load(info.read_text())["record"]).ref
    assert ref.conn_id == "oci_frankfurt"
    assert frankfurt.live(ref.key) == set(ref.run_ids)
    capsys.readouterr()
    assert cli(["status", str(info), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["nodes"]) == 2
    assert cli(["cancel", str(info)]) == 0
    assert frankfurt.live(ref.key) == set()


def test_preflight_checks_each_candidate_at_its_own_connection(
    ashburn: Region, frankfurt: Region, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import yaml

    def findings(code: int, *candidates: dict[str, Any]) -> dict[str, dict[str, Any]]:
        file = tmp_path / "job.yaml"
        file.write_text(yaml.safe_dump(job_of(*candidates)))
        assert cli(["preflight", str(file), "--json"]) == code
        found = json.loads(capsys.readouterr().out)
        return {each["subject"]: each for each in found if each["subject"].startswith("candidate ")}

    there = findings(0, {"conn_id": "oci_frankfurt"})
    assert FRANKFURT in there["candidate 1: sign-in"]["message"]
    # The buckets are those of the task, as the gang's are.
    assert not there.keys() & {"candidate 1: work_dir", "candidate 1: input"}
    frankfurt.faults(method="GET", path="/20160918/subnets/.*", status=404, times=2)
    wrong = findings(1, {"memory_gb": 16}, {"conn_id": "oci_frankfurt"})
    assert {name for name, each in wrong.items() if each["mark"] == "FAIL"} == {"candidate 2: subnet"}
    assert wrong["candidate 1: place"]["mark"] == "PASS"
    absent = findings(1, {"conn_id": "oci_nowhere"}, {"shape": "VM.Standard.E4.Felx.Flex"})
    assert {name for name, each in absent.items() if each["mark"] == "FAIL"} == {
        "candidate 1: job",
        "candidate 2: shape",
    }
    assert absent["candidate 1: job"]["message"].startswith(
        "backend.candidates.0.conn_id AIRFLOW_CONN_OCI_NOWHERE is not set"
    )


def test_the_command_that_a_message_names_ends_a_gang_in_another_region(
    key: RunKey, ashburn: Region, frankfurt: Region
) -> None:
    frankfurt.nodes(never_starts=True)
    ref = submitted_there(key, ashburn).ref
    ocidist, *arguments = shlex.split(cancel_command(ref))
    assert ocidist == "ocidist"
    assert cli([*arguments, "--interval", "0.1"]) == 0
    assert frankfurt.live(key) == set()


def test_a_shell_that_reaches_the_other_region_by_another_name_ends_a_gang_there(
    key: RunKey,
    ashburn: Region,
    frankfurt: Region,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    frankfurt.nodes(never_starts=True)
    ref = submitted_there(key, ashburn).ref
    monkeypatch.delenv("AIRFLOW_CONN_OCI_FRANKFURT")
    _define(monkeypatch, "MINE", frankfurt.fields)
    mine = (ref.job_id, "--conn-id", "mine")
    assert cli(["status", *mine, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["nodes"]) == 2
    assert cli(["cancel", *mine, "--interval", "0.1"]) == 0
    assert frankfurt.live(key) == set()


def test_a_drill_watches_its_gangs_in_the_other_region(
    ashburn: Region, frankfurt: Region, key: RunKey
) -> None:
    ashburn.faults(method="POST", path="/20190101/jobRuns", status=400, code="LimitExceeded", times=2)
    # Not without an end where it looks for the gang in the wrong region.
    done = drilled(key, stop_after(60))
    assert (done.failure, done.tries) == (None, 1)
    assert done.weights is not None
    drill = RunKey(dag_id="drill-steps", run_id=key.run_id, task_id="undisturbed")
    (attempt,) = [each for each in recorded(drill) if each.place.conn_id == "oci_frankfurt"]
    assert attempt.end is not None
    assert attempt.end.succeeded


def test_a_drill_that_is_stopped_ends_its_gang_in_the_other_region(
    ashburn: Region, frankfurt: Region, key: RunKey
) -> None:
    ashburn.faults(method="POST", path="/20190101/jobRuns", status=400, code="LimitExceeded", times=2)
    drill = RunKey(dag_id="drill-steps", run_id=key.run_id, task_id="undisturbed")
    stop, raised = threading.Event(), []

    def run() -> None:
        try:
            drilled(key, stop, seconds=60)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        wait_for(lambda: len(frankfurt.live(drill)) == 2)
    finally:
        stop.set()
        thread.join(60)
        left = frankfurt.live(drill)
        end_all(drill, ashburn, frankfurt)
    assert isinstance(raised[0], DrillStopped)
    assert left == set()


def drilled(key: RunKey, stop: threading.Event, **changes: Any) -> Drilled:
    job = parsing.build(job_of(**changes))
    backend = OciHook("oci_default").backend(job.backend.kind)
    return carry_out(backend, job, key.run_id, None, log, tries=1, stop=stop)


def stop_after(seconds: float) -> threading.Event:
    stop = threading.Event()
    timer = threading.Timer(seconds, stop.set)
    timer.daemon = True
    timer.start()
    return stop


# what is wrong with it


def test_a_connection_that_cannot_be_used_is_named_before_anything_is_created(
    key: RunKey, ashburn: Region, frankfurt: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BackendError) as unknown:
        submitter({"shape": "VM.Standard.E5.Flex"}, {"conn_id": "oci_nowhere"}).adopt_or_submit(key, None)
    assert "backend.candidates.1.conn_id: Airflow has no connection 'oci_nowhere'" in str(unknown.value)
    assert unknown.value.retryable, "it may be there at the next try"
    _define(monkeypatch, "A_CLUSTER", {}, kind="kubernetes")
    with pytest.raises(JobFileError) as other:
        submitter({"conn_id": "a_cluster"}).adopt_or_submit(key, None)
    said = (
        "connection 'a_cluster' is of type 'kubernetes', and backend oci_data_science needs one of type 'oci'"
    )
    assert f"backend.candidates.0.conn_id: {said}" in str(other.value)
    assert ashburn.runs(key) == frankfurt.runs(key) == []


def test_the_other_region_cannot_mount_the_buckets_of_the_first(
    key: RunKey, ashburn: Region, frankfurt: Region
) -> None:
    mount = {"source": f"oci://{ashburn.access.bucket}@{ashburn.access.namespace}/data", "path": "data"}
    with pytest.raises(JobFileError) as refused:
        submitter(mounts=[mount]).adopt_or_submit(key, None)
    assert "mounts.0.source: is a bucket of us-ashburn-1, and nodes of eu-frankfurt-1 cannot mount it" in str(
        refused.value
    )


@pytest.mark.parametrize(
    "section, said",
    [
        ({**BACKEND, "conn_id": "oci_frankfurt"}, "backend.conn_id: is for candidates only"),
        (
            {"kind": "local", "candidates": [{"conn_id": "x"}]},
            "backend.candidates.0.conn_id: is not supported by backend 'local'",
        ),
        (
            {**BACKEND, "candidates": [{"conn_id": "x", "kind": "local"}]},
            "backend.candidates.0.kind: is the same for all candidates",
        ),
        (
            {**BACKEND, "candidates": [{"conn_id": "x", "work_dir": "oci://b@n/w"}]},
            "backend.candidates.0.work_dir",
        ),
        ({**BACKEND, "candidates": [{"conn_id": None}]}, "asks for the same machines as one before it"),
    ],
)
def test_what_a_candidate_cannot_say_is_named_with_its_place(section: dict[str, Any], said: str) -> None:
    with pytest.raises(JobFileError) as refused:
        parsing.build({**job_of(), "backend": section})
    assert said in str(refused.value)
