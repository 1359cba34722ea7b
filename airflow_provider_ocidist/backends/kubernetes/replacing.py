"""ReplacingBackend: gangs of which a lost pod alone is created again, by an operator that does so without a request.

A new pod has the template of the one before, and begins at once. So what makes it a node is a file in the
run directory, which names the lost pods by their UIDs: until the waiting process has written that there, the new pod's
agent waits (`agent.join.own_turn`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from airflow_provider_ocidist.backends.capabilities import ReplacesNodes
from airflow_provider_ocidist.backends.kubernetes.backend import KubernetesBackend
from airflow_provider_ocidist.backends.kubernetes.node_pods import nodes_among, uid_of
from airflow_provider_ocidist.backends.kubernetes.objects import Obj, is_deleted
from airflow_provider_ocidist.backends.kubernetes.pod_parts import has_failed, was_restarted
from airflow_provider_ocidist.backends.kubernetes.refs import name_of, namespace_of
from airflow_provider_ocidist.backports import unix_time
from airflow_provider_ocidist.errors import BackendError
from airflow_provider_ocidist.model.replaced import Replaced
from airflow_provider_ocidist.model.report import NodeReport, Restart
from airflow_provider_ocidist.model.run import Plan, RunRecord, RunRef
from airflow_provider_ocidist.work_dir import lost_runs

log = logging.getLogger(__name__)

KILLED_AFTER = 1
"""Seconds that a pod has to end whose kubelet answers: with none, a new one could begin beside its processes."""


@dataclass(frozen=True, slots=True)
class LostPod:
    """A pod that is lost, whether it is still there or not."""

    uid: str
    name: str | None
    """Name of the pod, where it is still there."""
    seconds: float
    """Seconds for which it has run."""
    grace: int = 0
    """Seconds that it has to end; 0: nobody waits until a kubelet confirms that."""


class ReplacingBackend(ReplacesNodes, KubernetesBackend):
    """Has lost pods created again: it removes what is left of them, and records that they count as lost."""

    goes_on_with_fewer = False

    def open(self, resource_id: str) -> RunRecord:
        record = super().open(resource_id)
        try:
            return replace(record, ref=self._present(record.ref))
        except BackendError as error:
            # Who acts on it asks for the present nodes first.
            log.warning("which nodes were replaced cannot be read now: %s", error)
            return record

    def _adopted(self, plan: Plan, found: Sequence[RunRef]) -> RunRef | None:
        ref = super()._adopted(plan, found)
        return None if ref is None else self._present(ref)

    def _present(self, ref: RunRef) -> RunRef:
        return self.current(ref) if ref.replaces else ref

    def current(self, ref: RunRef) -> RunRef:
        return _with(ref, lost_runs.read(self._run_dirs, ref))

    def replace_nodes(self, ref: RunRef, failures: Sequence[Restart]) -> RunRef:
        lost = self._lost(ref, [each.rank for each in failures if each.rank is not None])
        # Before it is recorded: a process that is killed in between does it again.
        self._remove(ref, lost)
        now = Replaced(
            replaced=(*ref.replaced, *failures),
            lost_runs=(*ref.lost_runs, *(each.uid for each in lost)),
            lost_seconds=ref.lost_seconds + sum(each.seconds for each in lost),
        )
        return _with(ref, lost_runs.record(self._run_dirs, ref, now))

    def end_nodes(self, ref: RunRef, ranks: Sequence[int]) -> None:
        now = self.current(ref)
        same = [rank for rank in ranks if now.incarnation(rank) == ref.incarnation(rank)]
        self._remove(now, self._lost(now, same))

    def _remove(self, ref: RunRef, lost: Sequence[LostPod]) -> None:
        for each in lost:
            if each.name is not None:
                self._objects.remove_pod(namespace_of(ref), each.name, each.uid, each.grace)

    def _lost(self, ref: RunRef, ranks: Sequence[int]) -> list[LostPod]:
        """Return the pods of the nodes that these ranks have by a reference, though others may have their names."""
        found = self._objects.pods(namespace_of(ref), name_of(ref))
        reports = lost_runs.reports(self._run_dirs, ref, ranks)
        instances = {rank: report.instance for rank, report in reports.items() if report is not None}
        pods = nodes_among(ref, found, self.operator, instances)
        return [self._lost_pod(ref, rank, pods.get(rank), reports[rank]) for rank in ranks]

    def _lost_pod(self, ref: RunRef, rank: int, pod: Obj | None, report: NodeReport | None) -> LostPod:
        there = None if pod is None or uid_of(pod) in ref.lost_runs else pod
        number = ref.incarnation(rank)
        if report is not None and report.incarnation > number:
            raise BackendError(
                f"{ref.key.name}: another process has replaced node {rank} just now", retryable=True
            )
        if report is not None and report.instance and report.incarnation == number:
            own = there if there is not None and uid_of(there) == report.instance else None
            began = min(report.started_at, _began(own) or report.started_at)
            return self._as_lost(report.instance, own, report.ran_until - began)
        if there is None or not self._shows_loss(there):
            raise BackendError(
                f"{ref.key.name}: the cluster does not show now which pod was node {rank}", retryable=True
            )
        now = self.now()
        return self._as_lost(uid_of(there), there, now - (_began(there) or now))

    def _shows_loss(self, pod: Obj) -> bool:
        return has_failed(pod) or is_deleted(pod) or was_restarted(pod, self.operator.container)

    def _as_lost(self, uid: str, pod: Obj | None, seconds: float) -> LostPod:
        if pod is None:
            return LostPod(uid, None, max(0.0, seconds))
        # One that is deleted already and is still there has no kubelet that answers; nor may one that is silent have.
        answers = was_restarted(pod, self.operator.container) and not is_deleted(pod)
        return LostPod(uid, str(pod["metadata"]["name"]), max(0.0, seconds), KILLED_AFTER if answers else 0)


def _began(pod: Obj | None) -> float | None:
    return unix_time(((pod or {}).get("status") or {}).get("startTime"))


def _with(ref: RunRef, known: Replaced) -> RunRef:
    if len(known.replaced) < len(ref.replaced):
        # A store that lags.
        return ref
    return replace(ref, replaced=known.replaced, lost_runs=known.lost_runs, lost_seconds=known.lost_seconds)
