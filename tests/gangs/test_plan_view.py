"""What the tab of rendered templates shows of a plan."""

from __future__ import annotations

import yaml

from airflow_provider_ocidist.gangs.plan_view import LEFT_OUT, readable
from airflow_provider_ocidist.model.run import Plan, Request, RunKey


def plan(nodes: int = 4, text: str = "x") -> Plan:
    return Plan(
        key=RunKey(dag_id="d", run_id="r", task_id="t"),
        backend="oci_data_science",
        nodes=nodes,
        topology="job_runs",
        reason="there is a subnet",
        requests=(
            Request(
                verb="CreateJob", body={"environmentVariables": {"DB_PASSWORD": "hunter22", "TEXT": text}}
            ),
            *(Request(verb="CreateJobRun", body={"rank": rank}) for rank in range(nodes)),
        ),
        run_dir="oci://b@n/w",
    )


def test_requests_of_one_kind_are_shown_once_with_their_number():
    shown = yaml.safe_load(readable(plan(), 4096))
    assert [(request["verb"], request["count"]) for request in shown["requests"]] == [
        ("CreateJob", 1),
        ("CreateJobRun", 4),
    ]
    assert (shown["topology"], shown["reason"]) == ("job_runs", "there is a subnet")


def test_it_says_that_the_attempt_in_its_names_is_counted_later():
    assert (
        "the number of the attempt is determined at submission"
        in yaml.safe_load(readable(plan(), 4096))["names"]
    )


def test_it_says_what_the_job_can_cost_at_most() -> None:
    assert (
        yaml.safe_load(readable(plan(), 4096, (), "at most 8.00 node-hours"))["cost"]
        == "at most 8.00 node-hours"
    )
    assert "cost" not in yaml.safe_load(readable(plan(), 4096))


def test_no_secret_is_shown():
    assert "hunter22" not in readable(plan(), 4096)


def test_what_does_not_fit_is_left_out_from_the_least_important_on():
    long = readable(plan(text="y" * 5000), 4096)
    assert yaml.safe_load(long)["requests"][0]["body"]["environmentVariables"]["TEXT"] == "<5000 characters>"
    short = readable(plan(text="y" * 5000), 300)
    assert {request["body"] for request in yaml.safe_load(short)["requests"]} == {LEFT_OUT}
    assert len(short) <= 500
