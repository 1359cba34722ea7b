"""Program launch: starts the program on this node once, and saves what explains its end."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence

from airflow_provider_ocidist.agent.diagnose.hang_evidence import HangEvidence
from airflow_provider_ocidist.agent.diagnose.stacks import PROGRAM_FOLDER
from airflow_provider_ocidist.agent.join.peer_reports import read_others
from airflow_provider_ocidist.agent.monitor.process_logs import read_process_logs, runs_in
from airflow_provider_ocidist.agent.monitor.watches import Watches
from airflow_provider_ocidist.agent.prepare.workspace import Workspace, environment_paths, program_paths
from airflow_provider_ocidist.agent.save.checkpoints import checkpoint_folder, ocifs_environment
from airflow_provider_ocidist.agent.stages.context import NodeContext
from airflow_provider_ocidist.agent.stopping import Stop
from airflow_provider_ocidist.agent.train.launch import write_files
from airflow_provider_ocidist.agent.train.program_output import ProgramOutput
from airflow_provider_ocidist.agent.train.supervise import Ended, Training
from airflow_provider_ocidist.launchers.base import Launcher, Placement, ProcessFailure
from airflow_provider_ocidist.model.agent_config import CONFIG_VARIABLE, RANK_VARIABLE
from airflow_provider_ocidist.model.report import NodeReport, Phase

logger = logging.getLogger("ocidist")

STACKS_LIMIT = 10.0
"""Seconds to wait, after a hang, for the stacks of the other nodes' processes."""


class ProgramLaunch:
    """One launch of the program, with its own output and watches."""

    def __init__(
        self,
        context: NodeContext,
        launcher: Launcher,
        workspace: Workspace,
        placement: Placement,
        *,
        end_gang: Callable[[Stop], object],
    ) -> None:
        config = context.config
        self.context = context
        self.launcher = launcher
        self.workspace = workspace
        self.placement = placement
        self.output = ProgramOutput(context.meter, context.rank if config.one_run else None, context.secrets)
        self.watches = Watches(config, context.heartbeat, context.meter, end_gang=end_gang)
        self.hang_evidence = HangEvidence(
            context.folder, context.rank, context.heartbeat.quick_store.write, context.masked
        )
        logs = launcher.log_folder(config.launcher, placement)
        self._process_logs = workspace.working_dir / logs if logs else None
        """Folder of the processes' own logs, where the launcher keeps any."""
        self._earlier_logs = runs_in(self._process_logs) if self._process_logs else frozenset[str]()
        """Names of the log folders of earlier launches."""

    def start(self, reports: Sequence[NodeReport]) -> Training:
        """Start the program, and watch it from now on; `reports` are those of the join."""
        context, config = self.context, self.context.config
        write_files(self.launcher.files(config.launcher, self.placement), context.folder)
        if self._process_logs and self.launcher.hides_output(config.launcher):
            context.meter.look_for_output_in(self._process_logs)
        command = self.launcher.command(self.workspace.program, config.launcher, self.placement)
        environ = self._environment()
        context.meter.launched(config.limits.hang_timeout)
        context.meter.follow()
        self.hang_evidence.begin()
        show_stacks = self._stack_shower(environ.get("PATH"))
        training = Training(command, environ, self.workspace.working_dir, self.output, show_stacks)
        logger.info(
            "node %d of %d: %s launched after %.2f s",
            context.rank,
            self.placement.nodes,
            config.launcher.kind,
            time.monotonic() - context.heartbeat.began_at,
        )
        self.watches.start(reports, context.main_rank, training.pid, self.workspace.working_dir)
        context.heartbeat.update(phase=Phase.TRAINING, now=True)
        return training

    def first_failure(self, ended: Ended) -> ProcessFailure | None:
        """Return which process failed first, where the launcher says so."""
        return self.launcher.first_failure(ended.output)

    def last_output(self, ended: Ended) -> str:
        """Return what the program printed last, with its processes' own logs."""
        output = self.launcher.user_output(ended.output)
        if self._process_logs:
            output += read_process_logs(self._process_logs, self._earlier_logs)
        return output

    def _environment(self) -> dict[str, str]:
        context, config, workspace = self.context, self.context.config, self.workspace
        inherited = {name: value for name, value in context.environ.items() if name != CONFIG_VARIABLE}
        defaults = {
            "PYTHONUNBUFFERED": "1",
            "PYTHONFAULTHANDLER": "1",
            **self.launcher.defaults(self.placement),
        }
        ours = {
            # Before the program's own folders: ours runs what it hides there.
            "PYTHONPATH": os.pathsep.join([PROGRAM_FOLDER, environment_paths(workspace, context.environ)]),
            "PATH": program_paths(workspace, context.environ),
            RANK_VARIABLE: str(self.placement.rank),
            "OCIDIST_NODES": str(self.placement.nodes),
            "OCIDIST_RESTARTS": str(context.heartbeat.launch),
            "OCIDIST_RUN_NAME": config.run_name,
            "OCIDIST_CHECKPOINT_DIR": str(checkpoint_folder(config.checkpoints, workspace.working_dir)),
            "OCIDIST_PROGRESS_FILE": str(context.meter.file),
            **ocifs_environment(config.checkpoints),
            **self.hang_evidence.environment(),
        }
        return {**defaults, **inherited, **ours, **self.launcher.environment(self.placement)}

    def _stack_shower(self, search: str | None) -> Callable[[int], None]:
        """Return the object that saves the stacks of a training that hangs; `search`: its PATH."""

        def show(guard_pid: int) -> None:
            heartbeat = self.context.heartbeat
            stands = self.hang_evidence.keep(guard_pid, heartbeat.launch, search)
            heartbeat.update(stack_positions=stands, now=True)
            self._await_others_stacks()

        return show

    def _await_others_stacks(self) -> None:
        """Wait until the other nodes have saved their stacks too: the end of one's processes ends the others'."""
        context = self.context
        deadline = time.monotonic() + STACKS_LIMIT
        while time.monotonic() < deadline:
            reports = read_others(context.heartbeat.store, context.heartbeat.report, context.config.nodes)
            if all(
                report and (report.stack_positions is not None or report.program_has_ended)
                for report in reports
            ):
                return
            time.sleep(0.25)
