"""Meeting: this node finds the others, and its place among them."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

from airflow_provider_ocidist.agent.join.gathering import meet
from airflow_provider_ocidist.agent.join.peer_reports import read_others
from airflow_provider_ocidist.agent.join.topology import await_address, placement_of, require_own_addresses
from airflow_provider_ocidist.agent.stages.context import NodeContext
from airflow_provider_ocidist.agent.stopping import Stop
from airflow_provider_ocidist.agent.train.launch import public_key
from airflow_provider_ocidist.errors import DifferentCheckpoints, OcidistError
from airflow_provider_ocidist.launchers.base import Launcher, Placement
from airflow_provider_ocidist.model.report import ALL_DAMAGED, NodeReport, Phase, Restart

logger = logging.getLogger("ocidist")

ADMISSION_INTERVAL = 5.0
"""Seconds between two looks of a node that takes no part: whether the others have ended, or it has waited enough."""


def meet_others(context: NodeContext, launcher: Launcher) -> list[NodeReport]:
    """Return the reports of the members, by rank, once each is ready for this launch.

    Raises AgentError where one is missing, or where they cannot train together; DifferentCheckpoints where they would
    not go on from the same content.
    """
    context.switch.check()
    config, heartbeat, timeout = context.config, context.heartbeat, context.config.limits.join_timeout
    address = await_address(context.identity, context.environ, context.switch.pause, timeout)
    key = public_key(launcher, config.launcher, config.nodes, context.folder)
    heartbeat.update(phase=Phase.JOINING, address=address, public_key=key, now=True)
    if not context.is_member:
        _await_admission(context)
    context.awaits_since = None
    reports = meet(heartbeat.store, heartbeat, nodes=config.nodes, timeout=timeout)
    require_own_addresses(reports)
    _require_same_checkpoint(reports, restores=config.checkpoints is not None)
    heartbeat.update(restarts=_agreed(reports, heartbeat.report.restarts))
    return reports


def _await_admission(context: NodeContext) -> NoReturn:
    """Wait for the launch that names this node, which ends this one, for `limits.join_timeout` in all launches.

    Raises Stopped, also when the others are done, or this node has waited enough.
    """
    limit = context.config.limits.join_timeout
    logger.info(
        "the others train without this node: it takes part after their next checkpoint, if that comes within %.0f s",
        limit,
    )
    if context.awaits_since is None:
        context.awaits_since = time.monotonic()
    while True:
        context.switch.pause(ADMISSION_INTERVAL)
        others = read_others(context.heartbeat.quick_store, context.heartbeat.report, context.config.nodes)
        if all(report and report.phase is Phase.DONE for report in others):
            context.switch.ask(Stop(message="the training has ended without this node"))
        elif time.monotonic() - context.awaits_since >= limit and _may_leave(context):
            context.switch.ask(Stop(message=_in_vain(limit)))


def _in_vain(limit: float) -> str:
    return (
        f"no checkpoint of the others came within {limit:.0f} s (limits.join_timeout), after which this node "
        "could have taken part: they train on without it"
    )


def _may_leave(context: NodeContext) -> bool:
    """Report that this node waits no more; return whether nobody has admitted it by then.

    The main node first reports that it admits, and then looks who still waits. So at least one of them finds the other.
    """
    heartbeat = context.heartbeat
    if not heartbeat.write(leaves=True):
        return False
    others = read_others(heartbeat.quick_store, heartbeat.report, context.config.nodes)
    if any(each is None or (each.admits and len(each.restarts) == heartbeat.launch) for each in others):
        return False
    try:
        # Last: who has admitted it asks all before it reports that it admits nobody any more.
        request = heartbeat.load_stop_request()
    except (OcidistError, OSError, ValueError, TypeError) as error:
        logger.warning("whether this node is to take part cannot be read: %s", error)
        return False
    if request is not None:
        heartbeat.heed(request)
    context.switch.check()
    return True


def take_place(context: NodeContext, launcher: Launcher, reports: Sequence[NodeReport]) -> Placement:
    """Return this node's placement among the members; record which of them is the main node."""
    placement = placement_of(context.config, reports, context.identity, context.environ)
    placement = replace(placement, folder=str(context.folder))
    context.main_rank = reports[launcher.main_node(context.config.launcher, placement)].rank
    context.heartbeat.update(main=context.is_main)
    return placement


def _agreed(reports: Sequence[NodeReport], own: tuple[Restart, ...]) -> tuple[Restart, ...]:
    """Return the restarts as the last replacement has read them, with the reason why it was created.

    Of replacements for machines that were lost together, each has read which ranks were known as lost by then. A node
    that took the view of an earlier one would not find its predecessor's name in it, and take itself for the lost one.
    """
    replacements = [each for each in reports if each.incarnation and len(each.restarts) == len(own)]
    newest = max(replacements, key=lambda each: (_lost_in(each.restarts), each.incarnation), default=None)
    return newest.restarts if newest else own


def _lost_in(restarts: Sequence[Restart]) -> int:
    return sum(len(each.lost) for each in restarts)


def _require_same_checkpoint(reports: Sequence[NodeReport], *, restores: bool) -> None:
    """Raise DifferentCheckpoints if the nodes would resume from different content, or one has not looked.

    `restores`: whether the job has checkpoints; without them no node looks.
    """
    # Compared by content: two attempts may save at one step, or a program twice under one name. `starts_from`
    # stays in a node's report, also after it has gone on or has ended over the difference.
    contents = {report.starts_from for report in reports}
    if len(contents) > 1 or (restores and None in contents):
        shown = ", ".join(f"{report.rank}: {_place_of_start(report)}" for report in reports)
        raise DifferentCheckpoints(
            f"{DifferentCheckpoints.BEGINS} (of each node: {shown}): "
            "one of them is damaged, or changed just now; run it again"
        )


def _place_of_start(report: NodeReport) -> str:
    """Return in words where a node has read what it goes on from."""
    if report.starts_from in (None, "", ALL_DAMAGED):
        return "nothing"
    return report.checkpoint.uri if report.checkpoint else "checkpoints.start_from"
