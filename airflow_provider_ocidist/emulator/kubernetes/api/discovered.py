"""Which kinds the API server has, and its version: what clients ask for before anything else."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.responses import Response

from airflow_provider_ocidist.emulator.kubernetes import discovery
from airflow_provider_ocidist.emulator.kubernetes.api.answers import as_json
from airflow_provider_ocidist.emulator.kubernetes.api.calls import Call
from airflow_provider_ocidist.emulator.kubernetes.kinds import Kind


def discovered(call: Call, kinds: Sequence[Kind], url: str) -> Response | None:
    """Return the answer to a request about the API itself; None where it is about objects."""
    parts = call.path.strip("/").split("/")
    if call.method != "GET":
        return None
    if call.path == "/openapi/v2":
        # As protobuf this is a document without definitions: older kubectl then leaves validation to us.
        return Response(b"", media_type="application/com.github.proto-openapi.spec.v2.v1.0+protobuf")
    if call.path == "/version":
        return as_json(discovery.VERSION)
    if parts[0] in ("api", "apis") and len(parts) == 1:
        if discovery.AGGREGATED in call.accept:
            groups = discovery.aggregated(kinds, core=parts[0] == "api")
            return as_json(
                groups, media_type="application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
            )
        return as_json(discovery.versions(url) if parts[0] == "api" else discovery.group_list(kinds))
    if parts[0] == "apis" and len(parts) == 2 and parts[1] in discovery.groups(kinds):
        return as_json(discovery.group(parts[1], kinds))
    if parts[0] in ("api", "apis") and len(parts) == (2 if parts[0] == "api" else 3):
        found = discovery.resource_list("/".join(parts[1:]), kinds)
        return None if found is None else as_json(found)
    if parts[:2] == ["openapi", "v3"]:
        place = "/".join(parts[2:])
        found = discovery.openapi(place, kinds) if place else discovery.openapi_index(kinds)
        return None if found is None else as_json(found)
    return None
