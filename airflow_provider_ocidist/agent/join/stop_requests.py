"""Stop requests, as a node reads them: who asks to end, and whether a request names the node itself as lost."""

from __future__ import annotations

import logging

from airflow_provider_ocidist.agent.stopping import Stop
from airflow_provider_ocidist.errors import Cause, OcidistError, StorageError
from airflow_provider_ocidist.model.report import NodeReport, StopRequest
from airflow_provider_ocidist.model.work_dir import STOP_FILE
from airflow_provider_ocidist.storage.stores.base import Store

logger = logging.getLogger(__name__)


def load_stop_request(store: Store) -> StopRequest | None:
    """Return the stop request in a run directory; None when there is none.

    Raises OcidistError or OSError when it cannot be read now, ValueError or TypeError when it is damaged.
    """
    try:
        return StopRequest.from_json(store.read(STOP_FILE))
    except FileNotFoundError:
        return None


def read_stop_request(store: Store) -> tuple[StopRequest | None, bool]:
    """Return the stop request, if it can be read, and whether the store has answered."""
    try:
        return load_stop_request(store), True
    except (OcidistError, OSError, ValueError, TypeError) as error:
        logger.debug("stop request not readable: %s", error)
        return None, isinstance(error, (ValueError, TypeError))


def present_stop_request(store: Store) -> StopRequest | None:
    """Return the stop request that a list of the run directory shows; None if it is damaged: then it may be replaced.

    Raises OcidistError or OSError when it cannot be read now: it may end the run, or name a lost node.
    """
    try:
        found = load_stop_request(store)
    except (ValueError, TypeError) as error:
        logger.warning("the stop request that is there is damaged: %s", error)
        return None
    if found is None:
        # It was listed just now; some services answer so where they refuse.
        where = store.uri_of(STOP_FILE)
        raise StorageError(f"{where} cannot be read, though it is there", uri=where, retryable=True)
    return found


def names_as_lost(request: StopRequest, own: NodeReport) -> bool:
    """Whether a request for another launch names a node as lost."""
    if request.ends_run:
        return False
    return not request.restarts_of(own.rank, len(own.restarts)) or _names_now(request, own)


def _names_now(request: StopRequest, own: NodeReport) -> bool:
    """Whether a request names a node as lost in a launch that the node had begun before that was known."""
    return any(
        own.rank in now.lost and own.rank not in then.lost
        for now, then in zip(request.restarts, own.restarts)
    )


def stop_for(request: StopRequest) -> Stop:
    """Return the reason to end for a stop request."""
    return Stop(
        message=stop_in_words(request),
        stacks=request.hang or request.cause is Cause.HANG,
        hurried=request.cause is not Cause.ABANDONED,
        restarts=request.restarts,
    )


def lost_by(request: StopRequest | None) -> Stop:
    """Return the reason to end for a node that counts as lost."""
    why = request.message if request else "another node has its place"
    return Stop(message=f"this node counts as lost, and the others go on without it: {why}", is_lost=True)


def stop_in_words(request: StopRequest) -> str:
    who = "the submitter" if request.rank is None else f"node {request.rank}"
    what = "the run" if request.ends_run else "the launch"
    return f"{who} ended {what} ({request.cause}): {request.message}"
