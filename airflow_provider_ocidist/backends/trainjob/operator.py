"""The manifest of a TrainJob, and what its status says. Pure.

Source: the API of Kubeflow Trainer 2.3, `trainer.kubeflow.org/v1alpha1`; `releases` has the words of older ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_ocidist.backends.kubernetes import names, pods
from airflow_provider_ocidist.backends.kubernetes.gang_state import Gang, GangState
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
from airflow_provider_ocidist.backends.trainjob import releases
from airflow_provider_ocidist.backends.trainjob.options import CONTAINER, PATCHED, TrainJobOptions
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.model.job import TrainingJob

JOBSET = "jobset.sigs.k8s.io/jobset-name"
REPLICATED = "jobset.sigs.k8s.io/replicatedjob-name"
INDEX = "batch.kubernetes.io/job-completion-index"
"""Labels of pods that every release of Trainer has."""
NO_RUNTIME = "must be created before the TrainJob is created"
"""Text in the webhook's refusal."""
DISRUPTED = "DisruptionTarget"
"""Condition of a pod that the cluster evicts, preempts or deletes with its machine."""
DEFAULT_BACKOFF_LIMIT = 6
"""Pods that a Job may lose by default."""
DEFAULT_GRACE = 30
"""Seconds that Kubernetes gives a pod by default."""
CAUSES_OF_FAILED = {"DeadlineExceeded": Cause.DEADLINE, "TrainingRuntimeNotSupported": Cause.CONFIG}
"""Causes by the reason of the condition Failed."""


class TrainJobs(Operator):
    """Kubeflow Trainer, and JobSet beneath it."""

    kind, group, version, plural = "TrainJob", "trainer.kubeflow.org", "v1alpha1", "trainjobs"
    container = CONTAINER
    longest_suffix = f"-{CONTAINER}-0-999-xxxxx"
    roles_apart = False
    restarts_pods = True
    sets_grace = False  # no release lets a TrainJob change it: it is the runtime's
    ends_others = True
    creates_again_if = "if the runtime's Job may lose one (backoffLimit, podFailurePolicy)"
    remedy = "install Kubeflow Trainer, or choose backend pytorchjob"

    def manifest(
        self, job: TrainingJob, plan: pods.PodPlan, variables: RoleVariables, metadata: Mapping[str, Any]
    ) -> dict[str, Any]:
        options: Any = job.backend
        template = pods.template(job, options, replace(plan, environment=variables.main))
        runtime = {"apiGroup": self.group, "kind": options.runtime_kind, "name": options.runtime}
        return {
            "apiVersion": f"{self.group}/{self.version}",
            "kind": self.kind,
            "metadata": dict(metadata),
            "spec": {
                "runtimeRef": runtime,
                "trainer": _trainer(job, options, template["spec"]),
                releases.PATCHES: [releases.patch(_changes(template))],
                **({"suspend": True} if options.suspend else {}),
            },
        }

    def creates_again(self, job: TrainingJob) -> bool:
        """The Job beneath makes the pod of each index that has none, as long as its limit is not exceeded.

        Source: manageJob in pkg/controller/job, Kubernetes 1.34; a TrainJob cannot change the limit of its runtime.
        """
        del job
        return True

    def obstacle(self, needed: Mapping[str, Any]) -> str | None:
        spec = _job_of_nodes(needed)
        if spec is None:
            return f"it has no replicated job {CONTAINER}"
        action = _action_on_disruption(spec)
        if action in ("FailJob", "FailIndex"):
            return f"its podFailurePolicy says {action} for a disruption"
        limits = [spec.get("backoffLimitPerIndex"), spec.get("backoffLimit")]
        limit = next((each for each in limits if each is not None), DEFAULT_BACKOFF_LIMIT)
        if action == "Ignore" or limit > 0:
            return None
        return "its backoffLimit of 0 ends all pods when one is lost"

    def fitted(self, body: Mapping[str, Any], served: Callable[[], Collection[str]]) -> Mapping[str, Any]:
        return releases.fitted(body, served())

    def explained(self, refused: str, body: Mapping[str, Any]) -> str | None:
        if NO_RUNTIME not in refused:
            return None
        ((_, name, remedy),) = self.needs(body)
        return f"there is no {name}: {remedy}"

    def needs(self, body: Mapping[str, Any]) -> Sequence[tuple[str, str, str]]:
        runtime = body["spec"]["runtimeRef"]
        plural = f"{runtime['kind'].lower()}s"
        place = (
            "" if runtime["kind"].startswith("Cluster") else f"/namespaces/{body['metadata']['namespace']}"
        )
        remedy = (
            f"name one that is there in backend.runtime (kubectl get {plural}), or install the runtimes of Kubeflow "
            "Trainer"
        )
        path = f"{self.path}{place}/{plural}/{runtime['name']}"
        return ((path, f"{runtime['kind']} {runtime['name']}", remedy),)

    def grace_of(self, needed: Mapping[str, Any]) -> float | None:
        spec = _job_of_nodes(needed)
        if spec is None:
            return None
        pod = (spec.get("template") or {}).get("spec") or {}
        return float(pod.get("terminationGracePeriodSeconds") or DEFAULT_GRACE)

    def subjects(self, name: str) -> Sequence[tuple[str, str]]:
        return ((self.kind, name), ("JobSet", name), ("Job", f"{name}-{CONTAINER}-0"))

    def pod_selector(self, gangs: Collection[str]) -> str:
        # Not by our own labels, which Trainer 2.0 does not pass on to pods.
        of_nodes = f"{REPLICATED}={CONTAINER}"
        return f"{names.any_of(JOBSET, gangs)},{of_nodes}" if gangs else of_nodes

    def gang_and_rank(self, pod: Obj) -> tuple[str, int] | None:
        labels = (pod.get("metadata") or {}).get("labels") or {}
        gang, index = labels.get(JOBSET), str(labels.get(INDEX))
        if gang is None or labels.get(REPLICATED) != CONTAINER or not index.isdecimal():
            return None
        return str(gang), int(index)

    def topology(self, job: TrainingJob) -> str:
        del job
        return "indexed_job"

    def topology_in(self, obj: Obj) -> str:
        del obj
        return "indexed_job"

    def node_name(self, name: str, rank: int, topology: str) -> str:
        del topology
        # Its host name; that of its pod goes on with five letters.
        return f"{name}-{CONTAINER}-0-{rank}"

    def read(self, obj: Obj) -> Gang:
        found, status = true_conditions(obj), obj.get("status") or {}
        if is_deleted(obj):
            return Gang(GangState.ENDING)
        if "Failed" in found:
            cause = CAUSES_OF_FAILED.get(str(found["Failed"].get("reason")))
            return Gang(GangState.FAILED, sentence(found["Failed"]), cause)
        if "Complete" in found:
            return Gang(GangState.SUCCEEDED, sentence(found["Complete"]))
        # Its pods begin to end before the operator says so.
        if "Suspended" in found or (obj.get("spec") or {}).get("suspend"):
            return suspended(obj, "spec.suspend")
        return Gang(GangState.ACTIVE if _has_begun(status) else GangState.NEW)

    def suspension(self, *, suspended: bool) -> Mapping[str, Any]:
        return {"spec": {"suspend": suspended}}

    def cleans_up(self, obj: Obj) -> bool:
        del obj
        return True

    def pods_in(self, obj: Obj) -> Sequence[Mapping[str, Any]]:
        trainer = obj["spec"].get("trainer") or {}
        changed = {name: value for name, value in obj["spec"].items() if name in releases.FIELD_NAMES}
        return [{"containers": [{"name": CONTAINER, "env": trainer.get("env") or ()}]}, changed]

    def variables_in(self, obj: Obj) -> Sequence[Mapping[str, Any]]:
        found: Sequence[Mapping[str, Any]] = (obj["spec"].get("trainer") or {}).get("env") or ()
        return found

    def nodes_in(self, obj: Obj) -> int:
        return int((obj["spec"].get("trainer") or {}).get("numNodes") or 1)


