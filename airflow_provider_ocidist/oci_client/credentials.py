"""Credentials: who we are and where the service is, and what signs for us. Imports `oci` late."""

from __future__ import annotations

import configparser
import functools
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.errors import BackendError, Cause
from airflow_provider_ocidist.oci_client.errors import first_line, is_foreign

if TYPE_CHECKING:
    import oci

AuthKind = Literal["config_file", "api_key", "session_token", "instance_principal", "resource_principal"]


@dataclass(frozen=True, kw_only=True)
class OciAccess:
    """Credentials for OCI, and the region or endpoint that they are for. Secrets stay out of `repr`."""

    auth: AuthKind = "config_file"
    config_file: str | None = None
    profile: str = "DEFAULT"
    tenancy: str | None = None
    user: str | None = None
    fingerprint: str | None = None
    key_content: str | None = field(default=None, repr=False)
    key_file: str | None = None
    """Path of the private key, if `key_content` does not hold it."""
    pass_phrase: str | None = field(default=None, repr=False)
    security_token_file: str | None = None
    """Path of a session's token; with `key_file`, instead of a config file that names both."""
    region: str | None = None
    endpoint: str | None = None
    """Service endpoint for every client, as `http://127.0.0.1:8080`; None: the region's own."""
    max_attempts: int = 8
    """Number of attempts of each request, with exponential back-off and jitter: from 0.2 s to 8 s, 20 s in all."""
    read_timeout: float = 60.0
    """Seconds that a request waits for its answer, and for each piece of it."""
    pool_size: int = 32
    """Number of connections kept open; also of the transfers that one client serves at a time."""
    urgent: bool = False
    """Whether requests give up within seconds, also where the service throttles: for cancels."""

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str], endpoint: str | None = None, region: str | None = None
    ) -> OciAccess:
        """Return what a node has: its resource principal, or else the usual OCI config file.

        `region`: None for that of the node.
        """
        auth: AuthKind = (
            "resource_principal" if "OCI_RESOURCE_PRINCIPAL_VERSION" in environ else "config_file"
        )
        return cls(
            auth=auth,
            config_file=environ.get("OCI_CLI_CONFIG_FILE") or environ.get("OCI_CONFIG_FILE"),
            profile=environ.get("OCI_CLI_PROFILE", "DEFAULT"),
            region=region,
            endpoint=endpoint,
        )


DEFAULT_CONFIG_FILE = "~/.oci/config"
"""Path of the config file, as for the SDK and the `oci` command line."""

SECRETS = {"private_key_content": "key_content", "passphrase": "pass_phrase"}
"""SDK's name of each secret; Airflow masks secrets by the names of their fields, and does not know the SDK's."""

NUMBERS = ("max_attempts", "read_timeout", "pool_size")
"""Fields that are text where a connection is written as a URI."""


