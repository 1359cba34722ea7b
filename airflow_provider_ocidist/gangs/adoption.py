"""Which gang of an earlier try a task adopts: what it looks at, what is worth waiting for, and where that lives."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

from airflow_provider_ocidist.backends.base import Backend
from airflow_provider_ocidist.backends.capabilities import near, now_at
from airflow_provider_ocidist.backends.connections import beside
from airflow_provider_ocidist.errors import BackendError, Cause
from airflow_provider_ocidist.gangs.actions import Fail, Succeed
from airflow_provider_ocidist.gangs.candidates import Candidates
from airflow_provider_ocidist.gangs.decisions import decide
from airflow_provider_ocidist.gangs.task_log import TaskLog
from airflow_provider_ocidist.gangs.verdict import ReportOutcome, first_is_done, has_trained, report_outcome
from airflow_provider_ocidist.model.attempts import Attempt, Place, generation_of, newest_attempt
from airflow_provider_ocidist.model.causes import MEANINGS, Retry
from airflow_provider_ocidist.model.evidence import ABSENT_ANSWERS, ABSENT_FOR
from airflow_provider_ocidist.model.job import TrainingJob
from airflow_provider_ocidist.model.refusal import NO_MACHINE
from airflow_provider_ocidist.model.run import (
    Expectations,
    NodeState,
    NodeStatus,
    Plan,
    RunKey,
    RunRecord,
    RunRef,
    RunStatus,
    Tries,
)


class Adoption:
    """Judges the gangs that earlier tries have left: which one a try waits for, instead of creating another."""

    def __init__(
        self,
        backend: Backend,
        job: TrainingJob,
        log: TaskLog,
        stop: threading.Event,
        candidates: Candidates,
    ) -> None:
        """`candidates`: those of the try; they note what the service had refused while no try looked."""
        self._backend = backend
        self._job = job
        self._log = log
        self._stop = stop
        self._candidates = candidates

    def adopted(self, found: Sequence[RunRef], plan: Plan, known: Sequence[Attempt]) -> RunRef | None:
        """Return the newest gang of the plan's generation if it is worth waiting for."""
        mine = [ref for ref in found if ref.key.generation == plan.key.generation]
        latest = max(mine, key=lambda ref: ref.key.attempt, default=None)
        return latest if latest is not None and self._worth_waiting_for(latest, plan, known) else None

    def _worth_waiting_for(self, ref: RunRef, plan: Plan, known: Sequence[Attempt]) -> bool:
        """Return whether a gang has succeeded or may yet; an incomplete one that lost a node, or is to stop, cannot."""
        if not ref.complete and not _can_complete(ref, plan):
            return False
        if near(self._backend, ref) is not beside(self._backend, ref.conn_id):
            # The settings now name another region, from which this gang is not watched.
            return False
        if any(attempt.key == ref.key and _was_called_off(attempt, plan) for attempt in known):
            return False
        if not any(ref.run_ids):
            return not is_called_off(self._backend, ref, known)
        status = self._certain_status(ref)
        self._note_refusal(ref, known, status)
        nodes = [node for node in status.of_members.nodes if node.run_id]
        states = [node.state for node in nodes]
        if NodeState.ENDING in states and not self._ends_well(ref, nodes, plan.expects):
            # The earlier try was killed, and cancelled the gang.
            return False
        if not ref.complete:
            lost = any(state.terminal for state in states)
            return not lost and not self._backend.directories.stop_requested(ref)
        if not status.ended and self._is_complete_unseen(ref, known):
            return False
        at = now_at(beside(self._backend, ref.conn_id)) if status.at is None else status.at
        action = decide(RunRecord.of(ref, self._job, plan.expects), status, at)
        if isinstance(action, Fail):
            seen = any(attempt.key == ref.key and attempt.end is not None for attempt in known)
            # No try has seen this failure yet. If another gang would fail in the same way, the task fails with it.
            if seen or not status.ended or MEANINGS[action.cause].retry is not Retry.NEVER:
                return False
        elif status.ended and any(state is not NodeState.SUCCEEDED for state in states):
            return isinstance(action, Succeed)
        self._log.info("found %s of an earlier attempt", ref.key.name)
        return True

    def _certain_status(self, ref: RunRef) -> RunStatus:
        """Return the state of a gang, once it is certain what is missing of one that has ended: that takes two minutes.

        Raises BackendError when stopped.
        """
        while True:
            (status,) = beside(self._backend, ref.conn_id).status([ref])
            if not (status.ended and status.doubtful):
                return status
            what = " and ".join(each.value for each in status.doubtful)
            self._log.info("%s has ended, and its %s was not found; looking again", ref.key.name, what)
            if self._stop.wait(ABSENT_FOR / ABSENT_ANSWERS):
                raise BackendError("stopped while an earlier gang was looked at", cause=Cause.CANCELED)

    def _ends_well(self, ref: RunRef, nodes: Sequence[NodeStatus], expects: Expectations) -> bool:
        """Return whether the nodes that end have done their part, and no cancel ends them.

        Of a gang that is one run for the service, those that have succeeded end while others still save.
        """
        ending = [node for node in nodes if node.state is NodeState.ENDING]
        outcomes = {report_outcome(node, expects, readable=True) for node in ending}
        # Of a gang whose first node has succeeded, the service ends what is left.
        is_over = first_is_done(RunStatus(nodes=tuple(nodes)))
        well = {ReportOutcome.EXIT_0, *([ReportOutcome.STOPPED] if is_over else [])}
        if not outcomes <= well:
            return False
        # The service cancels all of them, also those that have just succeeded.
        return len(ending) < len(nodes) or not self._backend.directories.stop_requested(ref)

    def _is_complete_unseen(self, ref: RunRef, known: Sequence[Attempt]) -> bool:
        """Return whether a gang is complete, and the try that created it did not see that, and has called it off.

        Its nodes end as soon as they read that. Of a gang that was seen complete, a stop request is no such word: a
        node that has failed may have written it.
        """
        attempt = next((each for each in known if each.key == ref.key), None)
        if attempt is None or (attempt.ref is not None and attempt.ref.complete):
            return False
        return self._backend.directories.stop_requested(ref)

    def _note_refusal(self, ref: RunRef, known: Sequence[Attempt], status: RunStatus) -> None:
        """Record that the service had no machine for a gang, if the try that requested it died before it saw that."""
        attempt = next((each for each in known if each.key == ref.key and each.end is None), None)
        refused = (node for node in status.nodes if node.state.terminal and node.cause in NO_MACHINE)
        node = next(refused, None)
        if attempt is None or node is None or node.cause is None or has_trained(ref.key, status):
            return
        message = f"node {node.rank}: {node.details}"
        # The service may have refused long before this try began.
        self._candidates.refuse(ref.key, attempt.candidate, node.cause, message, node.finished_at)


