"""Circumstances: what a schedule has where some mutants show, as drawn from its seed; such schedules come first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    ends = habits.full_at > 1 or habits.fails_in_save or _happens(scenario, "mark_failed", "clear", "lose")
    return _saves_unproved(scenario) and habits.pause == 0.0 and ends


def _saves_over(scenario: Scenario) -> bool:
    habits = scenario.habits
    in_many_files = habits.layout in ("hf", "dcp", "bin") and habits.pause > 0.0 and not habits.atomic
    return scenario.checkpoints and scenario.resume and in_many_files and not habits.resumes


def _loses_machines(scenario: Scenario) -> bool:
    return scenario.restarts[2] > 0 and _happens(scenario, "lose", "cut_off")


CIRCUMSTANCES: Mapping[str, Callable[[Scenario], bool]] = {
    "a full disk": _fills_the_disk,
    "a kill amid a save": _is_killed_amid_saves,
    "an end amid the second file": _stops_amid_the_second_file,
    "a save over another": _saves_over,
    "Lightning's names": lambda scenario: scenario.checkpoints and scenario.habits.layout == "lightning",
    "last.ckpt beside others": lambda scenario: scenario.habits.last_too,
    "a node that outlives its gang": lambda scenario: scenario.zombie,
    "two checkpoints of one step": lambda scenario: scenario.zombie and scenario.late_node > 0,
    "shows nothing": lambda scenario: not scenario.checkpoints and scenario.habits.trains_nothing,
    "has to show something": lambda scenario: scenario.require_training,
    "trains nothing later": lambda scenario: scenario.habits.nothing_from > 0,
    "swallowed exits": lambda scenario: scenario.swallows,
    "refusals amid the creation": lambda scenario: _is_refused(scenario, "service.create_"),
    "an outage amid the creation": lambda scenario: _has_window(scenario, "creations unanswered"),
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
    "a kill of a worker that waits": lambda scenario: (
        not scenario.deferrable and _happens(scenario, "mark_failed", "clear", "second_try")
    ),
    "a launch just after a save": lambda scenario: (
        sum(scenario.restarts) > 0 and scenario.habits.step_seconds == scenario.habits.write_seconds == 0.3
    ),
    "only a machine is lost": lambda scenario: scenario.only_loss,
    "machines are lost": _loses_machines,
    "a lost node comes back": lambda scenario: any("back" in event.details for event in scenario.events),
    "a machine is silent": lambda scenario: scenario.restarts[2] > 0 and _happens(scenario, "cut_off"),
    "refused shapes": lambda scenario: bool(scenario.refused_shapes),
    "a refused shape, and a dead worker": lambda scenario: (
        bool(scenario.refused_shapes) and _happens(scenario, "kill_worker")
    ),
    "a log": lambda scenario: scenario.logs,
}
"""By name."""


def in_order(seed: str, seeds: int, circumstance: str) -> list[int]:
    """Return the numbers of a campaign's schedules: first those that have the circumstance, if one is named."""
    from tests.simulation.scenario import draw

    if not circumstance:
        return list(range(seeds))
    has_it = CIRCUMSTANCES[circumstance]
    return sorted(range(seeds), key=lambda number: not has_it(draw(f"{seed}.{number}")))
