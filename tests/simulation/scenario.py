"""Scenario: all that one seed decides, drawn before anything runs."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tests.simulation.faults import Event, Rate, Window
from tests.simulation.program import FAULTS, Habits, habits_from

LAUNCHED_AGAIN = 0.25
"""The share of schedules whose jobs allow restarts."""
ODD_TOO = 0.4
"""The share of schedules that have one more kind of `_ODDITIES`."""
LOSES_A_MACHINE = 0.05
"""The share of schedules that lose a machine for which another may take its place."""
ALONE = 0.34
"""The share of schedules that have one kind of `_ALONE`, and nothing else that goes wrong."""
OUTLIVES = 28
"""Steps of six seconds of a node that is cut off, from its start after about 75 s on: it trains when it comes back, at
235 s at the latest."""
SHARED_FOLDER = "/mnt/shared/checkpoints"
"""The path of a checkpoint folder that all nodes share."""
SHAPES = ("VM.Standard2.1", "VM.Standard2.2", "VM.Standard2.4")
"""What a job asks for, and its candidates where it has any."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One schedule."""

    seed: str
    nodes: int = 2
    topology: str = "job_runs"
    deferrable: bool = True
    retries: int = 2
    checkpoints: bool = True
    keep: int = 3
    resume: bool = True
    required: bool = True
    lease: float = 600.0
    capacity_timeout: float = 300.0
    lost_timeout: float = 60.0
    hang_timeout: float = 120.0
    start_timeout: float = 240.0
    join_timeout: float = 150.0
    stop_grace: float = 20.0
    restarts: tuple[int, int, int] = (0, 0, 0)
    """How often a launch may follow on one that a program, a hang, or an error of a node's hardware has ended."""
    habits: Habits = field(default_factory=Habits)
    node_skews: tuple[float, ...] = (0.0,)
    worker_skew: float = 0.0
    triggerer_skew: float = 0.0
    foreign_jobs: int = 0
    list_lag: float = 20.0
    capacity: str = "there"
    """`there`, `none` (a node of the first gang gets no machine), `never` (it stays ACCEPTED)."""
    odd_rank: int = 0
    late_node: float = 0.0
    stuck_fetching: int = -1
    canceling_forever: bool = False
    swallows: bool = False
    """Whether whatever starts the agent exits with 0, as a shell script that ends otherwise."""
    no_agent: int = -1
    """The node whose container exits with 0 without having started the agent."""
    max_runtime: float | None = None
    hidden: tuple[float, float, int] | None = None
    """From when to when the service knows nothing of a node's runs, and its rank: it lists none, and says 404."""
    zombie: bool = False
    """Whether the service calls a run CANCELED at once whose machine knows nothing of that, and runs on."""
    notes: bool = True
    """Whether Airflow keeps the task's state from try to try: 3.3 does."""
    logs: bool = False
    """Whether the job has a log at the service."""
    candidates: int = 0
    """How many other shapes the job names."""
    refused_shapes: tuple[tuple[str, float, float], ...] = ()
    """Of which there is no machine, from when to when."""
    node_seconds: float | None = None
    """What the job may use (`limits.max_node_hours`)."""
    only_loss: bool = False
    """Whether nothing befalls the training but the loss of machines, which others make up for, or fewer nodes."""
    min_nodes: int | None = None
    """The least number of nodes that may train, where the job names one."""
    replace_timeout: float | None = None
    grow_after: float = 60.0
    shortage: tuple[str, float, float] | None = None
    """What befalls a machine that is asked for in the place of a lost one, from when to when: `asked` (the service
    refuses the request), `none` (it ends for want of a machine), `never` (it stays ACCEPTED), `late` (until the end of
    that time)."""
    grows: bool = False
    """Whether there are machines again so early that all nodes train before the end."""
    shared_folder: bool = False
    """Whether all nodes have one checkpoint folder, as on a mount."""
    unreadable: tuple[int, float, float] | None = None
    """Which node cannot read that, from when to when."""
    crowd: int = 0
    """Triggers of other tasks that begin to wait in the same triggerer."""
    key_replaced_at: float | None = None
    """When the key of Airflow's connection is replaced: who has read it before is refused by the service."""
    require_training: bool = False
    """Whether a training that shows nothing is a failure."""
    rates: tuple[Rate, ...] = ()
    windows: tuple[Window, ...] = ()
    events: tuple[Event, ...] = ()
    left_out: frozenset[str] = frozenset()

    def without(self, names: frozenset[str]) -> Scenario:
        return replace(self, left_out=self.left_out | names)


def draw(seed: str) -> Scenario:
    """Return the scenario of a seed. Most schedules have a few kinds of fault, some have none."""
    dice = random.Random(seed)
    nodes = dice.choice([1, 2, 2, 2, 3])
    habits = habits_from(dice)
    length = 40.0 + habits.steps * habits.step_seconds
    scenario = Scenario(
        seed=seed,
        nodes=nodes,
        topology="multi_node" if nodes > 1 and dice.random() < 0.2 else "job_runs",
        deferrable=dice.random() < 0.6,
        retries=dice.choice([0, 1, 2, 2, 3]),
        keep=dice.choice([1, 2, 3]),
        resume=dice.random() < 0.85,
        habits=habits,
        lease=dice.choice([300.0, 600.0]),
        foreign_jobs=dice.choice([0, 0, 150, 1500]),
        odd_rank=dice.randrange(nodes),
        checkpoints=dice.random() < 0.93,
    )
    kinds = dice.sample(sorted(_KINDS), dice.choice([0, 1, 1, 2, 2, 3, 4]))
    for kind in kinds:
        scenario = replace(scenario, **_KINDS[kind](dice, scenario, length))
    if dice.random() < LAUNCHED_AGAIN:
        scenario = replace(scenario, **_launched_again(dice, scenario, length))
    if dice.random() < ODD_TOO:
        scenario = replace(scenario, **_ODDITIES[dice.choice(sorted(_ODDITIES))](dice, scenario, length))
    if dice.random() < LOSES_A_MACHINE:
        scenario = replace(scenario, **_machine_lost(dice, scenario, length))
    if dice.random() < ALONE:
        calm = replace(scenario, only_loss=False, **_CALM)
        scenario = replace(calm, **_ALONE[dice.choice(sorted(_ALONE))](dice, calm, length))
    # The store refuses a crowd's triggerer for two minutes: the service is then the one way to end a gang.
    ways = tuple(rate for rate in scenario.rates if not (scenario.crowd and rate.calls == "service.cancel"))
    return replace(scenario, rates=ways)


