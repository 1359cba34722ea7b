"""Logs of pods that are read in parts, from a server that returns them as an API server does."""

from __future__ import annotations

import json
import logging
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from airflow_provider_ocidist.backends.base import LogPart
from airflow_provider_ocidist.backends.kubernetes import api as api_module
from airflow_provider_ocidist.backends.kubernetes import pod_logs
from airflow_provider_ocidist.backends.kubernetes.api import Api
from airflow_provider_ocidist.backends.kubernetes.options import ClusterFields
from airflow_provider_ocidist.backends.kubernetes.pod_logs import PodLog, Turns
from airflow_provider_ocidist.backends.runai import pod_logs as runai_logs
from airflow_provider_ocidist.backends.runai.options import Fields
from airflow_provider_ocidist.gangs.log_follower import LogFollower
from airflow_provider_ocidist.gangs.watch import Watch
from airflow_provider_ocidist.model.run import RunRecord, RunRef
from tests.training_jobs import a_key

SEED = int(os.environ.get("TEST_SEED", "20261124"))
START = 1_764_000_000
ODD = (
    "plain",
    "10%|# |\r50%|##|\r100%|###|",
    "a\u2028b\x85c\x0bd",
    "\u00e9\u4e2d\U0001f600",
    "",
    "  indented",
)


@dataclass
class Cluster:
    """A server with the log of each pod: lines with the time of each, to the nanosecond."""

    logs: dict[str, list[tuple[int, str, str]]] = field(default_factory=dict)
    """By pod: Unix time in nanoseconds, the stamp, the text."""
    asked: list[dict[str, str]] = field(default_factory=list)
    refusals: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    """Status and headers of the next answers."""
    kube_config: str = ""

    def answer(self, pod: str, query: dict[str, str]) -> bytes:
        self.asked.append(query)
        since = datetime.fromisoformat(query.get("sinceTime", "1970-01-01T00:00:00Z")).timestamp() * 10**9
        rows = [f"{stamp} {text}\n" for at, stamp, text in self.logs[pod] if at >= since]
        return "".join(rows).encode()[: int(query.get("limitBytes", 1 << 40))]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    found = Cluster()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers = found.refusals.pop(0) if found.refusals else (200, {})
            parts = urlsplit(self.path)
            query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
            body = found.answer(parts.path.split("/")[-2], query) if status == 200 else b"{}"
            self.send_response(status)
            for name, value in {**headers, "content-length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    place = {"server": f"http://127.0.0.1:{server.server_port}"}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "clusters": [{"name": "a", "cluster": place}],
        "users": [{"name": "a", "user": {"token": "t"}}],
    }
    found.kube_config = str(tmp_path / "kube-config")
    Path(found.kube_config).write_text(json.dumps(config))
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def a_log(draw: random.Random) -> list[tuple[int, str, str]]:
    """Return lines in bursts: some seconds hold more than a look reads, and some lines are as long."""
    found, at, number = [], START * 10**9, 0
    zone = timezone(timedelta(hours=draw.choice([0, 0, 2, -7])))
    for _ in range(draw.randint(3, 8)):
        at += draw.randrange(1, 40) * 10**8
        for _ in range(draw.choice([1, 3, 2000])):
            number += 1
            at += draw.choice([0, 1, 1000, 10**5])
            text = f"{number} {draw.choice(ODD)}" + "x" * draw.choice([0, 0, 80])
            text += "y" * (draw.randrange(70_000, 300_000) if draw.random() < 0.002 else 0)
            seconds, nanoseconds = divmod(at, 10**9)
            written = datetime.fromtimestamp(seconds, zone).isoformat()
            found.append((at, f"{written[:19]}.{nanoseconds:09}{written[19:].replace('+00:00', 'Z')}", text))
    return found


def a_ref(nodes: int) -> RunRef:
    runs = tuple(f"pod-{rank}" for rank in range(nodes))
    return RunRef(
        backend="runai", key=a_key(), nodes=nodes, job_id="id", run_ids=runs, run_dir="/x", submitted_at=START
    )


