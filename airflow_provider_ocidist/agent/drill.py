"""Drill: looks for the moment of the fault that the job asks for, and records it and the steps that follow."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from airflow_provider_ocidist.agent import faults
from airflow_provider_ocidist.agent.injections import InjuredNode, injection_of
from airflow_provider_ocidist.agent.join.heartbeat import Heartbeat
from airflow_provider_ocidist.agent.join.node_identity import identity_of
from airflow_provider_ocidist.agent.join.peer_reports import furthest_step, read_others
from airflow_provider_ocidist.agent.join.topology import own_address
from airflow_provider_ocidist.agent.monitor.progress import ProgressMeter
from airflow_provider_ocidist.errors import AgentError, Cause, OcidistError
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.model.drill import (
    DRILL_VARIABLE,
    OF_NETWORKS,
    OF_PROCESSES,
    UNDISTURBED,
    DrillJournal,
    Fault,
    FaultKind,
    InjectedFault,
    SaveSeen,
    StepSeen,
    When,
    prelude_of,
)
from airflow_provider_ocidist.model.report import Phase
from airflow_provider_ocidist.model.work_dir import drill_journal_of
from airflow_provider_ocidist.oci_client.credentials import OciAccess

logger = logging.getLogger("ocidist")

LOOK_INTERVAL = 0.02
"""Seconds between two looks, as a save may last milliseconds."""
OTHERS_INTERVAL = 0.5
"""Seconds between two readings of the other nodes' steps."""
WRITE_INTERVAL = 0.5
"""Seconds between two writings of the steps seen."""


def due(
    fault: Fault, *, attempt: int, launch: int, struck: Sequence[InjectedFault], restarts: bool
) -> Fault | None:
    """Return which fault this node waits for now; None: none.

    `struck`: what it has done in this attempt before; `restarts`: whether the same attempt goes on after the fault's
    prelude.
    """
    if fault.when is not When.RESTORING:
        return fault if attempt == 1 and not struck else None
    if attempt == 1 and not struck:
        return prelude_of(fault)
    if attempt == 1:
        return fault if launch > 0 and len(struck) == 1 else None
    return fault if attempt == 2 and not (struck or restarts) else None


