"""The OCI backend, with the real SDK, against the emulator over HTTP."""

from __future__ import annotations

import dataclasses
import threading
import time
import uuid
import zipfile
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.backends.oci_data_science.answers import STATES
from airflow_provider_ocidist.errors import BackendError, Cause, JobFileError
from airflow_provider_ocidist.gangs.log_follower import LogFollower
from airflow_provider_ocidist.model.run import NodeState, Plan, RunRef
from airflow_provider_ocidist.oci_client import clients
from scripts.emulator_process import Access
from tests.http_client import http
from tests.training_jobs import BACKEND, PROGRAMS, a_job, a_key, wait_until


def job_runs_of(backend: OciDataScience, ref: RunRef) -> list[Any]:
    return backend._client.list_job_runs(ref.compartment_id, job_id=ref.job_id).data


# plan


def test_a_plan_is_the_literal_requests_and_sends_none() -> None:
    backend = OciDataScience.connect(
        {
            "compartment_id": "c",
            "project_id": "p",
            "subnet_id": "s",
            "work_dir": "oci://b@n/w",
            "endpoint": "http://127.0.0.1:9",
        }
    )
    key = a_key()
    plan = backend.plan(a_job(nodes=3), key)
    assert [request.verb for request in plan.requests] == [
        "CreateJob",
        "CreateJobArtifact",
        *["CreateJobRun"] * 3,
    ]
    job = plan.requests[0].body
    assert job["displayName"] == key.name
    assert job["jobInfrastructureConfigurationDetails"] == {
        "jobInfrastructureType": "STANDALONE",
        "subnetId": "s",
        "shapeName": "VM.Standard.E4.Flex",
        "blockStorageSizeInGBs": 50,
        "jobShapeConfigDetails": {"ocpus": 1.0, "memoryInGBs": 8.0},
    }
    ranks = [
        run.body["jobConfigurationOverrideDetails"]["environmentVariables"]["OCIDIST_NODE_RANK"]
        for run in plan.requests[2:]
    ]
    assert ranks == ["0", "1", "2"]
    assert plan.run_dir == f"oci://b@n/w/{key.name}"


def test_a_plan_names_everything_that_is_missing_at_once() -> None:
    with pytest.raises(JobFileError) as caught:
        OciDataScience.connect({}).plan(a_job(backend={**BACKEND, "topology": "job_runs"}), a_key())
    paths = {problem.path for problem in caught.value.problems}
    assert paths == {"backend.compartment_id", "backend.project_id", "backend.subnet_id", "work_dir"}


@pytest.mark.parametrize(
    "slug, python",
    [
        ("pytorch110_p38_gpu_v1", "3.8"),
        ("generalml_p37_cpu_v1", "3.7"),
        ("pytorch_p27", "2.7"),
        ("p36_pack", "3.6"),
        ("pytorch20_p39_gpu_v1", None),
        ("pytorch24_p310_gpu_x86_64_v1", None),
        ("pytorch28_p312_gpu_x86_64_v1", None),
        ("mlgpuv1", None),
        ("ours_p3", None),
        ("cp38_pack", None),
    ],
)
def test_a_conda_environment_is_refused_before_a_node_is_paid_for_where_its_name_says_too_old_a_python(
    backend: OciDataScience, slug: str, python: str | None
) -> None:
    where = {"kind": "oci_data_science", "shape": "VM.GPU.A10.1", "conda_slug": slug}
    if python is None:
        assert backend.plan(a_job(backend=where), a_key())
        return
    with pytest.raises(JobFileError, match=rf"conda_slug: has Python {python}; the agent needs 3\.9"):
        backend.plan(a_job(backend=where), a_key())


def test_an_environment_beyond_the_services_limit_is_refused_before_anything_is_created(backend: Any) -> None:
    with pytest.raises(JobFileError, match="20000"):
        backend.plan(a_job(env={"BIG": "x" * 20_000}), a_key())


def test_every_lifecycle_state_of_the_sdk_has_a_meaning() -> None:
    from oci.data_science.models import JobRunSummary

    known = {value for name, value in vars(JobRunSummary).items() if name.startswith("LIFECYCLE_STATE_")}
    assert known - {"UNKNOWN_ENUM_VALUE"} <= set(STATES)


