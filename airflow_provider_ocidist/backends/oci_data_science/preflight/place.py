"""Checks of the sign-in, the job's place, its logs and its secret."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_ocidist.backends.capabilities import Finding
from airflow_provider_ocidist.backends.oci_data_science.preflight.judgements import (
    compartment_finding,
    log_finding,
    project_finding,
    unseen_compartment_finding,
)
from airflow_provider_ocidist.backends.oci_data_science.preflight.target import PreflightTarget
from airflow_provider_ocidist.errors import BackendError, RunNotFound
from airflow_provider_ocidist.oci_client import credentials
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.oci_client.errors import oci_errors


def sign_in(target: PreflightTarget) -> Iterator[Finding]:
    client = target.client("object_storage")
    with oci_errors("signing in"):
        namespace = client.get_namespace().data
    region = target.access.region or credentials.region_in_profile(target.access)
    place = f", region {region}" if region else ""
    yield Finding.passed("sign-in", f"{_principal(target.access)}, namespace {namespace}{place}")


def _principal(access: OciAccess) -> str:
    """Return who signs, as far as the client knows."""
    if access.auth == "api_key":
        return f"API key of {access.user}"
    if access.auth in ("config_file", "session_token"):
        config, signer = credentials.credentials(access)
        kind = "session token" if "Token" in type(signer).__name__ else "API key"
        return f"{kind} of {config.get('user', 'a user')} (profile {access.profile})"
    return access.auth.replace("_", " ")


def compartment(target: PreflightTarget) -> Iterator[Finding]:
    client = target.client("identity")
    try:
        with oci_errors("reading the compartment"):
            found = client.get_compartment(target.options.compartment_id).data
    except RunNotFound as error:
        if not _may_list_jobs(target):
            raise
        yield unseen_compartment_finding(error)
    else:
        yield compartment_finding(found)


def _may_list_jobs(target: PreflightTarget) -> bool:
    try:
        return bool(list(jobs(target)))
    except BackendError:
        return False


def project(target: PreflightTarget) -> Iterator[Finding]:
    client = target.client("data_science")
    with oci_errors("reading the project"):
        found = client.get_project(target.options.project_id).data
    yield project_finding(found, target.options.compartment_id)


def jobs(target: PreflightTarget) -> Iterator[Finding]:
    client = target.client("data_science")
    with oci_errors("listing jobs"):
        client.list_jobs(target.options.compartment_id, limit=1)
    yield Finding.passed("jobs", "these credentials may list jobs here")


def log_group(target: PreflightTarget) -> Iterator[Finding]:
    if target.options.log_group_id is None:
        yield Finding.warned(
            "log group",
            "there is none: Airflow, `ocidist logs` and the console will show no output of the nodes",
            "set log_group_id in the job or the connection",
        )
        return
    client = target.client("logging")
    with oci_errors("reading the log group"):
        group = client.get_log_group(target.options.log_group_id).data
    yield Finding.passed("log group", group.display_name)


def log(target: PreflightTarget) -> Iterator[Finding]:
    if target.options.log_id is None or target.options.log_group_id is None:
        return
    client = target.client("logging")
    with oci_errors("reading the log"):
        found = client.get_log(target.options.log_group_id, target.options.log_id).data
    yield log_finding(found)


def secret(target: PreflightTarget) -> Iterator[Finding]:
    secret_id = target.job.program.source_secret
    if secret_id is not None:
        client = target.client("secrets")
        with oci_errors("reading the secret's versions"):
            client.list_secret_bundle_versions(secret_id, limit=1)
        yield Finding.passed("secret", "it is there; whether the nodes may read it, only a run can show")


def rights_of_nodes(_: PreflightTarget) -> Iterator[Finding]:
    yield Finding.warned(
        "rights of nodes",
        "nodes sign in as themselves, which cannot be checked from here",
        "make sure that a dynamic group contains resource.type='datasciencejobrun', and may manage objects "
        "in work_dir's bucket, read buckets and use log-content",
    )
