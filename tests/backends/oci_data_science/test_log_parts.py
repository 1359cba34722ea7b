"""A log that is longer than one look reads, against the emulator."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.gangs.log_follower import LogFollower
from tests.training_jobs import a_job, a_key, wait_until

LINES = 4500
PROGRAM = f"""
import time

for number in range({LINES}):
    print("said", number, flush=True)
    time.sleep(0.02 if number % 100 == 0 else 0)
"""


def test_a_long_log_is_logged_whole_and_once_though_each_look_reads_only_some(
    fields: dict[str, Any], ends: Any, tmp_path: Path
) -> None:
    backend = OciDataScience.connect(fields)
    (tmp_path / "talk.py").write_text(PROGRAM)
    job = a_job(
        nodes=1, program={"source": str(tmp_path), "script": "talk.py"}, checkpoints={"required": False}
    )
    ref = ends(backend.submit(backend.plan(job, a_key())))
    wait_until(backend, ref, lambda status: status.ended)
    follower, told, looks = LogFollower([ref.submitted_at]), [], 0
    while looks == 0 or follower.is_behind:
        now = time.time()
        (part,) = backend.logs_of([(ref, follower.since(now))], most=1000)
        assert len(part.lines) <= 2000
        told += [line.text for line in follower.take(part.lines, now, part.unread_from)]
        looks += 1
    assert [text for text in told if text.startswith("said")] == [f"said {number}" for number in range(LINES)]
    assert 2 < looks < 8
