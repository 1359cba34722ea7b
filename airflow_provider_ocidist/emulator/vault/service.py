"""Vault, all of it: the one vault, its one key, and its secrets."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from airflow_provider_ocidist.emulator.built_in import fields_of_all, shown
from airflow_provider_ocidist.emulator.context import Context
from airflow_provider_ocidist.emulator.identity import Identity
from airflow_provider_ocidist.emulator.retry_tokens import RetryTokens
from airflow_provider_ocidist.emulator.vault.bundles import Bundles
from airflow_provider_ocidist.emulator.vault.management import SecretManagement
from airflow_provider_ocidist.emulator.vault.secrets import Secrets
from airflow_provider_ocidist.emulator.wire import Call, Route, answer, now

VAULTS = "/20180608/vaults"
KEYS = "/20180608/keys"


class Vault:
    """Answers /vaults and /keys, and holds the other parts."""

    def __init__(self, context: Context, identity: Identity, retries: RetryTokens) -> None:
        self._context = context
        self._ids = context.ids
        self._identity = identity
        self._time_created = now()
        self._secrets = Secrets(context)
        self._management = SecretManagement(context, self._secrets, identity, retries)
        self._bundles = Bundles(self._secrets)

    def routes(self) -> list[Route]:
        own = [
            Route("GET", VAULTS, self.list_vaults),
            Route("GET", f"{VAULTS}/{{id}}", self.get_vault),
            Route("GET", KEYS, self.list_keys),
            Route("GET", f"{KEYS}/{{id}}", self.get_key),
        ]
        return [*own, *self._management.routes(), *self._bundles.routes()]

    def reset(self) -> None:
        self._secrets.reset()

    async def list_vaults(self, call: Call) -> Response:
        return self._list(call, self._vault())

    async def get_vault(self, call: Call) -> Response:
        return shown(call, self._vault())

    async def list_keys(self, call: Call) -> Response:
        return self._list(call, self._key())

    async def get_key(self, call: Call) -> Response:
        return shown(call, self._key())

    def _list(self, call: Call, body: dict[str, Any]) -> Response:
        compartment_id = self._identity.compartment_in(call)
        return answer([body] if compartment_id == body["compartmentId"] else [])

    def _vault(self) -> dict[str, Any]:
        return {
            **fields_of_all(self._ids.compartment_id, "ACTIVE", self._time_created),
            "id": self._ids.vault_id,
            "vaultType": "DEFAULT",
            "cryptoEndpoint": self._context.url,
            "managementEndpoint": self._context.url,
            "wrappingkeyId": self._ids.key_id,
        }

    def _key(self) -> dict[str, Any]:
        return {
            **fields_of_all(self._ids.compartment_id, "ENABLED", self._time_created),
            "id": self._ids.key_id,
            "vaultId": self._ids.vault_id,
            "algorithm": "AES",
            "keyShape": {"algorithm": "AES", "length": 32},
            "protectionMode": "SOFTWARE",
            "currentKeyVersion": self._ids.key_id,
        }
