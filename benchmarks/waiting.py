"""What P4, P5 and P6 share: a thousand gangs in an emulator, and programs that wait for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.nodes import require_clients
from scripts.emulator_process import EmulatorProcess
from scripts.idle_gangs import IdleGangs, IdleNodes, idle_gangs
from scripts.idle_pods import IdlePods, idle_pods

GANGS = 1000
NODES = 2
INTERVAL_S = 10.0
"""The operator's default."""
LEASE_S = 7200.0
"""A job's default (`limits.lease`)."""
MEASURED_S = 60.0
LOOKS_BEFORE = 4
"""Of ADS, before it is measured."""
ROOT = Path(__file__).resolve().parent.parent
DRIVER = Path(__file__).with_name("waiting_driver.py")
ADS = Path(__file__).with_name("ads_watch.py")
ADS_NEEDS = ("config_file", "profile")

Measure = Callable[[], dict[str, Any]]


@contextmanager
def waiting_gangs(count: int = GANGS) -> Iterator[IdleGangs]:
    """Make gangs as tasks of Airflow have them: each with a lease, which the waiting side renews."""
    with (
        tempfile.TemporaryDirectory() as folder,
        EmulatorProcess(Path(folder), options=("--no-signatures",)) as emulator,
        idle_gangs(emulator, count, NODES) as gangs,
    ):
        gangs.report(gangs.records)
        records = [replace(record, lease=LEASE_S) for record in gangs.records]
        yield replace(gangs, records=records)


@contextmanager
def waiting_pods(count: int = GANGS) -> Iterator[IdlePods]:
    """Make gangs on Kubernetes, as tasks of Airflow have them."""
    with (
        tempfile.TemporaryDirectory() as folder,
        EmulatorProcess(Path(folder), options=("--no-signatures", "--kubernetes")) as emulator,
        idle_pods(emulator, count, NODES) as gangs,
    ):
        gangs.report(gangs.records)
        records = [replace(record, lease=LEASE_S) for record in gangs.records]
        yield replace(gangs, records=records)


@contextmanager
def waiting_program(
    gangs: IdleNodes,
    mode: str,
    *,
    count: int | None = None,
    seconds: float = MEASURED_S,
    reports: bool = True,
) -> Iterator[Measure]:
    """Run the driver until it waits for the gangs; what is yielded lets it measure so many seconds.

    `reports`: it has read the reports of all nodes before.
    """
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "mode": mode,
            "records": [record.to_json() for record in gangs.records[:count]],
            "connections": gangs.connections,
            "emulator": gangs.emulator.url,
            "interval": INTERVAL_S,
            "seconds": seconds,
            "reports": reports,
        }
        order, log = Path(folder, "settings.json"), Path(folder, "log")
        order.write_text(json.dumps(settings))
        environment = {
            **os.environ,
            "AIRFLOW_HOME": folder,
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{folder}/airflow.db",
            "PYTHONPATH": str(ROOT),
        }
        with log.open("w") as errors:
            command = [sys.executable, str(DRIVER), str(order)]
            program = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                bufsize=1,
            )
            try:
                _next_event(program, "settled", log)
                yield lambda: _measured(program, log)
            finally:
                program.kill()
                program.wait()


def drive(
    gangs: IdleNodes,
    mode: str,
    *,
    count: int | None = None,
    seconds: float = MEASURED_S,
    reports: bool = True,
) -> dict[str, Any]:
    """Let a driver wait, and measure once."""
    with waiting_program(gangs, mode, count=count, seconds=seconds, reports=reports) as measure:
        return measure()


def _measured(program: subprocess.Popen[str], log: Path) -> dict[str, Any]:
    assert program.stdin is not None
    program.stdin.write("measure\n")
    return _next_event(program, "measured", log)


def _next_event(program: subprocess.Popen[str], name: str, log: Path) -> dict[str, Any]:
    assert program.stdout is not None
    for line in program.stdout:
        if line.startswith(f'{{"event": "{name}"'):  # the rest is Airflow's own output
            return dict(json.loads(line))
    raise RuntimeError(f"the driver ended before it had {name}:\n{log.read_text()[-2000:]}")


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


@contextmanager
def ads_watch(gangs: IdleGangs) -> Iterator[int]:
    """Let Oracle ADS watch one run; yields the id of its process once it does."""
    run_id = gangs.records[0].ref.main_run_id
    settings = json.dumps({**{name: getattr(gangs.emulator, name) for name in ADS_NEEDS}, "run": run_id})
    proxy = {"HTTPS_PROXY": gangs.emulator.proxy_url, "REQUESTS_CA_BUNDLE": gangs.emulator.ca_file}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out")
        with out.open("w") as file:
            program = subprocess.Popen(
                [require_clients(), str(ADS), settings],
                env={**os.environ, **proxy},
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=folder,
            )
        try:
            gangs.forget_calls()
            # The first time it only looks the run up; it imports much before it looks again.
            wait_for(lambda: len(gangs.calls(f".*{run_id}.*")) >= LOOKS_BEFORE, 180)
            yield program.pid
            if program.poll() is not None:
                raise RuntimeError(out.read_text()[-2000:])
        finally:
            program.kill()
            program.wait()


def wait_for(true: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:.0f} s")
        time.sleep(0.5)
