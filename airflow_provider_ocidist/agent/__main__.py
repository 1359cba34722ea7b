"""What every node runs: config -> fetch -> join -> launch -> supervise -> save -> report.

The exit code is the training's own (128 + n for signal n). Where there is none to give, the agent's own say:

    65  the training succeeded, but did not write what its job requires
    69  the other nodes were not found, or were lost
    70  a fault of the agent itself
    74  data could not be read or written
    75  the training hung
    78  the job cannot run as it is configured
   143  this node was told to stop, by a signal or by another node's failure
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from airflow_provider_ocidist import kinds
from airflow_provider_ocidist.agent import fetch
from airflow_provider_ocidist.agent.checkpoints import CheckpointCourier, folder_of, resume
from airflow_provider_ocidist.agent.config import CONFIG_VARIABLE, RANK_VARIABLE, AgentConfig
from airflow_provider_ocidist.agent.diagnosis import Failure, diagnose, tail_of
from airflow_provider_ocidist.agent.hang import HangWatch
from airflow_provider_ocidist.agent.heartbeat import Heartbeat, describe
from airflow_provider_ocidist.agent.outputs import copy_outputs
from airflow_provider_ocidist.agent.progress import ProgressMeter
from airflow_provider_ocidist.agent.report import NodeReport, Phase, StopRequest
from airflow_provider_ocidist.agent.shared_log import MarkingFormatter
from airflow_provider_ocidist.agent.stopping import Stop, Stopped, StopSwitch
from airflow_provider_ocidist.agent.supervise import Ended, Output, Training
from airflow_provider_ocidist.agent.topology import (
    await_address,
    await_others_end,
    meet,
    own_rank,
    read_report,
    topology_of,
)
from airflow_provider_ocidist.errors import AgentError, Cause, OcidistError
from airflow_provider_ocidist.launchers.base import Launcher, Topology
from airflow_provider_ocidist.oci_clients import OciAccess
from airflow_provider_ocidist.storage.checkpoints import CheckpointRef
from airflow_provider_ocidist.storage.stores import open_store

logger = logging.getLogger("ocidist")

LAYOUT = "ocidist: %(message)s"
STOPPED = 143
EXIT_CODES = {
    Cause.USER: 65,
    Cause.NODE: 69,
    Cause.SERVICE: 70,
    Cause.DATA: 74,
    Cause.HANG: 75,
    Cause.CONFIG: 78,
}
REMEDIES = {
    Cause.USER: "the program's own output above says more",
    Cause.OOM: "take a larger shape, a smaller batch, or fewer processes on each node",
    Cause.DATA: "check that it exists, that there is room, and that this node may read and write it",
    Cause.CONFIG: "correct the job",
    Cause.HANG: "see above where it stood; raise limits.hang_timeout if the program is merely silent",
    Cause.NODE: "nothing points at the program itself; run it again",
    Cause.SERVICE: "this is a fault of ocidist or of its storage; the traceback above says more",
}
SAVE_LIMIT = 300.0
"""Seconds that checkpoints may take to safety after a failure."""
EXPLANATION_LIMIT = 6.0
"""Seconds to wait for the node that failed first to say so, before taking the echo for the cause."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How this node's part ended."""

    code: int
    """Of the agent."""
    exit_code: int | None = None
    """Of the training."""
    cause: Cause | None = None
    message: str | None = None
    tail: str | None = None


def main(argv: Sequence[str] | None = None) -> int:
    """Run this node's part and return the exit code; all that it is told is in the environment."""
    del argv
    logging.basicConfig(level=logging.INFO, format=LAYOUT, stream=sys.stderr)
    switch = StopSwitch()
    switch.ask_on_signals()
    try:
        config = AgentConfig.from_env(os.environ)
        return Node(config, os.environ, switch).run()
    except AgentError as error:
        logger.error(
            "this node cannot start: %s: %s. Remedy: %s",
            error.cause,
            error,
            REMEDIES.get(error.cause, "run it again"),
        )
        return _exit_code(error.cause)