class Drill:
    """A thread of one node that looks for the moment of its fault, and records the training's steps and checkpoints."""

    def __init__(
        self,
        fault: Fault | None,
        config: AgentConfig,
        heartbeat: Heartbeat,
        meter: ProgressMeter,
        access: OciAccess,
        *,
        interface: str | None = None,
    ) -> None:
        """`fault`: None for a training that is not disturbed; `interface`: of the network that a fault disturbs."""
        self.fault = fault
        self.interface = interface
        self.config = config
        self.heartbeat = heartbeat
        self.meter = meter
        self.access = access
        self.rank = heartbeat.report.rank
        self.folder: Path | None = None
        """Folder of the checkpoints, once the program is launched."""
        self._known: frozenset[str] | None = None
        """Names in that folder when the training reached the fault's step."""
        self._lock = threading.RLock()
        """Held while the journal changes: the threads that upload and restore inflict faults too."""
        self._journal = self._earlier()
        self._unwritten = False
        self._written_at = 0.0
        self._others: tuple[float, int | None] = (0.0, None)
        self._checkpoint: CheckpointRef | None = None
        """Newest checkpoint of this node at the last look."""
        threading.Thread(target=self._run, name="drill", daemon=True).start()

    def _earlier(self) -> DrillJournal:
        """Return what a node of this rank has recorded, if this one takes its place."""
        try:
            return DrillJournal.from_json(self.heartbeat.store.read(drill_journal_of(self.rank)))
        except FileNotFoundError:
            return DrillJournal()

    def _run(self) -> None:
        while True:
            try:
                with self._lock:
                    self._look()
            except (OcidistError, OSError) as error:
                logger.warning("drill: %s", error)
                time.sleep(1.0)
            time.sleep(LOOK_INTERVAL)

    def _look(self) -> None:
        self._record_step()
        self._record_save()
        self._record_writing()
        fault = self._due()
        if fault is not None and fault.when not in CALLED and self._is_the_moment(fault):
            self._strike(fault)
        if self._unwritten and time.monotonic() - self._written_at > WRITE_INTERVAL:
            self._write()

    def reached(self, moment: When) -> None:
        """Strike if the fault is one of this moment, one of `CALLED`."""
        with self._lock:
            fault = self._due()
            if fault is None or fault.when is not moment:
                return
            try:
                if self._is_the_moment(fault):
                    self._strike(fault)
            except (OcidistError, OSError) as error:
                logger.warning("drill: %s", error)

    def _due(self) -> Fault | None:
        """Return the fault that this node waits for now."""
        if self.fault is None:
            return None
        fault = due(
            self.fault,
            attempt=self.config.attempt,
            launch=self.heartbeat.launch,
            struck=self._journal.injected,
            restarts=self._survives_prelude(self.fault),
        )
        return fault if fault is not None and fault.node == self.rank else None

    def _survives_prelude(self, fault: Fault) -> bool:
        """Return whether the attempt may go on after the fault's prelude: a killed node has to be replaced for that."""
        budgets = self.config.restarts
        if prelude_of(fault).kind is FaultKind.KILL_NODE:
            return budgets.node > 0 and self.config.replaces and self.config.nodes > 1
        # A killed process is charged to the program, or else to the machines.
        return budgets.program > 0 or budgets.node > 0

    # what is seen

    def _record_step(self) -> None:
        step, launch = self.meter.step_now(), self.heartbeat.launch
        last = self._journal.steps[-1] if self._journal.steps else None
        if step is None or (last and (last.launch, last.step) == (launch, step)):
            return
        seen = StepSeen(at=time.time(), launch=launch, step=step)
        self._journal = replace(self._journal, steps=(*self._journal.steps, seen))
        self._unwritten = True

    def _record_save(self) -> None:
        before, newest = self._checkpoint, self.heartbeat.report.checkpoint
        self._checkpoint = newest
        is_new = newest is not None and (before is None or before.uri != newest.uri)
        # Before the training, it is the one to go on from; afterwards no step is trained meanwhile.
        if newest is None or newest.step is None or not is_new or not self._is_training():
            return
        seen = SaveSeen(launch=self.heartbeat.launch, step=newest.step, reached=self.meter.step_now())
        self._journal = replace(self._journal, saves=(*self._journal.saves, seen))
        # At once: the fault may kill this node.
        self._write()

    def _record_writing(self) -> None:
        if self._journal.writes or self.folder is None or not self._is_training():
            return
        if any(not name.startswith(".") for name in _names_in(self.folder)):
            self._journal, self._unwritten = replace(self._journal, writes=True), True

    def _is_training(self) -> bool:
        return self.heartbeat.report.phase is Phase.TRAINING

    def _write(self) -> None:
        self.heartbeat.store.write(drill_journal_of(self.rank), self._journal.to_json())
        self._unwritten, self._written_at = False, time.monotonic()

    def _step(self) -> int | None:
        """Return the last step of the training; a node whose processes report none asks the others."""
        own = self.meter.step_now()
        if own is not None or self.config.nodes == 1:
            return own
        read_at, step = self._others
        if time.monotonic() - read_at > OTHERS_INTERVAL:
            others = read_others(self.heartbeat.quick_store, self.heartbeat.report, self.config.nodes)
            step = furthest_step(others, self.heartbeat.launch)
            self._others = time.monotonic(), step
        return step

    def _stored(self) -> list[CheckpointRef]:
        """Return the job's stored checkpoints, the newest first."""
        from airflow_provider_ocidist.storage.checkpoints import complete

        assert self.config.checkpoints is not None
        assert self.config.checkpoints.uri is not None
        return complete(self.config.checkpoints.uri, self.access)

    # the moment

    def _is_the_moment(self, fault: Fault) -> bool:
        if fault.when is When.RESTORING:
            return self._can_go_back(fault)
        if not self._is_training() or self.folder is None:
            return False
        step = self._step()
        if fault.when is When.RENDEZVOUS:
            return step is None and bool(faults.ranks())
        if step is None or step < fault.step:
            return False
        if fault.kind in OF_PROCESSES and not faults.ranks():
            return False
        # Also before the prelude of a fault.
        return self._can_go_back(self.fault or fault) and _MOMENTS[fault.when](self, self.folder)

    def _can_go_back(self, fault: Fault) -> bool:
        """Whether the training could go on after the fault: from a single checkpoint, damaged, it could not."""
        return fault.kind is not FaultKind.CORRUPT_CHECKPOINT or len(self._stored()) > 1

    def is_saving(self, folder: Path) -> bool:
        """Return whether an entry has appeared in the folder since the first question."""
        names = _names_in(folder)
        if self._known is None:
            self._known = names
        return not names <= self._known

    # inject

    def _strike(self, fault: Fault) -> None:
        injection = injection_of(fault, self._as_injured())
        injected = InjectedFault(
            kind=fault.kind,
            node=self.rank,
            step=self._step(),
            launch=self.heartbeat.launch,
            at=time.time(),
            message=injection.message,
        )
        before, self._known = self._journal, None
        self._journal = replace(before, injected=(*before.injected, injected))
        try:
            # Recorded first: a node that takes this one's place must not do it again.
            self._write()
            logger.warning("drill: %s at step %s", injection.message, injected.step)
            injection.do()
        except (OcidistError, OSError):
            # It has not happened; the next look tries again.
            self._journal, self._unwritten = before, True
            raise

    def _as_injured(self) -> InjuredNode:
        return InjuredNode(rank=self.rank, interface=self.interface, stored=self._stored, access=self.access)

    def met_damage(self, uris: Collection[str]) -> None:
        """Record checkpoints that this node has read and found to be damaged: then such a fault has had an effect."""
        with self._lock:
            self._journal = replace(self._journal, damaged=tuple(sorted({*self._journal.damaged, *uris})))
            self._unwritten = True
            # At once: a node that has found all to be damaged is about to end.
            with contextlib.suppress(OcidistError, OSError):
                self._write()


