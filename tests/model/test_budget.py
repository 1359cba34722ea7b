"""What a training may use, and what that costs: by generator, since nobody would notice a wrong sum."""

from __future__ import annotations

import math
import random
import re

import pytest

from airflow_provider_ocidist.job import Limits
from airflow_provider_ocidist.model import codec
from airflow_provider_ocidist.model.budget import Budget, Spent, budget_of, cost_of

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
            goes_on = budget is None or budget.finding(Spent().plus(spent, price)) is None
            near = [
                limit
                for limit in (hours, cost / price if cost and price else None)
                if limit is not None and abs(limit - spent / 3600) < 1e-9
            ]
            assert near or goes_on == (within_hours and within_cost), (hours, cost, price, spent)


def test_the_narrower_limit_is_the_one_that_is_named() -> None:
    for hours, price, seconds, name in (
        (8, 2.0, 5 * 3600, "limits.max_cost 10"),
        (4, 2.0, 4 * 3600, "limits.max_node_hours 4"),
        (4, 10.0, 3600, "limits.max_cost 10"),
    ):
        budget = budget_of(Limits(max_node_hours=hours, max_cost=10), price)
        assert budget
        assert (budget.left(Spent(), price), budget.limit(price)) == (seconds, name)
    assert budget_of(Limits(), 2.0) is None
    assert budget_of(Limits(max_cost=10), None) is None


def test_each_attempt_costs_its_own_price_and_what_is_left_is_of_the_present_one() -> None:
    budget = budget_of(Limits(max_cost=200), 1.0)
    assert budget
    # 16 node-hours at 10, then a candidate at 1.
    before = Spent().plus(16 * 3600, 10.0)
    assert str(before) == "16.00 node-hours (cost 160.00)"
    assert budget.left(before, 1.0) == 40 * 3600
    assert budget.finding(before.plus(39.9 * 3600, 1.0)) is None
    assert budget.finding(before.plus(40 * 3600, 1.0)) == (
        "56.00 node-hours (cost 200.00) used: all that limits.max_cost 200 allows, earlier attempts included"
    )
    assert str(before.plus(3600, None)) == "17.00 node-hours", "a part of it has no known price"


def test_what_is_said_of_it_adds_up() -> None:
    draw = random.Random(SEED)
    for _ in range(200):
        seconds, price = draw.uniform(0, 1e7), draw.uniform(0.01, 100)
        said = re.fullmatch(r"([\d.]+) node-hours \(cost ([\d.]+)\)", str(Spent().plus(seconds, price)))
        assert said
        assert float(said[1]) == pytest.approx(seconds / 3600, abs=0.006)
        assert float(said[2]) == pytest.approx(seconds / 3600 * price, abs=0.006)
        assert str(Spent().plus(seconds, None)) == f"{said[1]} node-hours"
    assert cost_of(3600, None) is None


def test_the_message_names_what_was_used_the_limit_and_that_earlier_attempts_count() -> None:
    budget = budget_of(Limits(max_cost=10), 2.5)
    assert budget
    assert budget.finding(Spent().plus(4 * 3600 - 1, 2.5)) is None
    assert budget.finding(Spent().plus(4 * 3600, 2.5)) == (
        "4.00 node-hours (cost 10.00) used: all that limits.max_cost 10 allows, earlier attempts included"
    )


def test_it_survives_the_record_of_a_run() -> None:
    budget = Budget(node_seconds=7.5, cost=3.0)
    assert codec.decode(Budget, codec.encode(budget)) == budget
    before = {"node_seconds": 7.5, "limit": "limits.max_cost 3"}
    assert codec.decode(Budget, before) == Budget(node_seconds=7.5), "as the version before has recorded it"


def test_what_is_not_known_bounds_nothing() -> None:
    by_cost = Budget(cost=10.0)
    assert by_cost.left(Spent(), None) == by_cost.left(Spent(cost=None), 2.0) == math.inf
    assert by_cost.limit(None) == Budget().limit(2.0) == ""
    assert by_cost.finding(Spent(node_seconds=9e9, cost=None)) is None
    assert Budget().finding(Spent(node_seconds=9e9, cost=9e9)) is None
    assert Budget().left(Spent(), 2.0) == math.inf
    both = Budget(node_seconds=7200.0, cost=10.0)
    assert (both.left(Spent(node_seconds=3600.0), None), both.limit(None)) == (
        3600.0,
        "limits.max_node_hours 2",
    )
    assert budget_of(Limits(max_node_hours=1.5), None) == Budget(node_seconds=5400.0)
    assert budget_of(Limits(max_node_hours=1.5, max_cost=3), 2.0) == Budget(node_seconds=5400.0, cost=3)


def test_exactly_what_is_allowed_is_all() -> None:
    budget = Budget(node_seconds=3600.0, cost=10.0)
    assert budget.finding(Spent(node_seconds=3599.9, cost=9.99)) is None
    assert budget.finding(Spent(node_seconds=3600.0, cost=0.0)) == (
        "1.00 node-hours (cost 0.00) used: all that limits.max_node_hours 1 allows, earlier attempts included"
    )
    assert budget.finding(Spent(node_seconds=0.0, cost=10.0)) == (
        "0.00 node-hours (cost 10.00) used: all that limits.max_cost 10 allows, earlier attempts included"
    )
    both = budget.finding(Spent(node_seconds=3600.0, cost=10.0))
    assert both
    assert "limits.max_node_hours 1" in both


def test_two_sums_are_added_and_a_part_without_a_price_leaves_the_cost_unknown() -> None:
    one, two = Spent(node_seconds=1.0, cost=2.0), Spent(node_seconds=10.0, cost=20.0)
    assert one.and_also(two) == Spent(node_seconds=11.0, cost=22.0)
    unknown = Spent(node_seconds=100.0, cost=None)
    assert one.and_also(unknown) == unknown.and_also(one) == Spent(node_seconds=101.0, cost=None)
    assert Spent() == Spent(node_seconds=0.0, cost=0.0)
    assert Spent().plus(3600.0, 0.0) == Spent(node_seconds=3600.0, cost=0.0), "a machine that costs nothing"
