"""Both sensors in poke, reschedule and deferrable: one outcome, whatever the mode."""

from __future__ import annotations

import asyncio
import json
import re
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    AirflowTaskTimeout,
    TaskDeferred,
)

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.backports import UTC
from airflow_provider_ocidist.model import evidence
from airflow_provider_ocidist.model.run import NodeState, RunRef
from airflow_provider_ocidist.model.work_dir import NODES_FOLDER
from airflow_provider_ocidist.oci_client.credentials import access_of
from airflow_provider_ocidist.sensors import CheckpointSensor, DistributedTrainingSensor
from airflow_provider_ocidist.storage.stores.opening import open_store
from airflow_provider_ocidist.triggers import connections, storage
from scripts.emulator_process import Access
from tests.airflow_exceptions import AirflowRescheduleException
from tests.training_jobs import a_job, a_key, wait_until

MODES = [{"mode": "poke"}, {"mode": "reschedule"}, {"deferrable": True}]
TRIGGER_TIMEOUT = ("__fail__", {"error": "Trigger timeout"})

pytestmark = pytest.mark.airflow


def modes(name: str = "arguments") -> pytest.MarkDecorator:
    return pytest.mark.parametrize(name, MODES, ids=["poke", "reschedule", "deferrable"])


@pytest.fixture(autouse=True)
def _connection(emulator: Access, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in emulator.airflow_env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(connections, "_connections", {})


@pytest.fixture
def started(backend: OciDataScience, ends: Callable[[RunRef], RunRef]) -> Callable[..., RunRef]:
    def start(seconds: float = 0.5, **changes: Any) -> RunRef:
        plan = backend.plan(a_job(nodes=1, seconds=seconds, **changes), a_key())
        return ends(backend.submit(plan))

    return start


def context(begun: timedelta = timedelta()) -> Any:
    """What a sensor asks of Airflow: when its task has begun, and was rescheduled for the first time."""
    start = datetime.now(UTC) - begun
    return {"ti": SimpleNamespace(start_date=start, get_first_reschedule_date=lambda _: None)}


def sensor(run: Any, **arguments: Any) -> DistributedTrainingSensor:
    return DistributedTrainingSensor(task_id="wait", run=run, poke_interval=0.3, **arguments)


def outcome(made: DistributedTrainingSensor | CheckpointSensor) -> Any:
    """Return what a sensor returns in the end, as Airflow would bring it there."""
    while True:
        try:
            return made.execute(context())
        except AirflowRescheduleException:
            # Each look of this mode has a process of its own.
            made = type(made)(**_arguments(made))
        except TaskDeferred as deferred:
            payload = asyncio.run(_event(deferred.trigger))
            return made.resume_execution(deferred.method_name, {"event": payload}, context())


def _arguments(made: Any) -> dict[str, Any]:
    names = ("task_id", "run", "uri", "after_step", "mode", "poke_interval", "require_checkpoint")
    return {name: getattr(made, name) for name in names if hasattr(made, name)}


async def _event(trigger: Any) -> Any:
    events: Any = trigger.run()
    try:
        return (await asyncio.wait_for(anext(events), 60)).payload
    finally:
        await events.aclose()


def test_all_modes_return_the_result_of_a_run_that_was_still_going_on(
    started: Callable[..., RunRef], quick_events: None
) -> None:
    ref = started(seconds=2)
    # Jinja writes a run as Python does, a trigger over the REST API as JSON.
    forms = (ref.to_json(), str(ref.to_json()), json.dumps(ref.to_json()))
    made = [
        sensor(form, require_checkpoint=True, **arguments)
        for form, arguments in zip(forms, MODES, strict=True)
    ]
    with ThreadPoolExecutor(len(made)) as pool:
        results = list(pool.map(outcome, made))
    assert results[0] == results[1] == results[2]
    assert results[0]["job_id"] == ref.job_id
    assert results[0]["checkpoint"]["step"] > 0


@pytest.fixture
def quick_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """No executor looks on here; fire as soon as there is an event."""
    monkeypatch.setattr("airflow_provider_ocidist.triggers.training.FIRST_EVENT_AFTER", 0.0)
    monkeypatch.setattr(storage, "FIRST_LOOK_AFTER", 0.0)


def test_a_run_that_failed_ends_the_wait_for_good_or_skips(
    backend: OciDataScience, started: Callable[..., RunRef]
) -> None:
    ref = started(program={**a_job().to_mapping()["program"], "args": ["--fail-rank", "0"]})
    wait_until(backend, ref, lambda status: status.ended)
    for arguments in MODES:
        with pytest.raises(AirflowFailException, match=r"USER: node 0: ValueError: boom"):
            sensor(ref.to_json(), **arguments).execute(context())
        with pytest.raises(AirflowSkipException):
            sensor(ref.to_json(), soft_fail=True, **arguments).execute(context())


def test_what_a_node_prints_of_its_secrets_is_masked_in_the_log_of_a_sensor(
    started: Callable[..., RunRef], monkeypatch: pytest.MonkeyPatch
) -> None:
    masked: list[Any] = []
    monkeypatch.setattr("airflow.sdk.log.mask_secret", masked.append)
    sensor(started(env={"HF_TOKEN": "hf_abcdef"}).to_json()).poke(context())
    assert masked[-1] == "hf_abcdef"


def test_a_run_that_was_deleted_is_named(backend: OciDataScience, started: Callable[..., RunRef]) -> None:
    ref = started()
    backend.cancel(ref)
    wait_until(backend, ref, lambda status: status.ended)
    backend.delete(ref)
    wait_until(backend, ref, lambda status: status.nodes[0].state is NodeState.MISSING)
    for arguments in MODES:
        with pytest.raises(AirflowFailException, match=rf"its job run {ref.main_run_id} was deleted"):
            sensor(ref.to_json(), **arguments).execute(context())


@pytest.mark.parametrize("run", [None, "None", "", "{{ nothing }}", {"job_id": "x"}, "[1, 2]"])
def test_what_names_no_run_is_reported_with_its_remedy(run: Any) -> None:
    with pytest.raises(AirflowFailException, match=r'which names no run .*xcom_pull\(dag_id=.*key="run"\)'):
        sensor(run).execute(context())


def test_waiting_in_vain_says_for_what(started: Callable[..., RunRef]) -> None:
    ref = started(seconds=30)
    waiting = sensor(ref.to_json(), deferrable=True, timeout=60)
    with pytest.raises(
        AirflowSensorTimeout, match=rf"the run {ref.key.name} has not ended within 60 s \(timeout\)"
    ):
        waiting.resume_execution(*TRIGGER_TIMEOUT, context())
    soft = sensor(ref.to_json(), deferrable=True, timeout=60, soft_fail=True)
    with pytest.raises(AirflowSkipException, match=r"has not ended within 60 s \(timeout\); skipped"):
        soft.resume_execution(*TRIGGER_TIMEOUT, context())
    hasty = sensor(ref.to_json(), deferrable=True, execution_timeout=timedelta(seconds=20))
    with pytest.raises(AirflowTaskTimeout, match=r"within 20 s \(execution_timeout\)"):
        hasty.resume_execution(*TRIGGER_TIMEOUT, context())


def test_a_sensor_that_defers_again_does_not_wait_longer(started: Callable[..., RunRef]) -> None:
    ref = started(seconds=30)
    with pytest.raises(TaskDeferred) as deferred:
        sensor(ref.to_json(), deferrable=True, timeout=60).execute(context(begun=timedelta(seconds=40)))
    assert deferred.value.timeout
    assert 15 < deferred.value.timeout.total_seconds() <= 20
    with pytest.raises(AirflowSensorTimeout):
        sensor(ref.to_json(), deferrable=True, timeout=60).execute(context(begun=timedelta(seconds=70)))


def test_a_sensor_renews_no_lease(started: Callable[..., RunRef]) -> None:
    ref = started(seconds=30, limits={"lease": "2h"})
    assert ref.lease == 7200
    waiting = sensor(ref.to_json())
    assert not waiting.poke(context())
    assert waiting._wait.watch is not None
    assert waiting._wait.watch.record.lease is None


# checkpoints


@pytest.fixture
def folder(emulator: Access) -> str:
    return f"oci://{emulator.bucket}@{emulator.namespace}/sensed/{uuid.uuid4().hex[:8]}"


@modes()
def test_a_checkpoint_that_comes_later_is_found(
    emulator: Access, folder: str, arguments: dict[str, Any], quick_events: None, tmp_path: Any
) -> None:
    import threading

    from tests.triggers.test_storage import published

    late = threading.Timer(1.0, published, [emulator, folder, tmp_path, 7])
    late.start()
    try:
        found = outcome(
            CheckpointSensor(task_id="w", uri=folder, after_step=5, poke_interval=0.3, **arguments)
        )
    finally:
        late.join()
    assert found["step"] == 7


@modes()
def test_a_place_that_cannot_be_read_for_good_ends_the_wait(
    emulator: Access, arguments: dict[str, Any], quick_events: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How old and often is tested by itself; where each look has its own process in model/test_kept_evidence.py."""
    monkeypatch.setattr(evidence, "REFUSED_FOR", 0.0)
    if arguments.get("mode") == "reschedule":
        monkeypatch.setattr(evidence, "REFUSALS_NEEDED", 1)
    nowhere = f"oci://no-such-bucket@{emulator.namespace}/x"
    with pytest.raises(AirflowFailException, match="no-such-bucket"):
        outcome(CheckpointSensor(task_id="w", uri=nowhere, poke_interval=0.1, **arguments))


def scheme_without_library() -> str:
    """Return a scheme that fsspec knows, and for which nothing is installed here."""
    from fsspec import get_filesystem_class
    from fsspec.registry import known_implementations

    for scheme in sorted(known_implementations):
        try:
            get_filesystem_class(scheme)
        except ImportError:
            return scheme
    raise AssertionError("everything is installed")


@pytest.mark.parametrize(
    "uri",
    [
        "nosuch://bucket/x",
        "oci:///x",
        "oci://@namespace/x",
        "oci:/bucket@namespace/x",
        "s3:bucket/x",
        "",
        "-",
    ],
)
@modes()
def test_a_place_that_nothing_can_ever_open_is_named_at_once(
    arguments: dict[str, Any], quick_events: None, uri: str
) -> None:
    place = f"{scheme_without_library()}://host/x" if uri == "-" else uri
    with pytest.raises(AirflowFailException, match=re.escape(place.partition("://")[0] or "empty")):
        outcome(CheckpointSensor(task_id="w", uri=place, poke_interval=3600, timeout=5, **arguments))


def test_a_triggerer_that_can_never_open_a_place_hands_it_to_the_worker_at_once(quick_events: None) -> None:
    """A worker may have a library that the triggerer has not."""
    trigger = storage.CheckpointTrigger("nosuch://bucket/x", "oci_default", 5, 3600)
    assert asyncio.run(_event(trigger)) is None


def test_credentials_that_are_wrong_in_themselves_are_said_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = json.dumps({"config_file": str(tmp_path / "nowhere")})
    monkeypatch.setenv("AIRFLOW_CONN_WRONG", json.dumps({"conn_type": "oci", "extra": extra}))
    sensor = CheckpointSensor(task_id="w", uri="oci://bucket@namespace/x", conn_id="wrong", poke_interval=0.1)
    with pytest.raises(AirflowFailException, match="nowhere"):
        outcome(sensor)


def test_a_checkpoint_that_never_comes_is_named(folder: str) -> None:
    waiting = CheckpointSensor(task_id="w", uri=folder, after_step=5, deferrable=True, timeout=60)
    with pytest.raises(AirflowSensorTimeout, match="no whole checkpoint after step 5 found below oci://"):
        waiting.resume_execution(*TRIGGER_TIMEOUT, context())


@pytest.fixture
def look_by_itself() -> Callable[[RunRef], None]:
    """Looks once in mode `reschedule`, as a process of its own that has only what Airflow keeps for it."""
    noted: dict[str, Any] = {}
    notes = SimpleNamespace(
        get=noted.get, set=lambda key, value: noted.update({key: json.loads(json.dumps(value))})
    )
    given = {**context(), "task_state_store": notes}
    given["ti"].try_number = 1

    def look(ref: RunRef) -> None:
        connections._connections.clear()
        DistributedTrainingSensor(
            task_id="wait", run=ref.to_json(), mode="reschedule", poke_interval=60
        ).execute(given)

    return look


def test_a_report_that_is_missing_again_and_again_ends_the_wait_though_each_look_has_a_process_of_its_own(
    started: Callable[..., RunRef],
    backend: OciDataScience,
    emulator: Access,
    look_by_itself: Callable[[RunRef], None],
) -> None:
    ref = started()
    wait_until(backend, ref, lambda status: status.ended)
    open_store(ref.run_dir, access_of(emulator.connection_fields())).delete(f"{NODES_FOLDER}/0.json")
    for _ in range(3):
        with pytest.raises(AirflowRescheduleException):
            look_by_itself(ref)
    with pytest.raises(AirflowFailException, match=r"NODE|USER"):
        look_by_itself(ref)


def test_reports_that_stay_unreadable_end_the_wait_though_each_look_has_a_process_of_its_own(
    started: Callable[..., RunRef],
    backend: OciDataScience,
    faults: Callable[..., None],
    look_by_itself: Callable[[RunRef], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ref = started()
    wait_until(backend, ref, lambda status: status.ended)
    faults(method="GET", path="/n/.*", status=403, code="NotAuthorized")
    for _ in range(2):
        with pytest.raises(AirflowRescheduleException):
            look_by_itself(ref)
    # Since the first of them, not since this one; the service's clock, in an HTTP header, shows whole seconds.
    monkeypatch.setattr("airflow_provider_ocidist.gangs.decisions.UNREADABLE_LIMIT", 0.001)
    time.sleep(1.01)
    with pytest.raises(AirflowFailException, match=r"SERVICE: every node has exited with 0"):
        look_by_itself(ref)


NO_PLACES = [
    ("None", "uri"),
    ("", "uri"),
    (None, "uri"),
    ("checkpoints/run-g1", "uri"),
    ("./checkpoints", "uri"),
    ("file://checkpoints", "uri"),
]
NO_STEPS = [
    (value, "after_step") for value in ("None", "", None, "ten", "nan", float("inf"), float("nan"), [7])
]


@modes()
@pytest.mark.parametrize("value, name", [*NO_PLACES, *NO_STEPS])
def test_an_argument_that_can_never_be_met_fails_at_once_and_is_named(
    arguments: dict[str, Any], value: Any, name: str
) -> None:
    given = {"uri": "oci://b@n/checkpoints/run-g1", "after_step": -1, name: value}
    with pytest.raises(AirflowFailException, match=rf"^{name} .*: "):
        CheckpointSensor(task_id="wait", **given, **arguments).execute(context())


@pytest.mark.parametrize("step", [7, "7", " 7 ", 7.0])
def test_a_step_is_a_number_or_text_of_one(step: Any, tmp_path: Path) -> None:
    made = CheckpointSensor(task_id="wait", uri=str(tmp_path), after_step=step)
    assert made._wait.trigger().after_step == 7
