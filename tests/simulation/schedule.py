"""Schedule: one run of everything, from one seed, and what it has shown."""

from __future__ import annotations

import gc
import hashlib
import os
import re
import time as real_time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.simulation import runtime, seams
from tests.simulation.faults import Event, Faults, Network
from tests.simulation.scenario import Scenario, draw

HORIZON = 10000.0
"""Seconds of the world after which a task that is not over has waited without a limit."""
SCRATCH = Path(
    os.environ.get("OCIDIST_SIMULATION_DIR", "/dev/shm" if Path("/dev/shm").is_dir() else "/tmp")
).resolve()
"""Where nodes have their files. Without links: the kernel names open files so."""


OF_MACHINES = {
    "lose": "lose",
    "freeze": "freeze",
    "cut_off": "cut_off",
    "odd_state": "show_oddly",
    "kill_program": "kill_program",
}
"""Which method of `Machines` each event is that befalls them."""
_OWN = re.compile(re.escape(f"{SCRATCH}/ocidist-simulation-") + r"\d+")
"""The folder of this process; a trace is without it."""


@dataclass
class Outcome:
    """What one schedule has shown."""

    seed: str
    scenario: Scenario
    violations: list[tuple[str, float, str]]
    trace_hash: str
    """Digest of the trace; empty where no trace was asked for."""
    fired: list[str]
    kinds: Counter[str]
    state: str
    seconds: float
    """Of the world."""
    took: float
    """Seconds of a processor."""
    calls: int
    result: tuple[object, ...] = ()
    """What the task has come to: the same on every path to it."""
    gangs: int = 0
    """How many there were, but for those whose shape was refused."""
    trace: list[str] = field(default_factory=list)

    @property
    def rules(self) -> set[str]:
        return {rule for rule, _, _ in self.violations}


def run(scenario: Scenario | str, *, keep_trace: bool = False) -> Outcome:
    """Run one schedule to its end."""
    installed = seams.install()
    scenario = draw(scenario) if isinstance(scenario, str) else scenario
    from tests.simulation.airflow_model import Airflow, connection
    from tests.simulation.machines import Machines, Scratch
    from tests.simulation.program import Truth
    from tests.simulation.rules import Rules
    from tests.simulation.service import DataScience, Service
    from tests.simulation.store import Bucket, Place

    began = real_time.process_time()
    world = runtime.World(scenario.seed)
    runtime.enter(world)
    seams.begin(world)
    world.give_globals(installed.globals)
    gc.disable()
    faults = Faults(world, scenario.rates, scenario.windows, scenario.left_out, scenario.key_replaced_at)
    faults.quiet_after = 1200.0
    with Scratch(SCRATCH / f"ocidist-simulation-{os.getpid()}") as scratch:
        bucket, service, truth = Bucket(world), DataScience(world, scenario), Truth()
        network = Network(world, faults)
        Place.bucket, Place.network, Service.data_science = bucket, network, service
        rules = Rules(world, scenario, faults)
        machines = Machines(world, service, truth, scenario, faults, rules, scratch)
        airflow = Airflow(world, scenario, faults, installed.operators)
        seams.Current.airflow, seams.Current.machines = airflow, machines
        seams.Current.connection = connection(scenario)
        rules.attach(bucket, service, machines, airflow, truth)
        network.on_done, network.on_refused = rules.called, rules.refused_call
        airflow.schedule(0.5)
        for event in scenario.events:
            runtime.Process(world, "fate").spawn(_happen, event, airflow, machines, faults, delay=event.at)
        try:
            over = _run(world, airflow, service, rules, scenario)
            rules.at_end(over)
        finally:
            world.close()
    gc.enable()
    _collect()
    lines = render(world) if keep_trace else []
    return Outcome(
        seed=scenario.seed,
        scenario=scenario,
        violations=rules.violations,
        trace_hash=_hash(world) if keep_trace else "",
        fired=list(dict.fromkeys(faults.fired)),
        kinds=faults.kinds,
        state=airflow.state,
        seconds=world.now,
        took=real_time.process_time() - began,
        calls=sum(network.calls.values()),
        result=_result(airflow, rules, machines),
        gangs=len(_with_machines(machines)),
        trace=lines,
    )