# submit


def test_two_nodes_train_to_a_checkpoint(backend: OciDataScience, ends: Any) -> None:
    ref = ends(backend.submit(backend.plan(a_job(), a_key())))
    status = wait_until(backend, ref, lambda status: status.ended)
    assert [node.state for node in status.nodes] == [NodeState.SUCCEEDED, NodeState.SUCCEEDED], status
    assert [node.exit_code for node in status.nodes] == [0, 0]
    assert status.checkpoint is not None
    assert status.checkpoint.step == 1
    assert status.checkpoint.uri.startswith(str(ref.checkpoints_uri))
    assert status.checkpoint_problem is None


def test_the_same_plan_submitted_twice_is_one_gang(backend: OciDataScience, ends: Any) -> None:
    plan = backend.plan(a_job(seconds=5), a_key())
    first = ends(backend.submit(plan))
    assert backend.submit(plan) == first
    assert len(job_runs_of(backend, first)) == 2


def test_concurrent_submissions_of_one_plan_are_one_gang(
    backend: OciDataScience, fields: Any, ends: Any
) -> None:
    plan = backend.plan(a_job(nodes=3, seconds=5), a_key())
    refs: list[RunRef] = []
    threads = [
        threading.Thread(target=lambda: refs.append(OciDataScience.connect(fields).submit(plan)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ends(refs[0])
    assert len(refs) == 4
    assert len(set(refs)) == 1
    assert len(job_runs_of(backend, refs[0])) == 3


def test_a_submission_that_was_cut_off_is_completed(backend: OciDataScience, ends: Any) -> None:
    plan = backend.plan(a_job(nodes=3, seconds=5), a_key())
    partial = dataclasses.replace(plan, requests=plan.requests[:3], nodes=1)
    cut = ends(backend.submit(partial))
    whole = ends(backend.submit(plan))
    assert whole.job_id == cut.job_id
    assert whole.run_ids[0] == cut.run_ids[0]
    assert whole.complete
    assert len(set(whole.run_ids)) == 3


def test_the_secrets_of_a_gang_that_was_created_in_part_are_those_of_its_nodes(
    backend: OciDataScience, ends: Any
) -> None:
    apart = {"main_env": {"A_TOKEN": "of-main-77"}, "worker_env": {"A_TOKEN": "of-workers-77"}}
    plan = backend.plan(a_job(nodes=3, seconds=60, **apart), a_key())
    cut = ends(backend.submit(dataclasses.replace(plan, requests=plan.requests[:4], nodes=2)))
    first, second = filter(None, cut.run_ids)
    for run_ids, known in {
        (first, second, ""): {"of-main-77", "of-workers-77"},
        (first, "", ""): {"of-main-77"},
        ("", second, ""): {"of-workers-77"},
        ("", "", ""): set(),
    }.items():
        found = backend.secrets_of(dataclasses.replace(cut, nodes=3, run_ids=run_ids))
        assert found & {"of-main-77", "of-workers-77"} == known
    gone = dataclasses.replace(cut, run_ids=(first, f"{second}x"))
    with pytest.raises(BackendError, match="reading the job run"):
        backend.secrets_of(gone)


def test_when_one_node_cannot_be_created_the_others_are_ended(
    backend: OciDataScience, emulator: Access, fields: Any
) -> None:
    plan = backend.plan(a_job(nodes=3, seconds=60), a_key())
    rule = {
        "method": "POST",
        "path": "/20190101/jobRuns$",
        "status": 400,
        "code": "LimitExceeded",
        "times": 1,
    }
    http.post(f"{emulator.url}/_emulator/faults", json=rule).raise_for_status()
    with pytest.raises(BackendError) as caught:
        backend.submit(plan)
    assert caught.value.cause is Cause.QUOTA
    # Its job is deleted with its runs as soon as all have ended, which may be so already.
    for ref in backend.gangs.find(plan):
        assert not ref.complete
        status = wait_until(backend, ref, lambda status: status.ended)
        assert NodeState.SUCCEEDED not in {node.state for node in status.nodes}
    assert backend.gangs.live([plan.key], emulator.compartment_id) == []


def test_a_gang_costs_no_request_that_is_not_needed(
    backend: OciDataScience, emulator: Access, ends: Any
) -> None:
    plan = backend.plan(a_job(nodes=4, seconds=30), a_key())
    http.delete(f"{emulator.url}/_emulator/calls").raise_for_status()
    ref = ends(backend.submit(plan, found=backend.gangs.begin(plan)))
    assert ref.complete
    calls = http.get(f"{emulator.url}/_emulator/calls").json()
    sent = [
        (call["method"], call["path"].split("?")[0].rpartition("/")[2])
        for call in calls
        if call["path"].startswith("/20190101/")
    ]
    created = [name for method, name in sent if method == "POST"]
    assert created == ["jobs", "artifact", *["jobRuns"] * 4]
    assert sent.count(("GET", "jobs")) == 1
    assert sent[-5:] == [("POST", "artifact"), *[("POST", "jobRuns")] * 4]


def test_what_was_begun_is_found_and_used_by_the_next_try(
    backend: OciDataScience, fields: Any, ends: Any
) -> None:
    plan = backend.plan(a_job(seconds=5), a_key())
    (begun,) = backend.gangs.begin(plan)
    assert not any(begun.run_ids)
    other = OciDataScience.connect(fields)
    assert other.gangs.begin(plan) == other.gangs.find(plan) == [begun]
    assert ends(other.submit(plan)).job_id == begun.job_id


def test_what_was_begun_beside_an_older_submission_of_the_same_is_removed(
    backend: OciDataScience, ends: Any
) -> None:
    plan = backend.plan(a_job(seconds=5), a_key())
    # As after 24 hours, when the service has forgotten the idempotency tokens.
    older = ends(backend.submit(dataclasses.replace(plan, key=a_key())))
    (found,) = backend.gangs.begin(plan)
    assert found.job_id == older.job_id
    assert [ref.job_id for ref in backend.gangs.find(plan)] == [older.job_id]


def test_lost_replies_and_refusals_leave_nothing_that_is_not_known(
    backend: OciDataScience, emulator: Access, ends: Any
) -> None:
    paths = {
        "jobs": "/20190101/jobs",
        "artifact": "/20190101/jobs/[^/]+/artifact",
        "runs": "/20190101/jobRuns",
    }
    for path in paths.values():
        for fault in ({"drop": "after"}, {"status": 429, "code": "TooManyRequests"}, {"status": 503}):
            rule = {"method": "POST", "path": path, "times": 1, **fault}
            http.post(f"{emulator.url}/_emulator/faults", json=rule).raise_for_status()
    plan = backend.plan(a_job(nodes=3, seconds=30), a_key())
    ref = ends(backend.submit(plan, found=backend.gangs.begin(plan)))
    assert ref.complete
    assert {run.id for run in job_runs_of(backend, ref)} == set(ref.run_ids)
    assert backend.gangs.find(plan) == [ref]


def test_a_work_dir_in_a_missing_bucket_is_refused_before_anything_is_created(
    fields: dict[str, Any], emulator: Access
) -> None:
    backend = OciDataScience.connect({**fields, "work_dir": f"oci://nowhere@{emulator.namespace}/work"})
    plan = backend.plan(a_job(), a_key())
    with pytest.raises(BackendError, match=r"work_dir cannot be used.*nowhere.*create its bucket") as caught:
        backend.submit(plan)
    assert (caught.value.cause, caught.value.retryable) == (Cause.CONFIG, False)
    assert backend.live([plan.key]) == []


def test_a_bucket_that_was_missing_may_be_made_afterwards(
    fields: dict[str, Any], emulator: Access, ends: Any
) -> None:
    bucket = f"late-{uuid.uuid4().hex[:8]}"
    backend = OciDataScience.connect({**fields, "work_dir": f"oci://{bucket}@{emulator.namespace}/work"})
    plan = backend.plan(a_job(seconds=1), a_key())
    for _ in range(2):
        with pytest.raises(BackendError, match="create its bucket"):
            backend.gangs.begin(plan)
    client = clients.client(backend.access, "object_storage")
    client.create_bucket(emulator.namespace, {"name": bucket, "compartmentId": emulator.compartment_id})
    ref = ends(backend.submit(plan, found=backend.gangs.begin(plan)))
    status = wait_until(backend, ref, lambda status: status.ended)
    assert {node.state for node in status.nodes} == {NodeState.SUCCEEDED}


@pytest.mark.parametrize("image", [None, "iad.ocir.io/ns/image:1"])
@pytest.mark.parametrize("begins", [True, False])
def test_code_that_cannot_be_read_is_one_error_and_leaves_no_job(
    backend: OciDataScience, tmp_path: Path, image: str | None, begins: bool
) -> None:
    archive = tmp_path / "code.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("train.py", "print(1)")
    job = a_job(program={"source": str(archive), "script": "train.py"}, **({"image": image} if image else {}))
    archive.write_bytes(archive.read_bytes().replace(b"print(1)", b"print(2)"))
    plan = backend.plan(job, a_key())
    with pytest.raises(BackendError, match=r"program\.source cannot be read: .*code\.zip") as caught:
        backend.gangs.begin(plan) if begins else backend.submit(plan)
    assert (caught.value.cause, caught.value.retryable) == (Cause.CONFIG, False)
    assert backend.live([plan.key]) == []


def test_what_another_job_file_has_begun_is_adopted_where_it_has_nodes_and_never_doubled(
    backend: OciDataScience, ends: Any
) -> None:
    key = a_key()
    ref = ends(backend.submit(backend.plan(a_job(seconds=30), key)))
    plan = backend.plan(a_job(seconds=1), key)
    assert backend.gangs.begin(plan) == [ref]
    # As where the lists do not show it yet.
    with pytest.raises(BackendError, match="was begun before with another job file") as caught:
        backend.submit(plan, found=[])
    assert caught.value.retryable
    assert backend.gangs.find(plan) == [ref]


def test_what_is_no_report_does_not_hide_the_gang(backend: OciDataScience, ends: Any) -> None:
    ref = ends(backend.submit(backend.plan(a_job(seconds=2), a_key())))
    for name, text in {"7": b"{not json", "8": b"[]", "9": b"{}", "10": b"\xff"}.items():
        backend._store(ref.run_dir).write(f"nodes/{name}.json", text)
    status = wait_until(backend, ref, lambda status: status.ended)
    assert [node.state for node in status.nodes] == [NodeState.SUCCEEDED, NodeState.SUCCEEDED], status


def test_a_submission_that_is_stopped_leaves_nothing_running(backend: OciDataScience) -> None:
    stop = threading.Event()
    stop.set()
    plan = backend.plan(a_job(seconds=60), a_key())
    with pytest.raises(BackendError, match="stopped"):
        backend.submit(plan, stop)
    assert backend.gangs.find(plan) == [], "a job without runs goes, too"


def test_a_gang_is_found_again_from_its_tags_alone(backend: OciDataScience, fields: Any, ends: Any) -> None:
    key = a_key()
    first = ends(backend.submit(backend.plan(a_job(seconds=5), key)))
    cleared = dataclasses.replace(key, generation=3, attempt=2)
    second = ends(backend.submit(backend.plan(a_job(seconds=5), cleared)))
    stranger = OciDataScience.connect(fields)
    assert stranger.gangs.find(stranger.plan(a_job(), key)) == [first, second]
    assert stranger.gangs.find(stranger.plan(a_job(), a_key())) == []


# status, logs, end


def test_many_gangs_cost_one_list_call(backend: OciDataScience, emulator: Access, ends: Any) -> None:
    refs = [ends(backend.submit(backend.plan(a_job(nodes=1, seconds=20), a_key()))) for _ in range(3)]
    before = _calls(emulator, "GET", "/20190101/jobRuns")
    assert len(backend.status(refs)) == 3
    assert _calls(emulator, "GET", "/20190101/jobRuns") == before + 1


def _calls(emulator: Access, method: str, path: str) -> int:
    calls = http.get(f"{emulator.url}/_emulator/calls").json()
    calls = calls.get("calls", calls) if isinstance(calls, dict) else calls
    return sum(call["method"] == method and call["path"].split("?")[0] == path for call in calls)


def test_a_failing_node_is_reported_with_its_exception_and_ends_the_other(
    backend: OciDataScience, ends: Any
) -> None:
    arguments = ["--seconds", "60", "--fail-rank", "1"]
    program = {"source": str(PROGRAMS), "script": "steps.py", "args": arguments}
    ref = ends(backend.submit(backend.plan(a_job(program=program), a_key())))
    status = wait_until(backend, ref, lambda status: status.ended, seconds=25)
    guilty, told = status.nodes[1].report, status.nodes[0].report
    assert guilty is not None
    assert told is not None
    assert guilty.cause is Cause.USER
    assert "boom" in str(guilty.message)
    assert "ValueError" in str(guilty.tail)
    assert told.cause is None


def test_cancel_ends_every_node_and_may_be_repeated(backend: OciDataScience) -> None:
    ref = backend.submit(backend.plan(a_job(seconds=120), a_key()))
    wait_until(backend, ref, lambda status: all(node.state is NodeState.RUNNING for node in status.nodes))
    backend.cancel(ref)
    status = wait_until(backend, ref, lambda status: status.ended, seconds=15)
    assert {node.state for node in status.nodes} == {NodeState.CANCELED}
    backend.cancel(ref)


def test_a_deleted_run_is_missing_and_not_successful(backend: OciDataScience) -> None:
    ref = backend.submit(backend.plan(a_job(seconds=0.1), a_key()))
    wait_until(backend, ref, lambda status: status.ended)
    backend.delete(ref)
    assert wait_until(
        backend, ref, lambda status: {node.state for node in status.nodes} == {NodeState.MISSING}
    )


def test_each_log_line_of_every_node_arrives_once(backend: OciDataScience, ends: Any) -> None:
    ref = ends(backend.submit(backend.plan(a_job(seconds=2), a_key())))
    follower = LogFollower([ref.submitted_at] * 2)
    lines = []
    ended = False
    for _ in range(200):
        now = time.time()
        lines += follower.take(backend.logs(ref, follower.since(now)), now)
        if ended:
            break
        (status,) = backend.status([ref])
        ended = status.ended
        time.sleep(0.2)
    for rank in range(2):
        steps = [line.text for line in lines if line.rank == rank and line.text.startswith("step ")]
        assert [text.split()[1] for text in steps] == ["1/4", "2/4", "3/4", "4/4"]


# bad days


def test_a_wrong_key_is_one_clear_line(fields: dict[str, Any], tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )
    other = tmp_path / "key.pem"
    other.write_bytes(pem)
    config = Path(fields["config_file"]).read_text()
    lines = [f"key_file={other}" if line.startswith("key_file") else line for line in config.splitlines()]
    wrong = tmp_path / "config"
    wrong.write_text("\n".join(lines))
    backend = OciDataScience.connect({**fields, "config_file": str(wrong)})
    with pytest.raises(BackendError) as caught:
        backend.submit(backend.plan(a_job(), a_key()))
    assert caught.value.status_code == 401
    assert not caught.value.retryable
    assert "\n" not in str(caught.value)


def test_a_missing_project_says_that_it_may_be_hidden(fields: dict[str, Any]) -> None:
    project_id = fields["project_id"][:-6] + "absent"
    backend = OciDataScience.connect({**fields, "project_id": project_id})
    with pytest.raises(BackendError, match="may not") as caught:
        backend.submit(backend.plan(a_job(), a_key()))
    assert caught.value.status_code == 404


def test_an_unreachable_endpoint_is_named(fields: dict[str, Any]) -> None:
    backend = OciDataScience.connect({**fields, "endpoint": "http://127.0.0.1:9", "max_attempts": 2})
    plan: Plan = backend.plan(a_job(), a_key())
    with pytest.raises(BackendError, match=r"127\.0\.0\.1:9") as caught:
        backend.submit(plan)
    assert caught.value.retryable
