"""Gangs as custom resources whose operator makes the pods; what all kinds of them share."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import fields as fields_of
from functools import cache
from typing import Any, ClassVar

from airflow_provider_ocidist.backends import run_dir_files
from airflow_provider_ocidist.backends.base import LOG_LINES, LogPart
from airflow_provider_ocidist.backends.capabilities import (
    ChecksBeforehand,
    EndsLeftovers,
    Finding,
    KeepsTime,
    ListsGangs,
    ListsLiveGangs,
    Mark,
    NamesSecrets,
    OpensById,
    PreparesCancels,
    Suspends,
)
from airflow_provider_ocidist.backends.kubernetes import names, pod_logs, preflight
from airflow_provider_ocidist.backends.kubernetes.api import Api
from airflow_provider_ocidist.backends.kubernetes.gang_objects import GangObjects, Seen
from airflow_provider_ocidist.backends.kubernetes.last_words import LastWords
from airflow_provider_ocidist.backends.kubernetes.operator import Operator
from airflow_provider_ocidist.backends.kubernetes.options import ClusterFields
from airflow_provider_ocidist.backends.kubernetes.plans import make_plan
from airflow_provider_ocidist.backends.kubernetes.pod_logs import PodLines, PodLog, Turns
from airflow_provider_ocidist.backends.kubernetes.pods import SAVING_TIME
from airflow_provider_ocidist.backends.kubernetes.states import (
    Gang,
    GangState,
    Obj,
    has_company,
    has_vanished,
    node_status,
    was_restarted,
    with_absent_master,
    with_preemption,
)
from airflow_provider_ocidist.backends.node_config import expectations, secrets_of_nodes
from airflow_provider_ocidist.backends.place_probe import writable
from airflow_provider_ocidist.backends.work_dir_backend import WorkDirBackend
from airflow_provider_ocidist.backports import Self, unix_time
from airflow_provider_ocidist.errors import BackendError, CancelFailed, RunNotFound
from airflow_provider_ocidist.model.agent_config import CONFIG_VARIABLE, AgentConfig
from airflow_provider_ocidist.model.attempts import Attempt
from airflow_provider_ocidist.model.job import Program, TrainingJob
from airflow_provider_ocidist.model.report import Phase
from airflow_provider_ocidist.model.run import (
    Ending,
    Expectations,
    NodeStatus,
    Plan,
    RunKey,
    RunRecord,
    RunRef,
)
from airflow_provider_ocidist.work_dir.parallel import both, in_parallel
from airflow_provider_ocidist.work_dir.reports import Reported

WORKLOAD = "Workload"
"""Kind of Kueue's object for a gang in a queue; its events explain the wait."""
GONE = Gang(GangState.GONE)
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Look:
    """What one look has shown of several gangs."""

    namespaces: Mapping[str, Seen]
    at: float
    """Unix time, by the API server's clock."""
    preempted: Callable[[str], Mapping[str, str]]
    """Function that returns which pods of a namespace were preempted; it asks once for each namespace."""