def _job_of_nodes(runtime: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the specification of the Job whose pods are the nodes; None where a runtime has none."""
    jobs = (((runtime.get("spec") or {}).get("template") or {}).get("spec") or {}).get("replicatedJobs") or ()
    found = (
        ((each.get("template") or {}).get("spec") or {}) for each in jobs if each.get("name") == CONTAINER
    )
    return next(found, None)


def _action_on_disruption(job: Mapping[str, Any]) -> str | None:
    """Return what the first rule about evicted and preempted pods says; None where no rule is about them."""
    for rule in (job.get("podFailurePolicy") or {}).get("rules") or ():
        conditions = rule.get("onPodConditions") or ()
        if any(
            each.get("type") == DISRUPTED and str(each.get("status", "True")) == "True" for each in conditions
        ):
            return str(rule.get("action"))
    return None


def _trainer(job: TrainingJob, options: TrainJobOptions, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return what Trainer takes of the training's container outside of any patch."""
    own = container_in(spec, CONTAINER)
    count = job.launcher.processes_per_node or options.gpus_of_node
    found = {
        "image": own.get("image"),
        "command": own.get("command"),
        "args": own.get("args"),
        "env": own.get("env"),
        "resourcesPerNode": own.get("resources"),
        # Only a program without an agent reads it.
        "numProcPerNode": count if job.container is not None and count else None,
    }
    return {"numNodes": job.nodes, **{name: value for name, value in found.items() if value}}


def _changes(template: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a patch may have of a pod; the rest is the runtime's."""
    spec = template["spec"]
    found = {name: value for name, value in spec.items() if name in PATCHED and value}
    others = [each for each in spec["containers"] if each["name"] != CONTAINER]
    own = picked(container_in(spec, CONTAINER), ("volumeMounts", "securityContext"))
    found["containers"] = [{"name": CONTAINER, **own}, *others]
    return {"metadata": template["metadata"], "spec": found}


def _has_begun(status: Mapping[str, Any]) -> bool:
    counts = [each for each in status.get("jobsStatus") or () if each.get("name") == CONTAINER]
    return any(each.get(name) for each in counts for name in ("active", "ready", "succeeded", "failed"))


OPERATOR = TrainJobs()
