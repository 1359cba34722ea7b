"""The client of a control plane, against the stand-in: tokens, retries, refusals."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl

import httpx
import pytest

from airflow_provider_ocidist.backends.runai.client import (
    REMEDIES,
    Busy,
    Client,
    Token,
    _transport_errors,
    _verification,
    error_of,
)
from airflow_provider_ocidist.backends.runai.options import Fields
from airflow_provider_ocidist.backends.service_clock import ServiceClock
from airflow_provider_ocidist.emulator.runai.server import RunaiAccess, RunaiServer
from airflow_provider_ocidist.emulator.runai_settings import RunaiSettings
from airflow_provider_ocidist.errors import BackendError, Cause, RunNotFound, refusal_in
from tests.emulator.runai.clusters import PaperCluster
from tests.emulator.runai.conftest import Plane

LIST = "/api/v1/workloads"


def fields(access: RunaiAccess, **changes: str) -> Fields:
    given = Fields(url=access.url, client_id=access.client_id, client_secret=access.client_secret)
    return replace(given, **changes)


class Clock:
    """A clock that a test sets, and that sleeping moves on."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def client(access: RunaiAccess, plane: Plane, clock: Clock) -> Iterator[Client]:
    del plane
    found = Client(fields(access), clock, clock.sleep)
    yield found
    found.close()


def calls(plane: Plane, path: str) -> int:
    return sum(call["path"].partition("?")[0] == path for call in plane.http.get("/_emulator/calls").json())


def test_one_token_serves_all_requests_until_shortly_before_its_end(
    client: Client, plane: Plane, clock: Clock
) -> None:
    for _ in range(3):
        client.get(LIST, "listing")
    assert calls(plane, "/api/v2/token") == 1
    clock.now += 3600 - 61
    client.get(LIST, "listing")
    assert calls(plane, "/api/v2/token") == 1
    clock.now += 2
    client.get(LIST, "listing")
    assert calls(plane, "/api/v2/token") == 2


def test_threads_share_one_token(client: Client, plane: Plane) -> None:
    barrier = threading.Barrier(8)

    def ask(_: int) -> object:
        barrier.wait()
        return client.get(LIST, "listing")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(8)))
    assert calls(plane, "/api/v2/token") == 1


def test_a_token_that_is_refused_once_is_renewed_and_that_is_no_failure(client: Client, plane: Plane) -> None:
    client.get(LIST, "listing")
    plane.http.delete("/_emulator/tokens")
    assert client.get(LIST, "listing") == {"workloads": []}
    assert calls(plane, "/api/v2/token") == 2


def test_a_token_that_is_refused_again_is_a_refusal(client: Client, plane: Plane) -> None:
    plane.fault(path=LIST, status=401, message="Issuer is not familiar.")
    with pytest.raises(BackendError, match=r"401.*service account") as caught:
        client.get(LIST, "listing")
    assert refusal_in(caught.value) == "401"


def test_where_the_new_endpoint_is_missing_the_old_one_is_asked(clock: Clock) -> None:
    with RunaiServer(PaperCluster(), RunaiSettings(token_versions=("v1",))) as old:
        client = Client(fields(old), clock, clock.sleep)
        assert client.get(LIST, "listing") == {"workloads": []}
        client.close()


def test_a_wrong_secret_is_a_fault_of_the_connection_and_not_shown(access: RunaiAccess, clock: Clock) -> None:
    client = Client(fields(access, client_secret="wrong-secret"), clock, clock.sleep)
    with pytest.raises(BackendError) as caught:
        client.get(LIST, "listing")
    assert caught.value.cause is Cause.CONFIG
    assert not caught.value.retryable
    assert "wrong-secret" not in str(caught.value)
    client.close()


def test_a_connection_without_a_secret_names_what_it_lacks() -> None:
    with pytest.raises(BackendError, match=r"host, login \(client id\), password \(client secret\)"):
        Client(Fields())


