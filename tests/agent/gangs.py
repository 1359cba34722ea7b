"""Gangs of real agents on this machine: one process and one loopback address for each node."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.backports import Self
from airflow_provider_ocidist.job import LauncherOptions, Limits, Program
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.report import NodeReport, Phase

REPOSITORY = Path(__file__).parents[2]
PATIENCE = 240.0
NO_TORCH = "torch is not installed: there is none for PyPy"


def until(condition: Callable[[], Any], timeout: float = PATIENCE) -> Any:
    """Return the condition's value as soon as it is true."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
    return value


def processes_with(mark: str) -> list[int]:
    """Return the living processes in whose environment or command line the mark occurs."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            state = place.joinpath("stat").read_bytes().rpartition(b")")[2].decode().split()[0]
            text = place.joinpath("environ").read_bytes() + place.joinpath("cmdline").read_bytes()
        except OSError:
            continue
        if state not in "ZX" and mark.encode() in text:
            found.append(int(place.name))
    return [pid for pid in found if pid != os.getpid()]


class Agent:
    """One node of a gang."""

    def __init__(self, gang: Gang, rank: int, environ: Mapping[str, str]) -> None:
        self.gang = gang
        self.rank = rank
        self.home = gang.root / f"node-{rank}"
        self.stdout, self.stderr = self.home / "stdout", self.home / "stderr"
        with self.stdout.open("wb") as out, self.stderr.open("wb") as err:
            self.process = subprocess.Popen(
                [gang.python, "-m", "airflow_provider_ocidist.agent"],
                env=dict(environ),
                cwd=self.home,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def wait(self) -> int:
        return self.process.wait(PATIENCE)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def prints(self, text: str) -> None:
        """Wait until the program has printed this."""
        self.shows(lambda: text in self.stdout.read_text())

    def shows(self, condition: Callable[[], Any]) -> None:
        """Wait until the condition is true; fail at once if the node ends before."""

        def shown_or_ended() -> bool:
            ended = self.process.poll() is not None
            return bool(condition()) or ended

        until(shown_or_ended)
        assert condition(), f"node {self.rank} has ended:\n{self.stderr.read_text()}"

    @property
    def waits(self) -> bool:
        """Whether it waits for the others."""
        written = (self.gang.run_dir / "nodes" / f"{self.rank}.json").exists()
        return written and self.report.phase is Phase.JOINING

    @property
    def report(self) -> NodeReport:
        return NodeReport.from_json((self.gang.run_dir / "nodes" / f"{self.rank}.json").read_bytes())


class Gang:
    """Agents that belong together; leaving the context ends them all."""

    def __init__(
        self,
        root: Path,
        script: str,
        *,
        nodes: int = 1,
        kind: str = "python",
        python: str = sys.executable,
        name: str | None = None,
        **changes: Any,
    ) -> None:
        """`python`: the interpreter of the nodes, where they need packages that Airflow's has not.

        `name`: of the attempt, where the test needs it before; no other gang has it.
        """
        self.root = root
        self.name = name or f"test-{uuid.uuid4().hex[:12]}"
        self.run_dir = root / "run" / self.name
        self.script = script
        self.python = python
        self.agents: list[Agent] = []
        args = tuple(changes.pop("args", ()))
        options = {
            "limits": Limits(stop_grace=5.0, join_timeout=30.0),
            "launcher": LauncherOptions(kind=kind),
            "program": Program(script="program.py", args=args),
        }
        self.config = AgentConfig(
            run_name=self.name, nodes=nodes, run_dir=str(self.run_dir), **{**options, **changes}
        )
        without_torch = python == sys.executable and not importlib.util.find_spec("torch")
        if self.config.launcher.kind == "torchrun" and without_torch:
            pytest.skip(NO_TORCH)

    def start(self, *ranks: int, **environ: str) -> list[Agent]:
        for rank in ranks or range(self.config.nodes):
            self.agents.append(Agent(self, rank, self._environ(rank) | environ))
        return self.agents

    def run(self, **environ: str) -> list[int]:
        """Start all nodes and return their exit codes."""
        return [agent.wait() for agent in self.start(**environ)]

    def code(self, rank: int) -> Path:
        return self.root / f"node-{rank}" / "code"

    def _environ(self, rank: int) -> dict[str, str]:
        code = self.code(rank)
        code.mkdir(parents=True, exist_ok=True)
        (code / "program.py").write_text(self.script)
        inherited = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        return (
            inherited
            | self.config.to_env()
            | {
                "OCIDIST_NODE_RANK": str(rank),
                "OCIDIST_CODE_DIR": str(code),
                "FQDN": f"127.0.99.{rank + 1}",
                "PYTHONPATH": str(REPOSITORY),
                "TMPDIR": str(code.parent),
            }
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for agent in self.agents:
            if agent.process.poll() is None:
                agent.process.kill()
                agent.process.wait()
        until(lambda: not processes_with(self.name), timeout=60)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
