"""How often the task's log, and the metrics, have what a run has used."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from airflow_provider_ocidist.gangs.spending_log import SPENDING_EVERY, SpendingLog
from airflow_provider_ocidist.model.run import NodeState, RunStatus
from tests.gangs.records import START, node

LOG = logging.getLogger("test")
LIVE = RunStatus(nodes=(node(0, NodeState.RUNNING, started_at=START - 3600.0),))
ENDED = RunStatus(nodes=(replace(LIVE.nodes[0], state=NodeState.SUCCEEDED, finished_at=START),))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_it_is_logged_and_published_every_ten_minutes_and_once_at_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    clock, published = Clock(), []
    spending_log = SpendingLog(LOG, clock)
    spending_log.publish = published.append
    for clock.now in (1.0, SPENDING_EVERY - 1, SPENDING_EVERY, SPENDING_EVERY + 1, 2 * SPENDING_EVERY):
        spending_log.add(LIVE, START, None)
    assert [str(each) for each in published] == caplog.messages == ["used so far: 1.00 node-hours"] * 2
    for _ in range(2):
        spending_log.add(ENDED, START, None)
    assert caplog.messages[2:] == ["used: 1.00 node-hours"]


def test_nothing_is_logged_before_a_node_has_begun(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    waiting = RunStatus(nodes=(node(0, NodeState.PENDING),))
    clock = Clock()
    spending_log = SpendingLog(LOG, clock)
    clock.now = SPENDING_EVERY
    spending_log.add(waiting, START, None)
    assert caplog.messages == []
