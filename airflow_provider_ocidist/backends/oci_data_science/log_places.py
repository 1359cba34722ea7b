"""LogPlaces: where gangs' logs lie, as a search names it; a log group may be in another compartment than the job."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Any

from airflow_provider_ocidist.errors import BackendError
from airflow_provider_ocidist.model.run import RunRef
from airflow_provider_ocidist.oci_client.errors import oci_errors

log = logging.getLogger(__name__)

ASKED_AGAIN = 600.0
"""Seconds after which a log group is asked for again that these credentials may not read, or that was not answered."""
AFTER_NO_ANSWER = 60.0
"""Seconds without a further request after one that was not answered: a look at all gangs waits for each."""


class LogPlaces:
    """The places of the logs of one connection's gangs. Safe to share between threads."""

    def __init__(self, client: Callable[[], Any], clock: Callable[[], float] = time.monotonic) -> None:
        """`client`: returns that of log groups."""
        self._client = client
        self._clock = clock
        self._compartments: dict[str, str] = {}
        """Compartments of log groups, by id."""
        self._refused: dict[str, float] = {}
        """Times at which log groups could not be read, by id."""
        self._unanswered_at: float | None = None

    def of(self, ref: RunRef) -> str:
        """Return the place of a gang's log; as if its group lay beside the job, while that cannot be read."""
        group = ref.log_group_id and self._compartment_of(ref.log_group_id)
        return "/".join(part for part in (group or ref.compartment_id, ref.log_group_id, ref.log_id) if part)

    def ask_again(self) -> None:
        """Ask for refused log groups again: the credentials are others now."""
        self._refused.clear()
        self._unanswered_at = None

    def _compartment_of(self, group_id: str) -> str | None:
        if group_id not in self._compartments and self._is_worth_asking(group_id):
            try:
                with oci_errors("looking for the compartment of the log group"):
                    found = self._client().get_log_group(group_id).data.compartment_id
            except BackendError as error:
                # Another group has the next turn.
                self._refused[group_id] = self._clock()
                if not error.is_refused:
                    self._unanswered_at = self._clock()
                log.info("%s; its logs are searched in the compartment of the job", error)
            else:
                self._compartments[group_id] = str(found)
        return self._compartments.get(group_id)

    def _is_worth_asking(self, group_id: str) -> bool:
        now, refused = self._clock(), self._refused.get(group_id, -math.inf)
        silent = self._unanswered_at is not None and now - self._unanswered_at < AFTER_NO_ANSWER
        return not silent and now - refused >= ASKED_AGAIN
