"""Machines: each node of a job run, on which the real agent runs with the model of a program below it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.simulation import runtime
from tests.simulation.program import Gang, Program, Truth
from tests.simulation.runtime import Event, Process, World
from tests.simulation.service import DataScience, Resource

BORNE = 6.0
"""Seconds for which a node may be cut off without any harm to its gang."""
NO_MACHINE = "Out of host capacity."
PREEMPTED = "The machine of this job run was preempted."
"""What the service says of a run that has ended."""


class Machine:
    """One node: an agent in a process of its own."""

    def __init__(self, machines: Machines, run: Resource, rank: int, gang: Gang, environment: dict[str, str]):
        world = machines.world
        self.machines, self.run, self.rank, self.gang = machines, run, rank, gang
        self.rules = machines.rules
        self.environment = environment
        skew = machines.scenario.node_skews[rank % len(machines.scenario.node_skews)]
        self.process = Process(world, f"node {gang.number}.{rank}", skew, runs_package=True)
        self.process.machine = self
        self.address = f"10.0.{gang.number % 250}.{rank + 1}"
        # Another machine in the place of a lost one has none of its files.
        self.home = machines.scratch / f"{gang.number}.{rank}.{environment.get('OCIDIST_INCARNATION', '0')}"
        self.switch: Any = None
        self.program: Program | None = None
        self.unreachable = False
        self.comes_back = False
        """Whether the service calls it lost, though it lives."""
        self.came_back_at: float | None = None
        """When it could be reached again after it was cut off."""
        self.stuck_since = 0.0
        """Since when it fetches without any end; 0: it does not."""
        self.signalled = False
        self.is_over = False
        """Whether its agent has ended by itself."""
        self.process.on_death.append(self._died)
        self.process.spawn(self._main, delay=world.between(0.5, 3.0, "boot", gang.number, rank))
        machines.by_address[self.address] = self

    @property
    def moves_data(self) -> str:
        """What it does with data while no program of it trains; empty: nothing."""
        if self.process.dead or self.is_over:
            return ""
        if self.program is None:
            return "fetches"
        return "delivers" if self.program.exit_code == 0 else ""

    def _died(self) -> None:
        if self.program is not None:
            self.program.end(-9)
        if not self.is_over:
            self.gang.hurt(f"the agent of node {self.rank} was killed")
            self.machines.node_over(self, 137)

    def _main(self) -> None:
        from airflow_provider_ocidist.agent.node import NodeAgent
        from airflow_provider_ocidist.agent.stopping import StopSwitch
        from airflow_provider_ocidist.model.agent_config import AgentConfig

        (self.home / "work").mkdir(parents=True, exist_ok=True)
        self.environment["HOME"] = str(self.home)
        self.switch = StopSwitch()
        if self.signalled:
            self._notify_switch()
        code = 70
        scenario = self.machines.scenario
        if scenario.no_agent == self.rank and self.machines.faults.fire("no agent starts", "no agent"):
            self.gang.hurt("no agent starts on a node")
            self.is_over = True
            self.machines.node_over(self, 0)
            self.process.kill("exits with 0, without an agent")
        try:
            code = NodeAgent(AgentConfig.from_env(self.environment), self.environment, self.switch).run()
        except Exception as error:
            self.machines.world.note(self.process.name, "agent ends: %s: %s", type(error).__name__, error)
            code = getattr(error, "code", 1)
        self.machines.world.note(self.process.name, "agent exits with %s", code)
        self.is_over = True
        self.rules.agent_ended(self, int(code))
        if (
            code
            and scenario.swallows
            and self.machines.faults.fire("exit codes are swallowed", "swallowed exit")
        ):
            code = 0
        self.machines.node_over(self, int(code))
        self.process.kill("is over")

    def sigterm(self) -> None:
        self.signalled = True
        if not self.process.dead and self.switch is not None:
            self.process.spawn(self._notify_switch, name="signals")

    def _notify_switch(self) -> None:
        from airflow_provider_ocidist.agent.stopping import Stop

        self.switch.signalled.set()
        self.switch.ask(Stop(message="this node was stopped by SIGTERM"))

    def launch(self, working_dir: Path, output: Any, environ: Any) -> Program:
        folder = Path(environ["OCIDIST_CHECKPOINT_DIR"])
        progress = Path(environ["OCIDIST_PROGRESS_FILE"])
        names = ("OCIDIST_RESTARTS", "OCIDIST_NODES", "OCIDIST_NODE_RANK")
        number, nodes, place = (int(environ[name]) for name in names)
        self.rules.launched(self.gang, self.rank, number, nodes)
        self.gang.begin_launch(number, nodes)
        self.program = Program(self.gang, self, self.rank, place, folder, output, progress)
        return self.program

    def fetch(self) -> None:
        """Take the time that code and image take, or all time there is."""
        scenario = self.machines.scenario
        seconds = self.machines.world.between(0.2, 4.0, "fetch", self.gang.number, self.rank)
        stuck = scenario.stuck_fetching == self.rank and self.gang.number == 0
        if stuck and self.machines.faults.fire("fetching never ends", "stuck fetching"):
            self.gang.hurt("a node fetches for ever")
            self.stuck_since = self.machines.world.now
            seconds = 10 * 3600.0
        self.switch.pause(seconds)


class Machines:
    """All nodes of a schedule: they start and end with their job runs."""

    def __init__(
        self,
        world: World,
        service: DataScience,
        truth: Truth,
        scenario: Any,
        faults: Any,
        rules: Any,
        scratch: Path,
    ) -> None:
        self.world, self.service, self.truth = world, service, truth
        self.scenario, self.faults, self.rules, self.scratch = scenario, faults, rules, scratch
        self.gangs: dict[str, Gang] = {}
        """By job."""
        self.of_run: dict[str, list[Machine]] = {}
        self.by_address: dict[str, Machine] = {}
        self.exits: dict[str, dict[int, int]] = {}
        self.taken: set[str] = set()
        """Runs whose machines were preempted, as the service says."""
        service.start = self.start
        service.stop = self.stop
        service.hides = lambda: bool(faults.fire("a run is hidden", "hidden run"))

    @property
    def all(self) -> list[Machine]:
        return [machine for machines in self.of_run.values() for machine in machines]

    def gang_of(self, run: Resource) -> Gang:
        job_id = run.body["jobId"]
        gang = self.gangs.get(job_id)
        if gang is None:
            job = self.service.jobs[job_id]
            config = _config_of(job)
            number = len(self.gangs)
            gang = Gang(
                self.world, self.truth, number, config["run_name"], int(config["nodes"]), self.scenario.habits
            )
            uri = (config.get("checkpoints") or {}).get("uri") or ""
            gang.checkpoints_prefix = uri.partition("://")[2].partition("/")[2]
            gang.run_prefix = config["run_dir"].partition("://")[2].partition("/")[2]
            gang.least = int(config.get("min_nodes") or gang.nodes)
            gang.job_id = job_id
            self.gangs[job_id] = gang
        return gang

    def start(self, run: Resource) -> None:
        """Find machines for a run that was accepted, or none."""
        gang = self.gang_of(run)
        number = int(run.tags.get("ocidist-rank", "0"))
        scenario, world = self.scenario, self.world
        delay = world.between(1.0, 12.0, "provision", gang.number, number)
        clerk = Process(world, f"service of {run.id.rpartition('.')[2]}")
        odd = gang.number == 0 and number == scenario.odd_rank
        if odd and scenario.capacity == "none" and self.faults.fire("no machine", "out of capacity"):
            gang.hurt("no machine is free")
            clerk.spawn(self.service.over, run, "FAILED", NO_MACHINE, delay=delay)
            return
        shape = shape_of(self.service.jobs[run.body["jobId"]])
        refused = [
            each for each in scenario.refused_shapes if each[0] == shape and each[1] <= world.now < each[2]
        ]
        if refused and self.faults.fire(f"no {shape}", "shape refused"):
            gang.hurt(f"no {shape} is free")
            gang.refused = not gang.programs
            clerk.spawn(self.service.over, run, "FAILED", NO_MACHINE, delay=delay)
            return
        if (short := self._shortage(run)) is not None:
            if short == "none":
                clerk.spawn(self.service.over, run, "FAILED", NO_MACHINE, delay=delay)
            elif short == "late":
                clerk.spawn(self._begin, run, delay=delay + scenario.shortage[2] - world.now)
            return
        if odd and scenario.capacity == "never" and self.faults.fire("never starts", "never starts"):
            gang.hurt("a node never starts")
            return
        if scenario.late_node and number == scenario.odd_rank and self.faults.fire("late node", "late node"):
            delay += scenario.late_node
        clerk.spawn(self._begin, run, delay=delay)

    def _begin(self, run: Resource) -> None:
        if run.state != "ACCEPTED":
            return
        gang = self.gang_of(run)
        self.service.begun(run)
        job = self.service.jobs[run.body["jobId"]]
        nodes = job.body.get("jobNodeConfigurationDetails")
        ranks = range(gang.nodes) if nodes else [int(run.tags["ocidist-rank"])]
        self.of_run[run.id] = [
            Machine(self, run, rank, gang, _environment(job, run, rank, gang.nodes)) for rank in ranks
        ]
        self.exits[run.id] = {}

    def node_over(self, machine: Machine, code: int) -> None:
        """Note the end of an agent; the service sees it a little later."""
        run = machine.run
        exits = self.exits[run.id]
        exits[machine.rank] = code
        if code != 0 or len(exits) == len(self.of_run[run.id]):
            clerk = Process(self.world, f"service of {run.id.rpartition('.')[2]}")
            delay = self.world.between(0.5, 4.0, "over", run.id, machine.rank)
            clerk.spawn(self._ended, run, code, delay=delay)

    def _ended(self, run: Resource, code: int) -> None:
        for machine in self.of_run.get(run.id, ()):
            if machine.rank not in self.exits[run.id] and not machine.process.dead:
                machine.is_over = True
                machine.process.kill("ends with its run")
        if run.state == "CANCELING" or run.cancel_asked is not None:
            if self.scenario.canceling_forever and self.faults.fire(
                "canceling never ends", "canceling forever"
            ):
                return
            self.service.over(run, "CANCELED", "Job run was canceled.")
        elif run.id in self.taken:
            self.service.over(run, "FAILED", PREEMPTED)
        elif code == 0:
            self.service.over(run, "SUCCEEDED", "Job run artifact execution succeeded.")
        else:
            self.service.over(run, "FAILED", f"Job run artifact execution failed with exit code {code}.")

    def stop(self, run: Resource) -> None:
        """End what a cancelled run has: SIGTERM, and SIGKILL a minute and a half later."""
        clerk = Process(self.world, f"service of {run.id.rpartition('.')[2]}")
        machines = self.of_run.get(run.id)
        if not machines:
            clerk.spawn(self._ended, run, 143, delay=self.world.between(0.5, 3.0, "stop", run.id))
            self.of_run[run.id] = []
            self.exits[run.id] = {}
            return
        if self.scenario.canceling_forever and self.faults.fire("canceling never ends", "canceling forever"):
            return
        if self.scenario.zombie and self.faults.fire("machines outlive their run", "zombie"):
            clerk.spawn(self.service.over, run, "CANCELED", "Job run was canceled.", delay=3.0)
            clerk.spawn(self._kill, run, delay=600.0)
            return
        for machine in machines:
            machine.sigterm()
        clerk.spawn(self._kill, run, delay=90.0)

    def _kill(self, run: Resource) -> None:
        alive = [machine for machine in self.of_run[run.id] if not machine.process.dead]
        for machine in alive:
            machine.is_over = True
            machine.process.kill("killed by the service after its cancel")
        if alive:
            self._ended(run, 137)

    def _shortage(self, run: Resource) -> str | None:
        """Return what befalls a machine that is asked for in the place of a lost one; None: it is there."""
        short = self.scenario.shortage
        if short is None or "ocidist-incarnation" not in run.tags:
            return None
        kind, begin, end = short
        is_short = begin <= self.world.now < end and self.faults.fire(
            "no machine for a lost one", "no machine in its place"
        )
        return str(kind) if is_short else None

    def lose(
        self,
        rank: int,
        noticed: float | None = None,
        back: float | None = None,
        *,
        preempted: bool = False,
        grace: float = 0.0,
    ) -> None:
        """A machine vanishes, with all that runs on it; the service sees that `noticed` seconds later.

        `back`: it was only cut off, for so many seconds, and goes on then; None: it has ended. `preempted`: the service
        says so. `grace`: it gets a signal first, and has so many seconds.
        """
        machine = next((each for each in self.all if each.rank == rank and not each.process.dead), None)
        if machine is None:
            return
        if preempted:
            self.taken.add(machine.run.id)
            self.faults.kinds["preempted"] += 1
        self.rules.lost(machine.gang, rank)
        machine.gang.hurt(f"node {rank} vanished", passes=self.scenario.restarts[2] > 0)
        clerk = Process(self.world, f"service of {machine.run.id.rpartition('.')[2]}")
        delay = noticed or self.world.between(5, 200, "noticed", machine.run.id)
        if grace:
            machine.sigterm()
            clerk.spawn(self._take_away, machine, delay, delay=grace)
            return
        if back is None:
            machine.is_over = True
            machine.process.kill("its machine vanishes")
        else:
            machine.comes_back = True
            self.exits[machine.run.id][rank] = 137
            self._isolate(machine, back)
        clerk.spawn(self._ended, machine.run, 137, delay=delay)

    def _take_away(self, machine: Machine, noticed: float) -> None:
        """End what a machine still does whose time is over; if its agent has ended, the service has seen that."""
        if not machine.process.dead:
            machine.is_over = True
            machine.process.kill("its machine is taken away")
            clerk = Process(self.world, f"service of {machine.run.id.rpartition('.')[2]}")
            clerk.spawn(self._ended, machine.run, 137, delay=noticed)

    def show_oddly(self, rank: int, state: str, seconds: float) -> None:
        """Let the service show a node's run in another state for a while; nothing of it is otherwise."""
        for run in self.service.runs.values():
            if run.state == "IN_PROGRESS" and run.tags.get("ocidist-rank", "0") == str(rank):
                self.service.attention(run, state)
                clerk = Process(self.world, "service")
                clerk.spawn(self._show_again, run, state, delay=seconds)
                return

    def _show_again(self, run: Resource, state: str) -> None:
        if run.state == state:
            self.service.attention(run, "IN_PROGRESS")

    def set_clock(self, rank: int, by: float) -> None:
        for machine in self.all:
            if machine.rank == rank and not machine.process.dead:
                machine.process.skew += by
                if machine.program is not None:
                    machine.program.process.skew += by
                self.world.note(machine.process.name, "its clock jumps by %.0f s", by)
                return

    def kill_program(self, rank: int) -> None:
        """A process of the training is killed; its node lives."""
        for machine in self.all:
            if machine.rank == rank and not machine.process.dead and machine.program is not None:
                machine.program.be_killed()

    def cut_off(self, rank: int, seconds: float) -> None:
        """A node reaches neither store nor the others for a while."""
        for machine in self.all:
            if machine.rank == rank and not machine.process.dead:
                if seconds > BORNE:
                    machine.gang.hurt(f"node {rank} is cut off for {seconds:.0f} s")
                self._isolate(machine, seconds)
                return

    def freeze(self, rank: int, seconds: float) -> None:
        """A machine stands still for a while, with all that runs on it; the service calls it alive."""
        for machine in self.all:
            if machine.rank == rank and not machine.process.dead:
                self.rules.lost(machine.gang, rank)
                machine.gang.hurt(f"node {rank} is frozen", passes=self.scenario.restarts[2] > 0)
                self.world.note(machine.process.name, "is frozen for %.0f s", seconds)
                machine.process.frozen_until = self.world.now + seconds
                if machine.program is not None:
                    machine.program.process.frozen_until = machine.process.frozen_until
                machine.unreachable = True
                Process(self.world, "network").spawn(self._reconnect, machine, delay=seconds)
                return

    def _isolate(self, machine: Machine, seconds: float) -> None:
        machine.process.cut_off = {"store"}
        machine.unreachable = True
        self.world.note(machine.process.name, "is cut off for %.0f s", seconds)
        Process(self.world, "network").spawn(self._reconnect, machine, delay=seconds)

    def _reconnect(self, machine: Machine) -> None:
        machine.process.cut_off = set()
        machine.unreachable = False
        machine.came_back_at = self.world.now
        self.world.note(machine.process.name, "is reachable again")

    def cannot_read(self, rank: int) -> bool:
        """Whether a node cannot read the folder that all share."""
        which, begin, end = self.scenario.unreadable or (-1, 0.0, 0.0)
        is_now = rank == which and begin <= self.world.now < end
        return is_now and bool(self.faults.fire("a folder is unreadable", "unreadable folder"))

    def answers(self, address: str) -> bool:
        """Do what `peers.host_answers` does: whether a host answers at all."""
        asking = self.world.current.process if self.world.current else None
        own = getattr(asking, "machine", None)
        machine = self.by_address.get(address)
        there = machine is not None and not machine.process.dead and not machine.unreachable
        if there and not (own and own.unreachable):
            self.world.sleep(0.01)
            return True
        self.world.sleep(3.0)
        return False


