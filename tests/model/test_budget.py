"""What a training may use, and what that costs: by generator, since nobody would notice a wrong sum."""

from __future__ import annotations

import random
import re

import pytest

from airflow_provider_ocidist.job import Limits
from airflow_provider_ocidist.model import codec
from airflow_provider_ocidist.model.budget import Budget, budget_of, cost_of, described

SEED = random.randrange(10_000)


def cases(count: int = 300) -> list[tuple[float | None, float | None, float | None]]:
    print("seed", SEED)
    draw = random.Random(SEED)
    some = lambda low, high: draw.choice([None, round(draw.uniform(low, high), 3)])  # noqa: E731 - short
    return [(some(0.01, 500), some(0.01, 9000), some(0.1, 40)) for _ in range(count)]


def test_a_run_may_go_on_exactly_as_long_as_every_limit_allows() -> None:
    for hours, cost, price in cases():
        budget = budget_of(Limits(max_node_hours=hours, max_cost=cost), price)
        for spent in (0.0, 1.0, 3600.0, 90_000.0, 5e6):
            within_hours = hours is None or spent / 3600 < hours
            within_cost = cost is None or price is None or spent / 3600 * price < cost
            goes_on = budget is None or budget.finding(spent, price) is None
            near = [
                limit
                for limit in (hours, cost / price if cost and price else None)
                if limit is not None and abs(limit - spent / 3600) < 1e-9
            ]
            assert near or goes_on == (within_hours and within_cost), (hours, cost, price, spent)


def test_the_narrower_limit_is_the_one_that_is_named() -> None:
    assert budget_of(Limits(max_node_hours=8, max_cost=10), 2.0) == Budget(
        node_seconds=5 * 3600, limit="limits.max_cost 10"
    )
    assert budget_of(Limits(max_node_hours=4, max_cost=10), 2.0) == Budget(
        node_seconds=4 * 3600, limit="limits.max_node_hours 4"
    )
    assert budget_of(Limits(), 2.0) is None


def test_what_is_said_of_it_adds_up() -> None:
    draw = random.Random(SEED)
    for _ in range(200):
        seconds, price = draw.uniform(0, 1e7), draw.uniform(0.01, 100)
        said = re.fullmatch(r"([\d.]+) node-hours \(cost ([\d.]+)\)", described(seconds, price))
        assert said
        assert float(said[1]) == pytest.approx(seconds / 3600, abs=0.006)
        assert float(said[2]) == pytest.approx(seconds / 3600 * price, abs=0.006)
        assert described(seconds, None) == f"{said[1]} node-hours"
    assert cost_of(3600, None) is None


def test_the_message_names_what_was_used_the_limit_and_that_earlier_attempts_count() -> None:
    budget = budget_of(Limits(max_cost=10), 2.5)
    assert budget
    assert budget.finding(4 * 3600 - 1, 2.5) is None
    assert budget.finding(4 * 3600, 2.5) == (
        "4.00 node-hours (cost 10.00) used: all that limits.max_cost 10 allows, earlier attempts included"
    )


def test_it_survives_the_record_of_a_run() -> None:
    budget = Budget(node_seconds=7.5, limit="limits.max_node_hours 1")
    assert codec.decode(Budget, codec.encode(budget)) == budget