def test_an_outage_of_seconds_is_waited_out_and_a_longer_one_is_an_outage(
    client: Client, plane: Plane, clock: Clock
) -> None:
    plane.fault(path=LIST, status=503, times=4)
    assert client.get(LIST, "listing") == {"workloads": []}
    plane.fault(path=LIST, status=503)
    began = clock.now
    with pytest.raises(BackendError) as caught:
        client.get(LIST, "listing")
    assert refusal_in(caught.value) is None
    assert clock.now - began < 30


def test_the_service_says_how_long_to_wait(client: Client, plane: Plane, clock: Clock) -> None:
    client.get(LIST, "listing")
    plane.fault(path=LIST, status=429, times=1, retry_after_s=5)
    began = clock.now
    client.get(LIST, "listing")
    assert clock.now - began >= 5


def test_a_cut_connection_is_asked_again(client: Client, plane: Plane) -> None:
    plane.fault(path=LIST, drop="before", times=2)
    assert client.get(LIST, "listing") == {"workloads": []}


def test_a_list_is_read_to_its_end(client: Client, plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_provider_ocidist.backends.runai.client.PAGE", 3)
    wanted = sorted(plane.submit(f"run-{number}") for number in range(7))
    assert sorted(item["id"] for item in client.pages(LIST, "workloads", "listing")) == wanted


def test_what_cannot_be_reached_is_named(clock: Clock) -> None:
    client = Client(Fields(url="http://127.0.0.1:1", client_id="i", client_secret="s"), clock, clock.sleep)
    with pytest.raises(BackendError, match=r"cannot reach http://127\.0\.0\.1:1") as caught:
        client.get(LIST, "listing")
    assert caught.value.retryable
    client.close()


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 429, 500, 502, 503, 504])
def test_every_refusal_is_an_outage_or_a_refusal_and_has_its_words(status: int) -> None:
    error = error_of(status, '{"code": 0, "message": "because"}', "creating the workload")
    assert "because" in str(error)
    assert error.status_code == status
    assert error.retryable == (status == 429 or status >= 500)
    assert (refusal_in(error) is None) == error.retryable
    assert isinstance(error, RunNotFound) == (status == 404)


def test_what_a_policy_forbids_is_named_by_field() -> None:
    text = (
        '{"code": 400, "message": "does not comply with the policy", "complianceIssues": '
        '[{"field": "compute.gpuDevicesRequest", "details": "value must be no less than 3", "rule": "min"}]}'
    )
    error = error_of(400, text, "creating the workload")
    assert "compute.gpuDevicesRequest: value must be no less than 3" in str(error)


@pytest.mark.parametrize("text", ["", "<html>502</html>", "[]", "null", '{"error": "invalid_client"}'])
def test_a_refusal_without_a_reason_is_one_line(text: str) -> None:
    assert "\n" not in str(error_of(400, text, "asking"))


# against a control plane of a few lines, which shows what it is sent


