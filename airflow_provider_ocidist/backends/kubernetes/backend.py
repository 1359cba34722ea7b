"""Gangs as custom resources whose operator makes the pods; what all kinds of them share."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from airflow_provider_ocidist.backends import run_dir_files
from airflow_provider_ocidist.backends.base import LOG_LINES, LogPart
from airflow_provider_ocidist.backends.cancels import EndAnswer, cancel_at_both
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
    ShowsWhatItCreated,
    Suspends,
)
from airflow_provider_ocidist.backends.fields import read_fields
from airflow_provider_ocidist.backends.kubernetes import names, pod_logs, preflight
from airflow_provider_ocidist.backends.kubernetes.api import Api
from airflow_provider_ocidist.backends.kubernetes.gang_nodes import GangNodes, Look
from airflow_provider_ocidist.backends.kubernetes.gang_objects import GangObjects
from airflow_provider_ocidist.backends.kubernetes.gang_state import GangState
from airflow_provider_ocidist.backends.kubernetes.node_pods import nodes_among
from airflow_provider_ocidist.backends.kubernetes.objects import Obj, asked_for
from airflow_provider_ocidist.backends.kubernetes.operator import Operator
from airflow_provider_ocidist.backends.kubernetes.options import ClusterFields
from airflow_provider_ocidist.backends.kubernetes.plans import (
    gang_request,
    make_plan,
    without_replacements,
)
from airflow_provider_ocidist.backends.kubernetes.pod_logs import PodLines, PodLog, Turns
from airflow_provider_ocidist.backends.kubernetes.pod_parts import (
    container_has_begun,
    has_company,
    has_failed,
    starts_again,
    was_restarted,
)
from airflow_provider_ocidist.backends.kubernetes.pods import SAVING_TIME
from airflow_provider_ocidist.backends.kubernetes.refs import (
    config_in,
    is_place_of,
    name_of,
    namespace_of,
    record_of,
    ref_of,
)
from airflow_provider_ocidist.backends.node_config import secrets_of_nodes
from airflow_provider_ocidist.backends.recorded_gangs import by_age
from airflow_provider_ocidist.backends.work_dir_backend import WorkDirBackend
from airflow_provider_ocidist.backports import Self
from airflow_provider_ocidist.errors import AgentError, BackendError, RunNotFound, refusal_in
from airflow_provider_ocidist.model.attempts import Attempt
from airflow_provider_ocidist.model.job import TrainingJob
from airflow_provider_ocidist.model.run import (
    Ending,
    NodeStatus,
    Plan,
    Request,
    RunKey,
    RunRecord,
    RunRef,
)
from airflow_provider_ocidist.work_dir.reports import Reported

log = logging.getLogger(__name__)

SECRET_IS_LATE = 10.0
"""Seconds after a gang's object from which its Secret counts as late: else both are created within a moment."""


