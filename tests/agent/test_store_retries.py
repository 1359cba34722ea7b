"""Passing faults of the store before the training: waited out for a limit, and then no reason to give up for good."""

from __future__ import annotations

import errno
import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent import store_retries
from airflow_provider_ocidist.agent.prepare.inputs import fetch_inputs
from airflow_provider_ocidist.agent.prepare.vault import read_secret
from airflow_provider_ocidist.agent.save.checkpoints import Fetching, resume, start_from
from airflow_provider_ocidist.agent.stages.context import open_heartbeat
from airflow_provider_ocidist.agent.stopping import Stop, Stopped, StopSwitch
from airflow_provider_ocidist.agent.store_retries import (
    cannot_be_fetched,
    with_retries,
    with_retries_unless_stopped,
)
from airflow_provider_ocidist.errors import (
    AgentError,
    BackendError,
    Cause,
    CheckpointError,
    StorageError,
    StoreRefused,
    StoreUnavailable,
)
from airflow_provider_ocidist.job import Checkpoints, Input, Program
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.report import NodeReport, Phase, Restart
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.testing import OciEmulator


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_retries, "FIRST_PAUSE", 0.05)


@pytest.fixture
def access(oci_emulator: OciEmulator) -> OciAccess:
    return OciAccess(config_file=oci_emulator.access.config_file, endpoint=oci_emulator.url, max_attempts=1)


def place(emulator: OciEmulator, prefix: str) -> str:
    return f"oci://{emulator.access.bucket}@{emulator.access.namespace}/{prefix}"


@pytest.mark.parametrize("seed", range(20))
def test_the_work_is_tried_until_it_is_done_or_the_time_is_over(seed: int) -> None:
    print("seed", seed)
    random_ = random.Random(seed)
    failures = random_.randint(0, 4)
    other = random_.random() < 0.3
    tried: list[int] = []

    def work() -> str:
        tried.append(1)
        if len(tried) <= failures:
            raise StoreUnavailable("down")
        if other:
            raise AgentError("gone", cause=Cause.DATA)
        return "done"

    if other:
        with pytest.raises(AgentError, match="gone"):
            with_retries(work, 60.0, threading.Event())
    else:
        assert with_retries(work, 60.0, threading.Event()) == "done"
    assert len(tried) == failures + 1


def test_a_store_that_stays_away_is_given_up_with_a_cause_that_a_retry_may_mend() -> None:
    def work() -> None:
        raise StoreUnavailable("the input x cannot be fetched: 503")

    with pytest.raises(
        StoreUnavailable, match=r"503; tried for \d+ s \(limits.join_timeout is 0 s\)"
    ) as caught:
        with_retries(work, 0.3, threading.Event())
    assert caught.value.cause is Cause.SERVICE


@pytest.mark.parametrize("seed", range(4))
def test_a_store_that_is_back_before_the_limit_is_asked_again(seed: int) -> None:
    print("seed", seed)
    limit = random.Random(seed).uniform(0.4, 1.2)
    since: list[float] = []

    def work() -> str:
        since.append(time.monotonic())
        if time.monotonic() - since[0] < 0.95 * limit:
            raise StoreUnavailable("down")
        return "done"

    assert with_retries(work, limit, threading.Event()) == "done"


def _down() -> None:
    raise StoreUnavailable("down")


def test_a_node_that_is_asked_to_stop_asks_no_more() -> None:
    ended = threading.Event()
    ended.set()
    with pytest.raises(StoreUnavailable):
        with_retries(_down, 1e9, ended)


def test_work_that_was_left_behind_in_a_request_is_not_tried_again_in_the_next_launch() -> None:
    switch, tries = StopSwitch(), list[int]()

    def work() -> None:
        tries.append(len(tries))
        if len(tries) > 1:
            return
        # It is stopped in an outage, and another launch begins before its request fails.
        switch.ask(Stop(message="again", restarts=(Restart(cause=Cause.USER, message="m"),)))
        switch.rearm(1)
        _down()

    with pytest.raises(StoreUnavailable):
        with_retries_unless_stopped(work, 1e9, switch)
    assert tries == [0]


