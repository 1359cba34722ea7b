"""Peers: detects that another node is lost, or that this one is cut off from all."""

from __future__ import annotations

import itertools
import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence

from airflow_provider_ocidist.agent.join.heartbeat import Heartbeat
from airflow_provider_ocidist.agent.join.peer_reports import read_report
from airflow_provider_ocidist.agent.join.silence import LOST_AFTER, OWN_TROUBLE, SILENT_AFTER
from airflow_provider_ocidist.model.report import NodeReport, Phase

logger = logging.getLogger(__name__)

LOOK_INTERVAL = 3.0
"""Seconds between two looks at the next node."""
PROBED_PORT = 9
"""Port without a server (discard): a refusal is an answer, and disturbs no server."""
PROBE_LIMIT = 3.0
"""Seconds within which a machine must answer a probe."""
PROBED = 4
"""Number of nodes that are probed before this one counts as cut off."""


class PeerWatch:
    """Watches the next node, as another watches this one, from the start of the training on.

    A node is lost when its report does not change, or when its address, which had answered, stops answering; not while
    it saves, or this one does: it may hold a finished model, and wait for the store; nor while this one waits for that.
    This node is cut off when it cannot write its own report for `alone_after` seconds and no other node answers; an
    outage of the store alone ends nothing.
    """

    def __init__(
        self,
        heartbeat: Heartbeat,
        reports: Sequence[NodeReport],
        *,
        alone_after: float,
        declare: Callable[[str], object],
        answers: Callable[[str], bool] | None = None,
    ) -> None:
        self.heartbeat = heartbeat
        own = [report.rank for report in reports].index(heartbeat.report.rank)
        self.others = [*reports[own + 1 :], *reports[:own]]
        self.alone_after = alone_after
        self.declare = declare
        self.answers = answers or host_answers
        self._in_turn = itertools.cycle(self.others)
        self._done: set[int] = set()
        """Ranks of nodes that have trained; their machines are given back."""
        self._heard: tuple[int, float, float] | None = None
        """Rank of the watched node, its last heartbeat, and the time at which this node first saw that."""
        self._answered: tuple[int, float] | None = None
        """Rank of the watched node, and the time at which its machine last answered."""
        self._anybody_answers = False
        """Whether any machine has ever answered: a firewall may drop all probes."""
        self._closing = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="peers", daemon=True).start()

    def close(self) -> None:
        self._closing.set()

    def _run(self) -> None:
        while not self._closing.wait(LOOK_INTERVAL):
            try:
                message = self.look(time.monotonic())
            except Exception as error:  # a dead watch would look like "all is well"
                logger.warning("%s: %s", type(error).__name__, error)
                continue
            if message and not self._closing.is_set():
                self.declare(message)
                return

    def look(self, now: float) -> str | None:
        """Return what is wrong, None when nothing is known to be."""
        if self.heartbeat.report.program_has_ended:
            return None
        silent_for = now - self.heartbeat.written_at
        if silent_for > OWN_TROUBLE:
            self._heard = self._answered = None
            return self._cut_off(silent_for)
        peer = next((report for report in self.others if report.rank not in self._done), None)
        if peer is None:
            return None
        answers = self.answers(peer.address)
        self._anybody_answers = self._anybody_answers or answers
        # One more at each look: in an outage of the store it is too late to learn who has trained.
        self._note_ended([each for each in [next(self._in_turn)] if each is not peer])
        began = time.monotonic()
        found = self._silent(peer, now, SILENT_AFTER if not answers else LOST_AFTER) or self._unreachable(
            peer, now, answers
        )
        if time.monotonic() - began > OWN_TROUBLE:
            # Both nodes may have waited for the store, and this one may be the first to see that it answers again.
            self._heard = self._answered = None
            return None
        return found

    def _cut_off(self, silent_for: float) -> str | None:
        if silent_for < self.alone_after or not self._anybody_answers:
            return None
        while True:
            asked = [peer for peer in self.others if peer.rank not in self._done][:PROBED]
            if not asked or any(self.answers(peer.address) for peer in asked):
                return None
            # The machine of a node that has trained is given back: that it answers no more says nothing of the network.
            if not self._note_ended(asked):
                break
        return (
            f"this node is cut off: its run directory could not be written for {silent_for:.0f} s, "
            f"and no other node answers (asked {', '.join(peer.address for peer in asked)})"
        )

    def _note_ended(self, peers: Sequence[NodeReport]) -> bool:
        """Note on which of these the program has ended, as far as that can be read now; return whether any has."""
        reports = [read_report(self.heartbeat.quick_store, peer.rank) for peer in peers]
        ended = {report.rank for report in reports if report is not None and report.program_has_ended}
        self._done |= ended
        return bool(ended)

    def _silent(self, peer: NodeReport, now: float, limit: float) -> str | None:
        report = read_report(self.heartbeat.store, peer.rank)
        if report is None:
            self._heard = None
        elif report.program_has_ended:
            self._done.add(peer.rank)
            self._heard = self._answered = None
        elif self._heard is None or self._heard[:2] != (peer.rank, report.heartbeat_at):
            self._heard = (peer.rank, report.heartbeat_at, now)
        elif now - self._heard[2] > limit:
            return (
                f"node {peer.rank} has sent no heartbeat for {now - self._heard[2]:.0f} s: "
                "its agent or its machine is gone"
            )
        return None

    def _unreachable(self, peer: NodeReport, now: float, answers: bool) -> str | None:
        if peer.rank in self._done:
            return None
        if answers:
            self._answered = (peer.rank, now)
        elif self._answered and self._answered[0] == peer.rank and now - self._answered[1] > SILENT_AFTER:
            return (
                f"node {peer.rank} at {peer.address} has not answered for {now - self._answered[1]:.0f} s, "
                "though it writes its reports: the network between the nodes is broken"
            )
        return None


def silent_nodes(before: Sequence[NodeReport | None], after: Sequence[NodeReport | None]) -> list[int]:
    """Return the ranks whose reports have not changed between two reads, though they were not done."""
    if len(before) != len(after):
        raise ValueError(
            f"the later look is {'longer' if len(after) > len(before) else 'shorter'} than the earlier"
        )
    return [
        old.rank
        for old, new in zip(before, after)
        if old is not None
        and new is not None
        and new.phase is not Phase.DONE
        and new.heartbeat_at == old.heartbeat_at
    ]


def host_answers(address: str) -> bool:
    """Return whether a host answers at all."""
    try:
        socket.create_connection((address, PROBED_PORT), PROBE_LIMIT).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return True
