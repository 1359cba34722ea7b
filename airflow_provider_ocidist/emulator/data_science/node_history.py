"""The states of each node of a run, for the status page. The service reports whole groups only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_ocidist.emulator.data_science.lifecycle import State
from airflow_provider_ocidist.emulator.nodes.life import LifeEnd
from airflow_provider_ocidist.emulator.wire import now

MAX_RUNS = 1000
"""Most runs that are remembered; in memory only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeTimes:
    """One node, in the states of the run's life cycle."""

    rank: int
    group: str
    state: State = State.ACCEPTED
    address: str | None = None
    accepted: str
    started: str | None = None
    finished: str | None = None
    exit_code: int | None = None


class NodeHistory:
    """The nodes of the newest runs, by run and rank."""

    def __init__(self) -> None:
        self._runs: dict[str, dict[int, NodeTimes]] = {}

    def of(self, run_id: str) -> list[NodeTimes]:
        return sorted(self._runs.get(run_id, {}).values(), key=lambda node: node.rank)

    def accepted(self, run_id: str, rank: int, group: str) -> None:
        if run_id not in self._runs and len(self._runs) >= MAX_RUNS:
            del self._runs[next(iter(self._runs))]
        self._runs.setdefault(run_id, {})[rank] = NodeTimes(rank=rank, group=group, accepted=now())

    def started(self, run_id: str, rank: int) -> None:
        self._change(run_id, rank, state=State.IN_PROGRESS, started=now())

    def has_address(self, run_id: str, rank: int, address: str) -> None:
        self._change(run_id, rank, address=address)

    def ended(self, run_id: str, end: LifeEnd) -> None:
        state = State.SUCCEEDED if end.succeeded else State.FAILED
        if end.exit_code is None and end.failure is None:
            state = State.CANCELED
        self._change(run_id, end.rank, state=state, finished=now(), exit_code=end.exit_code)

    def clear(self) -> None:
        self._runs.clear()

    def _change(self, run_id: str, rank: int, **fields: Any) -> None:
        """Events of dropped runs are ignored."""
        nodes = self._runs.get(run_id, {})
        if rank in nodes:
            nodes[rank] = replace(nodes[rank], **fields)
