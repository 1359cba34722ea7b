"""Each step of a submission, repeated, refused and lost: what is created, what the next one finds."""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.backends.oci_data_science import submission as module
from airflow_provider_ocidist.backends.oci_data_science.ads_variables import MAIN_RUN_VARIABLE
from airflow_provider_ocidist.backends.oci_data_science.submission import Submission
from airflow_provider_ocidist.errors import BackendError, Cause
from airflow_provider_ocidist.model.run import Plan
from airflow_provider_ocidist.model.work_dir import AGENT_ARCHIVE, CODE_ARCHIVE, LEASE_FILE, STOP_FILE
from scripts.emulator_process import Access
from tests.http_client import http
from tests.training_jobs import BACKEND, a_job, a_key

pytestmark = pytest.mark.usefixtures("no_node_starts")

Faults = Callable[..., None]


def a_plan(backend: OciDataScience, **changes: Any) -> Plan:
    return backend.plan(a_job(**changes), a_key())


def jobs_named(backend: OciDataScience, plan: Plan) -> dict[str, str]:
    found = backend._client.list_jobs(plan.compartment_id, display_name=plan.key.name).data
    return {str(job.id): job.lifecycle_state for job in found}


def runs_of(backend: OciDataScience, job_id: str, plan: Plan) -> dict[str, str]:
    found = backend._client.list_job_runs(plan.compartment_id, job_id=job_id).data
    return {str(run.id): run.lifecycle_state for run in found}


# The job


def test_the_same_job_asked_for_twice_is_one(backend: OciDataScience) -> None:
    plan = a_plan(backend)
    first, again = (backend._submission(plan).job() for _ in range(2))
    assert first.id == again.id
    assert list(jobs_named(backend, plan)) == [first.id]
    assert first.display_name == plan.key.name


def test_a_task_in_another_compartment_is_another_job(backend: OciDataScience) -> None:
    plan = a_plan(backend)
    one = backend._submission(plan)
    tokens = []
    create = backend._client.create_job

    class Client:
        def create_job(self, body: Any, opc_retry_token: str) -> Any:
            tokens.append(opc_retry_token)
            return create(body, opc_retry_token=opc_retry_token)

    one._client = Client()
    one._create_job()
    (request,) = [each for each in plan.requests if each.verb == "CreateJob"]
    other = dataclasses.replace(request, body={**request.body, "compartmentId": "elsewhere"})
    moved = dataclasses.replace(plan, requests=(other, *plan.requests[1:]))
    two = backend._submission(moved)
    two._client = Client()
    with pytest.raises(BackendError):
        two._create_job()
    assert len(set(tokens)) == 2
    assert tokens[0] == plan.key.token("job", request.body["compartmentId"])


def test_a_job_that_was_deleted_is_made_again_and_what_its_nodes_said_is_forgotten(
    backend: OciDataScience,
) -> None:
    plan = a_plan(backend)
    first = backend._submission(plan).job()
    store = backend._store(plan.run_dir)
    for name in (STOP_FILE, "nodes/0.json", "nodes/1.json", "nodesnot", "claim"):
        store.write(name, b"{}")
    backend._client.delete_job(first.id)
    second = backend._submission(plan).job()
    assert second.id != first.id
    assert second.lifecycle_state not in ("DELETING", "DELETED")
    left = {entry.name for entry in store.list()}
    assert left >= {"nodesnot", "claim"}
    assert not {name for name in left if name == STOP_FILE or name.startswith("nodes/")}
    backend._client.delete_job(second.id)
    third = backend._submission(plan).job()
    assert third.id not in (first.id, second.id)
    assert backend._submission(plan).job().id == third.id


def test_a_run_directory_that_cannot_be_cleaned_does_not_keep_the_job_from_being_made(
    backend: OciDataScience, faults: Faults, emulator: Access
) -> None:
    plan = a_plan(backend)
    first = backend._submission(plan).job()
    backend._client.delete_job(first.id)
    faults(path=f"/n/{emulator.namespace}/b/[^/]+/o", method="GET", status=403, code="NotAllowed")
    assert backend._submission(plan)._create_job().id != first.id


def edited(plan: Plan) -> Plan:
    """Return the plan of an edited job file: the same names, another body."""
    job, *rest = plan.requests
    return dataclasses.replace(
        plan, requests=(dataclasses.replace(job, body={**job.body, "description": "edited"}), *rest)
    )


