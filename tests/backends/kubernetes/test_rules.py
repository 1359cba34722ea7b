"""Pod fields that are checked without a cluster are those that Kubernetes has."""

from __future__ import annotations

import re

from kubernetes import client

from airflow_provider_ocidist.backends.kubernetes.rules import CONTAINER_FIELDS, POD_FIELDS, QUANTITY

SUFFIXES = re.compile(r"([KMGTPE]i|[numkMGTPE]|)")
"""As Kubernetes' documentation of Quantity has them: `k` is 1000, `Ki` 1024, and there is no `K`."""


def test_the_fields_of_a_pod_and_of_a_container_are_those_of_the_client() -> None:
    assert set(client.V1PodSpec.attribute_map.values()) == POD_FIELDS
    assert set(client.V1Container.attribute_map.values()) == CONTAINER_FIELDS


def test_no_amount_passes_that_the_api_server_refuses() -> None:
    for suffix in ("", *"numkKMGTPE", *(f"{letter}i" for letter in "kKMGTPEm")):
        if QUANTITY.fullmatch(f"64{suffix}"):
            assert SUFFIXES.fullmatch(suffix), suffix
    assert all(QUANTITY.fullmatch(amount) for amount in ("8", "500m", "1.5", "64Ki", "64Gi", "64G", "3k"))
