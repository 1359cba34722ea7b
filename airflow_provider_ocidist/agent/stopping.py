"""Stopping: why this node is to end early. The first reason counts."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable

from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.model.report import Restart


@dataclass(frozen=True, kw_only=True)
class Stop:
    """A reason to end."""

    message: str
    cause: Cause | None = None
    """Cause of the fault that this node itself found; None if it was asked to stop."""
    stacks: bool = False
    """Whether the processes are to print their stacks before they end."""
    hurried: bool = True
    """Whether a node that was asked to stop is awaited by others."""
    restarts: tuple[Restart, ...] = ()
    """Restarts so far with the new one last, if the training is launched again; empty: the run ends."""
    misses_node: bool = False
    """Whether another node is lost, in whose place a new one may come."""
    is_lost: bool = False
    """Whether this node counts as lost: what it has left does not count any more, and another may take its place."""


class Stopped(Exception):
    """Raised between the stages of a node that was asked to stop."""

    def __init__(self, stop: Stop) -> None:
        super().__init__(stop.message)
        self.stop = stop


class StopSwitch:
    """The one place where reasons to end arrive: from signals, from other nodes, from the hang watch."""

    def __init__(self) -> None:
        self.stop: Stop | None = None
        self.event = threading.Event()
        self.signalled = threading.Event()
        """Event that every signal sets, also one that comes after another reason."""
        self._lock = threading.Lock()
        self._listeners: list[Callable[[], object]] = []
        self._launch = 0

    @property
    def is_lost(self) -> bool:
        """Whether this node counts as lost, and is to leave no trace."""
        return self.stop is not None and self.stop.is_lost

    def ask(self, stop: Stop) -> None:
        """Take a reason to end. The first one counts, but before another launch the end that others ask for does.

        A fault that this node finds itself may be the one for which it is launched again. That the node is lost counts
        before all others.
        """
        with self._lock:
            is_of_the_past = stop.restarts and len(stop.restarts) <= self._launch
            is_first = self.stop is None
            is_asked = stop.cause is None and not stop.restarts
            ends_run = is_asked and self.stop is not None and bool(self.stop.restarts)
            if is_of_the_past or not (is_first or ends_run or stop.is_lost):
                return
            self.stop = stop
            # Before `rearm` can run: it would leave the event set without a reason.
            self.event.set()
            listeners = [*self._listeners] if is_first else []
        for listener in listeners:
            listener()

    def listen(self, listener: Callable[[], object]) -> None:
        """Call the listener on a stop request; at once if there is one."""
        with self._lock:
            self._listeners.append(listener)
        if self.stop is not None:
            listener()

    def until_stopped(self) -> threading.Event:
        """Return an event that the next stop request sets, or one that is there, and that no later launch clears."""
        stopped = threading.Event()
        self.listen(stopped.set)
        return stopped

    def take_part_in(self, launch: int) -> None:
        """Begin with the launch of this number, from 0: requests to end those before it are of the past."""
        with self._lock:
            self._launch = launch

    def take_part_in_no_other(self) -> None:
        """Forget from now on every request for another launch."""
        self.take_part_in(sys.maxsize)

    def rearm(self, launch: int) -> None:
        """Forget the reason to end the launch before this one, from 0. Raises Stopped after any other, or a signal."""
        with self._lock:
            self._launch = launch
            if self.stop is not None and self.stop.restarts:
                self.stop = None
                self.event.clear()
                self._listeners.clear()
        if self.signalled.is_set():
            self.ask(Stop(message="this node was stopped by a signal"))
        self.check()

    def check(self) -> None:
        """Raise Stopped after a stop request."""
        if self.stop is not None:
            raise Stopped(self.stop)

    def pause(self, seconds: float) -> None:
        """Sleep. Raises Stopped on a stop request."""
        self.event.wait(seconds)
        self.check()

    def ask_on_signals(self) -> None:
        """Take SIGTERM and SIGINT as a reason to end. Call it in the main thread.

        Python runs a handler in the main thread, once that does not wait for a lock any more: it may do so for as long
        as the training lasts, if another thread took the signal, or if it came just before that wait.
        """
        reader, writer = os.pipe()
        os.set_blocking(writer, False)

        def pass_on() -> None:
            # Only the first signal counts: any one ends this node.
            (number,) = os.read(reader, 1)
            self.signalled.set()
            self.ask(Stop(message=f"this node was stopped by {signal.Signals(number).name}"))

        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            # What has no handler in Python is not written to the pipe.
            signal.signal(number, lambda *_: None)
        threading.Thread(target=pass_on, name="signals", daemon=True).start()
