"""Hosts on this machine: network namespaces on a switch, each with its address, its name and a real agent."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from airflow_provider_ocidist.backports import Self
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.report import NodeReport
from tests.agent.gangs import PATIENCE, REPOSITORY, until


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"
    return done.stdout


def why_not() -> str | None:
    """Return what this machine lacks for hosts of our own."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    lacking = [tool for tool in ("ip", "tc", "iptables", "unshare", "nsenter") if shutil.which(tool) is None]
    if lacking:
        return f"{', '.join(lacking)} missing: apt-get install iproute2 iptables util-linux"
    probe = ["ip", "netns", "add", f"oc-{uuid.uuid4().hex[:6]}"]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"no network namespaces here: {done.stderr.strip()}"
    run("ip", "netns", "del", probe[-1])
    return None


class Host:
    """One host: rank, name, address, and the agent that runs on it."""

    def __init__(self, lab: Lab, rank: int) -> None:
        self.lab = lab
        self.rank = rank
        self.name = f"host{rank}"
        self.namespace = f"{lab.name}-{rank}"
        self.address = f"10.231.7.{rank + 1}"
        self.home = lab.root / self.name
        self.stdout, self.stderr = self.home / "stdout", self.home / "stderr"
        self.process: subprocess.Popen[bytes] | None = None

    def plug_in(self) -> None:
        """Give the host its namespace, with one cable to the switch."""
        run("ip", "netns", "add", self.namespace)
        cable = ["link", "add", "eth0", "netns", self.namespace, "type", "veth"]
        run("ip", *cable, "peer", "name", self.name, "netns", self.lab.switch)
        run("ip", "-n", self.lab.switch, "link", "set", self.name, "master", "bridge", "up")
        run("ip", "-n", self.namespace, "address", "add", f"{self.address}/24", "dev", "eth0")
        run("ip", "-n", self.namespace, "link", "set", "eth0", "up")
        run("ip", "-n", self.namespace, "link", "set", "lo", "up")
        run("ip", "-n", self.namespace, "route", "add", "default", "dev", "eth0")

    def start(self, config: AgentConfig, script: str) -> None:
        code = self.home / "code"
        code.mkdir(parents=True)
        (code / "program.py").write_text(script)
        inherited = {
            name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "FQDN")
        }
        environ = {
            **inherited,
            **config.to_env(),
            "OCIDIST_NODE_RANK": str(self.rank),
            "OCIDIST_CODE_DIR": str(code),
            "PYTHONPATH": str(REPOSITORY),
            "HOME": str(self.home),
            "TMPDIR": str(self.home),
        }
        # Each becomes the next (exec), so that the process we hold is the agent itself.
        named = ["unshare", "--uts", "--mount", "sh", "-c", 'hostname "$0" && exec "$@"', self.name]
        agent = [sys.executable, "-m", "airflow_provider_ocidist.agent"]
        with self.stdout.open("wb") as out, self.stderr.open("wb") as err:
            self.process = subprocess.Popen(
                ["ip", "netns", "exec", self.namespace, *named, *agent],
                env=environ,
                cwd=self.home,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def cut_off(self, shared: Path) -> None:
        """Pull the cable; with it goes the shared folder, which now neither shows nor takes anything."""
        assert self.process
        run("ip", "-n", self.namespace, "link", "set", "eth0", "down")
        inside = ["nsenter", f"--mount=/proc/{self.process.pid}/ns/mnt"]
        run(*inside, "mount", "-t", "tmpfs", "-o", "ro", "none", str(shared))

    def slow_down(self, rate: str) -> None:
        limits = ["rate", rate, "burst", "64k", "latency", "400ms"]
        run("tc", "-n", self.namespace, "qdisc", "add", "dev", "eth0", "root", "tbf", *limits)

    def lose_packets(self, share: float) -> None:
        """Lose this share of the packets that come to this host, and of those that it sends."""
        chance = ["-m", "statistic", "--mode", "random", "--probability", str(share), "-j", "DROP"]
        for host in self.lab.hosts:
            # Where they arrive: a sender learns what its own firewall drops. Not by netem, which many kernels lack.
            those = ["-i", "eth0"] if host is self else ["-s", self.address]
            run("ip", "netns", "exec", host.namespace, "iptables", "-A", "INPUT", *those, *chance)
            # Else dozens of them cross a cable as one.
            run("ip", "-n", host.namespace, "link", "set", "dev", "eth0", "gso_max_segs", "1")

    def kill(self) -> None:
        """Send SIGKILL to everything on the host."""
        until(self._nothing_left, timeout=10)

    def _nothing_left(self) -> bool:
        done = subprocess.run(
            ["ip", "netns", "pids", self.namespace], capture_output=True, text=True, check=False
        )
        for pid in map(int, done.stdout.split()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.process:
            self.process.poll()
        return not done.stdout.split()

    def wait(self) -> int:
        assert self.process
        return self.process.wait(PATIENCE)

    def prints(self, text: str) -> None:
        until(lambda: text in self.stdout.read_text())

    @property
    def report(self) -> NodeReport:
        return NodeReport.from_json((self.lab.shared / "nodes" / f"{self.rank}.json").read_bytes())


class Lab:
    """A switch with hosts on it; leaving the context ends all processes and unplugs everything."""

    def __init__(self, root: Path, hosts: int) -> None:
        self.root = root
        self.shared = root / "shared"
        self.name = f"oc-{uuid.uuid4().hex[:6]}"
        self.switch = f"{self.name}-switch"
        self.hosts = [Host(self, rank) for rank in range(hosts)]

    def run(self, script: str, **options: Any) -> Sequence[Host]:
        """Start the agent on every host."""
        config = AgentConfig(run_name=self.name, nodes=len(self.hosts), run_dir=str(self.shared), **options)
        for host in self.hosts:
            host.start(config, script)
        return self.hosts

    def __enter__(self) -> Self:
        self.shared.mkdir()
        try:
            self._plug_in()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _plug_in(self) -> None:
        # The switch has a namespace too: nothing of the machine's own network, nor its firewall, is touched.
        run("ip", "netns", "add", self.switch)
        run("ip", "-n", self.switch, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", self.switch, "link", "set", "bridge", "up")
        names = ["127.0.0.1 localhost", *[f"{host.address} {host.name}" for host in self.hosts]]
        for host in self.hosts:
            folder = Path("/etc/netns") / host.namespace
            folder.mkdir(parents=True)
            (folder / "hosts").write_text("\n".join(names) + "\n")
            host.plug_in()

    def __exit__(self, *_: object) -> None:
        for host in self.hosts:
            host.kill()
        for namespace in (*[host.namespace for host in self.hosts], self.switch):
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)
            shutil.rmtree(Path("/etc/netns") / namespace, ignore_errors=True)
