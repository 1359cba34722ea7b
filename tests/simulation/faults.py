"""Faults: what goes wrong in one schedule, drawn by name from the seed, so that each can be left out alone."""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any

from oci.exceptions import ConnectTimeout, RequestException, ServiceError
from requests.exceptions import ConnectTimeout as NoConnection
from requests.exceptions import ReadTimeout

from tests.simulation.runtime import EPOCH, Process, World

SHOW_CALLS = bool(os.environ.get("OCIDIST_SIMULATION_CALLS"))
"""Whether every request stands in the trace."""
ANSWERS: dict[str, tuple[int, str, str]] = {
    "401": (401, "NotAuthenticated", "The required information to complete authentication was not provided"),
    "404": (404, "NotAuthorizedOrNotFound", "Authorization failed or requested resource not found"),
    "409": (409, "IncorrectState", "The resource is being provisioned: try again"),
    "429": (429, "TooManyRequests", "Too many requests for the user"),
    "500": (500, "InternalServerError", "Internal error"),
    "503": (503, "ServiceUnavailable", "The service is temporarily unavailable"),
}


@dataclass(frozen=True, slots=True)
class Rate:
    """How often one kind of fault strikes one kind of call."""

    kind: str
    """A status of ANSWERS, `unreachable`, `lost` (done, but the answer never comes), `silent` (taken, and neither done
    nor answered), `late`, `stale`, `kill`."""
    calls: str
    """What the name of the call begins with: `service.list_jobs`, `store.`."""
    rate: float
    actors: str = ""
    """What the name of the process begins with; all."""


@dataclass(frozen=True, slots=True)
class Window:
    """A time in which every call of a kind goes wrong for some."""

    name: str
    kind: str
    calls: str
    begin: float
    end: float
    actors: str = ""
    retry_after: float | None = None
    objects: str = ""
    """What the name of the object contains; all."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happens once, at a time: a kill, a clear."""

    name: str
    what: str
    at: float
    details: dict[str, Any] = field(default_factory=dict)


@dataclass
class Faults:
    """What goes wrong, and what of it did."""

    world: World
    rates: Sequence[Rate] = ()
    windows: Sequence[Window] = ()
    left_out: frozenset[str] = frozenset()
    expires: float | None = None
    """When the key that clients have read by then is replaced by another: it is refused from then on."""
    fired: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    quiet_after: float = float("inf")
    """From here on nothing new goes wrong: what was begun has to come to its end."""

    def fire(self, name: str, kind: str) -> bool:
        """Note that a fault strikes; False where it is left out."""
        if name in self.left_out:
            return False
        if not self.fired or self.fired[-1] != name:
            self.fired.append(name)
        self.kinds[kind] += 1
        return True

    def of_call(self, actor: Process, call: str, about: str = "") -> str | None:
        """Return what goes wrong with this call, if anything does. `about`: the object that it names."""
        now = self.world.now
        for window in self.windows:
            if (
                window.begin <= now < window.end
                and call.startswith(window.calls)
                and actor.name.startswith(window.actors)
                and window.objects in about
                and self.fire(f"window/{window.name}", window.kind)
            ):
                return window.kind
        if now >= self.quiet_after or not self.rates:
            return None
        counted = f"{actor.name} {call}"
        count = self.counts[counted] = self.counts[counted] + 1
        for rate in self.rates:
            if call.startswith(rate.calls) and actor.name.startswith(rate.actors):
                name = f"{actor.name} {call} {count} {rate.kind}"
                if self.world.chance(f"fault/{name}") < rate.rate and self.fire(name, rate.kind):
                    return rate.kind
        return None

    def has_expired(self, read_at: float | None) -> bool:
        """Whether the key that a client has read at a time is refused now."""
        at = self.expires
        if at is None or read_at is None or not read_at < at <= self.world.now:
            return False
        return self.fire("the key is replaced", "key replaced")

    def retry_after(self, kind: str) -> float | None:
        """Return how long a refusal of this kind asks to wait now."""
        now = self.world.now
        asked = (
            window.retry_after
            for window in self.windows
            if window.kind == kind and window.begin <= now < window.end
        )
        return next(asked, None)


