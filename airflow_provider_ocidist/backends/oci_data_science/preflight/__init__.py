"""Preflight: checks a job's place, machine, data and rights at the service; each finding names the fix."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from airflow_provider_ocidist.backends.capabilities import Finding, Mark
from airflow_provider_ocidist.backends.oci_data_science.options import Defaults
from airflow_provider_ocidist.backends.oci_data_science.plans import resolved
from airflow_provider_ocidist.backends.oci_data_science.preflight import data, machine, network, place
from airflow_provider_ocidist.backends.oci_data_science.preflight.judgements import fix_of
from airflow_provider_ocidist.backends.oci_data_science.preflight.target import Check, PreflightTarget
from airflow_provider_ocidist.errors import OcidistError
from airflow_provider_ocidist.model.job import TrainingJob
from airflow_provider_ocidist.oci_client.credentials import OciAccess

PATIENCE = 20.0
"""Seconds for all checks together; a check without an answer by then counts as failed."""
MAX_ATTEMPTS = 2
"""Most times that a check sends a request."""
SIGN_IN: Check = place.sign_in
CHECKS: Sequence[tuple[str, Check]] = (
    ("compartment", place.compartment),
    ("project", place.project),
    ("jobs", place.jobs),
    ("subnet", network.subnet),
    ("shape", machine.shape),
    ("quota", machine.quota),
    ("image", machine.image),
    ("conda", machine.conda),
    ("work_dir", data.work_dir),
    ("input", data.inputs),
    ("checkpoints", data.checkpoints),
    ("output", data.outputs),
    ("log group", place.log_group),
    ("log", place.log),
    ("secret", place.secret),
    ("rights of nodes", place.rights_of_nodes),
)


def preflight(job: TrainingJob, access: OciAccess, storage: OciAccess, defaults: Defaults) -> list[Finding]:
    """Return what every check has found, in the order of the checks; without a sign-in only that.

    `storage`: credentials that open the job's buckets, those of the task where the job is a candidate elsewhere.

    Raises JobFileError when job and connection together are incomplete.
    """
    job, options = resolved(job, defaults)
    target = PreflightTarget(
        job,
        options,
        replace(access, max_attempts=MAX_ATTEMPTS),
        replace(storage, max_attempts=MAX_ATTEMPTS),
    )
    signed_in = _findings("sign-in", SIGN_IN, target)
    if any(finding.mark is Mark.FAIL for finding in signed_in):
        return signed_in
    return [*signed_in, *_side_by_side(CHECKS, target)]


def _side_by_side(checks: Sequence[tuple[str, Check]], target: PreflightTarget) -> Iterator[Finding]:
    found: dict[str, list[Finding]] = {}

    def run(subject: str, check: Check) -> None:
        found[subject] = _findings(subject, check, target)

    # Daemons: a hanging check must not keep the command from ending.
    threads = [threading.Thread(target=run, args=item, daemon=True) for item in checks]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + PATIENCE
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    for subject, _ in checks:
        message = f"no answer within {PATIENCE:g} s"
        late = Finding.failed(subject, message, "check region, endpoint and network")
        yield from found.get(subject, [late])


def _findings(subject: str, check: Check, target: PreflightTarget) -> list[Finding]:
    try:
        return list(check(target))
    except OcidistError as error:
        return [Finding.failed(subject, str(error), fix_of(subject, error))]
    except Exception as error:  # noqa: BLE001 - an unexpected answer must not hide the other findings
        message = f"{type(error).__name__}: {error}"
        return [Finding.failed(subject, message, "look at it by hand; the check has failed")]
