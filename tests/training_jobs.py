"""Small training jobs for tests, and the patience to wait for them."""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow_provider_ocidist.backends.base import Backend
from airflow_provider_ocidist.gangs.actions import Fail, Succeed
from airflow_provider_ocidist.gangs.submission import GangSubmitter
from airflow_provider_ocidist.gangs.watch import Watch
from airflow_provider_ocidist.job import TrainingJob
from airflow_provider_ocidist.job_file import parsing
from airflow_provider_ocidist.model.run import RunKey, RunRef, RunStatus

PROGRAMS = Path(__file__).parent / "e2e" / "programs"
ASKED_K8S = "OCIDIST_TEST_K8S"
"""Variable that `make test-k8s` sets: a KUBECONFIG alone, which many people have, must not make tests run on their
cluster."""
PATIENCE_S = 600.0 if os.environ.get(ASKED_K8S) else 120.0
"""Seconds for a gang: a cluster of somebody pulls images, and may have to add machines first."""
BACKEND = {"kind": "oci_data_science", "shape": "VM.Standard.E4.Flex", "ocpus": 1, "memory_gb": 8}


def a_job(nodes: int = 2, seconds: float = 0.5, **changes: Any) -> TrainingJob:
    return parsing.build(
        {
            "name": "steps",
            "nodes": nodes,
            "program": {"source": str(PROGRAMS), "script": "steps.py", "args": ["--seconds", str(seconds)]},
            "launcher": {"kind": "python"},
            "checkpoints": {},
            "limits": {"stop_grace": 1},
            "backend": BACKEND,
            **changes,
        }
    )


def a_key() -> RunKey:
    return RunKey(dag_id="dag", run_id=uuid.uuid4().hex, task_id="train")


def wait_until(
    backend: Backend, ref: RunRef, done: Callable[[RunStatus], bool], seconds: float = PATIENCE_S
) -> RunStatus:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        (status,) = backend.status([ref])
        if done(status):
            return status
        time.sleep(0.2)
    raise AssertionError(f"not within {seconds} s: {status}")


def outcome(backend: Backend, job: TrainingJob, key: RunKey | None = None) -> Succeed | Fail:
    """Submit a job and wait as a task does, to the decision."""
    log = logging.getLogger("gang")
    record = GangSubmitter(backend, job, log, None, threading.Event()).adopt_or_submit(key or a_key(), None)
    watch, deadline = Watch(backend, record, log), time.monotonic() + 100
    while time.monotonic() < deadline:
        action = watch.look(time.time())
        if isinstance(action, Succeed | Fail):
            return action
        time.sleep(0.1)
    raise AssertionError(f"no end: {watch.status}")
