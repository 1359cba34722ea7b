"""The guard between agent and training: it ends all when the agent is gone, and ends as its command ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent import guard
from airflow_provider_ocidist.backports import Self
from tests.agent.gangs import until

SH = "/bin/sh"
DUMPING_CORES = (SH, "-c", 'ulimit -S -c "$(ulimit -H -c)"; exec "$@"', SH)
PATIENCE = 20.0
SEED = int(os.environ.get("TEST_SEED", "20261128"))


class Guarded:
    """A command behind a guard. Leaving the context lets go of it, as an agent that ends."""

    def __init__(
        self, *command: str, folder: Path | None = None, script: Sequence[str] = (guard.__file__,)
    ) -> None:
        read_end, self.leash = os.pipe()
        self.process = subprocess.Popen(
            [*DUMPING_CORES, sys.executable, "-I", "-S", *script, str(read_end), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            pass_fds=[read_end],
            start_new_session=True,
        )
        os.close(read_end)

    def line(self) -> str:
        """Return the next line that the command prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def let_go(self) -> None:
        if self.leash >= 0:
            os.close(self.leash)
            self.leash = -1

    def ended(self) -> int:
        return self.process.wait(PATIENCE)

    def said(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def below(self) -> list[int]:
        return guard.descendants(self.process.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.let_go()
        try:
            self.process.wait(PATIENCE)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            for stream in (self.process.stdout, self.process.stderr):
                assert stream is not None
                stream.close()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.fixture
def kept() -> Iterator[None]:
    """Orphans come to the test's process, as they come to an agent."""
    guard.prctl(guard.PR_SET_CHILD_SUBREAPER, 1)
    yield
    guard.prctl(guard.PR_SET_CHILD_SUBREAPER, 0)


# It ends as its command ends


@pytest.mark.parametrize("code", [0, 1, 3, 255])
def test_it_exits_as_its_command(code: int) -> None:
    with Guarded(SH, "-c", f"exit {code}") as guarded:
        assert guarded.ended() == code


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGINT", "SIGSEGV", "SIGABRT", "SIGPIPE", "SIGXFSZ"])
def test_it_ends_by_the_signal_that_ended_its_command_without_a_core_of_its_own(
    name: str, tmp_path: Path
) -> None:
    with Guarded(SH, "-c", f"ulimit -c 0; kill -{name[3:]} $$", folder=tmp_path) as guarded:
        # The status itself, which says whether a core was dumped.
        _, status = os.waitpid(guarded.process.pid, 0)
        guarded.process.returncode = os.waitstatus_to_exitcode(status)
    assert guarded.process.returncode == -signal.Signals[name]
    assert not os.WCOREDUMP(status)
    assert list(tmp_path.iterdir()) == []


def test_a_command_that_is_not_there_is_named_and_gives_127() -> None:
    with Guarded("/not/there", "x") as guarded:
        assert guarded.ended() == 127
        assert guarded.said() == "/not/there: No such file or directory\n"


def test_the_command_gets_its_arguments_and_is_found_on_the_path() -> None:
    with Guarded("printf", "%s|", "a b", "", "c") as guarded:
        assert guarded.line() == "a b||c|"
        assert guarded.ended() == 0


def test_the_command_ignores_no_signal_and_does_not_hold_the_leash(tmp_path: Path) -> None:
    # The shell itself would reset some signals.
    with Guarded("cat", "/proc/self/status") as guarded:
        assert guarded.process.stdout is not None
        status = dict(line.split(":\t", 1) for line in guarded.process.stdout if ":\t" in line)
    # A shell that starts this in the background has its jobs ignore SIGQUIT.
    inherited = int(
        dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines())["SigIgn"],
        16,
    )
    pythons = 1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1
    assert int(status["SigIgn"], 16) & ~(inherited & ~pythons) == 0
    assert int(status["SigBlk"], 16) == 0
    with Guarded("ls", "-l", "/proc/self/fd") as guarded:
        assert guarded.process.stdout is not None
        pipes = {line.split()[-1] for line in guarded.process.stdout if "pipe:" in line}
    assert len(pipes) == 2, "its own stdout and stderr"


# When the agent is gone, all is gone

TREE = """
trap '' TERM INT HUP
setsid sh -c 'trap "" TERM; while :; do sleep 100; done' &
(setsid sh -c 'trap "" TERM; while :; do sleep 100; done' &)
echo ready
while :; do sleep 100; done
"""


def test_when_the_leash_is_let_go_nothing_is_left() -> None:
    with Guarded(SH, "-c", TREE) as guarded:
        assert guarded.line() == "ready"
        until(lambda: len(guarded.below()) >= 6)
        processes = guarded.below()
        guarded.let_go()
        assert guarded.ended() == -signal.SIGKILL
        assert [pid for pid in processes if alive(pid)] == []


def test_what_starts_others_again_and_again_is_ended_too() -> None:
    script = "spawn() { sh -c 'sleep 100' & }; echo ready; while :; do spawn; sleep 0.01; done"
    with Guarded(SH, "-c", script) as guarded:
        guarded.line()
        until(lambda: len(guarded.below()) > 10)
        guarded.let_go()
        assert guarded.ended() == -signal.SIGKILL
        assert guarded.below() == []


def test_bytes_on_the_leash_mean_nothing() -> None:
    with Guarded(SH, "-c", "echo ready; sleep 0.3; echo alive") as guarded:
        guarded.line()
        os.write(guarded.leash, b"0\n")
        assert guarded.line() == "alive"
        assert guarded.ended() == 0


def test_when_the_guard_itself_is_killed_its_command_dies(kept: None) -> None:
    with Guarded(SH, "-c", "echo $$; while :; do sleep 100; done") as guarded:
        child = int(guarded.line())
        guarded.process.kill()
        assert guarded.ended() == -signal.SIGKILL
        until(lambda: not alive(child), PATIENCE)
        # Adopted by this process, which has other children: only this one is reaped.
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)


