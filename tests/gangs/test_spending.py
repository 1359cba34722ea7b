"""What a run has used, what that costs, and what it will: by generator; and the side that waits as a safety net."""

from __future__ import annotations

import logging
import random
from dataclasses import replace

import pytest

from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.gangs.actions import Cancel, Wait
from airflow_provider_ocidist.gangs.decisions import decide
from airflow_provider_ocidist.gangs.spending import Spending, bound, forecast_like, seconds_of, spent_of
from airflow_provider_ocidist.gangs.watch import Watch
from airflow_provider_ocidist.model.budget import Budget, Spent
from airflow_provider_ocidist.model.report import NodeReport, Phase, Progress, Restart
from airflow_provider_ocidist.model.run import (
    Expectations,
    NodeState,
    NodeStatus,
    RunRecord,
    RunRef,
    RunStatus,
)
from tests.service_in_memory import Model
from tests.training_jobs import a_job, a_key

SEED = random.randrange(10_000)
NOW = 1_000_000.0


def a_status(draw: random.Random, *, alive: bool = True) -> RunStatus:
    nodes = []
    for rank in range(draw.randrange(1, 9)):
        start = draw.choice([None, NOW - draw.uniform(0, 50_000)])
        end = NOW - draw.uniform(0, NOW - start) if start and (not alive or draw.random() < 0.3) else None
        state = (
            NodeState.PENDING if start is None else NodeState.RUNNING if end is None else NodeState.SUCCEEDED
        )
        report = NodeReport(
            rank=rank,
            phase=Phase.TRAINING,
            address="",
            started_at=1.0,
            heartbeat_at=2.0,
            spent_before=draw.choice([None, 300.0]),
        )
        node = NodeStatus(rank=rank, run_id="run", state=state, started_at=start, finished_at=end)
        nodes.append(replace(node, report=report if start else None))
    return RunStatus(nodes=tuple(nodes))


def test_every_node_counts_from_its_start_to_its_end_or_to_now() -> None:
    print("seed", SEED)
    draw = random.Random(SEED)
    for _ in range(200):
        status = a_status(draw)
        by_second = sum(
            (node.finished_at or NOW) - node.started_at
            for node in status.nodes
            if node.started_at is not None
        )
        before = 300.0 if any(node.report and node.report.spent_before for node in status.nodes) else 0.0
        assert spent_of(status, NOW, None).node_seconds == pytest.approx(by_second + before)
    assert seconds_of([(None, None)], NOW) is None
    assert seconds_of([(NOW + 5, None)], NOW) == 0.0


@pytest.mark.parametrize("state", [NodeState.FAILED, NodeState.CANCELED, NodeState.MISSING])
@pytest.mark.parametrize("heard_of", [True, False])
def test_a_node_that_is_gone_without_a_time_of_its_end_costs_no_more(
    state: NodeState, heard_of: bool
) -> None:
    report = NodeReport(
        rank=0, phase=Phase.TRAINING, address="", started_at=NOW - 900, heartbeat_at=NOW - 300
    )
    node = NodeStatus(rank=0, run_id="run", state=state, started_at=NOW - 900)
    status = RunStatus(nodes=(replace(node, report=report if heard_of else None),))
    used = [spent_of(status, at, None).node_seconds for at in (NOW, NOW + 86_400)]
    assert used == [600.0 if heard_of else 0.0] * 2


def test_the_forecast_is_what_the_living_nodes_take_to_the_last_step() -> None:
    print("seed", SEED)
    draw = random.Random(SEED)
    for _ in range(200):
        status, price, left = (
            a_status(draw),
            draw.choice([None, draw.uniform(0.1, 50)]),
            draw.uniform(0, 9000),
        )
        alive = sum(not node.state.terminal for node in status.nodes)
        known = Spending.of(status, NOW, price, left).to_json()
        hours = spent_of(status, NOW, None).node_seconds / 3600
        assert known["node_hours"] == pytest.approx(hours, abs=1e-4)
        assert ("cost" in known, "forecast_cost" in known) == (
            price is not None,
            price is not None and alive > 0,
        )
        if alive:
            assert known["forecast_node_hours"] == pytest.approx(hours + left * alive / 3600, abs=1e-3)
        if price is not None:
            assert known["cost"] == pytest.approx(hours * price, abs=1e-3)


def test_without_a_pace_nothing_is_foretold() -> None:
    status = a_status(random.Random(3))
    assert "forecast_node_hours" not in Spending.of(status, NOW, 2.0).to_json()
    used = Spent().plus(7200.0, 2.0)
    assert str(Spending(used, 2.0)) == "used so far: 2.00 node-hours (cost 4.00)"
    assert str(Spending(used, 2.0, 3600.0)) == (
        "used so far: 2.00 node-hours (cost 4.00), about 3.00 node-hours (cost 6.00) at the end"
    )
    assert str(Spending(Spent().plus(7200.0, None), ended=True)) == "used: 2.00 node-hours"


