"""Airflow's metrics of a training: what it has used and costs, from whichever process waits for it."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, Stats

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.gangs import spending_log
from airflow_provider_ocidist.model.run import NodeState, RunRecord, RunRef
from airflow_provider_ocidist.operators import DistributedTrainingOperator
from airflow_provider_ocidist.triggers import DistributedTrainingTrigger
from tests.killed_tasks import WAITING
from tests.training_jobs import a_job, a_key, wait_until

TAGS = {name: WAITING[name] for name in ("dag_id", "task_id")}
Gauges = list[tuple[str, float, Any]]


@pytest.fixture
def gauges(monkeypatch: pytest.MonkeyPatch) -> Gauges:
    """Record the gauges that are set: without a metrics backend Airflow sends them nowhere."""
    noted: Gauges = []

    def gauge(stat: str, value: float, *_: Any, tags: Any = None, **__: Any) -> None:
        noted.append((stat, value, tags))

    monkeypatch.setattr(Stats, "gauge", gauge)
    return noted


class Statsd:
    """A server of metrics: a socket that Airflow's own code sends to."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.settimeout(60)
        self._set_up: list[Any] = []

    def set_up(self, stats: Any) -> None:
        """Let these metrics be sent here, as `[metrics] statsd_on` does; the package statsd is not installed."""
        from airflow.sdk._shared.observability.metrics import statsd_logger

        host, port = self.socket.getsockname()
        options = {"influxdb_tags_enabled": True, "statsd_influxdb_enabled": True}
        stats.initialize(
            factory=lambda: statsd_logger.get_statsd_logger(
                stats_class=Datagrams, host=host, port=port, prefix="airflow", **options
            ),
            export_legacy_names=True,
        )
        self._set_up.append(stats)

    def next_gauges(self) -> Gauges:
        """Return hours and cost as they arrive next."""
        found = [self.socket.recv(1000).decode() for _ in range(2)]
        return [_gauge_in(text) for text in found]

    def close(self) -> None:
        from airflow.sdk._shared.observability.metrics.base_stats_logger import NoStatsLogger

        for stats in self._set_up:
            stats.initialize(factory=NoStatsLogger, export_legacy_names=True)
        self.socket.close()


class Datagrams:
    """The part of statsd's client that gauges need."""

    def __init__(self, host: str, port: int, prefix: str, ipv6: bool) -> None:
        self.server, self.prefix = (host, port), prefix

    def gauge(self, stat: str, value: float, rate: float = 1, delta: bool = False) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(f"{self.prefix}.{stat}:{value}|g".encode(), self.server)


def _gauge_in(text: str) -> tuple[str, float, Any]:
    match = re.fullmatch(r"airflow\.([\w.]+),(.*):([\d.e-]+)\|g", text)
    assert match, text
    return match[1], float(match[3]), dict(tag.split("=") for tag in match[2].split(","))


@pytest.fixture
def statsd() -> Iterator[Statsd]:
    server = Statsd()
    yield server
    server.close()


@pytest.fixture
def record(backend: OciDataScience, ends: Callable[[RunRef], RunRef]) -> RunRecord:
    """Return the record of a gang whose node runs, for 7200 an hour: two a second."""
    job = a_job(nodes=1, seconds=60)
    plan = backend.plan(job, a_key())
    ref = ends(backend.submit(plan))
    wait_until(backend, ref, lambda status: status.nodes[0].state is NodeState.RUNNING)
    return RunRecord.of(replace(ref, price=7200.0), job, plan.expects)


def require_both(gauges: Gauges) -> None:
    """Raise AssertionError unless the gauges are those of one look: hours, and what they cost."""
    (hours, cost) = gauges[-2:]
    assert (hours[0], cost[0]) == ("ocidist.node_hours", "ocidist.cost")
    assert hours[2] == cost[2] == TAGS
    assert cost[1] > 0
    assert cost[1] == pytest.approx(hours[1] * 7200, abs=1.0), "hours are rounded"


def test_a_task_that_waits_on_a_worker_sets_them(
    backend: OciDataScience, conn_id: str, record: RunRecord, gauges: Gauges
) -> None:
    wait_on_a_worker(backend, conn_id, record)
    require_both(gauges)


OF_THEIR_OWN = pytest.mark.since_airflow("3.3", "a task and a triggerer have metrics of their own")


@OF_THEIR_OWN
def test_what_a_task_sets_arrives_at_the_server_that_airflow_sends_its_metrics_to(
    backend: OciDataScience, conn_id: str, record: RunRecord, statsd: Statsd
) -> None:
    from airflow.sdk.execution_time import task_runner

    statsd.set_up(task_runner.stats)
    wait_on_a_worker(backend, conn_id, record)
    require_both(statsd.next_gauges())


def wait_on_a_worker(backend: OciDataScience, conn_id: str, record: RunRecord) -> None:
    """Wait for a gang, which is ended, as a task does on a worker."""
    backend.cancel(record.ref)
    wait_until(backend, record.ref, lambda status: status.ended)
    task = DistributedTrainingOperator(task_id="train", job="unused.yaml", conn_id=conn_id, deferrable=False)
    ti = SimpleNamespace(**WAITING, xcom_push=lambda **_: None, try_number=1)
    context: Any = {"ti": ti}
    with pytest.raises(AirflowFailException):
        task.resume(context, record.to_json())


def test_a_trigger_sets_them_while_the_training_goes_on(
    conn_id: str, record: RunRecord, gauges: Gauges, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spending_log, "SPENDING_EVERY", 0.0)
    watch_until(conn_id, record, lambda: bool(gauges))
    require_both(gauges)


@OF_THEIR_OWN
def test_what_a_trigger_sets_arrives_at_the_server_that_airflow_sends_its_metrics_to(
    conn_id: str, record: RunRecord, statsd: Statsd, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.jobs import triggerer_job_runner

    monkeypatch.setattr(spending_log, "SPENDING_EVERY", 0.0)
    statsd.set_up(triggerer_job_runner.stats)
    arrived: Gauges = []
    statsd.socket.setblocking(False)

    def has_arrived() -> bool:
        try:
            arrived.append(_gauge_in(statsd.socket.recv(1000).decode()))
        except BlockingIOError:
            return False
        return len(arrived) >= 2

    watch_until(conn_id, record, has_arrived)
    require_both(arrived)


def watch_until(conn_id: str, record: RunRecord, condition: Callable[[], bool]) -> None:
    """Watch a gang as a triggerer does, until the condition is true."""
    owner = {name: WAITING[name] for name in ("dag_id", "run_id", "task_id", "map_index")}
    trigger = DistributedTrainingTrigger(conn_id, record.to_json(), {**owner, "try_number": 1}, 0.1)

    async def watched() -> None:
        events = trigger.run()
        waiting = asyncio.ensure_future(anext(events))
        while not condition():
            await asyncio.sleep(0.02)
            assert not waiting.done()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(asyncio.wait_for(watched(), 60))
