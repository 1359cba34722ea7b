"""EndTrainingOperator: when it has ended, nothing of the training runs any more."""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException
from airflow.sdk import DAG, TriggerRule, task_group

from airflow_provider_ocidist.backends.local import Local
from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.errors import BackendError, Cause
from airflow_provider_ocidist.gangs import backoff
from airflow_provider_ocidist.model.attempts import Attempt
from airflow_provider_ocidist.model.run import NodeState, RunKey, RunRef
from airflow_provider_ocidist.operators import DistributedTrainingOperator, gang_cleanup
from airflow_provider_ocidist.operators.cleanup import EndTrainingOperator
from tests.training_jobs import a_job, wait_until

pytestmark = pytest.mark.airflow


@pytest.fixture(autouse=True)
def _connection(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_OCI_DEFAULT", json.dumps({"conn_type": "oci", "extra": fields}))
    monkeypatch.setattr(gang_cleanup, "SETTLED_AFTER", 2.0)
    monkeypatch.setattr(gang_cleanup, "_published_by", lambda _: None)


@pytest.fixture
def run_id() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def started(backend: OciDataScience, ends: Callable[[RunRef], RunRef], run_id: str) -> Callable[..., RunRef]:
    def start(seconds: float = 60, **key: Any) -> RunRef:
        plan = backend.plan(a_job(nodes=1, seconds=seconds), a_key(run_id, **key))
        return ends(backend.submit(plan))

    return start


def a_key(run_id: str, **key: Any) -> RunKey:
    return RunKey(**{"dag_id": "dag", "run_id": run_id, "task_id": "train", **key})


def context(run_id: str, *, map_index: int = -1, **states: str) -> Any:
    """What Airflow says of the training task."""

    def get_task_states(map_index: int | None, **_: Any) -> dict[str, dict[str, str]]:
        mine = {name: state for name, state in states.items() if map_index in (None, *_index_in(name))}
        return {run_id: mine} if mine else {}

    ti = SimpleNamespace(dag_id="dag", run_id=run_id, map_index=map_index, get_task_states=get_task_states)
    return {"ti": ti}


def _index_in(name: str) -> list[int]:
    return [int(name.rpartition("_")[2])] if "_" in name else []


def end(**arguments: Any) -> EndTrainingOperator:
    return EndTrainingOperator(task_id="end", training="train", **{"conn_id": "oci_default", **arguments})


def states(backend: OciDataScience, *refs: RunRef) -> set[NodeState]:
    return {node.state for status in backend.status(refs) for node in status.nodes}


def test_a_run_that_lives_is_ended_and_waited_for(
    backend: OciDataScience, started: Callable[..., RunRef], run_id: str
) -> None:
    ref, other = started(), started(task_id="other")
    wait_until(backend, ref, lambda status: status.nodes[0].state is NodeState.RUNNING)
    assert end().execute(context(run_id, train="failed")) == [ref.key.name]
    assert all(state.terminal for state in states(backend, ref))
    assert not any(state.terminal for state in states(backend, other))


@pytest.mark.parametrize("seed", range(6))
def test_no_bad_answer_keeps_it_from_ending_what_lives(
    started: Callable[..., RunRef],
    backend: OciDataScience,
    faults: Callable[..., None],
    run_id: str,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    print("seed", seed)
    dice = random.Random(seed)
    monkeypatch.setattr(backoff, "FIRST_PAUSE", 0.05)
    ref = started()
    wait_until(backend, ref, lambda status: status.nodes[0].state is NodeState.RUNNING)
    for _ in range(dice.randint(1, 3)):
        path = dice.choice(["/20190101/jobRuns.*", "/20190101/jobs.*", "/n/.*"])
        status = dice.choice([401, 403, 404])
        faults(path=path, method="GET", status=status, code="Refused", times=dice.randint(1, 2))
    assert end().execute(context(run_id, train="failed")) == [ref.key.name]
    assert all(state.terminal for state in states(backend, ref))


def test_in_a_mapped_task_group_its_connection_is_that_of_its_training(run_id: str) -> None:
    with DAG("dag", schedule=None) as dag:

        @task_group
        def region(conn: str) -> None:
            train = DistributedTrainingOperator(task_id="train", job="job.yaml", conn_id=conn)
            train >> EndTrainingOperator(task_id="end", training=train)
            EndTrainingOperator(task_id="named", training="region.train")

        region.expand(conn=["oci_a", "oci_b"])
        with pytest.raises(ValueError, match="another connection for each map index: name one here"):
            EndTrainingOperator(task_id="outside", training=dag.task_dict["region.train"])
    assert dag.task_dict["region.end"].conn_id is dag.task_dict["region.train"].conn_id
    assert dag.task_dict["region.named"]._conn_id_in_dag() is dag.task_dict["region.train"].conn_id


def test_a_rule_by_which_it_would_miss_failures_is_refused() -> None:
    with (
        DAG("dag", schedule=None, default_args={"trigger_rule": "none_failed"}),
        pytest.raises(ValueError, match=r"'none_failed' would not let it run .*default_args"),
    ):
        end()
    with DAG("other", schedule=None, default_args={"trigger_rule": "none_failed"}):
        assert end(trigger_rule="all_done").trigger_rule == "all_done"


def runs(rule: str, states: dict[str, str]) -> bool:
    """Whether Airflow's scheduler runs a task of this rule now, where its upstream tasks have these states."""
    from airflow.providers.standard.operators.empty import EmptyOperator
    from airflow.ti_deps.deps.trigger_rule_dep import TriggerRuleDep

    with DAG("dag", schedule=None):
        upstream = [EmptyOperator(task_id=name) for name in states]
        end = EmptyOperator(task_id="end", trigger_rule=rule)
        upstream >> end
    for each in (end, *upstream):
        # The scheduler's own classes have it.
        object.__setattr__(each, "get_needs_expansion", lambda: False)
    ended = [
        SimpleNamespace(task_id=task.task_id, state=states[task.task_id], map_index=-1, task=task)
        for task in upstream
        if states[task.task_id] != "running"
    ]
    set_to: list[Any] = []
    asked = SimpleNamespace(
        task=end,
        dag_id="dag",
        map_index=-1,
        get_dagrun=lambda **_: None,
        set_state=lambda state, **_: set_to.append(state) or True,
    )
    context = SimpleNamespace(
        flag_upstream_failed=True,
        wait_for_past_depends_before_skipping=False,
        ensure_finished_tis=lambda *_, **__: ended,
        have_changed_ti_states=False,
        upstream_task_id_counts={},
    )
    found = list(TriggerRuleDep()._get_dep_statuses(ti=asked, session=object(), dep_context=context))
    return not set_to and all(status.passed for status in found)


@pytest.mark.parametrize("rule", sorted(rule.value for rule in TriggerRule))
def test_only_rules_under_which_it_runs_after_every_end_of_the_training_are_taken(rule: str) -> None:
    others: list[dict[str, str]] = [{}]
    others += [{"other": state} for state in ("success", "failed", "skipped", "upstream_failed")]
    after = all(
        runs(rule, {"train": state, **other})
        for state in ("success", "failed", "upstream_failed")
        for other in others
    )
    before = any(runs(rule, {"train": "running", **other}) for other in others)
    print(rule, "runs after every end:", after, "and before one:", before)
    with DAG("taken", schedule=None):
        if after and not before:
            assert end(trigger_rule=rule).trigger_rule == rule
        else:
            with pytest.raises(ValueError, match=f"'{rule}' would not let it run after every end"):
                end(trigger_rule=rule)


def test_every_run_of_a_mapped_training_is_ended_or_that_of_its_own_index(
    backend: OciDataScience, started: Callable[..., RunRef], run_id: str
) -> None:
    first, second = started(map_index=0), started(map_index=1)
    assert end().execute(context(run_id, map_index=1, train_1="failed")) == [second.key.name]
    assert not any(state.terminal for state in states(backend, first))
    assert end().execute(context(run_id, train_0="skipped", train_1="failed")) == [first.key.name]
    assert all(state.terminal for state in states(backend, first, second))


def test_where_nothing_was_created_nothing_is_ended(run_id: str) -> None:
    begun = time.monotonic()
    assert end().execute(context(run_id, train="upstream_failed")) == []
    assert time.monotonic() - begun >= gang_cleanup.SETTLED_AFTER, (
        "a worker might still have been creating nodes"
    )


def test_a_training_that_succeeded_is_left_alone(
    backend: OciDataScience, started: Callable[..., RunRef], run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = started(seconds=0.2)
    wait_until(backend, ref, lambda status: status.ended)
    monkeypatch.setattr(gang_cleanup, "SETTLED_AFTER", 100.0)
    begun = time.monotonic()
    assert end().execute(context(run_id, train="success")) == []
    assert time.monotonic() - begun < gang_cleanup.SETTLED_AFTER
    assert states(backend, ref) == {NodeState.SUCCEEDED}


def test_nodes_that_are_created_meanwhile_are_ended_too(
    backend: OciDataScience, started: Callable[..., RunRef], run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    late: list[RunRef] = []
    made = end()

    def wait(seconds: float) -> None:
        late.append(started())
        time.sleep(seconds)

    monkeypatch.setattr(made._stop, "wait", wait)
    monkeypatch.setattr(
        "airflow_provider_ocidist.gangs.canceller.Canceller._pause", lambda *_: time.sleep(0.3)
    )
    assert made.execute(context(run_id, train="failed")) == [late[0].key.name]
    assert all(state.terminal for state in states(backend, *late))


def test_once_it_is_killed_it_asks_the_service_no_more(run_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []
    made = end()
    look = gang_cleanup.GangCleanup._ended_now

    def ended_now(cleanup: gang_cleanup.GangCleanup, keys: Any) -> Any:
        looks.append(time.monotonic())
        found = look(cleanup, keys)
        made.on_kill()
        return found

    monkeypatch.setattr(gang_cleanup.GangCleanup, "_ended_now", ended_now)
    with pytest.raises(BackendError, match="the task was killed") as caught:
        made.execute(context(run_id, train="failed"))
    assert (caught.value.cause, caught.value.retryable) == (Cause.CANCELED, True)
    assert len(looks) == 1


def test_a_training_that_still_runs_is_not_ended_behind_its_back(run_id: str) -> None:
    with pytest.raises(AirflowException, match=r"train is deferred: .* put this task downstream"):
        end().execute(context(run_id, train="deferred"))


def test_it_is_a_teardown_but_not_of_the_training_as_its_setup() -> None:
    with DAG("d", schedule=None):
        train = DistributedTrainingOperator(task_id="train", job="job.yaml", conn_id="oci_other")
        torn_down = EndTrainingOperator(task_id="a", training=train)
        train >> torn_down.as_teardown()
        plain = EndTrainingOperator(task_id="b", training=train.output)
        with pytest.raises(ValueError, match="would not run after a training that failed"):
            plain.as_teardown(setups=train)
    assert torn_down.is_teardown
    assert (plain.training, plain.conn_id, plain.trigger_rule) == ("train", "oci_other", "all_done")


def test_a_run_in_the_compartment_of_its_job_is_found_by_what_the_training_published(
    backend: OciDataScience, started: Callable[..., RunRef], run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = started(), started(task_id="other")
    told: list[RunRef] = [mine]
    places: list[str | None] = []
    monkeypatch.setattr(gang_cleanup, "_published_by", lambda _: told[0])
    monkeypatch.setattr(gang_cleanup, "gangs_of", lambda *given: places.extend(given[-1]) or [])
    assert end().execute(context(run_id, train="failed")) == [mine.key.name]
    assert set(places) == {None, mine.compartment_id}
    told[0] = other
    assert end().execute(context(run_id, train="failed")) == []
    assert not any(state.terminal for state in states(backend, other))


def test_a_mapped_end_minds_the_state_of_a_training_that_is_not_mapped(run_id: str) -> None:
    with pytest.raises(AirflowException, match="train is running"):
        end().execute(context(run_id, map_index=3, train="running"))


@pytest.mark.parametrize("known", [{}, {"train_0": "failed", "train_1": "running"}])
def test_a_training_that_the_dag_run_does_not_have_is_reported(run_id: str, known: dict[str, str]) -> None:
    with pytest.raises(AirflowException, match="has no task train, or none of this map index"):
        end().execute(context(run_id, map_index=3, **known))


def test_the_connection_of_a_training_is_known_or_asked_for(run_id: str) -> None:
    with pytest.raises(AirflowException, match="connection of train is not known: name it, conn_id="):
        EndTrainingOperator(task_id="end", training="train").execute(context(run_id, train="failed"))
    with DAG("d", schedule=None):
        named = EndTrainingOperator(task_id="named", training="train")
        DistributedTrainingOperator(task_id="train", job="job.yaml", conn_id="oci_other")
        mapped = DistributedTrainingOperator.partial(task_id="mapped", job="job.yaml")
        several = mapped.expand(conn_id=["oci_one", "oci_two"])
        with pytest.raises(
            ValueError, match="another connection for each map index: name one here, conn_id="
        ):
            EndTrainingOperator(task_id="a", training=several)
        given = EndTrainingOperator(task_id="b", training=several, conn_id="oci_one")
        nodes = DistributedTrainingOperator.partial(task_id="more", job="job.yaml", conn_id="oci_other")
        shared = EndTrainingOperator(task_id="c", training=nodes.expand(nodes=[1, 2]))
    assert (named._conn_id_in_dag(), given.conn_id, shared.conn_id) == ("oci_other", "oci_one", "oci_other")


# Gangs at other homes


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Local:
    """Return the home that is this machine; the connection names nothing else."""
    fields = {"work_dir": str(tmp_path / "work")}
    monkeypatch.setenv("AIRFLOW_CONN_OCI_DEFAULT", json.dumps({"conn_type": "oci", "extra": fields}))
    return Local.connect(fields)


def started_at(home: Local, run_id: str, **changes: Any) -> RunRef:
    job = a_job(nodes=1, seconds=60, backend={"kind": "local"}, **changes)
    return home.submit(home.plan(job, a_key(run_id)))


def test_a_gang_at_another_home_is_found_by_its_record(here: Local, run_id: str) -> None:
    left = started_at(here, run_id)
    assert end().execute(context(run_id, train="failed")) == [left.key.name]
    assert here.status([left])[0].ended


def test_a_gang_whose_job_names_another_work_dir_is_found_by_what_the_training_published(
    here: Local, run_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = started_at(here, run_id, work_dir=str(tmp_path / "elsewhere"))
    monkeypatch.setattr(gang_cleanup, "_published_by", lambda _: left)
    assert end().execute(context(run_id, train="failed")) == [left.key.name]
    assert here.status([left])[0].ended


def test_a_home_that_nothing_names_can_be_named(here: Local, run_id: str) -> None:
    del here
    with pytest.raises(AirflowException, match="compartment"):
        end().execute(context(run_id, train="failed"))
    assert end(backend="local").execute(context(run_id, train="failed")) == []


def test_a_home_that_cannot_be_asked_keeps_no_gang_at_another_alive(
    here: Local, run_id: str, backend: OciDataScience
) -> None:
    left = started_at(here, run_id)
    elsewhere = backend.plan(a_job(), a_key(run_id, attempt=2))
    unseen = Attempt.of(replace(elsewhere, run_dir=f"{Path(left.run_dir).parent}/{elsewhere.key.name}"))
    here.gangs.record(unseen)
    with pytest.raises(AirflowException):
        end().execute(context(run_id, train="failed"))
    assert here.status([left])[0].ended