def here() -> Machine:
    """Return the machine of the process that runs now."""
    assert runtime.WORLD.current is not None
    return runtime.WORLD.current.process.machine


def training_model(real: type) -> type:
    """Return the agent's own Training, with a model in place of the processes below it."""

    class Training(real):
        def __init__(
            self, command: Any, environ: Any, working_dir: Path, output: Any, *rest: Any, **more: Any
        ):
            from tests.simulation.runtime import Thread

            machine = here()
            self.output = output
            self._leash = -1
            self._oom_kills = None
            self._show_stacks = lambda _pid: None
            self.ended, self._changed = Event(), Event()
            self._readers: list[Any] = []
            self.program = machine.launch(working_dir, output, environ)
            self._process = SimpleNamespace(pid=100_000 + machine.rank, returncode=None, wait=self._wait_end)
            self._gone = Event()
            self.program.on_end.append(self._gone.set)
            if self.program.exit_code is not None:
                self._gone.set()
            for name, value in more.items():
                setattr(self, name, value)
            Thread(target=self._await_end, name="training", daemon=True).start()

        def _wait_end(self) -> None:
            self._gone.wait()
            self._process.returncode = self.program.exit_code

        def _kill(self) -> None:
            self.program.end(-9)
            self._gone.wait()
            self.ended.wait(10.0)

    return Training


