"""P15: how many steps are lost when a node is killed at a random moment, beside a retry that begins from the start."""

from __future__ import annotations

import random
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airflow_provider_ocidist.model.drill import Fault, FaultKind
from benchmarks.comparison import Comparison, Interval, Samples
from benchmarks.recovery import PROGRAM, recovery_from

LAST_KILL, INTERVAL = 160, 10
"""Latest step that is drawn for a kill, and steps between two checkpoints."""
PAUSE_S, LAG_S = 0.1, 1.0
LAG = round(LAG_S / PAUSE_S)
"""Steps that may be trained while a checkpoint is uploaded."""
NODES, SEED = 2, 15
LATE = round(4.0 / PAUSE_S)
"""Most steps by which a kill comes late: a node on which no step is reported learns of them only seconds later."""
FEWER = 5.0
TRIES = 3
"""Tries of the task, as Airflow's `retries` allows; ours needs one where the lost node is replaced."""
EVERY_TENTH = "(step % 10 == 0 or step == steps)"
"""Condition of the program for a report, which leaves out most steps."""


class LostWork(Comparison):
    name = "P15"
    title = (
        f"SIGKILL of a node at a random one of {LAST_KILL} steps, with a checkpoint every {INTERVAL} steps: steps that "
        "were lost"
    )
    peer_name = "the retry of a training that keeps nothing until its end, as ADS and Airflow do it"
    unit = "steps"
    target = f"at most an interval and {LAG_S:.0f} s ({INTERVAL + LAG} steps), in all {FEWER:.0f} times fewer"
    # Five draws of 160 steps say little about their mean: of five, the mean of the peer was 34 once, of 80 expected.
    pairs = 12

    def __init__(self) -> None:
        self._kills: dict[str, Iterator[Fault]] = {}
        self._source = ""

    @contextmanager
    def setting(self) -> Iterator[None]:
        # Both sides of a pair lose the same node at the same step.
        self._kills = {side: kills(SEED) for side in ("ours", "peer")}
        with tempfile.TemporaryDirectory(prefix="ocidist-bench-") as folder:
            self._source = folder
            text = PROGRAM.read_text()
            if text.count(EVERY_TENTH) != 1:
                raise RuntimeError(f"{PROGRAM} reports its steps in another way now")
            Path(folder, PROGRAM.name).write_text(text.replace(EVERY_TENTH, "True"))
            yield

    def ours(self) -> float:
        return self._lost("ours", {})

    def peer(self) -> float:
        keeps_nothing: dict[str, object] = {
            "restarts.program": 0,
            "restarts.node": 0,
            "restarts.hang": 0,
            "checkpoints": None,
        }
        return self._lost("peer", keeps_nothing)

    def _lost(self, side: str, changes: dict[str, object]) -> float:
        fault = next(self._kills[side])
        # What a whole training would do after the kill is of no interest, and takes most of the time.
        arguments = [
            "--steps",
            str(fault.step + LATE),
            "--save-every",
            str(INTERVAL),
            "--pause",
            str(PAUSE_S),
        ]
        job = {"program.source": self._source, "program.args": arguments, **changes}
        found = recovery_from(fault.kind, job, tries=TRIES, step=fault.step, node=fault.node)
        if found.lost_steps is None:
            raise RuntimeError("the training reported no steps")
        # And the one that was cut off: nobody has ever seen it.
        return float(found.lost_steps + 1)

    def met(self, samples: Samples) -> bool:
        fewer = sum(samples.peer) >= FEWER * sum(samples.ours)
        return Interval.of(samples.ours).high <= INTERVAL + LAG and fewer

    def result(self, samples: Samples) -> dict[str, Any]:
        means = {"ours": statistics.mean(samples.ours), "peer": statistics.mean(samples.peer)}
        return {**super().result(samples), "mean": means, "seed": SEED}


def kills(seed: int) -> Iterator[Fault]:
    """Yield which node is killed, and at which step: the same ones for the same seed."""
    chance = random.Random(seed)
    while True:
        yield Fault(kind=FaultKind.KILL_NODE, node=chance.randrange(NODES), step=chance.randint(1, LAST_KILL))


ROW = LostWork()
