"""Ownership: the latest try of a task that is known owns its gang; an earlier try gives up. No Airflow.

Airflow may begin a later try while an earlier one still lives: it took that for dead, or the task was cleared.
"""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_ocidist.backends.base import Backend
from airflow_provider_ocidist.backends.capabilities import near
from airflow_provider_ocidist.backends.connections import named_for
from airflow_provider_ocidist.errors import Overtaken
from airflow_provider_ocidist.model.attempts import Attempt
from airflow_provider_ocidist.model.homes import how_to_end
from airflow_provider_ocidist.model.run import Plan, RunRef


def claim(backend: Backend, gang: Plan | RunRef, try_number: int) -> None:
    """Record that this try now owns a gang. Raises Overtaken if a later try owns it."""
    directories = backend.directories
    # The first try has no earlier one to protect the gang from, but it may be late.
    holder = directories.claimed_by(gang) if try_number == 1 else directories.claim(gang, try_number)
    if holder > try_number:
        raise Overtaken(
            f"try {holder} of this task waits for {gang.key.name}, and this is try {try_number}: it gives up and "
            "does not end the gang",
            holder,
        )


def give_way(backend: Backend, draft: Plan, known: Sequence[Attempt], try_number: int) -> None:
    """Raise Overtaken if a later try has recorded an attempt whose gang lives, or is just being created.

    `draft`: any plan of the task; `known`: the attempts that are recorded of it.
    """
    later = [each for each in known if each.end is None and each.tries and each.tries.try_number > try_number]
    if not later:
        return
    found = [ref for ref in backend.gangs.find(draft) if any(ref.key == each.key for each in later)]
    living = [ref for ref in found if not near(backend, ref).status([ref])[0].ended]
    unseen = [
        each
        for each in later
        if (each.ref is None or each.place.backend != draft.backend)
        and not any(ref.key == each.key for ref in found)
    ]
    if living or unseen:
        latest = max(later, key=lambda each: each.tries.try_number if each.tries else 0)
        raise _overtaken_by(latest, living, try_number, named_for(backend))


def _overtaken_by(latest: Attempt, living: Sequence[RunRef], try_number: int, named: str | None) -> Overtaken:
    assert latest.tries is not None
    key = latest.key
    record = f"g{key.generation}-a{key.attempt}-*.json below attempts/{key.task_digest}/ of its work_dir"
    remedy = f"end it with {how_to_end(*living, named=named)}" if living else f"remove its record, {record}"
    return Overtaken(
        f"try {latest.tries.try_number} of this task has begun {key.name}, and this is try {try_number}: it gives up "
        "and does not end that gang. If the DAG run was deleted and created again, so that tries count from 1, "
        f"{remedy}, then clear the task",
        latest.tries.try_number,
    )