def test_what_earlier_attempts_have_cost_is_counted_at_their_own_prices() -> None:
    report = NodeReport(
        rank=0,
        phase=Phase.TRAINING,
        address="",
        started_at=NOW - 3600,
        heartbeat_at=NOW,
        spent_before=16 * 3600.0,
        cost_before=160.0,
    )
    node = NodeStatus(rank=0, run_id="a", state=NodeState.RUNNING, started_at=NOW - 3600, report=report)
    used = Spending.of(RunStatus(nodes=(node,)), NOW, 1.0, remaining=3600.0)
    assert used.to_json() == {
        "node_hours": 17.0,
        "cost": 161.0,
        "forecast_node_hours": 18.0,
        "forecast_cost": 162.0,
    }
    older = replace(report, cost_before=None)
    known = Spending.of(RunStatus(nodes=(replace(node, report=older),)), NOW, 1.0).to_json()
    assert known["cost"] == 17.0, "an agent of before does not say it"


def an_earlier_run(state: NodeState, progress: Progress | None) -> RunStatus:
    """Return a run of two nodes whose second has begun a minute late; they ended an hour after the first began."""
    report = NodeReport(
        rank=0, phase=Phase.TRAINING, address="", started_at=NOW, heartbeat_at=NOW, progress=progress
    )
    ended = NOW if state.terminal else None
    nodes = (
        NodeStatus(rank=rank, run_id=run, state=state, started_at=begun, finished_at=ended, report=report)
        for rank, (run, begun) in enumerate((("a", NOW - 3600), ("b", NOW - 3540)))
    )
    return RunStatus(nodes=tuple(nodes))


def test_a_run_is_foretold_from_how_long_an_earlier_one_took_or_from_its_pace() -> None:
    done = an_earlier_run(NodeState.SUCCEEDED, None)
    assert forecast_like(done, NOW + 9e9, 4, 2.0) == Spent(node_seconds=4 * 3600, cost=8.0)
    assert str(forecast_like(done, NOW, 2, None)) == "2.00 node-hours"
    amid = Progress(step=100, steps=400, step_time=12.0)
    for state in (NodeState.RUNNING, NodeState.FAILED):
        assert forecast_like(an_earlier_run(state, amid), NOW, 2, 1.0) == Spent(node_seconds=14_400, cost=4.0)
    for unknown in (None, Progress(step=100, step_time=12.0), Progress(step=100, steps=400)):
        assert forecast_like(an_earlier_run(NodeState.FAILED, unknown), NOW, 2, 1.0) is None
    fewer = Restart(cause=Cause.CAPACITY, message="no machine", members=(1,))
    first, second = done.nodes
    assert second.report is not None
    second = replace(second, report=replace(second.report, restarts=(fewer,)))
    alone = RunStatus(nodes=(replace(first, state=NodeState.FAILED), second))
    assert forecast_like(alone, NOW, 2, 1.0) == Spent(node_seconds=7200, cost=2.0), (
        "it succeeded with fewer nodes"
    )
    not_begun = NodeStatus(rank=0, run_id="a", state=NodeState.PENDING)
    assert forecast_like(RunStatus(nodes=(not_begun,)), NOW, 2, 1.0) is None


def a_record(budget: float, **expects: bool) -> RunRecord:
    ref = RunRef(
        backend="local",
        key=a_key(),
        nodes=2,
        job_id="job",
        run_ids=("a", "b"),
        run_dir="/x",
        submitted_at=NOW - 9e5,
    )
    return RunRecord(
        ref=ref,
        expects=Expectations(**expects),
        budget=Budget(node_seconds=budget),
    )


def running(seconds: float) -> RunStatus:
    nodes = (
        NodeStatus(rank=rank, run_id=run, state=NodeState.RUNNING, started_at=NOW - seconds)
        for rank, run in enumerate("ab")
    )
    return RunStatus(nodes=tuple(nodes), reports_readable=False)


def test_the_waiting_side_ends_what_its_nodes_do_not() -> None:
    without_agent = a_record(3600.0, reports=False)
    assert decide(without_agent, running(1799.0), NOW) == Wait()
    found = decide(without_agent, running(1801.0), NOW)
    assert isinstance(found, Cancel)
    assert found.ending.cause is Cause.BUDGET


def test_nodes_with_an_agent_are_left_to_end_by_themselves_for_a_while() -> None:
    record = a_record(3600.0)
    assert decide(record, running(1900.0), NOW) == Wait()
    found = decide(record, running(2200.0), NOW)
    assert isinstance(found, Cancel)
    assert "limits.max_node_hours 1" in found.ending.message


