"""The objects of gangs at the API server: created once, listed together, deleted whole."""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from airflow_provider_ocidist.backends.kubernetes import agent_parts, names
from airflow_provider_ocidist.backends.kubernetes.api import Api
from airflow_provider_ocidist.backends.kubernetes.events import (
    TAKEN,
    Warned,
    fields_read,
    sentences_by_pod,
    warnings_by_object,
)
from airflow_provider_ocidist.backends.kubernetes.gang_state import Gang
from airflow_provider_ocidist.backends.kubernetes.kept_list import KeptList
from airflow_provider_ocidist.backends.kubernetes.objects import Obj, is_deleted
from airflow_provider_ocidist.backends.kubernetes.operator import Operator
from airflow_provider_ocidist.backends.kubernetes.plans import CONFIG_MAP, SECRET, UID, gang_request
from airflow_provider_ocidist.backends.kubernetes.pod_parts import container_has_begun, essence
from airflow_provider_ocidist.errors import BackendError, Cause, RunNotFound
from airflow_provider_ocidist.model.run import Plan, Request, RunKey
from airflow_provider_ocidist.work_dir.parallel import both, in_parallel

log = logging.getLogger(__name__)

FEW = 20
"""Gangs for which a look asks by their names; with more of them it follows all gangs of ours in a namespace."""
NAME_IS_TAKEN = "AlreadyExists"
"""Reason of a create that was refused since there is an object of this name."""
Found = TypeVar("Found")
Node = tuple[str, int, Obj]
"""The gang and the rank of a pod, and the pod's essence."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What one look at a namespace has found."""

    gangs: Mapping[str, Gang] = field(default_factory=dict)
    """Gangs by name; a gang without an object is not among them."""
    pods: Mapping[str, Mapping[int, Sequence[Obj]]] = field(default_factory=dict)
    """Pods by gang and by rank; several of a rank where the operator has made one beside another."""
    warnings: Mapping[tuple[str, str], Sequence[Warned]] = field(default_factory=dict)
    """Warnings by the kind and the name of their object."""


@dataclass(frozen=True, slots=True)
class Lists:
    """What a look at a namespace reads."""

    gangs: KeptList[tuple[str, Gang]]
    pods: KeptList[Node]
    warnings: KeptList[Obj]