class Plain:
    """A control plane on a free port, which notes each request and answers as a test says."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.token: dict[str, Any] = {"access_token": "t1", "expires_in": 1000}
        self.no_token: int | None = None
        """Status of each answer in the place of a token."""
        self.answers: list[httpx.Response] = []
        self.seen: list[httpx.Request] = []
        self.date: float | None = None
        """Unix time in each answer; None: the present."""
        self.service_clock = ServiceClock()
        self.slept: list[float] = []
        plain = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                content = self.rfile.read(int(self.headers.get("content-length") or 0))
                url = f"http://plane{self.path}"
                found = plain.answer(
                    httpx.Request(self.command, url, headers=dict(self.headers), content=content)
                )
                self.send_response(found.status_code)
                for name in ("retry-after", "location"):
                    if name in found.headers:
                        self.send_header(name, found.headers[name])
                self.send_header("content-length", str(len(found.content)))
                self.end_headers()
                self.wfile.write(found.content)

            do_GET = do_POST = answer  # noqa: N815 - the names that http.server calls

            def date_time_string(self, timestamp: float | None = None) -> str:
                return super().date_time_string(timestamp if plain.date is None else plain.date)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.client = self.new_client()

    def new_client(self) -> Client:
        url = f"http://127.0.0.1:{self.server.server_port}"
        fields = Fields(url=url, client_id="i", client_secret="s")
        return Client(fields, self.clock, self._sleep, service_clock=self.service_clock)

    def begin_again(self, **token: Any) -> None:
        """Answer so from now on, to a new client at the clock's beginning."""
        self.token |= token
        self.seen.clear()
        self.clock.now = 0.0
        self.client.close()
        self.client = self.new_client()

    def close(self) -> None:
        self.client.close()
        self.server.shutdown()
        self.server.server_close()

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.clock.sleep(seconds)

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(request)
        if request.url.path.endswith("/token"):
            if self.no_token is not None:
                return httpx.Response(self.no_token)
            return httpx.Response(200, json=self.token)
        return self.answers.pop(0) if self.answers else httpx.Response(200, json={"a": 1})

    def asked(self, path: str) -> list[httpx.Request]:
        return [request for request in self.seen if request.url.path == path]


@pytest.fixture
def plain(clock: Clock) -> Iterator[Plain]:
    found = Plain(clock)
    yield found
    found.close()


def test_a_request_carries_the_token_and_what_it_is_about(plain: Plain) -> None:
    assert plain.client.get("/x", "looking", name="n") == {"a": 1}
    assert plain.client.call("POST", "/y", "making", json={"b": 2}) == {"a": 1}
    (got,), (made,), (token,) = plain.asked("/x"), plain.asked("/y"), plain.asked("/api/v2/token")
    assert (got.method, got.url.params["name"]) == ("GET", "n")
    assert got.headers["authorization"] == made.headers["authorization"] == "Bearer t1"
    assert (made.method, json.loads(made.content)) == ("POST", {"b": 2})
    form = dict(parse_qsl(token.content.decode()))
    assert form == {"grant_type": "client_credentials", "client_id": "i", "client_secret": "s"}
    plain.answers = [httpx.Response(204)]
    assert plain.client.get("/x", "looking") == {}


def test_a_list_is_asked_for_page_by_page_until_it_names_none_beyond(plain: Plain) -> None:
    for following in (None, 2, "3", True):
        plain.seen.clear()
        plain.answers = [
            httpx.Response(200, json={"w": [1, 2], "next": 2}),
            httpx.Response(200, json={"w": [3], "next": following}),
        ]
        assert list(plain.client.pages("/x", "w", "listing", filter="f")) == [1, 2, 3]
        assert [dict(request.url.params) for request in plain.asked("/x")] == [
            {"offset": "0", "limit": "500", "filter": "f"},
            {"offset": "2", "limit": "500", "filter": "f"},
        ]
    assert list(plain.client.pages("/x", "w", "listing")) == []


def test_pauses_grow_within_bounds_and_the_last_attempt_is_not_waited_for(plain: Plain) -> None:
    plain.answers = [httpx.Response(503, text="busy") for _ in range(6)]
    with pytest.raises(Busy, match=r"^looking: 503: busy$") as caught:
        plain.client.get("/x", "looking")
    assert caught.value.retry_after == 0.0
    assert len(plain.asked("/x")) == 6
    assert len(plain.slept) == 5
    assert all(0.1 * 2**n <= pause <= 0.2 * 2**n for n, pause in enumerate(plain.slept))


def test_what_must_not_be_repeated_unseen_is_asked_once(plain: Plain) -> None:
    plain.answers = [httpx.Response(503)]
    with pytest.raises(Busy):
        plain.client.call("POST", "/x", "making", attempts=1)
    assert (len(plain.asked("/x")), plain.slept) == (1, [])