class Node:
    """One node's part in one run, stage by stage."""

    def __init__(self, config: AgentConfig, environ: Mapping[str, str], switch: StopSwitch) -> None:
        self.config = config
        self.environ = environ
        self.switch = switch
        self.rank = own_rank(config, environ)
        if config.one_run:
            _mark_own_lines(self.rank)
        self.main_rank = 0
        self.access = OciAccess.from_environment(environ, endpoint=config.oci_endpoint)
        self.meter = ProgressMeter(Path(tempfile.mkdtemp(prefix="ocidist-", dir=_own_folder(environ))))
        self.output = Output(self.meter, mark_as=self.rank if config.one_run else None)
        self.heartbeat = self._heartbeat()

    @property
    def is_main(self) -> bool:
        """Whether the process of global rank 0 runs here: then checkpoints and outputs are here too."""
        return self.rank == self.main_rank

    def run(self) -> int:
        """Go through all stages; whatever happens, the report says how it ended."""
        self.heartbeat.start()
        try:
            outcome = self._go()
        except Stopped as stopped:
            outcome = self._stopped(stopped.stop, exit_code=None)
        except AgentError as error:
            outcome = self._failed_ourselves(error.cause, str(error))
        except Exception as error:
            logger.exception("unexpected")
            outcome = self._failed_ourselves(Cause.SERVICE, f"{type(error).__name__}: {error}")
        return self._report(outcome)

    def _go(self) -> Outcome:
        launcher = load_launcher(self.config.launcher.kind)
        workspace = self._fetch()
        topology = self._join(launcher)
        courier = self._courier(workspace)
        training = self._launch(launcher, workspace, topology)
        ended = training.wait(self.switch, self.config.limits.stop_grace)
        if ended.stop or ended.exit_code:
            return self._not_succeeded(ended, launcher, courier)
        return self._save(workspace, courier)

    # Before the training

    def _fetch(self) -> fetch.Workspace:
        self.heartbeat.update(phase=Phase.FETCHING, now=True)
        workspace = fetch.fetch_code(self.config, self.environ, self.access, self.switch)
        fetch.fetch_inputs(self.config.inputs, workspace.working_dir, self.access, self.switch)
        if self.config.checkpoints:
            folder = folder_of(self.config.checkpoints, workspace.working_dir)
            found = resume(folder, self.config.checkpoints, self.access, self.switch)
            if found:
                self.heartbeat.update(checkpoint=found)
        return workspace

    def _join(self, launcher: Launcher) -> Topology:
        self.switch.check()
        limits = self.config.limits
        address = await_address(self.environ, self.rank, self.switch.pause, limits.join_timeout)
        self.heartbeat.update(phase=Phase.JOINING, address=address, now=True)
        reports = meet(
            self.heartbeat.store, self.heartbeat, nodes=self.config.nodes, timeout=limits.join_timeout
        )
        topology = topology_of(self.config, reports, self.rank, self.environ)
        self.main_rank = launcher.main_node(self.config.launcher, topology)
        self.heartbeat.update(main=self.is_main)
        return topology

    # The training

    def _launch(self, launcher: Launcher, workspace: fetch.Workspace, topology: Topology) -> Training:
        self.switch.check()
        command = launcher.command(workspace.program, self.config.launcher, topology)
        environ = self._environment(launcher, workspace, topology)
        self.meter.touch()
        training = Training(command, environ, workspace.working_dir, self.output)
        started_in = time.time() - self.heartbeat.report.started_at
        logger.info(
            "node %d of %d: %s launched after %.2f s",
            self.rank,
            topology.nodes,
            self.config.launcher.kind,
            started_in,
        )
        self._watch_for_hangs()
        self.heartbeat.update(phase=Phase.TRAINING, now=True)
        return training

    def _environment(
        self, launcher: Launcher, workspace: fetch.Workspace, topology: Topology
    ) -> dict[str, str]:
        inherited = {name: value for name, value in self.environ.items() if name != CONFIG_VARIABLE}
        defaults = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1", **launcher.defaults(topology)}
        ours = {
            "PYTHONPATH": fetch.environment_paths(workspace, self.environ),
            RANK_VARIABLE: str(self.rank),
            "OCIDIST_NODES": str(topology.nodes),
            "OCIDIST_RUN_NAME": self.config.run_name,
            "OCIDIST_CHECKPOINT_DIR": str(folder_of(self.config.checkpoints, workspace.working_dir)),
            "OCIDIST_PROGRESS_FILE": str(self.meter.file),
        }
        return {**defaults, **inherited, **ours, **launcher.environment(topology)}

    def _watch_for_hangs(self) -> None:
        timeout = self.config.limits.hang_timeout
        if timeout is not None:
            watch = HangWatch(self.meter, timeout, others=self._others_progress, declare=self._hung)
            self.heartbeat.watches.append(watch.look)

    def _hung(self, message: str) -> None:
        self._tell_others(Cause.HANG, message)
        self.switch.ask(Stop(cause=Cause.HANG, message=message, stacks=True))

    def _others_progress(self) -> list[float | None]:
        """Return when each other node last moved; the main node judges for all, the others once it is done."""
        others = [rank for rank in range(self.config.nodes) if rank != self.rank]
        reports = [read_report(self.heartbeat.store, rank) for rank in others]
        done = {report.rank for report in reports if report and report.phase is Phase.DONE}
        if not self.is_main and self.main_rank not in done:
            return [None]
        return [_last_movement(report) for report in reports]

    # After the training

    def _not_succeeded(self, ended: Ended, launcher: Launcher, courier: CheckpointCourier | None) -> Outcome:
        process = launcher.first_failure(ended.output)
        output = launcher.user_output(ended.output)
        if ended.stop:
            outcome = self._stopped(
                ended.stop, process.exit_code if process else ended.exit_code, tail_of(output)
            )
        else:
            failure = diagnose(ended.exit_code, output, process, ended.oom_killed)
            outcome = self._failed(failure)
        self.heartbeat.update(phase=Phase.SAVING, now=True)
        if courier:
            in_a_hurry = ended.stop is not None and ended.stop.cause is None
            limit = self.config.limits.stop_grace if in_a_hurry else SAVE_LIMIT
            error = courier.finish(clean=ended.exit_code >= 0 and not ended.killed, limit=limit)
            if error:
                logger.error("%s", error)
        return outcome

    def _failed(self, failure: Failure) -> Outcome:
        explanation = self._explanation() if failure.consequence else None
        if explanation:
            return Outcome(
                code=STOPPED, exit_code=failure.exit_code, message=describe(explanation), tail=failure.tail
            )
        message = failure.message
        if failure.consequence:
            message = f"lost the connection to another node: {message}"
        if failure.rank is not None:
            message = f"{message} (rank {failure.rank})"
        self._tell_others(failure.cause, message)
        return Outcome(
            code=_as_exit_status(failure.exit_code),
            exit_code=failure.exit_code,
            cause=failure.cause,
            message=message,
            tail=failure.tail,
        )

    def _explanation(self) -> StopRequest | None:
        """Return what the node that failed first says, if one does within some seconds."""
        deadline = time.monotonic() + (EXPLANATION_LIMIT if self.config.nodes > 1 else 0)
        while time.monotonic() < deadline:
            request = self.heartbeat.read_stop_request()
            if request:
                return request
            time.sleep(0.25)
        return None

    def _stopped(self, stop: Stop, exit_code: int | None, tail: str | None = None) -> Outcome:
        if stop.cause is None:
            return Outcome(code=STOPPED, exit_code=exit_code, message=stop.message, tail=tail)
        return Outcome(
            code=_exit_code(stop.cause),
            exit_code=exit_code,
            cause=stop.cause,
            message=stop.message,
            tail=tail,
        )

    def _failed_ourselves(self, cause: Cause, message: str) -> Outcome:
        self._tell_others(cause, message)
        return Outcome(
            code=_exit_code(cause),
            cause=cause,
            message=message,
            tail=tail_of(self.output.end) or None,
        )

    def _save(self, workspace: fetch.Workspace, courier: CheckpointCourier | None) -> Outcome:
        """Carry away what a successful training has left; less than the job requires is a failure."""
        self.heartbeat.update(phase=Phase.SAVING, now=True)
        if courier:
            error = courier.finish(clean=True, limit=None)
            if error:
                raise AgentError(error, cause=Cause.DATA)
            self._require_checkpoint()
        if self.is_main:
            outputs = copy_outputs(self.config.outputs, workspace.working_dir, self.access)
            self.heartbeat.update(outputs=outputs)
        return Outcome(code=0, exit_code=0, tail=tail_of(self.output.end))

    def _require_checkpoint(self) -> None:
        checkpoints = self.config.checkpoints
        if checkpoints and checkpoints.required and self.heartbeat.report.checkpoint is None:
            raise AgentError(
                f"the training succeeded but wrote no checkpoint into {checkpoints.path!r}: "
                "each entry there needs a step number in its name",
                cause=Cause.USER,
            )

    # What others see

    def _heartbeat(self) -> Heartbeat:
        now = time.time()
        report = NodeReport(
            rank=self.rank,
            phase=Phase.STARTING,
            address="",
            started_at=now,
            heartbeat_at=now,
        )
        try:
            store = open_store(self.config.run_dir, self.access)
        except OcidistError as error:
            raise AgentError(f"the run directory cannot be used: {error}", cause=Cause.CONFIG) from error
        heartbeat = Heartbeat(store, report, self.switch)
        heartbeat.watches.append(self._report_progress)
        return heartbeat

    def _report_progress(self) -> None:
        self.meter.read_file()
        self.heartbeat.update(progress=self.meter.progress)

    def _courier(self, workspace: fetch.Workspace) -> CheckpointCourier | None:
        checkpoints = self.config.checkpoints
        if checkpoints is None or checkpoints.uri is None or not self.is_main:
            return None
        courier = CheckpointCourier(
            folder_of(checkpoints, workspace.working_dir),
            checkpoints,
            self.access,
            loss_at=self.meter.loss_at,
            on_published=self._checkpoint_is_safe,
        )
        courier.start()
        return courier

    def _checkpoint_is_safe(self, reference: CheckpointRef) -> None:
        self.meter.touch()
        known = self.heartbeat.report.checkpoint
        if known is None or reference.step >= known.step:
            self.heartbeat.update(checkpoint=reference, now=True)

    def _tell_others(self, cause: Cause, message: str) -> None:
        if self.config.nodes > 1:
            self.heartbeat.ask_all_to_stop(StopRequest(cause=cause, message=message, rank=self.rank))

    def _report(self, outcome: Outcome) -> int:
        if outcome.cause:
            logger.error("%s", _one_line(self.rank, self.config.nodes, outcome))
        elif outcome.message:
            logger.error("node %d ends: %s", self.rank, outcome.message)
        self.meter.close()
        self.heartbeat.finish(
            phase=Phase.DONE,
            exit_code=outcome.exit_code,
            cause=outcome.cause,
            message=outcome.message,
            tail=outcome.tail,
            progress=self.meter.progress,
        )
        if outcome.code and self.config.one_run:
            store, nodes = self.heartbeat.store, self.config.nodes
            await_others_end(store, self.rank, nodes, SAVE_LIMIT, self.switch.signalled)
        return outcome.code