def _launched_again(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """Budgets of restarts, and faults of the program in one launch or in several, at the same step or at others."""
    habits, steps = scenario.habits, range(scenario.habits.steps + 1)
    fails_at = dice.choice([habits.fails_at, dice.choice(steps[1:])])
    later = dice.choice([(), (fails_at,), tuple(dice.choice(steps) for _ in range(4))])
    deaths = [
        Event(
            f"process of rank {rank} killed",
            "kill_program",
            dice.uniform(10, 2 * length),
            {"rank": rank % scenario.nodes},
        )
        for rank in dice.choice([(), (0,), (1,), (0, 1), (2, 1, 0)])
    ]
    habits = replace(
        habits,
        fails_at=fails_at,
        fails_later=later,
        raises=dice.choice(sorted(FAULTS)),
        hangs_launches=dice.choice([1, 1, 2]),
    )
    budgets = dice.choice([1, 2, 9]), dice.choice([0, 1, 3]), dice.choice([0, 1, 2])
    if dice.random() < 0.3:
        # A launch ends a moment after a save, which the main node still sends while the one that failed goes back.
        habits = replace(
            habits,
            layout=dice.choice(["pt", "rolling", "lightning"]),
            save_every=1,
            step_seconds=0.3,
            write_seconds=0.3,
            pause=0.0,
            fails_at=max(2, fails_at),
            fails_rank=1,
            fails_in_save=False,
            full_at=0,
            hangs_at=0,
            trains_nothing=False,
        )
        more = {"nodes": max(2, scenario.nodes), "restarts": budgets, "habits": habits}
        return {**_CALM, **more} if dice.random() < 0.5 else _merge(scenario, events=tuple(deaths), **more)
    return _merge(scenario, restarts=budgets, habits=habits, events=tuple(deaths))


def _lasts(habits: Habits) -> Habits:
    """Return habits of a program that goes on for some minutes, unless it is ended."""
    calm = replace(habits, fails_at=0, full_at=0, hangs_at=0, trains_nothing=False, steps=40)
    return replace(calm, step_seconds=max(3.0, habits.step_seconds), save_every=max(4, habits.save_every))


def _merge(scenario: Scenario, **more: Any) -> Mapping[str, Any]:
    """Return changes of a scenario; what it has of rates, windows and events stays."""
    for name in ("rates", "windows", "events"):
        if name in more:
            more[name] = (*getattr(scenario, name), *more[name])
    return more


def _flaky(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    calls = [
        "service.",
        "store.",
        "service.list_",
        "service.get_",
        "service.create_",
        "service.cancel",
        "store.put",
    ]
    kinds = ["401", "404", "409", "429", "500", "503", "lost", "late", "unreachable"]
    rates = []
    for _ in range(dice.choice([1, 2, 4])):
        call, kind = dice.choice(calls), dice.choice(kinds)
        if kind in ("401", "404", "409") and call.startswith("store"):
            kind = "503"
        rates.append(Rate(kind, call, dice.choice([0.02, 0.05, 0.15])))
    return _merge(scenario, rates=tuple(rates))


def _stale(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    return _merge(
        scenario,
        rates=(Rate("stale", "service.list_", dice.choice([0.2, 0.6])),),
        list_lag=dice.choice([5.0, 30.0]),
    )


def _lost_create(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """Answers that are lost or refusals amid the creation; half of the time of several nodes, with lists that lag."""
    rates = (
        Rate("lost", "service.create_job", dice.choice([0.2, 0.5])),
        Rate(dice.choice(["500", "503", "404"]), "service.create_job_run", 0.3),
    )
    if dice.random() < 0.5:
        return _merge(scenario, rates=rates)
    return _merge(
        scenario,
        nodes=max(2, scenario.nodes),
        topology="job_runs",
        rates=(Rate("404", "service.create_job_run", 0.3), Rate("stale", "service.list_", 0.6)),
        list_lag=30.0,
    )


def _outage(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    place = dice.choice(["service.", "store."])
    kind = dice.choice(
        ["503", "unreachable", "500"] if place == "store." else ["401", "503", "unreachable", "404", "429"]
    )
    begin = dice.uniform(0, length)
    seconds = dice.choice([10.0, 40.0, 200.0])
    name = f"{kind} of {place} {dice.randrange(1000)}"
    calls = place if kind != "404" else "service.list_"
    return _merge(scenario, windows=(Window(name, kind, calls, begin, begin + seconds),))


def _throttled(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    begin = dice.uniform(0, length)
    name = f"throttled {dice.randrange(1000)}"
    window = Window(
        name,
        "429",
        "service.",
        begin,
        begin + dice.choice([30.0, 100.0]),
        retry_after=dice.choice([5.0, 30.0]),
    )
    return _merge(scenario, windows=(window,))


def _reports_throttled(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    begin = dice.uniform(0, length + 30)
    rank = dice.randrange(scenario.nodes)
    window = Window(
        f"reports of node {rank}",
        dice.choice(["429", "503"]),
        "store.put",
        begin,
        begin + dice.choice([20.0, 60.0, 120.0]),
        actors="node ",
    )
    return _merge(scenario, windows=(window,))


def _store_down_at_end(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    begin = length * dice.uniform(0.6, 1.0)
    window = Window(
        "store down at the end",
        dice.choice(["503", "unreachable"]),
        "store.",
        begin,
        begin + dice.choice([30.0, 120.0, 400.0]),
        actors="node ",
    )
    return _merge(scenario, windows=(window,))


def _store_down_at_start(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """For longer than one fetch is repeated at once, at times, and never as long as a node is patient."""
    begin = dice.uniform(5.0, 30.0)
    window = Window(
        "store down at the start",
        dice.choice(["503", "unreachable"]),
        "store.",
        begin,
        begin + dice.choice([20.0, 60.0, 110.0]),
        actors="node ",
    )
    return _merge(scenario, windows=(window,))


def _skewed(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    skews = tuple(dice.uniform(-280, 280) for _ in range(3))
    return _merge(
        scenario,
        node_skews=skews,
        worker_skew=dice.uniform(-200, 200),
        triggerer_skew=dice.uniform(-200, 200),
    )


def _node_lost(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    event = Event("node lost", "lose", dice.uniform(10, length), {"rank": dice.randrange(scenario.nodes)})
    return _merge(scenario, events=(event,))


def _partition(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    details = {"rank": dice.randrange(scenario.nodes), "seconds": dice.choice([5.0, 40.0, 300.0])}
    return _merge(scenario, events=(Event("partition", "cut_off", dice.uniform(10, length), details),))


def _worker_killed(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    rates = (Rate("kill", "", dice.choice([0.01, 0.05]), actors="worker"),)
    if dice.random() < 0.5:
        rates = (Rate("kill", "service.create", 0.3, actors="worker"),)
    return _merge(scenario, rates=rates, retries=max(1, scenario.retries))


def _triggerer_killed(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    return _merge(
        scenario,
        deferrable=True,
        events=(Event("triggerer killed", "kill_triggerer", dice.uniform(10, length), {}),),
    )


def _node_killed(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    return _merge(scenario, rates=(Rate("kill", "store.put", 0.01, actors="node "),))


def _user_kills(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    return _merge(scenario, events=(Event("marked failed", "mark_failed", dice.uniform(1, length), {}),))


def _clear(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    changes: dict[str, Any] = {}
    for change in dice.sample(
        ["retries", "compartment", "nodes", "keep", "resume", "none"], dice.choice([1, 2])
    ):
        if change == "retries":
            changes["retries"] = dice.choice([0, 1, 2])
        elif change == "compartment":
            changes["compartment"] = "other"
        elif change == "nodes":
            changes["nodes"] = dice.choice([1, 2, 3])
        elif change == "keep":
            changes["keep"] = 1
        elif change == "resume":
            changes["resume"] = False
    at = dice.uniform(1, length * 1.6)
    return _merge(scenario, events=(Event("cleared", "clear", at, changes),))


def _changed_between_tries(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    changes = dice.choice([{"compartment": "other"}, {"nodes": 1}, {"nodes": 3}, {"resume": False}])
    return _merge(
        scenario,
        retries=max(1, scenario.retries),
        events=(
            Event("edited", "edit", dice.uniform(1, length), changes),
            Event("worker dies", "kill_worker", dice.uniform(1, length), {}),
            Event("triggerer dies", "kill_triggerer", dice.uniform(1, length), {}),
        ),
    )


def _two_schedulers(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    return _merge(
        scenario,
        retries=max(1, scenario.retries),
        deferrable=dice.random() < 0.3,
        events=(Event("taken for dead", "second_try", dice.uniform(1, length), {}),),
    )


def _capacity(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    return _merge(
        scenario, capacity=dice.choice(["none", "none", "never"]), late_node=dice.choice([0.0, 60.0, 200.0])
    )


def _stuck_fetching(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    return _merge(scenario, stuck_fetching=dice.randrange(scenario.nodes))


def _canceling(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    what = dice.choice(["clear", "mark_failed", "kill_worker", "lose", "deadline"])
    at = dice.uniform(1, length)
    if what == "deadline":
        # Somebody waits, and ends the gang.
        return _merge(scenario, canceling_forever=True, max_runtime=at + 20)
    details = {"rank": dice.randrange(scenario.nodes)} if what == "lose" else {}
    return _merge(
        scenario,
        canceling_forever=True,
        retries=max(1, scenario.retries),
        events=(Event(what, what, at, details),),
    )


def _deleted(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    return _merge(scenario, events=(Event("run deleted", "delete_run", dice.uniform(20, 2 * length), {}),))


def _cancel_conflict(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    what = dice.choice(["mark_failed", "clear"])
    return _merge(
        scenario,
        rates=(Rate("409", "service.cancel", 0.6),),
        events=(Event(what, what, dice.uniform(1, length), {}),),
    )


def _crowded_kill(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """A kill while many other triggers begin, each of which sleeps out what the store asks it to wait."""
    at = dice.uniform(35, 35 + length / 2)
    return _merge(
        scenario,
        deferrable=True,
        habits=_lasts(scenario.habits),
        crowd=dice.choice([40, 100]),
        windows=(
            Window(
                "crowd throttled", "429", "store.", at - 12, at + 120, actors="triggerer", retry_after=50.0
            ),
        ),
        events=(Event("crowd comes", "crowd", at - 8, {}), Event("marked failed", "mark_failed", at, {})),
    )


def _cancel_conflict_without_store(
    dice: random.Random, scenario: Scenario, length: float
) -> Mapping[str, Any]:
    at = dice.uniform(30, max(40, length))
    return _merge(
        scenario,
        deferrable=True,
        habits=_lasts(scenario.habits),
        rates=(Rate("409", "service.cancel", 0.5),),
        windows=(
            Window("store out of reach of Airflow", "503", "store.", at - 1, at + 150, actors="worker"),
            Window("store out of reach of triggers", "503", "store.", at - 1, at + 150, actors="triggerer"),
        ),
        events=(Event("mark_failed", "mark_failed", at, {}),),
    )


def _hidden(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """A node of which the service knows nothing for a while; half of the time its task is ended meanwhile, with a store
    that is out of reach of Airflow, so that nothing reaches the node."""
    begin = dice.uniform(10, length)
    seconds, rank = dice.choice([20.0, 60.0, 100.0]), dice.randrange(scenario.nodes)
    if dice.random() < 0.5:
        return _merge(scenario, hidden=(begin, begin + seconds, rank))
    begin = max(30.0, begin)
    end = begin + seconds
    away = [
        Window(f"store out of reach of the {who}", "503", "store.", begin, end, actors=who)
        for who in ("worker", "triggerer")
    ]
    return _merge(
        scenario,
        deferrable=True,
        # The end of one node would be that of the others.
        nodes=1,
        topology="job_runs",
        odd_rank=0,
        habits=_lasts(scenario.habits),
        hidden=(begin, end, 0),
        windows=tuple(away),
        events=(Event("marked failed", "mark_failed", begin + 2.0, {}),),
    )


def _zombie(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """A node that is cut off until its successor trains, and of whose cancel it never hears.

    Now and then it comes back between two nodes of its successor, with a save that names no step.
    """
    details = {"rank": 0, "seconds": dice.choice([120.0, 200.0, 260.0])}
    habits = replace(scenario.habits, hangs_at=0, fails_at=0, full_at=0, trains_nothing=False, save_every=1)
    if dice.random() < 0.4:
        habits = replace(habits, layout="rolling", silent=True, steps=OUTLIVES, write_seconds=0.3, keeps=0)
        details["seconds"] = dice.uniform(70.0, 100.0)
        return _merge(
            replace(scenario, rates=(), windows=()),
            rates=(),
            windows=(),
            zombie=True,
            checkpoints=True,
            resume=True,
            nodes=max(2, scenario.nodes),
            topology="job_runs",
            odd_rank=0,
            late_node=60.0,
            retries=max(2, scenario.retries),
            habits=replace(habits, step_seconds=6.0, on_sigterm="ignores"),
            events=(Event("partition", "cut_off", dice.uniform(85, 110), details),),
        )
    return _merge(
        scenario,
        zombie=True,
        checkpoints=True,
        retries=max(2, scenario.retries),
        habits=replace(habits, steps=9, step_seconds=6.0, on_sigterm="ignores"),
        events=(Event("partition", "cut_off", dice.uniform(20, 60), details),),
    )


def _last_report_throttled(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """From about the end of the training on, one node cannot write what it has to say."""
    begin = dice.uniform(0.5, 1.2) * length
    gang, rank = 0, dice.randrange(1, scenario.nodes) if scenario.nodes > 1 else 0
    window = Window(
        f"last report of node {rank}", "429", "store.put", begin, begin + 90, actors=f"node {gang}.{rank}"
    )
    return _merge(scenario, windows=(window,))


def _refused_for_long(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """While a node waits for its machine, the service says for longer than one believes in a passing fault that it
    knows nothing of it."""
    begin, kind = dice.uniform(2, 15), dice.choice(["401", "404"])
    windows = [
        Window(f"{kind} of {calls} for long", kind, calls, begin, begin + 1150)
        for calls in ("service.list_", "service.get_")
    ]
    return _merge(scenario, windows=tuple(windows), capacity="never", retries=min(1, scenario.retries))


def _last_try_refused(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """The worker dies, and the last try meets nothing but refusals, or a gang whose job is listed and not found."""
    at, kind = dice.uniform(5, length), dice.choice(["429", "503", "500", "401", "absent", "absent"])
    calls, kind = ("service.get_job", "404") if kind == "absent" else ("service.", kind)
    end = at + dice.choice([60.0, 300.0, 1200.0])
    return _merge(
        scenario,
        deferrable=False,
        retries=1,
        windows=(Window(f"{kind} at the last try", kind, calls, at, end),),
        events=(Event("worker dies", "kill_worker", at, {}),),
    )


def _deadline(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    return _merge(scenario, max_runtime=dice.choice([60.0, 90.0, 120.0, 240.0]))


def _swallows(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    return _merge(scenario, swallows=True)


def _no_agent(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    if dice.random() < 0.5:
        # Nothing else than its report could show that it has not trained.
        return _merge(scenario, no_agent=0, nodes=1, topology="job_runs", checkpoints=False)
    return _merge(scenario, no_agent=dice.randrange(scenario.nodes))


def _killed_in_an_upload(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """A node is gone while a checkpoint of several parts is on its way."""
    return _merge(
        scenario,
        checkpoints=True,
        retries=max(2, scenario.retries),
        habits=replace(
            scenario.habits, layout=dice.choice(["pt", "rolling", "lightning"]), trains_nothing=False
        ),
        rates=(Rate("kill", "store.put_part", 0.4, actors="node 0."),),
    )


def _saves_over(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """A program that begins anew, and saves over the parts of all nodes that were fetched for it."""
    habits = replace(scenario.habits, hangs_at=0, full_at=0, trains_nothing=False, fails_in_save=False)
    every = dice.choice([1, 2, 3])
    return _merge(
        scenario,
        nodes=max(2, scenario.nodes),
        topology="job_runs",
        checkpoints=True,
        resume=True,
        retries=max(2, scenario.retries),
        habits=replace(
            habits,
            layout=dice.choice(["dcp", "hf"]),
            resumes=False,
            steps=9,
            save_every=every,
            fails_at=2 * every + 1,
            # After an error of the program itself no other gang would follow.
            raises="ECC",
            fails_times=1,
            keeps=0,
        ),
    )


def _store_refuses_checkpoints(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """Where checkpoints lie cannot be written for a while, as in a bucket of their own; all else can.

    Half of the time that lasts until the program has ended, and then the node that saves is not heard of for a while.
    """
    begin = dice.uniform(0.4, 1.2) * length
    kind, seconds = dice.choice(["503", "500", "unreachable"]), dice.choice([40.0, 80.0, 120.0, 420.0])
    silent_from = length + dice.uniform(90.0, 120.0)
    silence = Window(
        "no store amid a save", "503", "store.", silent_from, silent_from + 130.0, actors="node "
    )
    windows, end = (), begin + seconds
    if dice.random() < 0.5:
        begin, windows, end = begin / 3, (silence,), silence.end + 20.0
    refused = Window(
        "checkpoints refused", kind, "store.put", begin, end, actors="node ", objects="/checkpoints/"
    )
    return _merge(scenario, checkpoints=True, windows=(refused, *windows))


def _trains_nothing_later(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    saves = [step for step in range(1, scenario.habits.steps + 1) if step % scenario.habits.save_every == 0]
    failing = replace(
        scenario.habits, fails_at=saves[-1] if saves else 1, fails_times=1, nothing_from=1, full_at=0
    )
    return _merge(
        scenario,
        habits=replace(failing, fails_in_save=False, hangs_at=0, trains_nothing=False),
        retries=max(1, scenario.retries),
        resume=True,
        events=(
            Event("worker dies", "kill_worker", dice.uniform(1, length), {}),
            Event("node lost", "lose", length * 0.7, {"rank": 0}),
        ),
    )


_KINDS = {
    "swallowed exit": _swallows,
    "no agent": _no_agent,
    "killed in an upload": _killed_in_an_upload,
    "saves over": _saves_over,
    "checkpoints refused": _store_refuses_checkpoints,
    "nothing at a retry": _trains_nothing_later,
    "flaky": _flaky,
    "flaky again": _flaky,
    "stale lists": _stale,
    "lost creates": _lost_create,
    "outage": _outage,
    "throttled": _throttled,
    "reports throttled": _reports_throttled,
    "store down at the end": _store_down_at_end,
    "store down at the start": _store_down_at_start,
    "skewed": _skewed,
    "node lost": _node_lost,
    "partition": _partition,
    "worker killed": _worker_killed,
    "triggerer killed": _triggerer_killed,
    "node killed": _node_killed,
    "user kills": _user_kills,
    "clear": _clear,
    "edited": _changed_between_tries,
    "two schedulers": _two_schedulers,
    "capacity": _capacity,
    "stuck fetching": _stuck_fetching,
    "canceling": _canceling,
    "deleted": _deleted,
    "cancel conflict": _cancel_conflict,
    "cancel conflict without a store": _cancel_conflict_without_store,
    "crowded kill": _crowded_kill,
    "hidden run": _hidden,
    "zombie": _zombie,
    "last report throttled": _last_report_throttled,
    "refused for long": _refused_for_long,
    "last try refused": _last_try_refused,
    "deadline": _deadline,
}


def _older_airflow(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """Airflow before 3.3 keeps nothing of a task from try to try; half of the time its job lies elsewhere then."""
    at = dice.uniform(20, length)
    change = Event("edited", "edit", at, {"compartment": "other"})
    deaths = [Event(f"{who} dies", f"kill_{who}", at + 1, {}) for who in ("worker", "triggerer")]
    if dice.random() < 0.5:
        return _merge(scenario, notes=False)
    return _merge(
        scenario,
        notes=False,
        deferrable=False,
        habits=_lasts(scenario.habits),
        retries=max(1, scenario.retries),
        events=(change, *deaths),
    )


def _store_refuses(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """The store says now and then that it knows none of us, or nothing of what is asked for."""
    kind, calls = dice.choice(["401", "404"]), dice.choice(["store.", "store.get", "store.put", "store.list"])
    return _merge(scenario, rates=(Rate(kind, calls, dice.choice([0.01, 0.03])),))


def _alone_without_store(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """One node does not reach the store; the others do, and reach it."""
    rank, begin = dice.randrange(scenario.nodes), dice.uniform(0.2, 1.2) * length
    kind, seconds = dice.choice(["503", "unreachable"]), dice.choice([10.0, 40.0, 100.0, 200.0])
    window = Window(
        f"no store for node {rank}", kind, "store.", begin, begin + seconds, actors=f"node 0.{rank}"
    )
    return _merge(scenario, windows=(window,))


def _attention(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """The service shows a run in a state that says little, or that we have never heard of, and then as before."""
    details = {
        "rank": dice.randrange(scenario.nodes),
        "state": dice.choice(["NEEDS_ATTENTION", "NEEDS_ATTENTION", "RESTING"]),
        "seconds": dice.choice([20.0, 200.0]),
    }
    return _merge(scenario, events=(Event("odd state", "odd_state", dice.uniform(10, length), details),))


def _logged(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """A log at the service, read by those whose clocks may be ahead or behind; half of the time nothing else is odd."""
    skews = {name: dice.choice([0.0, dice.uniform(-280, 280)]) for name in ("worker_skew", "triggerer_skew")}
    calm = {"rates": (), "windows": (), "events": (), "crowd": 0} if dice.random() < 0.5 else {}
    return {**_merge(scenario, logs=True, topology="job_runs", **skews), **calm}


def _clock_jumps(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """A clock is set, forward or back, while all goes on."""
    jumps = [
        Event(
            f"clock of {who} is set",
            "set_clock",
            dice.uniform(10, length),
            {"who": who, "rank": dice.randrange(scenario.nodes), "by": dice.uniform(-200, 200)},
        )
        for who in dice.sample(["node", "worker", "triggerer"], 2)
    ]
    return _merge(scenario, events=tuple(jumps))


def _other_machines(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """A job with candidates, some of whose shapes are not there for a while, or never."""
    number = dice.choice([1, 2])
    refused = [
        (shape, 0.0, dice.choice([60.0, 400.0, 5000.0]))
        for shape in SHAPES[: 1 + number]
        if dice.random() < 0.6
    ]
    # What is refused while no worker lives is remembered all the same.
    deaths = [Event("worker dies", "kill_worker", dice.uniform(6, 40), {})] if dice.random() < 0.3 else []
    return _merge(
        scenario,
        topology="job_runs",
        capacity="there",
        candidates=number,
        refused_shapes=tuple(refused),
        retries=max(len(deaths), scenario.retries),
        events=tuple(deaths),
    )


def _budget(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """What the job may use; half of the time its program goes on for much longer, and nothing else ends it."""
    limit = scenario.nodes * dice.uniform(25.0, 1.5 * length)
    if dice.random() < 0.5:
        return _merge(scenario, node_seconds=limit)
    calm = {"rates": (), "windows": (), "events": (), "crowd": 0, "max_runtime": None}
    limit = scenario.nodes * dice.uniform(25.0, 60.0)
    return {**_merge(scenario, node_seconds=limit, habits=_lasts(scenario.habits)), **calm}


def _cleared_otherwise(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """A clear, with a job that is another one in what says where and how it runs."""
    among: dict[str, Any] = {
        "topology": dice.choice(["multi_node", "job_runs"]),
        "image": "iad.ocir.io/space/train:2",
        "work_dir": "oci://bucket@space/elsewhere",
        "nodes": dice.choice([2, 3]),
    }
    changes = {name: among[name] for name in dice.sample(sorted(among), dice.choice([1, 2]))}
    if changes.get("topology") == "multi_node":
        changes["nodes"] = max(2, scenario.nodes)
    return _merge(scenario, events=(Event("cleared", "clear", dice.uniform(1, length * 1.6), changes),))


_CALM: Mapping[str, Any] = {
    "rates": (),
    "windows": (),
    "events": (),
    "hidden": None,
    "crowd": 0,
    "capacity": "there",
    "candidates": 0,
    "min_nodes": None,
    "replace_timeout": None,
    "shortage": None,
    "grows": False,
    "refused_shapes": (),
    "late_node": 0.0,
    "stuck_fetching": -1,
    "no_agent": -1,
    "zombie": False,
    "canceling_forever": False,
    "max_runtime": None,
    "node_seconds": None,
    "shared_folder": False,
    "unreadable": None,
}
"""What nothing goes wrong by but the program itself."""


def _machine_lost(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """A machine is lost amid the training, and its job allows another; half of the time nothing else befalls it.

    Else it may be silent and live; a second one is lost, who waits dies, answers are lost, lists lag. Now and then the
    service says that it was preempted, or fewer nodes go on as no other machine comes in time.
    """
    nodes, at = max(2, scenario.nodes), dice.uniform(30.0, 70.0)
    rank = dice.randrange(nodes)
    more: dict[str, Any] = {
        "nodes": nodes,
        "topology": "job_runs",
        "odd_rank": 0,
        "restarts": (*scenario.restarts[:2], dice.choice([1, 1, 2])),
        "habits": replace(_lasts(scenario.habits), steps=20, nothing_from=0, fails_later=()),
    }
    lost = Event("machine lost", "lose", at, {"rank": rank, "noticed": dice.uniform(2.0, 20.0)})
    preempted = replace(lost, details={**lost.details, "preempted": True})
    if dice.random() < 0.5:
        kind = dice.random()
        if kind < 0.33:
            # The service is wrong: it was only cut off, and comes back when another has its place.
            lost = replace(lost, details={**lost.details, "back": dice.uniform(15.0, 55.0)})
        elif kind < 0.66:
            lost = preempted
        # Without checkpoints, the nodes go on from whatever lies on each.
        return {**_CALM, **more, "checkpoints": True, "only_loss": True, "events": (lost,)}
    others = [
        Event("another lost", "lose", at + dice.uniform(0, 60), {"rank": dice.randrange(nodes)}),
        Event("worker dies", "kill_worker", at + dice.uniform(2, 40), {}),
        Event("triggerer dies", "kill_triggerer", at + dice.uniform(2, 40), {}),
    ]
    silent = Event("silent", "cut_off", at, {"rank": rank, "seconds": 300.0})
    events = (dice.choice([lost, preempted, silent]), *dice.sample(others, dice.choice([1, 2])))
    if dice.random() < 0.3:
        more |= {
            "min_nodes": dice.randrange(1, nodes),
            "replace_timeout": 45.0,
            "shortage": (
                dice.choice(["asked", "none", "late", "never"]),
                0.0,
                at + dice.choice([80.0, 200.0]),
            ),
        }
    if dice.random() < 0.5:
        return {**_merge(scenario, events=events), **more}
    rates = (Rate("lost", "service.create_job_run", 0.3), Rate("stale", "service.list_", 0.6))
    return {**_merge(scenario, events=events, rates=rates, list_lag=30.0), **more}


def _steady(habits: Habits) -> Habits:
    """Return habits of a program that trains to its end, whatever it was drawn to do."""
    return replace(
        habits,
        steps=max(6, habits.steps),
        resumes=True,
        fails_at=0,
        fails_later=(),
        full_at=0,
        hangs_at=0,
        nothing_from=0,
        trains_nothing=False,
        silent=False,
    )


def _last_beside(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """Lightning with `last.ckpt`, from which alone its program goes on; half of the time a node is lost."""
    habits = replace(_steady(scenario.habits), layout="lightning", last_too=True, save_every=1)
    end = 20.0 + habits.steps * (habits.step_seconds + 2 * habits.write_seconds)
    lost = Event("node lost", "lose", dice.uniform(20.0, end), {"rank": dice.randrange(scenario.nodes)})
    return {
        "checkpoints": True,
        "resume": True,
        "retries": max(1, scenario.retries),
        "restarts": (0, 0, 0),
        "habits": habits,
        "events": (lost,) if dice.random() < 0.5 else (),
    }


def _preallocated(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """Files that prove nothing, and have their full size while most of them is still to be written."""
    habits = replace(_steady(scenario.habits), layout="bin", preallocates=True, atomic=False)
    habits = replace(habits, save_every=2, write_seconds=6.0, pause=dice.choice([2.5, 4.0]))
    return {"checkpoints": True, "habits": habits}


def _key_replaced(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """The key of Airflow's connection is replaced while a gang trains."""
    lasts = replace(_steady(scenario.habits), steps=20, step_seconds=3.0)
    return {"key_replaced_at": dice.uniform(15.0, 60.0), "habits": lasts}


def _shows_nothing(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """A program without checkpoints that prints an error and exits with 0; half of the jobs want more than that."""
    habits = replace(_steady(scenario.habits), trains_nothing=True)
    return {"checkpoints": False, "habits": habits, "require_training": dice.random() < 0.5}


def _creation_unanswered(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """Job runs whose creation is not answered and then refused, while no list shows them.

    Half of the time no creation is answered for so long that the client gives up several times. In two of three one
    node has to wait for its machine: until then no request to end reaches it.
    """
    lasts = replace(_steady(scenario.habits), step_seconds=3.0)
    refused, stale = Rate("404", "service.create_job_run", 0.5), Rate("stale", "service.list_", 0.9)
    lost = Rate("lost", "service.create_job_run", dice.choice([0.3, 0.5]))
    more = {"topology": "job_runs", "list_lag": 60.0, "habits": lasts}
    unanswered: Mapping[str, Any] = {"rates": (lost, refused, stale)}
    if dice.random() >= 0.5:
        end = dice.choice([450.0, 620.0, 900.0])
        window = Window("creations unanswered", "lost", "service.create_job_run", 0.0, end)
        unanswered = {"rates": (refused, stale), "windows": (window,)}
    return {**more, **unanswered, "late_node": dice.choice([0.0, 60.0, 120.0])}


_ONE_NODE: Mapping[str, Any] = {"nodes": 1, "topology": "job_runs", "odd_rank": 0}


def _full_in_a_file(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """The disk is full amid the last file of a save, which nothing but its size shows, after a whole save."""
    habits = replace(_steady(scenario.habits), layout="bin", atomic=False, pause=0.0, save_every=2)
    habits = replace(habits, write_seconds=dice.choice([0.3, 2.0]), full_at=dice.choice([2, 3]))
    return {"checkpoints": True, "habits": habits}


def _saves_over_alone(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """As `_saves_over`, on one node, which waits for no part of another; between two files it pauses for long."""
    habits = replace(_steady(scenario.habits), layout=dice.choice(["bin", "hf"]), atomic=False, pause=4.0)
    habits = replace(habits, resumes=False, save_every=2, keeps=0, fails_at=5, fails_rank=0, fails_times=1)
    return {
        **_ONE_NODE,
        "checkpoints": True,
        "resume": True,
        "retries": max(2, scenario.retries),
        "restarts": (0, 0, 0),
        "habits": replace(habits, fails_in_save=False, raises="ECC"),
    }


def _back_late(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """A node hears nothing of its cancel, and comes back when its successor has published for more than a minute."""
    habits = replace(_steady(scenario.habits), steps=70, step_seconds=4.0, save_every=4, write_seconds=0.3)
    details = {"rank": 0, "seconds": dice.uniform(255.0, 290.0)}
    return {
        **_ONE_NODE,
        "zombie": True,
        "checkpoints": True,
        "resume": True,
        "retries": max(2, scenario.retries),
        "lease": 600.0,
        "restarts": (0, 0, 0),
        "habits": replace(habits, pause=0.0, keeps=0, on_sigterm="ignores"),
        "events": (Event("partition", "cut_off", dice.uniform(30.0, 50.0), details),),
    }


def _back_between_restores(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """A node comes back, and publishes what names no step, after one node of its successor has restored and before
    the other does, with which the place of the checkpoints is fenced."""
    habits = replace(
        _steady(scenario.habits), layout="rolling", silent=True, steps=OUTLIVES, step_seconds=6.0
    )
    habits = replace(habits, save_every=1, write_seconds=0.3, pause=0.0, keeps=0, on_sigterm="ignores")
    details = {"rank": 0, "seconds": dice.uniform(95.0, 120.0)}
    return {
        "nodes": 2,
        "topology": "job_runs",
        "odd_rank": 0,
        "late_node": 60.0,
        "zombie": True,
        "checkpoints": True,
        "resume": True,
        "retries": max(2, scenario.retries),
        "lease": 600.0,
        "restarts": (0, 0, 0),
        "habits": habits,
        "events": (Event("partition", "cut_off", dice.uniform(100.0, 115.0), details),),
    }


def _silent_in_a_save(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """A node holds a finished model that cannot be stored, and is not heard of for two minutes."""
    layout = dice.choice(["pt", "bin", "lightning"])
    habits = replace(_steady(scenario.habits), layout=layout, steps=12, step_seconds=3.0, save_every=2)
    begin = dice.uniform(120.0, 140.0)
    windows = (
        Window(
            "checkpoints refused",
            "503",
            "store.put",
            35.0,
            begin + 150.0,
            actors="node ",
            objects="/checkpoints/",
        ),
        Window("no store amid a save", "503", "store.", begin, begin + 130.0, actors="node "),
    )
    return {
        "checkpoints": True,
        "habits": replace(habits, write_seconds=0.3, pause=0.0),
        "windows": windows,
    }


def _lost_twice(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """Two machines are lost, one after another, and the job allows one to be replaced."""
    nodes, at = max(2, scenario.nodes), dice.uniform(35.0, 50.0)
    habits = replace(_lasts(_steady(scenario.habits)), steps=40, write_seconds=0.3, pause=0.0)
    times = (at, at + dice.uniform(60.0, 80.0))
    return {
        "nodes": nodes,
        "topology": "job_runs",
        "odd_rank": 0,
        "checkpoints": True,
        "restarts": (*scenario.restarts[:2], 1),
        "habits": habits,
        "events": tuple(
            Event(name, "lose", when, {"rank": dice.randrange(nodes), "noticed": 2.0})
            for name, when in zip(("machine lost", "another lost"), times, strict=True)
        ),
    }


def _comes_back(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """A lost machine was only cut off, and comes back when another has its place."""
    nodes = max(2, scenario.nodes)
    habits = replace(_lasts(_steady(scenario.habits)), steps=30, write_seconds=0.3, pause=0.0)
    details = {"rank": dice.randrange(nodes), "noticed": 2.0, "back": dice.uniform(30.0, 50.0)}
    return {
        "nodes": nodes,
        "topology": "job_runs",
        "odd_rank": 0,
        "checkpoints": True,
        "only_loss": True,
        "restarts": (*scenario.restarts[:2], 1),
        "habits": habits,
        "events": (Event("machine lost", "lose", dice.uniform(35.0, 60.0), details),),
    }


def _logged_for_long(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """A worker reads the log of a training of minutes, some lines of which can be found after later ones only."""
    lasts = replace(_steady(scenario.habits), steps=40, step_seconds=4.0, save_every=8)
    return {"logs": True, "topology": "job_runs", "deferrable": False, "habits": lasts}


def _goes_on_from_its_saves(scenario: Scenario, habits: Habits) -> Mapping[str, Any]:
    """One node whose machine fails by a fault that costs a gang, and not the task."""
    return {
        **_ONE_NODE,
        "checkpoints": True,
        "resume": True,
        "retries": max(2, scenario.retries),
        "restarts": (0, 0, 0),
        "habits": replace(habits, fails_rank=0, fails_times=1, raises="ECC", on_sigterm="dies"),
    }


def _gone_amid_a_file(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """A rank is gone amid a file that has its full size from the start, and is written to all the time; half of the
    time its launcher lives on for some looks of the agent."""
    habits = replace(_steady(scenario.habits), layout="bin", preallocates=True, atomic=False, pause=0.0)
    habits = replace(habits, save_every=2, write_seconds=6.0, keeps=0, lingers=dice.choice([0.0, 25.0]))
    return _goes_on_from_its_saves(
        scenario, replace(habits, fails_at=dice.choice([4, 6]), fails_in_save=True)
    )


def _goes_on_after_an_error(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """A program catches what ends a save, and trains on; or fails by it, with a file that has an end all the same."""
    layout, goes_on = dice.choice(
        [("bin", True), ("npz", True), ("pkl", True), ("npz", False), ("pkl", False)]
    )
    habits = replace(_steady(scenario.habits), layout=layout, atomic=False, pause=0.0, save_every=2, keeps=0)
    habits = replace(habits, steps=12, write_seconds=dice.choice([0.3, 2.0]), goes_on=goes_on)
    habits = replace(habits, full_at=dice.choice([2, 3]), fails_at=dice.choice([0, 9]), fails_in_save=False)
    return _goes_on_from_its_saves(scenario, habits)


def _saved_by_helpers(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """A process of its own writes each save while the training goes on. Half of the time one of them takes until after
    the last step, else the node fails when some have been written."""
    slow = dice.choice([0, 0, 1, 2])
    habits = replace(_steady(scenario.habits), helpers=True, atomic=False, pause=0.0, keeps=0, steps=12)
    if slow:
        habits = replace(habits, layout="pt", slow_save=slow, step_seconds=2.0)
    else:
        habits = replace(habits, layout="bin", step_seconds=4.0, fails_at=9, fails_in_save=False)
    return _goes_on_from_its_saves(scenario, replace(habits, save_every=2, write_seconds=1.5))


def _set_back_amid_saves(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """A clock is set back shortly before the end of a training that saves several times from one look to the next."""
    habits = replace(_steady(scenario.habits), layout="pt", atomic=False, pause=0.0, keeps=0, save_every=1)
    habits = replace(habits, steps=12, step_seconds=0.1, write_seconds=0.1)
    at = dice.choice(range(9, 13))
    return {**_ONE_NODE, "checkpoints": True, "habits": replace(habits, clock_back_at=at)}


def _saved_late(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """The store refuses one node's part of a checkpoint until a minute or two after the training; or, where all nodes
    are one run, the checkpoints of the main node for minutes, while the others are done."""
    habits = replace(_steady(scenario.habits), steps=12, step_seconds=3.0, save_every=4, write_seconds=0.3)
    is_one_run = dice.random() < 0.5
    more = {"nodes": max(2, scenario.nodes), "odd_rank": 0, "checkpoints": True, "restarts": (0, 0, 0)}
    if is_one_run:
        end, name, kind, actors = 480.0, "checkpoints refused for minutes", "503", "node "
    else:
        end, name, kind, actors = dice.choice([110.0, 170.0]), "part refused", "404", "node 0.1"
    return {
        **more,
        "topology": "multi_node" if is_one_run else "job_runs",
        "habits": replace(habits, layout="pt" if is_one_run else "dcp", pause=0.0, keeps=0),
        "windows": (Window(name, kind, "store.put", 35.0, end, actors=actors, objects="/checkpoints/"),),
    }


def _lost_together(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """Two of three machines are lost at once; the service shows one of them when the other has been replaced. Or one is
    lost, and another in its place is refused for a while."""
    at, is_refused = dice.uniform(35.0, 50.0), dice.random() < 0.6
    habits = replace(_lasts(_steady(scenario.habits)), steps=40, write_seconds=0.3, pause=0.0)
    ranks = dice.sample(range(3), 1 if is_refused else 2)
    window = Window(
        "replacement refused", "404", "service.create_job_run", at, at + dice.choice([20.0, 45.0])
    )
    return {
        "nodes": 3,
        "topology": "job_runs",
        "odd_rank": 0,
        "checkpoints": True,
        "only_loss": True,
        "restarts": (*scenario.restarts[:2], 2),
        "habits": habits,
        "windows": (window,) if is_refused else (),
        "events": tuple(
            Event(f"machine {rank} lost", "lose", at, {"rank": rank, "noticed": noticed})
            for rank, noticed in zip(ranks, (2.0, 30.0), strict=False)
        ),
    }


def _fails_again(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """A program fails in two launches in the same step, just after a save that was still being sent the first time; in
    the second it reports no step before."""
    habits = replace(_steady(scenario.habits), layout="pt", steps=12)
    habits = replace(habits, save_every=1, step_seconds=0.3, write_seconds=0.3, pause=0.0, keeps=0)
    at = dice.randrange(3, 12)
    return {
        "checkpoints": True,
        "restarts": (9, 0, 0),
        "habits": replace(
            habits, fails_at=at, fails_later=(at,), fails_in_save=False, fails_times=1, raises="ValueError"
        ),
    }


def _worker_dies_at_the_end(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """All nodes are one run, and end one after another, as the main node saves for longer; the worker dies by then."""
    habits = replace(_steady(scenario.habits), layout="bin", atomic=False, pause=4.0, keeps=0, steps=8)
    return {
        "nodes": max(2, scenario.nodes),
        "topology": "multi_node",
        "odd_rank": 0,
        "checkpoints": True,
        "deferrable": False,
        "retries": max(1, scenario.retries),
        "restarts": (0, 0, 0),
        "habits": replace(habits, save_every=2, step_seconds=3.0, write_seconds=2.0),
        "events": (Event("worker dies", "kill_worker", dice.uniform(45.0, 75.0), {}),),
    }


def _stale_reports(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """Lists that waiting processes get of a run directory lack reports of nodes, again and again."""
    habits = replace(_steady(scenario.habits), steps=8, step_seconds=2.0, write_seconds=0.3)
    rates = tuple(
        Rate("stale", "store.list_objects", dice.choice([0.3, 0.9]), actors=who)
        for who in ("worker", "triggerer")
    )
    return {"checkpoints": True, "restarts": (0, 0, 0), "habits": habits, "rates": rates}


_THREE: Mapping[str, Any] = {"nodes": 3, "topology": "job_runs", "odd_rank": 0, "checkpoints": True}


def _preempted_at_one_step(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """Machines are preempted, one or two of three at once, again and again within one step. The job allows one lost
    machine to be replaced, which none of these costs."""
    habits = replace(_steady(scenario.habits), steps=10, step_seconds=3.0, save_every=4, write_seconds=0.3)
    at, times = dice.uniform(52.0, 62.0), dice.choice([2, 3])
    events = [
        Event(
            f"machine {rank} preempted",
            "lose",
            at + 75.0 * number,
            {"rank": rank, "noticed": dice.choice([2.0, 20.0]), "preempted": True},
        )
        for number in range(times)
        for rank in dice.sample(range(3), dice.choice([1, 1, 2]))
    ]
    return {
        **_THREE,
        "only_loss": True,
        "restarts": (*scenario.restarts[:2], 1),
        "habits": replace(habits, pause=0.0, keeps=0, long_step=5, long_seconds=95.0),
        "events": tuple(events),
    }


def _preempted_with_notice(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """Machines get notice some seconds before they are taken away, and their programs end in all possible ways."""
    habits = replace(_lasts(_steady(scenario.habits)), steps=24, write_seconds=0.3, pause=0.0, keeps=0)
    ways = ["leaves", "leaves", "leaves", "saves", "dies", "ignores"]
    at, grace = dice.uniform(40.0, 60.0), dice.choice([12.0, 30.0])
    events = [
        Event(
            f"machine {rank} preempted",
            "lose",
            at + 70.0 * number,
            {"rank": rank, "noticed": 2.0, "preempted": True, "grace": grace},
        )
        for number in range(2)
        for rank in dice.sample(range(3), dice.choice([1, 2]))[number:]
    ]
    return {
        **_THREE,
        "only_loss": True,
        "restarts": (*scenario.restarts[:2], 1),
        "habits": replace(habits, on_sigterm=dice.choice(ways)),
        "events": tuple(events),
    }


def _goes_on_with_fewer(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """No machine comes in time in the place of a lost one, and fewer nodes go on. Later there are machines again,
    unless the one that was asked for never comes."""
    nodes, at = dice.choice([2, 3, 3]), dice.uniform(40.0, 55.0)
    kind = dice.choice(["asked", "none", "late", "late", "never"])
    habits = replace(_steady(scenario.habits), steps=80, step_seconds=5.0, save_every=10, write_seconds=0.3)
    end = at + dice.choice([100.0, 160.0])
    details = {"rank": dice.randrange(nodes), "noticed": dice.choice([2.0, 20.0])}
    return {
        **_THREE,
        "nodes": nodes,
        "min_nodes": dice.randrange(1, nodes),
        "only_loss": True,
        "grows": kind != "never",
        "replace_timeout": 45.0,
        "shortage": (kind, 0.0, 1e6 if kind == "never" else end),
        "restarts": (*scenario.restarts[:2], 1),
        "habits": replace(habits, pause=0.0, keeps=0),
        "events": (Event("machine lost", "lose", at, details),),
    }


def _too_few_are_left(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """Two of three machines are lost, and no others come in time; the job wants two at least."""
    at, later = dice.uniform(40.0, 55.0), dice.choice([0.0, 0.0, 30.0])
    habits = replace(_lasts(_steady(scenario.habits)), steps=20, write_seconds=0.3, pause=0.0, keeps=0)
    return {
        **_THREE,
        "min_nodes": 2,
        "only_loss": True,
        "replace_timeout": 45.0,
        "shortage": (dice.choice(["none", "never"]), 0.0, 1e6),
        "restarts": (*scenario.restarts[:2], 2),
        "habits": habits,
        "events": tuple(
            Event(f"machine {rank} lost", "lose", at + later * number, {"rank": rank, "noticed": 2.0})
            for number, rank in enumerate(dice.sample(range(3), 2))
        ),
    }


def _refused_in_its_place(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """No machine comes in the place of a lost one, or the service refuses it, and the job has candidates. Half of the
    time the lost one was preempted."""
    nodes, at = max(2, scenario.nodes), dice.uniform(40.0, 60.0)
    habits = replace(_lasts(_steady(scenario.habits)), steps=20, write_seconds=0.3, pause=0.0)
    details = {"rank": dice.randrange(nodes), "noticed": 2.0, "preempted": dice.random() < 0.5}
    return {
        **_THREE,
        "nodes": nodes,
        "only_loss": True,
        "candidates": dice.choice([1, 2]),
        "replace_timeout": 45.0,
        "shortage": (dice.choice(["asked", "none", "never"]), 0.0, 1e6),
        "restarts": (*scenario.restarts[:2], 1),
        "habits": habits,
        "events": (Event("machine lost", "lose", at, details),),
    }


def _silent_alone(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """A machine stands still for good. The service calls it alive; half of the time in a state that nobody knows."""
    nodes, at = max(2, scenario.nodes), dice.uniform(40.0, 60.0)
    rank = dice.randrange(nodes)
    habits = replace(_lasts(_steady(scenario.habits)), steps=20, write_seconds=0.3, pause=0.0)
    events = [Event("frozen", "freeze", at, {"rank": rank, "seconds": 3000.0})]
    if dice.random() < 0.5:
        odd = {"rank": rank, "state": "RESTING", "seconds": 3000.0}
        events.append(Event("odd state", "odd_state", at - 5.0, odd))
    return {
        **_THREE,
        "nodes": nodes,
        "only_loss": True,
        "restarts": (*scenario.restarts[:2], 1),
        "habits": habits,
        "events": tuple(events),
    }


def _lost_amid_a_restore(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """The machine in the place of a lost one cannot read its checkpoint for a minute, in which another is lost."""
    at = dice.uniform(50.0, 60.0)
    layout = dice.choice(["pt", "hf", "dcp"])
    habits = replace(_steady(scenario.habits), layout=layout, steps=24, step_seconds=3.0, save_every=4)
    habits = replace(habits, write_seconds=0.3, pause=0.0, keeps=0)
    first, second = dice.sample(range(3), 2)
    window = Window(
        "no checkpoint amid a restore",
        "503",
        "store.get",
        at + 3.0,
        at + dice.uniform(90.0, 110.0),
        actors=f"node 0.{first}",
        objects="/checkpoints/",
    )
    times = {first: at, second: at + dice.uniform(42.0, 60.0)}
    return {
        **_THREE,
        "only_loss": True,
        "restarts": (*scenario.restarts[:2], 2),
        "habits": habits,
        "windows": (window,),
        "events": tuple(
            Event(f"machine {rank} lost", "lose", when, {"rank": rank, "noticed": 2.0})
            for rank, when in times.items()
        ),
    }


def _talks_and_hangs(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """A program that has counted steps hangs in its second launch before the first one, and prints lines all the
    time."""
    habits = replace(_steady(scenario.habits), layout="pt", steps=9, step_seconds=3.0, save_every=3)
    habits = replace(habits, write_seconds=0.3, pause=0.0, keeps=0, fails_at=5, fails_in_save=False)
    return {
        "checkpoints": True,
        "restarts": (1, 1, 0),
        "habits": replace(
            habits,
            fails_times=1,
            raises="ValueError",
            hangs_at=4,
            hangs_from=1,
            hangs_launches=2,
            talks=True,
        ),
    }


def _last_report_lost(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """A node trains nothing for a minute, which its job requires, and cannot write its last report."""
    habits = replace(_steady(scenario.habits), trains_nothing=True, nothing_for=dice.uniform(58.0, 62.0))
    begin = dice.uniform(48.0, 52.0)
    window = Window("last report lost", "503", "store.put", begin, begin + 90.0, actors="node 0.")
    return {
        **_ONE_NODE,
        "checkpoints": False,
        "require_training": True,
        "lost_timeout": 100.0,
        "habits": habits,
        "windows": (window,),
    }


def _request_unreadable(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """The program fails on one node, and no budget pays for that; the other node cannot read the request to end."""
    habits = replace(_steady(scenario.habits), steps=12, step_seconds=3.0, save_every=2, write_seconds=0.3)
    habits = replace(habits, pause=0.0, fails_at=dice.choice([5, 7]), fails_rank=0, fails_in_save=False)
    kind = dice.choice(["404", "503"])
    window = Window(
        "request unreadable", kind, "store.get", 0.0, 600.0, actors="node 0.1", objects="stop.json"
    )
    return {
        **_THREE,
        "nodes": 2,
        "restarts": (0, 0, 1),
        "habits": replace(habits, fails_times=1, raises="ValueError"),
        "windows": (window,),
    }


def _left_on_the_disk(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """The only node fails in the step after a whole save, while the store takes no checkpoints, and is launched again.

    It may fail again before the next save, in the same step or a later one, and before the store takes any.
    Or it fails amid the save under the one name that its program goes on from, beside one that is whole.
    """
    layout, again = dice.choice(["pt", "hf", "lightning", "lightning"]), dice.choice([None, 0, 0, 1, 1])
    habits = replace(_steady(scenario.habits), layout=layout, atomic=False, pause=0.0, keeps=0, steps=12)
    habits = replace(habits, step_seconds=4.0, save_every=3, write_seconds=0.3, on_sigterm="dies")
    is_beside = layout == "lightning"
    if is_beside:
        habits = replace(habits, last_too=True, fails_in_save=True, write_seconds=4.0)
    at = 6 if is_beside else dice.choice([4, 7])
    later = () if again is None or is_beside else (at + again,)
    # Until the program has failed for the last time, and not for as long as a node is patient.
    end = 30.0 + at * habits.step_seconds + dice.uniform(70.0, 100.0)
    kind = dice.choice(["503", "unreachable"])
    window = Window(
        "checkpoints stay on the disk", kind, "store.p", 25.0, end, actors="node ", objects="/checkpoints/"
    )
    habits = replace(habits, fails_at=at, fails_later=later, fails_rank=0, fails_times=1)
    return {
        **_ONE_NODE,
        "checkpoints": True,
        "resume": True,
        "retries": max(1, scenario.retries),
        "restarts": (2, 0, 2),
        "habits": replace(habits, raises=dice.choice(["ValueError", "ECC"])),
        "windows": (window,),
    }


def _store_never_answers(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """A store that takes each request and answers none: for one node, for less time than lets it pass for lost; or for
    Airflow, where a user ends the task meanwhile."""
    habits = replace(_lasts(_steady(scenario.habits)), write_seconds=0.3, pause=0.0)
    more = {"checkpoints": True, "topology": "job_runs", "odd_rank": 0, "restarts": (0, 0, 0)}
    begin = dice.uniform(35.0, 60.0)
    if dice.random() < 0.4:
        rank = dice.randrange(2)
        window = Window(
            "no answer to a node",
            "silent",
            "store.",
            begin,
            begin + dice.uniform(8.0, 14.0),
            f"node 0.{rank}",
        )
        return {**more, "nodes": 2, "habits": habits, "windows": (window,)}
    windows = [
        Window(f"no answer to the {who}", "silent", "store.", begin - 3.0, begin + 150.0, who)
        for who in ("worker", "triggerer")
    ]
    return {
        **more,
        "deferrable": dice.random() < 0.3,
        "habits": habits,
        "windows": tuple(windows),
        "events": (Event("marked failed", "mark_failed", begin, {}),),
    }


def _shared_and_not_sent(dice: random.Random, scenario: Scenario, length: float) -> Mapping[str, Any]:
    """Nodes share a folder, and a process is killed while the saves in it cannot be stored yet: all go on from there.

    Or a machine is lost just then, one node cannot read the folder, the process is killed once more before all is sent,
    or the store does not say whether a later attempt saves there.
    """
    layout = dice.choice(["dcp", "dcp", "hf", "pt"])
    nodes, at, fate = dice.choice([2, 2, 3]), dice.uniform(62.0, 85.0), dice.choice(_FATES_OF_SHARED)
    habits = replace(_steady(scenario.habits), layout=layout, steps=24, step_seconds=3.0, save_every=3)
    habits = replace(habits, write_seconds=0.3, pause=0.0, atomic=False, on_sigterm="dies")
    kind, end = dice.choice(["503", "unreachable"]), at + dice.choice([20.0, 45.0, 80.0])
    name = "/checkpoint-" if layout == "hf" else "/step-"
    windows = [Window("saves not taken", kind, "store.put", at - 14.0, end, actors="node 0.", objects=name)]
    killed, other = dice.randrange(nodes), dice.randrange(nodes)
    events = [Event("process killed", "kill_program", at, {"rank": killed})]
    if fate == "killed again":
        events.append(Event("killed again", "kill_program", at + dice.uniform(12, 40), {"rank": other}))
    if fate == "a machine is lost":
        details = {"rank": other, "noticed": 2.0}
        events.append(Event("machine lost", "lose", at + dice.uniform(0.2, 9.0), details))
    if fate == "no fence":
        windows.append(
            Window("no fence", kind, "store.get", at - 1.0, end, actors="node 0.", objects="fence.json")
        )
    return {
        **_THREE,
        "nodes": nodes,
        "shared_folder": True,
        "unreadable": (other, at, at + 30.0) if fate == "unreadable" else None,
        "only_loss": True,
        "resume": True,
        "restarts": (3, 0, 1),
        "habits": replace(habits, keeps=dice.choice([0, 0, 1])),
        "windows": tuple(windows),
        "events": tuple(events),
    }


_FATES_OF_SHARED = ("killed", "killed", "killed again", "a machine is lost", "unreadable", "no fence")

_ALONE = {
    "disk full in a file": _full_in_a_file,
    "gone amid a file": _gone_amid_a_file,
    "goes on after an error": _goes_on_after_an_error,
    "saved by helpers": _saved_by_helpers,
    "set back amid saves": _set_back_amid_saves,
    "saved late": _saved_late,
    "lost together": _lost_together,
    "fails again": _fails_again,
    "worker dies at the end": _worker_dies_at_the_end,
    "saves over alone": _saves_over_alone,
    "back late": _back_late,
    "back between restores": _back_between_restores,
    "silent in a save": _silent_in_a_save,
    "lost twice": _lost_twice,
    "comes back": _comes_back,
    "logged for long": _logged_for_long,
    "creation unanswered": _creation_unanswered,
    "last.ckpt beside others": _last_beside,
    "files preallocated": _preallocated,
    "key replaced": _key_replaced,
    "shows nothing": _shows_nothing,
    "preempted at one step": _preempted_at_one_step,
    "preempted with notice": _preempted_with_notice,
    "goes on with fewer": _goes_on_with_fewer,
    "too few are left": _too_few_are_left,
    "refused in its place": _refused_in_its_place,
    "silent alone": _silent_alone,
    "lost amid a restore": _lost_amid_a_restore,
    "talks and hangs": _talks_and_hangs,
    "last report lost": _last_report_lost,
    "request unreadable": _request_unreadable,
    "stale reports": _stale_reports,
    "left on the disk": _left_on_the_disk,
    "store never answers": _store_never_answers,
    "shared and not sent": _shared_and_not_sent,
}
"""Drawn last, so that a new one leaves most seeds as they are. What they show, other faults would hide."""

_ODDITIES = {
    "older Airflow": _older_airflow,
    "store refuses": _store_refuses,
    "alone without a store": _alone_without_store,
    "odd state": _attention,
    "logged": _logged,
    "clock jumps": _clock_jumps,
    "other machines": _other_machines,
    "budget": _budget,
    "cleared otherwise": _cleared_otherwise,
}
"""Drawn after all else, so that a new one leaves most seeds as they are."""