_uncollected = 0
COLLECTED_EVERY = 4
"""Schedules. What one has left in cycles are some thousand objects."""


def _collect() -> None:
    """Clear away what schedules have left; what the first has imported and cached stays, and is looked at no more."""
    global _uncollected
    if _uncollected % COLLECTED_EVERY == 0:
        gc.collect()
    if _uncollected == 0:
        gc.freeze()
    _uncollected += 1


def _with_machines(machines) -> list[int]:
    """Return the numbers of the gangs for whose shape there were machines."""
    return [gang.number for gang in machines.gangs.values() if not gang.refused]


def _result(airflow, rules, machines) -> tuple[object, ...]:
    """Return how the task ended, why, and which checkpoint it has handed on."""
    why = (airflow.xcom.get("failure") or {}).get("cause") if airflow.state == "failed" else None
    folder = (airflow.xcom.get("checkpoint_uri") or "").partition("://")[2].partition("/")[2]
    save = rules.manifests.get(folder, (None, 0.0))[0]
    gangs = {number: at for at, number in enumerate(_with_machines(machines))}
    # Not its number among all saves: where a rank raises in the last step, others may have ended by then or not, and
    # so trained the step once more in another launch (q1.5200).
    handed_on: object = (gangs.get(save.gang), save.step, save.name) if save else None
    newest = max((each for each, _ in rules.manifests.values() if each), key=_order, default=None)
    if airflow.state == "failed" and save is newest:
        # How much others have saved when a rank fails depends on the second (1127.8100, 1127.9500).
        handed_on = "the newest"
    return airflow.state, why, handed_on


def _order(save) -> tuple[int, int]:
    return save.order


def _run(world: runtime.World, airflow, service, rules, scenario: Scenario) -> bool:
    """Let the task come to its end, and what it has left behind too; return whether nothing lives."""
    from tests.simulation.rules import LIVE

    last_event = max((event.at for event in scenario.events), default=0.0)

    def task_is_over() -> bool:
        return airflow.ended_at is not None and world.now > last_event + 10

    world.run(HORIZON, task_is_over)
    if airflow.ended_at is None:
        return False
    until = world.now + 1.3 * scenario.lease + 400.0

    def nothing_lives() -> bool:
        return task_is_over() and not any(run.state in LIVE for run in service.runs.values())

    over = world.run(until, nothing_lives)
    if over:
        # What was cut off by the end of its run has a moment more.
        world.run(world.now + 5.0, lambda: False)
    return over


def _happen(event: Event, airflow, machines, faults: Faults) -> None:
    if not faults.fire(f"event/{event.name} at {event.at:.1f}", event.name):
        return
    airflow.world.note("fate", "%s %s", event.what, event.details or "")
    if (act := OF_MACHINES.get(event.what)) is not None:
        getattr(machines, act)(**event.details)
    elif event.what == "set_clock" and event.details["who"] == "node":
        machines.set_clock(event.details["rank"], event.details["by"])
    elif event.what == "delete_run":
        for run in list(machines.service.runs.values()):
            if run.state in ("SUCCEEDED", "FAILED", "CANCELED"):
                machines.gang_of(run).hurt("its run was deleted")
                machines.service.gone(run)
                return
    elif event.what == "crowd":
        if airflow.entry is not None and airflow.entry.path.endswith("DistributedTrainingTrigger"):
            airflow.triggerer.crowd(airflow.scenario.crowd, airflow.entry.arguments)
    else:
        airflow.act(event.what, event.details)


def render(world: runtime.World) -> list[str]:
    """Return the trace for a person: when, who, what."""
    return [f"{at:9.2f}  {who:<16} {_text(text, args)}" for at, who, text, args in world.trace]


def _text(text: str, args: tuple[object, ...]) -> str:
    try:
        return _OWN.sub("", (text % args if args else text).replace("\n", " | "))[:400]
    except (TypeError, ValueError):
        return f"{text} {args}"[:400]


def _hash(world: runtime.World) -> str:
    digest = hashlib.sha256()
    for at, who, text, args in world.trace:
        digest.update(f"{at:.6f} {who} {_text(text, args)}\n".encode())
    return digest.hexdigest()[:16]