# Signals for the training


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_for_the_training_does_not_end_the_guard(number: signal.Signals) -> None:
    script = f"trap 'echo told; exit 4' {number.name[3:]}; echo ready; while :; do sleep 0.05; done"
    with Guarded(SH, "-c", script) as guarded:
        guarded.line()
        os.killpg(guarded.process.pid, number)
        assert guarded.line() == "told"
        assert guarded.ended() == 4


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_comes_before_the_command_has_begun_ends_it_all_the_same(
    number: signal.Signals, kept: None
) -> None:
    # As on a busy machine: the child has to wait for its turn until it becomes the command.
    slow = (
        "import os, time; become = guard.os.execvp\n"
        "guard.os.execvp = lambda *words: (os.write(1, b'begins\\n'), time.sleep(1.0), become(*words))"
    )
    with Guarded("sleep", "100", script=with_change(slow)) as guarded:
        assert guarded.line() == "begins"
        os.killpg(guarded.process.pid, number)
        assert guarded.ended() == -number


def test_a_signal_in_any_moment_of_the_guards_own_start_ends_the_command() -> None:
    draw = random.Random(f"{SEED}.start")
    for _ in range(12):
        after = draw.uniform(0.0, 0.12)
        with Guarded("sleep", "100") as guarded:
            time.sleep(after)
            os.killpg(guarded.process.pid, signal.SIGTERM)
            assert guarded.ended() == -signal.SIGTERM, f"seed {SEED}: {after=}"


def test_who_saves_after_a_launcher_that_was_asked_to_end_has_the_time_that_the_agent_gives() -> None:
    # The launcher ends at once; what it started takes longer than what is left behind otherwise may.
    script = (
        "trap 'exit 0' TERM; (trap '' TERM; echo ready; sleep 2.5; echo saved) & while :; do sleep 0.05; done"
    )
    with Guarded(SH, "-c", script) as guarded:
        guarded.line()
        os.killpg(guarded.process.pid, signal.SIGTERM)
        assert guarded.line() == "saved"
        assert guarded.ended() == 0


# What the command leaves behind


def test_what_is_left_behind_may_end_by_itself_within_a_second() -> None:
    assert guard.LEFTOVER_GRACE == 1.0
    with Guarded(SH, "-c", "(setsid sh -c 'sleep 0.4; echo uploaded' &) ; exit 5") as guarded:
        assert guarded.line() == "uploaded"
        assert guarded.ended() == 5