class KubernetesBackend(
    WorkDirBackend[Look],
    KeepsTime,
    PreparesCancels,
    OpensById,
    ListsGangs,
    ListsLiveGangs,
    NamesSecrets,
    ShowsWhatItCreated,
    ChecksBeforehand,
    EndsLeftovers,
    Suspends,
):
    """One operator's gangs on the cluster of one connection."""

    needs_connection = False
    # One of type `oci` may name a cluster, too.
    conn_types = ("kubernetes", "oci")
    reads = ClusterFields
    operator: ClassVar[Operator]

    def __init__(self, fields: Mapping[str, Any]) -> None:
        super().__init__(fields)
        self._gang_nodes = GangNodes(self.operator)
        self._turns = Turns()

    def _take(self, fields: Mapping[str, Any]) -> None:
        super()._take(fields)
        self._fields = read_fields(ClusterFields, fields)
        self._api, self._urgent = Api(self._fields), Api(self._fields, urgent=True)
        self._objects = GangObjects(self._api, self.operator)
        self._urgent_objects = GangObjects(self._urgent, self.operator)

    def _work_dir(self) -> str | None:
        return self._fields.work_dir

    @classmethod
    def connect(cls, fields: Mapping[str, Any]) -> Self:
        """Return a backend; without a field it uses its pod's credentials, or else this machine's kubeconfig."""
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
            oci_region=self._oci_region,
        )

    # submit

    def _adopted(self, plan: Plan, found: Sequence[RunRef]) -> RunRef | None:
        """Return the recorded gang, also if its object is deleted: the same key never creates a second one.

        What was found where the plan creates a gang, and is not recorded, may lack its Secret: `_created` completes it.
        """
        known = [each.ref for each in self.gangs.attempts(plan) if each.is_that_of(plan)]
        elsewhere = [ref for ref in found if ref.key == plan.key and not is_place_of(ref, gang_request(plan))]
        return next((ref for ref in (*known, *elsewhere) if ref is not None), None)

    def _created(self, plan: Plan, stop: threading.Event | None) -> RunRef:
        del stop
        plan = self._allowed(plan)
        run_dir_files.write(plan, self._run_dirs, agent=False)
        obj = self._objects.create(plan)
        ref = self._ref(plan.key, obj)
        try:
            is_new, now = self._objects.create_secrets(plan, obj), self._api.now()
            if is_new and now - ref.submitted_at > SECRET_IS_LATE:
                # Until now no node could start, maybe for the hours of an outage: their time begins here.
                ref = replace(ref, submitted_at=now)
        except BaseException as error:
            # Its pods would wait for ever, on machines of theirs; after an outage the same try completes it.
            is_outage = isinstance(error, BackendError) and refusal_in(error) is None
            if isinstance(error, BackendError):
                error.after_acceptance = True
            if not is_outage:
                self._end_incomplete(ref)
            raise
        return ref

    def _allowed(self, plan: Plan) -> Plan:
        """Return a plan as what an administrator has prepared allows it. Raises BackendError."""
        if not plan.replaces:
            return plan
        obstacles = self._objects.obstacles(gang_request(plan).body)
        if not obstacles:
            return plan
        log.warning(
            "%s: a lost pod is created again only with all others: %s", plan.key.name, "; ".join(obstacles)
        )
        return without_replacements(plan)

    def _end_incomplete(self, ref: RunRef) -> None:
        try:
            self.cancel(ref)
        except BackendError as error:
            log.warning(
                "%s: its pods, which lack their Secret, may still be running: %s", ref.key.name, error
            )

    def _gangs_of(self, attempt: Attempt) -> list[RunRef]:
        if attempt.ref is not None:
            return [attempt.ref]
        name = names.gang_name(attempt.key, self.operator.longest_suffix)
        obj = self._objects.get(str(attempt.place.compartment_id), name)
        return [self._ref(attempt.key, obj)] if obj is not None and names.is_of(attempt.key, obj) else []

    def _ref(self, key: RunKey, obj: Obj) -> RunRef:
        return ref_of(self.kind, self.operator, key, obj, self._api.now())

    # look

    def _look(self, refs: Sequence[RunRef]) -> Look:
        return Look.of(refs, self._objects, self._api.now)

    def _reads_all(self, ref: RunRef, seen: Look) -> bool:
        return self._gang_nodes.has_news(ref, seen)

    def _believed(
        self, ref: RunRef, seen: Look, reported: Mapping[int, Reported] | None
    ) -> Mapping[int, Reported] | None:
        return reported and self._gang_nodes.believed(ref, seen, reported, self._objects)

    def _nodes(
        self, ref: RunRef, seen: Look, reported: Mapping[int, Reported] | None
    ) -> tuple[NodeStatus, ...]:
        return self._gang_nodes.of(ref, seen, reported or {}, self._api)

    def now(self) -> float:
        return self._api.now()

    def forget(self, ref: RunRef) -> None:
        super().forget(ref)
        self._gang_nodes.forget(ref)

    # logs

    def logs_of(
        self, wanted: Sequence[tuple[RunRef, Sequence[float]]], most: int = LOG_LINES
    ) -> list[LogPart]:
        return pod_logs.in_turn(wanted, self._lines, self._turns, most)

    def _lines(self, ref: RunRef, rank: int, since: float, limit: int) -> PodLines:
        """Return the lines of a node since a Unix time, of each start of its container that has a log."""
        pod = self._gang_nodes.pod(ref, rank, lambda: self._look([ref]))
        if pod is None:
            return PodLines()
        wanted = PodLog(
            namespace=namespace_of(ref),
            pod=str(pod["metadata"]["name"]),
            rank=rank,
            since=since,
            container=self.operator.container,
        )
        read = pod_logs.read_each_start if was_restarted(pod, self.operator.container) else pod_logs.read
        return read(self._api, wanted, limit)

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
        return record_of(self._ref(key, obj), self.operator.variables_in(obj))

    def recent(self, limit: int, name: str = "") -> list[RunRef]:
        found = [ref for ref in self._listed(self._api.namespace(), names.SELECTOR) if name in ref.key.name]
        return sorted(found, key=lambda ref: -ref.submitted_at)[:limit]

    def live(self, keys: Sequence[RunKey], place: str | None = None) -> list[RunRef]:
        wanted = ",".join(sorted({key.task_digest for key in keys}))
        selector = f"{names.SELECTOR},{names.TASK} in ({wanted})"
        return by_age(self._listed(place or self._api.namespace(), selector, live=True))

    def _listed(self, namespace: str, selector: str, *, live: bool = False) -> list[RunRef]:
        found = []
        for obj in self._objects.all(namespace, selector):
            key = names.key_of_object(obj)
            if key is not None and not (live and self._is_over(obj)):
                found.append(self._ref(key, obj))
        return found

    def secrets_of(self, ref: RunRef) -> set[str]:
        namespace, name = namespace_of(ref), name_of(ref)
        obj = self._objects.get(namespace, name)
        plain = self.operator.variables_in(obj) if obj is not None else ()
        written = {str(each["name"]): str(each["value"]) for each in plain if "value" in each}
        return secrets_of_nodes([written, self._objects.secret(namespace, name)])

    def created(self, ref: RunRef) -> tuple[Request, ...]:
        """Return only the gang's object: the ConfigMap depends on the version alone, and the Secret is never shown."""
        namespace, name = namespace_of(ref), name_of(ref)
        obj = self._objects.get(namespace, name)
        if obj is None:
            raise RunNotFound(
                f"{self.operator.kind} {name} is no longer in namespace {namespace}", status_code=404
            )
        return (Request(verb=f"Create{self.operator.kind}", body=asked_for(obj)),)

    def planned(self, plan: Plan) -> tuple[Request, ...]:
        request = gang_request(self._allowed(plan))
        return (replace(request, body=asked_for(self._objects.fitted(request.body))),)

    # beforehand

    def preflight(self, job: TrainingJob) -> list[Finding]:
        plan = self._preflight_plan(job)
        signed_in = preflight.sign_in(self._api)
        if signed_in.mark is Mark.FAIL:
            return [signed_in]
        namespace = str(plan.compartment_id)
        (body,) = [each.body for each in plan.requests if each.body["kind"] == self.operator.kind]
        made = {str(each.body["metadata"]["name"]) for each in plan.requests}
        return [
            signed_in,
            preflight.operators(self._api, self.operator),
            preflight.rights_of_user(self._api, self.operator, namespace),
            *preflight.needed(
                self._api,
                self.operator,
                self.operator.needs(body),
                round(job.limits.stop_grace) + SAVING_TIME,
                replaces=plan.replaces,
            ),
            *preflight.named(self._api, namespace, self.operator.pods_in(body), made),
            self._work_dir_finding(plan),
        ]

    # suspend and resume

    def suspend(self, ref: RunRef) -> None:
        self._objects.suspend(namespace_of(ref), name_of(ref), suspended=True)

    def resume(self, ref: RunRef) -> None:
        self._objects.suspend(namespace_of(ref), name_of(ref), suspended=False)

    # end

    def ready_to_cancel(self, ref: RunRef) -> None:
        self._urgent.ready()
        self._urgent_dirs.at(ref.run_dir)

    def cancel(self, ref: RunRef, ending: Ending | None = None) -> None:
        cancel_at_both(lambda gang: EndAnswer(self._end(gang)), self.directories, ref, ending)

    def _end(self, ref: RunRef) -> BackendError | None:
        """Delete a gang that may be running; one that has ended keeps its logs until it is deleted after its `ttl`."""
        namespace, name = namespace_of(ref), name_of(ref)
        grace = None
        try:
            obj = self._urgent_objects.get(namespace, name)
            if obj is None or (self._is_over(obj) and self.operator.cleans_up(obj)):
                return None
            grace = self._grace_for(obj)
        except (BackendError, AgentError) as error:
            # That the nodes end is worth more than what a server would say that is busy, does not answer, or refuses.
            log.debug("%s: it is deleted, however it is: %s", name, error)
        try:
            self._urgent_objects.delete(namespace, name, grace)
        except BackendError as error:
            return error
        return None

    def _grace_for(self, obj: Obj) -> int | None:
        """Return the seconds in which nodes end, where their pods, which a runtime describes, do not say it."""
        config = None if self.operator.sets_grace else config_in(self.operator.variables_in(obj))
        return None if config is None else round(config.limits.stop_grace) + SAVING_TIME

    def _is_over(self, obj: Obj) -> bool:
        return self.operator.read(obj).state in (GangState.SUCCEEDED, GangState.FAILED)

    def end_leftovers(self, ref: RunRef) -> None:
        """Delete a gang that its operator does not count as ended: containers live on, or pods never began."""
        namespace, name = namespace_of(ref), name_of(ref)
        obj = self._objects.get(namespace, name)
        if obj is None:
            return
        container = self.operator.container
        pods = nodes_among(ref, self._objects.pods(namespace, name), self.operator, {}).values()
        waits = len(pods) < ref.nodes or not all(container_has_begun(pod, container) for pod in pods)
        # One that waits still, for an image or in a queue, would begin when nobody waits for it.
        lives_on = any(has_company(pod, container) or starts_again(pod, container) for pod in pods)
        # Where a Job makes another pod in the place of each that has failed, that idles until its limit is reached.
        comes_again = ref.replaces and self.operator.restarts_pods and any(map(has_failed, pods))
        lives_on = lives_on or ((waits or comes_again) and not self._is_over(obj))
        if self.operator.stays(obj) or lives_on:
            log.info("%s: deleting what its nodes have left", ref.key.name)
            self._objects.delete(namespace, name)

    def delete(self, ref: RunRef) -> None:
        self._objects.delete(namespace_of(ref), name_of(ref))
