"""A Git server on loopback: git's own http-backend behind basic authentication, with faults on demand."""

from __future__ import annotations

import base64
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from airflow_provider_ocidist.backports import dataclass


@dataclass(kw_only=True)
class GitServer:
    """What it serves, and how."""

    root: Path
    user: str | None = None
    password: str | None = None
    unavailable: int = 0
    """How many more requests are answered with 503."""
    modern: bool = True
    """Whether clients may speak version 2, in which any commit can be asked for."""
    redirect_to: str | None = None
    url: str = ""
    seen: list[str] = field(default_factory=list)
    """The credentials that clients have sent."""


class _Handler(BaseHTTPRequestHandler):
    server: Any

    def do_GET(self) -> None:
        state: GitServer = self.server.state
        given = self.headers.get("Authorization", "")
        if given:
            state.seen.append(base64.b64decode(given.partition(" ")[2]).decode())
        if state.redirect_to:
            self._answer(302, {"Location": state.redirect_to + self.path})
        elif state.unavailable > 0:
            state.unavailable -= 1
            self._answer(503, {})
        elif state.password and (not given or state.seen[-1] != f"{state.user}:{state.password}"):
            self._answer(401, {"WWW-Authenticate": 'Basic realm="git"'})
        else:
            self._backend(state)

    def do_POST(self) -> None:
        self.do_GET()

    def _answer(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        pieces = []
        while size := int(self.rfile.readline(), 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)

    def _backend(self, state: GitServer) -> None:
        path, _, query = self.path.partition("?")
        environ = {
            **os.environ,
            "GIT_PROJECT_ROOT": str(state.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", "") if state.modern else "",
        }
        done = subprocess.run(
            ["git", "http-backend"], input=self._body(), env=environ, capture_output=True, check=False
        )
        head, _, body = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().splitlines() if ": " in line)
        status = int(headers.pop("Status", "200").split()[0])
        self._answer(status, headers, body)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serve(root: Path, **settings: Any) -> Iterator[GitServer]:
    """Serve the repositories below a folder."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    state = GitServer(root=root, url=f"http://127.0.0.1:{server.server_port}", **settings)
    server.state = state
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
