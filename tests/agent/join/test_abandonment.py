"""A node that does not train stays as long as its run may need it, and no longer."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from airflow_provider_ocidist.agent.join import lease
from airflow_provider_ocidist.agent.join.abandonment import Abandonment
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.job import Limits, Program
from airflow_provider_ocidist.model.report import Restart, StopRequest
from airflow_provider_ocidist.model.work_dir import LEASE_FILE, STOP_FILE
from airflow_provider_ocidist.oci_client.credentials import OciAccess

LEASE = 600.0
NOBODY = "nobody has waited for this run for 10m (limits.lease)"
END = StopRequest(cause=Cause.CANCELED, message="enough")
AGAIN = replace(END, restarts=(Restart(cause=Cause.NODE, message="gone", rank=1),))


class Run:
    """The run directory of a node, and the clock of its machine."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, limit: float | None = LEASE) -> None:
        self.folder, self.now = folder, 0.0
        # The only clock that counts: all others show a time that never moves.
        monkeypatch.setattr(lease, "time", SimpleNamespace(monotonic=lambda: 0.0))
        config = AgentConfig(
            limits=Limits(lease=limit),
            run_name="run",
            nodes=2,
            run_dir=str(folder),
            program=Program(script="t.py"),
        )
        self.abandonment = Abandonment(config, {})
        if self.abandonment._lease:
            self.abandonment._lease._clock = lambda: self.now

    def has(self, name: str, content: bytes) -> None:
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_bytes(content)

    def looks_for(self, seconds: float) -> list[str | None]:
        """Let time pass, with a look in each twelfth of a lease; return what each has found."""
        found = []
        for _ in range(round(seconds * lease.LOOKS / LEASE)):
            self.now += LEASE / lease.LOOKS
            found.append(self.abandonment.why())
        return found


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(tmp_path / "run", monkeypatch)


def test_it_stays_while_somebody_renews_the_lease_and_ends_once_nobody_has_for_as_long(run: Run) -> None:
    for number in range(5):
        run.has(LEASE_FILE, str(number).encode())
        assert set(run.looks_for(0.9 * LEASE)) == {None}
    found = run.looks_for(2 * LEASE)
    assert (found[0], found[-1]) == (None, NOBODY)
    assert run.abandonment.lease_expired() == run.abandonment.why() == NOBODY


def test_without_a_first_renewal_or_without_a_lease_it_stays(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(run.looks_for(3 * LEASE)) == {None}
    free = Run(tmp_path / "free", monkeypatch, None)
    free.has(LEASE_FILE, b"1")
    assert set(free.looks_for(3 * LEASE)) == {None}
    assert free.abandonment.lease_expired() is None


def test_it_ends_with_the_run_and_not_with_a_launch(run: Run) -> None:
    run.has(STOP_FILE, AGAIN.to_json())
    assert run.abandonment.why() is None
    run.has(STOP_FILE, END.to_json())
    assert run.abandonment.why() == "the submitter ended the run (CANCELED): enough"
    assert run.abandonment.lease_expired() is None, "that is another question"


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff", json.dumps({"cause": "odd"}).encode()], ids=repr)
def test_a_request_that_is_damaged_ends_nothing_yet(
    run: Run, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    run.has(STOP_FILE, content)
    with caplog.at_level(logging.DEBUG, "ocidist"):
        assert run.abandonment.why() is None
    (message,) = caplog.messages
    assert message.startswith("stop request not readable: ")
    assert len(message) > len("stop request not readable: None")


def test_a_store_that_does_not_answer_costs_no_time_of_the_lease(run: Run) -> None:
    run.has(LEASE_FILE, b"1")
    assert run.looks_for(0.5 * LEASE)[-1] is None
    for name in (LEASE_FILE, STOP_FILE):
        (run.folder / name).unlink(missing_ok=True)
        (run.folder / name).mkdir()
    assert set(run.looks_for(5 * LEASE)) == {None}
    (run.folder / LEASE_FILE).rmdir()
    run.has(LEASE_FILE, b"1")
    # It has to be read twice before time counts again.
    assert set(run.looks_for(0.4 * LEASE)) == {None}
    assert run.looks_for(0.3 * LEASE)[-1] == NOBODY


def test_the_store_is_read_with_the_nodes_own_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[dict[str, str], str, str]] = []

    def access(environ: dict[str, str], endpoint: str, region: str) -> None:
        seen.append((environ, endpoint, region))

    monkeypatch.setattr(OciAccess, "from_environment", access)
    config = AgentConfig(
        limits=Limits(lease=LEASE),
        run_name="run",
        nodes=2,
        run_dir=str(tmp_path),
        program=Program(script="t.py"),
        oci_endpoint="http://loopback",
        oci_region="eu-frankfurt-1",
    )
    assert Abandonment(config, {"OCI_IAM_TYPE": "own"}).why() is None
    assert seen == [({"OCI_IAM_TYPE": "own"}, "http://loopback", "eu-frankfurt-1")] * 2
