"""What a vault holds: secrets, their versions, and which version is in which stage."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider_ocidist.emulator.context import Context
from airflow_provider_ocidist.emulator.errors import conflict, invalid, missing, not_found
from airflow_provider_ocidist.emulator.store import Table
from airflow_provider_ocidist.emulator.wire import new_etag, now

FIRST_NAME = "ocidist"
MAX_CONTENT_BYTES = 25_600
STAGES = ("CURRENT", "PENDING", "LATEST", "PREVIOUS", "DEPRECATED")


@dataclass(frozen=True, kw_only=True, slots=True)
class Secret:
    """A secret, without its values."""

    id: str
    compartment_id: str
    vault_id: str
    key_id: str
    name: str
    description: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    freeform_tags: Mapping[str, str] = field(default_factory=dict)
    defined_tags: Mapping[str, Any] = field(default_factory=dict)
    state: str = "ACTIVE"
    current: int = 1
    previous: int | None = None
    pending: int | None = None
    latest: int = 1
    time_created: str = field(default_factory=now)
    time_of_deletion: str | None = None
    etag: str = field(default_factory=new_etag)


@dataclass(frozen=True, kw_only=True, slots=True)
class Version:
    """One value of a secret."""

    secret_id: str
    number: int
    content: str = field(repr=False)
    """Content in Base64, as it came."""
    name: str | None = None
    time_created: str = field(default_factory=now)
    time_of_deletion: str | None = None


class Secrets:
    """All secrets. Their values are in the state folder, which is the user's alone, and in answers to readers."""

    def __init__(self, context: Context) -> None:
        self._ids = context.ids
        self.all: Table[Secret] = Table(context.store, "secret", Secret)
        self._versions: Table[Version] = Table(context.store, "secret_version", Version)
        self._seed()

    def _seed(self) -> None:
        ids = self._ids
        if not self.all.values():
            content = base64.b64encode(ids.secret_value.encode()).decode()
            first = Secret(
                id=ids.secret_id,
                compartment_id=ids.compartment_id,
                vault_id=ids.vault_id,
                key_id=ids.key_id,
                name=FIRST_NAME,
            )
            self.add(first, {"contentType": "BASE64", "content": content})

    def reset(self) -> None:
        self.all.clear()
        self._versions.clear()
        self._seed()

    def get(self, secret_id: str) -> Secret:
        """Raises 404."""
        secret = self.all.get(secret_id)
        if secret is None:
            raise not_found()
        return secret

    def named(self, vault_id: str, name: str) -> Secret:
        """Raises 404."""
        for secret in self.all.values():
            if (secret.vault_id, secret.name) == (vault_id, name):
                return secret
        raise not_found()

    def check_name(self, vault_id: str, name: str) -> None:
        if any((each.vault_id, each.name) == (vault_id, name) for each in self.all.values()):
            raise conflict(f"The vault has a secret {name!r} already.")

    def add(self, secret: Secret, content: Any) -> None:
        """Keep a new secret with its first version."""
        version = _version(secret.id, 1, content)
        self.all.put(secret.id, secret)
        self._put_version(version)

    def put(self, secret: Secret) -> Secret:
        changed = replace(secret, etag=new_etag())
        self.all.put(secret.id, changed)
        return changed

    def with_new_version(self, secret: Secret, content: Any) -> Secret:
        """Keep another value; it becomes the current one, unless its stage is PENDING."""
        stage = content.get("stage") or "CURRENT" if isinstance(content, dict) else ""
        version = _version(secret.id, secret.latest + 1, content)
        if version.name and any(each.name == version.name for each in self.versions(secret)):
            raise conflict(f"The secret has a version {version.name!r} already.")
        self._put_version(version)
        secret = replace(secret, latest=version.number)
        if stage == "PENDING":
            return replace(secret, pending=version.number)
        return _promoted(secret, version.number)

    def promoted(self, secret: Secret, number: Any) -> Secret:
        """Make another version the current one. Raises 404."""
        if not isinstance(number, int):
            raise invalid("currentVersionNumber must be a number.")
        version = self.version(secret, number)
        if version.time_of_deletion is not None:
            raise conflict("The version is scheduled for deletion.")
        return secret if number == secret.current else _promoted(secret, number)

    def versions(self, secret: Secret) -> list[Version]:
        """Return a secret's versions, the oldest first."""
        return [self.version(secret, number) for number in range(1, secret.latest + 1)]

    def version(self, secret: Secret, number: int) -> Version:
        """Raises 404."""
        version = self._versions.get(f"{secret.id}/{number}")
        if version is None:
            raise not_found()
        return version

    def change_version(self, version: Version, time_of_deletion: str | None) -> None:
        self._put_version(replace(version, time_of_deletion=time_of_deletion))

    def _put_version(self, version: Version) -> None:
        self._versions.put(f"{version.secret_id}/{version.number}", version)


def _promoted(secret: Secret, number: int) -> Secret:
    pending = None if secret.pending == number else secret.pending
    return replace(secret, current=number, previous=secret.current, pending=pending)


def stages(secret: Secret, number: int) -> list[str]:
    """Return the stages that a version is in, as the service names them."""
    roles = {"CURRENT": secret.current, "PENDING": secret.pending, "PREVIOUS": secret.previous}
    found = [stage for stage, holder in roles.items() if holder == number] or ["DEPRECATED"]
    return [*found, "LATEST"] if number == secret.latest else found


def _version(secret_id: str, number: int, content: Any) -> Version:
    """Read secretContent. Raises 400; its messages never repeat the value."""
    if not isinstance(content, dict) or not isinstance(content.get("content"), str):
        raise missing("secretContent.content")
    if content.get("contentType") != "BASE64":
        raise invalid("secretContent.contentType must be BASE64.")
    if (content.get("stage") or "CURRENT") not in ("CURRENT", "PENDING"):
        raise invalid("secretContent.stage must be CURRENT or PENDING.")
    try:
        raw = base64.b64decode(content["content"], validate=True)
    except ValueError:
        raise invalid("secretContent.content is not Base64.") from None
    if not 0 < len(raw) <= MAX_CONTENT_BYTES:
        raise invalid(f"A secret has 1 to {MAX_CONTENT_BYTES} bytes.")
    return Version(secret_id=secret_id, number=number, content=content["content"], name=content.get("name"))