@pytest.mark.parametrize("said, waited", [("5", 5.0), ("100", 8.0), ("soon", 0.0), ("-1", 0.0)])
def test_the_service_may_ask_for_a_pause_up_to_the_longest(plain: Plain, said: str, waited: float) -> None:
    plain.answers = [httpx.Response(429, headers={"retry-after": said})]
    plain.client.get("/x", "looking")
    assert plain.slept[0] == pytest.approx(waited, abs=0.2)


@pytest.mark.parametrize(
    "lives, renewed", [(1000, 940.0), (300, 270.0), (10, 9.0), (1, 0.9), (None, 54.0), (0, 54.0), ("x", 54.0)]
)
def test_a_token_is_renewed_a_minute_or_a_tenth_of_its_life_before_its_end(
    plain: Plain, lives: Any, renewed: float
) -> None:
    plain.begin_again(expires_in=lives)
    assert_renewed_at(plain, renewed)


def assert_renewed_at(plain: Plain, renewed: float) -> None:
    for moment, tokens in ((0.0, 1), (renewed - 0.01, 1), (renewed, 2)):
        plain.clock.now = moment
        plain.client.get("/x", "looking")
        assert len(plain.asked("/api/v2/token")) == tokens


def test_while_no_new_token_is_to_be_had_the_old_one_serves_until_its_end(plain: Plain) -> None:
    plain.begin_again(expires_in=1000)
    plain.client.get("/x", "looking")
    plain.no_token = 503
    for moment in (940.0, 945.0, 960.0):
        plain.clock.now = moment
        assert plain.client.get("/x", "looking") == {"a": 1}
    # It asks again, and not at each request.
    assert len(plain.asked("/api/v2/token")) == 3
    assert plain.slept == []
    plain.clock.now = 1000.0
    with pytest.raises(BackendError) as caught:
        plain.client.get("/x", "looking")
    assert caught.value.retryable
    plain.no_token = None
    assert plain.client.get("/x", "looking") == {"a": 1}


def test_a_token_that_is_refused_after_a_renewal_has_failed_is_dropped(plain: Plain) -> None:
    plain.begin_again(expires_in=1000)
    used = plain.client._current_token()
    plain.no_token, plain.clock.now = 503, 940.0
    # Another thread finds no new one, and the old one is refused meanwhile.
    assert plain.client._current_token() is not used
    plain.client._drop(used)
    plain.no_token = None
    plain.client.get("/x", "looking")
    assert len(plain.asked("/api/v2/token")) == 3


def test_credentials_that_are_refused_are_not_put_off_until_the_tokens_end(plain: Plain) -> None:
    plain.begin_again(expires_in=1000)
    plain.client.get("/x", "looking")
    plain.no_token, plain.clock.now = 401, 940.0
    with pytest.raises(BackendError, match="refuses the client id or the secret"):
        plain.client.get("/x", "looking")


def ending_at(end: float, more: str = "") -> str:
    """Return a token that says when it ends."""
    claims = base64.urlsafe_b64encode(json.dumps({"exp": end, "more": more}).encode()).decode()
    return f"header.{claims.rstrip('=')}.signature"


