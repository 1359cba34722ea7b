"""Fencing: before a gang looks for a checkpoint, it stops the publishing of earlier attempts and launches."""

from __future__ import annotations

import logging
import threading

from airflow_provider_ocidist.errors import AgentError, Cause, DamagedFence, Fenced, OcidistError
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.fence import Fence
from airflow_provider_ocidist.oci_client.credentials import OciAccess

logger = logging.getLogger(__name__)


def fence_checkpoints(config: AgentConfig, fence: Fence, access: OciAccess) -> bool:
    """Put this launch's fence on the folder of the task's checkpoints, and abort earlier attempts' uploads to it.

    Where the folder cannot be reached just now, return False: the first checkpoint does it. Raises AgentError when a
    later attempt or launch saves there, or when the fence is damaged: nothing that this gang trains could be saved.
    """
    if config.checkpoints is None or config.checkpoints.uri is None:
        return True
    from airflow_provider_ocidist.storage import fences
    from airflow_provider_ocidist.storage.open_uploads import abort_left_behind
    from airflow_provider_ocidist.storage.stores.opening import open_store

    uri = config.checkpoints.uri
    try:
        fences.advance_fence(open_store(uri, access), fence)
    except Fenced as error:
        # Airflow retries it: each retry has a higher number, so that one with a lost record succeeds.
        raise AgentError(
            f"{error}; if no node of that attempt lives, delete {fences.FENCE_FILE} there, or try again",
            cause=Cause.SERVICE,
        ) from error
    except DamagedFence as error:
        raise AgentError(str(error), cause=Cause.DATA) from error
    except (OcidistError, OSError) as error:
        logger.warning(
            "the folder of checkpoints cannot be fenced for this attempt yet (the first save tries again): %s",
            error,
        )
        return False
    if config.attempt > 1 or config.generation:
        abort_left_behind(uri, fence, access)
    return True


def fence_checkpoints_within(seconds: float, config: AgentConfig, fence: Fence, access: OciAccess) -> bool:
    """As `fence_checkpoints`; a store that has not answered in so many seconds cannot be reached either."""
    is_fenced, errors = [False], list[AgentError]()

    def ask() -> None:
        try:
            is_fenced.append(fence_checkpoints(config, fence, access))
        except AgentError as error:
            errors.append(error)

    thread = threading.Thread(target=ask, name="fence", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    return is_fenced[-1]