@pytest.mark.parametrize("number", range(8))
def test_whatever_pods_write_each_line_arrives_once_and_whole(cluster: Cluster, number: int) -> None:
    print(f"seed {SEED}.{number}")
    draw = random.Random(f"{SEED}.{number}")
    ref = a_ref(draw.randint(1, 3))
    cluster.logs = {pod: a_log(draw) for pod in ref.run_ids}
    api = runai_logs.api_of(Fields(kube_config_path=cluster.kube_config))
    assert api is not None
    follower, seen, looks, now = LogFollower([0.0] * ref.nodes), [], 0, START + 60.0
    while looks == 0 or follower.is_behind:
        (part,) = runai_logs.read(api, [(ref, "training", follower.since(now))], 1000, Turns())
        seen += follower.take(part.lines, now, part.unread_from)
        looks, now = looks + 1, now + 1
        assert looks < 200, "it gets no further"
    for rank, pod in enumerate(ref.run_ids):
        assert [line.text for line in seen if line.rank == rank] == [text for _, _, text in cluster.logs[pod]]
    written = {at // 1000 for log in cluster.logs.values() for at, _, _ in log}
    assert {round(line.time * 10**6) for line in seen} <= {at + near for at in written for near in (-1, 0, 1)}


def test_a_later_look_reads_what_is_new_and_not_the_whole_log(cluster: Cluster) -> None:
    cluster.logs = {"pod-0": [(at * 10**9, _stamp(at), "x" * 50) for at in range(START, START + 5000)]}
    api = runai_logs.api_of(Fields(kube_config_path=cluster.kube_config))
    assert api is not None
    (part,) = runai_logs.read(api, [(a_ref(1), "training", [START + 4990.0])], 1000, Turns())
    assert len(part.lines) == 10
    assert cluster.asked[-1]["sinceTime"] == _stamp(START + 4990)


def test_a_second_with_more_than_can_be_held_is_left_and_the_next_is_read(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pod_logs, "MOST_BYTES", 200_000)
    cluster.logs = {
        "p": [(START * 10**9, _stamp(START), "x" * 300_000), ((START + 1) * 10**9, _stamp(START + 1), "y")]
    }
    api = Api(ClusterFields(kube_config_path=cluster.kube_config))
    since, seen = 0.0, []
    for _ in range(3):
        found = pod_logs.read(api, PodLog(namespace="n", pod="p", rank=0, since=since), 65_536)
        seen += [line.text for line in found.lines]
        if found.unread_from is None:
            break
        since = found.unread_from
    assert found.unread_from is None
    assert seen == ["y"]
    assert "has written more than" in caplog.text


class OneBurst:
    """A backend whose only log is one of these pods."""

    connections = None

    def __init__(self, api: Api, ref: RunRef) -> None:
        self.api, self.ref = api, ref

    def logs_of(self, wanted: list[tuple[RunRef, list[float]]], most: int = 1000) -> list[LogPart]:
        gangs = [(ref, "training", since) for ref, since in wanted]
        return runai_logs.read(self.api, gangs, most, Turns())


def test_the_end_of_a_task_does_not_wait_for_ever_for_a_burst(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("airflow_provider_ocidist.gangs.last_lines.LAST_LINES_AFTER", 0.01)
    caplog.set_level(logging.INFO)
    ref = RunRef.from_json({**a_ref(1).to_json(), "has_own_log": True})
    cluster.logs = {
        "pod-0": [(START * 10**9 + number, _stamp(START), f"{number} {'x' * 200}") for number in range(3000)]
    }
    api = runai_logs.api_of(Fields(kube_config_path=cluster.kube_config))
    assert api is not None
    watch = Watch(OneBurst(api, ref), RunRecord(ref=ref, logs_since=(0.0,)), logging.getLogger("burst"))
    ending = threading.Thread(target=watch.write_the_rest, daemon=True)
    ending.start()
    ending.join(60)
    assert not ending.is_alive()
    assert sum(record.name == "burst" for record in caplog.records) == 3000


class OneLost:
    """A backend that cannot read the log of one node, whose machine is lost."""

    connections = None

    def logs_of(self, wanted: list[tuple[RunRef, list[float]]]) -> list[LogPart]:
        return [LogPart(unread_from={1: 5.0}) for _ in wanted]


def test_the_end_of_a_task_does_not_wait_for_ever_for_a_machine_that_is_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("airflow_provider_ocidist.gangs.last_lines.LAST_LINES_AFTER", 0.01)
    monkeypatch.setattr("airflow_provider_ocidist.gangs.last_lines.LAST_LINES_PATIENCE", 0.05)
    ref = RunRef.from_json({**a_ref(2).to_json(), "has_own_log": True})
    watch = Watch(OneLost(), RunRecord(ref=ref, logs_since=(0.0, 0.0)), logging.getLogger("lost"))
    ending = threading.Thread(target=watch.write_the_rest, daemon=True)
    ending.start()
    ending.join(60)
    assert not ending.is_alive()
    assert "the last lines of some nodes cannot be read" in caplog.text


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_of_many_pods_so_many_are_read_as_time_allows_and_each_has_its_turn() -> None:
    clock, pods = Clock(), [f"pod-{number}" for number in range(2000)]
    turns, read = Turns(clock), Counter[Any]()
    looks = 0
    while set(read) != set(pods):
        turn = turns.of(pods, gangs=1000)
        assert len(turn) <= pod_logs.MOST_AT_ONCE
        read.update(turn)
        clock.now += 10
        looks += 1
    assert set(read.values()) == {1}
    assert looks == len(pods) / (10 * pod_logs.READS_PER_S)


def test_all_pods_of_one_gang_and_few_pods_of_several_are_read_at_every_look() -> None:
    turns, many = Turns(Clock()), [f"pod-{number}" for number in range(500)]
    for _ in range(3):
        assert turns.of(many, gangs=1) == set(many)
        assert turns.of(many[: pod_logs.FEW_PODS], gangs=5) == set(many[: pod_logs.FEW_PODS])


def test_lines_of_pods_whose_turn_comes_later_arrive_once_and_whole(cluster: Cluster) -> None:
    count, lines = 80, [(START * 10**9 + number, _stamp(START), f"line {number}") for number in range(3)]
    refs = [replace(a_ref(1), job_id=f"{number}", run_ids=(f"pod-{number}",)) for number in range(count)]
    cluster.logs = {ref.run_ids[0]: lines for ref in refs}
    api = runai_logs.api_of(Fields(kube_config_path=cluster.kube_config))
    assert api is not None
    clock = Clock()
    turns, followers = Turns(clock), [LogFollower([0.0]) for _ in refs]
    turns.of(range(200), gangs=2)  # what was saved is spent
    seen: list[list[str]] = [[] for _ in refs]
    for look in range(9):
        clock.now += 1
        now = START + 60.0 + look
        gangs = [(ref, "training", each.since(now)) for ref, each in zip(refs, followers, strict=True)]
        asked = len(cluster.asked)
        parts = runai_logs.read(api, gangs, 1000, turns)
        assert len(cluster.asked) - asked == pod_logs.READS_PER_S
        for texts, follower, part in zip(seen, followers, parts, strict=True):
            texts += [line.text for line in follower.take(part.lines, now, part.unread_from)]
    assert seen == [[text for _, _, text in lines]] * count


def test_an_answer_that_asks_for_hours_of_patience_is_asked_again_soon(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_module, "LONGEST_PAUSE", 0.1)
    far = datetime.now(timezone.utc) + timedelta(days=1)
    asks = ("86400", far.strftime("%a, %d %b %Y %H:%M:%S GMT"))
    cluster.refusals = [(status, {"retry-after": ask}) for status, ask in zip((429, 503), asks, strict=True)]
    cluster.logs = {"p": [(START * 10**9, _stamp(START), "line")]}
    api = Api(ClusterFields(kube_config_path=cluster.kube_config))
    found: list[bytes] = []
    path = "/api/v1/namespaces/n/pods/p/log"
    asking = threading.Thread(target=lambda: found.append(api.text(path)), daemon=True)
    asking.start()
    asking.join(30)
    assert found == [f"{_stamp(START)} line\n".encode()]


def _stamp(at: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
