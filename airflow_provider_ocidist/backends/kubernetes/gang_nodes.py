"""GangNodes: the state of each node of many gangs, by its pod at this look and at earlier ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from airflow_provider_ocidist.backends.kubernetes.api import Api
from airflow_provider_ocidist.backends.kubernetes.events import Warned
from airflow_provider_ocidist.backends.kubernetes.gang_objects import GangObjects, Seen
from airflow_provider_ocidist.backends.kubernetes.gang_state import Gang, GangState
from airflow_provider_ocidist.backends.kubernetes.last_words import LastWords
from airflow_provider_ocidist.backends.kubernetes.node_pods import nodes_among, uid_of
from airflow_provider_ocidist.backends.kubernetes.objects import Obj
from airflow_provider_ocidist.backends.kubernetes.operator import Operator
from airflow_provider_ocidist.backends.kubernetes.pod_losses import has_vanished, with_preemption
from airflow_provider_ocidist.backends.kubernetes.pod_parts import may_have_ended
from airflow_provider_ocidist.backends.kubernetes.refs import name_of, namespace_of
from airflow_provider_ocidist.backends.kubernetes.states import (
    NodeFacts,
    node_status,
    present,
    with_absent_master,
)
from airflow_provider_ocidist.model.report import Phase
from airflow_provider_ocidist.model.run import NodeStatus, RunRef
from airflow_provider_ocidist.work_dir.reports import Reported

WORKLOAD = "Workload"
"""Kind of Kueue's object for a gang in a queue; its events explain the wait."""
GONE = Gang(GangState.GONE)


@dataclass(frozen=True, slots=True)
class Look:
    """What one look has shown of several gangs."""

    namespaces: Mapping[str, Seen]
    at: float
    """Unix time, by the API server's clock."""
    preempted: Callable[[str], Mapping[str, str]]
    """Function that returns which pods of a namespace were preempted; it asks once for each namespace."""

    @classmethod
    def of(cls, refs: Sequence[RunRef], objects: GangObjects, now: Callable[[], float]) -> Look:
        """Look at these gangs, in as few requests as they have namespaces."""
        by_namespace: dict[str, list[str]] = {}
        for ref in refs:
            by_namespace.setdefault(namespace_of(ref), []).append(name_of(ref))
        found = {namespace: objects.look(namespace, gangs) for namespace, gangs in by_namespace.items()}
        return cls(found, now(), cache(objects.preempted))

    def around(self, ref: RunRef) -> Seen:
        """Return what was seen in the namespace of a gang."""
        return self.namespaces[namespace_of(ref)]

    def pods(self, ref: RunRef) -> Mapping[int, Sequence[Obj]]:
        """Return the pods of a gang, by rank."""
        return self.around(ref).pods.get(name_of(ref), {})


