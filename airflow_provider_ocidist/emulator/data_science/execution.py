"""One job run's nodes, from capacity to the last of them: started in order, watched, ended together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from airflow_provider_ocidist.emulator.context import Options
from airflow_provider_ocidist.emulator.data_science import lifecycle
from airflow_provider_ocidist.emulator.data_science.layout import Layout, NodeGroup
from airflow_provider_ocidist.emulator.data_science.lifecycle import GroupState, RunEnd
from airflow_provider_ocidist.emulator.nodes.capacity import Capacity
from airflow_provider_ocidist.emulator.nodes.life import LifeEnd, NodeLife, NodePlan
from airflow_provider_ocidist.emulator.nodes.machine import NodeError
from airflow_provider_ocidist.emulator.nodes.nodes_file import NodesFile

logger = logging.getLogger(__name__)


class Record(Protocol):
    """Where an execution writes down what becomes of its run."""

    def is_started(self) -> None: ...
    def needs_attention(self, *, needed: bool) -> None: ...
    def group_is(self, name: str, state: GroupState, details: str) -> None: ...
    def node_accepted(self, rank: int, group: str) -> None: ...
    def node_has_address(self, rank: int, address: str) -> None: ...
    def node_started(self, rank: int) -> None: ...
    def node_ended(self, end: LifeEnd) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Orders:
    """What is to be executed."""

    layout: Layout
    plans: Mapping[int, NodePlan]
    """Plans of the nodes, by rank."""
    folder: Path
    """Folder of the run; made and removed with it."""
    token: Callable[[], str]
    """Function that returns a fresh resource principal token."""

    @property
    def nodes_file(self) -> Path:
        return nodes_file(self.folder)


def nodes_file(folder: Path) -> Path:
    return folder / "cluster_nodes.json"


class Execution:
    """Runs the nodes of one job run. `run` returns how it ended; it leaves no process."""

    def __init__(self, orders: Orders, capacity: Capacity, options: Options, record: Record) -> None:
        self._orders = orders
        self._capacity = capacity
        self._options = options
        self._record = record
        self._nodes_file = NodesFile(orders.nodes_file)
        self._ending: RunEnd | None = None
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._nodes: list[asyncio.Task[LifeEnd]] = []
        self._lives: dict[int, NodeLife] = {}
        self._ready: set[int] = set()
        self._over: dict[int, LifeEnd] = {}
        self._started: set[int] = set()
        self._limit: asyncio.TimerHandle | None = None
        self._gates = {group.name: asyncio.Event() for group in orders.layout.groups}

    def cancel(self) -> None:
        """End the nodes with SIGTERM, and after the grace with SIGKILL."""
        self._end(lifecycle.after_cancel())

    def abandon(self) -> None:
        """End the nodes at once, because the emulator stops."""
        self._hurry.set()
        self._end(lifecycle.after_cancel())

    @property
    def abandoned(self) -> bool:
        return self._hurry.is_set()

    def _end(self, ending: RunEnd) -> None:
        """End the run. Of several reasons the first counts."""
        self._ending = self._ending or ending
        self._stop.set()

    async def run(self) -> RunEnd:
        nodes = [plan.kind for plan in self._orders.plans.values()]
        try:
            if not await self._capacity.admit(nodes, self._stop):
                return lifecycle.after_cancel()
        except NodeError as error:
            return lifecycle.not_started(str(error))
        try:
            return await self._run_groups()
        finally:
            self._capacity.release(nodes)

    async def _run_groups(self) -> RunEnd:
        self._orders.folder.mkdir()
        groups = self._orders.layout.groups
        before = [None, *groups] if self._orders.layout.in_order else [None] * len(groups)
        tasks = [
            asyncio.create_task(self._run_group(group, previous))
            for group, previous in zip(groups, before, strict=False)
        ]
        for task in tasks:
            task.add_done_callback(self._check)
        renewal = asyncio.create_task(self._renew_tokens())
        try:
            await self._stop.wait()
            await self._end_nodes()
        finally:
            renewal.cancel()
            # A group that the emulator failed to watch has not waited for its nodes.
            await asyncio.gather(renewal, *tasks, *self._nodes, return_exceptions=True)
            if self._limit is not None:
                self._limit.cancel()
        assert self._ending is not None
        return self._ending

    def _check(self, task: asyncio.Task[None]) -> None:
        """Do not wait for ever for a group that the emulator itself failed."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("the emulator failed to run a node group", exc_info=error)
            self._end(lifecycle.not_started(f"Internal error: {error}"))

    async def _run_group(self, group: NodeGroup, previous: NodeGroup | None) -> None:
        if previous is not None and await self._stopped_before(self._gates[previous.name]):
            self._record.group_is(group.name, GroupState.DELETED, "Node group was not created.")
            return
        tasks = [asyncio.create_task(self._live(rank)) for rank in group.ranks]
        self._nodes += tasks
        ends: list[LifeEnd] = []
        decided: bool | None = None
        for task in asyncio.as_completed(tasks):
            end = await task
            self._over[end.rank] = end
            ends.append(end)
            if decided is None and not self._stop.is_set():
                decided = self._decide(group, ends)
            self._open_gate(group)
        self._record_end(group, ends, decided)

    async def _stopped_before(self, gate: asyncio.Event) -> bool:
        """Wait until the group before is ready; return whether the run was stopped instead."""
        waits = [asyncio.ensure_future(event.wait()) for event in (gate, self._stop)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return self._stop.is_set()

    async def _live(self, rank: int) -> LifeEnd:
        self._record.node_accepted(rank, self._group_of(rank).name)
        life = self._lives[rank] = NodeLife(self._orders.plans[rank], self._capacity, self._stop, self)
        end = await life.live()
        self._record.node_ended(end)
        return end

    def _decide(self, group: NodeGroup, ends: Sequence[LifeEnd]) -> bool | None:
        """Look at a group after one of its nodes has ended: that may decide the whole run."""
        decided = lifecycle.verdict(ends, replicas=group.replicas, minimum_success=group.minimum_success)
        if decided is False:
            ending = lifecycle.after_node(_first_failure(ends), group.name)
            self._record.group_is(group.name, GroupState.FAILED, ending.details)
            self._end(ending)
        elif decided and self._all_succeeded():
            self._end(lifecycle.after_exit(0))
        return decided

    def _all_succeeded(self) -> bool:
        return all(
            lifecycle.verdict(
                [self._over[rank] for rank in group.ranks if rank in self._over],
                replicas=group.replicas,
                minimum_success=group.minimum_success,
            )
            for group in self._orders.layout.groups
        )

    def _record_end(self, group: NodeGroup, ends: Sequence[LifeEnd], decided: bool | None) -> None:
        if decided is not False:
            succeeded = sum(end.succeeded for end in ends)
            message = f"Node group ended: {succeeded} of {group.replicas} nodes succeeded."
            self._record.group_is(group.name, GroupState.DELETED, message)

    async def _end_nodes(self) -> None:
        """Send SIGTERM to all at once, and SIGKILL to those that are left when the grace is over."""
        for group in self._orders.layout.groups:
            if any(rank in self._started and rank not in self._over for rank in group.ranks):
                self._record.group_is(group.name, GroupState.DELETING, "Node group is being stopped.")
        nodes = [life.process for life in self._lives.values() if life.process is not None]
        for node in nodes:
            node.terminate()
        exits = asyncio.gather(*(node.exited for node in nodes))
        hurry = asyncio.ensure_future(self._hurry.wait())
        ends: set[asyncio.Future[Any]] = {exits, hurry}
        await asyncio.wait(ends, timeout=self._options.grace_s, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        for node in nodes:
            node.kill()
        await exits

    async def _renew_tokens(self) -> None:
        """Replace the nodes' tokens well before they expire, as the service does."""
        while True:
            await asyncio.sleep(self._options.token_lifetime_s / 2)
            token = self._orders.token()
            for life in self._lives.values():
                life.renew_token(token)

    def has_address(self, rank: int, address: str) -> None:
        self._record.node_has_address(rank, address)
        if self._orders.layout.multi_node:
            self._nodes_file.add(rank, address)

    def is_started(self, rank: int) -> None:
        """Note that a node has started. The time of the run begins with the first."""
        self._started.add(rank)
        self._record.node_started(rank)
        minutes = self._orders.layout.minutes
        if len(self._started) == 1:
            self._record.is_started()
            if minutes is not None:
                loop = asyncio.get_running_loop()
                ending = lifecycle.after_timeout(minutes)
                self._limit = loop.call_later(minutes * self._options.minute_s, self._end, ending)
        group = self._group_of(rank)
        if self._started >= set(group.ranks) and not self._stop.is_set():
            self._record.group_is(group.name, GroupState.ACTIVE, "Node group is active.")

    def is_ready(self, rank: int) -> None:
        self._ready.add(rank)
        self._open_gate(self._group_of(rank))

    def needs_attention(self, *, needed: bool) -> None:
        if not self._stop.is_set():
            self._record.needs_attention(needed=needed)

    def _open_gate(self, group: NodeGroup) -> None:
        """Let the next group start once no node of this one has yet to become ready."""
        if self._ready | self._over.keys() >= set(group.ranks):
            self._gates[group.name].set()

    def _group_of(self, rank: int) -> NodeGroup:
        return next(group for group in self._orders.layout.groups if rank in group.ranks)


def _first_failure(ends: Sequence[LifeEnd]) -> LifeEnd:
    return next(end for end in ends if not end.succeeded)