def drill_of(
    environ: Mapping[str, str],
    config: AgentConfig,
    heartbeat: Heartbeat,
    meter: ProgressMeter,
    access: OciAccess,
) -> Drill | None:
    """Begin the drill that the environment asks for, if any. Raises AgentError for one that cannot be read."""
    text = environ.get(DRILL_VARIABLE)
    if text is None:
        return None
    try:
        fault = None if text == UNDISTURBED else Fault.parse(text)
    except ValueError as error:
        raise AgentError(f"{DRILL_VARIABLE}: {error}", cause=Cause.CONFIG) from error
    interface = None
    if fault and fault.kind in OF_NETWORKS and fault.node == heartbeat.report.rank:
        address = identity_of(environ, config.nodes).address or own_address(environ)
        interface = faults.interface_to_disturb(fault, address, environ)
    return Drill(fault, config, heartbeat, meter, access, interface=interface)


CALLED = (When.UPLOADING, When.RESTORING)
"""Moments that the agent itself names, because one may be over between two looks."""
_MOMENTS: dict[When, Callable[[Drill, Path], bool]] = {
    When.TRAINING: lambda _drill, _folder: True,
    When.SAVING: Drill.is_saving,
    When.UPLOADING: lambda _drill, _folder: True,
}


def _names_in(folder: Path) -> frozenset[str]:
    return frozenset(path.name for path in folder.iterdir()) if folder.is_dir() else frozenset()