def test_what_was_begun_with_another_job_file_and_has_no_run_gives_way(
    backend: OciDataScience, ends: Any
) -> None:
    ends(backend.submit(a_plan(backend)))  # whose runs are none of its
    plan = a_plan(backend)
    first = backend._submission(plan).job()
    second = backend._submission(edited(plan)).job()
    assert second.id != first.id
    assert {job_id for job_id, state in jobs_named(backend, plan).items() if state == "ACTIVE"} == {second.id}


def test_what_was_begun_with_another_job_file_and_has_runs_stays(backend: OciDataScience, ends: Any) -> None:
    plan = a_plan(backend)
    ref = ends(backend.submit(plan))
    with pytest.raises(BackendError, match=rf"^creating the job: {plan.key.name} was begun before") as caught:
        backend._submission(edited(plan)).job()
    assert caught.value.retryable
    assert caught.value.code == "InvalidatedRetryToken"
    assert set(jobs_named(backend, plan)) == {ref.job_id}
    assert len(runs_of(backend, ref.job_id, plan)) == 2


@pytest.mark.parametrize(
    "status,code,removed", [(404, "NotAuthorizedOrNotFound", True), (409, "IncorrectState", False)]
)
def test_what_somebody_else_is_removing_is_gone_and_what_has_got_a_run_is_not(
    backend: OciDataScience, faults: Faults, status: int, code: str, removed: bool
) -> None:
    plan = a_plan(backend)
    job = backend._submission(plan).job()
    faults(method="DELETE", path=f"/20190101/jobs/{job.id}", status=status, code=code)
    assert backend._submission(plan)._removed(job.id, str(plan.compartment_id)) is removed


def test_another_refusal_to_remove_is_an_error(backend: OciDataScience, faults: Faults) -> None:
    plan = a_plan(backend)
    job = backend._submission(plan).job()
    faults(method="DELETE", path=f"/20190101/jobs/{job.id}", status=400, code="InvalidParameter")
    with pytest.raises(BackendError, match=r"^removing what was begun with another job file"):
        backend._submission(plan)._removed(job.id, str(plan.compartment_id))


def test_another_refusal_of_the_job_is_an_error_of_its_own(backend: OciDataScience, faults: Faults) -> None:
    plan = a_plan(backend)
    faults(method="POST", path="/20190101/jobs", status=400, code="InvalidParameter", message="no such shape")
    with pytest.raises(BackendError, match=r"^creating the job: .*no such shape") as caught:
        backend._submission(plan).job()
    assert caught.value.cause is Cause.CONFIG
    assert jobs_named(backend, plan) == {}


def test_a_token_that_stays_spent_is_given_up_in_the_end(
    backend: OciDataScience, faults: Faults, emulator: Access
) -> None:
    plan = a_plan(backend)
    faults(method="POST", path="/20190101/jobs", status=409, code="InvalidatedRetryToken")
    with pytest.raises(BackendError, match="was begun before with another job file"):
        backend._submission(plan).job()


def test_jobs_that_are_gone_are_counted_until_a_token_is_free(backend: OciDataScience) -> None:
    plan = a_plan(backend)
    made = []
    for _ in range(4):
        made.append(backend._submission(plan)._create_job().id)
        backend._client.delete_job(made[-1])
    assert len(set(made)) == 4
    assert backend._submission(plan)._create_job().id not in made


# What nodes fetch, and where they meet


def without_uploads(plan: Plan) -> Plan:
    return dataclasses.replace(
        plan, requests=tuple(each for each in plan.requests if each.verb != "CreateJobArtifact")
    )


def test_the_first_renewal_is_there_before_any_node(backend: OciDataScience) -> None:
    plan = dataclasses.replace(a_plan(backend), lease=60.0)
    backend._submission(plan).job()
    assert [entry.name for entry in backend._store(plan.run_dir).list()] == [LEASE_FILE]
    without = a_plan(backend)
    assert without.lease is None
    backend._submission(without).job()
    assert backend._store(without.run_dir).list() == []


