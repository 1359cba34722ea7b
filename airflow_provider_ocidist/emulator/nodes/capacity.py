"""The available machines: which nodes live on them now, and which runs wait for a free one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from airflow_provider_ocidist.emulator.nodes.addresses import AddressPool
from airflow_provider_ocidist.emulator.nodes.machine import NodeError
from airflow_provider_ocidist.emulator.nodes.rules import NO_CAPACITY, NodeKind, NodeRules

LOOK_INTERVAL_S = 0.05
"""Seconds between two looks, since rules can be removed while a run waits for them."""


class Capacity:
    """Admits runs, all nodes of one together, as far as the rules leave capacity."""

    def __init__(self, rules: NodeRules, pool: AddressPool) -> None:
        self.rules = rules
        self._pool = pool
        self._live: list[NodeKind] = []

    async def admit(self, nodes: Sequence[NodeKind], stop: asyncio.Event) -> bool:
        """Wait for room and take it; return whether it was found before the stop. Raises NodeError."""
        while rule := self.rules.room(nodes, self._live):
            if rule.when_full == "fail":
                raise NodeError(NO_CAPACITY)
            if await happens(stop, LOOK_INTERVAL_S):
                return False
        self._live.extend(nodes)
        return True

    def take_address(self) -> str:
        """Return an address that no live node has. Raises NodeError when there is none left."""
        try:
            return self._pool.take()
        except LookupError as error:
            raise NodeError(f"Job run could not start: {error}.") from error

    def give_back(self, address: str) -> None:
        self._pool.give_back(address)

    def close(self) -> None:
        self._pool.close()

    def release(self, nodes: Sequence[NodeKind]) -> None:
        for node in nodes:
            self._live.remove(node)


async def happens(event: asyncio.Event, within_s: float | None) -> bool:
    """Wait for an event, but no longer than that; None waits for ever."""
    try:
        await asyncio.wait_for(event.wait(), within_s)
    except asyncio.TimeoutError:
        return False
    return True
