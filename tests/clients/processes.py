"""Programs of another environment, run as a person would run them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.emulator_process import ROOT, Access

CLIENTS = ROOT / ".venv-clients"
"""The environment of the clients that clash with Airflow."""
PROGRAMS = Path(__file__).with_name("programs")
CONDA = "pytorch_and_ads"
"""A conda environment of the emulator: CLIENTS."""
IMAGE = "iad.ocir.io/my-tenancy/image-name:latest"
"""A container image of the emulator: programs/container.py."""

AGENT_IMAGE = "iad.ocir.io/my-tenancy/ocidist:latest"
"""A container image of the emulator that starts our agent."""
CLUSTER_IMAGE = "iad.ocir.io/my-tenancy/pytorch-cluster:1.0"
"""A container image of the emulator: programs/ads_cluster.py."""


@dataclass(frozen=True)
class Programs:
    """Runs the programs of an environment, with a home and variables of their own."""

    environment: Path
    home: Path
    variables: Mapping[str, str]

    def start(self, *command: str | Path, folder: Path | None = None) -> subprocess.Popen[str]:
        # Not PYTHONDONTWRITEBYTECODE and the like of the person who runs the tests: nothing is compiled yet.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        path = f"{self.environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return subprocess.Popen(
            [str(self.environment / "bin" / command[0]), *map(str, command[1:])],
            env={**inherited, "HOME": str(self.home), "PATH": path, **self.variables},
            cwd=folder or self.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *command: str | Path, folder: Path | None = None) -> str:
        """Return what the command printed. Fails the test if it fails."""
        with self.start(*command, folder=folder) as process:
            try:
                printed, complaints = process.communicate(timeout=200)
            finally:
                process.kill()
        assert process.returncode == 0, f"{command} ended with {process.returncode}:\n{printed}\n{complaints}"
        return printed


@dataclass(frozen=True)
class Cli:
    """The `oci` command line."""

    programs: Programs
    access: Access

    def __call__(self, *words: str | Path) -> Any:
        """Return what the command answers."""
        printed = self.programs.run("oci", *words)
        return json.loads(printed) if printed.strip() else None

    def together(self, *commands: tuple[str | Path, ...]) -> list[Any]:
        """Run commands side by side: each takes most of a second to start."""
        with ThreadPoolExecutor(4) as threads:
            return list(threads.map(lambda words: self(*words), commands))
