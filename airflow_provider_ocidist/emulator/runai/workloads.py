"""Workloads: what was submitted, and how far it is; moved on by what happens beneath, in the cluster."""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Protocol

from airflow_provider_ocidist.emulator.kubernetes.statuses import KubernetesError
from airflow_provider_ocidist.emulator.runai.manifests import LABEL, manifest_of
from airflow_provider_ocidist.emulator.runai.phases import FINAL, Beneath, Desired, WorkloadPhase, phase_of
from airflow_provider_ocidist.emulator.runai.quotas import Demand, Held, Pool, Quota, held, pool_of
from airflow_provider_ocidist.emulator.runai.refusals import bad_request, exists, not_found
from airflow_provider_ocidist.emulator.runai.submissions import WorkloadSubmission

MAX_CHANGES = 1_000
"""Most changes of the phase of one workload; older ones are forgotten."""
MAX_DELETED = 1_000
"""Most deleted workloads that can still be listed."""

logger = logging.getLogger(__name__)


class ClusterObjects(Protocol):
    """The cluster beneath, as the stand-in for Kubernetes stores it."""

    def create(self, obj: dict[str, Any]) -> dict[str, Any]: ...

    def find(self, kind: str, namespace: str | None, name: str) -> dict[str, Any] | None: ...

    def list(
        self, kind: str, namespace: str | None = None, labels: Mapping[str, str] | None = None
    ) -> Sequence[dict[str, Any]]: ...

    def delete(self, kind: str, namespace: str | None, name: str) -> object: ...


@dataclass(slots=True)
class Project:
    """A project, whose workloads run in a namespace of their own."""

    id: str
    name: str
    quota: Quota = field(default_factory=Quota)

    @property
    def namespace(self) -> str:
        return f"runai-{self.name}"


@dataclass(frozen=True, slots=True)
class PhaseChange:
    """A phase that a workload came into, and when."""

    at: float
    phase: WorkloadPhase


@dataclass(slots=True)
class SubmittedWorkload:
    """One workload; times are Unix times."""

    submission: WorkloadSubmission
    project: Project
    created_by: str
    created_at: float
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    desired: Desired = "Running"
    history: deque[PhaseChange] = field(default_factory=lambda: deque(maxlen=MAX_CHANGES))
    pods: Sequence[Mapping[str, Any]] = ()
    """Pods as they were seen last."""
    pool: str = ""
    """Pool of nodes that it runs in, while it is admitted."""
    is_admitted: bool = False
    is_created: bool = False
    """Whether an object of it was created beneath since it was last stopped."""
    deleted_at: float | None = None

    @property
    def phase(self) -> WorkloadPhase:
        return self.history[-1].phase

    def change_at(self, time_s: float) -> PhaseChange:
        """Return the phase that it was in; what is asked for before the beginning is answered as at the beginning."""
        return next((each for each in reversed(self.history) if each.at <= time_s), self.history[0])

    def existed_at(self, time_s: float) -> bool:
        """Whether it had been created then, and not been deleted."""
        return self.created_at <= time_s and (self.deleted_at is None or self.deleted_at > time_s)

    @property
    def demand(self) -> Demand:
        return Demand(gpus=self.submission.gpus, preemptible=self.submission.preemptible)

    @property
    def completed_at(self) -> float | None:
        return self.history[-1].at if self.phase.name in FINAL else None

    def enter(self, phase: WorkloadPhase, now: float) -> None:
        if not self.history or phase != self.phase:
            self.history.append(PhaseChange(now, phase))


