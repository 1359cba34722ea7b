"""Search: the gangs of tasks, for callers without a plan. No Airflow."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_ocidist.backends.base import Backend
from airflow_provider_ocidist.backends.capabilities import ListsLiveGangs
from airflow_provider_ocidist.backends.recorded_gangs import by_age
from airflow_provider_ocidist.model.run import RunKey, RunRef


def gangs_of(
    backend: Backend, keys: Sequence[RunKey], place: str | None = None, run_dir: str | None = None
) -> list[RunRef]:
    """Return the gangs of the tasks of these keys that live, and the newest of each task, oldest first.

    `place` and `run_dir` are those of any of these gangs; None: the connection's. Raises BackendError.
    """
    live = backend.live(keys, place) if isinstance(backend, ListsLiveGangs) else []
    return by_age([*live, *backend.gangs.of(keys, run_dir)])
