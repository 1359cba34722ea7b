"""Rebuild the create requests from the service's resources, for comparison with a plan. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_ocidist.backends.as_created import bare
from airflow_provider_ocidist.backends.oci_data_science.ads_variables import MAIN_RUN, with_main_run
from airflow_provider_ocidist.backends.oci_data_science.plans import JOB_ID
from airflow_provider_ocidist.model.run import Request

MADE_BY_THE_SERVICE = frozenset(
    {"id", "createdBy", "lifecycleState", "lifecycleDetails", "timeCreated", "timeUpdated", "systemTags"}
)
TAGS_OF_THE_SERVICE = ("Oracle-Tags",)
"""Namespaces of the defined tags that a tenancy's tag defaults add to everything."""
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
    return Request(verb="CreateJob", body=bare(asked, TAGS_OF_THE_SERVICE))


def run_request(run: Mapping[str, Any]) -> Request:
    asked = with_main_run({name: value for name, value in run.items() if name in OF_A_RUN}, MAIN_RUN)
    return Request(verb="CreateJobRun", body={**bare(asked, TAGS_OF_THE_SERVICE), "jobId": JOB_ID})
