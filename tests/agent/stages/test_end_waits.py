"""For how long a node that has succeeded waits for another: limits of docs/failures/waits.md, by a virtual clock."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_ocidist.agent.join import peer_reports
from airflow_provider_ocidist.agent.join.silence import GONE_AFTER
from airflow_provider_ocidist.agent.stages import gang_end
from tests.agent.stages.test_gang_end_rules import SUCCESS, Node, a_report

SEED = int(os.environ.get("TEST_SEED", "20261127"))
A_LOOK = 0.5
FAR_LONGER = 1000.0


class Waiting:
    """Node 1 of three, which waits for node 0; that one sends heartbeats for so many seconds."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, beats_for: float, **main: Any) -> None:
        self.now, self.beats_for, self.main = 0.0, beats_for, main
        self.node = Node(folder, rank=1, min_nodes=2)
        self.node.context.main_rank = 0
        self.node.switch.event.wait = self._pause
        self._beat()
        for module in (gang_end, peer_reports):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))

    def waits(self, join_timeout: float, *, follows: bool) -> float:
        """Return how long it waits before its success stands."""
        self.node.context.config.limits = SimpleNamespace(join_timeout=join_timeout)
        assert self.node.end.agreed(SUCCESS, follows=follows) == SUCCESS
        return self.now

    def _beat(self) -> None:
        self.node.others(replace(a_report(0, **self.main), heartbeat_at=1e9 + self.now))

    def _pause(self, seconds: float | None = None) -> bool:
        assert seconds is not None, "it looks again by itself"
        self.now += seconds
        assert self.now < FAR_LONGER, "it waits for ever"
        if self.now <= self.beats_for:
            self._beat()
        return False


@pytest.fixture
def draw(request: pytest.FixtureRequest) -> random.Random:
    print(f"TEST_SEED={SEED}")
    return random.Random(f"{SEED} {request.node.name}")


def test_a_main_node_that_admits_late_nodes_is_waited_for_no_longer_than_the_join_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, draw: random.Random
) -> None:
    limit = draw.uniform(2.0, 90.0)
    waited = Waiting(tmp_path, monkeypatch, 1e9, admits=True).waits(limit, follows=False)
    assert limit <= waited <= limit + A_LOOK


def test_a_main_node_that_is_gone_while_it_admits_is_waited_for_for_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, draw: random.Random
) -> None:
    beats = draw.uniform(0.0, 30.0)
    waited = Waiting(tmp_path, monkeypatch, beats, admits=True).waits(1e9, follows=False)
    assert beats - A_LOOK + GONE_AFTER <= waited <= beats + GONE_AFTER + 2 * A_LOOK


def test_who_follows_the_first_node_waits_while_that_sends_heartbeats_and_a_minute_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, draw: random.Random
) -> None:
    beats = draw.uniform(100.0, 200.0)
    waiting = Waiting(tmp_path, monkeypatch, beats)
    waited = waiting.waits(draw.uniform(1.0, 50.0), follows=True)
    assert beats - A_LOOK + GONE_AFTER <= waited <= beats + GONE_AFTER + 2 * A_LOOK
