"""Replacements: new nodes for lost ones, while the others wait or train on. No Airflow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from airflow_provider_ocidist.backends.capabilities import ReplacesNodes, near, now_at
from airflow_provider_ocidist.errors import BackendError
from airflow_provider_ocidist.gangs import durations
from airflow_provider_ocidist.gangs.actions import EndSilent, GiveUpSilent, GoOnWithout, NodeChange, Replace
from airflow_provider_ocidist.gangs.task_log import TaskLog
from airflow_provider_ocidist.gangs.watch import Watch
from airflow_provider_ocidist.model.refusal import NO_MACHINE, Refusal
from airflow_provider_ocidist.model.report import Restart
from airflow_provider_ocidist.model.run import RunRef

TO_END = "its nodes are to end"
"""Why no node is replaced once the run directory has a request to end the run."""


def change_nodes(watch: Watch, change: NodeChange, log: TaskLog) -> bool:
    """Carry out a decision about the nodes of a gang; return whether it has new nodes now.

    If not, the next look is due after a pause: nodes that train on with fewer report that only after they have saved.
    """
    match change:
        case GoOnWithout():
            go_on_without(watch, change.change, log)
        case GiveUpSilent():
            give_up_silent(watch, change.failures, log, launch=change.launch)
        case EndSilent():
            end_silent(watch, change.failures, log)
        case Replace():
            return replace_lost(watch, change.failures, log, launch=change.launch, over=change.over)
    return False


def go_on_without(watch: Watch, change: Restart, log: TaskLog) -> None:
    """Let the members of `change` train on without the others. May be repeated, as `replace_lost` may."""
    ref = watch.record.ref
    try:
        # The task's log shows it once the nodes do.
        near(watch.backend, ref).directories.go_on_without(ref, change)
    except BackendError as error:
        log.warning("%s; will ask again", error)


def give_up_silent(
    watch: Watch, failures: Sequence[Restart], log: TaskLog, launch: int | None = None
) -> None:
    """Ask the others to wait for new nodes in the places of silent ones. May be repeated.

    Once they report that, a silent node is ended: its end is no failure of the gang then, for any process that looks.
    `launch`: the last one in which it took part; if it has begun a later one since, it lives, and nobody is asked.
    """
    ref = watch.record.ref
    new = "another in its place" if len(failures) == 1 else "new nodes in their places"
    log.warning("%s: the others wait for %s", _in_words(failures), new)
    try:
        if not near(watch.backend, ref).directories.launch_again(ref, failures, launch, alive=True):
            _leave_unreplaced(watch, TO_END)
    except BackendError as error:
        watch.note_unreplaced(error)
        log.warning("%s; will ask again", error)


def end_silent(watch: Watch, failures: Sequence[Restart], log: TaskLog) -> None:
    """End silent nodes that take no part, and that the service reports as alive. May be repeated."""
    ref = watch.record.ref
    each_of_them = "it" if len(failures) == 1 else "each"
    log.warning("%s: %s is ended and asked for again", _in_words(failures), each_of_them)
    try:
        backend = ReplacesNodes.of(near(watch.backend, ref))
        backend.end_nodes(ref, [each.rank for each in failures if each.rank is not None])
    except BackendError as error:
        watch.note_unreplaced(error)
        log.warning("%s; will ask again", error)


def replace_lost(
    watch: Watch,
    failures: Sequence[Restart],
    log: TaskLog,
    launch: int | None = None,
    over: int | None = None,
) -> bool:
    """Create a node in the place of each lost one; return whether the gang has the new nodes now.

    Each step may be repeated, also by another process after this one was killed: the nodes agree in the run directory
    on another launch, then each node is created under a name that only one can have, then it is recorded. After an
    error that may pass, as one refusal may, the next look tries again; after any other the watch's record says so, and
    the gang is ended.

    `launch`: the last one in which the lost nodes took part; None: as their reports say now. `over`: the one that
    others have ended, and of which they save the rest: without an agreed launch after it no node is replaced.
    """
    ref, backend = watch.record.ref, near(watch.backend, watch.record.ref)
    members = watch.record.members
    waited_for = not members or all(each.rank in members for each in failures)
    try:
        replaces = ReplacesNodes.of(backend)
        now = replaces.current(ref)
        if now.replaced == ref.replaced:
            if over is not None and not backend.directories.goes_on_after(now, over):
                # All has ended, or is about to say so: nobody would train with a new node.
                return False
            if waited_for and not backend.directories.launch_again(now, failures, launch):
                return _leave_unreplaced(watch, TO_END)
            now = replaces.replace_nodes(now, failures)
        backend.gangs.renew(now)
    except BackendError as error:
        _note_refusal(watch, error)
        asks_again = watch.note_unreplaced(error)
        if not waited_for:
            log.warning("%s; the training goes on with fewer nodes", error)
            watch.record = durations.begin_again(watch.record, durations.FEWER)
            return False
        if not asks_again:
            log.warning("%s; the lost node is not replaced", error)
            return _leave_unreplaced(watch, str(error))
        log.warning("%s; the lost node is replaced later", error)
        return False
    watch.note_replaced()
    _follow(watch, now, log)
    return True


def catch_up(watch: Watch, log: TaskLog) -> None:
    """Watch the present nodes of a gang: the task that owns it may have replaced some. Raises no BackendError."""
    ref = watch.record.ref
    try:
        now = ReplacesNodes.of(near(watch.backend, ref)).current(ref)
    except BackendError as error:
        log.warning("%s; will ask again", error)
        return
    if now.replaced != ref.replaced:
        _follow(watch, now, log)


def _in_words(failures: Sequence[Restart]) -> str:
    return "; ".join(each.message for each in failures)


def _note_refusal(watch: Watch, error: BackendError) -> None:
    """Record a refusal for want of machines: a gang created again asks for as many, and for others of the job's."""
    if error.cause in NO_MACHINE:
        at, nodes = now_at(watch.backend), watch.record.ref.nodes
        refused = Refusal(cause=error.cause, message=str(error), at=at, nodes=nodes)
        watch.record = replace(watch.record, refused=refused)


def _leave_unreplaced(watch: Watch, why: str) -> bool:
    watch.record = replace(watch.record, irreplaceable=why)
    return False


def _follow(watch: Watch, now: RunRef, log: TaskLog) -> None:
    # The last lines of the lost ones, while the new ones start.
    watch.write_the_rest()
    known = len(watch.record.ref.replaced)
    for each in now.replaced[known:]:
        assert each.rank is not None
        log.warning("%s: %s; %s takes its place", each.cause, each.message, now.run_ids[each.rank])
    watch.record = replace(watch.record, ref=now, irreplaceable="", refused=None)
