"""What real API servers, proxies and exec plugins do at times, and no stand-in: from a server that a test scripts."""

from __future__ import annotations

import contextlib
import json
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.backends.kubernetes import pod_logs
from airflow_provider_ocidist.backends.kubernetes.api import Api
from airflow_provider_ocidist.backends.kubernetes.gang_objects import GangObjects
from airflow_provider_ocidist.backends.kubernetes.kept_list import KeptList
from airflow_provider_ocidist.backends.kubernetes.options import ClusterFields
from airflow_provider_ocidist.backends.kubernetes.pod_logs import PodLines, PodLog, Turns
from airflow_provider_ocidist.backends.pytorchjob import PyTorchJob
from airflow_provider_ocidist.errors import BackendError, Cause
from airflow_provider_ocidist.model.run import RunRef
from tests.training_jobs import a_job, a_key

PATH = "/api/v1/namespaces/n/pods"
Answer = tuple[int, bytes]
PLUGIN = """\
#!/bin/sh
echo x >> {calls}
number=$(wc -l < {calls})
kind='"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"'
printf '{{%s, "status": {{"token": "t%s"}}}}' "$kind" $number
"""


@dataclass(frozen=True)
class Asked:
    """A request."""

    method: str
    path: str
    """With the query."""
    authorization: str | None


