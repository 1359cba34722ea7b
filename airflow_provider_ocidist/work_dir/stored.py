"""Stored: the checkpoints of an ended gang, where its reports lack them or the store contradicts the reports."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_ocidist.errors import BackendError, CheckpointError, StorageError
from airflow_provider_ocidist.model.report import Phase
from airflow_provider_ocidist.model.run import NodeState, RunRef, RunStatus
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage import checkpoints


def with_checkpoint(status: RunStatus, ref: RunRef, access: OciAccess) -> RunStatus:
    """Return the status of a gang that has ended with its newest checkpoint as the store has it."""
    if not status.ended:
        return status
    try:
        problem = _problem(status, access)
        if ref.checkpoints_uri is None or (problem is None and not _lacks_a_last_report(status)):
            return replace(status, checkpoint_problem=problem)
        stored = checkpoints.newest(ref.checkpoints_uri, access)
    except (StorageError, BackendError) as error:
        place = status.checkpoint.uri if status.checkpoint else ref.checkpoints_uri
        why = f"the checkpoint {place} cannot be read: {error}"
        return replace(status, checkpoint_readable=False, checkpoint_problem=why)
    reported = status.checkpoint
    # Replaced by a newer one, which no node could report any more.
    outdated = reported is not None and stored is not None and stored.order > reported.order
    return replace(status, stored=stored, checkpoint_problem=None if outdated else problem)


def _problem(status: RunStatus, access: OciAccess) -> str | None:
    """Return why the newest reported checkpoint cannot be used. Raises StorageError, BackendError."""
    if status.checkpoint is None:
        return None
    try:
        checkpoints.verify(status.checkpoint.uri, access)
    except CheckpointError as error:
        return f"the newest checkpoint is not whole: {error}"
    return None


def _lacks_a_last_report(status: RunStatus) -> bool:
    """Whether a node has done its part, by the service, and its last report was lost."""
    return any(
        node.state is NodeState.SUCCEEDED and node.report is not None and node.report.phase is not Phase.DONE
        for node in status.nodes
    )
