"""Own turn: a node that its platform has made in the place of another waits until that one is given up."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from functools import partial

from airflow_provider_ocidist.agent.join.abandonment import Abandonment
from airflow_provider_ocidist.agent.join.node_identity import identity_of
from airflow_provider_ocidist.agent.join.peer_reports import load_report
from airflow_provider_ocidist.agent.join.run_directory import run_directory
from airflow_provider_ocidist.agent.join.stop_requests import load_stop_request, stop_for
from airflow_provider_ocidist.agent.stopping import Stop, Stopped, StopSwitch
from airflow_provider_ocidist.agent.store_retries import with_retries_unless_stopped
from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.errors import AgentError, Cause
from airflow_provider_ocidist.model.agent_config import INSTANCE_VARIABLE, AgentConfig
from airflow_provider_ocidist.model.replaced import Replaced
from airflow_provider_ocidist.model.report import NodeReport, StopRequest
from airflow_provider_ocidist.storage.replacements import read_replaced
from airflow_provider_ocidist.storage.stores.base import Store

logger = logging.getLogger("ocidist")

LOOK_INTERVAL = 2.0
"""Seconds between two looks of a node that waits."""


class Abandoned(Stopped):
    """Raised where nobody needs a node that waits for its turn: the run is to end, or nobody waits for it."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What the run directory has of a rank, as its new node begins."""

    lost: Replaced
    before: NodeReport | None
    """Last report of this rank; None: there is none, or it is damaged."""
    request: StopRequest | None

    def turn(self, rank: int, instance: str) -> int | None:
        """Return how many nodes of the rank were lost before the one with this id; None: it has to wait.

        Raises Stopped where it is to end, as Abandoned where no other has its place.
        """
        if instance in self.lost.lost_runs:
            raise Stopped(Stop(message="this node counts as lost, and another has its place", is_lost=True))
        number = self.lost.incarnation(rank)
        before = self.before
        if before is None or before.instance == instance or before.incarnation < number:
            return number
        if self.request is not None and self.request.ends_run:
            raise Abandoned(stop_for(self.request))
        return None


def await_own_turn(
    config: AgentConfig, environ: Mapping[str, str], switch: StopSwitch, patience: float
) -> int | None:
    """Return how many nodes of this rank were lost before this one; None: its home says that by itself.

    A platform creates a pod again as soon as the one before is gone, often before the waiting process has seen that. It
    is no node of the gang until that process has given the one before up: the others would not wait for it.

    `patience`: in seconds. Raises AgentError when it is over, or when the run directory cannot be read; Stopped where
    this node is to end, as Abandoned where no other has its place.
    """
    instance = environ.get(INSTANCE_VARIABLE)
    if not (config.replaces and instance):
        return None
    rank = identity_of(environ, config.nodes).rank
    look = partial(_look, config, environ, rank)
    until, waits, abandonment = time.monotonic() + patience, False, Abandonment(config, environ)
    while True:
        found = with_retries_unless_stopped(look, config.limits.join_timeout, switch)
        number = found.turn(rank, instance)
        if number is not None:
            return number
        if (why := abandonment.lease_expired()) is not None:
            raise Abandoned(Stop(message=why))
        if time.monotonic() >= until:
            raise AgentError(
                "the task did not record in time that the node before this one is lost", cause=Cause.NODE
            )
        if not waits:
            logger.info(
                "this pod was made in place of another: it waits until the task has recorded that one as lost"
            )
            waits = True
        switch.pause(LOOK_INTERVAL)


def _look(config: AgentConfig, environ: Mapping[str, str], rank: int) -> Found:
    with run_directory(config, environ) as store:
        return Found(lost=read_replaced(store), before=_report(store, rank), request=load_stop_request(store))


def _report(store: Store, rank: int) -> NodeReport | None:
    try:
        return load_report(store, rank)
    except (ValueError, TypeError):
        return None
