"""Settings that change between two tries of a task: never two live gangs, and none forgotten. With the emulator."""

from __future__ import annotations

import dataclasses
import logging
import random
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from oci.identity.models import CreateCompartmentDetails

from airflow_provider_ocidist.backends.local import Local
from airflow_provider_ocidist.backends.oci_data_science import OciDataScience, gangs
from airflow_provider_ocidist.errors import BackendError
from airflow_provider_ocidist.gangs.attempt_notes import NOTE
from airflow_provider_ocidist.gangs.submission import GangSubmitter
from airflow_provider_ocidist.model.run import RunKey, RunRef
from airflow_provider_ocidist.model.work_dir import STOP_FILE
from airflow_provider_ocidist.oci_client import clients
from airflow_provider_ocidist.work_dir import attempt_index
from scripts.emulator_process import Access
from tests.http_client import http
from tests.training_jobs import BACKEND, a_job, a_key, wait_until

SEED = random.randrange(1_000_000)
TERMINAL = {"SUCCEEDED", "FAILED", "CANCELED", "DELETED"}
SETTINGS = (
    "compartment",
    "project",
    "work_dir",
    "nodes",
    "topology",
    "shape",
    "name",
    "checkpoints",
    "subnet",
)


class Notes(dict[str, Any]):
    """A task state store that forgets with the test."""

    def set(self, key: str, value: Any) -> None:
        self[key] = value


@dataclasses.dataclass
class Stage:
    """A connection and a job, whose settings may be drawn anew."""

    emulator: Access
    fields: dict[str, Any]
    job: dict[str, Any]
    compartments: list[str]
    projects: list[str]

    def backend(self) -> OciDataScience:
        return OciDataScience.connect(self.fields)

    def submit(self, key: RunKey, notes: Notes | None, number: int = 1) -> RunRef:
        stop = threading.Event()
        gang = GangSubmitter(self.backend(), a_job(**self.job), logging.getLogger("test"), notes, stop)
        return gang.adopt_or_submit(key, None, number).ref

    def change(self, setting: str, chance: random.Random) -> None:
        fields, job = self.fields, self.job
        options = job.setdefault("backend", dict(BACKEND))
        match setting:
            case "compartment":
                fields["compartment_id"] = self.compartments[fields["compartment_id"] == self.compartments[0]]
            case "project":
                fields["project_id"] = self.projects[fields["project_id"] == self.projects[0]]
            case "work_dir":
                fields["work_dir"] = f"{fields['work_dir']}-{uuid.uuid4().hex[:6]}"
            case "nodes":
                job["nodes"] = job["nodes"] % 3 + 1
            case "topology":
                options["topology"] = "job_runs" if options.get("topology") == "multi_node" else "multi_node"
            case "shape":
                options["memory_gb"] = chance.randint(1, 16)
            case "name":
                job["name"] = f"steps-{chance.randint(0, 99)}"
            case "checkpoints":
                job["checkpoints"] = {"uri": f"{fields['work_dir']}/other-{chance.randint(0, 99)}"}
            case "log":
                fields["log_id"] = ""
            case "region":
                # The emulator has one; by its endpoint all are the same.
                fields["region"] = chance.choice(["us-phoenix-1", "eu-frankfurt-1"])

    def live_jobs(self, key: RunKey) -> set[str]:
        """Return the jobs of a task that have a run which has not ended, in all compartments."""
        client = self.backend()._client
        return {
            run.job_id
            for compartment in self.compartments
            for run in client.list_job_runs(compartment, sort_by="timeCreated", sort_order="DESC").data
            if run.freeform_tags.get("ocidist-task") == key.task_digest
            and run.lifecycle_state not in TERMINAL
        }


@pytest.fixture
def stage(emulator: Access, fields: dict[str, Any]) -> Iterator[Stage]:
    backend = OciDataScience.connect(fields)
    identity = clients.client(backend.access, "identity")
    details = CreateCompartmentDetails(
        compartment_id=emulator.compartment_id, name=uuid.uuid4().hex, description="other"
    )
    compartments = [emulator.compartment_id, str(identity.create_compartment(details).data.id)]
    project = {"compartmentId": emulator.compartment_id, "displayName": "other"}
    projects = [fields["project_id"], str(backend._client.create_project(project).data.id)]
    job: dict[str, Any] = {"nodes": 2, "seconds": 60.0}
    stage = Stage(emulator, dict(fields), job, compartments, projects)
    http.post(f"{emulator.url}/_emulator/nodes", json={"never_starts": True}).raise_for_status()
    yield stage
    http.delete(f"{emulator.url}/_emulator/nodes").raise_for_status()
    http.delete(f"{emulator.url}/_emulator/faults").raise_for_status()


@pytest.fixture
def ended(stage: Stage) -> Iterator[Callable[[RunRef], RunRef]]:
    refs: list[RunRef] = []
    yield lambda ref: refs.append(ref) or ref
    for ref in refs:
        stage.backend().cancel(ref)


