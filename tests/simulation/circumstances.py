"""Circumstances: what a schedule has where some mutants show, as drawn from its seed; such schedules come first."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.scenario import Scenario


def _saves_unproved(scenario: Scenario) -> bool:
    """Whether the files of its checkpoints prove nothing, and are written where they stay."""
    return scenario.checkpoints and scenario.habits.layout == "bin" and not scenario.habits.atomic


def _has_window(scenario: Scenario, name: str) -> bool:
    return any(name in window.name for window in scenario.windows)


def _happens(scenario: Scenario, *what: str) -> bool:
    return any(event.what in what for event in scenario.events)


def _is_refused(scenario: Scenario, calls: str) -> bool:
    refused = [(each.kind, each.calls) for each in (*scenario.rates, *scenario.windows)]
    return any(kind in ("401", "404") and its.startswith(calls) for kind, its in refused)


def _fills_the_disk(scenario: Scenario) -> bool:
    return _saves_unproved(scenario) and scenario.habits.full_at > 0


def _is_killed_amid_saves(scenario: Scenario) -> bool:
    saves_for = scenario.habits.write_seconds + scenario.habits.pause
    return _saves_unproved(scenario) and saves_for >= 2.0 and _happens(scenario, "mark_failed", "clear")


def _stops_amid_the_second_file(scenario: Scenario) -> bool:
    """Whether a save ends when its last file has been begun, and was not seen at rest."""
    habits = scenario.habits
    return _saves_unproved(scenario) and habits.pause == 0.0 and habits.full_at > 1


def _saves_over(scenario: Scenario) -> bool:
    """Whether the only node of a later gang saves over what it has fetched: parts of others would be waited for."""
    habits = scenario.habits
    in_many_files = habits.layout in ("hf", "bin") and habits.pause > 3.0 and not habits.atomic
    is_fetched = scenario.checkpoints and scenario.resume and scenario.retries > 0
    return (
        is_fetched and in_many_files and not habits.resumes and scenario.nodes == 1 and habits.raises == "ECC"
    )


def _saves_over_parts(scenario: Scenario) -> bool:
    """Whether the nodes of a later gang save over the parts that all have fetched."""
    habits, is_fetched = scenario.habits, scenario.checkpoints and scenario.resume and scenario.retries > 0
    is_in_parts = scenario.nodes > 1 and habits.layout in ("dcp", "hf")
    return is_fetched and is_in_parts and not habits.resumes and habits.raises == "ECC"


def _loses_more_than_allowed(scenario: Scenario) -> bool:
    lost = sum(event.what == "lose" and not event.details.get("preempted") for event in scenario.events)
    return lost > scenario.restarts[2] > 0


def _outlives_a_long_successor(scenario: Scenario) -> bool:
    away = max((event.details.get("seconds", 0.0) for event in scenario.events), default=0.0)
    return scenario.zombie and scenario.nodes == 1 and away > 250.0


def _is_logged_for_long(scenario: Scenario) -> bool:
    habits = scenario.habits
    disturbed = scenario.windows or scenario.rates or scenario.events
    return (
        scenario.logs
        and not (scenario.deferrable or disturbed)
        and habits.steps * habits.step_seconds > 100.0
    )


def _loses_machines(scenario: Scenario) -> bool:
    return scenario.restarts[2] > 0 and _happens(scenario, "lose", "cut_off")


def _ends_bit_by_bit_alone(scenario: Scenario) -> bool:
    """Whether the nodes of one run end one after another, and the worker that waits for them dies."""
    habits = scenario.habits
    first_saves_for_long = habits.pause > 0 and habits.layout not in ("dcp", "hf")
    is_one_run = scenario.topology == "multi_node" and scenario.checkpoints
    return (
        is_one_run and first_saves_for_long and not scenario.deferrable and _happens(scenario, "kill_worker")
    )


def _launches_just_after_a_save(scenario: Scenario) -> bool:
    habits = scenario.habits
    disturbed = scenario.windows or scenario.rates or scenario.events
    is_quick = habits.step_seconds == habits.write_seconds == 0.3
    return sum(scenario.restarts) > 0 and is_quick and habits.fails_at > 0 and not disturbed


def _is_gone_amid_a_file(scenario: Scenario) -> bool:
    habits = scenario.habits
    return habits.preallocates and habits.pause == 0.0 and habits.fails_in_save


def _loses_several_at_once(scenario: Scenario) -> bool:
    if scenario.shortage is not None:
        return False
    lost = [each for each in scenario.events if each.what == "lose" and not each.details.get("preempted")]
    times = [event.at for event in lost]
    return scenario.only_loss and len(set(times)) < len(times)


def _fails_again(scenario: Scenario) -> bool:
    """Whether a program fails twice in the step that follows a quick save, and nothing else goes wrong."""
    habits = scenario.habits
    is_again = habits.fails_at > 1 and habits.fails_at in habits.fails_later[:1]
    return _launches_just_after_a_save(scenario) and is_again and scenario.restarts[0] > 1


def _preempts_at_one_step(scenario: Scenario) -> bool:
    """Whether machines are preempted again before the training has come any further."""
    return scenario.habits.long_step > 0 and any(event.details.get("preempted") for event in scenario.events)


def _leaves_as_it_is_preempted(scenario: Scenario) -> bool:
    """Whether a program exits with 0 since its machine is taken away."""
    has_notice = any(event.details.get("grace") for event in scenario.events)
    return has_notice and scenario.habits.on_sigterm == "leaves"


def _keeps_too_few(scenario: Scenario) -> bool:
    """Whether fewer nodes are left than the job wants at least, and no others come."""
    lost = {event.details["rank"] for event in scenario.events if event.what == "lose"}
    return scenario.only_loss and scenario.nodes - len(lost) < (scenario.min_nodes or 0)


def _is_short(scenario: Scenario, kind: str) -> bool:
    """Whether a machine in the place of a lost one is not there, and the job has candidates."""
    return scenario.candidates > 0 and scenario.shortage is not None and scenario.shortage[0] == kind


def _is_silent_alone(scenario: Scenario) -> bool:
    return scenario.only_loss and _happens(scenario, "freeze")


def _stays_on_the_disk(scenario: Scenario, *, again: bool = False, beside: bool = False) -> bool:
    """Whether what the only node has saved is not in the store as it fails. `again`: it fails another time before that.

    `beside`: amid the save of a name beside the others.
    """
    habits = scenario.habits
    is_it = (not again or bool(habits.fails_later)) and habits.last_too == beside
    return _has_window(scenario, "checkpoints stay on the disk") and is_it


def _never_answers(scenario: Scenario, whom: str) -> bool:
    return _has_window(scenario, f"no answer to {whom}")


CIRCUMSTANCES: Mapping[str, Callable[[Scenario], bool]] = {
    "a full disk": _fills_the_disk,
    "a kill amid a save": _is_killed_amid_saves,
    "a rank is gone amid a file of full size": _is_gone_amid_a_file,
    "a rank dies, and its launcher lives": lambda scenario: scenario.habits.lingers > 0,
    "a program goes on after the error of a save": lambda scenario: scenario.habits.goes_on,
    "an exception writes an end": lambda scenario: (
        scenario.habits.full_at > 0 and scenario.habits.layout in ("npz", "pkl")
    ),
    "a process of its own writes each save": lambda scenario: (
        scenario.habits.helpers and scenario.habits.fails_at > 0
    ),
    "a save is complete after later ones": lambda scenario: scenario.habits.slow_save > 0,
    "a clock is set back amid saves": lambda scenario: scenario.habits.clock_back_at > 0,
    "an end amid the second file": _stops_amid_the_second_file,
    "a save over another": _saves_over,
    "parts saved over others": _saves_over_parts,
    "Lightning's names": lambda scenario: scenario.checkpoints and scenario.habits.layout == "lightning",
    "last.ckpt beside others": lambda scenario: scenario.habits.last_too,
    "a node that outlives its gang": lambda scenario: scenario.zombie,
    "a node that outlives its gang by minutes": _outlives_a_long_successor,
    "two checkpoints of one step": lambda scenario: scenario.zombie and scenario.late_node > 0,
    "shows nothing": lambda scenario: not scenario.checkpoints and scenario.habits.trains_nothing,
    "has to show something": lambda scenario: scenario.require_training,
    "trains nothing later": lambda scenario: scenario.habits.nothing_from > 0,
    "swallowed exits": lambda scenario: scenario.swallows,
    "refusals amid the creation": lambda scenario: _is_refused(scenario, "service.create_"),
    "refusals amid the creation, and a machine comes late": lambda scenario: (
        scenario.late_node > 0 and _is_refused(scenario, "service.create_job_run")
    ),
    "an outage amid the creation": lambda scenario: _has_window(scenario, "creations unanswered"),
    "refusals for long, and nobody else ends the node": lambda scenario: (
        _has_window(scenario, "for long") and scenario.nodes == 1
    ),
    "refusals": lambda scenario: _is_refused(scenario, "service."),
    "a replaced key": lambda scenario: scenario.key_replaced_at is not None and not scenario.deferrable,
    "a gang created in part": lambda scenario: (
        scenario.nodes > 1 and _is_refused(scenario, "service.create_")
    ),
    "a job that is listed and not found": lambda scenario: _has_window(scenario, "at the last try"),
    "a hidden run": lambda scenario: scenario.hidden is not None,
    "fetches for ever": lambda scenario: scenario.stuck_fetching >= 0,
    "no store at the start": lambda scenario: _has_window(scenario, "store down at the start"),
    "no store amid a save": lambda scenario: _has_window(scenario, "no store amid a save"),
    "a part is refused after the training": lambda scenario: _has_window(scenario, "part refused"),
    "the main node of one run saves for minutes": lambda scenario: _has_window(
        scenario, "checkpoints refused for minutes"
    ),
    "a kill of a worker that waits": lambda scenario: (
        not scenario.deferrable and _happens(scenario, "mark_failed", "clear", "second_try")
    ),
    "a worker dies as its nodes end one after another": _ends_bit_by_bit_alone,
    "a launch just after a save": _launches_just_after_a_save,
    "the same failure again": _fails_again,
    "only a machine is lost": lambda scenario: scenario.only_loss,
    "machines are lost": _loses_machines,
    "more machines are lost than may be replaced": _loses_more_than_allowed,
    "machines are lost together": _loses_several_at_once,
    "a replacement is refused": lambda scenario: _has_window(scenario, "replacement refused"),
    "a lost node comes back": lambda scenario: any("back" in event.details for event in scenario.events),
    "machines are preempted at one step": _preempts_at_one_step,
    "a program exits with 0 as its machine is preempted": _leaves_as_it_is_preempted,
    "fewer nodes go on, and others come later": lambda scenario: scenario.grows,
    "fewer nodes are left than the least": _keeps_too_few,
    "another machine is refused, and there are candidates": lambda scenario: _is_short(scenario, "none"),
    "another request is refused, and there are candidates": lambda scenario: _is_short(scenario, "asked"),
    "no other machine comes, and there are candidates": lambda scenario: _is_short(scenario, "never"),
    "only a node is silent": _is_silent_alone,
    "a node is silent in a state that nobody knows": lambda scenario: (
        _is_silent_alone(scenario) and _happens(scenario, "odd_state")
    ),
    "a machine is lost amid a restore": lambda scenario: _has_window(
        scenario, "no checkpoint amid a restore"
    ),
    "a later launch hangs, and talks": lambda scenario: scenario.habits.talks,
    "a last report is throttled": lambda scenario: _has_window(scenario, "last report of node"),
    "a last report is lost, and nothing was shown": lambda scenario: _has_window(
        scenario, "last report lost"
    ),
    "a request to end cannot be read": lambda scenario: _has_window(scenario, "request unreadable"),
    "a machine is silent": lambda scenario: scenario.restarts[2] > 0 and _happens(scenario, "cut_off"),
    "saves in a shared folder are not sent": lambda scenario: scenario.shared_folder,
    "a machine is lost while saves in a shared folder are not sent": lambda scenario: (
        scenario.shared_folder and _happens(scenario, "lose")
    ),
    "whose a shared folder is cannot be asked": lambda scenario: _has_window(scenario, "no fence"),
    "refused shapes": lambda scenario: bool(scenario.refused_shapes),
    "a refused shape, and a dead worker": lambda scenario: (
        bool(scenario.refused_shapes) and _happens(scenario, "kill_worker")
    ),
    "a log": lambda scenario: scenario.logs,
    "a log of minutes": _is_logged_for_long,
    "an odd state": lambda scenario: _happens(scenario, "odd_state"),
    "a checkpoint stays on the disk": _stays_on_the_disk,
    "a checkpoint stays on the disk for two failures": lambda scenario: _stays_on_the_disk(
        scenario, again=True
    ),
    "a checkpoint stays on the disk, and one beside it is half": lambda scenario: _stays_on_the_disk(
        scenario, beside=True
    ),
    "a worker is taken for dead": lambda scenario: _happens(scenario, "second_try"),
    "a store never answers a node": lambda scenario: _never_answers(scenario, "a node"),
    "a store never answers a worker that is killed": lambda scenario: (
        _never_answers(scenario, "the worker") and not scenario.deferrable
    ),
    "stale reports": lambda scenario: any(rate.calls == "store.list_objects" for rate in scenario.rates),
}
"""By name."""


LOOKED_AT = 10
"""How many times as many seeds as are to be run are looked at for a circumstance: to draw one takes next to no time."""


def in_order(seed: str, seeds: int, circumstance: str) -> list[int]:
    """Return the numbers of as many schedules of a campaign: first those that have the circumstance, if one is named.

    Those may come from further on in the campaign than the others.
    """
    if not circumstance:
        return list(range(seeds))
    first = having(seed, LOOKED_AT * seeds)[circumstance]
    return list(dict.fromkeys([*first, *range(seeds)]))[:seeds]


@functools.cache
def having(seed: str, seeds: int) -> Mapping[str, Sequence[int]]:
    """Return the numbers of the schedules that have a circumstance, for each: to draw them all takes some seconds."""
    from tests.simulation.scenario import draw

    found: dict[str, list[int]] = {name: [] for name in CIRCUMSTANCES}
    for number in range(seeds):
        scenario = draw(f"{seed}.{number}")
        for name, has_it in CIRCUMSTANCES.items():
            if has_it(scenario):
                found[name].append(number)
    return found
