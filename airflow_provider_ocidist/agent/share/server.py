"""Server: gives this node's pieces to the other nodes of its run, by HTTP, on the node's own address."""

from __future__ import annotations

import hmac
import json
import secrets
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer

from airflow_provider_ocidist.agent.share.shelf import Shelf

NEWS, PIECES = "/news/", "/pieces/"
"""Paths of the log from an entry on, and of a piece."""
DIGEST = "x-ocidist-digest"
"""Header with the digest of a piece."""
LONGEST_WAIT = 1.0
"""Seconds for which an answer waits for news."""


class PieceServer:
    """A shelf's pieces on a port of their own, for those who know the token."""

    def __init__(self, address: str, shelf: Shelf) -> None:
        """Listen at an address of this node. Raises OSError where it is none."""
        self.shelf = shelf
        self.token = secrets.token_urlsafe(24)
        self._http = _Http((address, 0), _handler_of(shelf, f"Bearer {self.token}"))
        self.port = self._http.server_port
        threading.Thread(target=self._http.serve_forever, args=(0.05,), name="pieces", daemon=True).start()

    def close(self) -> None:
        self.shelf.close()
        self._http.shutdown()
        self._http.server_close()


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def server_bind(self) -> None:
        # HTTPServer asks for the address's name, which nobody needs: without a name server, for half a minute.
        TCPServer.server_bind(self)
        self.server_port = self.server_address[1]

    def handle_error(self, *_: object) -> None:
        """A node that goes away in the middle of an answer is no error here."""


class _Handler(BaseHTTPRequestHandler):
    shelf: Shelf
    authorization: str
    """Header of those who know the token."""
    protocol_version = "HTTP/1.1"
    timeout = 20.0
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        said = self.headers.get("authorization", "")
        if not hmac.compare_digest(said.encode(), self.authorization.encode()):
            self._refuse(HTTPStatus.UNAUTHORIZED)
        elif self.path.startswith(NEWS) and self.path[len(NEWS) :].isdecimal():
            self._send_news(int(self.path[len(NEWS) :]))
        elif self.path.startswith(PIECES):
            self._send_piece(self.path[len(PIECES) :])
        else:
            self._refuse(HTTPStatus.NOT_FOUND)

    def _send_news(self, since: int) -> None:
        body = json.dumps(self.shelf.news(since, LONGEST_WAIT)).encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _send_piece(self, piece: str) -> None:
        held = self.shelf.held(piece)
        try:
            file = held.place.open() if held else None
        except OSError:
            file = None
        if held is None or file is None:
            self._refuse(HTTPStatus.NOT_FOUND)
            return
        with file:
            self.send_response(HTTPStatus.OK)
            self.send_header("content-length", str(held.length))
            self.send_header(DIGEST, held.digest)
            self.end_headers()
            if self.connection.sendfile(file, held.offset, held.length) != held.length:
                # The file is shorter now: the other node must not wait for the rest.
                self.close_connection = True

    def _refuse(self, status: HTTPStatus) -> None:
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing: there is a request for each piece."""


def _handler_of(shelf: Shelf, authorization: str) -> type[BaseHTTPRequestHandler]:
    """Return the handler of one server: the library makes one for each connection, and passes nothing on to it."""
    return type("Handler", (_Handler,), {"shelf": shelf, "authorization": authorization})
