"""JobRunsClient: what a waiting process asks of OCI Data Science, without the SDK's models of the whole service."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from airflow_provider_ocidist.backports import Self, dataclass, moment
from airflow_provider_ocidist.errors import BackendError
from airflow_provider_ocidist.oci_client.rest import Answer

HOST = "https://datascience.{region}.oci.{secondLevelDomain}"
"""Host of the service, as the SDK's client has it."""
VERSION = "/20190101"
FILTERS = {
    "job_id": "jobId",
    "lifecycle_state": "lifecycleState",
    "limit": "limit",
    "page": "page",
    "sort_by": "sortBy",
    "sort_order": "sortOrder",
}
"""Name in the URL of each filter of a list, by the name that the SDK gives it."""


@dataclass(frozen=True, kw_only=True)
class JobRunState:
    """The part of a job run that changes while it runs, under the names of the SDK's model."""

    id: str
    lifecycle_state: str
    lifecycle_details: str | None
    time_started: datetime | None
    time_finished: datetime | None

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> Self:
        """Return a job run from the service's answer in JSON."""
        return cls(
            id=str(described.get("id")),
            lifecycle_state=str(described.get("lifecycleState")),
            lifecycle_details=described.get("lifecycleDetails"),
            time_started=_moment(described.get("timeStarted")),
            time_finished=_moment(described.get("timeFinished")),
        )


def _moment(text: str | None) -> datetime | None:
    return moment(text) if text else None


class JobRunsClient:
    """Sends a few calls of the SDK's DataScienceClient as that does, through the base class of the SDK's clients.

    Importing DataScienceClient loads a class for each resource of the service: 8 MB in every process that waits.
    """

    def __init__(
        self, config: Mapping[str, Any], *, signer: Any, retry_strategy: Any, **options: Any
    ) -> None:
        """`options`: those of the base class."""
        import oci

        self._retry_strategy = retry_strategy
        self.base_client = oci.BaseClient(
            "data_science",
            config,
            signer,
            {},
            base_path=VERSION,
            service_endpoint_template=HOST,
            service_endpoint_template_per_realm={},
            **options,
        )

    def list_job_runs(self, compartment_id: str | None, **filters: Any) -> Answer:
        """Return one page of the job runs that the filters leave."""
        query = {"compartmentId": compartment_id, **{FILTERS[name]: value for name, value in filters.items()}}
        known = {name: value for name, value in query.items() if value is not None}
        answer = self._read("/jobRuns", list, query_params=known)
        return Answer(answer.headers, [JobRunState.of(described) for described in answer.data])

    def get_job_run(self, run_id: str) -> Answer:
        answer = self._run(run_id)
        return Answer(answer.headers, JobRunState.of(answer.data))

    def cancel_job_run(self, run_id: str) -> None:
        self._send("POST", "/jobRuns/{jobRunId}/actions/cancelJobRun", path_params={"jobRunId": run_id})

    def described_run(self, run_id: str) -> Mapping[str, Any]:
        """Return everything that the service says of a job run, in its own form."""
        found: Mapping[str, Any] = self._run(run_id).data
        return found

    def described_job(self, job_id: str) -> Mapping[str, Any]:
        """Return everything that the service says of a job, in its own form."""
        found: Mapping[str, Any] = self._read("/jobs/{jobId}", dict, path_params={"jobId": job_id}).data
        return found

    def _run(self, run_id: str) -> Any:
        return self._read("/jobRuns/{jobRunId}", dict, path_params={"jobRunId": run_id})

    def _read(self, path: str, form: type, **details: Any) -> Any:
        answer = self._send("GET", path, response_type="object", **details)
        if not isinstance(answer.data, form):
            # As of a proxy, which wants somebody to sign in.
            said = str(answer.data)[:80]
            raise BackendError(
                f"the answer to GET {path} is not OCI Data Science's: {said!r}", retryable=True
            )
        return answer

    def _send(self, method: str, path: str, **details: Any) -> Any:
        if not all(details.get("path_params", {}).values()):
            # Without it this is the address of a list.
            raise BackendError(f"{method} {path} without an id")
        headers = {"accept": "application/json", "content-type": "application/json"}
        self.base_client.add_opc_client_retries_header(headers)
        return self._retry_strategy.make_retrying_call(
            self.base_client.call_api,
            resource_path=path,
            method=method,
            header_params=headers,
            **details,
        )