def _last_movement(report: NodeReport | None) -> float | None:
    """Return when a node last showed progress, or that it has ended; None when that is not known."""
    if report is None:
        return None
    return report.finished_at or (report.progress.updated_at if report.progress else None)


def _exit_code(cause: Cause) -> int:
    return EXIT_CODES.get(cause, EXIT_CODES[Cause.SERVICE])


def _remedy(cause: Cause | None) -> str:
    return REMEDIES.get(cause, "run it again") if cause is not None else "run it again"


def _own_folder(environ: Mapping[str, str]) -> str | None:
    """Return the node's home, which goes when the node goes; None where it has none of its own."""
    home = environ.get("HOME")
    return home if home and os.access(home, os.W_OK) else None


def _mark_own_lines(rank: int) -> None:
    for handler in logging.getLogger().handlers:
        handler.setFormatter(MarkingFormatter(rank, LAYOUT))


def load_launcher(kind: str) -> Launcher:
    """Return the launcher of a kind. Raises AgentError when there is none, or this node lacks its package."""
    try:
        launcher: Launcher = kinds.load("launchers", kind).LAUNCHER
    except LookupError as error:
        raise AgentError(str(error), cause=Cause.CONFIG) from error
    lacking = [name for name in launcher.requires if find_spec(name) is None]
    if lacking:
        raise AgentError(
            f"the launcher {kind} needs the Python package {lacking[0]}, and {sys.executable} has none: "
            "choose an image or environment that has it",
            cause=Cause.CONFIG,
        )
    return launcher


def _one_line(rank: int, nodes: int, outcome: Outcome) -> str:
    assert outcome.cause is not None
    ended = "" if outcome.exit_code is None else f" [exit code {outcome.exit_code}]"
    what = f"node {rank} of {nodes} failed: {outcome.cause}: {outcome.message}{ended}"
    return f"{what}. Remedy: {REMEDIES.get(outcome.cause, 'run it again')}"


def _as_exit_status(code: int) -> int:
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