@dataclass
class Server:
    """Answers what a test says, in turn or by the request."""

    folder: Path
    port: int = 0
    answers: list[Answer] = field(default_factory=list)
    by_request: Callable[[Asked], Answer] | None = None
    asked: list[Asked] = field(default_factory=list)

    def answer(self, asked: Asked) -> Answer:
        self.asked.append(asked)
        return self.by_request(asked) if self.by_request else self.answers.pop(0)

    def api(self, *, urgent: bool = False, **user: Any) -> Api:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "a",
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
            "clusters": [{"name": "a", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "users": [{"name": "a", "user": user or {"token": "t"}}],
        }
        file = self.folder / "kube-config"
        file.write_text(json.dumps(config))
        return Api(ClusterFields(kube_config_path=str(file)), urgent=urgent)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    found = Server(tmp_path)

    class Handler(BaseHTTPRequestHandler):
        def respond(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            asked = Asked(self.command, self.path, self.headers.get("authorization"))
            status, body = found.answer(asked)
            self.send_response(status)
            if status == 429:
                self.send_header("retry-after", "0")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = respond  # noqa: N815 - the names that http.server calls

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.port = http.server_port
    thread = threading.Thread(target=http.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield found
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


def page(version: int, *names: str, more: str = "") -> Answer:
    metadata = {"resourceVersion": str(version), **({"continue": more} if more else {})}
    return 200, json.dumps({"metadata": metadata, "items": [obj(name, version) for name in names]}).encode()


def obj(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}}


def change(kind: str, about: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": about}).encode() + b"\n"


def status(code: int, reason: str) -> bytes:
    return json.dumps({"kind": "Status", "code": code, "reason": reason, "message": "m"}).encode()


def test_a_jump_of_this_machines_clock_is_none_of_the_api_servers(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answers = [page(1)]
    api, at = server.api(), time.time()
    monkeypatch.setattr(time, "time", lambda: at + 3600.0)
    assert api.now() == at + 3600.0, "before the first answer there is no other clock"
    monkeypatch.undo()
    assert [*api.list(PATH)] == []
    monkeypatch.setattr(time, "time", lambda: at + 3600.0)
    assert abs(api.now() - at) < 600.0


def kept(api: Api) -> KeptList[str]:
    return KeptList(api, PATH, lambda found: str(found["metadata"]["name"]), clock=lambda: 0.0)


@pytest.mark.parametrize(
    "read", [lambda api: kept(api).now(), lambda api: [found["metadata"]["name"] for found in api.list(PATH)]]
)
def test_a_list_that_expires_between_two_pages_is_read_again_in_one_piece(server: Server, read: Any) -> None:
    server.answers = [page(1, "gone", more="x"), (410, status(410, "Expired")), page(3, "a", "b")]
    assert read(server.api()) == ["a", "b"]
    assert ["limit=" in each.path for each in server.asked] == [True, True, False]


def test_after_a_list_in_one_piece_changes_are_followed_from_its_own_version(server: Server) -> None:
    found = kept(server.api())
    server.answers = [page(1, "gone", more="x"), (410, status(410, "Expired")), page(3, "a"), (200, b"")]
    found.now()
    assert found.now() == ["a"]
    assert "resourceVersion=3" in server.asked[-1].path


@pytest.mark.parametrize("code, reason", [(500, "InternalError"), (410, "Expired"), (504, "Timeout")])
def test_a_watch_that_ends_with_an_error_is_followed_by_a_list(
    server: Server, code: int, reason: str
) -> None:
    found = kept(server.api())
    end = change("ERROR", json.loads(status(code, reason)))
    server.answers = [page(1, "a"), (200, change("ADDED", obj("b", 2)) + end), page(3, "c")]
    assert found.now() == ["a"]
    assert found.now() == ["c"]


def test_a_watch_that_is_cut_amid_a_change_goes_on_from_the_last_whole_one(server: Server) -> None:
    found = kept(server.api())
    half = change("ADDED", obj("c", 3))[:30]
    server.answers = [page(1, "a"), (200, change("ADDED", obj("b", 2)) + half), (200, b"")]
    found.now()
    with pytest.raises(BackendError, match="cut off") as caught:
        found.now()
    assert caught.value.retryable
    assert found.now() == ["a", "b"]
    assert "resourceVersion=2" in server.asked[-1].path


@pytest.mark.parametrize("body", [b"<html>Sign in</html>", b"[1]", b'"text"'])
def test_what_a_proxy_answers_in_the_servers_place_is_an_outage(server: Server, body: bytes) -> None:
    server.answers = [(200, body)]
    with pytest.raises(BackendError, match="a proxy may stand between") as caught:
        server.api().get(PATH)
    assert caught.value.retryable


def test_what_a_server_is_too_busy_to_begin_is_sent_again_whatever_it_is(server: Server) -> None:
    server.answers = [(429, status(429, "TooManyRequests")), (201, b"{}")]
    assert server.api().create(PATH, {}) == {}
    server.answers = [(429, status(429, "TooManyRequests"))]
    with pytest.raises(BackendError) as caught:
        server.api(urgent=True).create(PATH, {})
    assert caught.value.retryable


def test_what_may_have_been_taken_is_not_sent_again(server: Server) -> None:
    server.answers = [(503, status(503, "ServiceUnavailable"))]
    with pytest.raises(BackendError) as caught:
        server.api().create(PATH, {})
    assert caught.value.retryable
    assert len(server.asked) == 1


@contextlib.contextmanager
def taking_no_connection() -> Iterator[int]:
    """Yield a port at which the kernel drops what asks for a connection, as a firewall or a dead machine does."""
    with contextlib.ExitStack() as opened:
        listening = opened.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(4):
            waiting = opened.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
        yield listening.getsockname()[1]


def test_a_killed_task_has_the_time_to_look_and_to_delete_though_no_connection_comes_about(
    server: Server,
) -> None:
    with taking_no_connection() as server.port:
        api = server.api(urgent=True)
        api.ready()
        began = time.monotonic()
        for ask in (api.get, lambda path: api.delete(path, {})):
            with pytest.raises(BackendError) as caught:
                ask(PATH)
            assert caught.value.retryable
        assert time.monotonic() - began < 5.0, "it is killed then"


CREATED = ("configmaps", "pytorchjobs", "secrets")


def made(server: Server, plural: str, refusal: Answer) -> None:
    """Create a gang and all beside it, of which one create is refused, and no object can be read."""

    def answer(asked: Asked) -> Answer:
        if "/openapi/" in asked.path:
            return 200, b"{}"
        if asked.method == "GET":
            return 404, status(404, "NotFound")
        return refusal if f"/{plural}?" in asked.path else (201, json.dumps(obj("o", 1)).encode())

    server.by_request = answer
    job = a_job(
        backend={"kind": "pytorchjob"}, work_dir="oci://b@n/w", image="i", env={"API_KEY": "sk-1f0c77aa9b"}
    )
    plan = PyTorchJob.connect({"namespace": "n"}).plan(job, a_key())
    objects = GangObjects(server.api(), PyTorchJob.operator)
    objects.create_secrets(plan, objects.create(plan))


@pytest.mark.parametrize("plural", CREATED)
def test_what_has_a_name_and_is_gone_a_moment_later_is_no_fault_of_the_job(
    server: Server, plural: str
) -> None:
    with pytest.raises(BackendError, match="gone by now") as caught:
        made(server, plural, (409, status(409, "AlreadyExists")))
    assert (caught.value.retryable, caught.value.cause) == (True, Cause.SERVICE)


@pytest.mark.parametrize("plural", CREATED)
def test_a_webhook_that_refuses_with_the_status_of_a_name_that_is_taken_is_named(
    server: Server, plural: str
) -> None:
    said = 'admission webhook "owners.example.com" denied the request: no owner'
    with pytest.raises(BackendError, match="no owner") as caught:
        made(server, plural, (409, status(409, "").replace(b'"m"', json.dumps(said).encode())))
    assert (caught.value.retryable, caught.value.cause) == (False, Cause.CONFIG)


@pytest.mark.parametrize("reason, asked", [("Conflict", 4), ("AlreadyExists", 1)])
def test_a_create_that_meets_another_one_at_a_quota_is_sent_again_and_no_other(
    server: Server, reason: str, asked: int
) -> None:
    server.by_request = lambda _: (409, status(409, reason))
    with pytest.raises(BackendError) as caught:
        server.api().create(PATH, {})
    assert (caught.value.code, len(server.asked)) == (reason, asked)


def plugged(plugin: Path) -> dict[str, str]:
    """Return how a kubeconfig names a plugin."""
    return {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": str(plugin),
        "interactiveMode": "Never",
    }


def test_a_token_of_an_exec_plugin_that_has_expired_is_asked_for_anew(server: Server, tmp_path: Path) -> None:
    plugin = tmp_path / "plugin"
    plugin.write_text(PLUGIN.format(calls=tmp_path / "calls"))
    plugin.chmod(stat.S_IRWXU)
    good = ["Bearer t1"]
    server.by_request = lambda asked: (
        (200, b"{}") if asked.authorization in good else (401, status(401, "Unauthorized"))
    )
    api = server.api(exec=plugged(plugin))
    assert api.get(PATH) == {}
    good[:] = ["Bearer t2"]
    assert api.get(PATH) == {}
    assert api.get(PATH) == {}
    assert [each.authorization for each in server.asked] == [
        "Bearer t1",
        "Bearer t1",
        "Bearer t2",
        "Bearer t2",
    ]


def test_an_exec_plugin_that_fails_once_leaves_no_client_without_credentials(
    server: Server, tmp_path: Path
) -> None:
    plugin = tmp_path / "plugin"
    broken = f"[ -e {tmp_path / 'failed'} ] || {{ touch {tmp_path / 'failed'}; exit 1; }}\n"
    begin, _, rest = PLUGIN.format(calls=tmp_path / "calls").partition("\n")
    plugin.write_text(f"{begin}\n{broken}{rest}")
    plugin.chmod(stat.S_IRWXU)
    said = 'pods is forbidden: User "system:anonymous" cannot list resource "pods"'
    forbidden = json.dumps({**json.loads(status(403, "Forbidden")), "message": said}).encode()
    server.by_request = lambda asked: (200, b"{}") if asked.authorization else (403, forbidden)
    assert server.api(exec=plugged(plugin)).get(PATH) == {}
    assert [each.authorization for each in server.asked] == [None, "Bearer t1"]
    plugin.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(BackendError, match="exec plugin works here"):
        server.api(exec=plugged(plugin)).get(PATH)


def test_a_machine_that_is_lost_takes_only_the_logs_of_its_own_pods_along(server: Server) -> None:
    line = b"2026-11-26T00:00:00.000000000Z one\n"
    server.by_request = lambda asked: (
        (200, line) if "pod-0" in asked.path else (500, status(500, "InternalError"))
    )
    api = server.api()

    def read_node(ref: RunRef, rank: int, since: float, limit: int) -> PodLines:
        wanted = PodLog(namespace="n", pod=ref.run_ids[rank], rank=rank, since=since)
        return pod_logs.read(api, wanted, limit)

    ref = RunRef(
        backend="pytorchjob",
        key=a_key(),
        nodes=2,
        job_id="id",
        run_ids=("pod-0", "pod-1"),
        run_dir="/x",
        submitted_at=0,
    )
    (part,) = pod_logs.in_turn([(ref, [5.0, 7.0])], read_node, Turns(), 1000)
    assert [(each.rank, each.text) for each in part.lines] == [(0, "one")]
    # They are for a later look.
    assert part.unread_from == {1: 7.0}
    server.by_request = lambda _: (500, status(500, "InternalError"))
    with pytest.raises(BackendError):
        pod_logs.in_turn([(ref, [0.0, 0.0])], read_node, Turns(), 1000)
