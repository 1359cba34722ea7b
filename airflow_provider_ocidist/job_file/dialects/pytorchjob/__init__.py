"""Kubeflow `PyTorchJob` manifests, `apiVersion: kubeflow.org/v1`: the same gang on another platform.

Keys about the cluster (scheduling, pull policies, ports) are accepted and ignored; keys that change the training and
are not supported are refused. Source: the API of training-operator 1.9.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_ocidist.job_file.dialects.base import Dialect, Draft, Section, Translation
from airflow_provider_ocidist.job_file.dialects.pytorchjob import environment, limits, program, roles, volumes
from airflow_provider_ocidist.job_file.schema import shown

SPEC = {"nprocPerNode", "runPolicy", "elasticPolicy", "pytorchReplicaSpecs"}
CLUSTER = {"creationTimestamp", "generation", "managedFields", "resourceVersion", "selfLink", "uid"}
"""Metadata that a cluster adds to its objects."""


class PyTorchJobManifest(Dialect):
    """Recognised by its kind."""

    def matches(self, mapping: Mapping[str, Any]) -> bool:
        return mapping.get("kind") == "PyTorchJob"

    def translate(self, mapping: Mapping[str, Any]) -> Translation:
        draft = Draft()
        # A manifest fetched from a cluster has a status.
        draft.keys(mapping, "", {"apiVersion", "kind", "metadata", "spec", "status"})
        draft.only(Section("", mapping), "apiVersion", "kubeflow.org/v1")
        _metadata(draft, mapping)
        spec = draft.section(mapping, "spec", SPEC)
        found = roles.read(draft, spec)
        if not found:
            return Translation(mapping={}, problems=tuple(draft.problems), readable=False)
        roles.put(draft, found)
        environment.put(draft, [role.env for role in found])
        program.put(draft, spec, found)
        volumes.put(draft, found)
        limits.put(draft, spec, found)
        return draft.finished()


DIALECT = PyTorchJobManifest()


def _metadata(draft: Draft, mapping: Mapping[str, Any]) -> None:
    known = {"name", "generateName", "namespace", "labels", "annotations", *CLUSTER}
    metadata = draft.section(mapping, "metadata", known)
    key = "name" if "name" in metadata.value or "generateName" not in metadata.value else "generateName"
    draft.put_needed("name", metadata, key)
    labels = metadata.value.get("labels")
    if isinstance(labels, Mapping):
        for name, value in labels.items():
            # Tags of OCI have no dots in their keys, and labels of Kubernetes begin with host names.
            draft.put_entry("tags", str(name).replace(".", "-"), metadata.at(f"labels.{name}"), value)
    elif labels is not None:
        draft.complain(metadata.at("labels"), f"must be a section of names and values, not {shown(labels)}")
