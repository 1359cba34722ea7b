"""Claims: whether a later try of its task owns a gang that this one gives up."""

from __future__ import annotations

import logging
from collections.abc import Callable

from airflow_provider_ocidist.errors import Overtaken
from airflow_provider_ocidist.model.attempts import Attempt
from airflow_provider_ocidist.model.run import Plan, RunRef
from airflow_provider_ocidist.work_dir.parallel import Pending
from airflow_provider_ocidist.work_dir.run_directories import RunDirectories

log = logging.getLogger(__name__)

CLAIM_PATIENCE = 1.5
"""Seconds to wait for the answer whose a gang is, of the five that Airflow leaves a killed process; without an answer
it is this try's."""
GIVE_UP_CLAIM_PATIENCE = 10.0
"""Seconds for which a task that gives up waits for it; without an answer the gang is ended, as by a killed task."""


def end_unless_overtaken(
    later: Overtaken | None, cancel: Callable[[], object], info: Callable[..., object] = log.info
) -> None:
    """Cancel a gang whose try gives it up, unless that is overtaken. Raises what `cancel` raises."""
    if later is None:
        cancel()
    else:
        info("%s", later)


def overtaken(plan: Plan, directories: RunDirectories) -> Overtaken | None:
    """Return the error for a try whose gang a later one has claimed; None: it has not, or no answer came in time."""
    return None if plan.tries is None else overtaken_by(directories, plan, plan.tries.try_number)


def overtaken_by(
    directories: RunDirectories,
    gang: Plan | RunRef | Attempt,
    try_number: int,
    within: float | None = None,
) -> Overtaken | None:
    """Return what `overtaken` does for a gang that try `try_number` gives up.

    `within`: seconds to wait for the answer; None: those of a killed task.
    """
    holder = _claimed_by(directories, gang, CLAIM_PATIENCE if within is None else within)
    if holder <= try_number:
        return None
    return Overtaken(f"{gang.key.name} is left running: try {holder} of its task owns it", holder)


def _claimed_by(directories: RunDirectories, gang: Plan | RunRef | Attempt, within: float) -> int:
    """Return which try waits for a gang; 0 if no answer comes within so many seconds. Raises no Exception."""
    claims = Pending(lambda: directories.claimed_by(gang))
    try:
        return claims.result() if claims.is_made(within) else 0
    except Exception as error:  # noqa: BLE001 - a gang that is given up must end
        log.warning(
            "%s: a later try's claim could not be read, so it counts as this try's: %s",
            gang.key.name,
            error,
        )
        return 0
