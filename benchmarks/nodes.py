"""Nodes on loopback for the rows that compare our agent with bare torchrun and with Oracle ADS's driver."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from airflow_provider_ocidist.backports import Self
from airflow_provider_ocidist.job import LauncherOptions, Limits, Program
from airflow_provider_ocidist.model.agent_config import AgentConfig
from scripts.local_airflow import free_port

ROOT = Path(__file__).resolve().parent.parent
CLIENTS = ROOT / ".venv-clients" / "bin" / "python"
PATIENCE = 600.0


class Nodes:
    """Some nodes that run one script, each in a folder of its own; leaving the context ends them."""

    def __init__(self, script: str, nodes: int, *, processes: int = 1, kind: str = "torchrun") -> None:
        self.nodes, self.processes, self.kind = nodes, processes, kind
        self.folder = Path(tempfile.mkdtemp(prefix="ocidist-bench-"))
        self.script = self.folder / "program.py"
        self.script.write_text(script)
        self.running: list[subprocess.Popen[bytes]] = []
        name = f"bench-{uuid.uuid4().hex[:10]}"
        self.config = AgentConfig(
            run_name=name,
            nodes=nodes,
            run_dir=str(self.folder / "run"),
            program=Program(script="program.py"),
            launcher=LauncherOptions(kind=kind, processes_per_node=processes),
            limits=Limits(join_timeout=120.0),
        )
        self.endpoint = f"127.0.0.1:{free_port()}"

    def agent(self, rank: int) -> subprocess.Popen[bytes]:
        """Start our agent as one node."""
        variables = {
            "OCIDIST_NODE_RANK": str(rank),
            "OCIDIST_CODE_DIR": str(self.folder),
            "FQDN": f"127.0.98.{rank + 1}",
            "PYTHONPATH": str(ROOT),
        }
        return self.start(
            rank, [sys.executable, "-m", "airflow_provider_ocidist.agent"], self.config.to_env() | variables
        )

    def torchrun(self, rank: int) -> subprocess.Popen[bytes]:
        """Start torchrun as one node, with the addresses known beforehand; as a user would by hand."""
        flags = {
            "nnodes": self.nodes,
            "nproc-per-node": self.processes,
            "rdzv-backend": "c10d",
            "rdzv-endpoint": self.endpoint,
            "rdzv-id": self.config.run_name,
            "rdzv-conf": f"is_host={'true' if rank == 0 else 'false'}",
            "local-addr": "127.0.0.1",
        }
        command = [sys.executable, "-m", "torch.distributed.run"]
        command += [f"--{name}={value}" for name, value in flags.items()]
        threads = max(1, (os.cpu_count() or 1) // (self.nodes * self.processes))
        ours = {"OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
        return self.start(rank, [*command, str(self.script)], ours)

    def start(self, rank: int, command: Sequence[str], environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
        home = self.folder / f"node-{rank}"
        home.mkdir()
        inherited = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        with (home / "log").open("wb") as log:
            process = subprocess.Popen(
                command,
                env=inherited | dict(environ) | {"RESULTS": str(self.folder), "TMPDIR": str(home)},
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.running.append(process)
        return process

    def wait(self) -> None:
        """Wait for all. Raises RuntimeError, with the end of its log, when one fails."""
        for rank, process in enumerate(self.running):
            if process.wait(PATIENCE):
                log = (self.folder / f"node-{rank}" / "log").read_text(errors="replace")
                raise RuntimeError(f"node {rank} ended with {process.returncode}:\n{log[-2000:]}")

    def results(self, name: str) -> list[float]:
        """Return the numbers that the script has written into files of this name, in `RESULTS`."""
        return [float(path.read_text()) for path in sorted(self.folder.glob(f"{name}-*"))]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def require_clients() -> str:
    """Return the interpreter of the environment where Oracle ADS is installed."""
    if not CLIENTS.exists():
        raise FileNotFoundError(f"{CLIENTS} is missing: `make test` makes the environment of the clients")
    return str(CLIENTS)
