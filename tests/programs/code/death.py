"""How these programs die, once and at the same step, and what they leave to be compared at their end."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

STEPS, EVERY = 12, 4
LAST_STEP = 6
"""Of a first attempt that is to die: two steps after a checkpoint."""


def at(step: int) -> None:
    """Kill the last rank of a task's first attempt after its sixth step, where the job asks for that."""
    first = os.environ["OCIDIST_RUN_NAME"].endswith("-a1")
    last = int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1
    if "DIES" in os.environ and first and last and step == LAST_STEP:
        os.kill(os.getpid(), signal.SIGKILL)


def show(begun: object, model: object, **more: object) -> None:
    """Write with which checkpoint it began, and the norms of its weights, which every process has in full."""
    full = [
        each.full_tensor() if hasattr(each, "full_tensor") else each for each in model.state_dict().values()
    ]
    weights = [float(each.double().norm()) for each in full]
    write_end(begun=begun and Path(str(begun)).name, weights=weights, **more)


def write_end(**end: object) -> None:
    """Write what the test compares, once on each node; which node has which rank is torchrun's choice."""
    if os.environ["LOCAL_RANK"] != "0":
        return
    folder = Path("results")
    folder.mkdir(exist_ok=True)
    (folder / "end.json").write_text(json.dumps({"rank": int(os.environ["RANK"]), **end}))
