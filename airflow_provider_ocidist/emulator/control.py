"""Control: what tests ask of the emulator itself, under `/_emulator`; unsigned but for sessions."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeVar

from starlette.responses import Response

from airflow_provider_ocidist.emulator import installation
from airflow_provider_ocidist.emulator.auth import tokens
from airflow_provider_ocidist.emulator.context import Context
from airflow_provider_ocidist.emulator.errors import invalid
from airflow_provider_ocidist.emulator.wire import Call, Route, answer

BASE = "/_emulator"
MAX_CALLS = 20_000
Rule = TypeVar("Rule", "Fault", "NodeRule")


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedCall:
    """A request that was answered, or cut off (status 0)."""

    method: str
    path: str
    status: int
    time: float
    """Seconds since 1970, at the request's start."""
    duration_s: float
    request_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """What goes wrong, for which requests. At least one of `status`, `latency_s`, `drop`."""

    method: str = ".*"
    path: str = ".*"
    """Regular expressions over all of the method and of the path (percent-encoded, without the query)."""
    status: int | None = None
    """Answer this, do nothing."""
    code: str = "InternalServerError"
    message: str = "Injected by the emulator."
    latency_s: float = 0.0
    """Wait first."""
    drop: Literal["before", "after", "body"] | None = None
    """Cut the connection: before the request has any effect, after it had, or inside the answer's body."""
    body_bytes: int = 0
    """With `drop: body`: so many bytes of the body are sent."""
    times: int | None = None
    """How often; None: until reset."""

    def matches(self, method: str, path: str) -> bool:
        return bool(re.fullmatch(self.method, method) and re.fullmatch(self.path, path))


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeRule:
    """What happens to nodes of job runs with certain names, before their program starts."""

    display_name: str = ".*"
    """Regular expression over all of the job run's displayName."""
    delay_s: float | None = None
    never_starts: bool = False
    """It stays ACCEPTED until it is canceled."""
    failure: str | None = None
    """The run fails with these lifecycleDetails, such as "Out of host capacity."."""
    times: int | None = None

    def matches(self, display_name: str) -> bool:
        return re.fullmatch(self.display_name, display_name) is not None


class Rules:
    """Rules in the order given; the first that matches counts, as often as it may."""

    def __init__(self) -> None:
        self._rules: list[tuple[Any, int | None]] = []

    def add(self, rule: Fault | NodeRule) -> None:
        self._rules.append((rule, rule.times))

    def clear(self) -> None:
        self._rules.clear()

    def take(self, *subject: str) -> Any:
        """Return the rule for a subject and count it as used; None when there is none."""
        for place, (rule, left) in enumerate(self._rules):
            if left != 0 and rule.matches(*subject):
                self._rules[place] = (rule, None if left is None else left - 1)
                return rule
        return None

    def bodies(self) -> list[dict[str, Any]]:
        return [{**asdict(rule), "left": left} for rule, left in self._rules]


class NodeRules(Rules):
    """Rules about nodes."""

    def find(self, display_name: str) -> NodeRule | None:
        found: NodeRule | None = self.take(display_name)
        return found


class Faults(Rules):
    """Rules about requests."""

    def find(self, method: str, path: str) -> Fault | None:
        found: Fault | None = self.take(method, path)
        return found


class Control:
    """The routes of `/_emulator`, and what they have set."""

    def __init__(self, context: Context, on_reset: Callable[[], Awaitable[None]]) -> None:
        self.faults = Faults()
        self.nodes = NodeRules()
        self.calls: deque[RecordedCall] = deque(maxlen=MAX_CALLS)
        self._context = context
        self._on_reset = on_reset

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/health", self.health, signed=False),
            Route("GET", BASE, self.overview, signed=False),
            Route("POST", f"{BASE}/reset", self.reset, signed=False),
            Route("GET", f"{BASE}/calls", self.list_calls, signed=False),
            Route("DELETE", f"{BASE}/calls", self.forget_calls, signed=False),
            Route("POST", f"{BASE}/faults", self.add_fault, signed=False),
            Route("DELETE", f"{BASE}/faults", self.remove_faults, signed=False),
            Route("POST", f"{BASE}/nodes", self.add_node_rule, signed=False),
            Route("DELETE", f"{BASE}/nodes", self.remove_node_rules, signed=False),
            # Signed: it gives away the right to run programs as the user who started the emulator.
            Route("POST", f"{BASE}/sessions", self.create_session),
        ]

    def record(self, call: Call, status: int, started: float) -> None:
        query = call.request.url.query
        path = f"{call.raw_path}?{query}" if query else call.raw_path
        recorded = RecordedCall(
            method=call.method,
            path=path,
            status=status,
            time=started,
            duration_s=time.time() - started,
            request_id=call.request_id,
        )
        self.calls.append(recorded)

    async def health(self, _: Call) -> Response:
        return answer({"status": "ok"})

    async def overview(self, _: Call) -> Response:
        return answer(
            {
                "url": self._context.url,
                "ids": asdict(self._context.ids),
                "options": asdict(self._context.options),
                "calls": len(self.calls),
                "faults": self.faults.bodies(),
                "nodes": self.nodes.bodies(),
            }
        )

    async def reset(self, _: Call) -> Response:
        """Return to the state of a fresh start; identifiers and keys stay."""
        self.faults.clear()
        self.nodes.clear()
        await self._on_reset()
        self.calls.clear()
        return answer()

    async def list_calls(self, _: Call) -> Response:
        return answer([asdict(each) for each in self.calls])

    async def forget_calls(self, _: Call) -> Response:
        self.calls.clear()
        return answer()

    async def add_fault(self, call: Call) -> Response:
        fault = _read(Fault, await call.json())
        if fault.status is None and not fault.latency_s and fault.drop is None:
            raise invalid("A fault needs status, latency_s or drop.")
        if fault.drop not in (None, "before", "after", "body"):
            raise invalid("drop must be before, after or body.")
        self.faults.add(fault)
        return answer(self.faults.bodies())

    async def remove_faults(self, _: Call) -> Response:
        self.faults.clear()
        return answer()

    async def add_node_rule(self, call: Call) -> Response:
        self.nodes.add(_read(NodeRule, await call.json()))
        return answer(self.nodes.bodies())

    async def remove_node_rules(self, _: Call) -> Response:
        self.nodes.clear()
        return answer()

    async def create_session(self, call: Call) -> Response:
        """Issue what `oci session authenticate` would: a token of `lifetime_s` seconds and its key."""
        details = await call.json()
        context = self._context
        claims = {"sub": context.ids.user_id, "tenant": context.ids.tenancy_id, "ptype": "user"}
        token = tokens.issue(
            context.installation.issuer,
            context.installation.session.public_key(),
            claims,
            lifetime_s=float(details.get("lifetime_s", 3600)),
        )
        return answer({"token": token, "private_key": installation.pem(context.installation.session)})


def _read(kind: type[Rule], details: Mapping[str, Any]) -> Rule:
    """Build a rule from JSON. Raises 400 for a field that it does not have."""
    known = {field.name for field in fields(kind)}
    unknown = set(details) - known
    if unknown:
        raise invalid(f"Unknown: {', '.join(sorted(unknown))}; known: {', '.join(sorted(known))}.")
    try:
        for name in {"method", "path", "display_name"} & set(details):
            re.compile(details[name])
        return kind(**details)
    except (TypeError, re.error) as error:
        raise invalid(str(error)) from error
