"""Search: the gangs of tasks, for callers without a plan. No Airflow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from airflow_provider_ocidist.backends.base import Backend
from airflow_provider_ocidist.backends.capabilities import ListsLiveGangs
from airflow_provider_ocidist.backends.recorded_gangs import by_age
from airflow_provider_ocidist.model.attempts import Attempt, Place, merged_records
from airflow_provider_ocidist.model.run import RunKey, RunRef


def recorded_of(backend: Backend, keys: Sequence[RunKey], places: Iterable[Place] = ()) -> list[Attempt]:
    """Return the recorded attempts of these tasks, at any home: those that may live, and the newest of each task.

    In the connection's work directory, and in those of `places`. Raises BackendError.
    """
    looked_at = (None, *places)
    return merged_records(*(backend.gangs.recorded(key, place, ()) for key in keys for place in looked_at))


def gangs_of(
    backend: Backend, keys: Sequence[RunKey], known: Sequence[Attempt], places: Iterable[str | None] = (None,)
) -> list[RunRef]:
    """Return the gangs of these tasks at one home, oldest first: those that live, and those of the attempts `known`.

    `places`: the compartments in which to list what lives; None: the connection's. Raises BackendError.
    """
    live = (
        [ref for place in places for ref in backend.live(keys, place)]
        if isinstance(backend, ListsLiveGangs)
        else []
    )
    here = [each for each in known if each.place.backend == backend.kind]
    recorded = [
        ref
        for key in keys
        for ref in backend.gangs.found(
            key, [each for each in here if each.key.task_digest == key.task_digest]
        )
    ]
    return by_age([*live, *recorded])