class GangNodes:
    """The nodes of one operator's gangs on one cluster."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._pods: dict[str, Mapping[int, Obj]] = {}
        """Pods of each gang as last seen, by its id and by rank: their logs can be read."""
        self._last: dict[str, dict[int, Obj]] = {}
        """Pods of each gang as last seen, with those that are deleted by now."""
        self._unfitting: set[str] = set()
        """Ids of gangs with a report of another pod than the one that was listed."""
        self._last_words = LastWords(operator.container)

    def of(
        self, ref: RunRef, look: Look, reported: Mapping[int, Reported], api: Api
    ) -> tuple[NodeStatus, ...]:
        """Return the nodes of a gang; `api` reads the last output of those that report nothing."""
        seen, name = look.around(ref), name_of(ref)
        gang = seen.gangs.get(name, GONE)
        listed = self._chosen(ref, look.pods(ref), reported)
        self._pods[ref.job_id] = listed
        pods, last = self._first_pods(ref, listed, reported)
        of_all = self._about_all(name, gang, seen)

        def node(rank: int) -> NodeStatus:
            latest, pod = reported.get(rank), pods.get(rank)
            about = str(pod["metadata"]["name"]) if pod else ref.run_ids[rank]
            facts = NodeFacts(
                rank=rank,
                name=ref.run_ids[rank],
                pod=pod,
                report=latest.report if latest else None,
                events=present([*seen.warnings.get(("Pod", about), ()), *([] if pod else of_all)], look.at),
                last=last.get(rank),
                replaces=ref.replaces,
                is_new=ref.incarnation(rank) > 0,
                has_another=rank in listed and rank not in pods,
                secret=name,
                keeps_failed=self._operator.restarts_pods,
            )
            return node_status(facts, gang, container=self._operator.container, now=look.at)

        self._last_words.note(api, ref, pods)
        nodes = tuple(self._last_words.added_to(ref, node(rank)) for rank in range(ref.nodes))
        nodes = tuple(with_absent_master(each, last.get(0)) for each in nodes)
        if not any(has_vanished(each, pods.get(each.rank)) for each in nodes):
            return nodes
        said = look.preempted(namespace_of(ref))
        return tuple(
            with_preemption(each, said) if has_vanished(each, pods.get(each.rank)) else each for each in nodes
        )

    def has_news(self, ref: RunRef, look: Look) -> bool:
        """Whether a gang does not just train on: it is over, or a pod of it is another, ends, or has ended.

        What its nodes are then depends on their last reports too. A new pod counts as such until its first report is
        read.
        """
        # Of a rank with several pods, one is taking the place of another.
        pods = {rank: found[0] for rank, found in look.pods(ref).items() if len(found) == 1}
        before = self._pods.get(ref.job_id, pods)
        return (
            look.around(ref).gangs.get(name_of(ref), GONE).state not in (GangState.NEW, GangState.ACTIVE)
            or ref.job_id in self._unfitting
            or len(pods) < ref.nodes
            or any(uid_of(pod) != uid_of(before.get(rank, pod)) for rank, pod in pods.items())
            or any(may_have_ended(pod, self._operator.container) for pod in pods.values())
        )

    def believed(
        self, ref: RunRef, look: Look, reported: Mapping[int, Reported], objects: GangObjects
    ) -> Mapping[int, Reported]:
        """Leave out the reports of nodes that began after their pods were listed: the next look has both."""
        listed = self._chosen(ref, look.pods(ref), reported)
        before = self._last.get(ref.job_id, {})

        def is_unseen(rank: int, each: Reported) -> bool:
            if instance := _instance(each):
                return rank not in listed or uid_of(listed[rank]) != instance
            return rank not in listed and rank not in before

        unseen = {rank for rank, each in reported.items() if _lives(each) and is_unseen(rank, each)}
        if unseen:
            self._unfitting.add(ref.job_id)
        else:
            self._unfitting.discard(ref.job_id)
        if not unseen or name_of(ref) not in look.around(ref).gangs:
            return reported
        pods = self._chosen(ref, objects.pods(namespace_of(ref), name_of(ref)), reported)
        begun = {rank for rank in unseen & pods.keys() if _is_of(reported[rank], pods[rank])}
        return {rank: each for rank, each in reported.items() if rank not in begun}

    def pod(self, ref: RunRef, rank: int, look: Callable[[], Look]) -> Obj | None:
        """Return the pod of a node as it was seen last; of a gang that was not seen yet, by a first look."""
        if ref.job_id not in self._pods:
            self._pods[ref.job_id] = self._chosen(ref, look().pods(ref), {})
        return self._pods[ref.job_id].get(rank)

    def forget(self, ref: RunRef) -> None:
        self._pods.pop(ref.job_id, None)
        self._last.pop(ref.job_id, None)
        self._unfitting.discard(ref.job_id)
        self._last_words.forget(ref)

    def _chosen(
        self, ref: RunRef, pods: Mapping[int, Sequence[Obj]], reported: Mapping[int, Reported]
    ) -> Mapping[int, Obj]:
        instances = {rank: _instance(each) for rank, each in reported.items()}
        return nodes_among(ref, pods, self._operator, instances)

    def _first_pods(
        self, ref: RunRef, pods: Mapping[int, Obj], reported: Mapping[int, Reported]
    ) -> tuple[Mapping[int, Obj], Mapping[int, Obj]]:
        """Return the pods of the nodes by rank, and how each was seen last, also when it is gone.

        A pod with which the operator has replaced that of a node which had begun is not that node; nor is one that
        counts as lost.
        """
        last = self._last.setdefault(ref.job_id, {})

        def is_another(rank: int, pod: Obj) -> bool:
            if rank not in reported:
                return uid_of(pod) in ref.lost_runs
            if ref.replaces:
                return uid_of(pod) in ref.lost_runs or not _is_of(reported[rank], pod)
            return self._operator.restarts_pods and uid_of(last.get(rank, pod)) != uid_of(pod)

        own = {rank: pod for rank, pod in pods.items() if not is_another(rank, pod)}
        last.update(own)
        return own, last

    def _about_all(self, name: str, gang: Gang, seen: Seen) -> list[Warned]:
        """Return the warnings that concern all nodes of a gang; of one that a queue holds back, Kueue's."""
        found = [each for subject in self._operator.subjects(name) for each in seen.warnings.get(subject, ())]
        if not gang.queued:
            return found
        # The name of its workload ends in random letters.
        start = f"{self._operator.kind.lower()}-{name}-"
        whys = (
            warnings
            for (kind, about), warnings in seen.warnings.items()
            if kind == WORKLOAD and about.startswith(start)
        )
        return [*found, *(each for warnings in whys for each in warnings)]


def _instance(reported: Reported) -> str:
    return reported.report.instance if reported.report is not None else ""


def _is_of(reported: Reported, pod: Obj) -> bool:
    """Whether a report is that of the node in this pod, as far as it says so."""
    return _instance(reported) in ("", uid_of(pod))


def _lives(reported: Reported) -> bool:
    """Whether a node was at work when it reported."""
    return reported.report is not None and reported.report.phase is not Phase.DONE
