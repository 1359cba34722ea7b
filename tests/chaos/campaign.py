"""A campaign of kills against one Airflow: strike, wait for Airflow to recover, then look whether all is well."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from airflow_provider_ocidist.errors import CheckpointError
from airflow_provider_ocidist.model.run import RunKey
from airflow_provider_ocidist.storage import checkpoints
from scripts.airflow_api import AirflowApiError
from scripts.local_airflow import LocalAirflow
from tests.chaos.books import Books, Gang, Life, lives
from tests.chaos.kills import Kill

STEPS = 16
SETTINGS = {
    "AIRFLOW__CORE__PARALLELISM": "12",
    # Seconds that Airflow takes to notice a process that is gone; if shorter, a busy machine looks like a dead one.
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "3",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "30",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "5",
    "AIRFLOW__SCHEDULER__JOB_HEARTBEAT_SEC": "2",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "30",
    "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "2",
}
RUN_ENDS_WITHIN_S = 600.0
NODES_END_WITHIN_S = 15.0
SOON_S = 0.1


@dataclass
class Strike:
    """One kill, and what the books and the request log said at its moment."""

    kill: Kill
    phase: str = "missed"
    """When it was in fact: other kills hit the same run; "missed" when its task had ended before."""
    evidence: str = ""

    def __str__(self) -> str:
        return f"{self.kill} -> {self.phase}: {self.evidence}"


@dataclass
class Outcome:
    """What came of the kills for the sake of one run."""

    strikes: list[Strike] = field(default_factory=list)
    gangs: int = 0
    nodes_ended_after_s: float | None = None
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        verdict = "; ".join(self.problems) or "ok"
        ended = f"nodes ended after {self.nodes_ended_after_s} s"
        first = f"{self.gangs} gang(s), run took {self.seconds:.0f} s, {ended}: {verdict}"
        return "\n    ".join([first, *map(str, self.strikes)])


class Campaign:
    """Airflow, the books, and what an undisturbed run gives."""

    def __init__(self, airflow: LocalAirflow, books: Books, marks: Path, say: Callable[[str], None]) -> None:
        self.airflow = airflow
        self.books = books
        self.outcomes: list[Outcome] = []
        self.doubles: set[str] = set()
        """Tasks of which two gangs were seen alive at once."""
        self._marks = marks
        self._say = say
        self._shape: Any = None
        self._runs = 0
        self._instance_ids: dict[str, tuple[str, float]] = {}
        self._killed: set[str] = set()

    def strike_all(self, batches: list[list[list[Kill]]]) -> None:
        asyncio.run(self._strike_all(batches))

    async def _strike_all(self, batches: list[list[list[Kill]]]) -> None:
        self._shape = _shape(await self._undisturbed())
        sampling = asyncio.create_task(self._sample())
        try:
            for batch in batches:
                outcomes = await asyncio.gather(
                    *(self._one(chain, 1.5 * number) for number, chain in enumerate(batch))
                )
                for outcome in outcomes:
                    self._say(str(outcome))
                self.outcomes += outcomes
        finally:
            sampling.cancel()

    async def _undisturbed(self) -> dict[str, Any]:
        run = self._start("chaos_deferred")
        await self._until(lambda: self._state(run) in ("success", "failed"), RUN_ENDS_WITHIN_S)
        result = self._xcom(run, "return_value")
        assert result is not None, "\n".join(self.airflow.api.task_log(*run.id, "train"))[-3000:]
        return result

    async def _sample(self) -> None:
        while True:
            for task, jobs in self.books.live_gangs().items():
                if len(jobs) > 1:
                    self.doubles.add(task)
            await asyncio.sleep(0.4)

    async def _one(self, chain: list[Kill], after_s: float) -> Outcome:
        await asyncio.sleep(after_s)
        outcome = Outcome()
        run = self._start(chain[0].dag_id)
        began = time.monotonic()
        try:
            for kill in chain:
                await self._moment(kill, run)
                outcome.strikes.append(await self._strike(kill, run))
            await self._until(lambda: self._ended(run), RUN_ENDS_WITHIN_S)
        except TimeoutError as error:
            outcome.problems.append(f"{error}; the task is {self._state(run)}")
        outcome.seconds = time.monotonic() - began
        await self._judge(run, outcome)
        return outcome

    # the moment

    async def _moment(self, kill: Kill, run: Run) -> None:
        match kill.point:
            case "process":
                await self._until(lambda: self._processes(run) is not None)
            case "job":
                await self._until(lambda: bool(self.books.gangs(run.task)))
            case "first run":
                await self._until(lambda: any(gang.runs for gang in self.books.gangs(run.task)))
            case "training":
                await self._until(lambda: len(lives(run.marks)) >= 2 or self._ended(run))
            case "nodes done":
                await self._until(lambda: self._trained(run) or self._ended(run))
        if kill.who == "worker":
            # A later try may not have begun yet, or a deferred task not have been resumed.
            await self._until(lambda: self._processes(run) is not None or self._ended(run))
        await asyncio.sleep(kill.delay)

    async def _strike(self, kill: Kill, run: Run) -> Strike:
        strike = Strike(kill)
        gangs, state = self.books.gangs(run.task), self._state(run)
        phase = self._phase(run, gangs)
        if state in ("success", "failed"):
            return strike
        now = time.time()
        match kill.who:
            case "worker":
                if not self._kill_worker(kill, run):
                    return strike
            case "triggerer":
                _kill_tree(self.airflow.pid("triggerer"))
                self._restart("triggerer")
            case "scheduler" if kill.how == "alone":
                self.airflow.orphan("scheduler")
                self.airflow.start("scheduler")
            case "scheduler":
                _kill_tree(self.airflow.pid("scheduler"))
                self._restart("scheduler")
        await asyncio.sleep(1.5)
        asked = ", ".join(self.books.in_flight(now)) or "nothing"
        nodes = "+".join(str(len(gang.runs)) for gang in gangs) or "no job"
        strike.phase = phase
        strike.evidence = f"task {state}, nodes {nodes}, in flight: {asked}"
        return strike

    def _phase(self, run: Run, gangs: list[Gang]) -> str:
        if self._trained(run):
            return "finish"
        made = any(len(gang.runs) == 2 for gang in gangs) and self._xcom(run, "run") is not None
        return "wait" if made else "submit"

    def _trained(self, run: Run) -> bool:
        return sum(life.finished for life in lives(run.marks)) >= 2

    def _kill_worker(self, kill: Kill, run: Run) -> bool:
        found = self._processes(run)
        if found is None:
            return False
        task, supervisor = found
        self._killed.add(self._instance_id(run))
        victims = {"task": [task], "supervisor": [supervisor], "both": [supervisor, task]}[kill.how]
        for process in victims:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        return True

    def _restart(self, component: str) -> None:
        # Nothing is left of it but its keeper, which ends in a moment.
        self.airflow.wait_gone(component)
        self.airflow.start(component)

    def _processes(self, run: Run) -> tuple[psutil.Process, psutil.Process] | None:
        """Return the process that executes a task, and the worker that supervises it; by their titles.

        None for a try that was killed: what is left of it has no worker any more.
        """
        if self._instance_id(run) in self._killed:
            return None
        pid = _titled(f"airflow worker -- {self._instance_id(run)}")
        try:
            process = psutil.Process(pid) if pid else None
            parent = process.parent() if process else None
        except psutil.NoSuchProcess:
            return None
        return (process, parent) if process and parent and _is_worker(parent) else None

    def _instance_id(self, run: Run) -> str:
        """Return what Airflow calls the present attempt of a task; asked for once a second."""
        known, asked_at = self._instance_ids.get(run.run_id, ("", 0.0))
        if time.monotonic() - asked_at > 1.0:
            known = self._instance(run)["id"]
            self._instance_ids[run.run_id] = known, time.monotonic()
        return known

    # afterwards

    async def _judge(self, run: Run, outcome: Outcome) -> None:
        outcome.nodes_ended_after_s = await self._ends(run) if self._ended(run) else None
        if self._ended(run) and outcome.nodes_ended_after_s is None:
            outcome.problems.append(f"I2: nodes live {NODES_END_WITHIN_S:.0f} s after their task")
        gangs = [gang for gang in self.books.gangs(run.task) if gang.runs]
        outcome.gangs = len(gangs)
        outcome.problems += [*self._not_once(run, gangs), *self._not_good(run)]
        if outcome.problems:
            with suppress(AirflowApiError):
                self._say(f"log of {run.id}:\n" + self._whole_log(run))

    async def _ends(self, run: Run) -> float | None:
        began = time.monotonic()
        while any(gang.live for gang in self.books.gangs(run.task)):
            if time.monotonic() - began > NODES_END_WITHIN_S:
                return None
            await asyncio.sleep(0.3)
        return round(time.monotonic() - began, 1)

    def _not_once(self, run: Run, gangs: list[Gang]) -> Iterator[str]:
        if run.task in self.doubles:
            yield "I1: two gangs lived at once, by the books"
        attempts = [gang.attempt for gang in gangs]
        if len(attempts) != len(set(attempts)):
            yield f"I1: two gangs of one attempt: {attempts}"
        for gang in gangs:
            if len(set(gang.ranks)) != len(gang.ranks):
                yield f"I1: two runs for one rank: {gang.ranks}"
        yield from _overlaps(
            {run_id: gang.job_id for gang in gangs for run_id in gang.runs}, lives(run.marks)
        )

    def _not_good(self, run: Run) -> Iterator[str]:
        if (state := self._state(run)) != "success":
            yield f"the task is {state}"
            return
        result = self._xcom(run, "return_value")
        if _shape(result) != self._shape:
            yield f"I10: another result: {_shape(result)}"
        uri = self._xcom(run, "checkpoint_uri")
        if uri != result["checkpoint_uri"]:
            yield f"I4: XCom names {uri}, the result {result['checkpoint_uri']}"
        try:
            manifest = checkpoints.verify(uri, self.books.access)
        except CheckpointError as error:
            yield f"I4: {error}"
        else:
            if manifest.step != STEPS:
                yield f"I4: the checkpoint is of step {manifest.step}"
        resumed = [life.resumed for life in lives(run.marks)]
        if resumed != sorted(resumed):
            yield f"I4: stepped back: {resumed}"

    def _whole_log(self, run: Run) -> str:
        folder = self.airflow.home / "logs"
        pattern = f"dag_id={run.id[0]}/run_id={run.id[1]}/*/*.log"
        texts = [
            f"--- {path.name}\n{path.read_text(errors='replace')[-2500:]}"
            for path in sorted(folder.glob(pattern))
        ]
        return "\n".join(texts)

    # small parts

    def _start(self, dag_id: str) -> Run:
        self._runs += 1
        marks = self._marks / str(self._runs)
        run_id = self.airflow.api.trigger(dag_id, {"steps": STEPS, "mark": str(marks)})
        return Run(dag_id, run_id, marks)

    def _instance(self, run: Run) -> dict[str, Any]:
        return self.airflow.api.task_instance(*run.id, "train")

    def _state(self, run: Run) -> str | None:
        return self._instance(run)["state"]

    def _ended(self, run: Run) -> bool:
        return self._state(run) in ("success", "failed")

    def _xcom(self, run: Run, key: str) -> Any:
        value = self.airflow.api.xcom(*run.id, "train", key)
        return json.loads(value) if key == "return_value" and isinstance(value, str) else value

    async def _until(self, there: Callable[[], bool], within_s: float = 400.0) -> None:
        deadline = time.monotonic() + within_s
        while not there():
            if time.monotonic() > deadline:
                raise TimeoutError(f"not after {within_s:.0f} s")
            await asyncio.sleep(SOON_S if within_s < RUN_ENDS_WITHIN_S else 1.0)


@dataclass(frozen=True)
class Run:
    """One DAG run of the campaign."""

    dag_id: str
    run_id: str
    marks: Path

    @property
    def id(self) -> tuple[str, str]:
        return self.dag_id, self.run_id

    @property
    def task(self) -> str:
        """The digest in the tags of all that its task creates."""
        return RunKey(dag_id=self.dag_id, run_id=self.run_id, task_id="train").task_digest


def _titled(title: str) -> int | None:
    """Return the process whose title is this; our own look at /proc, since this is asked ten times a second."""
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if title in command.read_text(errors="replace"):
                return int(command.parent.name)
    return None


def _is_worker(process: psutil.Process) -> bool:
    """Return whether a process is a worker: an orphan of one has been taken in by its keeper."""
    with suppress(psutil.NoSuchProcess):
        return "LocalExecutor" in " ".join(process.cmdline())
    return False


def _kill_tree(pid: int) -> None:
    """SIGKILL a process and all below it at once."""
    root = psutil.Process(pid)
    for process in [root, *root.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _shape(value: Any) -> Any:
    """Return the keys and kinds of a value, whatever its content."""
    match value:
        case dict():
            return {key: _shape(item) for key, item in sorted(value.items())}
        case list():
            return [_shape(item) for item in value]
        case int() | float():
            return "number"
    return type(value).__name__


def _overlaps(jobs: dict[str, str], found: list[Life]) -> Iterator[str]:
    for number, life in enumerate(found):
        for other in found[number + 1 :]:
            if jobs.get(life.run, life.run) != jobs.get(other.run, other.run) and other.start < life.end:
                yield f"I1: a node of one gang began {life.end - other.start:.1f} s before one of another ended"
