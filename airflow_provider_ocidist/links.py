"""Operator links: from a task to its main job run in the OCI console."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow_provider_ocidist.run import RunRef

CONSOLE = "https://cloud.oracle.com/data-science/job-runs/{run_id}?region={region}"


class JobRunLink(BaseOperatorLink):
    """The main job run; its address is pushed as soon as the run exists."""

    name = "OCI job run"
    xcom_key = "oci_job_run_link"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:  # noqa: ARG002 - Airflow's signature
        from airflow.providers.common.compat.sdk import XCom

        return str(XCom.get_value(key=self.xcom_key, ti_key=ti_key) or "")


def job_run_url(ref: RunRef) -> str:
    """Return the console's page. The fourth part of an OCID is the region, or a short name of it (`iad`)."""
    from oci.regions import REGIONS_SHORT_NAMES

    key = ref.main_run_id.split(".")[3] if ref.main_run_id.count(".") >= 4 else ""
    return CONSOLE.format(run_id=ref.main_run_id, region=REGIONS_SHORT_NAMES.get(key, key))
