"""The metadata service of the one compute instance: where it is, and the key that it signs with."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from starlette.responses import PlainTextResponse, Response

from airflow_provider_ocidist.emulator.context import Context
from airflow_provider_ocidist.emulator.errors import ApiError
from airflow_provider_ocidist.emulator.identity import availability_domain
from airflow_provider_ocidist.emulator.installation import REGION_KEY, pem
from airflow_provider_ocidist.emulator.instances import certificate_pem
from airflow_provider_ocidist.emulator.listening import is_own_user
from airflow_provider_ocidist.emulator.wire import Call, Route, answer

BASE = "/opc/v2"
CREDENTIALS = "Bearer Oracle"
FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host")


class Metadata:
    """Answers the instance's requests about itself.

    On a real instance every program on it may ask. Here other users may share the machine, and the key is the
    right to run programs as the user who started the emulator: where the kernel shows whose connection it is,
    others are refused.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._installation = context.installation

    def routes(self) -> list[Route]:
        return [
            Route("GET", f"{BASE}/instance", self.get_instance, signed=False),
            Route("GET", f"{BASE}/instance/{{path...}}", self.get_value, signed=False),
            Route("GET", f"{BASE}/identity/{{name}}", self.get_identity, signed=False),
        ]

    @cached_property
    def _identity(self) -> dict[str, str]:
        installation = self._installation
        key = installation.instance_key
        certificate = installation.instances.issue(installation.instance, key.public_key())
        return {
            "cert.pem": certificate_pem(certificate),
            "key.pem": pem(key),
            "intermediate.pem": certificate_pem(installation.instances.certificate),
        }

    def _instance(self) -> dict[str, Any]:
        ids = self._context.ids
        return {
            "id": ids.instance_id,
            "displayName": "ocidist",
            "hostname": "ocidist",
            "compartmentId": ids.compartment_id,
            "tenantId": ids.tenancy_id,
            "availabilityDomain": availability_domain(ids.region),
            "faultDomain": "FAULT-DOMAIN-1",
            "region": REGION_KEY,
            "canonicalRegionName": ids.region,
            "regionInfo": {
                "realmKey": "oc1",
                "realmDomainComponent": "oraclecloud.com",
                "regionKey": REGION_KEY.upper(),
                "regionIdentifier": ids.region,
            },
            "shape": "VM.Standard.E4.Flex",
            "state": "Running",
            "metadata": {},
        }

    async def get_instance(self, call: Call) -> Response:
        _check_caller(call)
        return answer(self._instance())

    async def get_value(self, call: Call) -> Response:
        """Answer one value: text as it is, anything else as JSON."""
        _check_caller(call)
        value: Any = self._instance()
        for name in call.params["path"].strip("/").split("/"):
            if not isinstance(value, dict) or name not in value:
                raise _absent(call)
            value = value[name]
        return PlainTextResponse(value) if isinstance(value, str) else answer(value)

    async def get_identity(self, call: Call) -> Response:
        _check_caller(call)
        text = self._identity.get(call.params["name"])
        if text is None:
            raise _absent(call)
        return PlainTextResponse(text)


def _absent(call: Call) -> ApiError:
    return ApiError(404, "NotFound", f"The instance has no metadata at {call.raw_path}.")


def _check_caller(call: Call) -> None:
    if call.headers.get("authorization") != CREDENTIALS:
        raise ApiError(
            403, "Forbidden", f"The metadata service wants the header Authorization: {CREDENTIALS}."
        )
    if any(name in call.headers for name in FORWARDED):
        raise ApiError(403, "Forbidden", "The metadata service answers no forwarded requests.")
    if not is_own_user(call.request.scope):
        raise ApiError(
            403, "Forbidden", "Only programs of the user who runs the emulator may send this request."
        )
