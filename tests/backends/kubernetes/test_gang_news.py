"""Of which gangs a look reads every report that has changed: those that do not just train on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from airflow_provider_ocidist.backends.kubernetes.gang_nodes import GangNodes, Look
from airflow_provider_ocidist.backends.kubernetes.gang_objects import Seen
from airflow_provider_ocidist.backends.kubernetes.gang_state import Gang, GangState
from airflow_provider_ocidist.backends.kubernetes.pod_parts import essence
from airflow_provider_ocidist.backends.pytorchjob import PyTorchJob
from airflow_provider_ocidist.model.report import NodeReport, Phase
from airflow_provider_ocidist.work_dir.reports import Reported
from tests.backends.kubernetes.test_states import START, ended, of_agent, pod
from tests.gangs.test_replacement_rules import a_ref

RUNNING: dict[str, Any] = {"running": {}}
REF = a_ref(compartment_id="ns", job_id="ns/train", nodes=2, run_ids=("a", "b"))


def a_pod(uid: str = "a", **changes: Any) -> dict[str, Any]:
    found = changes or pod(state=RUNNING)
    return essence({**found, "metadata": {**found["metadata"], "uid": uid}})


def look(*pods: Mapping[str, Any], state: GangState = GangState.ACTIVE) -> Look:
    seen = Seen(gangs={"train": Gang(state)}, pods={"train": {rank: [pod] for rank, pod in enumerate(pods)}})
    return Look({"ns": seen}, 0.0, lambda _: {})


TRAINS = look(a_pod(), a_pod("b"))
DELETED = pod(state=RUNNING)
DELETED["metadata"] = {**DELETED["metadata"], "deletionTimestamp": START}


def has_news(now: Look, before: Look | None = None) -> bool:
    nodes = GangNodes(PyTorchJob.operator)
    if before is not None:
        nodes.pod(REF, 0, lambda: before)
    return nodes.has_news(REF, now)


@pytest.mark.parametrize("state", GangState)
def test_a_gang_that_is_over_or_ends_or_is_held_back_has_news(state: GangState) -> None:
    assert has_news(look(a_pod(), a_pod("b"), state=state)) is (
        state not in (GangState.NEW, GangState.ACTIVE)
    )
    assert has_news(Look({"ns": Seen()}, 0.0, lambda _: {}))


@pytest.mark.parametrize("before", [None, TRAINS, look(a_pod("b"), a_pod("b"))], ids=["first", "same", "new"])
def test_a_gang_whose_pods_run_has_news_only_where_one_is_another(before: Look | None) -> None:
    is_another = before is not None and before is not TRAINS
    assert has_news(TRAINS, before) is is_another


@pytest.mark.parametrize(
    "other",
    [
        pod("Failed", state=ended(1)),
        pod("Succeeded", state=ended(0)),
        pod(state=ended(1)),
        pod("Unknown", state=RUNNING),
        of_agent(pod(state=RUNNING), ended(137), 1),
        DELETED,
    ],
    ids=["failed", "succeeded", "company", "unknown", "restarted", "deleted"],
)
def test_a_gang_with_a_pod_that_has_ended_or_ends_or_is_not_there_has_news(other: dict[str, Any]) -> None:
    assert has_news(look(a_pod(), a_pod("b", **other)), TRAINS)
    assert has_news(look(a_pod()), TRAINS)


def test_a_second_pod_of_a_rank_is_news() -> None:
    seen = Seen(
        gangs={"train": Gang(GangState.ACTIVE)}, pods={"train": {0: [a_pod()], 1: [a_pod("b"), a_pod("c")]}}
    )
    assert has_news(Look({"ns": seen}, 0.0, lambda _: {}))


def test_a_pod_that_waits_for_its_machine_is_no_news() -> None:
    assert not has_news(look(a_pod(), a_pod("b", **pod("Pending"))))


def test_a_new_pod_is_news_until_its_own_report_is_read() -> None:
    class Api:
        def pods(self, *_: str) -> dict[int, Any]:
            return {}

    def reported(uid: str) -> dict[int, Reported]:
        report = NodeReport(
            rank=0, phase=Phase.TRAINING, address="", started_at=0.0, heartbeat_at=1.0, instance=uid
        )
        return {0: Reported(report, "etag", 0.0)}

    api: Any = Api()
    nodes = GangNodes(PyTorchJob.operator)
    nodes.pod(REF, 0, lambda: TRAINS)
    for uid, is_news in (("before", True), ("a", False)):
        nodes.believed(REF, TRAINS, reported(uid), api)
        assert nodes.has_news(REF, TRAINS) is is_news