def test_a_token_that_says_itself_when_it_ends_is_believed(
    plain: Plain, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = SimpleNamespace(time=lambda: 1000.0)
    monkeypatch.setattr("airflow_provider_ocidist.backends.runai.client.time", now)
    for length in range(4):
        plain.begin_again(access_token=ending_at(1200, "x" * length), expires_in=None)
        assert_renewed_at(plain, 180.0)
    plain.begin_again(access_token=ending_at(1))
    for tokens in (1, 2):
        plain.client.get("/x", "looking")
        assert len(plain.asked("/api/v2/token")) == tokens


def test_the_words_of_the_older_endpoint_are_understood_too(plain: Plain) -> None:
    plain.token = {"accessToken": "old", "expiresIn": 100}
    assert_renewed_at(plain, 90.0)
    assert plain.asked("/x")[0].headers["authorization"] == "Bearer old"
    plain.token = {}
    plain.clock.now = 1000.0
    with pytest.raises(
        BackendError, match=r"^asking Run:ai for a token: the answer contains no token$"
    ) as caught:
        plain.client.get("/x", "looking")
    assert caught.value.retryable


def test_where_there_is_no_endpoint_of_today_the_older_one_is_sent_its_own_words(plain: Plain) -> None:
    answer = plain.answer

    def older(request: httpx.Request) -> httpx.Response:
        found = answer(request)
        return httpx.Response(404) if request.url.path == "/api/v2/token" else found

    plain.answer = older
    plain.client.get("/x", "looking")
    (asked,) = plain.asked("/api/v1/token")
    assert json.loads(asked.content) == {
        "grantType": "client_credentials",
        "clientID": "i",
        "clientSecret": "s",
    }


@pytest.mark.parametrize("status", [400, 401, 403, 500])
def test_a_refused_secret_is_a_fault_of_the_connection_and_an_outage_is_none(
    plain: Plain, status: int
) -> None:
    plain.answer = lambda _: httpx.Response(status)
    with pytest.raises(BackendError) as caught:
        plain.client.get("/x", "looking")
    assert caught.value.status_code == status
    assert caught.value.retryable == (status == 500)
    assert str(caught.value).startswith("asking Run:ai for a token: ")
    if status != 500:
        assert caught.value.cause is Cause.CONFIG
        assert str(caught.value) == (
            f"asking Run:ai for a token: the control plane refuses the client id or the secret ({status}): see that "
            "the service account exists there, and renew its secret in the connection"
        )


def test_a_refused_token_is_dropped_once_and_not_one_that_another_thread_has_renewed(plain: Plain) -> None:
    plain.client.get("/x", "looking")
    plain.answers = [httpx.Response(401)]
    assert plain.client.get("/x", "looking") == {"a": 1}
    assert len(plain.asked("/api/v2/token")) == 2
    fresh = plain.client._current_token()
    plain.client._drop(Token("old", 0.0, 0.0))
    assert plain.client._current_token() is fresh
    plain.answers = [httpx.Response(401, text="no"), httpx.Response(401, text="no")]
    with pytest.raises(BackendError) as caught:
        plain.client.get("/x", "looking")
    assert str(caught.value) == (
        "looking: 401: no; the token was refused twice: see that the service account still exists"
    )
    assert plain.slept == []


@pytest.mark.parametrize(
    "status, text, said",
    [
        (403, "no", f"403: no{REMEDIES[403]}"),
        (
            400,
            '{"message": "m", "details": "d", "complianceIssues": [{"field": "f", "details": "e"}]}',
            "400: m; d; f: e",
        ),
        (400, '{"error_description": "e", "error": "f"}', "400: e"),
        (400, '{"error": "f"}', "400: f"),
        (400, "{}", "400: no reason is given"),
        (400, "[]", "400: no reason is given"),
        (400, "", "400: no reason is given"),
        (400, "  first\nsecond", "400: first"),
        (400, "x" * 999, f"400: {'x' * 300}"),
        (404, "gone", "404: gone"),
        (503, "busy", "503: busy"),
    ],
)  # fmt: skip
def test_a_refusal_is_said_in_its_own_words_with_the_remedy(status: int, text: str, said: str) -> None:
    error = error_of(status, text, "doing")
    assert str(error) == f"doing: {said}"
    assert (error.cause is Cause.CONFIG) == (status in (400, 403))


def test_an_answer_that_is_no_json_is_not_of_a_control_plane(plain: Plain) -> None:
    plain.answers = [httpx.Response(200, text="<html>")]
    with pytest.raises(
        BackendError, match=r"^looking: the answer is not JSON: is this a control plane of Run:ai\?$"
    ):
        plain.client.get("/x", "looking")
    assert len(plain.asked("/x")) == 1


@pytest.mark.parametrize(
    "error, said, retryable",
    [
        (httpx.ConnectError("refused"), "cannot reach http://plane (refused); check host and network", True),
        (httpx.ReadTimeout(""), "cannot reach http://plane (ReadTimeout); check host and network", True),
        (
            httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED]"),
            "the certificate of http://plane is not trusted: name its authority in the connection's verify",
            False,
        ),
        (httpx.InvalidURL("odd"), "http://plane is not an address: odd", False),
    ],
)
def test_what_cannot_be_reached_is_known_from_what_is_wrong(
    error: Exception, said: str, retryable: bool
) -> None:
    with pytest.raises(BackendError) as caught, _transport_errors("looking", "http://plane"):
        raise error
    assert str(caught.value) == f"looking: {said}"
    assert caught.value.retryable is retryable
    if not retryable:
        assert caught.value.cause is Cause.CONFIG


