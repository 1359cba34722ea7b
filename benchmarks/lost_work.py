"""P15: how many steps are trained twice after SIGKILL of a node at a random step, beside a training from the start."""

from __future__ import annotations

import random

from airflow_provider_ocidist.model.drill import FaultKind
from benchmarks.comparison import Comparison, Interval, Samples
from benchmarks.recovery import SHORT_PAUSE_S, STEPS, recovery_from

CHECKPOINTS = 10
INTERVAL = STEPS // CHECKPOINTS
LAG_S = 1.0
LAG = round(LAG_S / SHORT_PAUSE_S)
"""Steps that may be trained while a checkpoint is uploaded."""
FEWER = 10.0


class LostWork(Comparison):
    name = "P15"
    title = (
        f"SIGKILL of a node at a random step of {STEPS}, with {CHECKPOINTS} checkpoints: steps trained twice"
    )
    peer_name = "the retry of a training that keeps nothing until its end, as outputs of ADS"
    unit = "steps"
    target = f"at most an interval and {LAG_S:.0f} s ({INTERVAL + LAG} steps), in all {FEWER:.0f} times fewer"
    pairs = 7

    def __init__(self) -> None:
        self._chance = random.Random(15)
        self._steps: dict[str, list[int]] = {"ours": [], "peer": []}

    def ours(self) -> float:
        return self._lost("ours", {"program.args": _arguments(INTERVAL)}, tries=1)

    def peer(self) -> float:
        nothing: dict[str, object] = {
            "program.args": _arguments(INTERVAL),
            "checkpoints": None,
            "restarts.program": 0,
            "restarts.node": 0,
            "restarts.hang": 0,
        }
        return self._lost("peer", nothing, tries=2)

    def _lost(self, side: str, changes: dict[str, object], *, tries: int) -> float:
        step = self._drawn(side)
        found = recovery_from(FaultKind.KILL_NODE, changes, tries=tries, step=step)
        if found.lost_steps is None:
            raise RuntimeError("the training reported no steps")
        return float(found.lost_steps)

    def _drawn(self, side: str) -> int:
        """Return the step of a side's next kill; both sides of a pair are killed at the same one."""
        own, other = self._steps[side], self._steps["peer" if side == "ours" else "ours"]
        own.append(other[len(own)] if len(other) > len(own) else self._chance.randint(1, STEPS - INTERVAL))
        return own[-1]

    def met(self, samples: Samples) -> bool:
        fewer = sum(samples.peer) >= FEWER * sum(samples.ours)
        return Interval.of(samples.ours).high <= INTERVAL + LAG and fewer


def _arguments(save_every: int) -> list[str]:
    return ["--steps", str(STEPS), "--save-every", str(save_every), "--pause", str(SHORT_PAUSE_S)]


ROW = LostWork()