@pytest.mark.parametrize("number", range(13))
def test_whatever_changes_between_two_tries_one_gang_lives_and_none_is_forgotten(
    stage: Stage, ended: Callable[[RunRef], RunRef], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    seed = SEED + number
    chance = random.Random(seed)
    monkeypatch.setattr(gangs, "STALE", 0.2)
    # Every setting comes first once; without Airflow's store the work directory has to stay, to find its records.
    notes = Notes() if chance.random() < 0.5 else None
    changes = [SETTINGS[number % len(SETTINGS)], *chance.sample(SETTINGS, chance.randint(0, 3))]
    if notes is None and "compartment" in changes:
        changes = [change for change in changes if change != "work_dir"]
    how = chance.choice(["whole", "whole", "cut off", "lists behind"])
    told = f"seed {seed}: {how}, {changes}, {'with' if notes is not None else 'without'} notes"
    key = a_key()
    if how == "cut off":
        _cut_off(stage, key, notes, chance)
    else:
        ended(stage.submit(key, notes))
    if how == "lists behind":
        rule = {"method": "GET", "path": "/20190101/job(s|Runs)", "stale_s": 8}
        http.post(f"{stage.emulator.url}/_emulator/faults", json=rule).raise_for_status()
    for change in dict.fromkeys(changes):
        stage.change(change, chance)
    asked = dataclasses.replace(key, generation=4) if chance.random() < 0.5 else key
    last = ended(stage.submit(asked, notes, 2))
    http.delete(f"{stage.emulator.url}/_emulator/faults").raise_for_status()
    assert last.complete, told
    assert stage.live_jobs(key) == {last.job_id}, told


@pytest.mark.parametrize("times", [1, 2, 1000])
def test_a_list_of_attempts_that_is_not_found_is_no_empty_one(
    stage: Stage,
    ended: Callable[[RunRef], RunRef],
    monkeypatch: pytest.MonkeyPatch,
    times: int,
) -> None:
    """Without Airflow's notes, and in another compartment, the records alone lead to the gang that lives."""
    monkeypatch.setattr(attempt_index, "NOT_FOUND_PAUSES", (0.0, 0.0))
    key = a_key()
    first = ended(stage.submit(key, None))
    stage.change("compartment", random.Random(1))
    rule = {"method": "GET", "path": "/n/.*/b/[^/]*/o", "status": 404, "code": "BucketNotFound"}
    http.post(f"{stage.emulator.url}/_emulator/faults", json={**rule, "times": times}).raise_for_status()
    if times == 1000:
        with pytest.raises(BackendError, match="reading which attempts") as caught:
            stage.submit(key, None, 2)
        assert caught.value.status_code == 404, "a later try asks again: backoff.may_pass"
        assert stage.live_jobs(key) == {first.job_id}
    else:
        assert stage.live_jobs(key) == {ended(stage.submit(key, None, 2)).job_id}


def _cut_off(stage: Stage, key: RunKey, notes: Notes | None, chance: random.Random) -> None:
    """Submit, and die on the way: after the record, the job, or some of the runs."""
    path = chance.choice(["/20190101/jobs", "/20190101/jobs/[^/]+/artifact", "/20190101/jobRuns"])

    class Killed(BaseException):
        pass

    backend = stage.backend()
    submission = backend._submission

    def dies(*arguments: Any) -> Any:
        made = submission(*arguments)
        kill = {"/20190101/jobs": "job", "/20190101/jobRuns": "runs"}.get(path, "artifact")

        def killed(*_: Any) -> Any:
            raise Killed

        if kill != "runs":
            setattr(made, kill, killed)
        else:
            made.runs = lambda job_id, existing: (_one_run(made, job_id, existing), killed())
        return made

    backend.gangs._submission = dies
    # A process that is killed ends nothing.
    backend.gangs._clean_up = lambda *_: {}
    gang = GangSubmitter(backend, a_job(**stage.job), logging.getLogger("test"), notes, threading.Event())
    with pytest.raises(Killed):
        gang.adopt_or_submit(key, None)


def _one_run(submission: Any, job_id: str, existing: Any) -> None:
    plan = submission._plan
    first = next(request for request in plan.requests if request.verb == "CreateJobRun")
    body = {**first.body, "jobId": job_id}
    submission._client.create_job_run(body, opc_retry_token=plan.key.token("run", job_id, 0))


def test_a_gang_that_cannot_be_seen_any_more_stops_the_next_one_and_is_named(
    stage: Stage, ended: Callable[[RunRef], RunRef]
) -> None:
    key = a_key()
    old = ended(stage.submit(key, None))
    stage.change("compartment", random.Random(0))
    # As with credentials of another tenancy.
    for path in ("/20190101/jobs/.*", "/20190101/job(s|Runs)"):
        rule = {"method": "GET", "path": path, "status": 404, "code": "NotAuthorizedOrNotFound"}
        http.post(f"{stage.emulator.url}/_emulator/faults", json=rule).raise_for_status()
    with pytest.raises(
        BackendError, match=f"may still be running, job {old.job_id} in compartment .* then remove"
    ) as caught:
        stage.submit(key, None, 2)
    assert caught.value.retryable
    http.delete(f"{stage.emulator.url}/_emulator/faults").raise_for_status()
    assert stage.live_jobs(key) == {old.job_id}


def test_what_is_to_be_ended_stays_noted_until_it_has_ended(
    stage: Stage, ended: Callable[[RunRef], RunRef], monkeypatch: pytest.MonkeyPatch
) -> None:
    key, notes = a_key(), Notes()
    old = ended(stage.submit(key, notes))
    stage.change("work_dir", random.Random(0))
    stage.change("compartment", random.Random(0))
    monkeypatch.setattr("airflow_provider_ocidist.gangs.canceller.Canceller.end", _dies)
    with pytest.raises(KeyboardInterrupt):
        stage.submit(dataclasses.replace(key, generation=3), notes, 2)
    monkeypatch.undo()
    assert old.job_id in str(notes[NOTE])
    new = ended(stage.submit(dataclasses.replace(key, generation=3), notes, 3))
    assert stage.live_jobs(key) == {new.job_id}


def _dies(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_a_gang_in_another_region_is_reached_there_with_the_same_credentials(stage: Stage) -> None:
    fields = {key: value for key, value in stage.fields.items() if key != "endpoint"}
    backend = OciDataScience.connect({**fields, "region": "us-phoenix-1"})
    job_id = "ocid1.datasciencejob.oc1.iad.a"
    ref = RunRef(
        backend="b", key=a_key(), nodes=1, job_id=job_id, run_ids=("",), run_dir="d", submitted_at=0.0
    )
    there = backend.near(ref)
    assert (there.access.region, there.access.config_file) == ("us-ashburn-1", backend.access.config_file)
    assert backend.near(ref) is there
    assert there.near(ref) is there


def test_a_gang_in_another_region_is_reached_with_credentials_that_were_read_anew(stage: Stage) -> None:
    fields = {key: value for key, value in stage.fields.items() if key != "endpoint"}
    backend = OciDataScience.connect({**fields, "region": "us-phoenix-1"})
    job_id = "ocid1.datasciencejob.oc1.iad.a"
    ref = RunRef(
        backend="b", key=a_key(), nodes=1, job_id=job_id, run_ids=("",), run_dir="d", submitted_at=0.0
    )
    assert backend.near(ref).access.config_file != "/renewed"
    backend.reconnect({**fields, "region": "us-phoenix-1", "config_file": "/renewed"})
    assert backend.near(ref).access.config_file == "/renewed"
    assert backend.near(ref).access.region == "us-ashburn-1"


def test_a_gang_that_an_older_version_has_made_without_a_record_is_found(
    stage: Stage, ended: Callable[[RunRef], RunRef]
) -> None:
    key = dataclasses.replace(a_key(), generation=2, attempt=2)
    backend = stage.backend()
    old = ended(backend.submit(backend.plan(a_job(**stage.job), key)))
    store, prefix = backend._run_dirs.below(stage.fields["work_dir"], "attempts")
    for entry in store.list(prefix):
        store.delete(entry.name)
    asked = dataclasses.replace(key, attempt=1)
    assert stage.submit(asked, None, 2).job_id == old.job_id
    cleared = dataclasses.replace(asked, generation=6)
    new = ended(stage.submit(cleared, None, 4))
    assert stage.live_jobs(key) == {new.job_id}


def test_a_gang_at_the_home_that_the_job_named_before_is_ended_first(
    stage: Stage, tmp_path: Path, ended: Callable[[RunRef], RunRef]
) -> None:
    notes, key = Notes(), a_key()
    home = Local.connect({"work_dir": str(tmp_path / "work")})
    local = a_job(nodes=1, seconds=600, backend={"kind": "local"})
    log = logging.getLogger("test")
    before = GangSubmitter(home, local, log, notes, threading.Event()).adopt_or_submit(key, None, 1).ref
    try:
        ref = ended(stage.submit(key, notes, 2))
        assert (ref.backend, ref.key.attempt) == ("oci_data_science", before.key.attempt + 1)
        wait_until(home, before, lambda status: status.ended)
        assert Path(before.run_dir, STOP_FILE).exists()
        # The next try does not wait for it again.
        assert stage.submit(key, notes, 3).job_id == ref.job_id
    finally:
        home.cancel(before)


def test_a_gang_at_another_home_that_cannot_be_reached_is_named(stage: Stage, tmp_path: Path) -> None:
    notes, key = Notes(), a_key()
    before = stage.submit(key, notes, 1)
    home = Local.connect({"work_dir": str(tmp_path / "work")})
    local = a_job(nodes=1, seconds=600, backend={"kind": "local"})
    gang = GangSubmitter(home, local, logging.getLogger("test"), notes, threading.Event())
    try:
        with pytest.raises(
            BackendError, match="may still be running, and no stop request could be written"
        ) as caught:
            gang.adopt_or_submit(key, None, 2)
        assert before.run_dir in str(caught.value)
    finally:
        stage.backend().cancel(before)
