"""Built-in resources: what an emulator has exactly one of, and no client makes."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from airflow_provider_ocidist.emulator.errors import not_found
from airflow_provider_ocidist.emulator.wire import Call, answer


def fields_of_all(compartment_id: str, state: str, time_created: str) -> dict[str, Any]:
    """Return the fields that every built-in resource has."""
    return {
        "compartmentId": compartment_id,
        "displayName": "ocidist",
        "lifecycleState": state,
        "timeCreated": time_created,
        "freeformTags": {},
        "definedTags": {},
    }


def shown(call: Call, body: dict[str, Any]) -> Response:
    """Answer with the resource. Raises 404 for another id."""
    if call.params["id"] != body["id"]:
        raise not_found()
    return answer(body)