def test_a_node_that_is_stopped_while_it_waits_for_a_store_ends_for_that_reason(access: OciAccess) -> None:
    """Also before it has joined any other: a signal is no fault of the service."""
    config = AgentConfig(run_name="one", nodes=1, run_dir="oci://bucket/x", program=Program(script="x.py"))
    nowhere = replace(access, endpoint="http://127.0.0.1:1")
    switch = StopSwitch()
    switch.ask(Stop(message="this node was stopped by SIGTERM"))
    with pytest.raises(Stopped, match="SIGTERM"):
        open_heartbeat(config, nowhere, A_REPORT, switch)


@pytest.mark.parametrize(
    "error, cause",
    [
        (StorageError("unreachable", retryable=True), Cause.SERVICE),
        (BackendError("503", retryable=True), Cause.SERVICE),
        (StorageError("no such bucket"), Cause.DATA),
        (BackendError("404"), Cause.DATA),
        (CheckpointError("damaged"), Cause.DATA),
        (OSError("read-only"), Cause.DATA),
    ],
)
def test_only_faults_that_pass_are_the_services(error: Exception, cause: Cause) -> None:
    assert cannot_be_fetched("x", error, str(error)).cause is cause


@pytest.mark.parametrize(
    "number, tried_again",
    [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EFBIG, True), (errno.EIO, False)],
)
def test_a_full_disk_is_tried_again_as_what_fills_it_may_end(number: int, *, tried_again: bool) -> None:
    error = StorageError("no")
    error.__cause__ = OSError(number, "no")
    found = cannot_be_fetched("x", error, "no")
    assert found.cause is Cause.DATA
    assert isinstance(found, StoreRefused) is tried_again


FAULTS = [{"status": 503}, {"status": 429}, {"status": 500}, {"drop": "before"}]


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_an_input_is_waited_for_through_an_outage(
    oci_emulator: OciEmulator, access: OciAccess, tmp_path: Path, fault: dict[str, object]
) -> None:
    names = (oci_emulator.access.namespace, oci_emulator.access.bucket)
    oci_emulator.client("object_storage").put_object(*names, "patient/1.bin", b"data")
    oci_emulator.fault(path="/n/.*/b/.*/o.*", method="GET", times=5, **fault)
    item = Input(source=place(oci_emulator, "patient/"), target="data")
    fetch_inputs([item], tmp_path, access, StopSwitch(), patience=60.0)
    assert (tmp_path / "data/1.bin").read_bytes() == b"data"


REFUSED = [{"status": 401}, {"status": 403}, {"status": 404, "code": "BucketNotFound"}]


@pytest.mark.parametrize("fault", REFUSED, ids=str)
@pytest.mark.parametrize("times", [1, 2])
def test_a_refusal_may_be_wrong_and_is_asked_again(
    oci_emulator: OciEmulator, access: OciAccess, tmp_path: Path, fault: dict[str, object], times: int
) -> None:
    """Also while a checkpoint, the code and what earlier attempts used are read: `NodeContext.with_retries`."""
    names = (oci_emulator.access.namespace, oci_emulator.access.bucket)
    oci_emulator.client("object_storage").put_object(*names, "refused/1.bin", b"data")
    oci_emulator.fault(path="/n/.*/b/.*/o.*", method="GET", times=times, **fault)
    item = Input(source=place(oci_emulator, "refused/"), target="data")
    fetch_inputs([item], tmp_path, access, StopSwitch(), patience=60.0)
    assert (tmp_path / "data/1.bin").read_bytes() == b"data"
    oci_emulator.fault(path="/n/.*/b/.*/o.*", method="GET", times=times, **fault)
    checkpoints = Checkpoints(uri=place(oci_emulator, "none"))
    assert (
        with_retries(
            lambda: resume(checkpoints, Fetching(tmp_path, access, StopSwitch())), 60.0, threading.Event()
        )
        is None
    )