def test_the_plan_names_every_bound_of_a_job() -> None:
    assert bound(a_job(), None).startswith("not bounded: set limits.max_node_hours")
    said = bound(a_job(limits={"max_runtime": "2h", "max_cost": 10}), 4.0)
    assert said == (
        "at most 2.50 node-hours (cost 10.00) in all attempts (limits.max_cost 10); "
        "at most 4.00 node-hours (cost 16.00) an attempt (limits.max_runtime)"
    )


def test_a_metric_that_is_not_taken_ends_no_gang(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    service, job = Model(), a_job()
    ref = service.has(a_key(), [NodeState.RUNNING] * job.nodes)
    times = iter(range(0, 100_000, 700))
    record = RunRecord.of(ref, job, Expectations())
    watch = Watch(service, record, logging.getLogger("test"), clock=lambda: float(next(times)))

    def refuse(_: Spending) -> None:
        raise OSError("no route to the metrics")

    watch.spending_log.publish = refuse
    status = service.status([ref])[0]
    started = tuple(replace(node, started_at=NOW - 3600.0, finished_at=None) for node in status.nodes)
    action = watch.observe(replace(status, nodes=started, at=NOW), None, NOW, NOW)
    assert isinstance(action, Wait)
    assert "no route to the metrics" in caplog.text
    assert "used so far: 2.0" in caplog.text


@pytest.mark.parametrize(
    "limits, price, said",
    [
        (
            {"max_node_hours": 8, "max_cost": 100},
            2.0,
            "at most 8.00 node-hours (cost 16.00) in all attempts (limits.max_node_hours 8)",
        ),
        (
            {"max_node_hours": 8},
            None,
            (
                "at most 8.00 node-hours in all attempts (limits.max_node_hours 8); "
                "the price of a node is not known (`prices`)"
            ),
        ),
        (
            {"max_runtime": "90m"},
            None,
            (
                "at most 3.00 node-hours an attempt (limits.max_runtime); "
                "the price of a node is not known (`prices`)"
            ),
        ),
        (
            {},
            None,
            (
                "not bounded: set limits.max_node_hours, limits.max_cost or limits.max_runtime; "
                "the price of a node is not known (`prices`)"
            ),
        ),
        ({}, 3.0, "not bounded: set limits.max_node_hours, limits.max_cost or limits.max_runtime"),
    ],
)
def test_of_each_bound_it_is_said_as_much_as_is_known(
    limits: dict[str, object], price: float | None, said: str
) -> None:
    job = a_job(limits=limits)
    assert job.nodes == 2
    assert bound(job, price) == said


def a_running_node(**changes: object) -> NodeStatus:
    node = NodeStatus(rank=0, run_id="a", state=NodeState.RUNNING, started_at=NOW - 100.0)
    return replace(node, **changes)


def test_what_lost_nodes_have_used_counts_and_at_the_present_price() -> None:
    status = RunStatus(nodes=(a_running_node(),), lost_seconds=3500.0)
    assert spent_of(status, NOW, 7.0) == Spent(node_seconds=3600.0, cost=7.0)
    waiting = RunStatus(nodes=(a_running_node(started_at=None),), lost_seconds=3600.0)
    assert spent_of(waiting, NOW, 7.0) == Spent(node_seconds=3600.0, cost=7.0)


def test_of_what_has_ended_nothing_lies_ahead() -> None:
    status = RunStatus(nodes=(a_running_node(state=NodeState.FAILED, finished_at=NOW),))
    used = Spending.of(status, NOW + 500, 36.0, remaining=3600.0)
    assert used == Spending(Spent(node_seconds=100.0, cost=1.0), 36.0, None, ended=True)
    assert (used.forecast, str(used)) == (None, "used: 0.03 node-hours (cost 1.00)")
    assert used.to_json() == {"node_hours": 0.0278, "cost": 1.0}
    runs = Spending.of(RunStatus(nodes=(a_running_node(),)), NOW, 36.0, remaining=0.0)
    assert runs == Spending(Spent(node_seconds=100.0, cost=1.0), 36.0, 0.0, ended=False)
    assert runs.to_json()["forecast_node_hours"] == 0.0278
    unknown = Spending.of(RunStatus(nodes=(a_running_node(),)), NOW, None, remaining=1000.0 / 3)
    assert unknown.to_json() == {"node_hours": 0.0278, "forecast_node_hours": 0.1204}


def test_a_run_that_has_gone_on_beyond_its_last_step_takes_no_less() -> None:
    beyond = Progress(step=500, steps=400, step_time=12.0)
    assert forecast_like(an_earlier_run(NodeState.RUNNING, beyond), NOW, 1, 1.0) == Spent(
        node_seconds=3600, cost=1.0
    )
    at_its_beginning = Progress(step=0, steps=10, step_time=36.0)
    assert forecast_like(an_earlier_run(NodeState.RUNNING, at_its_beginning), NOW, 1, 1.0) == Spent(
        node_seconds=3960, cost=1.1
    )
