"""Rules for nodes: late, never started, failing, lost, or beyond the available capacity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from airflow_provider_ocidist.emulator import patterns

NO_CAPACITY = "Out of host capacity."


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeRule:
    """What happens to some nodes. The first four fields select them; all four must fit."""

    display_name: str = ".*"
    """Regular expression over all of the job run's displayName."""
    group: str = ".*"
    """Regular expression over all of the node group's name, which is empty for a single-node run."""
    shape: str = ".*"
    """Regular expression over all of the shape's name."""
    rank: int | None = None
    """Rank of the node; None: every rank. A single-node run has rank 0."""
    delay_s: float | None = None
    """Seconds of provisioning, in place of the emulator's own delay."""
    never_starts: bool = False
    """Whether the node stays in provisioning until the run is canceled."""
    failure: str | None = None
    """Text of lifecycleDetails with which the run fails, and the node does not start, such as "Out of host
    capacity."."""
    idle: bool = False
    """Whether the node is started without a process, and stays until the run is canceled: thousands fit on one
    machine."""
    exit_code: int | None = None
    """Exit code with which the node ends, without having run its program."""
    after_s: float = 0.0
    """Seconds after the start of the node at which `exit_code`, `lost` or `attention_s` takes effect."""
    lost: bool = False
    """Whether the machine dies: its processes get SIGKILL, the run fails."""
    attention_s: float | None = None
    """Seconds for which the run is in NEEDS_ATTENTION, while the node runs."""
    at_most: int | None = None
    """Most matching nodes that run at the same time. All other effects need another rule."""
    when_full: Literal["wait", "fail"] = "wait"
    """Behaviour of a run without room under `at_most`: stay ACCEPTED, or fail for lack of capacity."""
    times: int | None = None
    """Number of nodes that the rule applies to; None: until reset. Not for `at_most`."""

    def __post_init__(self) -> None:
        for pattern in (self.display_name, self.group, self.shape):
            patterns.compiled(pattern)
        for name in ("delay_s", "after_s", "attention_s", "rank", "exit_code", "at_most", "times"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int | float) or value < 0):
                raise TypeError(f"{name} must be a number, 0 or more")
        if self.when_full not in ("wait", "fail"):
            raise TypeError("when_full must be wait or fail")

    def fits(self, node: NodeKind) -> bool:
        return self.rank in (None, node.rank) and patterns.all_fit(
            (self.display_name, self.group, self.shape), (node.display_name, node.group, node.shape)
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeKind:
    """What rules look at."""

    display_name: str
    group: str = ""
    shape: str = ""
    rank: int = 0


NO_RULE = NodeRule()


class NodeRules:
    """Rules in the order given; the first that fits counts, as often as it may. Those of capacity all count."""

    def __init__(self) -> None:
        self._rules: list[tuple[NodeRule, int | None]] = []

    def add(self, rule: NodeRule) -> None:
        self._rules.append((rule, rule.times))

    def clear(self) -> None:
        self._rules.clear()

    def take(self, node: NodeKind) -> NodeRule:
        """Return the rule for a node and count it as used; a rule without effect when there is none."""
        for place, (rule, left) in enumerate(self._rules):
            if rule.at_most is None and left != 0 and rule.fits(node):
                self._rules[place] = (rule, None if left is None else left - 1)
                return rule
        return NO_RULE

    def room(self, wanted: Sequence[NodeKind], live: Sequence[NodeKind]) -> NodeRule | None:
        """Return the rule that leaves no room for all the nodes of a run together; None when there is room."""
        for rule, _ in self._rules:
            if rule.at_most is None:
                continue
            asked = sum(map(rule.fits, wanted))
            if asked and asked + sum(map(rule.fits, live)) > rule.at_most:
                return rule
        return None

    def bodies(self) -> list[dict[str, Any]]:
        return [{**asdict(rule), "left": left} for rule, left in self._rules]
