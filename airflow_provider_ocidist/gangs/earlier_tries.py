"""Cancels the gangs of a task's earlier tries, by the service or by stop requests. No Airflow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from airflow_provider_ocidist.backends.base import Backend
from airflow_provider_ocidist.backends.capabilities import ListsLiveGangs, near
from airflow_provider_ocidist.errors import BackendError, CancelFailed
from airflow_provider_ocidist.model.attempts import Attempt, Place, merged_records
from airflow_provider_ocidist.model.homes import words_of
from airflow_provider_ocidist.model.report import StopRequest
from airflow_provider_ocidist.model.run import Ending, RunKey, RunRef

Item = TypeVar("Item")
Said = list[str]
"""What may still live, and why its state is unknown or its cancel failed; one message each."""


def cancel_earlier(
    backend: Backend,
    key: RunKey,
    place: Place | None,
    noted: Sequence[Attempt],
    ending: Ending,
    try_number: int,
) -> list[str]:
    """Cancel what may live of a task, except gangs of later tries: try `try_number` gives up, and none follows.

    By the service or a stop request, whichever can be reached. `place`: where the task's job puts its gangs; None where
    the job cannot be read: then as the connection says. `noted`: the attempts that Airflow's task state names. Returns
    what may live all the same, each with the way to end it. Raises no BackendError.
    """
    stop = StopRequest(cause=ending.cause, message=ending.message)
    places = [place, *(each.place for each in noted)]
    compartment = next(filter(None, (each.compartment_id for each in places if each)), None)
    return EarlierTryCanceller(
        recorded=lambda: backend.gangs.recorded(key, place, noted),
        live=lambda: backend.live([key], compartment) if isinstance(backend, ListsLiveGangs) else (),
        cancel=lambda ref: near(backend, ref).cancel(ref, ending),
        request_stop=lambda each: backend.directories.request_stop(each.key, each.place.run_dir, stop),
        claimed_by=backend.directories.claimed_by,
    ).end(noted, try_number)


class EarlierTryCanceller:
    """Cancels all known gangs of one task, at the service and in the run directories."""

    def __init__(
        self,
        recorded: Callable[[], Sequence[Attempt]],
        live: Callable[[], Sequence[RunRef]],
        cancel: Callable[[RunRef], object],
        request_stop: Callable[[Attempt], bool],
        claimed_by: Callable[[RunRef], int],
    ) -> None:
        """`recorded` reads the work directory, `live` asks the service; each may raise BackendError."""
        self._recorded = recorded
        self._live = live
        self._cancel = cancel
        self._request_stop = request_stop
        self._claimed_by = claimed_by

    def end(self, noted: Sequence[Attempt], try_number: int) -> Said:
        """Cancel every open attempt except those of tries later than `try_number`. Raises nothing of ours."""
        said: Said = []
        # Known attempts go first, before any request: a killed task has seconds.
        refs = {each.ref.job_id: each.ref for each in noted if each.ref and _may_live(each, try_number)}
        for ref in refs.values():
            said += self._ended(ref, try_number)
        known = merged_records(
            noted, _asked(self._recorded, "what else earlier tries have begun is not known", said)
        )
        theirs = {each.key for each in known if _is_of_a_later_try(each, try_number)}
        mine = [each for each in known if _may_live(each, try_number)]
        live = _asked(self._live, "what else of this task lives is not known", said)
        for ref in (*(each.ref for each in mine if each.ref), *live):
            if ref.job_id not in refs and ref.key not in theirs:
                refs[ref.job_id] = ref
                said += self._ended(ref, try_number)
        unseen = [each for each in mine if not any(ref.key == each.key for ref in refs.values())]
        return [*said, *(_begun(each) for each in unseen if not self._request_stop(each))]

    def _ended(self, ref: RunRef, try_number: int) -> Said:
        if self._claimed_by(ref) > try_number:
            return []
        try:
            self._cancel(ref)
        except CancelFailed as error:
            return [] if error.stop_requested else [_alive(ref, error)]
        except BackendError as error:
            return [_alive(ref, error)]
        return []


def _asked(look: Callable[[], Sequence[Item]], otherwise: str, said: Said) -> Sequence[Item]:
    try:
        return look()
    except BackendError as error:
        said.append(f"{otherwise}: {error}")
        return ()


def _alive(ref: RunRef, error: BackendError) -> str:
    runs = ", ".join(dict.fromkeys(run_id for run_id in ref.run_ids if run_id)) or "no run known"
    return f"{ref.key.name} may live ({runs}; {error}): end it with ocidist cancel {ref.job_id}"


def _begun(attempt: Attempt) -> str:
    words = words_of(attempt.place.backend)
    return (
        f"attempt {attempt.key.name} was begun, and no stop request could be written to {attempt.place.run_dir}: "
        f"look for a {words.gang} of this name, and delete it {words.where}"
    )


def _may_live(attempt: Attempt, try_number: int) -> bool:
    return attempt.end is None and not _is_of_a_later_try(attempt, try_number)


def _is_of_a_later_try(attempt: Attempt, try_number: int) -> bool:
    return attempt.tries is not None and attempt.tries.try_number > try_number
