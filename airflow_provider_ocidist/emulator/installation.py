"""Installation: the identifiers, keys and OCI config file of one emulator, kept in its state folder."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import secrets
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from airflow_provider_ocidist.emulator import private_files
from airflow_provider_ocidist.emulator.instances import (
    Instance,
    InstanceAuthority,
    certificate_pem,
    make_authority,
)

REGION = "us-ashburn-1"
API_KEY_LABEL = "OCI_API_KEY\n"
"""Last line of a private key from the console; without it the command line warns at every call."""
REGION_KEY = "iad"
PROFILE = "DEFAULT"
ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
GLOBAL_RESOURCES = frozenset({"tenancy", "user", "compartment"})


def new_ocid(resource: str) -> str:
    """Return a fresh OCID, shaped as the real ones: regional, but for identity resources."""
    region = "" if resource in GLOBAL_RESOURCES else REGION_KEY
    unique = "".join(ALPHABET[byte % len(ALPHABET)] for byte in secrets.token_bytes(52))
    return f"ocid1.{resource}.oc1.{region}.aaaaaaaa{unique}"


def derived_ocid(resource: str, *names: str) -> str:
    """Return an OCID that is the same for the same names."""
    digest = hashlib.sha512("\0".join((resource, *names)).encode()).digest()
    unique = "".join(ALPHABET[byte % len(ALPHABET)] for byte in digest[:52])
    return f"ocid1.{resource}.oc1.{REGION_KEY}.aaaaaaaa{unique}"


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
    notebook_session_id: str = _ocid("datasciencenotebooksession")
    vcn_id: str = _ocid("vcn")
    subnet_id: str = _ocid("subnet")
    log_group_id: str = _ocid("loggroup")
    log_id: str = _ocid("log")
    instance_id: str = _ocid("instance")
    vault_id: str = _ocid("vault")
    key_id: str = _ocid("key")
    """Id of the master key in the vault that encrypts its secrets."""
    secret_id: str = _ocid("vaultsecret")
    secret_value: str = field(default_factory=lambda: secrets.token_urlsafe(16), repr=False)

    def public(self) -> dict[str, str]:
        """Return the public part."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "secret_value"}


@dataclass(frozen=True, kw_only=True)
class Installation:
    """One emulator's identity; made once for each state folder."""

    folder: Path
    ids: Identifiers
    api_key: rsa.RSAPrivateKey = field(repr=False)
    issuer: rsa.RSAPrivateKey = field(repr=False)
    """Key that signs the tokens of nodes and sessions."""
    session: rsa.RSAPrivateKey = field(repr=False)
    """Key of all nodes: making one for each of 64 nodes would take seconds, and tokens differ anyway."""

    @classmethod
    def open(cls, folder: Path) -> Installation:
        """Read what is in the folder, or make it."""
        installation = cls(
            folder=folder,
            ids=_identifiers(folder / "installation.json"),
            api_key=_key(folder / "api_key.pem", label=API_KEY_LABEL),
            issuer=_key(folder / "issuer.pem"),
            session=_key(folder / "session.pem"),
        )
        private_files.write(installation.config_file, installation.config_text().encode())
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
        return fingerprint_of(self.api_key.public_key())

    @property
    def instance(self) -> Instance:
        ids = self.ids
        return Instance(id=ids.instance_id, tenancy_id=ids.tenancy_id, compartment_id=ids.compartment_id)

    # Few programs here are instance principals: their keys are made when the first one asks.

    @cached_property
    def instance_key(self) -> rsa.RSAPrivateKey:
        return _key(self.folder / "instance.pem")

    @cached_property
    def instances(self) -> InstanceAuthority:
        key = _key(self.folder / "instance_authority.pem")
        return InstanceAuthority(
            certificate=_certificate(self.folder / "instance_authority.crt", key), key=key
        )

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


def fingerprint_of(key: rsa.RSAPublicKey) -> str:
    """Return the last part of a keyId: MD5 of the public key in DER."""
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.md5(der, usedforsecurity=False).digest().hex(":")


def _identifiers(path: Path) -> Identifiers:
    known = json.loads(path.read_text()) if path.exists() else {}
    ids = Identifiers(**known)
    if dataclasses.asdict(ids) != known:
        # A folder of an earlier version lacks the newer ones.
        private_files.write(path, json.dumps(dataclasses.asdict(ids), indent=2).encode())
    return ids


def _certificate(path: Path, key: rsa.RSAPrivateKey) -> x509.Certificate:
    if not path.exists():
        private_files.write(path, certificate_pem(make_authority(key)).encode())
    return x509.load_pem_x509_certificate(path.read_bytes())


def _key(path: Path, *, label: str = "") -> rsa.RSAPrivateKey:
    if path.exists():
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
        assert isinstance(key, rsa.RSAPrivateKey)
        return key
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private_files.write(path, (pem(key) + label).encode())
    return key


def pem(key: rsa.RSAPrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    ).decode()
