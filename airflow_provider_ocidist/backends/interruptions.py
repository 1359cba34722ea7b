"""Interruptions: what arrives amid a submission and is no error of it, as Airflow's timeout or Ctrl-C."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from airflow_provider_ocidist.errors import Overtaken
from airflow_provider_ocidist.model.attempts import Attempt
from airflow_provider_ocidist.model.run import Plan, RunRef
from airflow_provider_ocidist.work_dir.parallel import Pending
from airflow_provider_ocidist.work_dir.run_directories import RunDirectories

log = logging.getLogger(__name__)

CLAIM_PATIENCE = 1.5
"""Seconds to wait for the answer whose a gang is, of the five that Airflow leaves a killed process; without an answer
it is this try's."""


@contextmanager
def ended_if_interrupted(
    plan: Plan, directories: RunDirectories, cancel: Callable[[], object]
) -> Iterator[None]:
    """Cancel a gang that nobody will wait for, since this thread is interrupted before anybody knows of it.

    Airflow's timeout is no Exception. An error of the submission leaves the gang to the caller, who may try again.
    """
    try:
        yield
    except Exception:
        raise
    except BaseException:
        try:
            end_unless_overtaken(plan, directories, cancel)
        except Exception as error:  # noqa: BLE001 - what interrupted is what arrives
            log.warning("%s: its nodes may still be running: %s", plan.key.name, error)
        raise


def end_unless_overtaken(plan: Plan, directories: RunDirectories, cancel: Callable[[], object]) -> None:
    """Cancel a gang whose try gives it up, unless a later try has claimed it. Raises what `cancel` raises."""
    error = overtaken(plan, directories)
    if error is None:
        cancel()
    else:
        log.info("%s", error)


def overtaken(plan: Plan, directories: RunDirectories) -> Overtaken | None:
    """Return the error for a try whose gang a later one has claimed; None: it has not, or no answer came in time."""
    if plan.tries is None:
        return None
    holder = claimed_by(directories, plan, CLAIM_PATIENCE)
    if holder <= plan.tries.try_number:
        return None
    return Overtaken(f"{plan.key.name} is left running: try {holder} of its task owns it", holder)


def claimed_by(directories: RunDirectories, gang: Plan | RunRef | Attempt, within: float) -> int:
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
