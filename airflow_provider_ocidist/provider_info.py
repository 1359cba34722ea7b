"""What Airflow reads about this provider: hooks, connection type and form, links."""

from __future__ import annotations

from typing import Any

from airflow_provider_ocidist import __version__

PACKAGE = "airflow_provider_ocidist"
DEFAULT_CONN_ID = "oci_default"
"""Connection id of operators, triggers and commands that name no other."""


def get_provider_info() -> dict[str, Any]:
    """Return the provider's description; see airflow/provider_info.schema.json."""
    return {
        "package-name": "airflow-provider-ocidist",
        "name": "OCI distributed training",
        "description": "Multi-node PyTorch training on OCI Data Science, or on a laptop with the emulator.",
        "versions": [__version__],
        "integrations": [
            {
                "integration-name": "OCI Data Science Jobs",
                "external-doc-url": "https://docs.oracle.com/iaas/Content/data-science/using/jobs-about.htm",
                "tags": ["service"],
            },
            {
                "integration-name": "NVIDIA Run:ai",
                "external-doc-url": "https://docs.nvidia.com/run-ai",
                "tags": ["service"],
            },
        ],
        "hooks": [
            {"integration-name": "OCI Data Science Jobs", "python-modules": [f"{PACKAGE}.hooks.oci"]},
            {"integration-name": "NVIDIA Run:ai", "python-modules": [f"{PACKAGE}.hooks.runai"]},
        ],
        "operators": [
            {
                "integration-name": "OCI Data Science Jobs",
                "python-modules": [
                    f"{PACKAGE}.operators.training",
                    f"{PACKAGE}.operators.cleanup",
                    f"{PACKAGE}.transfers",
                ],
            }
        ],
        "sensors": [{"integration-name": "OCI Data Science Jobs", "python-modules": [f"{PACKAGE}.sensors"]}],
        "triggers": [
            {
                "integration-name": "OCI Data Science Jobs",
                "python-modules": [f"{PACKAGE}.triggers.training", f"{PACKAGE}.triggers.storage"],
            }
        ],
        "task-decorators": [
            {
                "name": "distributed_training",
                # The schema asks for the one, Airflow reads the other.
                "path": f"{PACKAGE}.decorators.distributed_training_task",
                "class-name": f"{PACKAGE}.decorators.distributed_training_task",
            }
        ],
        "filesystems": [f"{PACKAGE}.integrations.filesystem"],
        "remote-logging": [{"classpath": f"{PACKAGE}.integrations.task_logs.OciTaskLogs", "scheme": "oci"}],
        "asset-uris": [
            {
                "schemes": ["oci"],
                "handler": f"{PACKAGE}.integrations.lineage.normalized_uri",
                "to_openlineage_converter": f"{PACKAGE}.integrations.lineage.dataset_of_asset",
            }
        ],
        "extra-links": [
            f"{PACKAGE}.hooks.links.JobRunLink",
            f"{PACKAGE}.hooks.links.LogsLink",
            f"{PACKAGE}.hooks.links.CheckpointLink",
        ],
        "connection-types": [_oci_connection(), _runai_connection()],
    }


def _oci_connection() -> dict[str, Any]:
    return {
        "connection-type": "oci",
        "hook-class-name": f"{PACKAGE}.hooks.oci.OciHook",
        "hook-name": "Oracle Cloud Infrastructure",
        "ui-field-behaviour": {
            "hidden-fields": ["host", "schema", "login", "password", "port", "extra"],
            "relabeling": {},
            "placeholders": {},
        },
        "conn-fields": CONNECTION_FIELDS,
    }


def _runai_connection() -> dict[str, Any]:
    return {
        "connection-type": "runai",
        "hook-class-name": f"{PACKAGE}.hooks.runai.RunaiHook",
        "hook-name": "NVIDIA Run:ai",
        "ui-field-behaviour": {
            "hidden-fields": ["schema", "port", "extra"],
            "relabeling": {"host": "Control plane", "login": "Client id", "password": "Client secret"},
            "placeholders": {"host": "acme.run.ai, or https://..."},
        },
        "conn-fields": RUNAI_FIELDS,
    }


def _field(title: str, description: str, **schema: Any) -> dict[str, Any]:
    return {"label": title, "description": description, "schema": {"type": ["string", "null"], **schema}}


CONNECTION_FIELDS = {
    "auth": _field(
        "Credentials",
        "Source of the credentials",
        enum=["config_file", "api_key", "session_token", "instance_principal", "resource_principal"],
        default="config_file",
    ),
    "config_file": _field("Config file", "Path on the workers; empty: ~/.oci/config"),
    "profile": _field("Profile", "Section of the config file; empty: DEFAULT"),
    "region": _field("Region", "Name such as us-ashburn-1; empty: the config file's"),
    "tenancy": _field("Tenancy OCID", "For api_key"),
    "user": _field("User OCID", "For api_key"),
    "fingerprint": _field("Key fingerprint", "For api_key"),
    "private_key_content": _field("Private key (PEM)", "For api_key", format="password"),
    "key_file": _field("Key file", "Path of the private key on the workers; instead of its text"),
    "passphrase": _field("Pass phrase of the key", "For api_key", format="password"),
    "security_token_file": _field(
        "Token file",
        "Path of the token on the workers, for session_token; with the key file, instead of a config file",
    ),
    "endpoint": _field(
        "Endpoint", "Address in place of every service endpoint, as http://127.0.0.1:8080 of the emulator"
    ),
    "compartment_id": _field("Compartment OCID", "Default of jobs that name none"),
    "project_id": _field("Project OCID", "Default of jobs that name none"),
    "subnet_id": _field("Subnet OCID", "Default of jobs that name none; must allow traffic within itself"),
    "log_group_id": _field("Log group OCID", "Default of jobs that name none"),
    "log_id": _field("Log OCID", "Empty: the service makes one for each job run"),
    "shape": _field("Shape", "Default of jobs that name none, as VM.GPU.A10.1"),
    "work_dir": _field(
        "Work directory", "URI where nodes meet and checkpoints go, as oci://bucket@namespace/ocidist"
    ),
    "conda_region": _field(
        "Conda region", "Region of published conda environments; by default that of the connection"
    ),
    "require_training": _field(
        "Require training",
        "Default of jobs that do not set it; true: a run that shows no step, loss, checkpoint or output fails",
        enum=["true", "false"],
        default="false",
    ),
    "prices": _field(
        "Prices",
        'Prices of a node for an hour, by shape, as JSON: {"VM.GPU.A10.1": 2.0}; jobs may name their own',
    ),
}

RUNAI_FIELDS = {
    "project": _field("Project", "Name or id; default of jobs that name none"),
    "cluster_id": _field("Cluster", "UUID; empty: that of the project"),
    "work_dir": _field("Work directory", "URI where nodes meet and checkpoints go, as s3://bucket/ocidist"),
    "verify": _field(
        "Certificate", "false, or path of a bundle of authorities on the workers; empty: verified"
    ),
    "kube_config_path": _field(
        "Kube config", "Path on the workers, to read the logs of pods; empty: last lines only"
    ),
    "cluster_context": _field("Context", "Context of the kube config; empty: its current one"),
    "require_training": CONNECTION_FIELDS["require_training"],
    "prices": _field(
        "Prices",
        "Prices of a node for an hour, by node type or first node pool, as JSON; jobs may name their own",
    ),
}
