"""Node: one node's part in one run, stage by stage."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar, Union

from airflow_provider_ocidist.agent.diagnose import outcome
from airflow_provider_ocidist.agent.diagnose.diagnosis import NodeFailure, diagnose, tail_of
from airflow_provider_ocidist.agent.diagnose.outcome import Outcome
from airflow_provider_ocidist.agent.diagnose.stacks import PROGRAM_FOLDER, odd_ones
from airflow_provider_ocidist.agent.diagnose.standstill import Standstill
from airflow_provider_ocidist.agent.drill import Drill
from airflow_provider_ocidist.agent.join.claims import claim_checkpoints
from airflow_provider_ocidist.agent.join.heartbeat import Heartbeat, describe
from airflow_provider_ocidist.agent.join.node_identity import identity_of
from airflow_provider_ocidist.agent.join.topology import (
    await_address,
    await_others_end,
    await_others_saved,
    meet,
    placement_of,
    read_others,
    require_own_addresses,
)
from airflow_provider_ocidist.agent.monitor.lease import LeaseWatch
from airflow_provider_ocidist.agent.monitor.peers import silent_nodes
from airflow_provider_ocidist.agent.monitor.process_logs import read_process_logs, runs_in
from airflow_provider_ocidist.agent.monitor.progress import ProgressMeter
from airflow_provider_ocidist.agent.monitor.recovery import RecoveryClock
from airflow_provider_ocidist.agent.monitor.spent import BudgetWatch, spent_before
from airflow_provider_ocidist.agent.monitor.watches import Watches
from airflow_provider_ocidist.agent.patience import patiently
from airflow_provider_ocidist.agent.prepare import code
from airflow_provider_ocidist.agent.prepare.inputs import fetch_inputs
from airflow_provider_ocidist.agent.prepare.mounts import check_mounts
from airflow_provider_ocidist.agent.prepare.workspace import Workspace, environment_paths, program_paths
from airflow_provider_ocidist.agent.save import outputs
from airflow_provider_ocidist.agent.save.checkpoints import folder_of, resume, resume_after_clear, start_from
from airflow_provider_ocidist.agent.save.deliveries import (
    ShardCollector,
    ShardUploader,
    hide_folder,
    nodes_apart,
    show_folder,
)
from airflow_provider_ocidist.agent.save.leftovers import discard
from airflow_provider_ocidist.agent.save.proofs import Moment
from airflow_provider_ocidist.agent.save.saving import SAVE_LIMIT, Patience
from airflow_provider_ocidist.agent.save.uploads import CheckpointUploader, ProgramState
from airflow_provider_ocidist.agent.secrecy import keep_from_log
from airflow_provider_ocidist.agent.stopping import Stop, Stopped, StopSwitch
from airflow_provider_ocidist.agent.train.abandonable import abandonable
from airflow_provider_ocidist.agent.train.activity import Activity
from airflow_provider_ocidist.agent.train.launch import check_tools, load_launcher, public_key, write_files
from airflow_provider_ocidist.agent.train.restarts import refusal
from airflow_provider_ocidist.agent.train.shared_log import MarkingFormatter
from airflow_provider_ocidist.agent.train.supervise import Ended, Output, Training
from airflow_provider_ocidist.errors import AgentError, Cause, OcidistError
from airflow_provider_ocidist.launchers.base import Launcher, Placement
from airflow_provider_ocidist.model import codec
from airflow_provider_ocidist.model.agent_config import CONFIG_VARIABLE, RANK_VARIABLE, AgentConfig
from airflow_provider_ocidist.model.budget import budget_of
from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.model.drill import DRILL_VARIABLE, Fault
from airflow_provider_ocidist.model.job import Checkpoints, Restarts
from airflow_provider_ocidist.model.masking import masked_text, secrets_in
from airflow_provider_ocidist.model.report import NodeReport, Phase, Restart, StopRequest
from airflow_provider_ocidist.oci_client.credentials import OciAccess

logger = logging.getLogger("ocidist")

T = TypeVar("T")

Courier = Union[CheckpointUploader, ShardUploader]

LAYOUT = "ocidist: %(message)s"
STACKS_LIMIT = 10.0
"""Seconds to wait, after a hang, until the other nodes have shown where their processes stand."""
SEEN_LATE = 2.0
"""Seconds until a platform has seen that a process has ended: a pod that it takes to run is deleted with its log."""
EXPLANATION_LIMIT = 5.0
"""Seconds to wait for the first failed node's report, before this node's own error is the cause."""


class Node:
    """One node's part in one run, stage by stage."""

    def __init__(self, config: AgentConfig, environ: Mapping[str, str], switch: StopSwitch) -> None:
        self.config = config
        self.switch = switch
        self.place = identity_of(environ, config.nodes)
        self.rank = self.place.rank
        self.environ = {**environ, **(config.worker_env if self.rank else config.main_env)}
        if config.one_run:
            _mark_own_lines(self.rank)
        self.main_rank = 0
        self.apart: tuple[int, ...] = ()
        """On the main node: the nodes whose checkpoint folder is another than its own."""
        self.folder_is_own = config.nodes == 1
        """Whether no other node sees this one's checkpoint folder."""
        self.brought: set[str] = set()
        """Names of the checkpoint folder's entries that this attempt has fetched."""
        self.promised = config.outputs
        """Outputs to copy, once the variables in their URIs are known."""
        self.access = OciAccess.from_environment(environ, endpoint=config.oci_endpoint)
        self.folder = Path(tempfile.mkdtemp(prefix="ocidist-", dir=_own_folder(environ)))
        self.meter = ProgressMeter(self.folder)
        self.secrets = secrets_in([dict(environ), codec.encode(config)])
        self.output = self._new_output()
        keep_from_log(self.secrets)
        self.activity = Activity()
        self.budget: BudgetWatch | None = None
        self.heartbeat = self._heartbeat()
        self.standstill = Standstill(
            self.folder, self.rank, self.heartbeat.hasty.write, lambda text: self._shown(text) or ""
        )
        self.watches = self._new_watches()
        self.logs_of_processes: Path | None = None
        """Folder of the processes' own logs, where the launcher keeps any."""
        self.earlier_logs: frozenset[str] = frozenset()
        """Names of what lay in it before this launch."""
        self.reports: list[NodeReport] = []
        """Of all nodes, at the join."""
        self.recovery = RecoveryClock()
        self.drill: Drill | None = None

    def _new_output(self) -> Output:
        return Output(self.meter, self.rank if self.config.one_run else None, self.secrets)

    def _new_watches(self) -> Watches:
        return Watches(self.config, self.heartbeat, self.meter, end_gang=self._end_gang)

    @property
    def is_main(self) -> bool:
        """Whether the process of global rank 0 runs here: then checkpoints and outputs are here too."""
        return self.rank == self.main_rank

    def run(self) -> int:
        """Run all stages; the report records the outcome in any case."""
        self.heartbeat.start()
        try:
            ended = self._go()
        except Stopped as stopped:
            ended = outcome.stopped(stopped.stop)
        except AgentError as error:
            ended = self._failed_ourselves(error.cause, str(error))
        except Exception as error:
            logger.exception("unexpected")
            ended = self._failed_ourselves(Cause.SERVICE, f"{type(error).__name__}: {error}")
        return self._report(ended)

    def _go(self) -> Outcome:
        self.drill = self._new_drill()
        launcher = load_launcher(self.config.launcher)
        workspace = abandonable(self._fetch, self.switch)
        check_tools(launcher, self.config.launcher, self.config.nodes, workspace.overlay)
        result = self._one_launch(launcher, workspace)
        while result.restarts:
            self._begin_again(workspace, result)
            result = self._one_launch(launcher, workspace)
        return result

    def _new_drill(self) -> Drill | None:
        text = self.environ.get(DRILL_VARIABLE)
        if text is None:
            return None
        try:
            fault = Fault.parse(text)
        except ValueError as error:
            raise AgentError(f"{DRILL_VARIABLE}: {error}", cause=Cause.CONFIG) from error
        return Drill(fault, self.config, self.heartbeat, self.meter, self.access)

    def _one_launch(self, launcher: Launcher, workspace: Workspace) -> Outcome:
        try:
            return self._train(launcher, workspace)
        except Stopped as stopped:
            if not stopped.stop.restarts:
                raise
            # Another node has failed before this one's program was launched.
            return outcome.stopped(stopped.stop)

    def _train(self, launcher: Launcher, workspace: Workspace) -> Outcome:
        """Launch the training with the other nodes, and return how that ended."""
        placement = self._join(launcher)
        self._compare_folders(workspace)
        if self.rank != 0:
            code.require_same(workspace.commit, self.heartbeat.store)
        self.switch.check()
        courier = self._courier(workspace)
        training = self._launch(launcher, workspace, placement)
        began = time.monotonic()
        ended = training.wait(self.switch, self.config.limits.stop_grace)
        self._note_recovery()
        self.recovery.ended()
        self.heartbeat.update(trained_for=round(time.monotonic() - began, 1))
        if ended.stop or ended.exit_code:
            return self._not_succeeded(ended, launcher, courier, workspace)
        return self._save(workspace, courier)

    def _begin_again(self, workspace: Workspace, ended: Outcome) -> None:
        """Go back to the newest whole checkpoint, for another launch on the same machines."""
        logger.warning(
            "launch %d of the training ended: %s; launching it again", len(ended.restarts), ended.message
        )
        self.watches.close()
        self.heartbeat.update(restarts=ended.restarts, phase=Phase.FETCHING, slow=(), stands=None, now=True)
        self.switch.rearm(len(ended.restarts))
        self.meter.begin_again()
        await_others_saved(self.heartbeat, nodes=self.config.nodes, timeout=self.config.limits.join_timeout)
        checkpoints = self.config.checkpoints
        if checkpoints is None:
            return
        self.brought.clear()
        abandonable(lambda: self._patiently(lambda: self._restore(workspace)), self.switch)
        if self.folder_is_own and not self.is_main:
            # Afterwards: its parts of what is restored need not be fetched.
            folder = folder_of(checkpoints, workspace.working_dir)
            discard(folder, checkpoints.pattern, fetched=self.brought)

    # Before the training

    def _fetch(self) -> Workspace:
        self.heartbeat.update(phase=Phase.FETCHING, now=True)
        check_mounts(self.config.mounts, self.environ)
        if self.rank == 0 and self.config.attempt > 1:
            self._patiently(self._count_earlier_attempts)
        self.promised = outputs.resolved(self.config.outputs, self.environ)
        workspace = self._patiently(
            lambda: code.fetch_code(self.config, self.environ, self.access, self.switch)
        )
        if self.rank == 0 and self.config.nodes > 1:
            with code.storage_errors("the run directory", self.folder):
                code.announce(workspace.commit, self.heartbeat.store)
        workspace = self._install(workspace)
        self.activity.enter()
        limit = self.config.limits.join_timeout
        fetch_inputs(self.config.inputs, workspace.working_dir, self.access, self.switch, limit)
        if self.config.checkpoints:
            self._patiently(lambda: self._restore(workspace))
        return workspace

    def _count_earlier_attempts(self) -> None:
        with code.storage_errors("the run directories of earlier attempts", self.folder):
            spent = spent_before(self.config.run_dir, self.config.attempt, self.access)
        self._note_spent(spent)

    def _note_spent(self, before: float | None) -> None:
        self.heartbeat.update(spent_before=before)
        if self.budget is not None and before is not None:
            self.budget.before = before

    def _patiently(self, work: Callable[[], T]) -> T:
        """Do the work of one stage; retry for `limits.join_timeout` while the store does not answer."""
        self.activity.enter()
        return patiently(work, self.config.limits.join_timeout, self.switch.event)

    def _restore(self, workspace: Workspace) -> None:
        assert self.config.checkpoints is not None
        folder = folder_of(self.config.checkpoints, workspace.working_dir)
        if self.rank == 0:
            claim_checkpoints(self.config, self.access)
        brought = self.brought
        launched_before = self.config.fence if self.heartbeat.launch else None
        found = resume(
            folder,
            self.config.checkpoints,
            self.access,
            self.switch,
            brought,
            launched_before=launched_before,
        )
        found = found or resume_after_clear(folder, self.config, self.access, self.switch, brought)
        if found:
            self.heartbeat.update(checkpoint=found, starts_from=found.digest or found.uri)
        else:
            self.heartbeat.update(starts_from="")
            # Not reported: it is another run's checkpoint.
            start_from(folder, self.config.checkpoints, self.access, self.switch, brought)
        if self.config.nodes > 1 and self.config.checkpoints.uri:
            show_folder(folder, self.config.run_name, self.rank)

    def _install(self, workspace: Workspace) -> Workspace:
        config = self.config
        self.activity.enter()
        if config.dependencies is None:
            return workspace
        from airflow_provider_ocidist.agent.prepare.packages import install
        from airflow_provider_ocidist.agent.prepare.wheels import WheelCache

        cache = WheelCache(
            run_dir=config.run_dir,
            rank=self.rank,
            nodes=config.nodes,
            access=self.access,
            switch=self.switch,
        )
        return install(config.dependencies, workspace, self.environ, self.switch, cache)

    def _join(self, launcher: Launcher) -> Placement:
        self.switch.check()
        limits = self.config.limits
        address = await_address(self.place, self.environ, self.switch.pause, limits.join_timeout)
        key = public_key(launcher, self.config.launcher, self.config.nodes, self.folder)
        self.heartbeat.update(phase=Phase.JOINING, address=address, public_key=key, now=True)
        reports = meet(
            self.heartbeat.store, self.heartbeat, nodes=self.config.nodes, timeout=limits.join_timeout
        )
        require_own_addresses(reports)
        self._require_same_checkpoint(reports)
        self.reports = reports
        self._note_spent(reports[0].spent_before)
        placement = placement_of(self.config, reports, self.place, self.environ)
        placement = replace(placement, folder=str(self.folder))
        self.main_rank = launcher.main_node(self.config.launcher, placement)
        self.heartbeat.update(main=self.is_main)
        return placement

    def _require_same_checkpoint(self, reports: Sequence[NodeReport]) -> None:
        """Raise AgentError if the nodes would resume from different checkpoints."""
        # Compared by content: two attempts may save at one step, or a program twice under one name. `starts_from`
        # stays in a node's report, also after it has gone on or has ended over the difference.
        if len({report.starts_from for report in reports} - {None}) > 1:
            known = ((report.rank, report.checkpoint if report.starts_from else None) for report in reports)
            shown = ", ".join(f"{rank}: {each.uri if each else None}" for rank, each in known)
            raise AgentError(
                f"the nodes would go on from different checkpoints (of each node: {shown}): "
                "one of them is damaged, or changed just now; run it again",
                cause=Cause.NODE,
            )

    def _compare_folders(self, workspace: Workspace) -> None:
        """Find out which nodes share the checkpoint folder; all have marked theirs by now."""
        checkpoints, nodes, run_name = self.config.checkpoints, self.config.nodes, self.config.run_name
        if checkpoints is None or checkpoints.uri is None or nodes == 1:
            return
        folder = folder_of(checkpoints, workspace.working_dir)
        if self.is_main:
            self.apart = nodes_apart(folder, run_name, self.rank, nodes)
        else:
            self.folder_is_own = hide_folder(folder, run_name, self.rank, self.main_rank)

    # The training

    def _launch(self, launcher: Launcher, workspace: Workspace, placement: Placement) -> Training:
        write_files(launcher.files(self.config.launcher, placement), self.folder)
        logs = launcher.log_folder(self.config.launcher, placement)
        self.logs_of_processes = workspace.working_dir / logs if logs else None
        if self.logs_of_processes:
            self.earlier_logs = runs_in(self.logs_of_processes)
        if self.logs_of_processes and launcher.hides_output(self.config.launcher):
            self.meter.look_for_output_in(self.logs_of_processes)
        command = launcher.command(workspace.program, self.config.launcher, placement)
        environ = self._environment(launcher, workspace, placement)
        if self.heartbeat.launch:
            # What the launch before has printed must not explain how this one ends.
            self.output, self.watches = self._new_output(), self._new_watches()
            self.recovery.launched(self.heartbeat.launch)
        self.meter.touch()
        self.standstill.begin()
        show_stacks = self._stack_shower(environ.get("PATH"))
        training = Training(command, environ, workspace.working_dir, self.output, show_stacks)
        started_in = time.monotonic() - self.heartbeat.began_at
        logger.info(
            "node %d of %d: %s launched after %.2f s",
            self.rank,
            placement.nodes,
            self.config.launcher.kind,
            started_in,
        )
        self.watches.start(self.reports, self.main_rank, training.pid, workspace.working_dir)
        self.heartbeat.update(phase=Phase.TRAINING, now=True)
        if self.drill:
            self.drill.folder = folder_of(self.config.checkpoints, workspace.working_dir)
        return training

    def _environment(self, launcher: Launcher, workspace: Workspace, placement: Placement) -> dict[str, str]:
        inherited = {name: value for name, value in self.environ.items() if name != CONFIG_VARIABLE}
        defaults = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1", **launcher.defaults(placement)}
        ours = {
            # Before the program's own folders: ours runs what it hides there.
            "PYTHONPATH": os.pathsep.join([PROGRAM_FOLDER, environment_paths(workspace, self.environ)]),
            "PATH": program_paths(workspace, self.environ),
            RANK_VARIABLE: str(self.rank),
            "OCIDIST_NODES": str(placement.nodes),
            "OCIDIST_RESTARTS": str(self.heartbeat.launch),
            "OCIDIST_RUN_NAME": self.config.run_name,
            "OCIDIST_CHECKPOINT_DIR": str(folder_of(self.config.checkpoints, workspace.working_dir)),
            "OCIDIST_PROGRESS_FILE": str(self.meter.file),
            **self.standstill.environment(),
        }
        return {**defaults, **inherited, **ours, **launcher.environment(placement)}

    def _stack_shower(self, search: str | None) -> Callable[[int], None]:
        """Return what keeps the stacks of a training that hangs; `search`: its PATH."""

        def show(guard_pid: int) -> None:
            stands = self.standstill.keep(guard_pid, self.heartbeat.launch, search)
            self.heartbeat.update(stands=stands, now=True)
            self._await_others_stacks()

        return show

    def _await_others_stacks(self) -> None:
        """Wait until the other nodes have kept their stacks too: the end of one's processes ends the others'."""
        deadline = time.monotonic() + STACKS_LIMIT
        while time.monotonic() < deadline:
            reports = read_others(self.heartbeat.store, self.rank, self.config.nodes)
            if all(
                report and (report.stands is not None or report.phase in (Phase.SAVING, Phase.DONE))
                for report in reports
            ):
                return
            time.sleep(0.25)

    # After the training

    def _not_succeeded(
        self, ended: Ended, launcher: Launcher, courier: Courier | None, workspace: Workspace
    ) -> Outcome:
        process = launcher.first_failure(ended.output)
        output = launcher.user_output(ended.output)
        if self.logs_of_processes:
            output += read_process_logs(self.logs_of_processes, self.earlier_logs)
        if ended.stop:
            exit_code = process.exit_code if process else ended.exit_code
            result = outcome.stopped(self._with_odd_ones(ended.stop), exit_code, tail_of(output))
        else:
            self.standstill.keep_records(self.heartbeat.launch)
            result = self._failed(diagnose(ended.exit_code, output, process, ended.oom_killed))
        self.heartbeat.update(phase=Phase.SAVING, now=True)
        in_a_hurry = ended.stop is not None and ended.stop.cause is None and ended.stop.hurried
        limit = self.config.limits.stop_grace if in_a_hurry else SAVE_LIMIT
        if courier:
            undelivered = courier.finish(Moment.CUT_OFF, Patience(limit))
            if undelivered:
                logger.error("%s", undelivered.message)
        if not result.restarts:
            self._copy_after_failure(workspace, limit)
        return result

    def _with_odd_ones(self, stop: Stop) -> Stop:
        """Return the reason with the ranks that stand elsewhere than the others, where the training hung."""
        if not (stop.stacks and self.is_main):
            return stop
        others = read_others(self.heartbeat.store, self.rank, self.config.nodes)
        found = odd_ones(
            each for report in [self.heartbeat.report, *others] if report for each in report.stands or ()
        )
        if found:
            logger.error("%s", found)
        return replace(stop, message=f"{stop.message}; {found}") if found else stop

    def _failed(self, failure: NodeFailure) -> Outcome:
        silent: list[int] = []
        if failure.consequence and self.config.nodes > 1:
            before = read_others(self.heartbeat.store, self.rank, self.config.nodes)
            explanation = self._explanation()
            if explanation:
                return outcome.echo(failure, describe(explanation), explanation.restarts)
            silent = silent_nodes(before, read_others(self.heartbeat.store, self.rank, self.config.nodes))
        result = outcome.failure(failure, silent)
        # A node that is silent will not come to another launch.
        return self._asked(result, may_restart=not silent)

    def _asked(self, failed: Outcome, *, may_restart: bool) -> Outcome:
        """Ask the other nodes to end; return the outcome, with the restarts where the training is launched again."""
        cause, message = failed.cause or Cause.USER, failed.message or "the training failed"
        restarts, why_not = self._restarts_after(cause, message) if may_restart else ((), None)
        if why_not:
            failed, message = replace(failed, message=f"{message}; {why_not}"), f"{message}; {why_not}"
        return replace(failed, restarts=self._ask_others(cause, message, restarts))

    def _restarts_after(self, cause: Cause, message: str) -> tuple[tuple[Restart, ...], str | None]:
        """Return the restarts with the new one, or none and why; without any allowed, no reason is worth a word."""
        budgets, before = self.config.restarts, self.heartbeat.report.restarts
        if budgets == Restarts():
            return (), None
        failure = Restart(
            cause=cause, message=self._shown(message) or "", rank=self.rank, step=self.meter.step_now()
        )
        why_not = refusal(budgets, before, failure) or self._ended_before()
        return ((), f"not launched again: {why_not}") if why_not else ((*before, failure), None)

    def _ended_before(self) -> str | None:
        """Return why the others cannot launch again: one has succeeded, and saves its results."""
        for report in read_others(self.heartbeat.store, self.rank, self.config.nodes):
            if (
                report
                and report.phase in (Phase.SAVING, Phase.DONE)
                and len(report.restarts) == self.heartbeat.launch
            ):
                return f"node {report.rank} has ended already"
        return None

    def _explanation(self) -> StopRequest | None:
        """Return the first failed node's stop request, if it arrives within some seconds."""
        deadline = time.monotonic() + EXPLANATION_LIMIT
        while time.monotonic() < deadline:
            request = self.heartbeat.read_stop_request()
            if request:
                return request
            time.sleep(0.25)
        return None

    def _failed_ourselves(self, cause: Cause, message: str) -> Outcome:
        self._ask_others(cause, message)
        return outcome.own_fault(cause, message, tail_of(self.output.end) or None)

    def _save(self, workspace: Workspace, courier: Courier | None) -> Outcome:
        """Save a successful training's results; a missing required one is a failure."""
        self.heartbeat.update(phase=Phase.SAVING, now=True)
        limits = self.config.limits
        patience = Patience(limits.save_timeout, self.switch, grace=limits.stop_grace)
        if courier:
            undelivered = courier.finish(Moment.EXITED, patience)
            if undelivered:
                raise AgentError(undelivered.message, cause=undelivered.cause)
            if self.is_main:
                self._require_checkpoint(workspace)
        copied = outputs.copy_outputs(self._parcels(workspace), self.access, patience=patience)
        self.heartbeat.update(outputs=copied)
        return outcome.success(tail_of(self.output.end))

    def _copy_after_failure(self, workspace: Workspace, limit: float) -> None:
        too_late = threading.Event()
        timer = threading.Timer(limit, too_late.set)
        timer.start()
        try:
            chosen = self._parcels(workspace, failed_run=self.config.run_name)
            outputs.copy_outputs(chosen, self.access, too_late)
        except AgentError as error:
            logger.error("%s", error)
        finally:
            timer.cancel()

    def _parcels(self, workspace: Workspace, failed_run: str | None = None) -> list[outputs.OutputCopy]:
        return outputs.parcels(
            self.promised,
            workspace.working_dir,
            rank=self.rank,
            is_main=self.is_main,
            failed_run=failed_run,
        )

    def _require_checkpoint(self, workspace: Workspace) -> None:
        checkpoints = self.config.checkpoints
        if checkpoints is None or not checkpoints.required or self.heartbeat.report.checkpoint is not None:
            return
        folder = folder_of(checkpoints, workspace.working_dir)
        unusable = [path.name for path in sorted(folder.iterdir())] if folder.is_dir() else []
        why = (
            f"say in checkpoints.pattern which of its names are checkpoints: {', '.join(unusable[:3])}"
            if unusable
            else "nothing lies there"
        )
        raise AgentError(
            f"the training succeeded but wrote no checkpoint into {checkpoints.path!r}: {why}",
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
            heartbeat = Heartbeat.open(self.config.run_dir, self.access, report, self.switch)
        except OcidistError as error:
            raise AgentError(f"the run directory cannot be used: {error}", cause=Cause.CONFIG) from error
        heartbeat.watches.append(self._report_progress)
        budget = budget_of(self.config.limits, self.config.price)
        if budget is not None:
            # From the start: fetching terabytes costs as much as training on them.
            self.budget = BudgetWatch(
                budget,
                self.config.price,
                self.config.nodes,
                others=lambda: read_others(heartbeat.hasty, self.rank, self.config.nodes),
                declare=lambda message: self._end_gang(Stop(cause=Cause.BUDGET, message=message)),
            )
            heartbeat.watches.append(self.budget.look)
        if self.config.limits.lease:
            # From the start: fetching terabytes costs as much as training on them.
            lease = LeaseWatch(self.config.limits.lease, heartbeat.read_lease, declare=self._abandoned)
            heartbeat.watches.append(lease.look)
        return heartbeat

    def _abandoned(self, message: str) -> None:
        checkpoint = self.heartbeat.report.checkpoint
        rest = f": ended; a retry goes on from {checkpoint.label} or later" if checkpoint else ": ended"
        self._end_gang(Stop(cause=Cause.ABANDONED, message=message + rest))

    def _report_progress(self) -> None:
        self.meter.read()
        self.heartbeat.update(progress=self.meter.progress)
        self._note_recovery()
        if self.heartbeat.report.phase in (Phase.STARTING, Phase.FETCHING):
            self.heartbeat.update(moved=self.activity.look())
            self._require_activity()

    def _note_recovery(self) -> None:
        recovery = self.recovery.look(self.meter.first_step_at())
        if recovery:
            self.heartbeat.update(recoveries=(*self.heartbeat.report.recoveries, recovery))

    def _require_activity(self) -> None:
        """End the gang when this node's fetching makes no progress.

        With several nodes, the others' join limit comes first.
        """
        limit = self.config.limits.join_timeout * (1 if self.config.nodes == 1 else 2)
        still = self.activity.still_for()
        if still > limit and self.switch.stop is None:
            message = (
                f"fetching code, packages, data or checkpoint has not got any further for {still:.0f} s "
                "(limits.join_timeout); the log lines above name what was being fetched"
            )
            self._end_gang(Stop(cause=Cause.NODE, message=message))

    def _courier(self, workspace: Workspace) -> Courier | None:
        checkpoints = self.config.checkpoints
        if checkpoints is None or checkpoints.uri is None:
            return None
        folder = folder_of(checkpoints, workspace.working_dir)
        courier: Courier
        if self.is_main:
            courier = self._main_courier(folder, checkpoints)
        else:
            courier = ShardUploader(
                folder,
                self.heartbeat.store,
                self.rank,
                self.main_rank,
                self.access,
                pattern=checkpoints.pattern,
                launch=self.heartbeat.launch,
            )
        courier.start()
        return courier

    def _main_courier(self, folder: Path, checkpoints: Checkpoints) -> CheckpointUploader:
        shards = ShardCollector(
            folder,
            self.heartbeat.store,
            self.rank,
            self.apart,
            self.access,
            pattern=checkpoints.pattern,
            launch=self.heartbeat.launch,
        )
        meter = self.meter
        return CheckpointUploader(
            folder,
            checkpoints,
            self.access,
            fence=self.config.fence,
            program=ProgramState(
                step=lambda: meter.progress.step, loss_at=meter.loss_at, announced=meter.announced
            ),
            on_published=self._checkpoint_is_safe,
            shards=shards if self.config.nodes > 1 else None,
            fetched=self.brought,
            restarts=self.config.restarts != Restarts(),
        )

    def _checkpoint_is_safe(self, reference: CheckpointRef) -> None:
        self.meter.touch()
        known = self.heartbeat.report.checkpoint
        if known is None or reference.order >= known.order:
            self.heartbeat.update(checkpoint=reference, now=True)

    def _shown(self, text: str | None) -> str | None:
        return text and masked_text(text, self.secrets)

    def _end_gang(self, stop: Stop) -> None:
        """End the run; after a hang only this launch, where another is allowed."""
        assert stop.cause is not None
        cause, message = stop.cause, stop.message
        # Whose machine is not well may still be launched again by the budget for hangs.
        charged = cause if self.config.restarts.node else Cause.HANG
        restarts, why_not = self._restarts_after(charged, message) if stop.stacks else ((), None)
        message = f"{message}; {why_not}" if why_not else message
        asked = self._ask_others(cause, message, restarts, hang=stop.stacks)
        self.switch.ask(replace(stop, message=message, restarts=asked))

    def _ask_others(
        self, cause: Cause, message: str, restarts: tuple[Restart, ...] = (), *, hang: bool = False
    ) -> tuple[Restart, ...]:
        """Ask all nodes to end; return the restarts where the training is launched again, as all nodes see them."""
        if self.config.nodes == 1:
            return restarts
        request = StopRequest(
            cause=cause,
            message=masked_text(message, self.secrets),
            rank=self.rank,
            restarts=restarts,
            hang=hang,
        )
        counts = self.heartbeat.ask_all_to_stop(request)
        return counts.restarts if counts else ()

    def _report(self, ended: Outcome) -> int:
        if ended.message:
            logger.error("%s", outcome.one_line(self.rank, self.config.nodes, ended))
        self.watches.close()
        self.meter.close()
        self._note_recovery()
        self.heartbeat.finish(
            phase=Phase.DONE,
            exit_code=ended.exit_code,
            cause=ended.cause,
            message=self._shown(ended.message),
            tail=self._shown(ended.tail),
            progress=self.meter.progress,
        )
        if self._ends_others(ended.code):
            store, nodes = self.heartbeat.store, self.config.nodes
            await_others_end(store, self.rank, nodes, SAVE_LIMIT, self.switch.signalled)
            if self.config.ends_others:
                self.switch.signalled.wait(SEEN_LATE)
        return ended.code

    def _ends_others(self, code: int) -> bool:
        """Whether this node's exit would be the end of nodes that are still saving."""
        first = self.config.ends_others and self.rank == 0
        return first or bool(code and (self.config.one_run or self.config.ends_others))


def _own_folder(environ: Mapping[str, str]) -> str | None:
    """Return the node's home, which is deleted with the node; None where it has none."""
    home = environ.get("HOME")
    return home if home and os.access(home, os.W_OK) else None


def _mark_own_lines(rank: int) -> None:
    for handler in logging.getLogger().handlers:
        handler.setFormatter(MarkingFormatter(rank, LAYOUT))
