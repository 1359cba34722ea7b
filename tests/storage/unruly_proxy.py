"""An HTTP proxy for tests that passes requests on, except where a test has it misbehave."""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from airflow_provider_ocidist.backports import Self, dataclass


@dataclass(kw_only=True)
class Fault:
    """What to do with the next `times` requests whose method and path fit."""

    method: str = ""
    path: str = ""
    times: int = 1
    status: int | None = None
    """Answer this instead of asking the server."""
    retry_after: str | None = None
    cut_after: int | None = None
    """Pass on so many bytes of the body, then close the connection."""
    lose_answer: bool = False
    """Let the server do its work, then close the connection without an answer."""
    delay_s: float = 0.0
    meanwhile: Callable[[], object] | None = None
    """Do this while the request waits."""
    skip: int = 0
    """Let so many fitting requests pass first."""
    damage: bool = False
    """Turn one byte of the answer's body."""

    def __post_init__(self) -> None:
        if re.fullmatch("[0-9a-f]+", self.path):
            raise ValueError(f"the folders of tests have random names, which may hold {self.path!r} too")


class UnrulyProxy:
    """Serves on a free port while it is open; counts the requests that it has seen."""

    def __init__(self, target: str) -> None:
        self.target = urlsplit(target).netloc
        self.faults: list[Fault] = []
        self.seen: list[tuple[str, str]] = []
        self.busiest = 0
        self._active = 0
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"proxy": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> Self:
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def fault_for(self, method: str, path: str) -> Fault:
        with self._lock:
            self.seen.append((method, path))
            for fault in self.faults:
                if fault.times > 0 and fault.method in ("", method) and fault.path in path:
                    if fault.skip > 0:
                        fault.skip -= 1
                        continue
                    fault.times -= 1
                    return fault
        return Fault()

    def count(self, method: str, path: str = "") -> int:
        return sum(1 for seen in self.seen if seen[0] == method and path in seen[1])

    def calm_down(self) -> None:
        """Forget faults and requests, once those are through that a killed process has left on their way."""
        deadline = time.monotonic() + 30
        while self._active:
            assert time.monotonic() < deadline, f"{self._active} requests are still on their way"
            time.sleep(0.02)
        self.faults = []
        self.seen.clear()

    def enter(self, step: int) -> None:
        with self._lock:
            self._active += step
            self.busiest = max(self.busiest, self._active)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: UnrulyProxy

    def log_message(self, *arguments):
        pass

    def _serve(self):
        self.proxy.enter(1)
        try:
            self._pass_on()
        except (ConnectionError, TimeoutError):
            self.close_connection = True
        finally:
            self.proxy.enter(-1)

    def _pass_on(self):
        length = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(length)
        if len(body) < length:
            raise ConnectionError("its sender has gone")
        fault = self.proxy.fault_for(self.command, self.path)
        time.sleep(fault.delay_s)
        if fault.meanwhile:
            fault.meanwhile()
        if fault.status is not None:
            self._refuse(fault)
            return
        upstream = http.client.HTTPConnection(self.proxy.target, timeout=30)
        headers = {
            key: value for key, value in self.headers.items() if key.lower() not in ("connection", "expect")
        }
        upstream.request(self.command, self.path, body=body or None, headers=headers)
        answer = upstream.getresponse()
        content = answer.read()
        upstream.close()
        if fault.lose_answer:
            self.close_connection = True
            return
        if fault.damage and content:
            content = bytes([content[0] ^ 1]) + content[1:]
        self.send_response_only(answer.status)
        for key, value in answer.getheaders():
            if key.lower() not in ("connection", "transfer-encoding", "content-length"):
                self.send_header(key, value)
        length = answer.getheader("content-length") if self.command == "HEAD" else str(len(content))
        if answer.status not in (204, 304) and length is not None:
            self.send_header("content-length", length)
        self.end_headers()
        if fault.cut_after is not None:
            self.wfile.write(content[: fault.cut_after])
            self.close_connection = True
        elif self.command != "HEAD":
            self.wfile.write(content)

    def _refuse(self, fault):
        body = json.dumps({"code": "Unruly", "message": "the test wants it so"}).encode()
        self.send_response_only(fault.status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        if fault.retry_after:
            self.send_header("retry-after", fault.retry_after)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve  # noqa: N815 - the server calls them so
