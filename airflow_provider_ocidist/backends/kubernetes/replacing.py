"""ReplacingBackend: gangs of which a lost pod alone is made anew, by an operator that does so without a request.

A new pod has the name and the template of the one before, and begins at once. So what makes it a node is a file in the
run directory, which names the lost pods by their UIDs: until the waiting process has written that there, the new pod's
agent waits (`agent.join.own_turn`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from airflow_provider_ocidist.backends.capabilities import ReplacesNodes
from airflow_provider_ocidist.backends.kubernetes.backend import KubernetesBackend
from airflow_provider_ocidist.backends.kubernetes.gang_nodes import uid_of
from airflow_provider_ocidist.backends.kubernetes.objects import Obj
from airflow_provider_ocidist.backends.kubernetes.refs import name_of, namespace_of
from airflow_provider_ocidist.backports import unix_time
from airflow_provider_ocidist.errors import BackendError
from airflow_provider_ocidist.model.replaced import Replaced
from airflow_provider_ocidist.model.report import NodeReport, Restart
from airflow_provider_ocidist.model.run import Plan, RunRecord, RunRef
from airflow_provider_ocidist.work_dir import lost_runs


@dataclass(frozen=True, slots=True)
class LostPod:
    """A pod that is lost, whether it is still there or not."""

    uid: str
    name: str | None
    """Name of the pod, where it is still there."""
    seconds: float
    """Seconds for which it has run."""


class ReplacingBackend(ReplacesNodes, KubernetesBackend):
    """Has lost pods made anew: it removes what is left of them, and records that they count as lost."""

    goes_on_with_fewer = False

    def open(self, resource_id: str) -> RunRecord:
        record = super().open(resource_id)
        return replace(record, ref=self._present(record.ref))

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
        self._remove(ref, self._lost(ref, ranks))

    def _remove(self, ref: RunRef, lost: Sequence[LostPod]) -> None:
        for each in lost:
            if each.name is not None:
                self._objects.remove_pod(namespace_of(ref), each.name, each.uid)

    def _lost(self, ref: RunRef, ranks: Sequence[int]) -> list[LostPod]:
        """Return the pods of the nodes that these ranks have by a reference, though others may have their names."""
        pods = self._objects.pods(namespace_of(ref), name_of(ref))
        reports = lost_runs.reports(self._run_dirs, ref, ranks)
        return [self._lost_pod(ref, rank, pods.get(rank), reports[rank]) for rank in ranks]

    def _lost_pod(self, ref: RunRef, rank: int, pod: Obj | None, report: NodeReport | None) -> LostPod:
        there = None if pod is None or uid_of(pod) in ref.lost_runs else pod
        if report is not None and report.instance and report.incarnation == ref.incarnation(rank):
            name = str(there["metadata"]["name"]) if there and uid_of(there) == report.instance else None
            return LostPod(report.instance, name, max(0.0, report.ran_until - report.started_at))
        if there is None:
            raise BackendError(
                f"{ref.key.name}: the cluster does not show now which pod was node {rank}", retryable=True
            )
        now = self.now()
        began = unix_time((there.get("status") or {}).get("startTime")) or now
        return LostPod(uid_of(there), str(there["metadata"]["name"]), max(0.0, now - began))


def _with(ref: RunRef, known: Replaced) -> RunRef:
    if len(known.replaced) < len(ref.replaced):
        # A store that lags.
        return ref
    return replace(ref, replaced=known.replaced, lost_runs=known.lost_runs, lost_seconds=known.lost_seconds)
