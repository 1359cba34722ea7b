"""References to gangs, as this version and earlier ones have stored them."""

from __future__ import annotations

import pickle

from airflow_provider_ocidist.model.run import RunKey, RunRef

REF = RunRef(
    backend="pytorchjob",
    key=RunKey(dag_id="d", run_id="r", task_id="t"),
    nodes=1,
    job_id="team-a/train",
    run_ids=("train-master-0",),
    run_dir="s3://bucket/x",
    submitted_at=1.0,
    compartment_id="team-a",
    has_own_log=True,
)


def test_a_gang_on_kubernetes_that_an_earlier_version_has_stored_still_has_a_log() -> None:
    before = {name: value for name, value in REF.to_json().items() if name != "has_own_log"}
    stored = RunRef.from_json({**before, "log_group_id": "team-a"})
    assert stored.has_log
    assert not RunRef.from_json(before).has_log
    assert REF.has_log


def test_a_reference_can_be_given_to_another_process() -> None:
    assert pickle.loads(pickle.dumps(REF)) == REF
