"""Airflow as a model: one task with its tries, notes and XComs, workers that die, a triggerer, a user who acts."""

from __future__ import annotations

import asyncio
import copy
import datetime as dt
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from greenlet import GreenletExit

from tests.simulation import runtime
from tests.simulation.program import SECRET
from tests.simulation.runtime import EPOCH, Loop, Process, World
from tests.simulation.scenario import SHAPES, SHARED_FOLDER, Scenario
from tests.simulation.store import BUCKET, NAMESPACE

DAG_ID, RUN_ID, TASK_ID = "dag", "manual__1", "train"
OVER = ("success", "failed")
BUDGETS = ("program", "hang", "node")


class Log:
    """The log of a task, as part of the trace."""

    def __init__(self, who: str) -> None:
        self.who = who
        self.listens: Callable[[str, str], None] = lambda _who, _text: None

    def _say(self, msg: Any, *args: Any, **_: Any) -> None:
        world = runtime.WORLD
        if world is not None and world.current is not None:
            who = world.current.process.name
            world.note(who, f"log: {msg}", *args)
            self.listens(who, str(msg) % args if args else str(msg))

    info = warning = error = debug = exception = critical = log = _say

    def isEnabledFor(self, _level: int) -> bool:
        return True


LOG = Log("task")


class TaskInstance:
    """What a worker sees of its task; what it says counts while it is the one that runs it."""

    def __init__(self, airflow: Airflow, worker: Process) -> None:
        self._airflow, self._worker = airflow, worker
        self.dag_id, self.run_id, self.task_id, self.map_index = DAG_ID, RUN_ID, TASK_ID, -1
        self.try_number, self.max_tries = airflow.try_number, airflow.max_tries
        self.start_date = dt.datetime.fromtimestamp(EPOCH + airflow.began, dt.timezone.utc)

    def xcom_push(self, key: str, value: Any) -> None:
        self._airflow.world.sleep(0.02)
        if self._airflow.worker is self._worker:
            self._airflow.push(key, json.loads(json.dumps(value)))

    def xcom_pull(self, task_ids: Any = None, key: str = "return_value", **_: Any) -> Any:
        self._airflow.world.sleep(0.02)
        return copy.deepcopy(self._airflow.xcom.get(key))


class Notes:
    """The task state store: it survives retries and clears."""

    def __init__(self, airflow: Airflow) -> None:
        self._airflow = airflow

    def get(self, key: str) -> Any:
        self._airflow.world.sleep(0.02)
        self._airflow.world.check()
        return copy.deepcopy(self._airflow.notes.get(key))

    def set(self, key: str, value: Any) -> None:
        self._airflow.world.sleep(0.02)
        self._airflow.world.check()
        self._airflow.notes[key] = json.loads(json.dumps(value))