def test_containers_find_agent_and_code_in_the_run_directory(backend: OciDataScience) -> None:
    plan = dataclasses.replace(without_uploads(a_plan(backend)), lease=60.0)
    assert backend._submission(plan)._problem() is None
    store = backend._store(plan.run_dir)
    assert {entry.name for entry in store.list()} == {LEASE_FILE, AGENT_ARCHIVE, CODE_ARCHIVE}
    assert store.read(CODE_ARCHIVE)
    assert zipfile.ZipFile(BytesIO(store.read(AGENT_ARCHIVE))).namelist()
    quiet = dataclasses.replace(plan, key=a_key(), run_dir=f"{plan.run_dir}-quiet")
    quiet = dataclasses.replace(quiet, expects=dataclasses.replace(plan.expects, reports=False), code=None)
    backend._submission(quiet)._problem()
    assert {entry.name for entry in backend._store(quiet.run_dir).list()} == {LEASE_FILE}


@pytest.mark.parametrize("uploads", [True, False])
def test_code_that_cannot_be_read_is_reported_and_the_job_removed_again(
    backend: OciDataScience, tmp_path: Path, uploads: bool
) -> None:
    plan = dataclasses.replace(a_plan(backend), code=str(tmp_path / "code.zip"))
    plan = plan if uploads else without_uploads(plan)
    with pytest.raises(
        BackendError, match=rf"^program\.source cannot be read: {tmp_path}/code.zip: "
    ) as caught:
        backend._submission(plan).job()
    assert (caught.value.cause, caught.value.retryable) == (Cause.CONFIG, False)
    assert all(state in ("DELETING", "DELETED") for state in jobs_named(backend, plan).values())


@pytest.mark.parametrize("uploads", [True, False])
def test_code_with_a_name_that_no_archive_can_hold_is_reported(
    backend: OciDataScience, tmp_path: Path, uploads: bool
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / os.fsdecode(b"\xff.py")).touch()
    plan = dataclasses.replace(a_plan(backend), code=str(tmp_path / "code"))
    plan = plan if uploads else without_uploads(plan)
    with pytest.raises(BackendError, match=r"^program\.source cannot be read: ") as caught:
        backend._submission(plan).job()
    assert (caught.value.cause, caught.value.retryable) == (Cause.CONFIG, False)


