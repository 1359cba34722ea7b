"""The life of one node: provisioned, started, probed, ended; by itself, by a rule, or by a stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

from airflow_provider_ocidist.emulator import trees
from airflow_provider_ocidist.emulator.nodes import machine, processes
from airflow_provider_ocidist.emulator.nodes.capacity import Capacity, happens
from airflow_provider_ocidist.emulator.nodes.machine import NodeError, NodeSpec
from airflow_provider_ocidist.emulator.nodes.processes import Node, NodeCommand
from airflow_provider_ocidist.emulator.nodes.rules import NO_RULE, NodeKind

PROBE_PERIOD_S, PROBE_ATTEMPTS = 10, 3
"""Defaults of a startup probe; the service documents none."""
LOST = "Job run failed: a node was lost because its host stopped responding."
PROBE_FAILED = "Job run failed: the startup probe did not succeed."

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class LifeEnd:
    """How a node ended: by itself with an exit code, else by a failure with its text, else by a stop."""

    rank: int
    exit_code: int | None = None
    failure: str | None = None

    @property
    def succeeded(self) -> bool:
        return self.exit_code == 0 and self.failure is None


class OutputSink(Protocol):
    """Receives the output of a node."""

    def write(self, stream: int, data: bytes) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class NodePlan:
    """All that is known of a node before it has an address."""

    kind: NodeKind
    spec: Callable[[str], NodeSpec]
    """Function that returns the node's specification, once its address is known."""
    output: Callable[[], OutputSink]
    """Function that opens the node's output when it starts."""
    notes: Callable[[], Sequence[str]]
    """Function that returns lines which the emulator itself writes into the node's log when the node starts."""
    probe: Mapping[str, Any] | None
    delay_s: float
    """Seconds from its provisioning to its start, unless a rule says otherwise."""
    keep_files: bool


class Watcher(Protocol):
    """Receives the events of a node."""

    def has_address(self, rank: int, address: str) -> None: ...
    def is_started(self, rank: int) -> None: ...
    def is_ready(self, rank: int) -> None: ...
    def needs_attention(self, *, needed: bool) -> None: ...


class NodeLife:
    """One node. `live` returns when it is over and no process is left."""

    def __init__(self, plan: NodePlan, capacity: Capacity, stop: asyncio.Event, watcher: Watcher) -> None:
        self._plan = plan
        self._capacity = capacity
        self._stop = stop
        self._watcher = watcher
        self._rule = NO_RULE
        self._failure: str | None = None
        self._spec: NodeSpec | None = None
        self.process: Node | None = None

    async def live(self) -> LifeEnd:
        rank = self._plan.kind.rank
        try:
            return await self._live()
        except NodeError as error:
            return LifeEnd(rank=rank, failure=str(error))
        except Exception as error:
            logger.exception("%s: the emulator failed to run node %d", self._plan.kind.display_name, rank)
            return LifeEnd(rank=rank, failure=f"Internal error: {error}")

    async def _live(self) -> LifeEnd:
        kind = self._plan.kind
        self._rule = self._capacity.rules.take(kind)
        delay = self._plan.delay_s if self._rule.delay_s is None else self._rule.delay_s
        if await happens(self._stop, None if self._rule.never_starts else delay):
            return LifeEnd(rank=kind.rank)
        if self._rule.failure:
            raise NodeError(self._rule.failure)
        if self._rule.idle:
            self._watcher.is_started(kind.rank)
            self._watcher.is_ready(kind.rank)
            await self._stop.wait()
            return LifeEnd(rank=kind.rank)
        address = self._capacity.take_address()
        self._spec = self._plan.spec(address)
        try:
            return await self._provisioned(self._spec, address)
        finally:
            self._capacity.give_back(address)
            if not self._plan.keep_files:
                await asyncio.to_thread(trees.remove, self._spec.folder)

    async def _provisioned(self, spec: NodeSpec, address: str) -> LifeEnd:
        command = await asyncio.to_thread(machine.prepare, spec)
        if self._rule.exit_code is not None:
            script = f"sleep {self._rule.after_s}; exit {self._rule.exit_code}"
            command = replace(command, arguments=["sh", "-c", script])
        if self._stop.is_set():
            return LifeEnd(rank=self._plan.kind.rank)
        self._watcher.has_address(self._plan.kind.rank, address)
        output = self._plan.output()
        for note in self._plan.notes():
            output.write(processes.STDERR, f"ocidist emulator: {note}\n".encode())
        try:
            self.process = await processes.start(command, output.write)
            return await self._started(self.process, command)
        finally:
            if self.process is not None:
                self.process.kill()
                await self.process.exited
            output.close()

    async def _started(self, process: Node, command: NodeCommand) -> LifeEnd:
        rank = self._plan.kind.rank
        loop = asyncio.get_running_loop()
        timers = [loop.call_later(self._rule.after_s, effect) for effect in self._effects()]
        self._watcher.is_started(rank)
        ready = asyncio.create_task(self._become_ready(command))
        try:
            # It may have been started just when all others were stopped.
            if self._stop.is_set():
                process.kill()
            code = await process.exited
            return LifeEnd(rank=rank, exit_code=code, failure=self._failure)
        finally:
            for timer in timers:
                timer.cancel()
            ready.cancel()
            await asyncio.gather(ready, return_exceptions=True)

    def _effects(self) -> list[Callable[[], None]]:
        """Return what the node's rule does some time after its start."""
        effects: list[Callable[[], None]] = []
        if self._rule.lost:
            effects.append(lambda: self._fail(LOST))
        if self._rule.attention_s is not None:
            effects.append(self._want_attention)
        return effects

    def _want_attention(self) -> None:
        self._watcher.needs_attention(needed=True)
        asyncio.get_running_loop().call_later(
            self._rule.attention_s or 0, lambda: self._watcher.needs_attention(needed=False)
        )

    def _fail(self, reason: str) -> None:
        if self.process is not None and not self.process.exited.done():
            self._failure = reason
            self.process.kill()

    async def _become_ready(self, command: NodeCommand) -> None:
        """Report the node as ready: once its probe has succeeded, or at once when it has none."""
        if self._plan.probe is not None and not await _probe(self._plan.probe, command):
            self._fail(PROBE_FAILED)
            return
        self._watcher.is_ready(self._plan.kind.rank)

    def renew_token(self, token: str) -> None:
        """Give a running node the token that follows the one it has."""
        if self._spec is not None and self.process is not None and not self.process.exited.done():
            # A program may have removed its own folder; the others must not fail for that.
            with suppress(OSError):
                machine.write_token(self._spec.folder, token)


async def _probe(probe: Mapping[str, Any], command: NodeCommand) -> bool:
    """Run a startup probe on a node until it succeeds; return whether it did within its attempts."""
    period = probe.get("periodInSeconds") or PROBE_PERIOD_S
    await asyncio.sleep(probe.get("initialDelayInSeconds") or 0)
    for attempt in range(probe.get("failureThreshold") or PROBE_ATTEMPTS):
        if attempt:
            await asyncio.sleep(period)
        if await _succeeds(replace(command, arguments=probe["command"]), period):
            return True
    return False


async def _succeeds(command: NodeCommand, limit_s: float) -> bool:
    process = await processes.start(command, lambda *_: None)
    try:
        return await asyncio.wait_for(asyncio.shield(process.exited), limit_s) == 0
    except asyncio.TimeoutError:
        return False
    finally:
        process.kill()
        await asyncio.shield(process.exited)
