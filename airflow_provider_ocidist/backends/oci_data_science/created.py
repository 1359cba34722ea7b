"""Rebuild the create requests from the service's resources, for comparison with a plan. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_ocidist.backends.oci_data_science.ads_variables import MAIN_RUN, with_main_run
from airflow_provider_ocidist.backends.oci_data_science.plans import JOB_ID
from airflow_provider_ocidist.model.run import Request

MADE_BY_THE_SERVICE = frozenset(
    {"id", "createdBy", "lifecycleState", "lifecycleDetails", "timeCreated", "timeUpdated", "systemTags"}
)
TAGS_OF_THE_SERVICE = "Oracle-Tags"
"""Namespace of the defined tags that a tenancy's tag defaults add to everything."""
OF_A_RUN = frozenset(
    {
        "compartmentId",
        "projectId",
        "displayName",
        "definedTags",
        "freeformTags",
        "jobConfigurationOverrideDetails",
        "jobEnvironmentConfigurationOverrideDetails",
        "jobInfrastructureConfigurationOverrideDetails",
        "jobLogConfigurationOverrideDetails",
        "jobNodeConfigurationOverrideDetails",
        "jobStorageMountConfigurationOverrideDetailsList",
    }
)
"""Fields that a run is created with; its other fields were copied from the job, or came later."""


def job_request(job: Mapping[str, Any]) -> Request:
    """Return the request for a job, from the service's answer in its own form."""
    asked = {name: value for name, value in job.items() if name not in MADE_BY_THE_SERVICE}
    return Request(verb="CreateJob", body=_bare(asked))


def run_request(run: Mapping[str, Any]) -> Request:
    asked = with_main_run({name: value for name, value in run.items() if name in OF_A_RUN}, MAIN_RUN)
    return Request(verb="CreateJobRun", body={**_bare(asked), "jobId": JOB_ID})


def _bare(value: Any) -> Any:
    """Return a value without empty parts: the service also returns fields that were never set."""
    if isinstance(value, Mapping):
        items = {name: _bare(item) for name, item in value.items() if name != TAGS_OF_THE_SERVICE}
        return {name: item for name, item in items.items() if item not in (None, {}, [])}
    return [_bare(item) for item in value] if isinstance(value, list) else value