def test_more_code_than_an_artifact_holds_is_reported(
    backend: OciDataScience, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = a_plan(backend)
    size = len(module.code_bundle(str(plan.code)))
    monkeypatch.setattr(module, "MAX_ARTIFACT", size)
    assert backend._submission(plan)._problem() is None
    monkeypatch.setattr(module, "MAX_ARTIFACT", size - 1)
    problem = backend._submission(plan)._problem()
    assert str(problem) == (
        f"the code takes {size} bytes packed, and the service takes {size - 1} in an artifact: "
        "put data into a bucket and name it in 'inputs'"
    )
    assert problem
    assert problem.cause is Cause.CONFIG
    assert backend._submission(without_uploads(plan))._problem() is None, "it goes another way"


@pytest.mark.parametrize("lease", [100.0, None])
def test_a_work_directory_that_is_not_there_is_reported_with_the_remedy_and_the_job_removed(
    fields: dict[str, Any], emulator: Access, lease: float | None
) -> None:
    backend = OciDataScience.connect({**fields, "work_dir": f"oci://nowhere@{emulator.namespace}/work"})
    plan = dataclasses.replace(a_plan(backend), lease=lease)
    with pytest.raises(
        BackendError, match=r"^work_dir cannot be used: .*; create its bucket, or name"
    ) as caught:
        backend._submission(plan).job()
    assert (caught.value.cause, caught.value.retryable) == (Cause.CONFIG, False)
    assert caught.value.__cause__ is not None
    assert all(state in ("DELETING", "DELETED") for state in jobs_named(backend, plan).values())


def test_a_store_that_fails_for_a_while_leaves_the_job_for_the_next_try(
    fields: dict[str, Any], faults: Faults, emulator: Access
) -> None:
    backend = OciDataScience.connect({**fields, "max_attempts": 1})
    plan = a_plan(backend)
    faults(path=f"/n/{emulator.namespace}/.*", status=503)
    submission = Submission(
        backend._client,
        plan,
        lambda: backend._store(plan.run_dir),
        threading.Event(),
        lambda body: body,
        backend._cancels,
    )
    problem = submission._problem()
    assert problem
    assert (problem.cause, problem.retryable) == (Cause.SERVICE, True)
    assert str(problem).startswith("work_dir cannot be used: ")
    assert "create its bucket" not in str(problem)
    with pytest.raises(BackendError, match="work_dir cannot be used"):
        submission.job()
    assert list(jobs_named(backend, plan).values()) == ["ACTIVE"]


# The artifact


def test_the_artifact_holds_agent_and_code_and_may_be_sent_again(backend: OciDataScience) -> None:
    plan = a_plan(backend)
    submission = backend._submission(plan)
    job_id = submission.job().id
    for _ in range(2):
        submission.artifact(job_id)
    answer = backend._client.get_job_artifact_content(job_id)
    names = zipfile.ZipFile(BytesIO(answer.data.content)).namelist()
    assert any(name.endswith("code/programs/steps.py") for name in names)
    assert any(name.endswith("agent/guard.py") for name in names)
    head = backend._client.head_job_artifact(job_id).headers
    assert head["content-disposition"] == "attachment; filename=ocidist.zip"


def test_without_local_code_the_artifact_is_the_agent_alone(backend: OciDataScience) -> None:
    plan = dataclasses.replace(a_plan(backend), code=None)
    submission = backend._submission(plan)
    job_id = submission.job().id
    submission.artifact(job_id)
    names = zipfile.ZipFile(BytesIO(backend._client.get_job_artifact_content(job_id).data.content)).namelist()
    assert not [name for name in names if "/code/" in name]


def test_a_plan_without_an_artifact_sends_none(backend: OciDataScience) -> None:
    plan = a_plan(backend)
    job_id = backend._submission(plan).job().id
    backend._submission(without_uploads(plan)).artifact(job_id)
    assert not backend._submission(plan)._has_artifact(job_id)


def test_an_artifact_that_somebody_else_has_sent_is_as_good(backend: OciDataScience, faults: Faults) -> None:
    plan = a_plan(backend)
    submission = backend._submission(plan)
    job_id = submission.job().id
    faults(method="POST", path=f"/20190101/jobs/{job_id}/artifact", status=409, code="IncorrectState")
    with pytest.raises(BackendError, match=r"^uploading the job artifact"):
        submission.artifact(job_id)
    http.delete(f"{_url(backend)}/_emulator/faults").raise_for_status()
    submission.artifact(job_id)
    faults(method="POST", path=f"/20190101/jobs/{job_id}/artifact", status=409, code="IncorrectState")
    submission.artifact(job_id)
    faults(method="HEAD|GET", path=f"/20190101/jobs/{job_id}/artifact.*", status=400, code="InvalidParameter")
    with pytest.raises(BackendError, match="looking for the job artifact"):
        submission.artifact(job_id)


def _url(backend: OciDataScience) -> str:
    return str(backend._client.base_client.endpoint).partition("/2019")[0]


def test_another_refusal_of_the_artifact_is_an_error_though_one_is_there(
    backend: OciDataScience, faults: Faults
) -> None:
    plan = a_plan(backend)
    submission = backend._submission(plan)
    job_id = submission.job().id
    submission.artifact(job_id)
    faults(method="POST", path=f"/20190101/jobs/{job_id}/artifact", status=400, code="InvalidParameter")
    with pytest.raises(BackendError, match=r"^uploading the job artifact"):
        submission.artifact(job_id)


# The runs


def begun(
    backend: OciDataScience, nodes: int = 3, stop: threading.Event | None = None
) -> tuple[Submission, str, Plan]:
    plan = a_plan(backend, nodes=nodes)
    submission = backend._submission(plan, stop)
    job_id = submission.job().id
    submission.artifact(job_id)
    return submission, job_id, plan


def test_only_the_runs_that_are_missing_are_created_under_their_numbers(backend: OciDataScience) -> None:
    submission, job_id, plan = begun(backend, nodes=4)
    first = submission.runs(job_id, {number: f"run-{number}" for number in range(3)})
    assert list(first) == [3]
    rest = submission.runs(job_id, {3: first[3].id})
    assert sorted(rest) == [0, 1, 2]
    requests = [each for each in plan.requests if each.verb == "CreateJobRun"]
    for number, run in {**first, **rest}.items():
        assert run.display_name == requests[number].body["displayName"]
        assert run.job_id == job_id
    assert len(runs_of(backend, job_id, plan)) == 4
    assert submission.runs(job_id, {number: run.id for number, run in {**first, **rest}.items()}) == {}


@pytest.mark.parametrize("existing", [set(), {0}, {1}, {0, 2}])
def test_each_worker_that_wants_it_gets_the_run_of_the_main_node_whichever_exist_already(
    backend: OciDataScience, existing: set[int]
) -> None:
    options = {**BACKEND, "contract": "ads_job", "topology": "job_runs"}
    plan = backend.plan(a_job(nodes=3, backend=options), a_key())
    submission = backend._submission(plan)
    job_id = submission.job().id
    submission.artifact(job_id)
    before = {number: f"ocid1.datasciencejobrun.oc1..{number}" for number in existing}
    made = submission.runs(job_id, before)
    assert set(made) == {0, 1, 2} - existing
    main = made[0].id if 0 in made else before[0]
    for number, run in made.items():
        details = backend._client.get_job_run(run.id).data.job_configuration_override_details
        said = details.environment_variables.get(MAIN_RUN_VARIABLE)
        assert said == (main if number else None)


def test_runs_asked_for_twice_are_the_same(backend: OciDataScience) -> None:
    submission, job_id, plan = begun(backend)
    first, again = ({number: run.id for number, run in submission.runs(job_id, {}).items()} for _ in range(2))
    assert first == again
    assert set(runs_of(backend, job_id, plan)) == set(first.values())


def test_a_stopped_submitter_creates_no_run(backend: OciDataScience) -> None:
    stop = threading.Event()
    submission, job_id, plan = begun(backend, stop=stop)
    stop.set()
    with pytest.raises(BackendError, match=r"^stopped while the job runs were being created$") as caught:
        submission.runs(job_id, {})
    assert caught.value.cause is Cause.CANCELED
    assert runs_of(backend, job_id, plan) == {}
    assert submission.abandoned() == {}


def test_runs_that_exist_are_known_though_another_was_refused(
    backend: OciDataScience, faults: Faults
) -> None:
    submission, job_id, plan = begun(backend)
    faults(method="POST", path="/20190101/jobRuns", status=400, code="LimitExceeded", times=1)
    with pytest.raises(BackendError, match=rf"^creating the job run {plan.key.name}"):
        submission.runs(job_id, {})
    known = submission.abandoned()
    assert len(known) == 2
    assert set(known.values()) == set(runs_of(backend, job_id, plan))
    requests = [each for each in plan.requests if each.verb == "CreateJobRun"]
    for number, run_id in known.items():
        assert backend._client.get_job_run(run_id).data.display_name == requests[number].body["displayName"]


def test_where_a_run_is_refused_it_is_said_of_which_of_the_others_the_end_is_not_seen(
    backend: OciDataScience, faults: Faults, caplog: pytest.LogCaptureFixture
) -> None:
    submission, job_id, _ = begun(backend)
    faults(method="POST", path="/20190101/jobRuns", status=400, code="LimitExceeded")
    gone = "ocid1.datasciencejobrun.oc1..gone"
    with caplog.at_level(logging.INFO), pytest.raises(BackendError, match="creating the job run"):
        submission.runs(job_id, {0: gone})
    assert f"cancelling job run {gone}: " in caplog.text


def test_a_run_whose_creation_is_answered_after_all_was_given_up_is_cancelled(
    backend: OciDataScience, faults: Faults, caplog: pytest.LogCaptureFixture
) -> None:
    submission, job_id, plan = begun(backend, nodes=1)
    assert submission.abandoned() == {}
    (run,) = submission.runs(job_id, {}).values()
    assert runs_of(backend, job_id, plan)[run.id] in ("CANCELING", "CANCELED")
    again, other_id, _ = begun(backend, nodes=1)
    again.abandoned()
    faults(method="POST", path=".*/actions/cancelJobRun", status=400, code="InvalidParameter")
    with caplog.at_level(logging.WARNING):
        again.runs(other_id, ())
    assert "which was created too late" in caplog.text


def test_until_it_is_given_up_nothing_is_cancelled(backend: OciDataScience) -> None:
    submission, job_id, plan = begun(backend, nodes=2)
    created = submission.runs(job_id, {})
    assert submission.abandoned() == {number: run.id for number, run in created.items()}
    assert not {"CANCELING", "CANCELED"} & set(runs_of(backend, job_id, plan).values())
