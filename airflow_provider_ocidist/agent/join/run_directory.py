"""Run directory: opened by a node that does not report yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from airflow_provider_ocidist.agent.store_retries import cannot_be_used
from airflow_provider_ocidist.errors import AgentError, Cause, OcidistError
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage.stores.base import Store
from airflow_provider_ocidist.storage.stores.opening import open_store


@contextmanager
def run_directory(config: AgentConfig, environ: Mapping[str, str]) -> Iterator[Store]:
    """Open the run directory of a node that does not report yet. Raises AgentError where that cannot be used."""
    try:
        access = OciAccess.from_environment(environ, config.oci_endpoint, config.oci_region)
        yield open_store(config.run_dir, access)
    except OcidistError as error:
        raise cannot_be_used("the run directory", error) from error
    except (OSError, ValueError) as error:
        raise AgentError(f"the run directory cannot be used: {error}", cause=Cause.SERVICE) from error