class Airflow:
    """One task instance, and the processes that carry it."""

    def __init__(self, world: World, scenario: Scenario, faults: Any, operators: Any) -> None:
        self.world, self.scenario, self.faults, self.operators = world, scenario, faults, operators
        self.process = Process(world, "airflow")
        self.state = "scheduled"
        self.try_number = 0
        self.retries = scenario.retries
        self.max_tries = scenario.retries
        self.began = 0.0
        self.xcom: dict[str, Any] = {}
        self.notes: dict[str, Any] = {}
        self.worker: Process | None = None
        self.entry: Trigger | None = None
        self.deferred_at = 0.0
        self.result: Any = None
        self.ended_at: float | None = None
        self.failure: BaseException | None = None
        self.kills: list[tuple[float, str]] = []
        """When a user, or Airflow itself, ended a try: what may rightly end a gang."""
        self.history: list[tuple[float, str]] = []
        self.edits: dict[str, Any] = {}
        self.shown_clears: list[float] = []
        """When the task was cleared such that its numbers or its recorded success distinguish that from a retry."""
        self.cleared = 0
        self.looks_like_retry = False
        """Whether the last clear has left `max_tries` as it was, for the task has fewer `retries` now."""
        self.workers = 0
        self.on_over: list[Callable[[str], None]] = []
        self.on_failed_try: list[Callable[[BaseException], None]] = []
        self.on_kill: list[Callable[[str], None]] = []
        self.on_push: list[Callable[[str, Any], None]] = []
        self.on_retry: list[Callable[[BaseException], None]] = []
        """Called where a failed try is followed by another."""
        self.triggerer: Triggerer = Triggerer(self, 1)

    # tries

    def schedule(self, delay: float, *, again: bool = True, resume: tuple[str, Any] | None = None) -> None:
        self._set("scheduled")
        number = len(self.history)
        self.process.spawn(self._begin, again, resume, number, delay=delay, name="scheduler")

    def _set(self, state: str) -> None:
        self.state = state
        self.history.append((self.world.now, state))
        self.world.note("airflow", "task is %s (try %d of max %d)", state, self.try_number, self.max_tries)
        if state in OVER:
            self.ended_at = self.world.now
            for look in self.on_over:
                look(state)
        else:
            self.ended_at = None

    def _begin(self, again: bool, resume: tuple[str, Any] | None, number: int) -> None:
        if self.state != "scheduled" or len(self.history) != number:
            return
        if again:
            self.try_number += 1
            self.xcom.clear()
        if resume is None:
            self.began = self.world.now
        self._set("running")
        self.workers += 1
        worker = Process(
            self.world,
            f"worker {self.try_number}.{self.workers}",
            self.scenario.worker_skew,
            runs_package=True,
        )
        self.worker = worker
        worker.on_death.append(lambda: self._worker_gone(worker))
        worker.ended_well = worker.signalled = False
        worker.main = worker.spawn(self._work, worker, resume, name="task")

    def _work(self, worker: Process, resume: tuple[str, Any] | None) -> None:
        from airflow.sdk.exceptions import TaskDeferred

        operator = self.operators.make(self, worker)
        worker.operator = operator
        context = {
            "ti": TaskInstance(self, worker),
            "task": operator,
            **({"task_state_store": Notes(self)} if self.scenario.notes else {}),
            "outlet_events": {},
        }
        try:
            if resume is None:
                result = operator.train(context)
            else:
                result = operator.resume_execution(resume[0], copy.deepcopy(resume[1]), context)
        except TaskDeferred as deferral:
            self._report(worker, self._defer, deferral)
        except GreenletExit:
            raise
        except BaseException as error:
            self.world.note(worker.name, "task raises %s: %s", type(error).__name__, error)
            self._report(worker, self._try_failed, error)
        else:
            self._report(worker, self._succeed, result)
        worker.ended_well = True
        worker.kill("process ends")

    def _report(self, worker: Process, report: Callable[[Any], None], what: Any) -> None:
        self.world.sleep(0.05)
        if self.worker is worker and self.state == "running":
            self.worker = None
            report(what)
        elif self.worker is worker and self.state == "restarting":
            self.worker = None
            self.schedule(2.0)

    def _succeed(self, result: Any) -> None:
        self.result = result
        self._set("success")

    def _try_failed(self, error: BaseException) -> None:
        from airflow.providers.common.compat.sdk import AirflowFailException

        self.failure = error
        for look in self.on_failed_try:
            look(error)
        if isinstance(error, AirflowFailException):
            self._set("failed")
            return
        delay = self._delay_after(error)
        if delay is not None and self.try_number <= self.max_tries:
            for look in self.on_retry:
                look(error)
        self._retry(delay)

    def _delay_after(self, error: BaseException) -> float | None:
        """Return when to try again; None: never. By the policy of the operator."""
        policy = self.operators.policy
        if policy is None:
            return 10.0
        decision = policy.evaluate(error, self.try_number, self.max_tries, None)
        if "fail" in str(getattr(decision, "action", "")).lower():
            return None
        delay = getattr(decision, "retry_delay", None)
        return 10.0 if delay is None else delay.total_seconds()

    def _retry(self, delay: float | None) -> None:
        if delay is None or self.try_number > self.max_tries:
            self._set("failed")
            return
        self._set("up_for_retry")
        self.schedule(delay + 1.0)

    def _worker_gone(self, worker: Process) -> None:
        """A worker was killed: Airflow misses its heartbeats after a while."""
        if worker.ended_well:
            return
        self.process.spawn(self._missed, worker, delay=self.world.between(15, 60, "missed", worker.name))

    def _missed(self, worker: Process) -> None:
        if self.worker is not worker:
            return
        self.worker = None
        if self.state == "restarting":
            self.schedule(1.0)
        elif self.state == "running":
            self._retry(10.0)

    # deferral

    def _defer(self, deferral: Any) -> None:
        path, arguments = deferral.trigger.serialize()
        self._set("deferred")
        self.deferred_at = self.world.now
        entry = Trigger(
            path, json.loads(json.dumps(arguments)), deferral.method_name, deferral.kwargs, self.try_number
        )
        self.entry = entry
        self.process.spawn(
            self._start_trigger, entry, delay=self.world.between(0.3, 2.0, "trigger", self.world.now)
        )

    def _start_trigger(self, entry: Trigger) -> None:
        if self.entry is entry and not self.triggerer.process.dead:
            self.triggerer.start(entry)

    def fired(self, entry: Trigger, event: Any) -> None:
        if self.entry is entry and self.state == "deferred":
            self.entry = None
            kwargs = {"event": json.loads(json.dumps(event)), **(entry.kwargs or {})}
            self.schedule(
                self.world.between(0.5, 3.0, "resume", self.world.now),
                again=False,
                resume=(entry.method, kwargs),
            )

    def trigger_failed(self, entry: Trigger, error: BaseException) -> None:
        if self.entry is entry and self.state == "deferred":
            self.entry = None
            kwargs = {"error": f"Trigger failure: {error}", "traceback": []}
            self.schedule(1.0, again=False, resume=("__fail__", kwargs))

    # what users and machines do

    def act(self, what: str, details: Mapping[str, Any]) -> None:
        getattr(self, f"act_{what}")(**details)

    def act_mark_failed(self) -> None:
        if self.state in OVER:
            return
        self._user_ends("marked failed", "failed")

    def act_clear(self, **changes: Any) -> None:
        self.edits |= changes
        self.cleared += 1
        if "retries" in changes:
            self.retries = int(changes["retries"])
        if self.state == "running":
            # Airflow waits for the process; it does not raise max_tries, so that it is a retry to all others.
            self._user_ends("restarted", "restarting")
            return
        before = self.state
        self.looks_like_retry = self.max_tries == self.try_number + self.retries
        self.kills.append((self.world.now, "cleared"))
        entry, self.entry = self.entry, None
        for look in self.on_kill:
            look(before)
        had, self.max_tries = self.max_tries, self.try_number + self.retries
        if before == "success" or self.max_tries != had:
            self.shown_clears.append(self.world.now)
        self.schedule(self.world.between(0.5, 6.0, "cleared", self.world.now))
        self._stop_trigger(entry)

    def act_edit(self, **changes: Any) -> None:
        self.edits |= changes
        self.world.note("airflow", "job edited: %s", changes)

    def act_set_clock(self, who: str, rank: int, by: float) -> None:
        """Let a clock jump: of a node, or of the machine on which Airflow's processes of a kind run."""
        if who == "triggerer":
            self.triggerer.process.skew += by
        elif self.worker is not None:
            self.worker.skew += by

    def act_kill_worker(self) -> None:
        if self.worker is not None:
            self.worker.kill("kill -9")

    def act_kill_triggerer(self) -> None:
        old = self.triggerer
        old.process.kill("kill -9")
        self.process.spawn(self._new_triggerer, old.number + 1, delay=self.world.between(2, 35, "triggerer"))

    def _new_triggerer(self, number: int) -> None:
        self.triggerer = Triggerer(self, number)
        if self.entry is not None and self.state == "deferred":
            self.triggerer.start(self.entry)

    def act_second_try(self) -> None:
        """A second scheduler takes a worker that lives for dead, and begins another try beside it."""
        if self.worker is None or self.state != "running" or self.try_number > self.max_tries:
            return
        old, self.worker = self.worker, None
        self.world.note("airflow", "%s is taken for dead, though it lives", old.name)
        self.kills.append((self.world.now, "taken for dead"))
        self._set("up_for_retry")
        self.schedule(self.world.between(0.5, 5.0, "second"))
        self.process.spawn(self._sigterm, old, delay=self.world.between(1.0, 60.0, "old"))

    def _user_ends(self, why: str, state: str) -> None:
        self.kills.append((self.world.now, why))
        worker, entry, before = self.worker, self.entry, self.state
        self.entry = None
        for look in self.on_kill:
            look(before)
        self._set(state)
        if before == "running" and worker is not None:
            self.process.spawn(self._sigterm, worker, delay=self.world.between(0.2, 5.0, "heartbeat"))
        self._stop_trigger(entry)

    def _stop_trigger(self, entry: Trigger | None) -> None:
        if entry is not None and not self.triggerer.process.dead:
            self.triggerer.cancel(entry)

    def _sigterm(self, worker: Process) -> None:
        """Let the handler run on top of whatever the main thread was doing; SIGKILL comes five seconds later."""
        if worker.dead:
            if self.state == "restarting":
                self._missed(worker)
            return
        self.world.note(worker.name, "gets SIGTERM")
        worker.signalled = True
        main = worker.main
        worker.held = main

        def handler() -> None:
            operator = getattr(worker, "operator", None)
            try:
                if operator is not None:
                    operator.on_kill()
            except Exception as error:
                self.world.note(worker.name, "on_kill raises %s: %s", type(error).__name__, error)
            worker.held = None

        worker.spawn(handler, name="on_kill")
        self.process.spawn(self._sigkill, worker, delay=5.0)

    def _sigkill(self, worker: Process) -> None:
        if not worker.dead:
            worker.ended_well = True
            worker.kill("SIGKILL, five seconds after SIGTERM")
        if self.state == "restarting" and self.worker is worker:
            self.worker = None
            self.schedule(2.0)

    # what others ask

    def push(self, key: str, value: Any) -> None:
        self.xcom[key] = value
        self.world.note("airflow", "XCom %s", key)
        for look in self.on_push:
            look(key, value)

    def get_task_states(self, *, task_ids: Sequence[str], **_: Any) -> Mapping[str, Mapping[str, str]]:
        self.world.sleep(0.05)
        # The tasks of a crowd wait for ever.
        return {RUN_ID: {name: self.state if name == TASK_ID else "deferred" for name in task_ids}}

    def get_xcom(self, *, key: str, **_: Any) -> Any:
        self.world.sleep(0.05)
        return copy.deepcopy(self.xcom.get(key))

    def job(self) -> dict[str, Any]:
        """Return the job as the DAG has it now."""
        scenario, edits = self.scenario, self.edits
        checkpoints = {
            "keep": edits.get("keep", scenario.keep),
            "resume": edits.get("resume", scenario.resume),
            "required": scenario.required,
            **({"path": SHARED_FOLDER} if scenario.shared_folder else {}),
        }
        nodes: Any = scenario.nodes
        if scenario.min_nodes is not None and "topology" not in edits:
            nodes = {"min": scenario.min_nodes, "max": scenario.nodes}
        backend: dict[str, Any] = {"kind": "oci_data_science", "shape": SHAPES[0]}
        backend["topology"] = edits.get("topology", scenario.topology)
        if scenario.candidates:
            backend["candidates"] = [{"shape": shape} for shape in SHAPES[1 : 1 + scenario.candidates]]
        if "compartment" in edits:
            backend["compartment_id"] = "ocid1.compartment.oc1..other"
        return {
            "name": "simulated",
            "nodes": edits.get("nodes", nodes),
            "image": edits.get("image", "iad.ocir.io/space/train:1"),
            **({"work_dir": edits["work_dir"]} if "work_dir" in edits else {}),
            "program": {"script": "/app/train.py"},
            "env": {"API_TOKEN": SECRET},
            **({"checkpoints": checkpoints} if scenario.checkpoints else {}),
            **({"require_training": True} if scenario.require_training else {}),
            "limits": {
                "lease": scenario.lease,
                "capacity_timeout": scenario.capacity_timeout,
                "lost_timeout": scenario.lost_timeout,
                "hang_timeout": scenario.hang_timeout,
                "start_timeout": scenario.start_timeout,
                "join_timeout": scenario.join_timeout,
                "stop_grace": scenario.stop_grace,
                **({"grow_after": scenario.grow_after} if scenario.min_nodes else {}),
                **({"replace_timeout": scenario.replace_timeout} if scenario.replace_timeout else {}),
                **({"max_runtime": scenario.max_runtime} if scenario.max_runtime else {}),
                **({"max_node_hours": scenario.node_seconds / 3600} if scenario.node_seconds else {}),
            },
            **(
                {"restarts": dict(zip(BUDGETS, scenario.restarts, strict=True))}
                if any(scenario.restarts)
                else {}
            ),
            "backend": backend,
        }


