"""Operators: what is installed in the cluster beside Kubernetes itself, and in which version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_ocidist.emulator.kubernetes.controllers import limit_range, pod_security, quota
from airflow_provider_ocidist.emulator.kubernetes.controllers.jobs.kind import JOB
from airflow_provider_ocidist.emulator.kubernetes.controllers.jobs.look import POD_BACKOFF_S
from airflow_provider_ocidist.emulator.kubernetes.controllers.jobs.operator import jobs
from airflow_provider_ocidist.emulator.kubernetes.controllers.jobsets.kind import JOBSET, JOBSETS
from airflow_provider_ocidist.emulator.kubernetes.controllers.kueue.controller import Kueue, suspend
from airflow_provider_ocidist.emulator.kubernetes.controllers.kueue.kinds import KINDS as KUEUE_KINDS
from airflow_provider_ocidist.emulator.kubernetes.controllers.kueue.workloads import JOB_KINDS
from airflow_provider_ocidist.emulator.kubernetes.controllers.manager import Controller
from airflow_provider_ocidist.emulator.kubernetes.controllers.pytorchjob import (
    admission as pytorchjob_admission,
)
from airflow_provider_ocidist.emulator.kubernetes.controllers.pytorchjob import generation, kind
from airflow_provider_ocidist.emulator.kubernetes.controllers.pytorchjob.look import Settings
from airflow_provider_ocidist.emulator.kubernetes.controllers.trainjob import admission as trainjob_admission
from airflow_provider_ocidist.emulator.kubernetes.controllers.trainjob import kinds, release
from airflow_provider_ocidist.emulator.kubernetes.controllers.trainjob.runtime import TORCH_DISTRIBUTED
from airflow_provider_ocidist.emulator.kubernetes.kinds import Kind, Obj
from airflow_provider_ocidist.emulator.kubernetes.objects import Admission, Cluster

UNLIMITED = ("Event", "Lease", "ResourceQuota", "Workload")
"""Kinds that no quota counts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Operators:
    """What is installed; None: it is not, and its kinds are unknown."""

    training_operator: str | None = generation.NEWEST
    """Version of Kubeflow's training operator, for PyTorchJob: 1.3 to 1.9.4."""
    trainer: str | None = release.NEWEST
    """Version of Kubeflow Trainer, for TrainJob: 2.0 to 2.3."""
    kueue: bool = True
    """Whether Kueue runs, which holds jobs with the label of a queue until the queue has room."""
    pod_backoff_s: float = POD_BACKOFF_S
    """Seconds before a Job replaces its first failed pod; doubled with each further one."""
    status_delay_s: float = 0.0
    """Seconds after its creation for which the status of a PyTorchJob stays empty."""
    init_tries: int = 100
    """Number of times that a worker of a PyTorchJob looks for its master, every two seconds, before it fails."""

    @property
    def kinds(self) -> Sequence[Kind]:
        found = [JOB]
        if self.training_operator:
            found.append(kind.pytorchjob(self._generation()))
        if self.trainer:
            found += [JOBSET, *kinds.kinds(release.release(self.trainer))]
        return [*found, *(KUEUE_KINDS if self.kueue else ())]

    @property
    def controllers(self) -> Sequence[Controller]:
        found: list[Controller] = [jobs(self.pod_backoff_s), quota.Quotas()]
        if self.training_operator:
            how = Settings(
                generation=self._generation(),
                status_delay_s=self.status_delay_s,
                init_tries=self.init_tries,
            )
            found.append(kind.operator(how))
        if self.trainer:
            found += [JOBSETS, kinds.operator(release.release(self.trainer))]
        return [*found, *([Kueue()] if self.kueue else ())]

    def install(self, cluster: Cluster) -> None:
        """Add webhooks, and the objects that come with an installation."""
        self.admit(cluster)
        self.create_objects(cluster)

    def admit(self, cluster: Cluster) -> None:
        """Add webhooks, those that change objects first, what namespaces give and forbid pods, and quotas."""
        for name in JOB_KINDS if self.kueue else ():
            cluster.add_admission(name, suspend)
        for name, admission in self._admissions().items():
            cluster.add_admission(name, admission)
        cluster.add_admission("Pod", limit_range.admit)
        cluster.add_admission("Pod", pod_security.admit)
        for each in cluster.kinds:
            if each.namespaced and each.name not in UNLIMITED:
                cluster.add_admission(each.name, quota.admit)

    def create_objects(self, cluster: Cluster) -> None:
        for obj in self._objects():
            cluster.create(obj)

    def _generation(self) -> generation.Generation:
        assert self.training_operator is not None
        return generation.generation(self.training_operator)

    def _admissions(self) -> Mapping[str, Admission]:
        found: dict[str, Admission] = {}
        if self.training_operator and self._generation().webhook:
            found["PyTorchJob"] = pytorchjob_admission.admit
        if self.trainer:
            found["TrainJob"] = trainjob_admission.admission(release.release(self.trainer))
        return found

    def _objects(self) -> Sequence[Obj]:
        return [TORCH_DISTRIBUTED] if self.trainer else []
