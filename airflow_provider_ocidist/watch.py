"""One look at a gang: its state, its new log lines, its progress, and what to do next. No Airflow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

from airflow_provider_ocidist.agent.report import Phase
from airflow_provider_ocidist.backends.base import Backend, LogFollower, LogLine
from airflow_provider_ocidist.errors import BackendError
from airflow_provider_ocidist.run import Ending, NodeState, RunRecord, RunStatus
from airflow_provider_ocidist.supervisor import Action, Wait, decide

NEAR_THE_END = (Phase.SAVING, Phase.DONE)
NEAR_THE_END_INTERVAL = 1.0


class TaskLog(Protocol):
    """What Airflow's loggers and the standard library's have in common."""

    def info(self, msg: Any, /, *args: Any) -> Any: ...

    def warning(self, msg: Any, /, *args: Any) -> Any: ...


class Watch:
    """Looks at one gang again and again; tells a logger what is new."""

    def __init__(self, backend: Backend, record: RunRecord, logger: TaskLog) -> None:
        self.backend = backend
        self.record = record
        self.status: RunStatus | None = None
        self._log = logger
        self._follower = LogFollower(record.logs_since)
        self._said: str | None = None
        self._logged: str | None = None
        self._has_lines = False

    def look(self, now: float) -> Action:
        """Return what to do next. A service that cannot answer now is waited for: silence is no failure.

        Raises BackendError when asking again cannot help.
        """
        try:
            (self.status,) = self.backend.status([self.record.ref])
        except BackendError as error:
            if not error.retryable:
                raise
            self._log.warning("%s; will ask again", error)
            return Wait()
        self._pass_on_logs(now)
        self._say_progress(self.status)
        return decide(self.record, self.status, now)

    def end(self, ending: Ending) -> bool:
        """Cancel the gang and remember why; False when the service cannot answer now: then the next look asks again.

        Raises BackendError when asking again cannot help.
        """
        self._log.warning("%s: ending all nodes: %s", ending.cause, ending.message)
        try:
            self.backend.cancel(self.record.ref)
        except BackendError as error:
            if not error.retryable:
                raise
            self._log.warning("%s; will try again", error)
            return False
        self.record = replace(self.record, ending=ending)
        return True

    def pause(self, interval: float) -> float:
        """Return the seconds until the next look: fewer when nodes are saving, for then the end is near."""
        nodes = self.status.nodes if self.status is not None else ()
        saving = any(node.report is not None and node.report.phase in NEAR_THE_END for node in nodes)
        return min(interval, NEAR_THE_END_INTERVAL) if saving else interval

    def tell_line(self, line: LogLine) -> None:
        """Pass on a line that a node wrote."""
        self._log.info("[node %d] %s", line.rank, line.text)

    def tell_status(self, status: RunStatus, said: str) -> None:
        """Pass on that the gang is not as it was at the last look; `said` is one line for a person."""
        if self._has_lines and status.progress and status.progress.printed:
            # Whoever reads the program's own lines here reads the step there.
            said = describe(status, with_step=False)
        if said == self._logged:
            return
        self._logged = said
        self._log.info("%s", said)

    def _pass_on_logs(self, now: float) -> None:
        try:
            lines = self._follower.new_lines(self.backend, self.record.ref, now)
        except BackendError as error:
            self._log.warning("%s; the lines will come later", error)
            return
        for line in lines:
            self.tell_line(line)
        if lines:
            self._has_lines = True
            self.record = replace(self.record, logs_since=self._follower.cursor)

    def _say_progress(self, status: RunStatus) -> None:
        said = describe(status)
        if said != self._said:
            self._said = said
            self.tell_status(status, said)


def describe(status: RunStatus, *, with_step: bool = True) -> str:
    """Return one line for a person, as `nodes: 2 RUNNING (TRAINING); step 40/300, loss 2.31`."""
    parts = ["nodes: " + ", ".join(f"{count} {state}" for state, count in _tally(status).items())]
    progress = status.progress
    if with_step and progress is not None and progress.step is not None:
        total = f"/{progress.steps}" if progress.steps else ""
        loss = f", loss {progress.loss:.4g}" if progress.loss is not None else ""
        parts.append(f"step {progress.step}{total}{loss}")
    if status.checkpoint is not None:
        parts.append(f"checkpoint at step {status.checkpoint.step}")
    return "; ".join(parts)


def _tally(status: RunStatus) -> dict[str, int]:
    tally: dict[str, int] = {}
    for node in status.nodes:
        phase = f" ({node.report.phase})" if node.report and node.state is NodeState.RUNNING else ""
        tally[f"{node.state}{phase}"] = tally.get(f"{node.state}{phase}", 0) + 1
    return tally
