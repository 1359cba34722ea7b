"""Interruptions: what arrives amid a submission and is no error of it, as Airflow's timeout or Ctrl-C."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from airflow_provider_ocidist.backends.claims import end_unless_overtaken, overtaken
from airflow_provider_ocidist.model.run import Plan
from airflow_provider_ocidist.work_dir.run_directories import RunDirectories

log = logging.getLogger(__name__)


@contextmanager
def when_interrupted(end: Callable[[BaseException], object]) -> Iterator[None]:
    """Call `end`, which raises no Exception, where this thread is interrupted; what has interrupted it is raised.

    Airflow's timeout is no Exception. An error of the submission leaves the gang to the caller, who may try again.
    """
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        end(error)
        raise


@contextmanager
def ended_if_interrupted(
    plan: Plan, directories: RunDirectories, cancel: Callable[[], object]
) -> Iterator[None]:
    """Cancel a gang that nobody will wait for, since this thread is interrupted before anybody knows of it."""

    def end(_: BaseException) -> None:
        try:
            end_unless_overtaken(overtaken(plan, directories), cancel)
        except Exception as error:  # noqa: BLE001 - what interrupted is what arrives
            log.warning("%s: its nodes may still be running: %s", plan.key.name, error)

    with when_interrupted(end):
        yield