class KubernetesBackend(
    WorkDirBackend[Look],
    KeepsTime,
    PreparesCancels,
    OpensById,
    ListsGangs,
    ListsLiveGangs,
    NamesSecrets,
    ChecksBeforehand,
    EndsLeftovers,
    Suspends,
):
    """One operator's gangs on the cluster of one connection."""

    needs_connection = False
    operator: ClassVar[Operator]

    def __init__(self, fields: Mapping[str, Any]) -> None:
        super().__init__(fields)
        self._pods: dict[str, Mapping[int, Obj]] = {}
        """Pods of each gang as last seen, by its id and by rank: their logs can be read."""
        self._last: dict[str, dict[int, Obj]] = {}
        """Pods of each gang as last seen, with those that are deleted by now."""
        self._turns = Turns()
        self._last_words = LastWords(self.operator.container)

    def _take(self, fields: Mapping[str, Any]) -> None:
        super()._take(fields)
        known = {field.name for field in fields_of(ClusterFields)}
        self._fields = ClusterFields(
            **{name: value for name, value in fields.items() if name in known and value not in (None, "")}
        )
        self._api, self._urgent = Api(self._fields), Api(self._fields, urgent=True)
        self._objects = GangObjects(self._api, self.operator)
        self._urgent_objects = GangObjects(self._urgent, self.operator)

    def _work_dir(self) -> str | None:
        return self._fields.work_dir

    @classmethod
    def connect(cls, fields: Mapping[str, Any]) -> Self:
        """Without a field: in a pod with that pod's credentials, elsewhere with this machine's kubeconfig."""
        return cls(fields)

    def plan(self, job: TrainingJob, key: RunKey) -> Plan:
        return make_plan(
            self.operator,
            self.kind,
            job,
            key,
            fields=self._fields,
            namespace=self._api.namespace(),
            endpoint=self._access.endpoint,
        )

    # submit

    def _adopted(self, plan: Plan, found: Sequence[RunRef]) -> RunRef | None:
        """Return the recorded gang, also if its object is deleted: the same key never creates a second one."""
        del found
        known = [each.ref for each in self.gangs.attempts(plan) if each.is_that_of(plan)]
        return next((ref for ref in known if ref is not None), None)

    def _created(self, plan: Plan, stop: threading.Event | None) -> RunRef:
        del stop
        run_dir_files.write(plan, self._run_dirs, agent=False)
        return self._ref(plan.key, self._objects.create(plan))

    def _gangs_of(self, attempt: Attempt) -> list[RunRef]:
        if attempt.ref is not None:
            return [attempt.ref]
        name = names.gang_name(attempt.key, self.operator.longest_suffix)
        obj = self._objects.get(str(attempt.place.compartment_id), name)
        return [self._ref(attempt.key, obj)] if obj is not None and names.is_of(attempt.key, obj) else []

    def _ref(self, key: RunKey, obj: Obj) -> RunRef:
        metadata, topology = obj["metadata"], self.operator.topology_in(obj)
        said, nodes = metadata["annotations"], self.operator.nodes_in(obj)
        return RunRef(
            backend=self.kind,
            key=key,
            nodes=nodes,
            job_id=f"{metadata['namespace']}/{metadata['name']}",
            run_ids=tuple(self.operator.node_name(metadata["name"], rank, topology) for rank in range(nodes)),
            run_dir=said[names.RUN_DIR],
            submitted_at=unix_time(metadata.get("creationTimestamp")) or self._api.now(),
            checkpoints_uri=said.get(names.CHECKPOINTS),
            compartment_id=metadata["namespace"],
            # The namespace of its pods, whose logs hold its lines.
            log_group_id=metadata["namespace"],
            topology=topology,
            lease=float(said[names.LEASE]) if names.LEASE in said else None,
        )

    # look

    def _look(self, refs: Sequence[RunRef]) -> Look:
        by_namespace: dict[str, list[str]] = {}
        for ref in refs:
            by_namespace.setdefault(str(ref.compartment_id), []).append(_name_of(ref))
        found = {namespace: self._objects.look(namespace, gangs) for namespace, gangs in by_namespace.items()}
        return Look(found, self._api.now(), cache(self._objects.preempted))

    def _at(self) -> float:
        return self._api.now()

    def _believed(
        self, ref: RunRef, seen: Look, reported: Mapping[int, Reported] | None
    ) -> Mapping[int, Reported] | None:
        """Leave out the reports of nodes that began after their pods were listed: the next look has both."""
        name, namespace = _name_of(ref), str(ref.compartment_id)
        pods, gangs = seen.namespaces[namespace].pods, seen.namespaces[namespace].gangs
        known = {*pods.get(name, ()), *self._last.get(ref.job_id, ())}
        unseen = {rank for rank, each in (reported or {}).items() if _lives(each) and rank not in known}
        if not unseen or name not in gangs:
            return reported
        begun = unseen & self._objects.pods(namespace, name).keys()
        return {rank: each for rank, each in (reported or {}).items() if rank not in begun}

    def _nodes(
        self, ref: RunRef, seen: Look, reported: Mapping[int, Reported] | None
    ) -> tuple[NodeStatus, ...]:
        return self._nodes_in(ref, seen.namespaces[str(ref.compartment_id)], reported, seen)

    def _nodes_in(
        self, ref: RunRef, seen: Seen, reported: Mapping[int, Reported] | None, look: Look
    ) -> tuple[NodeStatus, ...]:
        name = _name_of(ref)
        gang, pods = seen.gangs.get(name, GONE), seen.pods.get(name, {})
        self._pods[ref.job_id] = pods
        pods, last = self._first_pods(ref, pods, reported or {})
        of_all = _about_all(self.operator, name, gang, seen)

        def node(rank: int) -> NodeStatus:
            latest, pod = (reported or {}).get(rank), pods.get(rank)
            about = str(pod["metadata"]["name"]) if pod else ref.run_ids[rank]
            events = [*seen.warnings.get(("Pod", about), ()), *([] if pod else of_all)]
            return node_status(
                rank,
                ref.run_ids[rank],
                gang,
                pod,
                latest.report if latest else None,
                self.operator.container,
                events,
                look.at,
                last.get(rank),
            )

        self._last_words.note(self._api, ref, pods)
        nodes = tuple(self._last_words.added_to(ref, node(rank)) for rank in range(ref.nodes))
        nodes = tuple(with_absent_master(each, last.get(0)) for each in nodes)
        if any(has_vanished(each, pods.get(each.rank)) for each in nodes):
            said = look.preempted(str(ref.compartment_id))
            return tuple(
                with_preemption(each, said) if has_vanished(each, pods.get(each.rank)) else each
                for each in nodes
            )
        return nodes

    def _first_pods(
        self, ref: RunRef, pods: Mapping[int, Obj], reported: Mapping[int, Reported]
    ) -> tuple[Mapping[int, Obj], Mapping[int, Obj]]:
        """Return the pods of the nodes by rank, and how each was seen last, also when it is gone.

        A pod with which the operator has replaced that of a node which had begun is not that node.
        """
        last = self._last.setdefault(ref.job_id, {})

        def is_another(rank: int, pod: Obj) -> bool:
            before = last.get(rank, pod)["metadata"].get("uid")
            return self.operator.replaces_pods and rank in reported and before != pod["metadata"].get("uid")

        own = {rank: pod for rank, pod in pods.items() if not is_another(rank, pod)}
        last.update(own)
        return own, last

    def now(self) -> float:
        return self._api.now()

    def forget(self, ref: RunRef) -> None:
        super().forget(ref)
        self._pods.pop(ref.job_id, None)
        self._last.pop(ref.job_id, None)
        self._last_words.forget(ref)

    # logs

    def logs_of(
        self, wanted: Sequence[tuple[RunRef, Sequence[float]]], most: int = LOG_LINES
    ) -> list[LogPart]:
        parts = [(ref, rank, since[rank]) for ref, since in wanted for rank in range(ref.nodes)]
        turn = self._turns.of([(ref.job_id, rank) for ref, rank, _ in parts], gangs=len(wanted))
        limit = pod_logs.bytes_of(most, len(turn))
        due = [part for part in parts if (part[0].job_id, part[1]) in turn]
        read = in_parallel(lambda part: self._lines(*part, limit), due, pod_logs.at_a_time(len(wanted)))
        found = {(ref.job_id, rank): lines for (ref, rank, _), lines in zip(due, read, strict=True)}
        by_gang: dict[str, list[tuple[int, PodLines]]] = {}
        for ref, rank, since in parts:
            lines = found.get((ref.job_id, rank), PodLines.later(since))
            by_gang.setdefault(ref.job_id, []).append((rank, lines))
        return [pod_logs.part_of(by_gang.get(ref.job_id, [])) for ref, _ in wanted]

    def _lines(self, ref: RunRef, rank: int, since: float, limit: int) -> PodLines:
        """Return the lines of a node since a Unix time, of each start of its container that has a log."""
        pod = self._pod(ref, rank)
        if pod is None:
            return PodLines()
        wanted = PodLog(
            namespace=str(ref.compartment_id),
            pod=str(pod["metadata"]["name"]),
            rank=rank,
            since=since,
            container=self.operator.container,
        )
        before = PodLines()
        if was_restarted(pod, self.operator.container):
            before = pod_logs.read(self._api, replace(wanted, previous=True), limit)
            if before.unread_from is not None:
                return before
        found = pod_logs.read(self._api, wanted, limit)
        return replace(found, lines=(*before.lines, *found.lines))

    def _pod(self, ref: RunRef, rank: int) -> Obj | None:
        pods = self._pods.get(ref.job_id)
        if pods is None:
            name = _name_of(ref)
            pods = self._pods[ref.job_id] = (
                self._look([ref]).namespaces[str(ref.compartment_id)].pods.get(name, {})
            )
        return pods.get(rank)

    # find without a plan

    def open(self, resource_id: str) -> RunRecord:
        namespace, _, name = resource_id.rpartition("/")
        namespace = namespace or self._api.namespace()
        obj = self._objects.get(namespace, name)
        key = names.key_of_object(obj) if obj is not None else None
        if obj is None or key is None:
            raise RunNotFound(
                f"there is no {self.operator.kind} {name} of ocidist in namespace {namespace}: name it as "
                "namespace/name",
                status_code=404,
            )
        return _record(self._ref(key, obj), self.operator.variables_in(obj))

    def recent(self, limit: int, name: str = "") -> list[RunRef]:
        found = [ref for ref in self._listed(self._api.namespace(), names.SELECTOR) if name in ref.key.name]
        return sorted(found, key=lambda ref: -ref.submitted_at)[:limit]

    def live(self, keys: Sequence[RunKey], place: str | None = None) -> list[RunRef]:
        wanted = ",".join(sorted({key.task_digest for key in keys}))
        selector = f"{names.SELECTOR},{names.TASK} in ({wanted})"
        return sorted(
            self._listed(place or self._api.namespace(), selector, live=True),
            key=lambda ref: (ref.key.generation, ref.key.attempt),
        )

    def _listed(self, namespace: str, selector: str, *, live: bool = False) -> list[RunRef]:
        found = []
        for obj in self._objects.all(namespace, selector):
            key, over = names.key_of_object(obj), self.operator.read(obj).state
            if key is not None and not (live and over in (GangState.SUCCEEDED, GangState.FAILED)):
                found.append(self._ref(key, obj))
        return found

    def secrets_of(self, ref: RunRef) -> set[str]:
        namespace, name = str(ref.compartment_id), _name_of(ref)
        obj = self._objects.get(namespace, name)
        plain = self.operator.variables_in(obj) if obj is not None else ()
        written = {str(each["name"]): str(each["value"]) for each in plain if "value" in each}
        return secrets_of_nodes([written, self._objects.secret(namespace, name)])

    # beforehand

    def preflight(self, job: TrainingJob) -> list[Finding]:
        plan = self.plan(job, RunKey(dag_id=job.name, run_id="preflight", task_id="task"))
        signed_in = preflight.sign_in(self._api)
        if signed_in.mark is Mark.FAIL:
            return [signed_in]
        namespace = str(plan.compartment_id)
        (body,) = [each.body for each in plan.requests if each.body["kind"] == self.operator.kind]
        made = {str(each.body["metadata"]["name"]) for each in plan.requests}
        place = str(plan.run_dir).rpartition("/")[0]
        return [
            signed_in,
            preflight.operators(self._api, self.operator),
            preflight.rights_of_user(self._api, self.operator, namespace),
            *preflight.needed(
                self._api,
                self.operator,
                self.operator.needs(body),
                round(job.limits.stop_grace) + SAVING_TIME,
            ),
            *preflight.named(self._api, namespace, self.operator.pods_in(body), made),
            writable("work_dir", place, self._open, preflight.WRITE_RIGHT),
        ]

    # suspend and resume

    def suspend(self, ref: RunRef) -> None:
        self._objects.suspend(str(ref.compartment_id), _name_of(ref), suspended=True)

    def resume(self, ref: RunRef) -> None:
        self._objects.suspend(str(ref.compartment_id), _name_of(ref), suspended=False)

    # end

    def ready_to_cancel(self, ref: RunRef) -> None:
        self._urgent.ready()
        self._urgent_dirs.at(ref.run_dir)

    def cancel(self, ref: RunRef, ending: Ending | None = None) -> None:
        error, stop_requested = both(lambda: self._end(ref), lambda: self._request_stop(ref, ending))
        if error is not None:
            raise CancelFailed(error, stop_requested=stop_requested) from error

    def _end(self, ref: RunRef) -> BackendError | None:
        """Delete a gang that may be running; one that has ended keeps its logs until it is deleted after its `ttl`."""
        namespace, name = str(ref.compartment_id), _name_of(ref)
        try:
            obj = self._urgent_objects.get(namespace, name)
            if obj is None or (self._is_over(obj) and self.operator.cleans_up(obj)):
                return None
            self._urgent_objects.delete(namespace, name, self._grace_for(obj))
        except BackendError as error:
            return error
        return None

    def _grace_for(self, obj: Obj) -> int | None:
        """Return the seconds in which nodes end, where their pods, which a runtime describes, do not say it."""
        config = None if self.operator.sets_grace else _config_in(self.operator.variables_in(obj))
        return None if config is None else round(config.limits.stop_grace) + SAVING_TIME

    def _is_over(self, obj: Obj) -> bool:
        return self.operator.read(obj).state in (GangState.SUCCEEDED, GangState.FAILED)

    def end_leftovers(self, ref: RunRef) -> None:
        """Delete a gang whose containers outlive its nodes, since its operator never counts it as ended."""
        namespace, name = str(ref.compartment_id), _name_of(ref)
        obj = self._objects.get(namespace, name)
        if obj is None:
            return
        pods = self._objects.pods(namespace, name).values()
        if self.operator.stays(obj) or any(has_company(pod, self.operator.container) for pod in pods):
            log.info("%s: deleting what its nodes have left", ref.key.name)
            self._objects.delete(namespace, name)

    def delete(self, ref: RunRef) -> None:
        self._objects.delete(str(ref.compartment_id), _name_of(ref))