@pytest.mark.parametrize("seed", range(12))
def test_a_refusal_is_believed_after_a_minute_and_several_answers_whatever_else_comes_between(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(store_retries, "REFUSAL_LIMIT", 0.4)
    refused: list[float] = []

    def work() -> None:
        if dice.random() < 0.3:
            raise StoreUnavailable("down")
        refused.append(time.monotonic())
        raise cannot_be_fetched("x", BackendError("no", status_code=dice.choice([401, 403, 404])), "no")

    with pytest.raises(
        StoreRefused, match=r"x cannot be fetched: no; tried for .*a refusal is retried"
    ) as caught:
        with_retries(work, 60.0, threading.Event())
    assert caught.value.cause is Cause.DATA
    assert len(refused) >= 2
    assert refused[-1] - refused[0] >= 0.4


def _input(uri: str, folder: Path, access: OciAccess) -> None:
    fetch_inputs([Input(source=uri, target="data")], folder, access, StopSwitch(), patience=0.2)


def _resume(uri: str, folder: Path, access: OciAccess) -> None:
    resume(Checkpoints(uri=uri.rstrip("/")), Fetching(folder, access, StopSwitch()))


def _start(uri: str, folder: Path, access: OciAccess) -> None:
    start_from(Checkpoints(start_from=uri.rstrip("/")), Fetching(folder, access, StopSwitch()))


@pytest.mark.parametrize("stage", [_input, _resume, _start])
@pytest.mark.parametrize("fault", [*FAULTS, {"unreachable": True}], ids=str)
def test_an_outage_that_lasts_fails_with_a_cause_that_is_retried(
    oci_emulator: OciEmulator,
    access: OciAccess,
    tmp_path: Path,
    stage: Callable[[str, Path, OciAccess], None],
    fault: dict[str, object],
) -> None:
    if "unreachable" in fault:
        access = replace(access, endpoint="http://127.0.0.1:1")
    else:
        oci_emulator.fault(path="/n/.*/b/.*/o.*", times=1000, **fault)
    with pytest.raises(StoreUnavailable) as caught:
        stage(place(oci_emulator, "x/"), tmp_path, access)
    assert caught.value.cause is Cause.SERVICE


A_REPORT = NodeReport(rank=0, phase=Phase.STARTING, address="", started_at=0.0, heartbeat_at=0.0)


@pytest.mark.parametrize(
    "fault", [{"status": 503}, {"status": 404}, {"status": 401}, {"drop": "before"}], ids=str
)
def test_one_bad_answer_as_a_node_starts_ends_nothing(
    oci_emulator: OciEmulator, access: OciAccess, fault: dict[str, object]
) -> None:
    """A URI without a namespace needs an answer of the service before anything can be reported."""
    run_dir = f"oci://{oci_emulator.access.bucket}/runs/one"
    config = AgentConfig(run_name="one", nodes=1, run_dir=run_dir, program=Program(script="x.py"))
    oci_emulator.fault(path="/n/?", method="GET", times=2, **fault)
    heartbeat = open_heartbeat(config, access, A_REPORT, StopSwitch())
    heartbeat.write()
    assert heartbeat.store.exists("nodes/0.json")


def test_a_run_directory_that_is_none_is_named_at_once(access: OciAccess) -> None:
    config = AgentConfig(run_name="one", nodes=1, run_dir="oci:///x", program=Program(script="x.py"))
    with pytest.raises(AgentError, match=r"the run directory cannot be used: .*names no bucket") as caught:
        open_heartbeat(config, access, A_REPORT, StopSwitch())
    assert caught.value.cause is Cause.CONFIG


@pytest.mark.parametrize(
    "fault", [{"status": 503}, {"status": 404}, {"status": 401}, {"drop": "before"}], ids=str
)
def test_one_bad_answer_of_vault_costs_no_code(
    oci_emulator: OciEmulator, access: OciAccess, fault: dict[str, object]
) -> None:
    oci_emulator.fault(path="/20190301/secretbundles/.*", times=2, **fault)
    secret_id = oci_emulator.access.secret_id
    found = with_retries(lambda: read_secret(secret_id, access), 60.0, threading.Event())
    assert found == oci_emulator.access.secret_value


def test_a_secret_that_stays_refused_is_a_fault_of_the_configuration(
    access: OciAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_retries, "REFUSAL_LIMIT", 0.1)
    with pytest.raises(StoreRefused, match=r"secret-bundles\); tried for .* s \(a refusal") as caught:
        with_retries(lambda: read_secret("ocid1.vaultsecret.oc1.iad.absent", access), 60.0, threading.Event())
    assert caught.value.cause is Cause.CONFIG
