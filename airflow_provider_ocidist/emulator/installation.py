"""Installation: the identifiers, keys and OCI config file of one emulator, kept in its state folder."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from airflow_provider_ocidist.emulator.auth.signatures import Credential, Verifier
from airflow_provider_ocidist.emulator.wire import Principal

REGION = "us-ashburn-1"
REGION_KEY = "iad"
PROFILE = "DEFAULT"
ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
GLOBAL_RESOURCES = frozenset({"tenancy", "user", "compartment"})


def new_ocid(resource: str) -> str:
    """Return a fresh OCID, shaped as the real ones: regional, but for identity resources."""
    region = "" if resource in GLOBAL_RESOURCES else REGION_KEY
    unique = "".join(secrets.choice(ALPHABET) for _ in range(52))
    return f"ocid1.{resource}.oc1.{region}.aaaaaaaa{unique}"


def _ocid(resource: str) -> str:
    return field(default_factory=lambda: new_ocid(resource))


@dataclass(frozen=True, kw_only=True, slots=True)
class Identifiers:
    """What exists from the start, under names that a restart keeps."""

    region: str = REGION
    namespace: str = field(default_factory=lambda: "id" + secrets.token_hex(5))
    bucket: str = "ocidist"
    tenancy_id: str = _ocid("tenancy")
    user_id: str = _ocid("user")
    compartment_id: str = _ocid("compartment")
    project_id: str = _ocid("datascienceproject")
    vcn_id: str = _ocid("vcn")
    subnet_id: str = _ocid("subnet")
    log_group_id: str = _ocid("loggroup")
    log_id: str = _ocid("log")
    secret_id: str = _ocid("vaultsecret")
    secret_value: str = field(default_factory=lambda: secrets.token_urlsafe(16), repr=False)


@dataclass(frozen=True, kw_only=True)
class Installation:
    """One emulator's identity; made once for each state folder."""

    folder: Path
    ids: Identifiers
    api_key: rsa.RSAPrivateKey = field(repr=False)
    issuer: rsa.RSAPrivateKey = field(repr=False)
    """Signs the tokens of nodes and sessions."""
    session: rsa.RSAPrivateKey = field(repr=False)
    """The key of all nodes: making one for each of 64 nodes would take seconds, and tokens differ anyway."""

    @classmethod
    def open(cls, folder: Path) -> Installation:
        """Read what is in the folder, or make it."""
        installation = cls(
            folder=folder,
            ids=_identifiers(folder / "installation.json"),
            api_key=_key(folder / "api_key.pem"),
            issuer=_key(folder / "issuer.pem"),
            session=_key(folder / "session.pem"),
        )
        _write(installation.config_file, installation.config_text())
        return installation

    @property
    def config_file(self) -> Path:
        return self.folder / "config"

    @property
    def key_file(self) -> Path:
        return self.folder / "api_key.pem"

    @property
    def session_key_file(self) -> Path:
        return self.folder / "session.pem"

    @property
    def fingerprint(self) -> str:
        der = self.api_key.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        digest = hashlib.md5(der, usedforsecurity=False).hexdigest()
        return ":".join(digest[i : i + 2] for i in range(0, 32, 2))

    def config_text(self) -> str:
        lines = [
            f"[{PROFILE}]",
            f"user={self.ids.user_id}",
            f"fingerprint={self.fingerprint}",
            f"tenancy={self.ids.tenancy_id}",
            f"region={self.ids.region}",
            f"key_file={self.key_file}",
        ]
        return "\n".join(lines) + "\n"

    def verifier(self) -> Verifier:
        """Return the check of everything that may sign here."""
        ids = self.ids
        principal = Principal(id=ids.user_id, tenancy_id=ids.tenancy_id)
        key_id = f"{ids.tenancy_id}/{ids.user_id}/{self.fingerprint}"
        credential = Credential(key=self.api_key.public_key(), principal=principal)
        return Verifier(self.issuer.public_key(), {key_id: credential})


def _identifiers(path: Path) -> Identifiers:
    if path.exists():
        return Identifiers(**json.loads(path.read_text()))
    ids = Identifiers()
    _write(path, json.dumps(dataclasses.asdict(ids), indent=2))
    return ids


def _key(path: Path) -> rsa.RSAPrivateKey:
    if path.exists():
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
        assert isinstance(key, rsa.RSAPrivateKey)
        return key
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    _write(path, pem(key))
    return key


def pem(key: rsa.RSAPrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    ).decode()


def _write(path: Path, text: str) -> None:
    """Write a file that nobody else may read, whole or not at all."""
    fresh = path.with_name(path.name + ".new")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    fresh.replace(path)
