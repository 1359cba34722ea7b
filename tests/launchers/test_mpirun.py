"""mpirun's command line, what it says of a failure, and a real one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.job import LauncherOptions, Program, Restarts
from airflow_provider_ocidist.launchers import ssh
from airflow_provider_ocidist.launchers.base import Placement, ProcessFailure
from airflow_provider_ocidist.launchers.mpirun import LAUNCHER
from tests.agent.gangs import Gang

ALONE = Placement(
    rank=0,
    nodes=1,
    processes_per_node=4,
    master_address="10.0.0.1",
    address="10.0.0.1",
    addresses=("10.0.0.1",),
    rendezvous_id="run",
    join_timeout=60.0,
    folder="/home/node",
)
FIRST = replace(
    ALONE, nodes=2, addresses=("10.0.0.1", "10.0.0.2"), public_keys=("ssh-ed25519 A", "ssh-ed25519 B")
)
PROGRAM = Program(script="x.py", args=("-np", "9"))
LINE = "-" * 74 + "\n"
EXITED = f"""\
step 3
{LINE}Primary job  terminated normally, but 1 process returned
a non-zero exit code. Per user-direction, the job has been aborted.
{LINE}{LINE}mpirun detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[7143,1],1]
  Exit code:    3
{LINE}"""
KILLED = f"""\
step 3
{LINE}mpirun noticed that process rank 1 with PID 0 on node vm exited on signal 11 (Segmentation fault).
{LINE}"""


def test_a_single_node_needs_no_login() -> None:
    assert LAUNCHER.command(PROGRAM, LauncherOptions(), ALONE) == [
        "mpirun",
        "--np",
        "4",
        "--hostfile",
        "/home/node/hostfile",
        "--map-by",
        "ppr:4:node",
        "--bind-to",
        "none",
        sys.executable,
        "-m",
        "airflow_provider_ocidist.launchers.mpirun",
        "x.py",
        "-np",
        "9",
    ]
    assert LAUNCHER.files(LauncherOptions(), ALONE) == {"hostfile": "localhost slots=4\n"}
    assert LAUNCHER.tools(LauncherOptions(), 1) == ("mpirun",)


def test_the_first_of_several_nodes_starts_the_processes_of_all() -> None:
    serve = [sys.executable, "-I", "-S", ssh.__file__, "serve", "/home/node"]
    first = LAUNCHER.command(PROGRAM, LauncherOptions(), FIRST)
    assert first[:7] == [*serve, "mpirun"]
    assert "-F /home/node/ssh_config" in first
    assert LAUNCHER.command(PROGRAM, LauncherOptions(), replace(FIRST, rank=1)) == serve
    assert LAUNCHER.files(LauncherOptions(), FIRST)["hostfile"] == "10.0.0.1 slots=4\n10.0.0.2 slots=4\n"


@pytest.mark.parametrize("args", [("-np", "2"), ("-n", "2"), ("--np", "2"), ("--n", "2"), ("--np=2",)])
def test_the_users_flags_win_in_every_spelling(args) -> None:
    assert "4" not in LAUNCHER.command(PROGRAM, LauncherOptions(args=args), ALONE)


COUNTING = [(f"{dash}npernode", "2") for dash in ("-", "--")] + [("-N", "2"), ("-pernode",), ("--pernode",)]
MAPPING = [("-map-by", "slot"), ("--map-by", "node"), ("-rf", "ranks"), ("--rankfile", "ranks"), ("-bynode",)]


@pytest.mark.parametrize("args", [*COUNTING, *MAPPING], ids=" ".join)
def test_open_mpi_gets_no_mapping_of_ours_beside_the_users(args) -> None:
    built = LAUNCHER.command(PROGRAM, LauncherOptions(args=args), ALONE)
    assert "ppr:4:node" not in built
    assert ("--np" in built) == (args not in COUNTING)
    assert ("--bind-to" in built) == (args[-1] != "ranks")
    assert [each for each in built if each in args] == list(args)


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed")
def test_open_mpi_takes_the_number_of_processes_that_the_user_gives_for_each_node(tmp_path: Path) -> None:
    placement = replace(ALONE, folder=str(tmp_path))
    options = LauncherOptions(args=("-npernode", "2"))
    for name, text in LAUNCHER.files(options, placement).items():
        (tmp_path / name).write_text(text)
    (tmp_path / "x.py").write_text(
        # At once: what two processes print in parts may mix.
        'import os; os.write(1, f\'rank {os.environ["RANK"]} of {os.environ["WORLD_SIZE"]}\\n\'.encode())'
    )
    command = LAUNCHER.command(Program(script=str(tmp_path / "x.py")), options, placement)
    env = {**os.environ, **LAUNCHER.defaults(placement)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert sorted(done.stdout.splitlines()) == ["rank 0 of 2", "rank 1 of 2"], done.stderr


@pytest.mark.parametrize("output, code", [(EXITED, 3), (KILLED, -11)])
def test_the_failure_is_read_from_its_report(output: str, code: int) -> None:
    assert LAUNCHER.first_failure(output) == ProcessFailure(rank=1, exit_code=code)
    assert LAUNCHER.user_output(output) == "step 3\n"
    assert LAUNCHER.first_failure("step 3") is None
    assert LAUNCHER.user_output("step 3") == "step 3"


needs_mpi = pytest.mark.skipif(
    not (shutil.which("mpirun") and Path("/usr/sbin/sshd").exists()),
    reason="Open MPI and openssh-server are not installed",
)


@needs_mpi
def test_processes_of_two_nodes_know_their_ranks(tmp_path: Path) -> None:
    script = """
