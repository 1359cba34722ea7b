"""Jobs of the kinds on Kubernetes, and what their plans hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from airflow_provider_ocidist import kinds
from airflow_provider_ocidist.errors import JobFileError
from airflow_provider_ocidist.job_file import parsing
from airflow_provider_ocidist.model.job import TrainingJob
from airflow_provider_ocidist.model.run import Plan, RunKey
from tests.training_jobs import PROGRAMS, a_key

IMAGE = "iad.ocir.io/ns/train:1"
CREATED = {"pytorchjob": "CreatePyTorchJob", "trainjob": "CreateTrainJob"}
"""By kind: the request that creates the gang's own object."""


def job_of(kind: str, nodes: int = 2, **changes: Any) -> TrainingJob:
    given = {
        "name": "steps",
        "nodes": nodes,
        "image": IMAGE,
        "program": {"source": str(PROGRAMS), "script": "steps.py"},
        "launcher": {"kind": "python"},
        "work_dir": "oci://bucket@ns/ocidist",
        **changes,
    }
    given["backend"] = {"kind": kind, **changes.get("backend", {})}
    return parsing.build(given)


def problems_in(kind: str, **changes: Any) -> dict[str, str]:
    with pytest.raises(JobFileError) as caught:
        job_of(kind, **changes)
    return {problem.path: problem.message for problem in caught.value.problems}


def planned(job: TrainingJob, key: RunKey | None = None, **fields: Any) -> Plan:
    backend = kinds.load("backends", job.backend.kind).BACKEND
    plan: Plan = backend.connect({"kube_config": "{}", **fields}).plan(job, key or a_key())
    return plan


def body(plan: Plan, verb: str | None = None) -> Mapping[str, Any]:
    (found,) = [request.body for request in plan.requests if request.verb == (verb or CREATED[plan.backend])]
    return found