class SubmittedWorkloads:
    """All workloads of the tenant. One thread uses it."""

    def __init__(
        self,
        projects: Sequence[Project],
        cluster_id: str,
        objects: ClusterObjects,
        clock: Callable[[], float] = time.time,
        pools: Sequence[str] = ("default",),
    ) -> None:
        self.pools = {name: Pool() for name in pools}
        self.projects = {project.id: project for project in projects}
        self._cluster_id = cluster_id
        self._objects = objects
        self._clock = clock
        self._all: dict[str, SubmittedWorkload] = {}

    def create(self, submission: WorkloadSubmission, created_by: str) -> SubmittedWorkload:
        """Take a workload; `tick` runs it. Raises the refusals 400 and 409."""
        project = self.projects.get(submission.project_id)
        if project is None:
            raise bad_request(f"project {submission.project_id} does not exist")
        if submission.cluster_id != self._cluster_id:
            raise bad_request(f"cluster {submission.cluster_id} does not exist")
        if submission.name in self.names_in(project.id):
            raise exists(submission.name)
        workload = SubmittedWorkload(submission, project, created_by, self._clock())
        workload.enter(WorkloadPhase("Creating"), workload.created_at)
        self._all[workload.id] = workload
        return workload

    def names_in(self, project_id: str) -> dict[str, SubmittedWorkload]:
        return {each.submission.name: each for each in self.living() if each.project.id == project_id}

    def get(self, workload_id: str, as_of: float = math.inf) -> SubmittedWorkload:
        """Return one that was not deleted at a time. Raises the refusal 404."""
        workload = self._all.get(workload_id)
        if workload is None or not workload.existed_at(as_of):
            raise not_found()
        return workload

    def living(self, as_of: float = math.inf) -> Iterator[SubmittedWorkload]:
        return (each for each in self._all.values() if each.existed_at(as_of))

    def deleted(self, as_of: float = math.inf) -> Iterator[SubmittedWorkload]:
        return (
            each for each in self._all.values() if each.deleted_at is not None and each.deleted_at <= as_of
        )

    def suspend(self, workload: SubmittedWorkload) -> None:
        if workload.phase.name not in FINAL and workload.desired == "Running":
            workload.desired = "Stopped"
            self._move(workload)

    def resume(self, workload: SubmittedWorkload) -> None:
        if workload.desired == "Stopped":
            workload.desired = "Running"
            workload.is_admitted = workload.is_created = False
            workload.enter(WorkloadPhase("Resuming"), self._clock())

    def delete(self, workload: SubmittedWorkload) -> None:
        workload.desired = "Deleted"
        self._move(workload)

    def reset(self) -> None:
        """Forget all workloads, and end what runs of them."""
        for workload in self.living():
            self._end(workload)
        self._all.clear()

    def tick(self) -> None:
        """Look at the cluster, and move every workload on; the oldest is admitted first."""
        for workload in list(self.living()):
            try:
                self._move(workload)
            except KubernetesError as error:
                # A conflict passes: what has the same name may still be ending.
                if error.code != 409:
                    self._give_up(workload, error)
            except Exception as error:
                logger.exception("workload %s cannot be moved on", workload.submission.name)
                self._give_up(workload, error)

    def _give_up(self, workload: SubmittedWorkload, error: Exception) -> None:
        """End a workload that the cluster does not take: to try it again would change nothing."""
        if workload.phase.name not in FINAL:
            workload.enter(WorkloadPhase("Failed", f"The workload cannot be created: {error}"), self._clock())

    def _move(self, workload: SubmittedWorkload) -> None:
        beneath = self._beneath(workload)
        workload.pods, was_created = beneath.pods or workload.pods, workload.is_created
        wait = self._admit(workload)
        if workload.desired != "Running":
            self._end(workload, beneath)
            beneath = self._beneath(workload)
        elif workload.is_admitted and not workload.is_created and beneath.is_empty:
            # What was stopped before may still be ending, until then.
            self._start(workload)
        phase = phase_of(workload.desired, workload.phase, wait, beneath, workload.submission.pods)
        workload.enter(phase, self._clock())
        # What a person deletes in the cluster is gone here, too.
        vanished = workload.is_created and was_created and phase.name not in FINAL
        if beneath.is_empty and (
            workload.desired == "Deleted" or (workload.desired == "Running" and vanished)
        ):
            workload.deleted_at = self._clock()
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        gone = sorted(self.deleted(), key=lambda each: each.deleted_at or 0)
        for workload in gone[:-MAX_DELETED]:
            del self._all[workload.id]

    def _admit(self, workload: SubmittedWorkload) -> Held | None:
        if workload.desired != "Running" or workload.is_admitted or workload.phase.name in FINAL:
            return None
        project = workload.project
        running = [
            each
            for each in self.living()
            if each.is_admitted and each.desired == "Running" and each.phase.name not in FINAL
        ]
        own = [each.demand for each in running if each.project is project]
        wait = held(project.name, project.quota, workload.demand, own)
        if wait is None:
            wait = self._placed(workload, running)
        workload.is_admitted = wait is None
        return wait

    def _placed(self, workload: SubmittedWorkload, running: Sequence[SubmittedWorkload]) -> Held | None:
        """Give a workload a pool of nodes; return why it has to wait for one."""
        used: dict[str, Fraction] = {}
        for each in running:
            used[each.pool] = used.get(each.pool, Fraction(0)) + each.demand.gpus
        wanted = workload.submission.spec.get("nodePools") or list(self.pools)
        found = pool_of(wanted, self.pools, workload.demand.gpus, used)
        if isinstance(found, Held):
            return found
        workload.pool = found
        return None

    def _start(self, workload: SubmittedWorkload) -> None:
        namespace = workload.project.namespace
        if self._objects.find("Namespace", None, namespace) is None:
            self._objects.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        self._objects.create(manifest_of(workload.submission, namespace, workload.id, workload.project.name))
        workload.is_created = True

    def _beneath(self, workload: SubmittedWorkload) -> Beneath:
        namespace, name = workload.project.namespace, workload.submission.name
        job = None
        if workload.submission.kind == "distributed":
            job = self._objects.find("PyTorchJob", namespace, name)
        pods = self._objects.list("Pod", namespace, {LABEL: name})
        # Those of one of the same name, which is gone, may still be ending.
        own = [pod for pod in pods if _belongs(pod, workload)]
        return Beneath(job=job, pods=own)

    def _end(self, workload: SubmittedWorkload, beneath: Beneath | None = None) -> None:
        beneath = beneath or self._beneath(workload)
        if beneath.job is not None and not _is_ending(beneath.job):
            self._delete("PyTorchJob", workload, workload.submission.name)
        if workload.submission.kind == "trainings":
            for pod in beneath.pods:
                if not _is_ending(pod):
                    self._delete("Pod", workload, pod["metadata"]["name"])

    def _delete(self, kind: str, workload: SubmittedWorkload, name: str) -> None:
        try:
            self._objects.delete(kind, workload.project.namespace, name)
        except KubernetesError as error:
            # Controllers are at work meanwhile: it may have gone since it was seen.
            if error.code != 404:
                raise


def _belongs(obj: Mapping[str, Any], workload: SubmittedWorkload) -> bool:
    labels = obj["metadata"].get("labels") or {}
    return bool(labels.get("runai/workload-id") == workload.id)


def _is_ending(obj: Mapping[str, Any]) -> bool:
    return "deletionTimestamp" in obj["metadata"]
