"""Replacements: a job run in the place of a lost one. Its idempotency token names gang, number and incarnation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_ocidist.backends.oci_data_science.ads_variables import with_main_run
from airflow_provider_ocidist.backends.oci_data_science.created import run_request
from airflow_provider_ocidist.backends.oci_data_science.plans import TAG_GROWTH, TAG_INCARNATION
from airflow_provider_ocidist.backends.oci_data_science.refs import seconds_of
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.model.agent_config import INCARNATION_VARIABLE
from airflow_provider_ocidist.model.report import Restart
from airflow_provider_ocidist.model.run import RunRef
from airflow_provider_ocidist.oci_client.errors import oci_errors


class Replacements:
    """Creates job runs as their predecessors were created, since the plan may be gone with the try that made it."""

    def __init__(self, client: Callable[[], Any]) -> None:
        self._client = client

    def make(self, ref: RunRef, failures: Sequence[Restart]) -> RunRef:
        """Create a run in the place of each that has failed, one after the other; return the gang with them."""
        for failure in failures:
            ref = self._with_one(ref, failure)
        return ref

    def _with_one(self, ref: RunRef, failure: Restart) -> RunRef:
        rank, client = failure.rank, self._client()
        assert rank is not None
        incarnation = ref.incarnation(rank) + 1
        with oci_errors(f"reading the job run of node {rank}, which is lost"):
            lost = client.get_job_run(ref.run_ids[rank]).data
        body = _body(client.base_client.sanitize_for_serialization(lost), ref, rank, failure.cause)
        token = ref.key.token("run", ref.job_id, rank, incarnation)
        with oci_errors(f"creating the job run in the place of {body['displayName']}"):
            made = client.create_job_run(body, opc_retry_token=token).data
        run_ids = (*ref.run_ids[:rank], str(made.id), *ref.run_ids[rank + 1 :])
        return replace(
            ref,
            run_ids=run_ids,
            replaced=(*ref.replaced, failure),
            lost_seconds=ref.lost_seconds + seconds_of(lost),
        )


def _body(lost: Any, ref: RunRef, rank: int, cause: Cause) -> dict[str, Any]:
    """Return the request for a run in the place of another, from the service's answer about that."""
    incarnation = ref.incarnation(rank) + 1
    # Of the cause only what every process sees alike: a token stands for one request.
    growth = {TAG_GROWTH: "true"} if cause is Cause.CAPACITY else {}
    asked = run_request(lost).body
    body = dict(with_main_run(asked, ref.run_ids[0])) if rank else dict(asked)
    details = body["jobConfigurationOverrideDetails"]
    variables = {**details["environmentVariables"], INCARNATION_VARIABLE: str(incarnation)}
    tags = {name: value for name, value in body["freeformTags"].items() if name != TAG_GROWTH}
    return {
        **body,
        "jobId": ref.job_id,
        "displayName": f"{ref.key.name}-{rank}.{incarnation}",
        "freeformTags": {**tags, TAG_INCARNATION: str(incarnation), **growth},
        "jobConfigurationOverrideDetails": {**details, "environmentVariables": variables},
    }
