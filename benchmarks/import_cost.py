"""P7: what a DAG file pays for importing all of our operators, sensors, triggers and hooks."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.comparison import Comparison, Interval, Samples

ROOT = Path(__file__).resolve().parent.parent
CLIENTS = ROOT / ".venv-clients"
"""Has Oracle ADS in it; `make bench` makes it."""
OURS = ("operators", "sensors", "triggers", "hooks")
TARGET_MS = 30.0

# `airflow.sdk` loads its names on first use: a DAG file has used these two before it imports ours.
TIMED = """
import time
{before}
began = time.perf_counter()
{imports}
print("took", (time.perf_counter() - began) * 1000)
"""


def import_ms(python: Path, imports: str, before: str = "") -> float:
    """Return how long the imports take in a fresh interpreter."""
    program = TIMED.format(before=before, imports=imports)
    result = subprocess.run([python, "-c", program], check=True, capture_output=True, text=True, cwd=ROOT)
    return float(result.stdout.rpartition("took ")[2])


class ImportCost(Comparison):
    name = "P7"
    title = "import of all operators, sensors, triggers, hooks, beyond airflow.sdk"
    peer_name = "import ads.jobs"
    unit = "ms"
    target = f"at most {TARGET_MS:.0f} ms"
    pairs = 9

    @contextmanager
    def setting(self) -> Iterator[None]:
        with tempfile.TemporaryDirectory() as home:
            before = os.environ.get("AIRFLOW_HOME")
            os.environ["AIRFLOW_HOME"] = home
            # Once unmeasured: the first import compiles.
            self.ours()
            self.peer()
            yield
            os.environ.pop("AIRFLOW_HOME")
            if before:
                os.environ["AIRFLOW_HOME"] = before

    def ours(self) -> float:
        names = ", ".join(f"airflow_provider_ocidist.{name}" for name in OURS)
        return import_ms(
            Path(sys.executable), f"import {names}", "import airflow.sdk; from airflow.sdk import DAG, task"
        )

    def peer(self) -> float:
        return import_ms(CLIENTS / "bin/python", "import ads.jobs")

    def met(self, samples: Samples) -> bool:
        return Interval.of(samples.ours).high <= TARGET_MS


ROW = ImportCost()
