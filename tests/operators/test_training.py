"""DistributedTrainingOperator without Airflow's processes: its arguments, and the plan that it shows."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import yaml
from airflow.providers.common.compat.sdk import redact
from airflow.sdk import DAG

from airflow_provider_ocidist.errors import JobFileError
from airflow_provider_ocidist.operators import DistributedTrainingOperator
from airflow_provider_ocidist.operators.cleanup import EndTrainingOperator
from airflow_provider_ocidist.operators.training import show_plan
from airflow_provider_ocidist.transfers import CopyOutputsOperator

CONNECTION = """{"conn_type": "oci", "extra": {"compartment_id": "c", "project_id": "p", "subnet_id": "s",
 "log_group_id": "l", "region": "us-ashburn-1", "work_dir": "oci://b@n/w"}}"""
JOB = {
    "name": "gpt",
    "nodes": 2,
    "program": {"script": "train.py", "args": ["--token", "arg-canary", "--epochs", "3"]},
    "image": "iad.ocir.io/space/train:1",
    "env": {"DB_PASSWORD": "env-canary", "SEED": "7"},
    "backend": {"kind": "oci_data_science", "shape": "VM.GPU.A10.1"},
}
CONTEXT = {"ti": SimpleNamespace(dag_id="dag", run_id="r", task_id="train", map_index=-1, max_tries=0)}


@pytest.fixture(autouse=True)
def _connection(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AIRFLOW_CONN_OCI_DEFAULT", CONNECTION)


def operator(**arguments) -> DistributedTrainingOperator:
    with DAG("dag", schedule=None):
        return DistributedTrainingOperator(task_id="train", **{"job": JOB, **arguments})


def plan_of(task: DistributedTrainingOperator) -> str:
    return show_plan({**CONTEXT, "task": task}, None)


def test_the_plan_shows_what_will_be_created_and_why():
    plan = yaml.safe_load(plan_of(operator(nodes=3, shape="VM.GPU.A10.2", env={"SEED": "8"})))
    job, *_, runs = plan["requests"]
    assert (plan["topology"], runs["verb"], runs["count"]) == ("job_runs", "CreateJobRun", 3)
    assert "subnet" in plan["reason"]
    assert job["body"]["jobInfrastructureConfigurationDetails"]["shapeName"] == "VM.GPU.A10.2"
    assert job["body"]["jobConfigurationDetails"]["environmentVariables"]["SEED"] == "8"


def test_secrets_are_neither_in_the_plan_nor_left_in_logs_and_other_fields():
    text = plan_of(operator())
    assert not [canary for canary in ("arg-canary", "env-canary") if canary in text]
    assert redact("--token arg-canary, env-canary") == "--token ***, ***"


@pytest.mark.parametrize("said", [True, False, None])
def test_a_training_that_shows_nothing_is_a_failure_where_the_operator_requires_one(said: bool | None):
    task = operator(require_training=said)
    plan_of(task)
    planned = task._training().planned
    assert planned is not None
    assert planned[1].expects.training is bool(said)


def test_a_job_that_is_wrong_has_no_plan_and_fails_where_it_is_needed():
    assert "no plan" in plan_of(operator(job={**JOB, "nodez": 2}))


def test_every_argument_that_says_what_to_train_is_templated():
    assert {"job", "conn_id", "nodes", "shape", "env", "overrides"} < set(operator().template_fields)
    assert operator().template_fields[-1] == "plan"


def test_an_operator_can_be_copied_as_airflow_copies_parts_of_a_dag():
    with DAG("dag", schedule=None) as dag:
        train = DistributedTrainingOperator(task_id="train", job=JOB)
        train >> EndTrainingOperator(task_id="end", training=train)
    part = dag.partial_subset("train", include_downstream=True)
    assert set(part.task_dict) == {"train", "end"}
    assert copy.deepcopy(train).job == train.job


@pytest.mark.since_airflow("3.3", "retry policies came with it")
def test_mapped_tasks_have_the_same_defaults_and_those_of_the_dag_win():
    from airflow_provider_ocidist.operators.retries import TrainingRetries

    own = TrainingRetries()
    with DAG("dag", schedule=None):
        train = DistributedTrainingOperator.partial(task_id="train", job=JOB).expand(nodes=[1, 2])
        end = EndTrainingOperator.partial(task_id="end", conn_id="oci_default").expand(training=["train"])
        copied = CopyOutputsOperator.partial(task_id="copy").expand(data=[{"a": "b"}])
    assert isinstance(train.retry_policy, TrainingRetries)
    assert isinstance(copied.retry_policy, TrainingRetries)
    assert end.trigger_rule == "all_done"
    with DAG("told", schedule=None, default_args={"retry_policy": own}):
        assert DistributedTrainingOperator(task_id="train", job=JOB).retry_policy is own
        assert DistributedTrainingOperator(task_id="none", job=JOB, retry_policy=None).retry_policy is None


@pytest.mark.parametrize("setting", [True, False])
def test_whether_it_is_deferred_follows_airflows_own_setting(monkeypatch: pytest.MonkeyPatch, setting: bool):
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", str(setting))
    assert operator().deferrable is setting
    assert operator(deferrable=not setting).deferrable is not setting


def job_of(task: DistributedTrainingOperator):
    arguments = task.job_arguments(CONTEXT)
    return task._training()._job.read(arguments, str)


def test_settings_may_be_json_text_of_a_template():
    made = job_of(operator(env='{"SEED": "8", "N": 3}', overrides='{"limits.max_runtime": "2h", "nodes": 4}'))
    assert (made.env["SEED"], made.env["N"], made.nodes) == ("8", "3", 4)
    assert made.limits.max_runtime == 7200


@pytest.mark.parametrize("empty", ["", "null", "{}", None])
def test_settings_that_are_empty_change_nothing(empty):
    made = job_of(operator(env=empty, overrides=empty))
    assert (made.env, made.nodes) == (JOB["env"], 2)


@pytest.mark.parametrize("name", ["env", "overrides"])
@pytest.mark.parametrize("value", ["None", "{'A': 'b'}", "A=b", "[1]", "3", ["A"], 3])
def test_settings_that_are_no_mapping_are_a_problem_of_the_job_with_the_remedy(name: str, value):
    with pytest.raises(JobFileError) as raised:
        job_of(operator(**{name: value}))
    (problem,) = raised.value.problems
    assert str(problem).startswith(f"{name}: ")
    assert "tojson" in str(problem)


def test_secrets_in_settings_of_json_text_are_masked():
    text = plan_of(operator(env='{"API_TOKEN": "json-canary"}', overrides='{"nodez": "json-canary"}'))
    assert "json-canary" not in text
    assert redact("json-canary") == "***"


@pytest.mark.parametrize("value", [None, True, ["a"]])
def test_a_variable_that_is_no_text_is_refused_as_in_a_job_file(value):
    with pytest.raises(JobFileError, match=r"env\.A: "):
        job_of(operator(env={"A": value}))


def test_numbers_in_variables_become_text():
    assert job_of(operator(env={"A": 1, "B": 1.5, "C": "1e-4", "D": ""})).env == {
        **JOB["env"],
        "A": "1",
        "B": "1.5",
        "C": "1e-4",
        "D": "",
    }


@pytest.mark.parametrize("shape", ["None", ""])
def test_a_shape_whose_template_found_nothing_is_refused(shape: str):
    with pytest.raises(JobFileError, match=r"shape: .*template"):
        job_of(operator(shape=shape))