def connection(scenario: Scenario) -> Any:
    extra = {
        "compartment_id": "ocid1.compartment.oc1..own",
        "project_id": "ocid1.datascienceproject.oc1.iad.p",
        "subnet_id": "ocid1.subnet.oc1.iad.s",
        "region": "us-ashburn-1",
        "work_dir": f"oci://{BUCKET}@{NAMESPACE}/w",
    }
    if scenario.crowd or scenario.logs:
        extra["log_group_id"] = "ocid1.loggroup.oc1.iad.l"
    from airflow.sdk import Connection

    return Connection(conn_id="oci_default", conn_type="oci", extra=json.dumps(extra))


class Trigger:
    """A trigger in Airflow's database."""

    def __init__(self, path: str, arguments: Any, method: str, kwargs: Any, number: int) -> None:
        self.path, self.arguments, self.method, self.kwargs = path, arguments, method, kwargs
        self.number = number
        self.task: Any = None
        self.started_at: float | None = None


class Triggerer:
    """A process with an event loop in which triggers run, as Airflow's TriggerRunner does it."""

    def __init__(self, airflow: Airflow, number: int) -> None:
        self.airflow, self.number = airflow, number
        self.world = airflow.world
        self.process = Process(
            self.world, f"triggerer {number}", airflow.scenario.triggerer_skew, runs_package=True
        )
        self.loop: Loop | None = None
        self._waiting: list[Callable[[], None]] = []
        self.process.spawn(self._run, name="loop")

    def _run(self) -> None:
        self.loop = Loop()
        for call in self._waiting:
            self.loop.call_soon(call)
        self.loop.run_forever()

    def _soon(self, call: Callable[[], None]) -> None:
        if self.loop is None:
            self._waiting.append(call)
        else:
            self.loop.call_soon_threadsafe(call)

    def start(self, entry: Trigger) -> None:
        def begin() -> None:
            assert self.loop is not None
            entry.started_at = self.world.now
            entry.task = self.loop.create_task(self._run_trigger(entry))

        self._soon(begin)

    def cancel(self, entry: Trigger) -> None:
        """As Airflow 3.3: again every second until it has ended."""

        def again() -> None:
            if entry.task is not None and not entry.task.done():
                entry.task.cancel("user")
                assert self.loop is not None
                self.loop.call_later(1.0, again)

        self._soon(again)

    async def _run_trigger(self, entry: Trigger) -> None:
        from importlib import import_module

        module, _, name = entry.path.rpartition(".")
        try:
            trigger = getattr(import_module(module), name)(**copy.deepcopy(entry.arguments))
            try:
                async for event in trigger.run():
                    self.airflow.fired(entry, event.payload)
                    return
            except asyncio.CancelledError as cancel:
                if cancel.args and hasattr(trigger, "on_kill"):
                    await trigger.on_kill()
                raise
        except asyncio.CancelledError:
            raise
        except GreenletExit:
            raise
        except Exception as error:
            self.world.note(self.process.name, "trigger failed: %s: %s", type(error).__name__, error)
            self.airflow.trigger_failed(entry, error)

    def crowd(self, size: int, arguments: Mapping[str, Any]) -> None:
        """Begin to wait for other tasks too, all at once."""
        for number in range(size):
            owner = {**arguments["owner"], "task_id": f"other{number}"}
            entry = Trigger(
                "airflow_provider_ocidist.triggers.DistributedTrainingTrigger",
                {**copy.deepcopy(dict(arguments)), "owner": owner},
                "resume",
                None,
                1,
            )
            self.start(entry)


class Operators:
    """Makes the real operator for each try, from one that was built once."""

    def __init__(self) -> None:
        from airflow.sdk import DAG

        from airflow_provider_ocidist.operators import DistributedTrainingOperator
        from airflow_provider_ocidist.operators.training import RETRIES

        self.policy = RETRIES
        with DAG(DAG_ID, schedule=None):
            self._template = DistributedTrainingOperator(task_id=TASK_ID, job={"name": "x"})

    def make(self, airflow: Airflow, worker: Process) -> Any:
        operator = copy.copy(self._template)
        for name, value in list(vars(operator).items()):
            if isinstance(value, (runtime.Event, runtime.Lock, runtime.Condition, runtime.SimpleQueue)):
                object.__setattr__(operator, name, type(value)())
        object.__setattr__(operator, "job", airflow.job())
        object.__setattr__(operator, "deferrable", airflow.scenario.deferrable)
        object.__setattr__(operator, "retries", airflow.retries)
        return operator


def world_over(world: World) -> bool:
    return world.closed
