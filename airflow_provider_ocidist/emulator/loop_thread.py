"""LoopThread: an event loop that serves in a thread of its own, from its start to its stop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

import uvicorn

Serve = Callable[[Callable[[], None], asyncio.Event], Coroutine[Any, Any, None]]
"""Serves until the event is set; calls the function when the first request would be answered."""


class LoopThread:
    """Runs one coroutine. A daemon, so that a program which forgets `stop` ends."""

    def __init__(self, name: str, serve: Serve) -> None:
        self._serve = serve
        self._ready = threading.Event()
        self._end: Callable[[], object] | None = None
        self.failure: BaseException | None = None
        """Error that has prevented or ended the serving."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Return when the first request would be answered, or when there is a failure."""
        self._thread.start()
        self._ready.wait()

    def stop(self) -> None:
        """Return when the serving has ended."""
        if self._end is not None:
            # The loop is closed already when the serving failed.
            with suppress(RuntimeError):
                self._end()
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:  # noqa: BLE001 - it belongs to the thread that waits in start()
            self.failure = error
        finally:
            self._ready.set()

    async def _main(self) -> None:
        ended = asyncio.Event()
        self._end = partial(asyncio.get_running_loop().call_soon_threadsafe, ended.set)
        await self._serve(self._ready.set, ended)


async def until_started(server: uvicorn.Server, serving: asyncio.Task[None]) -> None:
    """Return when a server accepts connections, or has failed."""
    while not server.started and not serving.done():  # noqa: ASYNC110 - uvicorn offers no event
        await asyncio.sleep(0.005)
