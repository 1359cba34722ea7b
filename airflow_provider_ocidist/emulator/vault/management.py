"""Managing secrets: made, changed, given new versions, scheduled for deletion."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from starlette.responses import Response

from airflow_provider_ocidist.emulator.context import Context
from airflow_provider_ocidist.emulator.errors import incorrect_state, invalid, not_found
from airflow_provider_ocidist.emulator.fields import changes, require, required_text
from airflow_provider_ocidist.emulator.identity import Identity
from airflow_provider_ocidist.emulator.installation import new_ocid
from airflow_provider_ocidist.emulator.retry_tokens import RetryTokens
from airflow_provider_ocidist.emulator.times import read_time, rfc3339
from airflow_provider_ocidist.emulator.vault.secrets import Secret, Secrets, Version, stages
from airflow_provider_ocidist.emulator.wire import Call, Route, answer, check_if_match, page, whole_number

BASE = "/20180608/secrets"
FIELDS = {
    "description": "description",
    "metadata": "metadata",
    "freeformTags": "freeform_tags",
    "definedTags": "defined_tags",
}
MINUTE_MS, DAY_MS = 60_000, 24 * 3600 * 1000


class SecretManagement:
    """Answers /secrets; never with a value."""

    def __init__(self, context: Context, secrets: Secrets, identity: Identity, retries: RetryTokens) -> None:
        self._ids = context.ids
        self._secrets = secrets
        self._identity = identity
        self._retries = retries

    def routes(self) -> list[Route]:
        one, version = f"{BASE}/{{id}}", f"{BASE}/{{id}}/version/{{number}}"
        return [
            Route("POST", BASE, self.create),
            Route("GET", BASE, self.list_secrets),
            Route("GET", one, self.get),
            Route("PUT", one, self.update),
            Route("POST", f"{one}/actions/scheduleDeletion", self.schedule_deletion),
            Route("POST", f"{one}/actions/cancelDeletion", self.cancel_deletion),
            Route("POST", f"{one}/actions/changeCompartment", self.change_compartment),
            Route("GET", f"{one}/versions", self.list_versions),
            Route("GET", version, self.get_version),
            Route("POST", f"{version}/actions/scheduleDeletion", self.schedule_version_deletion),
            Route("POST", f"{version}/actions/cancelDeletion", self.cancel_version_deletion),
        ]

    async def create(self, call: Call) -> Response:
        details = await call.json()
        known = self._retries.find(call, details)
        secret = self._secrets.get(known) if known else self._new(call, details)
        return answer(_body(secret), etag=secret.etag)

    def _new(self, call: Call, details: dict[str, Any]) -> Secret:
        require(details, "compartmentId", "vaultId", "keyId", "secretName", "secretContent")
        self._identity.check_compartment(details["compartmentId"])
        if (details["vaultId"], details["keyId"]) != (self._ids.vault_id, self._ids.key_id):
            raise not_found()
        self._secrets.check_name(details["vaultId"], details["secretName"])
        secret = Secret(
            id=new_ocid("vaultsecret"),
            compartment_id=details["compartmentId"],
            vault_id=details["vaultId"],
            key_id=details["keyId"],
            name=details["secretName"],
            **changes(details, FIELDS),
        )
        self._secrets.add(secret, details["secretContent"])
        self._retries.remember(call, details, secret.id)
        return secret

    async def list_secrets(self, call: Call) -> Response:
        compartment_id = self._identity.compartment_in(call)
        wanted = {"compartmentId": compartment_id}
        names = {"name": "secretName", "vaultId": "vaultId", "lifecycleState": "lifecycleState"}
        wanted |= {names[name]: call.query[name] for name in names if name in call.query}
        bodies = [_body(secret) for secret in self._secrets.all.values()]
        found = [body for body in bodies if all(body[name] == value for name, value in wanted.items())]
        by_name = call.query.get("sortBy") == "NAME"
        key = "secretName" if by_name else "timeCreated"
        chosen, headers = page(
            call, found, lambda body: (body[key], body["id"]), default="ASC" if by_name else "DESC"
        )
        return answer(chosen, headers=headers)

    def _find(self, call: Call) -> Secret:
        secret = self._secrets.get(call.params["id"])
        check_if_match(call, secret.etag)
        return secret

    def _active(self, call: Call) -> Secret:
        secret = self._find(call)
        if secret.state != "ACTIVE":
            raise incorrect_state(f"The secret is {secret.state}.")
        return secret

    async def get(self, call: Call) -> Response:
        secret = self._secrets.get(call.params["id"])
        return answer(_body(secret), etag=secret.etag)

    async def update(self, call: Call) -> Response:
        """Change what is known of a secret, give it another value, or make another version the current one."""
        details = await call.json()
        secret = self._active(call)
        content, number = details.get("secretContent"), details.get("currentVersionNumber")
        if content is not None and number is not None:
            raise invalid("Give either secretContent or currentVersionNumber.")
        secret = replace(secret, **changes(details, FIELDS))
        if content is not None:
            secret = self._secrets.with_new_version(secret, content)
        if number is not None:
            secret = self._secrets.promoted(secret, number)
        secret = self._secrets.put(secret)
        return answer(_body(secret), etag=secret.etag)

    async def schedule_deletion(self, call: Call) -> Response:
        time_of_deletion = _deletion_time(await call.json())
        secret = self._active(call)
        return self._kept(replace(secret, state="PENDING_DELETION", time_of_deletion=time_of_deletion))

    async def cancel_deletion(self, call: Call) -> Response:
        secret = self._find(call)
        if secret.state != "PENDING_DELETION":
            raise incorrect_state("The secret is not scheduled for deletion.")
        return self._kept(replace(secret, state="ACTIVE", time_of_deletion=None))

    async def change_compartment(self, call: Call) -> Response:
        compartment_id = required_text(await call.json(), "compartmentId")
        secret = self._active(call)
        self._identity.check_compartment(compartment_id)
        return self._kept(replace(secret, compartment_id=compartment_id))

    def _kept(self, secret: Secret) -> Response:
        return answer(etag=self._secrets.put(secret).etag)

    # Versions

    def _version(self, call: Call) -> tuple[Secret, Version]:
        secret = self._secrets.get(call.params["id"])
        number = whole_number(call.params["number"])
        if number is None:
            raise not_found()
        return secret, self._secrets.version(secret, number)

    async def list_versions(self, call: Call) -> Response:
        secret = self._secrets.get(call.params["id"])
        versions = self._secrets.versions(secret)
        chosen, headers = page(call, versions, lambda each: (f"{each.number:09}", ""), default="DESC")
        return answer([_version_body(secret, version) for version in chosen], headers=headers)

    async def get_version(self, call: Call) -> Response:
        return answer(_version_body(*self._version(call)))

    async def schedule_version_deletion(self, call: Call) -> Response:
        time_of_deletion = _deletion_time(await call.json())
        secret, version = self._version(call)
        if "DEPRECATED" not in stages(secret, version.number):
            raise incorrect_state("Only a deprecated version can be deleted.")
        self._secrets.change_version(version, time_of_deletion)
        return answer()

    async def cancel_version_deletion(self, call: Call) -> Response:
        _, version = self._version(call)
        if version.time_of_deletion is None:
            raise incorrect_state("The version is not scheduled for deletion.")
        self._secrets.change_version(version, None)
        return answer()


def _deletion_time(details: dict[str, Any]) -> str:
    """Return when, in RFC 3339; a month from now unless asked. Raises 400 outside 1 to 30 days."""
    now_ms = time.time_ns() // 1_000_000
    text = details.get("timeOfDeletion")
    time_ms = read_time(text, "timeOfDeletion") if text else now_ms + 30 * DAY_MS
    # A minute for what is asked at the limit, by a clock that differs.
    if not DAY_MS - MINUTE_MS <= time_ms - now_ms <= 30 * DAY_MS + MINUTE_MS:
        raise invalid("timeOfDeletion must be 1 to 30 days from now.")
    return rfc3339(time_ms)


def _body(secret: Secret) -> dict[str, Any]:
    return {
        "id": secret.id,
        "compartmentId": secret.compartment_id,
        "vaultId": secret.vault_id,
        "keyId": secret.key_id,
        "secretName": secret.name,
        "description": secret.description,
        "metadata": secret.metadata,
        "currentVersionNumber": secret.current,
        "lifecycleState": secret.state,
        "secretRules": [],
        "isAutoGenerationEnabled": False,
        "timeCreated": secret.time_created,
        "timeOfDeletion": secret.time_of_deletion,
        "freeformTags": secret.freeform_tags,
        "definedTags": secret.defined_tags,
    }


def _version_body(secret: Secret, version: Version) -> dict[str, Any]:
    return {
        "secretId": secret.id,
        "versionNumber": version.number,
        "name": version.name,
        "contentType": "BASE64",
        "stages": stages(secret, version.number),
        "isContentAutoGenerated": False,
        "timeCreated": version.time_created,
        "timeOfDeletion": version.time_of_deletion,
    }
