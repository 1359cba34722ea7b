"""The manifest of a PyTorchJob, and what its conditions say. Pure.

Source: the API of training-operator 1.9; what older versions lack is only written where a job asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_ocidist.backends.kubernetes import agent_parts, names, pods
from airflow_provider_ocidist.backends.kubernetes.gang_state import Gang, GangState
from airflow_provider_ocidist.backends.kubernetes.merging import merged_manifest
from airflow_provider_ocidist.backends.kubernetes.objects import (
    Obj,
    container_in,
    is_deleted,
    picked,
    sentence,
    true_conditions,
)
from airflow_provider_ocidist.backends.kubernetes.operator import (
    Operator,
    RoleVariables,
    suspended,
)
from airflow_provider_ocidist.backends.pytorchjob.options import CONTAINER, PyTorchJobOptions
from airflow_provider_ocidist.errors import BackendError, Cause
from airflow_provider_ocidist.model.agent_config import RANK_VARIABLE
from airflow_provider_ocidist.model.job import TrainingJob

ROLE, INDEX = "training.kubeflow.org/replica-type", "training.kubeflow.org/replica-index"
"""Labels with a pod's role, and its number within that, from operator 1.4 on."""
RESTARTS = 3
"""Most restarts of all pods together where a job has pods restarted and names no `backoff_limit`."""
RESTARTS_PER_NODE = 20
"""Restarts for each node, and as many again, after which the operator ends a gang whose lost pods are replaced."""
WAITER = "ocidist-wait"
MASTER, WORKERS = "master_and_workers", "workers"


class PyTorchJobs(Operator):
    """Kubeflow's training operator."""

    kind, group, version, plural = "PyTorchJob", "kubeflow.org", "v1", "pytorchjobs"
    container = CONTAINER
    longest_suffix = "-worker-999"
    roles_apart = True
    ends_others = True
    remedy = "install Kubeflow's training operator, or choose backend trainjob"

    def creates_again(self, job: TrainingJob) -> bool:
        """It makes the pod of each replica that has none (ReconcilePods in training-operator, controller.v1/common).

        With a restart policy other than `Never` it deletes a pod of phase Failed, and no pod that ends or is deleted
        fails the gang. Of a gang with an elastic policy, nothing is known of that.
        """
        options: Any = job.backend
        return not options.elastic_policy

    def manifest(
        self,
        job: TrainingJob,
        plan: pods.PodPlan,
        variables: RoleVariables,
        metadata: Mapping[str, Any],
    ) -> dict[str, Any]:
        options: Any = job.backend
        return {
            "apiVersion": f"{self.group}/{self.version}",
            "kind": self.kind,
            "metadata": dict(metadata),
            "spec": {
                **_processes(job, options),
                "runPolicy": _run_policy(job, options, plan),
                **({"elasticPolicy": dict(options.elastic_policy)} if options.elastic_policy else {}),
                "pytorchReplicaSpecs": _replicas(job, options, plan, variables),
            },
        }

    def fitted(self, body: Mapping[str, Any], served: Callable[[], Collection[str]]) -> Mapping[str, Any]:
        fields = served()
        if not fields or "nprocPerNode" in fields:
            return body
        spec = {name: value for name, value in body["spec"].items() if name != "nprocPerNode"}
        if spec["runPolicy"].get("suspend"):
            raise BackendError(
                "the training operator of this cluster is older than 1.7: it cannot begin suspended; leave out "
                "backend.suspend",
                cause=Cause.CONFIG,
            )
        # Its programs learn the number of nodes alone.
        return {**body, "spec": spec}

    def pod_selector(self, gangs: Collection[str]) -> str:
        return names.any_of(names.GANG, gangs) if gangs else names.SELECTOR

    def gang_and_rank(self, pod: Obj) -> tuple[str, int] | None:
        labels = (pod.get("metadata") or {}).get("labels") or {}
        gang, name = labels.get(names.GANG), str((pod.get("metadata") or {}).get("name"))
        # By the name, which every version of the operator makes alike.
        role, _, index = name.removeprefix(f"{gang}-").partition("-")
        if not index.isdecimal() or role not in ("master", "worker"):
            # A webhook may have named it anew.
            role, index = str(labels.get(ROLE)).lower(), str(labels.get(INDEX))
        if gang is None or not index.isdecimal() or role not in ("master", "worker"):
            return None
        alone = _is_elastic(pod)
        return str(gang), int(index) if role == "master" or alone else int(index) + 1

    def topology(self, job: TrainingJob) -> str:
        options: Any = job.backend
        return WORKERS if options.elastic_policy else MASTER

    def topology_in(self, obj: Obj) -> str:
        return MASTER if "Master" in obj["spec"]["pytorchReplicaSpecs"] else WORKERS

    def node_name(self, name: str, rank: int, topology: str) -> str:
        if topology == WORKERS:
            return f"{name}-worker-{rank}"
        return f"{name}-master-0" if rank == 0 else f"{name}-worker-{rank - 1}"

    def read(self, obj: Obj) -> Gang:
        found = true_conditions(obj)
        if is_deleted(obj):
            return Gang(GangState.ENDING)
        for name, state in (("Failed", GangState.FAILED), ("Succeeded", GangState.SUCCEEDED)):
            if name in found:
                return Gang(state, sentence(found[name]))
        # Its pods begin to end before the operator says so.
        policy = (obj.get("spec") or {}).get("runPolicy") or {}
        if "Suspended" in found or policy.get("suspend"):
            return suspended(obj, "spec.runPolicy.suspend")
        return Gang(GangState.ACTIVE if found else GangState.NEW)

    def suspension(self, *, suspended: bool) -> Mapping[str, Any]:
        return {"spec": {"runPolicy": {"suspend": suspended}}}

    def cleans_up(self, obj: Obj) -> bool:
        return ((obj.get("spec") or {}).get("runPolicy") or {}).get("cleanPodPolicy") in ("Running", "All")

    def stays(self, obj: Obj) -> bool:
        # Of restartPolicy ExitCode it notes no end, by which the ttl begins.
        over = self.read(obj).state is GangState.FAILED and not (obj.get("status") or {}).get(
            "completionTime"
        )
        return over and "ttlSecondsAfterFinished" in ((obj.get("spec") or {}).get("runPolicy") or {})

    def pods_in(self, obj: Obj) -> Sequence[Mapping[str, Any]]:
        return [role["template"]["spec"] for role in obj["spec"]["pytorchReplicaSpecs"].values()]

    def variables_in(self, obj: Obj) -> Sequence[Mapping[str, Any]]:
        roles = obj["spec"]["pytorchReplicaSpecs"]
        spec = roles.get("Master", roles.get("Worker"))["template"]["spec"]
        return container_in(spec, self.container).get("env") or ()

    def nodes_in(self, obj: Obj) -> int:
        return sum(int(role.get("replicas", 1)) for role in obj["spec"]["pytorchReplicaSpecs"].values())


