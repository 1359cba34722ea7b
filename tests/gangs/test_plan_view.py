"""What the tab of rendered templates shows of a plan."""

from __future__ import annotations

import dataclasses

import yaml

from airflow_provider_ocidist.gangs.plan_view import LEFT_OUT, readable, with_texts
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
    assert LEFT_OUT == "left out: `ocidist plan` shows it"
    assert len(short) <= 500


def test_all_of_a_plan_is_shown_in_its_order_and_what_it_lacks_is_said_to_be_none():
    shown = yaml.safe_load(readable(plan(nodes=1), 4096, ("first: a machine", "second: two"), "at most 8"))
    name = plan().key.name
    assert list(shown.items()) == [
        ("summary", f"{name} on oci_data_science, 1 node"),
        ("names", "end in -a1 here; the number of the attempt is determined at submission"),
        ("candidates", ["first: a machine", "second: two"]),
        ("cost", "at most 8"),
        ("topology", "job_runs"),
        ("reason", "there is a subnet"),
        ("code", None),
        ("run_dir", "oci://b@n/w"),
        ("checkpoints_uri", None),
        (
            "requests",
            [
                {
                    "verb": "CreateJob",
                    "count": 1,
                    "body": {"environmentVariables": {"DB_PASSWORD": "***", "TEXT": "x"}},
                },
                {"verb": "CreateJobRun", "count": 1, "body": {"rank": 0}},
            ],
        ),
    ]
    assert "candidates" not in yaml.safe_load(readable(plan(), 4096))
    assert yaml.safe_load(readable(plan(), 4096))["summary"].endswith(", 4 nodes")


def test_only_adjacent_requests_of_one_kind_are_merged_and_each_counts_as_often_as_it_is_sent():
    verbs = [("A", 2), ("A", 3), ("B", 1), ("A", 1)]
    requests = tuple(Request(verb=verb, body={"of": verb}, count=count) for verb, count in verbs)
    shown = yaml.safe_load(readable(dataclasses.replace(plan(), requests=requests), 4096))["requests"]
    assert [(each["verb"], each["count"]) for each in shown] == [("A", 5), ("B", 1), ("A", 1)]


def test_a_text_is_shortened_only_where_the_whole_does_not_fit_and_it_is_long_itself():
    for length, expected in ((200, "y" * 200), (201, "<201 characters>")):
        made = dataclasses.replace(plan(text="y" * length), code="z" * 300)
        whole = readable(made, 4096)
        assert "y" * length in whole
        assert readable(made, len(whole)) == whole
        shown = yaml.safe_load(readable(made, len(whole) - 1))
        if length > 200:
            assert shown["requests"][0]["body"]["environmentVariables"]["TEXT"] == expected
        assert shown["code"] == "z" * 300


def test_texts_are_changed_wherever_they_are_and_nothing_else_is():
    body = {"a": "x", "b": ["y", ("z", 1)], "c": {"d": None, "e": True}, "f": 2.5}
    changed = {"a": "x!", "b": ["y!", ["z!", 1]], "c": {"d": None, "e": True}, "f": 2.5}
    assert with_texts(body, lambda text: f"{text}!") == changed


def test_long_sentences_are_folded_where_a_page_shows_them_whole():
    made = dataclasses.replace(plan(), reason="there is a subnet " * 30)
    assert 100 < max(len(line) for line in readable(made, 4096).splitlines()) <= 120


def test_words_in_other_scripts_are_shown_as_they_are():
    made = dataclasses.replace(plan(), reason="größer \u540d")
    assert "größer \u540d" in readable(made, 4096)
