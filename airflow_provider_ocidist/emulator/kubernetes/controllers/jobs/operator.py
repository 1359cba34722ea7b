"""The Job controller: looks at Jobs, and lets their pods go when they are gone."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from airflow_provider_ocidist.emulator.kubernetes.controllers.jobs.look import look
from airflow_provider_ocidist.emulator.kubernetes.controllers.jobs.pods import is_tracked
from airflow_provider_ocidist.emulator.kubernetes.controllers.manager import owner
from airflow_provider_ocidist.emulator.kubernetes.controllers.steps import (
    RuledController,
    is_terminating,
    release,
)
from airflow_provider_ocidist.emulator.kubernetes.kinds import Obj
from airflow_provider_ocidist.emulator.kubernetes.objects import Cluster


class JobOperator(RuledController):
    """Its pods have a finalizer, which nobody else takes away."""

    def reconcile(self, cluster: Cluster, namespace: str, name: str) -> float | None:
        job = cluster.find(self.kind, namespace, name)
        if job is None or is_terminating(job):
            release(cluster, _tracked(cluster.stored("Pod", namespace), (namespace, name)))
            return None
        return super().reconcile(cluster, namespace, name)


def _tracked(pods: Iterable[Obj], key: tuple[str, str]) -> list[Obj]:
    return [pod for pod in pods if key in owner("Job")(pod) and is_tracked(pod)]


def jobs(pod_backoff_s: float) -> JobOperator:
    """Return the controller; it waits so long before it replaces a first failed pod."""
    looking = partial(look, backoff_s=pod_backoff_s)
    return JobOperator(kind="Job", owns=("Pod",), look=looking, source="job-controller")
