"""Kubeflow `PyTorchJob` manifests, `apiVersion: kubeflow.org/v1`: as they are, or the same gang on another platform.

At home, on backend `pytorchjob`, every field arrives. Elsewhere, keys about the cluster (scheduling, pull policies,
ports) are accepted and ignored; keys that change the training and are not supported are refused. Source: the API of
training-operator 1.9.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_ocidist.job_file.dialects.base import Dialect, Draft, Section, Translation
from airflow_provider_ocidist.job_file.dialects.pytorchjob import (
    environment,
    limits,
    pods,
    program,
    roles,
    volumes,
)
from airflow_provider_ocidist.job_file.schema import value_shown

SPEC = {"nprocPerNode", "runPolicy", "elasticPolicy", "pytorchReplicaSpecs"}
CLUSTER = {"creationTimestamp", "generation", "managedFields", "resourceVersion", "selfLink", "uid"}
"""Metadata that a cluster adds to its objects."""


class PyTorchJobManifest(Dialect):
    """Recognised by its kind."""

    def matches(self, mapping: Mapping[str, Any]) -> bool:
        return mapping.get("kind") == "PyTorchJob"

    def translate(self, mapping: Mapping[str, Any], home: str | None = None) -> Translation:
        at_home = home in (None, KIND)
        draft = Draft()
        # A manifest fetched from a cluster has a status.
        draft.keys(mapping, "", {"apiVersion", "kind", "metadata", "spec", "status"})
        draft.only(Section("", mapping), "apiVersion", "kubeflow.org/v1")
        _metadata(draft, mapping, at_home=at_home)
        spec = draft.section(mapping, "spec", SPEC)
        found = roles.read(draft, spec, at_home=at_home)
        if not found:
            return Translation(mapping={}, problems=tuple(draft.problems), readable=False)
        roles.put(draft, found, at_home=at_home)
        environment.put(draft, [role.env for role in found])
        program.put(draft, spec, found, at_home=at_home)
        limits.put(draft, spec, found, at_home=at_home)
        if at_home:
            pods.put(draft, found)
        else:
            volumes.put(draft, found)
        return draft.finished()


KIND = "pytorchjob"
"""Kind of the backend for which a manifest is meant."""
DIALECT = PyTorchJobManifest()


def _metadata(draft: Draft, mapping: Mapping[str, Any], *, at_home: bool) -> None:
    known = {"name", "generateName", "namespace", "labels", "annotations", *CLUSTER}
    metadata = draft.section(mapping, "metadata", known)
    key = "name" if "name" in metadata.value or "generateName" not in metadata.value else "generateName"
    draft.put_needed("name", metadata, key)
    if at_home:
        draft.put("backend.kind", "kind", KIND)
        names = ("namespace", "labels", "annotations")
        draft.copy(metadata, {name: f"backend.{name}" for name in names})
        return
    labels = metadata.value.get("labels")
    if isinstance(labels, Mapping):
        for name, value in labels.items():
            # Tags of OCI have no dots in their keys, and labels of Kubernetes begin with host names.
            draft.put_entry("tags", str(name).replace(".", "-"), metadata.at(f"labels.{name}"), value)
    elif labels is not None:
        draft.complain(
            metadata.at("labels"), f"must be a section of names and values, not {value_shown(labels)}"
        )