class SimulatedOs:
    """`os` as the supervision of processes sees it: signals go to the model."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def killpg(self, pid: int, number: int) -> None:
        program = here().program
        if program is None or program.exit_code is not None:
            raise ProcessLookupError
        if number == 15:
            program.sigterm()
        else:
            program.end(-int(number))

    kill = killpg

    def close(self, descriptor: int) -> None:
        if descriptor >= 0:
            os.close(descriptor)


class Scratch:
    """The folders of all nodes of a schedule."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Path:
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(parents=True)
        return self.path

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            shutil.rmtree(self.path)


def _config_of(job: Resource) -> dict[str, Any]:
    return dict(json.loads(_variables(job)["OCIDIST_CONFIG"]))


def _variables(job: Resource) -> dict[str, str]:
    nodes = job.body.get("jobNodeConfigurationDetails")
    if nodes:
        (group,) = nodes["jobNodeGroupConfigurationDetailsList"]
        return dict(group["jobConfigurationDetails"]["environmentVariables"])
    return dict(job.body["jobConfigurationDetails"]["environmentVariables"])


def shape_of(job: Resource) -> str:
    """Return the shape that a job asks for."""
    return str((job.body.get("jobInfrastructureConfigurationDetails") or {}).get("shapeName", ""))


def _environment(job: Resource, run: Resource, rank: int, nodes: int) -> dict[str, str]:
    own = (run.body.get("jobConfigurationOverrideDetails") or {}).get("environmentVariables") or {}
    environment = {**_variables(job), **own, "PATH": "/usr/bin"}
    if job.body.get("jobNodeConfigurationDetails"):
        environment |= {"NODE_RANK": str(rank), "INITIAL_CLUSTER_SIZE": str(nodes)}
    return environment