import os
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
os.write(1, (" ".join(os.environ[name] for name in names) + "\\n").encode())
"""
    launcher = LauncherOptions(kind="mpirun", processes_per_node=2)
    with Gang(tmp_path, script, nodes=2, launcher=launcher) as gang:
        assert gang.run() == [0, 0], gang.agents[0].stderr.read_text()
        printed = sorted(gang.agents[0].stdout.read_text().splitlines())
    assert printed == [f"{rank} 4 {rank % 2} 2 127.0.99.1" for rank in range(4)]


@needs_mpi
def test_two_nodes_are_launched_again_together(tmp_path: Path) -> None:
    script = """
import os, signal
launch, rank = int(os.environ["OCIDIST_RESTARTS"]), int(os.environ["RANK"])
if rank == 1 and launch < 2:
    print("step:", launch + 1, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
os.write(1, f"launch {launch} rank {rank}\\n".encode())
"""
    launcher = LauncherOptions(kind="mpirun", processes_per_node=1)
    restarts = Restarts(program=2, node=2)
    with Gang(tmp_path, script, nodes=2, launcher=launcher, restarts=restarts) as gang:
        assert gang.run() == [0, 0], gang.agents[0].stderr.read_text()
        printed = gang.agents[0].stdout.read_text().splitlines()
    assert {"launch 2 rank 0", "launch 2 rank 1"} <= set(printed)


ARGUMENTS = (
    "two words",
    "it's",
    'a "quotation"',
    "two\nlines",
    "",
    "--",
    "--name=ü",
    "-np",
    "$HOME",
    "`id`",
    "back\\slash",
    "*",
    "%h",
    ";",
    ":",
    "last",
)


@needs_mpi
@pytest.mark.parametrize("nodes", [1, 2])
def test_arguments_and_variables_reach_every_process_as_they_are(tmp_path: Path, nodes: int) -> None:
    script = """
import json, os, pathlib, sys
said = [os.environ["RANK"], sys.argv[1:], os.environ["ODD"], os.environ["EMPTY"]]
pathlib.Path(os.environ["OCIDIST_CODE_DIR"], os.environ["RANK"]).write_text(json.dumps(said))
"""
    launcher = LauncherOptions(kind="mpirun", processes_per_node=1)
    odd = "a b\n'\"$HOME; é"
    with Gang(tmp_path, script, nodes=nodes, launcher=launcher, args=ARGUMENTS) as gang:
        gang.start(ODD=odd, EMPTY="")
        assert [agent.wait() for agent in gang.agents] == [0] * nodes, gang.agents[0].stderr.read_text()
        said = [json.loads((gang.code(rank) / str(rank)).read_text()) for rank in range(nodes)]
    assert said == [[str(rank), list(ARGUMENTS), odd, ""] for rank in range(nodes)]


@needs_mpi
def test_the_first_node_alone_logs_in_however_many_nodes_there_are(tmp_path: Path) -> None:
    logins, program = tmp_path / "logins", tmp_path / "bin/ssh"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$OCIDIST_NODE_RANK" >> {logins}\nexec {shutil.which("ssh")} "$@"\n')
    program.chmod(0o755)
    launcher = LauncherOptions(kind="mpirun", processes_per_node=1)
    with Gang(tmp_path, "print('trained')", nodes=4, launcher=launcher) as gang:
        # By default so from 64 nodes on: those that have been reached reach the next ones.
        path = f"{program.parent}:{os.environ['PATH']}"
        gang.start(OMPI_MCA_routed="radix", OMPI_MCA_routed_radix="1", PATH=path)
        assert [agent.wait() for agent in gang.agents] == [0] * 4, gang.agents[0].stderr.read_text()
        assert gang.agents[0].stdout.read_text().count("trained") == 4
    # On machines of their own, the others have no key that is let in, and no settings of the first.
    assert set(logins.read_text().split()) == {"0"}


@needs_mpi
def test_a_node_that_is_lost_is_no_fault_of_the_program(tmp_path: Path) -> None:
    script = "import time\nprint('begun', flush=True)\ntime.sleep(600)"
    launcher = LauncherOptions(kind="mpirun", processes_per_node=1)
    with Gang(tmp_path, script, nodes=2, launcher=launcher) as gang:
        first, second = gang.start()
        first.shows(lambda: first.stdout.read_text().count("begun") == 2)
        second.process.kill()
        first.wait()
        print(first.stderr.read_text())
        assert first.report.cause is Cause.NODE


@needs_mpi
def test_a_node_that_cannot_be_logged_in_to_is_no_fault_of_the_program(tmp_path: Path) -> None:
    program = tmp_path / "bin/ssh"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'ssh: connect to host 10.0.0.2: Connection refused' >&2\nexit 255\n")
    program.chmod(0o755)
    launcher = LauncherOptions(kind="mpirun", processes_per_node=1)
    with Gang(tmp_path, "print('trained')", nodes=2, launcher=launcher) as gang:
        first, _ = gang.start(PATH=f"{program.parent}:{os.environ['PATH']}")
        first.wait()
        print(first.stderr.read_text())
        assert first.report.cause is Cause.NODE