def test_what_is_left_behind_for_longer_is_ended_before_the_guard_ends() -> None:
    with Guarded(SH, "-c", "(setsid sh -c 'echo $$; sleep 100' &) ; exit 5") as guarded:
        began = time.monotonic()
        left = int(guarded.line())
        assert guarded.ended() == 5
        assert not alive(left)
        assert 0.8 < time.monotonic() - began < PATIENCE


def with_graces(leftover: float, writer: float) -> tuple[str, ...]:
    """Return the guard with other limits, as Python takes it."""
    return with_change(f"guard.LEFTOVER_GRACE, guard.WRITER_GRACE = {leftover}, {writer}")


def with_change(change: str) -> tuple[str, ...]:
    """Return the guard with a change of its module, `guard`, as Python takes it."""
    code = (
        "import sys, importlib.util as util\n"
        f"spec = util.spec_from_file_location('guard', {guard.__file__!r})\n"
        "guard = util.module_from_spec(spec)\n"
        "spec.loader.exec_module(guard)\n"
        f"{change}\n"
        "sys.exit(guard._end_like(guard.main(sys.argv[1:])))"
    )
    return "-c", code


def left_with(file: Path, then: str, how: str = ">", code: int = 0) -> str:
    """Return a program that leaves behind a process which has a file open, and does something then."""
    opened = file.with_name("opened")
    return (
        f"(exec 3{how} {file}; touch {opened}; {then}) & "
        f"while [ ! -e {opened} ]; do sleep 0.01; done; exit {code}"
    )


@pytest.fixture
def checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(guard.CHECKPOINTS, str(tmp_path / "checkpoints"))
    (tmp_path / "checkpoints" / "step-1").mkdir(parents=True)
    return tmp_path / "checkpoints"


def test_what_is_left_behind_and_writes_a_checkpoint_is_waited_for(checkpoints: Path) -> None:
    assert guard.WRITER_GRACE == 60.0
    file = checkpoints / "step-1" / "model.bin"
    program = left_with(file, "echo half >&3; sleep 0.3; echo whole >&3")
    with Guarded(SH, "-c", program, script=with_graces(0.02, 60.0)) as guarded:
        assert guarded.ended() == 0
    assert file.read_text() == "half\nwhole\n"


def test_after_a_failure_nobody_who_writes_a_checkpoint_is_waited_for(checkpoints: Path) -> None:
    """The other nodes wait for some seconds for the reason; what this one names later comes too late."""
    program = left_with(checkpoints / "step-1.bin", "sleep 100", code=3)
    with Guarded(SH, "-c", program, script=with_graces(0.02, 60.0)) as guarded:
        assert guarded.ended() == 3


def test_a_left_writer_that_goes_on_with_the_next_file_is_waited_for(checkpoints: Path) -> None:
    first, second = checkpoints / "step-1" / "1.bin", checkpoints / "step-1" / "2.bin"
    then = f"sleep 0.6; exec 3>&-; sleep 0.1; exec 3> {second}; sleep 0.6; echo whole >&3"
    program = left_with(first, then)
    with Guarded(SH, "-c", program, script=with_graces(0.4, 60.0)) as guarded:
        assert guarded.ended() == 0
    assert second.read_text() == "whole\n"


def test_a_guard_that_waits_for_such_a_process_shows_it(checkpoints: Path) -> None:
    file = checkpoints / "step-1.bin"
    program = left_with(file, "sleep 100")
    with Guarded(SH, "-c", program, script=with_graces(0.02, 60.0)) as guarded:
        until(lambda: guard.awaits_writers(guarded.process.pid))
        file.unlink()
        assert guarded.ended() == 0
    assert not guard.awaits_writers(guarded.process.pid)


def test_what_is_left_behind_and_writes_to_a_deleted_file_is_not_waited_for(checkpoints: Path) -> None:
    file = checkpoints / "step-1.bin"
    program = left_with(file, f"rm {file}; sleep 100")
    with Guarded(SH, "-c", program, script=with_graces(0.4, 60.0)) as guarded:
        assert guarded.ended() == 0


@pytest.mark.parametrize("code", [0, 3])
def test_a_program_whose_left_writer_has_to_be_killed_has_not_exited_with_0(
    checkpoints: Path, code: int
) -> None:
    program = left_with(checkpoints / "step-1.bin", "sleep 100", code=code)
    with Guarded(SH, "-c", program, script=with_graces(0.02, 0.1)) as guarded:
        assert guarded.ended() == (code or -signal.SIGKILL)
        assert ("still writing a checkpoint and were killed" in guarded.said()) == (code == 0)