def test_a_bundle_of_authorities_is_used_and_one_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        BackendError, match="the connection's verify names no bundle of authorities"
    ) as caught:
        Client(
            Fields(url="http://plane", client_id="i", client_secret="s", verify=str(tmp_path / "none.pem"))
        )
    assert caught.value.cause is Cause.CONFIG
    assert str(tmp_path / "none.pem") in str(caught.value)
    for verify in (True, False):
        assert _verification(verify) is verify
        Client(Fields(url="http://plane", client_id="i", client_secret="s", verify=verify)).close()


def test_a_closed_client_asks_no_more(plain: Plain) -> None:
    plain.client.close()
    with pytest.raises(RuntimeError, match="closed"):
        plain.client.get("/x", "looking")


def test_a_token_is_sent_to_no_other_place_that_an_answer_names(plain: Plain) -> None:
    plain.answers = [httpx.Response(302, headers={"location": "/elsewhere"})]
    with pytest.raises(BackendError) as caught:
        plain.client.get("/x", "looking")
    assert caught.value.status_code == 302
    assert plain.asked("/elsewhere") == []


def test_an_answer_is_waited_for_half_a_minute_and_a_connection_ten_seconds(plain: Plain) -> None:
    assert plain.client._http.timeout == httpx.Timeout(30.0, connect=10.0)


def test_a_refused_list_says_what_was_asked_for(plain: Plain) -> None:
    plain.answers = [httpx.Response(403, text="no")]
    with pytest.raises(BackendError, match=r"^listing the workloads: 403: no"):
        list(plain.client.pages("/x", "w", "listing the workloads"))


def test_a_control_plane_that_is_gone_is_named_and_asked_again_after_short_pauses(plain: Plain) -> None:
    address = f"http://127.0.0.1:{plain.server.server_port}"
    plain.client.get("/x", "looking")
    plain.server.shutdown()
    plain.server.server_close()
    with pytest.raises(
        BackendError, match=rf"^looking: cannot reach {address}/? \(.+\); check host and network$"
    ):
        plain.client.get("/x", "looking")
    assert len(plain.slept) == 5
    assert all(0.1 * 2**n <= pause <= 0.2 * 2**n for n, pause in enumerate(plain.slept))
    with pytest.raises(BackendError, match=rf"^asking Run:ai for a token: cannot reach {address}/? \("):
        plain.new_client().get("/x", "looking")


# the time at the control plane


def test_every_answer_has_the_time_of_the_control_plane(plain: Plain) -> None:
    assert plain.service_clock.now() is None
    for told in (1_000_000_000, 2_000_000_000, 1_500_000_000):
        plain.date = float(told)
        plain.client.get("/x", "looking")
        assert plain.service_clock.now() == pytest.approx(told, abs=60)


@pytest.mark.parametrize("status", [302, 403, 404, 407, 502])
def test_what_is_no_answer_of_the_control_plane_has_no_time(plain: Plain, status: int) -> None:
    plain.date = 1_000_000_000.0
    plain.client.get("/x", "looking")
    plain.date = 2_000_000_000.0
    plain.answers = [httpx.Response(status)]
    with pytest.raises(BackendError):
        plain.client.call("GET", "/x", "looking", attempts=1)
    assert plain.service_clock.now() == pytest.approx(1_000_000_000, abs=60)
