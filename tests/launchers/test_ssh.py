"""Logins between nodes: who is trusted, and what a session gets."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.stages.context import home_of
from airflow_provider_ocidist.agent.train.launch import write_files
from airflow_provider_ocidist.backports import Self
from airflow_provider_ocidist.job import LauncherOptions, Program
from airflow_provider_ocidist.launchers import ssh
from airflow_provider_ocidist.launchers.base import Placement
from airflow_provider_ocidist.launchers.deepspeed import LAUNCHER
from scripts.local_airflow import free_port

FIRST = Placement(
    rank=0,
    nodes=2,
    processes_per_node=1,
    master_address="10.0.0.1",
    address="10.0.0.1",
    addresses=("10.0.0.1", "10.0.0.2"),
    public_keys=("ssh-ed25519 AAAA", "ssh-ed25519 BBBB"),
    rendezvous_id="run",
    join_timeout=60.0,
    folder="/home/node",
)
SECOND = replace(FIRST, rank=1, address="10.0.0.2")
OVER_SSH = LauncherOptions(kind="deepspeed", args=("--launcher", "pdsh"))


def test_hosts_are_known_by_their_keys_and_the_first_alone_may_come_in() -> None:
    files = ssh.files(SECOND)
    assert files["known_hosts"] == ("[10.0.0.1]:29401 ssh-ed25519 AAAA\n[10.0.0.2]:29401 ssh-ed25519 BBBB\n")
    assert files["authorized_keys"] == "restrict ssh-ed25519 AAAA\n"
    assert "StrictHostKeyChecking yes" in files["ssh_config"]
    assert "PasswordAuthentication no" in files["sshd_config"]


def test_deepspeed_logs_in_only_where_it_was_asked_to() -> None:
    program = Program(script="x.py")
    assert not LAUNCHER.logs_in(LauncherOptions(), 2)
    assert LAUNCHER.tools(LauncherOptions(), 2) == ()
    assert "pdsh" in LAUNCHER.tools(OVER_SSH, 2)
    assert not LAUNCHER.logs_in(OVER_SSH, 1)
    serve = [sys.executable, "-I", "-S", ssh.__file__, "serve", "/home/node"]
    assert LAUNCHER.command(program, OVER_SSH, SECOND) == serve
    first = LAUNCHER.command(program, OVER_SSH, FIRST)
    assert first[:6] == serve
    assert first[6:] == [
        sys.executable,
        "-m",
        "deepspeed.launcher.runner",
        "--hostfile=/home/node/hostfile",
        "--no_ssh_check",
        "--master_addr=10.0.0.1",
        "--master_port=29400",
        "--launcher",
        "pdsh",
        "x.py",
    ]


class Nodes:
    """Two nodes on loopback, with real keys; the second lets the first in."""

    def __init__(self, root: Path, **environ: str) -> None:
        """`environ`: variables of the node that answers."""
        self.folders = [root / str(rank) for rank in range(2)]
        for folder in self.folders:
            folder.mkdir()
        placement = replace(
            FIRST,
            addresses=("127.0.98.1", "127.0.98.2"),
            public_keys=tuple(map(ssh.make_key, self.folders)),
            master_port=free_port() - 1,
        )
        for rank, folder in enumerate(self.folders):
            own = replace(placement, rank=rank, address=placement.addresses[rank], folder=str(folder))
            write_files(ssh.files(own), folder)
        command = ssh.serving(replace(placement, rank=1, folder=str(self.folders[1])), ["not here"])
        self.server = subprocess.Popen(
            command,
            env={**os.environ, "SECRET": "s3cret", **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def log_in(self, command: str) -> subprocess.CompletedProcess[str]:
        config = str(self.folders[0] / "ssh_config")
        line = ["ssh", "-F", config, "127.0.98.2", command]
        return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.server.poll() is None:
            self.server.terminate()
        self.server.communicate(timeout=60)


SERVER = "/usr/sbin/sshd"
needs_sshd = pytest.mark.skipif(
    not Path(SERVER).exists() or not shutil.which("ssh"), reason="openssh-server is not installed"
)


@needs_sshd
def test_a_session_has_its_own_nodes_variables_and_output_and_ends_the_node(tmp_path: Path) -> None:
    with Nodes(tmp_path) as nodes:
        done = nodes.log_in("echo $SECRET; echo said >&2; exit 3")
        out, err = nodes.server.communicate(timeout=60)
        assert (done.returncode, done.stdout) == (3, "")
        assert (out, "said\n" in err) == ("s3cret\n", True)
        assert nodes.server.returncode == 3
        assert (nodes.folders[1] / "node.json").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("is_at_daemons", [True, False])
def test_the_server_is_that_of_the_system_else_the_one_on_the_path_of_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_at_daemons: bool
) -> None:
    for folder in ("sbin", "bin"):
        if folder == "bin" or is_at_daemons:
            (tmp_path / folder).mkdir()
            (tmp_path / folder / "sshd").write_text("#!/bin/sh\n")
            (tmp_path / folder / "sshd").chmod(0o755)
    monkeypatch.setattr(ssh, "DAEMON_FOLDERS", (str(tmp_path / "sbin"),))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    # A conda environment on PATH may bring one that does not run as root.
    expected = tmp_path / ("sbin" if is_at_daemons else "bin") / "sshd"
    assert ssh.server_program() == str(expected)


@needs_sshd
@pytest.mark.parametrize("name", ["my home", "100%home", "it's", 'say "home"', "home#1", "a\\b", "${HOME}"])
def test_the_first_node_logs_in_whatever_the_home_of_the_nodes_is_called(tmp_path: Path, name: str) -> None:
    home = tmp_path / name
    home.mkdir()
    with (
        tempfile.TemporaryDirectory(dir=home_of({"HOME": str(home)})) as folder,
        Nodes(Path(folder)) as nodes,
    ):
        assert nodes.log_in("exit 3").returncode == 3
        # As mpirun and pdsh split it.
        assert len(f"-F {nodes.folders[0] / 'ssh_config'}".split()) == 2


@needs_sshd
def test_a_host_with_another_key_is_refused(tmp_path: Path) -> None:
    with Nodes(tmp_path) as nodes:
        known = nodes.folders[0] / "known_hosts"
        other = tmp_path / "other"
        other.mkdir()
        known.write_text(f"{known.read_text().split()[0]} {ssh.make_key(other)}\n")
        known.write_text(known.read_text().replace("127.0.98.1", "127.0.98.2"))
        done = nodes.log_in("true")
        assert done.returncode == 255
        assert "verification failed" in done.stderr
        assert nodes.server.poll() is None


@needs_sshd
def test_sigterm_reaches_what_the_session_runs(tmp_path: Path) -> None:
    with Nodes(tmp_path) as nodes:
        config = str(nodes.folders[0] / "ssh_config")
        client = subprocess.Popen(
            ["ssh", "-F", config, "127.0.98.2", "trap 'echo saved; exit 0' TERM; echo ready; sleep 60 & wait"]
        )
        assert nodes.server.stdout
        assert nodes.server.stdout.readline() == "ready\n"
        started = time.monotonic()
        nodes.server.terminate()
        assert nodes.server.stdout.readline() == "saved\n"
        assert nodes.server.wait(60) == 0
        assert time.monotonic() - started < 30
        client.wait(60)
