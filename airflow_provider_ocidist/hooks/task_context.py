"""What a training task reads from Airflow's context, and publishes through it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_ocidist.errors import StorageError

# DAG files load this module with the triggers: what only a running task needs is imported where it is used.
if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_ocidist.backends.base import Backend
    from airflow_provider_ocidist.gangs.task_log import TaskLog
    from airflow_provider_ocidist.hooks.oci import OciHook
    from airflow_provider_ocidist.model.job import TrainingJob
    from airflow_provider_ocidist.model.run import RunKey, RunRef

log = logging.getLogger(__name__)

DATA_VERSIONS = "data_versions"
"""Key of the XCom with the version of each input, by its URI."""
BEGAN = "try_began"
"""Key of the XCom with the time at which the try began, by the service's clock, in seconds."""


def key_of(context: Context) -> RunKey:
    """Return the key that finds all gangs of this task; each clear begins another generation."""
    from airflow_provider_ocidist.model.run import RunKey

    ti = context["ti"]
    return RunKey(
        dag_id=ti.dag_id,
        run_id=ti.run_id,
        task_id=ti.task_id,
        map_index=ti.map_index if ti.map_index is not None else -1,
        generation=ti.max_tries,
    )


def trigger_owner(context: Context) -> dict[str, Any]:
    """Return the task's identity for its trigger."""
    key = key_of(context)
    return {
        "dag_id": key.dag_id,
        "run_id": key.run_id,
        "task_id": key.task_id,
        "map_index": key.map_index,
        "try_number": context["ti"].try_number,
    }


def created(context: Context) -> RunRef | None:
    """Return the gang that this task has published; None before it has created or adopted one."""
    from airflow_provider_ocidist.model.run import RunRef

    ti = context["ti"]
    run = ti.xcom_pull(task_ids=ti.task_id, key="run", map_indexes=ti.map_index)
    return RunRef.from_json(run) if run else None


def note_beginning(context: Context, at: float) -> None:
    """Publish when the try began, by the service's clock, for a worker that goes on without the trigger's record."""
    context["ti"].xcom_push(key=BEGAN, value=at)


def began(context: Context) -> float | None:
    """Return when the try began, by the service's clock; None before it has created or adopted a gang."""
    ti = context["ti"]
    found: float | None = ti.xcom_pull(task_ids=ti.task_id, key=BEGAN, map_indexes=ti.map_index)
    return found


def note_data_versions(job: TrainingJob, hook: OciHook, context: Context, log: TaskLog) -> None:
    """Publish the versions of the inputs, for the outlets' events; the data may change before the end."""
    from airflow_provider_ocidist.storage.fingerprint import data_version
    from airflow_provider_ocidist.storage.locations import shown

    if not job.inputs:
        return
    access = hook.access
    versions: dict[str, str | None] = {}
    for source in dict.fromkeys(item.source for item in job.inputs):
        try:
            versions[shown(source)] = data_version(source, access)
        except StorageError as error:
            log.warning(
                "the version of %s, for the events of the outlets, cannot be read: %s", shown(source), error
            )
    context["ti"].xcom_push(key=DATA_VERSIONS, value=versions)


def publish_to_outlets(
    outlets: Iterable[Any], result: Mapping[str, Any], job_name: str | None, context: Context
) -> None:
    """Add the checkpoint to the events of a task's outlets, for the DAGs that they schedule."""
    from airflow.sdk import Asset, AssetAlias
    from airflow.sdk.definitions.asset import AssetRef

    if not outlets:
        return
    checkpoint = result.get("checkpoint") or {}
    ti = context["ti"]
    extra = {
        "job": job_name,
        "data": ti.xcom_pull(task_ids=ti.task_id, key=DATA_VERSIONS, map_indexes=ti.map_index) or {},
        "checkpoint_uri": result["checkpoint_uri"],
        "step": checkpoint.get("step"),
        "loss": checkpoint.get("loss"),
        "outputs": result.get("outputs", []),
        "job_id": result["job_id"],
    }
    for outlet in outlets:
        # A reference, `Asset.ref(name=...)`, stands for an asset that another DAG defines.
        if isinstance(outlet, (Asset, AssetRef)):
            context["outlet_events"][outlet].extra.update(extra)
        elif isinstance(outlet, AssetAlias) and result["checkpoint_uri"]:
            context["outlet_events"][outlet].add(Asset(result["checkpoint_uri"]), extra=extra)


def mask_secrets_of_nodes(backend: Backend, ref: RunRef) -> None:
    """Mask the secrets that the nodes got, and may print, in the log; if they cannot be read, nothing is masked."""
    from airflow_provider_ocidist.backends.capabilities import secrets_of_gang

    try:
        secrets = secrets_of_gang(backend, ref)
    except Exception as error:  # noqa: BLE001 - a lasting error recurs at the next look, which logs it
        log.debug("%s: its secrets cannot be masked: %s", ref.key.name, error)
        return
    mask_secrets(secrets)


def mask_secrets(secrets: Iterable[str]) -> None:
    """Let Airflow mask these in all output of this process and its supervisor."""
    from airflow.sdk.log import mask_secret

    for secret in secrets:
        mask_secret(secret)


def without_secrets(value: Any) -> Any:
    """Return a value without the secrets that Airflow or ocidist knows: Airflow masks no XCom."""
    from airflow.providers.common.compat.sdk import redact

    from airflow_provider_ocidist.model.masking import masked_messages

    return masked_messages(redact(value))