def oci_fields(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a connection's extra, under the names that backends and storage use.

    Raises BackendError for a number that is none.
    """
    given = {SECRETS.get(name, name): value for name, value in extra.items() if value not in (None, "")}
    return {name: _number(name, value) if name in NUMBERS else value for name, value in given.items()}


def _number(name: str, value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise BackendError(
            f"the connection's {name} is {value!r}; it must be a whole number", cause=Cause.CONFIG
        ) from None


def credential_secrets(fields: Mapping[str, Any]) -> list[str]:
    """Return every text among a connection's fields that no log may show; of a key each line, too."""
    whole = [str(fields[name]) for name in SECRETS.values() if name in fields]
    return [*whole, *(line for text in whole for line in text.split("\n") if _names_a_key(line))]


def _names_a_key(line: str) -> bool:
    return len(line) >= LINE_OF_A_KEY and not line.startswith("-----")


LINE_OF_A_KEY = 20
"""Fewest characters of a line of a PEM file that counts as a secret."""


def access_of(fields: Mapping[str, Any]) -> OciAccess:
    """Return the credentials and place among the fields of a connection."""
    known = OciAccess.__dataclass_fields__
    given = {name: value for name, value in fields.items() if name in known and value not in (None, "")}
    return OciAccess(**given)


def region_in_profile(access: OciAccess) -> str | None:
    """Return the region that the profile of a configuration file names, without the SDK; None where none does."""
    if access.auth not in ("config_file", "session_token"):
        return None
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read(Path(access.config_file or DEFAULT_CONFIG_FILE).expanduser())
        return parser.get(access.profile, "region", fallback=None)
    except (configparser.Error, OSError, ValueError):
        # Reported when the credentials are needed.
        return None


def credentials(access: OciAccess) -> tuple[dict[str, Any], Any]:
    """Return the SDK's configuration and signer. Raises BackendError that names what is missing."""
    if access.endpoint and not re.match(r"https?://[^/\s]+", access.endpoint):
        raise BackendError(
            f"endpoint is {access.endpoint!r}; it must be a URL as http://127.0.0.1:8080", cause=Cause.CONFIG
        )
    if access.auth not in SIGNERS:
        known = ", ".join(SIGNERS)
        raise BackendError(f"auth is {access.auth!r}; it must be one of {known}", cause=Cause.CONFIG)
    try:
        config, signer = SIGNERS[access.auth](access)
    except BackendError:
        raise
    except Exception as error:
        if is_foreign(error) or isinstance(error, (OSError, ValueError, KeyError, configparser.Error)):
            raise BackendError(
                f"no usable OCI credentials: {_credential_fault(access, error)}", cause=Cause.CONFIG
            ) from error
        raise
    region = access.region or config.get("region") or getattr(signer, "region", None)
    if access.endpoint:
        # The SDK requires a region even where the endpoint suffices.
        region = region or "us-ashburn-1"
    return {**config, "region": region}, signer


def _from_config_file(access: OciAccess) -> tuple[dict[str, Any], Any]:
    import oci

    config = dict(oci.config.from_file(access.config_file or oci.config.DEFAULT_LOCATION, access.profile))
    if config.get("security_token_file"):
        return _from_session_token(access)
    if access.region:
        config["region"] = access.region
    if access.pass_phrase:
        config["pass_phrase"] = access.pass_phrase
    return config, _api_key_signer(_with_region(config, access))


def _from_api_key(access: OciAccess) -> tuple[dict[str, Any], Any]:
    given = {
        "tenancy": access.tenancy,
        "user": access.user,
        "fingerprint": access.fingerprint,
        "key_content": access.key_content,
        "key_file": access.key_file,
        "pass_phrase": access.pass_phrase,
        "region": access.region,
    }
    config = {key: value for key, value in given.items() if value}
    return config, _api_key_signer(_with_region(config, access))


def _with_region(config: dict[str, Any], access: OciAccess) -> dict[str, Any]:
    return {"region": "us-ashburn-1", **config} if access.endpoint else config


def _api_key_signer(config: dict[str, Any]) -> oci.signer.Signer:
    import oci

    oci.config.validate_config(config)
    # As the SDK chooses between the two.
    key = config.get("key_content") or Path(os.path.expanduser(config["key_file"])).read_bytes().strip()  # noqa: PTH111 (Path fails at an unknown user)
    if not key:
        raise ValueError(f"{config['key_file']} is empty, and should hold the private key")
    return _signer(config["tenancy"], config["user"], config["fingerprint"], key, config.get("pass_phrase"))


@functools.lru_cache(maxsize=16)
def _signer(
    tenancy: str, user: str, fingerprint: str, key: str | bytes, pass_phrase: str | None
) -> oci.signer.Signer:
    """Return the signer of an API key: one for all clients, as reading a key takes longer than a request."""
    import oci

    return oci.signer.Signer(tenancy, user, fingerprint, None, pass_phrase, private_key_content=key)


def _from_session_token(access: OciAccess) -> tuple[dict[str, Any], Any]:
    import oci

    config = _session(access)
    if not config.get("security_token_file"):
        raise ValueError(f"profile {access.profile} names no security_token_file")
    token = Path(config["security_token_file"]).expanduser().read_text().strip()
    pass_phrase = access.pass_phrase or config.get("pass_phrase")
    if access.key_content:
        key = oci.signer.load_private_key(access.key_content, pass_phrase)
    else:
        key = oci.signer.load_private_key_from_file(config["key_file"], pass_phrase)
    return config, oci.auth.signers.SecurityTokenSigner(token, key)


def _session(access: OciAccess) -> dict[str, Any]:
    """Return what names the token and its key: the connection, or else a profile of the config file."""
    import oci

    if access.security_token_file:
        given = {"security_token_file": access.security_token_file, "key_file": access.key_file}
        return {name: value for name, value in given.items() if value}
    return dict(oci.config.from_file(access.config_file or oci.config.DEFAULT_LOCATION, access.profile))


def _from_instance_principal(access: OciAccess) -> tuple[dict[str, Any], Any]:
    import oci

    options: dict[str, Any] = {
        # The SDK's own would delay a machine without a metadata service for minutes.
        "retry_strategy": oci.retry.RetryStrategyBuilder(max_attempts=2).get_retry_strategy(),
        "federation_client_circuit_breaker_strategy": oci.circuit_breaker.NoCircuitBreakerStrategy(),
    }
    if access.endpoint and "OCI_METADATA_BASE_URL" in os.environ:
        # Both are overridden only for an emulated OCI, which then emulates the token service, too.
        options["federation_endpoint"] = f"{access.endpoint.rstrip('/')}/v1/x509"
    return {}, oci.auth.signers.InstancePrincipalsSecurityTokenSigner(**options)


def _from_resource_principal(_: OciAccess) -> tuple[dict[str, Any], Any]:
    import oci

    return {}, oci.auth.signers.get_resource_principals_signer()


SIGNERS: Mapping[AuthKind, Callable[[OciAccess], tuple[dict[str, Any], Any]]] = {
    "config_file": _from_config_file,
    "api_key": _from_api_key,
    "session_token": _from_session_token,
    "instance_principal": _from_instance_principal,
    "resource_principal": _from_resource_principal,
}


def _credential_fault(access: OciAccess, error: Exception) -> str:
    """Return what is wrong with the credentials, and the remedy."""
    found = first_line(error)
    place = f"{access.config_file or '~/.oci/config'}, profile {access.profile}"
    if access.auth in ("config_file", "session_token"):
        make = "oci session authenticate" if access.auth == "session_token" else "oci setup config"
        return f"{place}: {found} (make one with `{make}`, or name another file or profile)"
    if access.auth == "api_key":
        return f"the API key as given: {found} (needs tenancy, user, fingerprint, region, key in PEM form)"
    kind = access.auth.replace("_", " ")
    return f"this machine has no {kind}: {found} (only OCI's own machines have one; elsewhere use an API key)"
