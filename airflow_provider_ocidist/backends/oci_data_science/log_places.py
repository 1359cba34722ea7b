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
"""Seconds after which a log group is asked for again that these credentials may not read."""
AFTER_NO_ANSWER = 60.0
"""Seconds without a further request after one that was not answered: a look at all gangs waits for each. The same group
is asked for again after twice as long, then after twice as long each time."""


class LogPlaces:
    """The places of the logs of one connection's gangs. Safe to share between threads."""

    def __init__(self, client: Callable[[], Any], clock: Callable[[], float] = time.monotonic) -> None:
        """`client`: returns that of log groups."""
        self._client = client
        self._clock = clock
        self._compartments: dict[str, str] = {}
        """Compartments of log groups, by id."""
        self._asked_again_at: dict[str, float] = {}
        """Times from which log groups are asked for again that could not be read, by id."""
        self._pauses: dict[str, float] = {}
        """Seconds after the last request that was not answered, by the log group's id."""
        self._unanswered_at: float | None = None

    def of(self, ref: RunRef) -> str:
        """Return the place of a gang's log; as if its group lay beside the job, while that cannot be read."""
        group = ref.log_group_id and self._compartment_of(ref.log_group_id)
        return "/".join(part for part in (group or ref.compartment_id, ref.log_group_id, ref.log_id) if part)

    def ask_again(self) -> None:
        """Ask for refused log groups again: the credentials are others now."""
        self._asked_again_at.clear()
        self._unanswered_at = None

    def _compartment_of(self, group_id: str) -> str | None:
        if group_id not in self._compartments and self._is_worth_asking(group_id):
            try:
                with oci_errors("looking for the compartment of the log group"):
                    found = self._client().get_log_group(group_id).data.compartment_id
            except BackendError as error:
                now = self._clock()
                if error.is_refused:
                    self._asked_again_at[group_id] = now + ASKED_AGAIN
                else:
                    # Another group has the next turn.
                    self._unanswered_at = now
                    pause = min(2 * self._pauses.get(group_id, AFTER_NO_ANSWER), ASKED_AGAIN)
                    self._pauses[group_id] = pause
                    self._asked_again_at[group_id] = now + pause
                log.info("%s; its logs are searched in the compartment of the job", error)
            else:
                self._compartments[group_id] = str(found)
        return self._compartments.get(group_id)

    def _is_worth_asking(self, group_id: str) -> bool:
        now = self._clock()
        silent = self._unanswered_at is not None and now - self._unanswered_at < AFTER_NO_ANSWER
        return not silent and now >= self._asked_again_at.get(group_id, -math.inf)
