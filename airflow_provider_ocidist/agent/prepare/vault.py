"""Vault: reads a secret with this node's own rights; its value goes only to the caller."""

from __future__ import annotations

import base64

from airflow_provider_ocidist.errors import AgentError, BackendError, Cause, StoreRefused, StoreUnavailable
from airflow_provider_ocidist.oci_client.clients import client
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.oci_client.errors import oci_errors


def read_secret(secret_id: str, access: OciAccess) -> str:
    """Return the text of a secret's current version.

    Raises AgentError; StoreUnavailable or StoreRefused where a retry may succeed.
    """
    try:
        with oci_errors(f"reading the secret {secret_id}"):
            bundle = client(access, "secrets").get_secret_bundle(secret_id).data
        return base64.b64decode(bundle.secret_bundle_content.content).decode()
    except BackendError as error:
        message = f"{error} (the nodes' dynamic group must be allowed to read secret-bundles)"
        if error.retryable:
            raise StoreUnavailable(message) from error
        if error.is_refused:
            raise StoreRefused(message, Cause.CONFIG) from error
        raise AgentError(message, cause=Cause.CONFIG) from error
    except ValueError as error:
        # The decoding error's text contains a part of the secret.
        raise AgentError(f"the secret {secret_id} is not text", cause=Cause.CONFIG) from error
