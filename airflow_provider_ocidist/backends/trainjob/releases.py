"""A TrainJob in the words of the Kubeflow Trainer that the cluster has: its API breaks with each release. Pure.

Source: kubeflow/trainer, trainjob_types.go at v2.0.0 to v2.3.0.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from airflow_provider_ocidist.backends.trainjob.options import CONTAINER
from airflow_provider_ocidist.errors import BackendError, Cause

PATCHES, TEMPLATES, SPECS = "runtimePatches", "podTemplateOverrides", "podSpecOverrides"
"""Fields that change the pods of a runtime: since 2.2, in 2.1, in 2.0."""
FIELD_NAMES = (PATCHES, TEMPLATES, SPECS)
MANAGER = "ocidist/airflow"
"""Owner of the patch, a path that begins with a domain."""

Obj = Mapping[str, Any]


def patch(pods: Obj) -> dict[str, Any]:
    """Return what lays `metadata` and `spec` of a pod over those of the runtime, in the newest words."""
    job = {"name": CONTAINER, "template": {"spec": {"template": dict(pods)}}}
    return {"manager": MANAGER, "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [job]}}}}


def fitted(body: Obj, served: Collection[str]) -> Obj:
    """Return an object in the words of the fields that the cluster's `spec` has; none: in the newest.

    Raises BackendError where this release cannot do it, or is not known.
    """
    if not served or PATCHES in served:
        return body
    spec = {name: value for name, value in body["spec"].items() if name != PATCHES}
    pods = _pods(body["spec"])
    _require_old(pods.get("spec") or {})
    target = {"targetJobs": [{"name": CONTAINER}]}
    if TEMPLATES in served:
        return {**body, "spec": {**spec, TEMPLATES: [{**target, **pods}]}}
    if SPECS in served:
        # Its pods cannot be marked; the JobSet can.
        return {
            **body,
            "spec": {**spec, **pods.get("metadata", {}), SPECS: [{**target, **pods.get("spec", {})}]},
        }
    raise BackendError(
        f"the cluster's TrainJob has none of {PATCHES}, {TEMPLATES} and {SPECS}: ocidist knows Kubeflow Trainer 2.0 to "
        "2.3; choose backend pytorchjob, or ask for a newer ocidist",
        cause=Cause.CONFIG,
    )


def _pods(spec: Obj) -> Obj:
    (own,) = spec[PATCHES]
    (job,) = own["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pods: Obj = job["template"]["spec"]["template"]
    return pods


def _require_old(spec: Obj) -> None:
    holders = [spec, *spec.get("containers", ()), *spec.get("initContainers", ())]
    if any("securityContext" in each for each in holders):
        raise BackendError(
            "the Kubeflow Trainer of this cluster is older than 2.2, and cannot change a securityContext: put it into "
            "the runtime that backend.runtime names",
            cause=Cause.CONFIG,
        )