def answer(status: str, world: World, retry_after: float | None = None) -> ServiceError:
    code, name, message = ANSWERS[status]
    headers = {"date": http_date(world.now), "opc-request-id": "simulated"}
    if retry_after is not None:
        headers["retry-after"] = str(int(retry_after))
    return ServiceError(code, name, headers, message)


def refusal(status: int, code: str, message: str, world: World) -> ServiceError:
    return ServiceError(status, code, {"date": http_date(world.now), "opc-request-id": "simulated"}, message)


def http_date(now: float) -> str:
    return _http_date(int(now))


@functools.cache
def _http_date(now: int) -> str:
    return formatdate(EPOCH + now, usegmt=True)


class Network:
    """Takes calls to service and store, with the time that they take and what goes wrong on the way."""

    def __init__(self, world: World, faults: Faults) -> None:
        self.world = world
        self.faults = faults
        self.calls: Counter[str] = Counter()
        self.on_done: Any = None
        self.on_refused: Any = None

    def call(
        self,
        place: str,
        operation: str,
        work: Any,
        *args: Any,
        read_timeout: float = 60.0,
        key_read_at: float | None = None,
    ) -> Any:
        """Do one request of the process that runs now. `key_read_at`: when its client has read its key."""
        world, task = self.world, self.world.current
        if task is None:
            return work(*args)
        world.check()
        actor, name = task.process, f"{place}.{operation}"
        self.calls[name] += 1
        number = self.calls[name]
        if SHOW_CALLS:
            world.note(actor.name, "%s %s (%d) in %s", name, shown(args), number, task.name)
        fault = self._fault_of(actor, name, args, key_read_at)
        quick = 0.02 + 0.2 * world.chance(f"latency/{actor.name}/{name}/{number}")
        if fault == "kill":
            before = world.chance("before", actor.name, name, number) < 0.5
            if not before:
                work(*args)
            world.note(actor.name, "%s: killed %s it was done", name, "before" if before else "just after")
            actor.kill("kill -9")
        if fault == "unreachable":
            world.sleep(3.0)
            world.note(actor.name, "%s: unreachable", name)
            raise ConnectTimeout(NoConnection(f"simulated: {name}"))
        if fault == "silent":
            world.note(actor.name, "%s %s: taken, and not answered", name, shown(args))
            world.sleep(read_timeout)
            raise RequestException(ReadTimeout(f"simulated: {name}"))
        if fault in ANSWERS:
            world.sleep(quick)
            world.note(actor.name, "%s %s: %s", name, shown(args), fault)
            if self.on_refused is not None:
                self.on_refused(actor, name, args, fault)
            window = next(
                (
                    window
                    for window in self.faults.windows
                    if window.kind == fault and window.begin <= world.now < window.end and window.retry_after
                ),
                None,
            )
            raise answer(fault, world, window.retry_after if window else None)
        if fault == "late":
            quick = 5.0 + 40.0 * world.chance("late", actor.name, name, number)
            world.note(actor.name, "%s: takes %.0f s", name, quick)
            if quick > read_timeout:
                fault = "lost"
        if fault == "lost":
            self._lose(actor, name, work, args)
            world.sleep(min(read_timeout, 10.0))
            raise RequestException(ReadTimeout(f"simulated: {name}"))
        world.sleep(quick / 2)
        found = work(*args, stale=True) if fault == "stale" else work(*args)
        world.sleep(quick / 2)
        if self.on_done is not None:
            self.on_done(actor, name)
        return found

    def _fault_of(
        self, actor: Process, name: str, args: Sequence[Any], key_read_at: float | None
    ) -> str | None:
        faults = self.faults
        fault = None
        if faults.windows or faults.rates:
            fault = faults.of_call(actor, name, args[0] if args and isinstance(args[0], str) else "")
        if actor.cut_off and name.partition(".")[0] in actor.cut_off:
            return "unreachable"
        return "401" if faults.expires is not None and faults.has_expired(key_read_at) else fault

    def _lose(self, actor: Process, name: str, work: Any, args: Any) -> None:
        """Do what was asked for, without an answer."""
        try:
            work(*args)
        except Exception as error:
            self.world.note(actor.name, "%s %s: %s, and the answer is lost", name, shown(args), error)
        else:
            self.world.note(actor.name, "%s %s: done, and the answer is lost", name, shown(args))


def shown(args: Any) -> str:
    return " ".join(str(arg)[-60:] for arg in args if isinstance(arg, str | int))
