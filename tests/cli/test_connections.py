"""The connections of a command: the one it names, and those at which gangs of the same task are."""

from __future__ import annotations

import argparse
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_ocidist.backends.connections import beside
from airflow_provider_ocidist.cli import watch
from airflow_provider_ocidist.cli.connection import backend_of, reconnect
from airflow_provider_ocidist.gangs.candidates import Candidates
from airflow_provider_ocidist.job_file import parsing
from airflow_provider_ocidist.model.run import RunRecord, RunRef
from tests.training_jobs import BACKEND, a_key

OCI = {"compartment_id": "own", "project_id": "own", "region": "us-ashburn-1"}
PLACES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "oci_data_science": ("oci", OCI, {**OCI, "compartment_id": "other", "region": "eu-frankfurt-1"}),
    "pytorchjob": ("kubernetes", {"namespace": "own"}, {"namespace": "other"}),
    "trainjob": ("kubernetes", {"namespace": "own"}, {"namespace": "other"}),
}
"""Type of connection, and the fields of two, by the kind of backend."""


class Stop(Exception):
    """The test has seen enough."""


@dataclass
class Cluster:
    """An API server that refuses each request."""

    kubeconfig: Path
    asked: list[str] = field(default_factory=list)


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    class Refuses(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._refuse()

        def do_POST(self) -> None:
            self._refuse()

        def _refuse(self) -> None:
            found.asked.append(self.path)
            self.send_response(401)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Refuses) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        folder.mkdir()
        place = {"server": f"http://127.0.0.1:{server.server_port}"}
        config = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": place}],
            "users": [{"name": "u", "user": {"token": "old"}}],
        }
        (folder / "config").write_text(yaml.safe_dump(config))
        found = Cluster(folder / "config")
        yield found
        server.shutdown()


def define(monkeypatch: pytest.MonkeyPatch, name: str, conn_type: str, extra: dict[str, Any]) -> None:
    monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps({"conn_type": conn_type, "extra": extra}))


def a_job(kind: str) -> Any:
    section = BACKEND if kind == "oci_data_science" else {"kind": kind}
    program = {"script": "train.py", "source": "oci://b@n/code.zip"}
    job = {"name": "j", "nodes": 2, "image": "x", "program": program}
    return parsing.build({**job, "backend": {**section, "candidates": [{"conn_id": "other"}]}})


@pytest.mark.parametrize("kind", PLACES)
def test_a_connection_that_is_read_again_leads_to_the_same_place(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    conn_type, own, other = PLACES[kind]
    own = {**own, "work_dir": "oci://b@n/work", "region": "us-ashburn-1"}
    define(monkeypatch, "HOME", conn_type, own)
    define(monkeypatch, "OTHER", conn_type, other)
    options = argparse.Namespace(conn_id="home", field=[])
    first = backend_of(options, kind)
    for conn_id, choice in ((None, 0), ("other", 1)):
        backend, job, key = beside(first, conn_id), a_job(kind).at_choice(choice), a_key()
        before = backend.plan(job, key)
        reconnect(options, backend)
        after = backend.plan(job, key)
        assert (backend.conn_id, after.conn_id) == (conn_id, conn_id)
        assert (after.compartment_id, after.region) == (before.compartment_id, before.region)
        assert [dict(each.body) for each in after.requests] == [dict(each.body) for each in before.requests]


def test_a_command_keeps_its_own_defaults_when_it_reads_its_connection_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    define(monkeypatch, "HOME", "oci", OCI)
    options = argparse.Namespace(conn_id="home", field=[])
    backend: Any = backend_of(options, "oci_data_science", max_attempts=3)
    assert backend.access.max_attempts == 3
    reconnect(options, backend, max_attempts=3)
    assert backend.access.max_attempts == 3


def test_a_gang_at_another_connection_is_watched_there_after_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster(tmp_path / "own") as own, cluster(tmp_path / "other") as other:
        work_dir = str(tmp_path / "work")
        for name, each in (("HOME", own), ("OTHER", other)):
            place = {"namespace": "ns", "kube_config_path": str(each.kubeconfig), "work_dir": work_dir}
            define(monkeypatch, name, "kubernetes", place)
        options = argparse.Namespace(
            conn_id="home", field=[], json=False, interval=0.0, target="info.yaml", backend="pytorchjob"
        )
        first, job = backend_of(options, "pytorchjob"), a_job("pytorchjob")
        plan = Candidates(first, job, _Log()).plan(a_key(), 1)
        ref = RunRef.of(plan, "ns/gang", ("a", "b"))
        looks: list[int] = []

        def sleep(_: float) -> None:
            looks.append(len(other.asked))
            if len(looks) == 3:
                raise Stop

        monkeypatch.setattr(watch.time, "sleep", sleep)
        with pytest.raises(Stop):
            watch.to_the_end(
                options, beside(first, ref.conn_id), RunRecord.of(ref, job, plan.expects), may_end_it=False
            )
        assert own.asked == []
        assert 0 < looks[0] < looks[1] < looks[2]


class _Log:
    def info(self, *_: Any) -> None:
        pass

    warning = info
