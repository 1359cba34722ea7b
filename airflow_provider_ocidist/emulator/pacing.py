"""Pacing: a connection that is slower than this machine, or that ends too early."""

from __future__ import annotations

import asyncio

from starlette.types import Message, Receive, Send

SLICES_PER_S = 100
"""Slices per second: enough to look steady, and no finer than the event loop's clock."""


class Dropped(Exception):
    """The connection was cut on purpose."""


class Throttle:
    """Lets bytes pass at a steady speed."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self.slice_bytes = max(1, int(bytes_per_s / SLICES_PER_S))
        self._free_at = 0.0

    async def wait(self, size: int) -> None:
        """Return when so many bytes have passed."""
        now = asyncio.get_running_loop().time()
        self._free_at = max(self._free_at, now) + size / self._bytes_per_s
        await asyncio.sleep(self._free_at - now)


def paced_receive(receive: Receive, throttle: Throttle) -> Receive:
    """Return a `receive` that takes the request's body in slowly; the client holds the rest."""

    async def receive_slowly() -> Message:
        message = await receive()
        size = len(message.get("body", b""))
        if size:
            await throttle.wait(size)
        return message

    return receive_slowly


def paced_send(send: Send, throttle: Throttle) -> Send:
    """Return a `send` that sends the answer's body slowly."""

    async def send_slowly(message: Message) -> None:
        body = memoryview(message.get("body", b""))
        while len(body) > throttle.slice_bytes:
            await throttle.wait(throttle.slice_bytes)
            await send({**message, "body": body[: throttle.slice_bytes], "more_body": True})
            body = body[throttle.slice_bytes :]
        if message["type"] == "http.response.body":
            await throttle.wait(len(body))
            message = {**message, "body": body}
        await send(message)

    return send_slowly


def cut_after(send: Send, limit: int) -> Send:
    """Return a `send` that passes so many bytes of the body on, then cuts the connection."""
    left = limit

    async def send_some(message: Message) -> None:
        nonlocal left
        if message["type"] == "http.response.body":
            body = message.get("body", b"")[:left]
            left -= len(body)
            await send({"type": "http.response.body", "body": body, "more_body": True})
            if not left:
                raise Dropped
            return
        await send(message)

    return send_some
