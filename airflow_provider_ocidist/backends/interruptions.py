"""Interruptions: what arrives amid a submission and is no error of it, as Airflow's timeout or Ctrl-C."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)


@contextmanager
def ended_if_interrupted(name: str, cancel: Callable[[], object]) -> Iterator[None]:
    """Cancel a gang that nobody will wait for, since this thread is interrupted before anybody knows of it.

    Airflow's timeout is no Exception. An error of the submission leaves the gang to the caller, who may try again.
    """
    try:
        yield
    except Exception:
        raise
    except BaseException:
        try:
            cancel()
        except Exception as error:  # noqa: BLE001 - what interrupted is what arrives
            log.warning("%s: its nodes may live on: %s", name, error)
        raise
