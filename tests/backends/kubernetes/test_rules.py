"""Pod fields that are checked without a cluster are those that Kubernetes has."""

from __future__ import annotations

from kubernetes import client

from airflow_provider_ocidist.backends.kubernetes.rules import CONTAINER_FIELDS, POD_FIELDS


def test_the_fields_of_a_pod_and_of_a_container_are_those_of_the_client() -> None:
    assert set(client.V1PodSpec.attribute_map.values()) == POD_FIELDS
    assert set(client.V1Container.attribute_map.values()) == CONTAINER_FIELDS
