"""Control: the API by which tests control the emulator, under `/_emulator`; unsigned but for sessions."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict

from starlette.responses import Response

from airflow_provider_ocidist.emulator import installation
from airflow_provider_ocidist.emulator.api_control import ApiControl
from airflow_provider_ocidist.emulator.auth import tokens
from airflow_provider_ocidist.emulator.context import Context
from airflow_provider_ocidist.emulator.control_rules import added, rule_of
from airflow_provider_ocidist.emulator.errors import invalid
from airflow_provider_ocidist.emulator.faults import Faults
from airflow_provider_ocidist.emulator.nodes.rules import NodeRule, NodeRules
from airflow_provider_ocidist.emulator.recorded_calls import hide_par, new_record, recorded
from airflow_provider_ocidist.emulator.wire import Call, Route, answer

BASE = "/_emulator"
HEALTH = "/health"


class Control:
    """The routes of `/_emulator`, and their settings."""

    def __init__(self, context: Context, on_reset: Callable[[], Awaitable[None]]) -> None:
        self.faults = Faults(context.options.seed)
        self.nodes = NodeRules()
        self.calls = new_record()
        self._context = context
        self._on_reset = on_reset
        self._api = ApiControl(
            BASE,
            calls=lambda: self.calls,
            faults=lambda: self.faults,
            stale=context.store.keep_history,
            after_removal=lambda: context.store.keep_history(0),
        )

    def routes(self) -> list[Route]:
        return [
            Route("GET", HEALTH, self.health, signed=False),
            Route("GET", BASE, self.overview, signed=False),
            Route("POST", f"{BASE}/reset", self.reset, signed=False),
            *self._api.routes(),
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
        self._api.clear_faults()
        self.nodes.clear()
        await self._on_reset()
        self.calls.clear()
        return answer()

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