class GangObjects:
    """The custom resources of one kind, their pods, and the objects that are created with them."""

    def __init__(self, api: Api, operator: Operator) -> None:
        self._api = api
        self._operator = operator
        self._followed: dict[str, Lists] = {}
        """Lists of all gangs, by namespace."""

    # create

    def create(self, plan: Plan) -> Obj:
        """Create a gang, and what all gangs share; return its object, or the one that this very attempt has already."""
        namespace = str(plan.compartment_id)
        body = self.fitted(gang_request(plan).body)
        for each in _named(plan, CONFIG_MAP):
            self._share_agent(namespace, each.body["metadata"]["name"])
        return self._create_own(plan.key, self._operator.collection(namespace), body)

    def create_secrets(self, plan: Plan, owner: Obj) -> bool:
        """Create the Secret that the pods of a gang wait for, where it has one; return whether it was not there.

        `owner`: the gang's object.
        """
        place = str(plan.compartment_id)
        created = [self._create_secret(plan.key, place, each.body, owner) for each in _named(plan, SECRET)]
        return any(created)

    def fitted(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a planned object in the words of the version that the cluster has. Raises BackendError."""
        return self._operator.fitted(body, self._served)

    def obstacles(self, body: Mapping[str, Any]) -> list[str]:
        """Return by what administrators keep the operator from creating a lost pod again alone. Raises BackendError."""
        found = []
        for path, name, _ in self._operator.needs(body):
            try:
                why = self._operator.obstacle(self._api.get(path))
            except BackendError as error:
                if error.status_code == 404:
                    # The API server refuses the gang, too, with a remedy.
                    continue
                if error.status_code != 403:
                    raise
                why = f"it cannot be read ({error})"
            found += [f"{name}: {why}"] if why else []
        return found

    def _served(self) -> frozenset[str]:
        """Return the fields of the kind's `spec` that the API server takes; none where it does not publish them."""
        try:
            return self._api.spec_fields(self._operator.path, self._operator.kind)
        except BackendError as error:
            if error.status_code == 404:
                raise self._not_served(error) from error
            if error.status_code == 403:
                log.debug("what the API server serves cannot be read: %s", error)
                return frozenset()
            raise

    def _share_agent(self, namespace: str, name: str) -> None:
        body = agent_parts.config_map()
        path = f"/api/v1/namespaces/{namespace}/configmaps"
        try:
            self._api.create(path, body)
        except BackendError as error:
            found = self._present(error, f"{path}/{name}")
            if any(found.get(part) != body[part] for part in ("data", "binaryData")):
                raise BackendError(
                    f"ConfigMap {name} in namespace {namespace} is not what ocidist has put there: delete it",
                    cause=Cause.CONFIG,
                ) from error

    def _create_own(self, key: RunKey, collection: str, body: Mapping[str, Any]) -> Obj:
        name = body["metadata"]["name"]
        try:
            return self._api.create(collection, body)
        except BackendError as error:
            if error.status_code == 404 and not isinstance(error, RunNotFound):
                raise self._not_served(error) from error
            found = self._present(self._explained(error, body), f"{collection}/{name}")
        if not names.is_of(key, found):
            raise BackendError(
                f"{self._operator.kind} {name} exists already, and does not belong to {key.name}: delete it, "
                "or use another namespace",
                cause=Cause.CONFIG,
            )
        if is_deleted(found):
            raise BackendError(f"{self._operator.kind} {name} is just being deleted", retryable=True)
        return found

    def _create_secret(self, key: RunKey, namespace: str, body: Mapping[str, Any], owner: Obj) -> bool:
        metadata = dict(body["metadata"])
        metadata["ownerReferences"] = [
            {**each, "uid": owner["metadata"]["uid"]} if each["uid"] == UID else each
            for each in metadata["ownerReferences"]
        ]
        path = f"/api/v1/namespaces/{namespace}/secrets"
        try:
            self._api.create(path, {**body, "metadata": metadata})
        except BackendError as error:
            if not names.is_of(key, self._present(error, f"{path}/{metadata['name']}")):
                raise
            return False
        return True

    def _present(self, refused: BackendError, path: str) -> Obj:
        """Return the object whose name a create has found taken. Raises what was refused for any other reason.

        Quotas and webhooks refuse with the same status, and what had the name may be gone by now.
        """
        if refused.code != NAME_IS_TAKEN:
            raise refused
        try:
            return self._api.get(path)
        except RunNotFound:
            raise BackendError(
                f"{refused}, and is gone by now",
                status_code=refused.status_code,
                code=refused.code,
                retryable=True,
            ) from refused

    def _explained(self, error: BackendError, body: Mapping[str, Any]) -> BackendError:
        meaning = self._operator.explained(str(error), body)
        if meaning is None:
            return error
        return BackendError(meaning, status_code=error.status_code, code=error.code, cause=Cause.CONFIG)

    def _not_served(self, error: BackendError) -> BackendError:
        operator = self._operator
        return BackendError(
            f"the cluster has no {operator.kind} ({operator.group}/{operator.version}): {operator.remedy}",
            status_code=error.status_code,
            cause=Cause.CONFIG,
        )

    # look

    def get(self, namespace: str, name: str) -> Obj | None:
        """Return a gang's object; None where there is none."""
        try:
            return self._api.get(f"{self._operator.collection(namespace)}/{name}")
        except RunNotFound:
            return None
        except BackendError as error:
            raise self._not_served(error) if error.status_code == 404 else error from error

    def secret(self, namespace: str, name: str) -> dict[str, str]:
        """Return what the Secret of a gang holds; nothing where there is none, or where it may not be read."""
        try:
            found = self._api.get(f"/api/v1/namespaces/{namespace}/secrets/{name}").get("data") or {}
        except BackendError as error:
            if error.status_code not in (403, 404):
                raise
            return {}
        # Those of single roles begin with its name.
        return {
            key.rpartition(".")[2]: base64.b64decode(value).decode(errors="replace")
            for key, value in found.items()
        }

    def all(self, namespace: str, selector: str) -> list[Obj]:
        """Return the objects of gangs of ours that a selector finds."""
        path = self._operator.collection(namespace)
        return self._if_served(lambda: list(self._api.list(path, labelSelector=selector)))

    def _if_served(self, reading: Callable[[], list[Found]]) -> list[Found]:
        try:
            return reading()
        except BackendError as error:
            raise self._not_served(error) if error.status_code == 404 else error from error

    def look(self, namespace: str, gangs: Sequence[str]) -> Seen:
        """Return the objects of some gangs, by one request for each kind of object, however many gangs they are."""
        wanted = set(gangs)
        lists = self._lists(namespace, wanted) if len(wanted) <= FEW else self._all_lists(namespace)
        pods, warnings = both(lists.pods.now, lambda: _if_allowed(lists.warnings.now))
        # Afterwards: what ends pods, as a queue does, is written into the object of their gang before.
        found = self._if_served(lists.gangs.now)
        known = {name: gang for name, gang in found if name in wanted}
        if len(wanted) > FEW:
            known |= self._overlooked(namespace, wanted - known.keys())
        return Seen(known, _by_gang(pods, wanted), warnings_by_object(warnings))

    def _all_lists(self, namespace: str) -> Lists:
        """Return the lists of all gangs in a namespace, kept from look to look."""
        if namespace not in self._followed:
            self._followed.setdefault(namespace, self._lists(namespace, ()))
        return self._followed[namespace]

    def _lists(self, namespace: str, gangs: Collection[str]) -> Lists:
        """Return lists of these gangs, not read yet; of all gangs where none is named."""
        operator = self._operator
        selector = names.any_of(names.GANG, gangs) if gangs else names.SELECTOR
        return Lists(
            KeptList(self._api, operator.collection(namespace), self._gang_in, labelSelector=selector),
            KeptList(
                self._api, _pods_at(namespace), self._node_in, labelSelector=operator.pod_selector(gangs)
            ),
            KeptList(self._api, _events_at(namespace), fields_read, fieldSelector="type=Warning"),
        )

    def _gang_in(self, obj: Obj) -> tuple[str, Gang]:
        return str(obj["metadata"]["name"]), self._operator.read(obj)

    def _node_in(self, pod: Obj) -> Node | None:
        found = self._operator.gang_and_rank(pod)
        return None if found is None else (*found, essence(pod))

    def _overlooked(self, namespace: str, absent: Collection[str]) -> dict[str, Gang]:
        """Return the gangs that exist although a list lacks them: lists may be late, and a missing gang has ended."""
        objects = in_parallel(lambda name: self.get(namespace, name), sorted(absent))
        return dict(self._gang_in(obj) for obj in objects if obj is not None)

    def pods(self, namespace: str, name: str) -> Mapping[int, Sequence[Obj]]:
        """Return the pods of one gang as they are now, by rank."""
        found = map(self._node_in, self._pods(namespace, name))
        return _by_gang([node for node in found if node is not None], {name}).get(name, {})

    def _pods(self, namespace: str, gang: str) -> list[Obj]:
        selector = self._operator.pod_selector([gang])
        return list(self._api.list(_pods_at(namespace), labelSelector=selector))

    def preempted(self, namespace: str) -> dict[str, str]:
        """Return what is said of the pods that were preempted or evicted, by name and by UID."""

        def read(reason: str) -> list[Obj]:
            path, selector = _events_at(namespace), f"reason={reason}"
            return _if_allowed(lambda: list(self._api.list(path, fieldSelector=selector)))

        return sentences_by_pod(event for reason in TAKEN for event in read(reason))

    def suspend(self, namespace: str, name: str, *, suspended: bool) -> None:
        """Suspend or resume a gang. Raises RunNotFound where there is none."""
        path = f"{self._operator.collection(namespace)}/{name}"
        self._api.patch(path, self._operator.suspension(suspended=suspended))

    # end

    def delete(self, namespace: str, name: str, grace: int | None = None) -> None:
        """Delete a gang; its object stays until no pod of it is left. One that is not there is no error.

        `grace`: seconds that nodes which have begun have to end; None: as their pods say.
        """
        if grace is not None:
            self._end_begun(namespace, name, grace)
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Foreground"}
        try:
            self._api.delete(f"{self._operator.collection(namespace)}/{name}", body)
        except RunNotFound:
            return
        self._end_unstarted(namespace, name)

    def _end_begun(self, namespace: str, name: str, grace: int) -> None:
        """Begin to end the pods: what deletes them with their gang then leaves them the time that they have."""
        try:
            begun = [
                pod
                for pod in self._pods(namespace, name)
                if container_has_begun(pod, self._operator.container)
            ]
            in_parallel(lambda pod: self._end_pod(namespace, pod, grace), begun)
        except BackendError as error:
            log.debug("pods of %s have the time that their runtime gives them: %s", name, error)

    def _end_pod(self, namespace: str, pod: Obj, grace: int) -> None:
        path = f"{_pods_at(namespace)}/{pod['metadata']['name']}"
        self._api.delete(path, {"gracePeriodSeconds": grace})

    def remove_pod(self, namespace: str, name: str, uid: str, grace: int) -> None:
        """Delete a pod that is lost; one that is gone is no error.

        `grace`: in seconds; 0: it is gone at once, also where no kubelet confirms its end.
        """
        body = {"gracePeriodSeconds": grace, "preconditions": {"uid": uid}}
        try:
            self._api.delete(f"{_pods_at(namespace)}/{name}", body)
        except BackendError as error:
            # 409: another pod has its name.
            if error.status_code not in (404, 409):
                raise

    def _end_unstarted(self, namespace: str, name: str) -> None:
        """End pods that have not begun without the grace of those that save: a waiting shell hears no SIGTERM."""
        try:
            for pod in self._pods(namespace, name):
                if not container_has_begun(pod, self._operator.container):
                    self._end_pod(namespace, pod, 0)
        except BackendError as error:
            log.debug("pods of %s end in their own time: %s", name, error)


def _if_allowed(reading: Callable[[], list[Found]]) -> list[Found]:
    """Return the events that were read; nothing where that is not allowed."""
    try:
        return reading()
    except BackendError as error:
        if error.status_code != 403:
            raise
        log.debug("events cannot be read: %s", error)
        return []


def _pods_at(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


def _events_at(namespace: str) -> str:
    # They cannot be listed by label.
    return f"/api/v1/namespaces/{namespace}/events"


def _named(plan: Plan, verb: str) -> list[Request]:
    return [request for request in plan.requests if request.verb == verb]


def _by_gang(pods: Iterable[Node], wanted: Collection[str]) -> dict[str, dict[int, list[Obj]]]:
    by_gang: dict[str, dict[int, list[Obj]]] = {}
    for gang, rank, pod in pods:
        if gang in wanted:
            by_gang.setdefault(gang, {}).setdefault(rank, []).append(pod)
    return by_gang
