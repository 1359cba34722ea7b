"""Access: all that a client needs to know of a running emulator, and how to configure each kind of client."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_ocidist.emulator.context import Context
from airflow_provider_ocidist.emulator.installation import PROFILE

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """What `--ready` writes."""

    url: str
    proxy_url: str
    """Address of the proxy that, with `ca_file`, stands in for the hosts of OCI: see `proxy_environment`."""
    ca_file: str
    config_file: str
    profile: str
    region: str
    tenancy_id: str
    namespace: str
    bucket: str
    compartment_id: str
    project_id: str
    subnet_id: str
    log_group_id: str
    log_id: str
    secret_id: str
    secret_value: str
    kubeconfig: str = ""
    """Kubeconfig of the cluster's administrator; empty if no cluster was started."""
    kubernetes_namespace: str = ""
    runai: Mapping[str, str] | None = None
    """Control plane of Run:ai: `url`, `client_id`, `client_secret`, `project`; None if none was started."""

    @classmethod
    def of(cls, context: Context) -> Self:
        ids = context.ids
        return cls(
            url=context.url,
            proxy_url=context.proxy_url,
            ca_file=str(context.ca_file),
            config_file=str(context.installation.config_file),
            profile=PROFILE,
            region=ids.region,
            tenancy_id=ids.tenancy_id,
            namespace=ids.namespace,
            bucket=ids.bucket,
            compartment_id=ids.compartment_id,
            project_id=ids.project_id,
            subnet_id=ids.subnet_id,
            log_group_id=ids.log_group_id,
            log_id=ids.log_id,
            secret_id=ids.secret_id,
            secret_value=ids.secret_value,
        )

    def proxy_environment(self) -> dict[str, str]:
        """Return the variables that redirect any client to the emulator."""
        return {"HTTPS_PROXY": self.proxy_url, "REQUESTS_CA_BUNDLE": self.ca_file}


@dataclass(frozen=True, slots=True)
class ClientSetup:
    """How one kind of client is pointed at the emulator."""

    name: str
    text: str
    """Lines to paste: shell, or Python where the client is a library."""
    note: str = ""


def clients(access: Access) -> list[ClientSetup]:
    config, url = access.config_file, access.url
    proxy = {"OCI_CONFIG_FILE": config, **access.proxy_environment()}
    fsspec = json.dumps({"config": config, "config_kwargs": {"service_endpoint": url}})
    return [
        ClientSetup(
            "anything",
            "\n".join(f"export {name}={value}" for name, value in proxy.items()),
            "for clients that cannot be changed, such as ADS: a proxy takes the place of OCI's hosts",
        ),
        ClientSetup(
            "OCI SDK",
            f'config = oci.config.from_file("{config}")\n'
            f'oci.data_science.DataScienceClient(config, service_endpoint="{url}")',
            "every client takes service_endpoint",
        ),
        ClientSetup(
            "ocifs",
            f"export FSSPEC_OCI='{fsspec}'",
            f"oci://{access.bucket}@{access.namespace}/... then works in fsspec and pandas",
        ),
        ClientSetup("OCI CLI", f"export OCI_CLI_CONFIG_FILE={config} OCI_CLI_ENDPOINT={url}"),
        ClientSetup("Airflow", f"export AIRFLOW_CONN_OCI_DEFAULT='{connection(access)}'"),
        *_of_kubernetes(access),
        *_of_runai(access),
        ClientSetup("curl", f"curl {url}/_emulator/calls", "the control API needs no signature"),
    ]


def _of_kubernetes(access: Access) -> list[ClientSetup]:
    """Return how clients of Kubernetes are pointed here, where a cluster was started."""
    return [ClientSetup("kubectl", f"export KUBECONFIG={access.kubeconfig}")] if access.kubeconfig else []


def _of_runai(access: Access) -> list[ClientSetup]:
    """Return the Airflow connection to the control plane of Run:ai, where one was started."""
    if access.runai is None:
        return []
    runai = access.runai
    value = {
        "conn_type": "runai",
        "host": runai["url"],
        "login": runai["client_id"],
        "password": runai["client_secret"],
        "extra": {"project": runai["project"]},
    }
    return [ClientSetup("Run:ai", f"export AIRFLOW_CONN_RUNAI_DEFAULT='{json.dumps(value)}'")]


def connection(access: Access) -> str:
    """Return the Airflow connection, in the JSON form that AIRFLOW_CONN_ variables take."""
    extra = {
        "auth": "config_file",
        "config_file": access.config_file,
        "profile": access.profile,
        "region": access.region,
        "endpoint": access.url,
        "compartment_id": access.compartment_id,
        "project_id": access.project_id,
        "subnet_id": access.subnet_id,
        "log_group_id": access.log_group_id,
        "log_id": access.log_id,
        "shape": "VM.Standard.E4.Flex",
        "work_dir": f"oci://{access.bucket}@{access.namespace}/ocidist",
    }
    return json.dumps({"conn_type": "oci", "extra": extra})