def is_called_off(backend: Backend, gang: Plan | RunRef, known: Sequence[Attempt]) -> bool:
    """Return whether nodes of an attempt that has none would end at once: a try that gave up has called it off."""
    begun = any(attempt.key == gang.key for attempt in known)
    return begun and backend.directories.stop_requested(gang)


def looked_at_first(key: RunKey, tries: Tries, known: Sequence[Attempt]) -> RunKey:
    """Return the attempt that a try looks at first: the newest of its generation, or the next where that has failed."""
    generation = generation_of(tries, known)
    latest = newest_attempt(each for each in known if each.key.generation == generation)
    if latest is None:
        return replace(key, generation=generation, attempt=1)
    failed = latest.end is not None and not latest.end.succeeded
    attempt = latest.key.attempt + 1 if failed else latest.key.attempt
    return replace(key, generation=generation, attempt=attempt)


def attempts_to_look_at(known: Sequence[Attempt], generation: int) -> list[Attempt]:
    """Return the attempts that may still have nodes, and the success that may be adopted."""
    return [
        attempt
        for attempt in known
        if attempt.may_live
        or (attempt.end and attempt.end.succeeded and attempt.key.generation == generation)
    ]


def _can_complete(ref: RunRef, plan: Plan) -> bool:
    """Return whether the plan creates the nodes that a gang lacks."""
    return (ref.topology, ref.nodes, ref.run_dir, ref.compartment_id, ref.conn_id) == (
        plan.topology,
        plan.nodes,
        plan.run_dir,
        plan.compartment_id,
        plan.conn_id,
    )


def at_the_place_of(ref: RunRef, plan: Plan, known: Sequence[Attempt]) -> Plan:
    """Return the plan of an adopted gang, at the place and with the machines that it was created with.

    The settings may name others now. An attempt that the gang would seem to begin there is not noted: a later try would
    call that off, and with it the gang.
    """
    place = Place.of_gang(ref)
    begun = next((each for each in known if each.key == ref.key), None)
    if place.digest != Place.of(plan).digest:
        plan = replace(
            plan,
            run_dir=place.run_dir,
            conn_id=place.conn_id,
            compartment_id=place.compartment_id,
            region=begun.place.region if begun else None,
        )
    if begun is None or begun.candidate == plan.candidate:
        return plan
    price = begun.ref.price if begun.ref else None
    return replace(plan, candidate=begun.candidate, price=plan.price if price is None else price)


def _was_called_off(attempt: Attempt, plan: Plan) -> bool:
    """Return whether a stop was requested before the gang's nodes were found: its creation was not answered."""
    return attempt.ref is None and not attempt.place.is_that_of(plan)
