"""Operator: one kind of custom resource that makes the pods of a gang."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from airflow_provider_ocidist.backends.kubernetes.gang_state import Gang, GangState
from airflow_provider_ocidist.backends.kubernetes.names import QUEUE
from airflow_provider_ocidist.backends.kubernetes.objects import Obj
from airflow_provider_ocidist.backends.kubernetes.pods import PodPlan
from airflow_provider_ocidist.model.job import TrainingJob


@dataclass(frozen=True, kw_only=True, slots=True)
class RoleVariables:
    """The variables of a gang's containers, in Kubernetes' form."""

    main: Sequence[Mapping[str, Any]]
    """Variables of node 0."""
    worker: Sequence[Mapping[str, Any]]
    """Variables of all other nodes."""


class Operator(ABC):
    """Builds the object of a gang, and reads what the operator makes of it. Pure."""

    kind: ClassVar[str]
    """Kind of its objects in the API, `PyTorchJob`."""
    group: ClassVar[str]
    version: ClassVar[str]
    plural: ClassVar[str]
    container: ClassVar[str]
    """Name of the container that holds the training."""
    longest_suffix: ClassVar[str]
    """Longest suffix that it appends to a name, for a gang of a thousand."""
    roles_apart: ClassVar[bool]
    """Whether node 0 and the others have templates of their own."""
    restarts_pods: ClassVar[bool] = False
    """Whether it restarts a node that has ended, in its pod or in another, without a request."""
    sets_grace: ClassVar[bool] = True
    """Whether a gang's object says how long its pods have to end."""
    ends_others: ClassVar[bool]
    """Whether it ends the other nodes as soon as node 0 has succeeded."""
    remedy: ClassVar[str]
    """Remedy where the API server does not serve the kind."""

    @property
    def path(self) -> str:
        return f"/apis/{self.group}/{self.version}"

    def collection(self, namespace: str) -> str:
        return f"{self.path}/namespaces/{namespace}/{self.plural}"

    @abstractmethod
    def manifest(
        self, job: TrainingJob, plan: PodPlan, variables: RoleVariables, metadata: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the object that is created."""

    creates_again_if: ClassVar[str] = ""
    """Condition of an administrator's object on which it creates a lost pod again, in words; empty: there is none."""

    def creates_again(self, job: TrainingJob) -> bool:
        """Whether it can be asked to create a lost pod of a job again, and to leave the others alone."""
        del job
        return False

    def obstacle(self, needed: Mapping[str, Any]) -> str | None:
        """Return by what an administrator's object keeps it from creating a lost pod again alone; None: by nothing."""
        del needed
        return None

    def fitted(self, body: Mapping[str, Any], served: Callable[[], Collection[str]]) -> Mapping[str, Any]:
        """Return the object in the words of the version that the cluster has.

        `served` returns the fields that its `spec` may have, none where that is not known; it raises BackendError.
        Raises BackendError for what this version cannot do.
        """
        del served
        return body

    def explained(self, refused: str, body: Mapping[str, Any]) -> str | None:
        """Return what a refusal of this object means, with a remedy; None where it speaks for itself."""
        del refused, body
        return None

    def subjects(self, name: str) -> Sequence[tuple[str, str]]:
        """Return kind and name of the objects of a gang whose warnings concern all of its nodes."""
        return ((self.kind, name),)

    @abstractmethod
    def topology(self, job: TrainingJob) -> str:
        """Return how the nodes of a job are laid out, in a word."""

    @abstractmethod
    def topology_in(self, obj: Obj) -> str:
        """Return the same of an object that exists."""

    @abstractmethod
    def pod_selector(self, gangs: Collection[str]) -> str:
        """Return the label selector of the pods of some gangs, by name; none: of all."""

    @abstractmethod
    def gang_and_rank(self, pod: Obj) -> tuple[str, int] | None:
        """Return the gang and the rank of a pod; None where it is no node."""

    @abstractmethod
    def node_name(self, name: str, rank: int, topology: str) -> str:
        """Return what a node is called; where names are known beforehand, its pod's."""

    @abstractmethod
    def read(self, obj: Obj) -> Gang:
        """Return what the operator says of a gang."""

    @abstractmethod
    def suspension(self, *, suspended: bool) -> Mapping[str, Any]:
        """Return the merge patch that suspends or resumes a gang."""

    @abstractmethod
    def cleans_up(self, obj: Obj) -> bool:
        """Whether it ends what still runs of a gang that has failed or succeeded."""

    def stays(self, obj: Obj) -> bool:
        """Whether an object whose gang has ended would stay for ever, though it was to be deleted after a time."""
        del obj
        return False

    def needs(self, body: Mapping[str, Any]) -> Sequence[tuple[str, str, str]]:
        """Return path, name and remedy of each object that an administrator has to have made for this one."""
        del body
        return ()

    def grace_of(self, needed: Mapping[str, Any]) -> float | None:
        """Return for how many seconds an administrator's object lets a node end; None: the gang's own says it."""
        del needed
        return None

    @abstractmethod
    def pods_in(self, obj: Obj) -> Sequence[Mapping[str, Any]]:
        """Return what an object says of its pods, in the form of their specifications, by role."""

    @abstractmethod
    def variables_in(self, obj: Obj) -> Sequence[Mapping[str, Any]]:
        """Return the variables of node 0, as the object has them."""

    @abstractmethod
    def nodes_in(self, obj: Obj) -> int:
        """Return how many nodes the object asks for."""


def suspended(obj: Obj, field: str) -> Gang:
    """Return a gang that does not begin, or goes on no more; `field`: by which it is suspended, as `spec.suspend`."""
    queue = ((obj.get("metadata") or {}).get("labels") or {}).get(QUEUE)
    if queue:
        why = f"suspended: it waits in the queue {queue} of Kueue until there is room for all of its nodes"
    else:
        why = f"suspended: it waits until somebody resumes it ({field}: false)"
    return Gang(GangState.SUSPENDED, why, queued=bool(queue))
