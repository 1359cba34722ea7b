"""Which of the pods of one rank is its node."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from airflow_provider_ocidist.backends.kubernetes.node_pods import nodes_among, uid_of
from airflow_provider_ocidist.backends.pytorchjob.operator import OPERATOR as PYTORCHJOBS
from airflow_provider_ocidist.backends.trainjob.operator import OPERATOR as TRAINJOBS
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.model.report import Restart
from tests.gangs.test_replacement_rules import a_ref

BEGUN: dict[str, Any] = {"running": {}}
LOST = Restart(cause=Cause.NODE, message="gone", rank=1)


def a_pod(uid: str, second: int, state: Any = None, phase: str = "Running") -> dict[str, Any]:
    statuses = [{"name": name, "state": state or {"waiting": {}}} for name in ("node", "pytorch")]
    created = f"2026-11-23T00:00:{second:02}Z"
    return {
        "metadata": {"uid": uid, "name": uid, "creationTimestamp": created},
        "status": {"phase": phase, "containerStatuses": statuses},
    }


def chosen(ref: Any, *pods: dict[str, Any], instance: str = "", operator: Any = TRAINJOBS) -> str | None:
    found = nodes_among(ref, {1: pods, 0: []}, operator, {1: instance})
    assert 0 not in found
    return uid_of(found[1]) if found else None


def test_before_any_loss_the_first_that_has_begun_is_the_node_whatever_a_job_makes_beside_it() -> None:
    failed, late = a_pod("a", 1, BEGUN, "Failed"), a_pod("b", 9, BEGUN)
    for pods in ((failed, late), (late, failed)):
        assert chosen(a_ref(), *pods) == "a"
        # Its name is free for another only once it is gone.
        assert chosen(a_ref(), *pods, operator=PYTORCHJOBS) == "b"
    # One that its kubelet has rejected has not begun.
    assert chosen(a_ref(), a_pod("a", 1, None, "Failed"), late) == "b"
    assert chosen(a_ref(), a_pod("a", 1, None, "Failed"), a_pod("b", 9)) == "b"
    # Only the second of its creation is known.
    assert chosen(a_ref(), a_pod("b", 1, BEGUN), failed) == "a"


def test_the_one_that_has_reported_is_the_node_unless_it_counts_as_lost() -> None:
    ref = a_ref()
    pods = [a_pod(uid, second, BEGUN) for second, uid in enumerate("abc")]
    for operator in (PYTORCHJOBS, TRAINJOBS):
        assert chosen(ref, *pods, instance="b", operator=operator) == "b"
        lost = replace(ref, replaced=(LOST,), lost_runs=("b",))
        assert chosen(lost, *pods, instance="b", operator=operator) == "c"


def test_of_any_pods_of_a_rank_the_newest_that_is_not_lost_is_the_node_once_one_was_lost() -> None:
    seed = random.randrange(10_000)
    print("seed", seed)
    draw = random.Random(seed)
    for _ in range(200):
        made = [f"pod-{number}" for number in range(draw.randint(1, 6))]
        lost = draw.randint(1, len(made))
        ref = a_ref(replaced=(LOST,) * lost, lost_runs=tuple(made[:lost]))
        phases = ("Pending", "Running", "Failed")
        pods = [
            a_pod(uid, second, draw.choice([None, BEGUN]), draw.choice(phases))
            for second, uid in enumerate(made)
        ]
        draw.shuffle(pods)
        # Where only lost ones are there, their UIDs show that none of them is the node.
        assert chosen(ref, *pods) == made[-1]
    assert nodes_among(a_ref(), {}, TRAINJOBS, {}) == {}