def _is_elastic(pod: Obj) -> bool:
    """Whether the gang has no Master, by the rank that its nodes are then given."""
    spec = pod.get("spec") or {}
    return any(
        entry.get("name") == RANK_VARIABLE
        for container in spec.get("containers") or ()
        for entry in container.get("env") or ()
    )


def _processes(job: TrainingJob, options: PyTorchJobOptions) -> dict[str, Any]:
    """Return the processes of a node, which only programs without an agent read from the operator's variables."""
    count = job.launcher.processes_per_node or options.gpus_of_node
    return {"nprocPerNode": str(count)} if job.container is not None and count else {}


def _run_policy(job: TrainingJob, options: PyTorchJobOptions, plan: pods.PodPlan) -> dict[str, Any]:
    limit = options.backoff_limit
    if limit is None and plan.replaces:
        # The container of a node that has failed is restarted, and then idles: this count is to be reached only if no
        # process ends the gang. It is of all containers, also of those that run beside healthy nodes.
        limit = RESTARTS_PER_NODE * (job.nodes + 1)
    elif limit is None and options.restart_policy != "Never":
        limit = RESTARTS
    return {
        # Without a Master any node's success would end the others, which may be saving yet.
        "cleanPodPolicy": "None"
        if options.elastic_policy and job.container is None
        else options.clean_pod_policy,
        # Up to 1.9.3 all pods are deleted, with their logs, when it is reached (trainer#3420).
        **({"backoffLimit": limit} if limit is not None else {}),
        **({"ttlSecondsAfterFinished": round(options.ttl)} if options.ttl is not None else {}),
        **({"suspend": True} if options.suspend else {}),
        **({"schedulingPolicy": dict(options.scheduling_policy)} if options.scheduling_policy else {}),
    }


def _replicas(
    job: TrainingJob, options: PyTorchJobOptions, plan: pods.PodPlan, variables: RoleVariables
) -> dict[str, Any]:
    def role(
        count: int, own: Sequence[Mapping[str, Any]], over: Mapping[str, Any], *, waits: bool = False
    ) -> dict[str, Any]:
        laid = replace(options, pod_template=merged_manifest(options.pod_template, over))
        template = pods.template(job, laid, replace(plan, environment=own))
        # The operator sets it from the role's own.
        template["spec"].pop("restartPolicy")
        if waits:
            inits = [*(template["spec"].get("initContainers") or ()), _wait_for_master(plan.name, template)]
            template["spec"]["initContainers"] = inits
        # The operator creates an evicted or vanished pod again only with OnFailure. With it a program's failure
        # does not fail the pod: the kubelet restarts the container, and its last state shows how the program ended.
        policy = "OnFailure" if plan.replaces else options.restart_policy
        return {"replicas": count, "restartPolicy": policy, "template": template}

    if options.elastic_policy:
        rank = {
            "name": RANK_VARIABLE,
            "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{INDEX}']"}},
        }
        return {"Worker": role(job.nodes, [*variables.worker, rank], options.worker_template)}
    workers = {}
    if job.nodes > 1:
        # An image with a start of its own may have no Python.
        waits = job.container is None
        workers["Worker"] = role(job.nodes - 1, variables.worker, options.worker_template, waits=waits)
    return {"Master": role(1, variables.main, options.main_template), **workers}


def _wait_for_master(gang: str, template: Mapping[str, Any]) -> dict[str, Any]:
    """Return the init container in which a Worker waits for its Master, for as long as the gang does.

    The operator puts its own after it, which fails the gang when the Master is not there within 200 s.
    """
    own = container_in(template["spec"], CONTAINER)
    return {
        "name": WAITER,
        **picked(own, ("image", "imagePullPolicy", "securityContext")),
        "command": ["python3", "-c", agent_parts.WAIT, f"{gang}-master-0"],
        # As a quota may ask for.
        "resources": {
            "limits": {"cpu": "100m", "memory": "64Mi"},
            "requests": {"cpu": "50m", "memory": "32Mi"},
        },
    }


OPERATOR = PyTorchJobs()
