"""What can be made to happen to nodes: delays, failures, losses, attention, a limited capacity."""

from __future__ import annotations

import time

import pytest

from tests.emulator.conftest import HTTP, Cloud
from tests.emulator.test_multi_node import group, multi_node_job, states

SLEEP = "import time; time.sleep(600)"


def rule(cloud: Cloud, **fields) -> None:
    cloud.control("POST", "/nodes", **fields)


def test_one_node_of_a_gang_is_late(cloud):
    rule(cloud, rank=1, delay_s=3)
    run_id = cloud.start(multi_node_job(cloud, "pass", group("a", 1), group("b", 1)))
    run = cloud.wait(run_id, "IN_PROGRESS")
    assert states(run)["b"] == "CREATING"
    run = cloud.wait(run_id)
    assert (run.time_finished - run.time_started).total_seconds() >= 2.9


def test_one_node_of_a_gang_never_starts(cloud):
    rule(cloud, rank=1, never_starts=True)
    run_id = cloud.start(multi_node_job(cloud, SLEEP))
    run = cloud.wait(run_id, "IN_PROGRESS")
    assert states(run) == {"node-group": "CREATING"}
    cloud.jobs.cancel_job_run(run_id)
    run = cloud.wait(run_id)
    assert (run.lifecycle_state, states(run)) == ("CANCELED", {"node-group": "DELETED"})


def test_one_node_of_a_gang_finds_no_host(cloud):
    rule(cloud, group="b", failure="Out of host capacity.", times=1)
    job_id = multi_node_job(cloud, "import time; time.sleep(0.2)", group("a", 1), group("b", 1))
    run = cloud.wait(cloud.start(job_id))
    assert (run.lifecycle_state, run.lifecycle_details) == ("FAILED", "Out of host capacity.")
    assert states(run) == {"a": "DELETED", "b": "FAILED"}
    assert cloud.wait(cloud.start(job_id)).lifecycle_state == "SUCCEEDED"


@pytest.mark.parametrize("code,state", [(0, "SUCCEEDED"), (9, "FAILED")])
def test_a_node_ends_as_its_rule_says_without_running_its_program(cloud, code, state):
    rule(cloud, exit_code=code, after_s=0.3)
    run = cloud.run("print('not run')")
    assert run.lifecycle_state == state
    assert (run.time_finished - run.time_started).total_seconds() >= 0.3
    assert cloud.messages(run.id) == []


def test_a_lost_node_is_the_end_of_its_run(cloud):
    rule(cloud, rank=1, lost=True, after_s=0.2)
    run = cloud.wait(cloud.start(multi_node_job(cloud, SLEEP)))
    assert run.lifecycle_state == "FAILED"
    assert "was lost" in run.lifecycle_details
    assert states(run) == {"node-group": "FAILED"}


def test_a_run_needs_attention_for_a_while(cloud):
    rule(cloud, attention_s=2, after_s=0.1)
    run_id = cloud.start(cloud.job("import time; time.sleep(5)"))
    cloud.wait(run_id, "NEEDS_ATTENTION")
    cloud.wait(run_id, "IN_PROGRESS")
    assert cloud.wait(run_id).lifecycle_state == "SUCCEEDED"


def test_a_run_that_needs_attention_can_be_canceled(cloud):
    rule(cloud, attention_s=600)
    run_id = cloud.start(cloud.job(SLEEP))
    cloud.wait(run_id, "NEEDS_ATTENTION")
    cloud.jobs.cancel_job_run(run_id)
    assert cloud.wait(run_id).lifecycle_state == "CANCELED"


def test_runs_wait_for_capacity(cloud):
    rule(cloud, shape=r"VM\.GPU\..*", at_most=3)
    job_id = multi_node_job(cloud, SLEEP)
    first, second = cloud.start(job_id), cloud.start(job_id)
    cloud.wait(first, "IN_PROGRESS")
    assert cloud.run("pass").lifecycle_state == "SUCCEEDED"
    waiting = cloud.jobs.get_job_run(second).data
    assert (waiting.lifecycle_state, states(waiting)) == ("ACCEPTED", {"node-group": "CREATING"})
    cloud.jobs.cancel_job_run(first)
    cloud.wait(second, "IN_PROGRESS")
    third = cloud.start(job_id)
    time.sleep(0.1)
    cloud.jobs.cancel_job_run(third)
    run = cloud.wait(third)
    assert (run.lifecycle_state, run.time_started, states(run)) == (
        "CANCELED",
        None,
        {"node-group": "DELETED"},
    )


def test_runs_fail_without_capacity(cloud):
    rule(cloud, at_most=1, when_full="fail")
    job_id = cloud.job(SLEEP)
    cloud.wait(cloud.start(job_id), "IN_PROGRESS")
    run = cloud.wait(cloud.start(job_id))
    assert (run.lifecycle_state, run.lifecycle_details, run.time_started) == (
        "FAILED",
        "Out of host capacity.",
        None,
    )
    run = cloud.wait(cloud.start(multi_node_job(cloud, "pass")))
    assert states(run) == {"node-group": "FAILED"}


@pytest.mark.parametrize(
    "fields", [{"colour": "red"}, {"group": "("}, {"at_most": 1, "when_full": "explode"}, {"rank": "x"}]
)
def test_a_rule_that_makes_no_sense_is_refused(cloud, fields):
    assert HTTP.post(f"{cloud.access.url}/_emulator/nodes", json=fields).status_code == 400
