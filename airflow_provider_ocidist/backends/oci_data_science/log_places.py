"""LogPlaces: where gangs' logs lie, as a search names it; a log group may be in another compartment than the job."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from airflow_provider_ocidist.errors import BackendError
from airflow_provider_ocidist.model.run import RunRef
from airflow_provider_ocidist.oci_client.errors import oci_errors

log = logging.getLogger(__name__)

ASKED_AGAIN = 600.0
"""Seconds after which a log group is asked for again that these credentials may not read."""


class LogPlaces:
    """The places of the logs of one connection's gangs. Safe to share between threads."""

    def __init__(self, client: Callable[[], Any], clock: Callable[[], float] = time.monotonic) -> None:
        """`client`: returns that of log groups."""
        self._client = client
        self._clock = clock
        self._compartments: dict[str, str] = {}
        """Compartments of log groups, by id."""
        self._refused: dict[str, float] = {}
        """Times at which log groups were not to be read, by id."""

    def of(self, ref: RunRef) -> str:
        """Return the place of a gang's log; as if its group lay beside the job, while that cannot be read."""
        group = ref.log_group_id and self._compartment_of(ref.log_group_id)
        return "/".join(part for part in (group or ref.compartment_id, ref.log_group_id, ref.log_id) if part)

    def ask_again(self) -> None:
        """Ask for refused log groups again: the credentials are others now."""
        self._refused.clear()

    def _compartment_of(self, group_id: str) -> str | None:
        if group_id not in self._compartments and not self._was_just_refused(group_id):
            try:
                with oci_errors("looking for the compartment of the log group"):
                    found = self._client().get_log_group(group_id).data.compartment_id
            except BackendError as error:
                # After any other error the next look asks again.
                if error.is_refused:
                    self._refused[group_id] = self._clock()
                log.info("%s; its logs are searched in the compartment of the job", error)
            else:
                self._compartments[group_id] = str(found)
        return self._compartments.get(group_id)

    def _was_just_refused(self, group_id: str) -> bool:
        at = self._refused.get(group_id)
        return at is not None and self._clock() - at < ASKED_AGAIN
