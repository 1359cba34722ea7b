"""Agreement: nodes that share a checkpoint folder agree to go on from what lies in it, before any of them launches."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from airflow_provider_ocidist.agent.join.peer_reports import read_reports
from airflow_provider_ocidist.agent.save.carried import Carried, digest_of
from airflow_provider_ocidist.agent.stages.context import NodeContext
from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.model.members import in_words, members_of
from airflow_provider_ocidist.model.report import NodeReport, Offer, Restart

logger = logging.getLogger("ocidist")

ANSWERED_WITHIN = 10.0
"""Seconds within which all nodes have to find what is offered: else it is sent before the launch."""
LOOK_INTERVAL = 0.2
"""Seconds between two looks for their answers."""


class Agreement:
    """One node's part in the agreement, through the reports.

    The main node of the launch that has ended offers what waits there. Each other node that is to go back for the next
    launch reports what it finds of it, in the form of a digest that is of this launch only: also before it has gone
    back, as what it does before may take long. If all find the same, the main node chooses it, in the
    report with which it goes back itself, and for which all wait.
    """

    def __init__(self, context: NodeContext, folder: Callable[[], Path | None]) -> None:
        """`folder`: returns the folder in which this node has launched the program; None before that."""
        self._context = context
        self._folder = folder
        self._offer: Offer | None = None
        """This node's offer, on which all have agreed."""
        self._launch: int | None = None
        """Number of the launch for which that was."""
        self._answered = ""
        """Digest of the last offer that this node has answered."""
        self._finds: tuple[int, str] | None = None
        """Number of the launch for which this node has answered last, and what it has found."""

    def reached(self, carried: Carried, newest: CheckpointRef, launch: int) -> bool:
        """Whether all other nodes find in the folder what waits here, and go on to the launch of this number.

        `newest`: what stands for the newest of it.
        """
        context, heartbeat = self._context, self._context.heartbeat
        offer = Offer(names=carried.names, digest=carried.digest(launch), checkpoint=newest)
        heartbeat.update(offers=offer, now=True)
        waiting, deadline = list(context.others), time.monotonic() + ANSWERED_WITHIN
        while waiting and not (context.switch.is_lost or context.switch.signalled.is_set()):
            reports = read_reports(heartbeat.quick_store, waiting)
            answers = {rank: _answer_in(report, offer, launch) for rank, report in zip(waiting, reports)}
            without = [rank for rank, answer in answers.items() if answer not in (None, offer.digest)]
            if without:
                logger.info(
                    "the files differ on %s: all is uploaded before the next launch", in_words(without)
                )
                return False
            waiting = [rank for rank, answer in answers.items() if answer is None]
            if waiting and time.monotonic() >= deadline:
                break
            if waiting:
                time.sleep(LOOK_INTERVAL)
        if waiting:
            logger.info("not all nodes say whether they find it: all is uploaded before the next launch")
            return False
        self._offer, self._launch = replace(offer, chosen=True), launch
        return True

    def chosen_for(self, launch: int) -> Offer | None:
        """Return this node's own offer, if all have agreed to go on from it to the launch of this number."""
        return self._offer if launch == self._launch else None

    def answer(self, others: Sequence[NodeReport], launch: int | None = None) -> None:
        """Report what this node finds of the main node's offer, once.

        `launch`: number of the launch that it is for; None: of that for which this node has gone back.
        """
        heartbeat, offer = self._context.heartbeat, self._offer_of_main(others)
        if offer is None or offer.digest == self._answered:
            return
        self._answered = offer.digest
        launch = heartbeat.launch if launch is None else launch
        self._finds = launch, self.found(offer, launch)
        if launch >= heartbeat.launch:
            # It may have gone back for a later one meanwhile.
            heartbeat.update(holds=self._finds[1], now=True)

    def answer_for(self, launch: int) -> str | None:
        """Return what this node has answered for the launch of this number; None: nothing."""
        return self._finds[1] if self._finds and self._finds[0] == launch else None

    def answer_beforehand(self, launch: int) -> bool:
        """Answer an offer before this node goes back for the launch of this number; return whether it is chosen."""
        context = self._context
        if context.is_main or context.main_rank not in context.others:
            return False
        reports = read_reports(context.heartbeat.quick_store, [context.main_rank])
        known = [report for report in reports if report]
        self.answer(known, launch)
        return self.answer_for(launch) is not None and self.chosen_by_main(known) is not None

    def chosen_by_main(self, others: Sequence[NodeReport]) -> Offer | None:
        """Return the offer that the main node has chosen, if this node has found it too."""
        offer, heartbeat = self._offer_of_main(others), self._context.heartbeat
        is_agreed = offer is not None and offer.chosen and offer.digest == heartbeat.report.holds
        return offer if is_agreed else None

    def found(self, offer: Offer, launch: int | None = None) -> str:
        """Return the digest of what this node finds of an offer; empty for nothing.

        `launch`: number of the launch that it is for; None: of that which this node reports.
        """
        folder, launch = self._folder(), self._context.heartbeat.launch if launch is None else launch
        try:
            return digest_of(folder, offer.names, launch) if folder else ""
        except OSError as error:
            logger.info("what the main node offers to go on from cannot be read here: %s", error)
            return ""

    def _offer_of_main(self, others: Sequence[NodeReport]) -> Offer | None:
        main = next((report for report in others if report.rank == self._context.main_rank), None)
        return main.offers if main else None


def has_same_nodes(before: Sequence[Restart], after: Sequence[Restart], nodes: int) -> bool:
    """Whether the launch after these restarts has the machines of the one before, of a gang of so many nodes."""
    is_lost = any(restart.lost for restart in after[len(before) :])
    return members_of(before, nodes) == members_of(after, nodes) and not is_lost


def _answer_in(report: NodeReport | None, offer: Offer, launch: int) -> str | None:
    """Return what a node has found for the launch of this number; None: it has not looked.

    Before it has gone back, what it reports may be its answer of a launch before, unless it is that of this launch.
    """
    if report is None or len(report.restarts) > launch:
        return None
    return report.holds if len(report.restarts) == launch or report.holds == offer.digest else None
