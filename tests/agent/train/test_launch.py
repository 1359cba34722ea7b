"""Whether a node can launch what its job asks for."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.prepare.overlay import make_overlay
from airflow_provider_ocidist.agent.train import launch
from airflow_provider_ocidist.errors import AgentError, Cause
from airflow_provider_ocidist.job import LauncherOptions, Limits, Program
from airflow_provider_ocidist.launchers.base import Launcher
from tests.agent.gangs import Gang


class Needy(Launcher):
    def command(self, program, options, topology):
        return [program.script]


class NeedsPackage(Needy):
    requires = ("json", "no_such_package")


class NeedsTool(Needy):
    def tools(self, options, nodes):
        return ("sh", "no-such-program")


@pytest.mark.parametrize(
    "launcher, says",
    [
        (NeedsPackage(), r"needs the Python package no_such_package, .*dependencies\.packages"),
        (NeedsTool(), "needs the program no-such-program, which is not on this node's PATH: choose an image"),
    ],
)
def test_what_a_node_lacks_is_named_with_the_remedy(launcher: Launcher, says: str) -> None:
    with pytest.raises(AgentError, match=says) as caught:
        launch.check_tools(launcher, LauncherOptions(kind="needy"), 2)
    assert caught.value.cause is Cause.CONFIG


def test_packages_installed_for_the_job_alone_count(tmp_path: Path) -> None:
    overlay = make_overlay(tmp_path / "packages")
    (overlay.site_packages / "no_such_package").mkdir()
    launch.check_tools(NeedsPackage(), LauncherOptions(kind="needy"), 2, overlay)
    (overlay.scripts / "no-such-program").touch(mode=0o755)
    launch.check_tools(NeedsTool(), LauncherOptions(kind="needy"), 2, overlay)


def test_files_of_a_launcher_are_for_their_owner_alone(tmp_path: Path) -> None:
    launch.write_files({"hostfile": "a\n"}, tmp_path)
    assert (tmp_path / "hostfile").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "hostfile").read_text() == "a\n"


def test_any_executable_runs_once_on_each_node(tmp_path: Path) -> None:
    program = Program(
        script="printenv", args=("NODE_RANK", "NODE_COUNT", "RANK", "WORLD_SIZE", "MASTER_ADDR")
    )
    launcher = LauncherOptions(kind="command", processes_per_node=2)
    with Gang(tmp_path, "", nodes=2, launcher=launcher, program=program) as gang:
        assert gang.run() == [0, 0]
        printed = [agent.stdout.read_text().split() for agent in gang.agents]
    assert printed == [["0", "2", "0", "4", "127.0.99.1"], ["1", "2", "2", "4", "127.0.99.1"]]


SAVES_LATE = """
import signal, sys, time
def save(*_):
    time.sleep(2)
    print("saved")
    sys.exit()
signal.signal(signal.SIGTERM, save)
print("ready")
time.sleep(60)
"""


def test_a_launcher_that_ends_at_once_does_not_take_the_last_checkpoint_with_it(tmp_path: Path) -> None:
    impatient = "import subprocess, sys; subprocess.Popen([sys.executable, 'late.py']).wait()"
    with Gang(tmp_path, impatient, limits=Limits(stop_grace=15.0)) as gang:
        gang.code(0).mkdir(parents=True)
        (gang.code(0) / "late.py").write_text(SAVES_LATE)
        (agent,) = gang.start()
        agent.prints("ready")
        agent.signal(signal.SIGTERM)
        assert agent.wait() == 128 + signal.SIGTERM
        assert "saved" in agent.stdout.read_text()