def _lives(reported: Reported) -> bool:
    """Whether a node was at work when it reported."""
    return reported.report is not None and reported.report.phase is not Phase.DONE


def _name_of(ref: RunRef) -> str:
    return ref.job_id.rpartition("/")[2]


def _about_all(operator: Operator, name: str, gang: Gang, seen: Seen) -> list[str]:
    """Return the warnings that concern all nodes of a gang; of one that a queue holds back, Kueue's."""
    found = [text for subject in operator.subjects(name) for text in seen.warnings.get(subject, ())]
    if not gang.queued:
        return found
    # The name of its workload ends in random letters.
    start = f"{operator.kind.lower()}-{name}-"
    whys = (
        texts
        for (kind, about), texts in seen.warnings.items()
        if kind == WORKLOAD and about.startswith(start)
    )
    return [*found, *(text for texts in whys for text in texts)]


def _record(ref: RunRef, variables: Sequence[Mapping[str, Any]]) -> RunRecord:
    """Return the record of a gang by the configuration of its nodes, as far as that is not in a Secret."""
    config = _config_in(variables)
    if config is not None:
        return RunRecord.of(ref, config, expectations(config))
    has_config = any(each["name"] == CONFIG_VARIABLE for each in variables)
    unknown = AgentConfig(run_name=ref.key.name, nodes=ref.nodes, run_dir=ref.run_dir, program=Program())
    return RunRecord.of(ref, unknown, Expectations(reports=has_config))


def _config_in(variables: Sequence[Mapping[str, Any]]) -> AgentConfig | None:
    """Return the configuration of nodes; None where it is in a Secret, or they have none."""
    entry = next((each for each in variables if each["name"] == CONFIG_VARIABLE), {})
    return AgentConfig.from_env({CONFIG_VARIABLE: entry["value"]}) if "value" in entry else None
