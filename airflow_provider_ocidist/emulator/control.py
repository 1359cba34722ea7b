"""Control: the API by which tests control the emulator, under `/_emulator`; unsigned but for sessions."""

from __future__ import annotations

import re
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Protocol, TypeVar, get_args, get_origin, get_type_hints

from starlette.responses import Response

from airflow_provider_ocidist.emulator import installation, patterns
from airflow_provider_ocidist.emulator.auth import tokens
from airflow_provider_ocidist.emulator.context import Context
from airflow_provider_ocidist.emulator.errors import invalid, limit_exceeded
from airflow_provider_ocidist.emulator.faults import Fault, Faults
from airflow_provider_ocidist.emulator.nodes.rules import NodeRule, NodeRules
from airflow_provider_ocidist.emulator.wire import REQUEST_ID, Call, Route, answer, encode_json

BASE = "/_emulator"
HEALTH = "/health"
MAX_CALLS = 20_000
MAX_PATH_CHARS = 4_096
"""Most characters of each path and host that is kept of a call."""
PAR_PATH = re.compile(r"/p/[^/?\s]+(?=/n/|[?\s]|$)")
CALL_FILTERS = ("method", "path", "host")
FILTER_S = 0.3
"""Seconds of a processor that the filters of one request may take."""
MAX_RULES = 1_000
"""Most rules of each kind: every request, or every node, is compared with all of them."""
MAX_SHOWN = 200
"""Most characters of a wrong value in a message."""
MAX_RULE_CHARS = 10_000
"""Most characters of each text of a rule."""
Rule = TypeVar("Rule")
RuleT_contra = TypeVar("RuleT_contra", contravariant=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedCall:
    """A request that was answered, or cut off (status 0)."""

    method: str
    path: str
    status: int
    time: float
    """Unix time at the request's start."""
    duration_s: float
    request_id: str
    host: str


def recorded(
    method: str, path: str, status: int, started: float, *, request_id: str = "", host: str = ""
) -> RecordedCall:
    """Return what is kept of a request: little, for a client without a key may send thousands of long ones."""
    return RecordedCall(
        method=method,
        path=path[:MAX_PATH_CHARS],
        status=status,
        time=started,
        duration_s=time.time() - started,
        request_id=request_id if REQUEST_ID.fullmatch(request_id) else "",
        host=host[:MAX_PATH_CHARS],
    )


class Control:
    """The routes of `/_emulator`, and their settings."""

    def __init__(self, context: Context, on_reset: Callable[[], Awaitable[None]]) -> None:
        self.faults = Faults(context.options.seed)
        self.nodes = NodeRules()
        self.calls: deque[RecordedCall] = deque(maxlen=MAX_CALLS)
        self._context = context
        self._on_reset = on_reset

    def routes(self) -> list[Route]:
        return [
            Route("GET", HEALTH, self.health, signed=False),
            Route("GET", BASE, self.overview, signed=False),
            Route("POST", f"{BASE}/reset", self.reset, signed=False),
            Route("GET", f"{BASE}/calls", self.list_calls, signed=False),
            Route("DELETE", f"{BASE}/calls", self.forget_calls, signed=False),
            Route("POST", f"{BASE}/faults", self.add_fault, signed=False),
            Route("DELETE", f"{BASE}/faults", self.remove_faults, signed=False),
            Route("POST", f"{BASE}/seed", self.set_seed, signed=False),
            Route("POST", f"{BASE}/nodes", self.add_node_rule, signed=False),
            Route("DELETE", f"{BASE}/nodes", self.remove_node_rules, signed=False),
            # Signed: it grants the right to run programs as the user who started the emulator.
            Route("POST", f"{BASE}/sessions", self.create_session),
        ]

    def record(self, call: Call, status: int, started: float) -> None:
        self.calls.append(
            recorded(
                call.method,
                hide_par(call.target),
                status,
                started,
                request_id=call.request_id,
                host=call.headers.get("host", ""),
            )
        )

    async def health(self, _: Call) -> Response:
        return answer({"status": "ok"})

    async def overview(self, _: Call) -> Response:
        return answer(
            {
                "url": self._context.url,
                "ids": self._context.ids.public(),
                "options": asdict(self._context.options),
                "calls": len(self.calls),
                "faults": self.faults.bodies(),
                "seed": self.faults.seed,
                "nodes": self.nodes.bodies(),
            }
        )

    async def reset(self, _: Call) -> Response:
        """Return to the state of a fresh start; identifiers and keys stay."""
        self._forget_faults()
        self.nodes.clear()
        await self._on_reset()
        self.calls.clear()
        return answer()

    async def list_calls(self, call: Call) -> Response:
        """Return the calls so far, the oldest first; `method`, `path` (with the query) and `host` filter them."""
        return answer(filtered(self.calls, call.query))

    async def forget_calls(self, _: Call) -> Response:
        self.calls.clear()
        return answer()

    async def add_fault(self, call: Call) -> Response:
        fault = rule_of(Fault, await call.json())
        check_room(self.faults)
        if fault.stale_s is not None:
            self._context.store.keep_history(fault.stale_s)
        return added(self.faults, fault)

    async def remove_faults(self, _: Call) -> Response:
        self._forget_faults()
        return answer()

    def _forget_faults(self) -> None:
        self.faults.clear()
        self._context.store.keep_history(0)

    async def set_seed(self, call: Call) -> Response:
        seed = (await call.json()).get("seed")
        if type(seed) is not int:
            raise invalid("seed must be a whole number.")
        self.faults.sow(seed)
        return answer({"seed": seed})

    async def add_node_rule(self, call: Call) -> Response:
        return added(self.nodes, rule_of(NodeRule, await call.json()))

    async def remove_node_rules(self, _: Call) -> Response:
        self.nodes.clear()
        return answer()

    async def create_session(self, call: Call) -> Response:
        """Issue what `oci session authenticate` would: a token of `lifetime_s` seconds and its key."""
        lifetime_s = (await call.json()).get("lifetime_s", 3600)
        if type(lifetime_s) not in (int, float) or not abs(lifetime_s) <= sys.float_info.max:
            raise invalid("lifetime_s must be a number of seconds.")
        context = self._context
        claims = {"sub": context.ids.user_id, "tenant": context.ids.tenancy_id, "ptype": "user"}
        token = tokens.issue(
            context.installation.issuer,
            context.installation.session.public_key(),
            claims,
            lifetime_s=lifetime_s,
        )
        return answer({"token": token, "private_key": installation.pem(context.installation.session)})


def filtered(calls: Iterable[RecordedCall], query: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the calls that fit the filters of a query. Raises 400 for a filter that is no expression."""
    wanted = {name: query[name] for name in CALL_FILTERS if name in query}
    budget = patterns.Budget(FILTER_S)
    try:
        for pattern in wanted.values():
            patterns.compiled(pattern)
        return [
            asdict(each)
            for each in calls
            if patterns.all_fit(list(wanted.values()), [getattr(each, name) for name in wanted], budget)
        ]
    except patterns.PatternError as error:
        raise invalid(f"A filter cannot be used: {error}.") from error


class Rules(Protocol[RuleT_contra]):
    """Rules of one kind."""

    def add(self, rule: RuleT_contra, /) -> None: ...

    def bodies(self) -> Sequence[Any]: ...


def added(rules: Rules[Rule], rule: Rule) -> Response:
    """Add a rule, and answer with all of its kind. Raises 400 where there is no room for it."""
    check_room(rules)
    rules.add(rule)
    return answer(rules.bodies())


def check_room(rules: Rules[Any]) -> None:
    if len(rules.bodies()) >= MAX_RULES:
        raise limit_exceeded(f"There are {MAX_RULES} rules of this kind already.")


def hide_par(text: str) -> str:
    """Return a text without the secret that makes the URL of a pre-authenticated request."""
    return PAR_PATH.sub("/p/(hidden)", text)


def rule_of(kind: type[Rule], details: Mapping[str, Any]) -> Rule:
    """Build a rule from JSON. Raises 400 for a field that it does not have."""
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]  # each kind is a dataclass
    unknown = set(details) - known
    if unknown:
        raise invalid(f"Unknown: {', '.join(sorted(unknown))}; known: {', '.join(sorted(known))}.")
    types = get_type_hints(kind)
    for name, value in details.items():
        if not _fits(value, types[name]):
            raise invalid(f"{name} cannot be {encode_json(value)[:MAX_SHOWN]}.")
    try:
        return kind(**details)
    except (TypeError, patterns.PatternError) as error:
        raise invalid(str(error)) from error


def _fits(value: Any, wanted: Any) -> bool:
    """Return whether a value from JSON is of a field's type."""
    if get_origin(wanted) is Literal:
        return value in get_args(wanted)
    if get_args(wanted):
        return any(_fits(value, each) for each in get_args(wanted))
    if wanted is float:
        return is_span(value)
    return type(value) is wanted and (wanted is not str or len(value) <= MAX_RULE_CHARS)


def is_span(value: Any) -> bool:
    """Return whether a value from JSON is a number from 0 on that a clock takes; whole ones may be larger than any."""
    return type(value) in (int, float) and 0 <= value <= sys.float_info.max
