"""Reading secrets: bundles of one version's value and what is known of it."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from airflow_provider_ocidist.emulator.errors import invalid, not_found
from airflow_provider_ocidist.emulator.vault.secrets import STAGES, Secret, Secrets, Version, stages
from airflow_provider_ocidist.emulator.wire import Call, Route, answer, page

BASE = "/20190301/secretbundles"
CHOICES = ("versionNumber", "secretVersionName", "stage")


class Bundles:
    """Answers /secretbundles."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets

    def routes(self) -> list[Route]:
        return [
            Route("POST", f"{BASE}/actions/getByName", self.get_by_name),
            Route("GET", f"{BASE}/{{id}}", self.get),
            Route("GET", f"{BASE}/{{id}}/versions", self.list_versions),
        ]

    async def get(self, call: Call) -> Response:
        return self._bundle(call, self._secrets.get(call.params["id"]))

    async def get_by_name(self, call: Call) -> Response:
        vault_id, name = call.required_query("vaultId"), call.required_query("secretName")
        return self._bundle(call, self._secrets.named(vault_id, name))

    def _bundle(self, call: Call, secret: Secret) -> Response:
        if secret.state != "ACTIVE":
            raise not_found()
        version = _chosen(call, secret, self._secrets.versions(secret))
        content = {"contentType": "BASE64", "content": version.content}
        body = {**_version_body(secret, version), "secretBundleContent": content}
        return answer({**body, "metadata": secret.metadata}, etag=secret.etag)

    async def list_versions(self, call: Call) -> Response:
        secret = self._secrets.get(call.params["id"])
        versions = self._secrets.versions(secret)
        chosen, headers = page(call, versions, lambda each: (f"{each.number:09}", ""), default="DESC")
        return answer([_version_body(secret, version) for version in chosen], headers=headers)


def _chosen(call: Call, secret: Secret, versions: list[Version]) -> Version:
    """Return the version that is asked for: by number, name or stage; the current one unless asked. Raises 404."""
    wanted = {name: call.query[name] for name in CHOICES if name in call.query} or {"stage": "CURRENT"}
    if wanted.get("stage", STAGES[0]) not in STAGES:
        raise invalid(f"stage must be one of {', '.join(STAGES)}.")
    for version in reversed(versions):
        offered: dict[str, list[Any]] = {
            "versionNumber": [str(version.number)],
            "secretVersionName": [version.name],
            "stage": stages(secret, version.number),
        }
        if version.time_of_deletion is None and all(wanted[name] in offered[name] for name in wanted):
            return version
    raise not_found()


def _version_body(secret: Secret, version: Version) -> dict[str, Any]:
    return {
        "secretId": secret.id,
        "versionNumber": version.number,
        "versionName": version.name,
        "timeCreated": version.time_created,
        "timeOfDeletion": version.time_of_deletion,
        "stages": stages(secret, version.number),
    }