@pytest.mark.parametrize(
    "name, how",
    [
        ("checkpoints/train.log", ">"),
        ("checkpoints/wandb/run-1.wandb", ">"),
        ("checkpoints/runs/events.out.tfevents.1", ">"),
        ("checkpoints/step-1.bin", "<"),
        ("elsewhere.bin", ">"),
        ("checkpoints-of-others.bin", ">"),
    ],
)
def test_what_is_left_behind_and_writes_no_checkpoint_is_not_waited_for(
    checkpoints: Path, name: str, how: str
) -> None:
    file = checkpoints.parent / name
    file.parent.mkdir(exist_ok=True)
    file.touch()
    with Guarded(SH, "-c", left_with(file, "sleep 100", how), script=with_graces(0.02, 60.0)) as guarded:
        assert guarded.ended() == 0


def test_orphans_that_end_before_the_command_do_not_end_the_guard() -> None:
    with Guarded(SH, "-c", "(setsid sh -c 'exit 3' &) ; sleep 0.4; exit 6") as guarded:
        assert guarded.ended() == 6


# Descendants


def children_named(folder: Path, name: str) -> subprocess.Popen[bytes]:
    program = folder / name
    shutil.copy("/bin/sleep", program)
    return subprocess.Popen([str(program), "100"])


def test_descendants_are_all_that_live_below_the_nearest_first(tmp_path: Path) -> None:
    script = "sh -c 'sh -c \"sleep 100; :\"; :' & echo ready; wait; :"
    with subprocess.Popen([SH, "-c", script], stdout=subprocess.PIPE) as process:
        try:
            until(lambda: len(guard.descendants(process.pid)) == 3)
            found = guard.descendants(process.pid)
            parents = [guard.state_and_parent(pid)[1] for pid in found]
            assert parents == [process.pid, *found[:2]]
            assert process.pid in guard.descendants(os.getpid())
            guard.kill_descendants(process.pid)
            until(lambda: guard.descendants(process.pid) == [])
            assert not set(found) & set(guard.descendants(os.getpid())), "a zombie does not live"
        finally:
            process.kill()


@pytest.mark.parametrize("name", ["x) Z 1 (y", "a b", "((", "))"])
def test_a_process_may_be_named_anything(tmp_path: Path, name: str) -> None:
    process = children_named(tmp_path, name)
    try:
        assert process.pid in guard.descendants(os.getpid())
        assert guard.state_and_parent(process.pid)[1] == os.getpid()
    finally:
        process.kill()
        process.wait()


def test_the_dead_are_no_descendants() -> None:
    process = subprocess.Popen([SH, "-c", "exit 0"])
    until(lambda: not alive(process.pid))
    assert guard.state_and_parent(process.pid)[0] == "Z"
    assert process.pid not in guard.descendants(os.getpid())
    process.wait()
    assert guard.state_and_parent(process.pid) == ("X", 0)


def test_killing_goes_on_after_one_that_is_already_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = [subprocess.Popen(["sleep", "100"]) for _ in range(2)]
    gone = subprocess.Popen(["true"])
    gone.wait()
    pids = [gone.pid, *(process.pid for process in processes)]
    monkeypatch.setattr(guard, "descendants", lambda _: pids)
    guard.kill_descendants(0)
    assert [process.wait(PATIENCE) for process in processes] == [-signal.SIGKILL] * 2


def test_a_command_whose_guard_has_died_before_it_began_does_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As the child sees it whose parent has died since the fork.
    monkeypatch.setattr(guard.os, "getppid", lambda: 1)
    child = guard._start([SH, "-c", f"echo begun > {tmp_path}/begun"], lambda: None)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 137
    assert list(tmp_path.iterdir()) == []


def test_prctl_reaches_the_kernel() -> None:
    found = ctypes.c_int()
    for value in (1, 0):
        guard.prctl(guard.PR_SET_CHILD_SUBREAPER, value)
        ctypes.CDLL(None).prctl(37, ctypes.byref(found), 0, 0, 0)  # PR_GET_CHILD_SUBREAPER
        assert found.value == value
