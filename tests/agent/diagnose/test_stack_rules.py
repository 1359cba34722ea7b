"""What stacks show of a training that hangs: pure rules, each by itself."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.agent.diagnose import stacks
from airflow_provider_ocidist.agent.diagnose.stacks import (
    INNERMOST,
    NAMED,
    ProcessStack,
    as_text,
    catches,
    frames_shown,
    main_frames,
    odd_ones,
    process_stack_of,
    stack_positions,
    take,
    two_positions,
)
from airflow_provider_ocidist.model.report import StackPosition

SEEDS = range(12)
COLLECTIVES = ("all_reduce (distributed_c10d.py:3245)", "_engine_run_backward (graph.py:841)")


def a_stack(
    rank: int | None = None, text: str = "", pid: int = 7, command: str = "python a.py"
) -> ProcessStack:
    return ProcessStack(pid=pid, rank=rank, state="S (sleeping), 2 threads", command=command, text=text)


def spied(name: str, functions: int, first: int = 1) -> str:
    """Return a thread as py-spy writes it, of so many functions: f1 innermost."""
    frames = (f"    f{number} (/code/a.py:{number})" for number in range(first, first + functions))
    return "\n".join([f'Thread 9 (idle): "{name}"', *frames]) + "\n"


def named(first: int, functions: int) -> tuple[str, ...]:
    return tuple(f"f{number} (a.py:{number})" for number in range(first, first + functions))


def positions(*at: tuple[str, ...]) -> list[StackPosition]:
    return [StackPosition(rank=rank, at=each) for rank, each in enumerate(at)]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_main_thread_is_found_by_its_name_wherever_it_stands_and_by_its_place_where_none_is_named(
    seed: int,
) -> None:
    dice = random.Random(seed)
    sizes = [dice.randint(1, 8) for _ in range(dice.randint(1, 5))]
    main = dice.randrange(len(sizes))
    begins = [1 + 10 * each for each in range(len(sizes))]
    names = ["MainThread" if each == main else f"worker {each}" for each in range(len(sizes))]
    text = "Process 9: python\n" + "\n".join(map(spied, names, sizes, begins))
    assert main_frames(text) == named(begins[main], sizes[main])
    unnamed = "\n".join(map(spied, ["pool"] * len(sizes), sizes, begins))
    assert main_frames(unnamed) == named(begins[-1], sizes[-1])
    forked = "\n".join(map(spied, ["MainThread"] * len(sizes), sizes, begins))
    assert main_frames(forked) == named(begins[0], sizes[0])


def test_what_is_no_function_is_none_and_a_stack_needs_no_thread_before_it() -> None:
    text = (
        '  File "/usr/lib/a.py", line 12 in <lambda>\n  and a remark\n  File without a line\n  g (b/c.py:3)\n'
    )
    assert main_frames(text) == ("<lambda> (a.py:12)", "g (c.py:3)")


@pytest.mark.parametrize("functions", [1, INNERMOST - 1, INNERMOST, INNERMOST + 1, 3 * INNERMOST])
def test_a_line_shows_the_innermost_functions_only(functions: int) -> None:
    shown = named(1, min(functions, INNERMOST))
    assert frames_shown(named(1, functions)) == f"; in {', in '.join(shown)}"
    (position,) = stack_positions([a_stack(3, spied("MainThread", functions))])
    assert position == StackPosition(rank=3, at=shown)


def test_a_process_is_described_by_its_rank_command_state_and_functions() -> None:
    long = "python " + "x" * 100
    assert a_stack().line == "process 7 (python a.py): S (sleeping), 2 threads"
    assert a_stack(0, spied("MainThread", 2), command=long).line == (
        f"rank 0 (process 7) ({long[:80]}): S (sleeping), 2 threads; in f1 (a.py:1), in f2 (a.py:2)"
    )
    first, second = a_stack(0, "Thread 9\n  f1 (a.py:1)\n\n"), a_stack(1)
    assert as_text([first, second]) == f"{first.line}\nThread 9\n  f1 (a.py:1)\n\n{second.line}\n"
    assert as_text([]) == "\n"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_rank_stands_where_its_first_process_that_shows_something_does(seed: int) -> None:
    dice = random.Random(seed)
    stacks, expected = [], {}
    for pid in range(dice.randint(1, 12)):
        rank, shows = dice.choice([None, 0, 1, 2, 10]), dice.random() < 0.5
        stacks.append(a_stack(rank, spied("MainThread", 1, pid + 1) if shows else "", pid))
        if rank is not None and not expected.get(rank):
            expected[rank] = named(pid + 1, 1) if shows else ()
    assert stack_positions(stacks) == tuple(
        StackPosition(rank=rank, at=expected[rank]) for rank in sorted(expected)
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_ranks_stand_out_where_half_of_all_wait_for_them_in_whatever_function_the_wait_is(seed: int) -> None:
    dice = random.Random(seed)
    ranks = dice.randint(2, 12)
    waiting = dice.randint(-(-ranks // 2), ranks - 1)
    waits = tuple((*named(1, dice.randint(0, 3)), dice.choice(COLLECTIVES)) for _ in range(waiting))
    # Those of whom nobody knows which rank they are count neither way.
    unranked = [StackPosition(rank=None, at=("h (c.py:1)",))] * dice.randint(0, ranks)
    odd = [(f"g{rank} (b.py:{rank})", "outer (b.py:99)") for rank in range(waiting, ranks)]
    found = odd_ones([*unranked, *positions(*waits, *odd)])
    said = [f"rank {waiting + at} stands in {', in '.join(each)}" for at, each in enumerate(odd[:NAMED])]
    more = f" and {len(odd) - NAMED} more" if len(odd) > NAMED else ""
    assert found == f"{'; '.join(said)}{more}, while {waiting} of {ranks} ranks wait for them"


@pytest.mark.parametrize(
    "alike, others, stands_out", [(3, 2, True), (2, 2, False), (2, 1, True), (5, 0, False)]
)
def test_ranks_stand_out_where_more_than_half_of_all_stand_in_one_place(
    alike: int, others: int, *, stands_out: bool
) -> None:
    apart = [(f"g{number} (b.py:{number})",) for number in range(others)]
    found = odd_ones(positions(*[named(1, 2)] * alike, *apart))
    assert (found is not None) == stands_out
    if found:
        assert found.endswith(f", while {alike} of {alike + others} ranks stand in f1 (a.py:1)")
        assert found.startswith(f"rank {alike} stands in g0 (b.py:0)")


def test_where_most_ranks_answer_nothing_those_that_do_stand_out() -> None:
    assert odd_ones(positions((), (), named(1, 1))) == (
        "rank 2 stands in f1 (a.py:1), while 2 of 3 ranks stand in an unknown place"
    )


def test_fewer_than_half_that_wait_are_a_place_like_another() -> None:
    waits, works = (COLLECTIVES[0],), named(1, 1)
    assert odd_ones(positions(waits, works, works, works)) == (
        f"rank 0 stands in {COLLECTIVES[0]}, while 3 of 4 ranks stand in f1 (a.py:1)"
    )


HERE, THERE = ("f1 (a.py:1)",), (COLLECTIVES[0], "f2 (a.py:2)")


@pytest.mark.parametrize(
    "first, second, said",
    [
        (HERE, HERE, "no stack shows which of the two ranks that run waits for others"),
        (HERE, THERE, "rank 11 waits for others, and rank 2 does not"),
        (THERE, HERE, "rank 2 waits for others, and rank 11 does not"),
        (THERE, (), "rank 2 waits for others, and rank 11 does not answer"),
        (THERE, THERE, "both ranks that run wait for others"),
    ],
)
def test_of_two_ranks_both_are_shown_in_order(
    first: tuple[str, ...], second: tuple[str, ...], said: str
) -> None:
    def shown(rank: int, at: tuple[str, ...]) -> str:
        return f"rank {rank} stands in {', in '.join(at)}" if at else f"rank {rank} does not answer"

    both = [StackPosition(rank=11, at=second), StackPosition(rank=2, at=first)]
    for each in (both, both[::-1]):
        assert two_positions(each) == f"{said}: {shown(2, first)}; {shown(11, second)}"
        assert two_positions(each[:1]) is None
        assert two_positions([*each, StackPosition(rank=3, at=HERE)]) is None


def test_of_two_processes_the_one_without_a_rank_is_shown_first() -> None:
    both = [StackPosition(rank=0, at=HERE), StackPosition(rank=None, at=HERE)]
    assert (two_positions(both) or "").partition(": ")[2].startswith("rank None stands in")


@pytest.mark.parametrize("seed", SEEDS)
def test_the_nearest_process_of_each_rank_comes_first_and_all_others_as_they_were(seed: int) -> None:
    dice = random.Random(seed)
    found = [a_stack(dice.choice([None, 0, 1, 2]), pid=pid) for pid in range(dice.randint(0, 12))]
    nearest = [
        each
        for at, each in enumerate(found)
        if each.rank is not None and each.rank not in [before.rank for before in found[:at]]
    ]
    assert stacks._ranks_first(found) == [*nearest, *(each for each in found if each not in nearest)]


# What the kernel shows


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process of rank 12 that does nothing."""
    with subprocess.Popen(["sleep", "100"], env={**os.environ, "RANKS": "7", "RANK": "12"}) as process:
        yield process
        process.kill()


def is_asleep(pid: int) -> bool:
    found = process_stack_of(pid)
    return found is not None and found.command == "sleep 100" and found.state.startswith("S (sleeping)")


def test_a_process_is_described_as_the_kernel_sees_it(sleeper: subprocess.Popen[bytes]) -> None:
    while not is_asleep(sleeper.pid):
        time.sleep(0.01)
    found = process_stack_of(sleeper.pid)
    assert found is not None
    assert (found.pid, found.rank, found.command, found.text) == (sleeper.pid, 12, "sleep 100", "")
    # Some kernels do not show in what it waits.
    assert re.fullmatch(r"S \(sleeping\)( in \w+)?, 1 threads", found.state)
    own = process_stack_of(os.getpid())
    assert own is not None
    assert re.fullmatch(r"R \(running\), \d+ threads", own.state)
    sleeper.kill()
    sleeper.wait()
    assert process_stack_of(sleeper.pid) is None


@pytest.mark.parametrize("name", ["trainiert-auf-ähren", "x訓練訓練訓練", "\udcff\udcfe"])
def test_a_process_is_shown_though_the_kernel_cuts_its_name_within_a_character(name: str) -> None:
    # It keeps 15 bytes; the last of these is no text at all.
    program = (
        f"import signal; signal.signal({int(stacks.STACK_SIGNAL)}, lambda *_: None)\n"
        f"with open('/proc/self/comm', 'wb') as file: file.write({os.fsencode(name)!r})\n"
        "print('named', flush=True); signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"named\n"
        try:
            found, caught = process_stack_of(process.pid), catches(process.pid, stacks.STACK_SIGNAL)
        finally:
            process.kill()
    assert found is not None
    assert caught, "it is not to be ended for its stacks"
    assert re.fullmatch(r"[RS] \(\w+\)( in \w+)?, 1 threads", found.state)


@pytest.mark.parametrize("rank", ["", "first", "-1", None])
def test_a_process_whose_environment_names_no_rank_has_none(rank: str | None) -> None:
    environ = {name: value for name, value in os.environ.items() if name != "RANK"}
    with subprocess.Popen(
        ["sleep", "100"], env=environ | ({} if rank is None else {"RANK": rank})
    ) as process:
        found = process_stack_of(process.pid)
        process.kill()
    assert found is not None
    assert found.rank is None


@pytest.mark.parametrize("number", [signal.SIGURG, stacks.STACK_SIGNAL])
def test_a_signal_is_caught_where_a_handler_is_for_it(sleeper: subprocess.Popen[bytes], number: int) -> None:
    assert not catches(os.getpid(), number)
    before = signal.signal(number, lambda *_: None)
    try:
        assert catches(os.getpid(), number)
        assert not catches(os.getpid(), number + 1)
        assert not catches(os.getpid(), number - 1)
        assert not catches(sleeper.pid, number)
    finally:
        signal.signal(number, before)
    sleeper.kill()
    sleeper.wait()
    assert not catches(sleeper.pid, number), "it is gone"


def test_the_threads_that_block_a_signal_are_those_that_do() -> None:
    ready, release = threading.Event(), threading.Event()
    others = stacks._blocking(os.getpid(), stacks.STACK_SIGNAL)
    known: list[int] = []

    def block() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {stacks.STACK_SIGNAL})
        known.append(threading.get_native_id())
        ready.set()
        release.wait(60)

    thread = threading.Thread(target=block)
    thread.start()
    assert ready.wait(60)
    try:
        tasks = Path(f"/proc/{os.getpid()}/task")
        assert {tasks / str(known[0]), tasks / str(os.getpid())} <= stacks._threads(os.getpid())
        assert stacks._blocking(os.getpid(), stacks.STACK_SIGNAL) - others == {tasks / str(known[0])}
    finally:
        release.set()
        thread.join()


# The files that processes answer into


def test_a_process_answers_into_the_file_of_its_node_that_it_has_open(tmp_path: Path) -> None:
    stack_file = tmp_path / "stacks"
    (tmp_path / "link").symlink_to(tmp_path)
    for other in ("stacks", "stackswrong.1", "other.1"):
        with (tmp_path / other).open("w"):
            assert stacks._answers_into(os.getpid(), stack_file) is None
    with (tmp_path / "stacks.7").open("w"):
        assert stacks._answers_into(os.getpid(), stack_file) == tmp_path / "stacks.7"
        assert stacks._answers_into(os.getpid(), tmp_path / "link" / "stacks") == tmp_path / "stacks.7"
    assert stacks._answers_into(os.getpid(), stack_file) is None


def test_a_process_that_is_gone_or_has_no_handler_answers_nothing_at_once(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    file, until = tmp_path / "stacks.1", time.monotonic() + 1000
    file.write_text("of one before")
    assert stacks._ask(sleeper.pid, file, until) == ""
    assert sleeper.poll() is None, "it would be ended by the signal"
    sleeper.kill()
    sleeper.wait()
    assert stacks._ask(sleeper.pid, file, until) == ""
    assert stacks._answers_into(sleeper.pid, tmp_path / "stacks") is None
    assert stacks._answer(sleeper.pid, tmp_path / "stacks", until, set()) == ""


ANSWERS = """
import signal, sys, time

def answer(number, frame):
    with open(sys.argv[1], "a") as file:
        file.write("it stands here")

signal.signal(int(sys.argv[2]), answer)
print("ready", flush=True)
time.sleep(100)
"""


@pytest.mark.parametrize("before", ["of one before\n", "", None], ids=["some", "empty", "none"])
def test_an_answer_is_all_that_the_process_has_written_since_it_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    # A busy machine lets it wait.
    monkeypatch.setattr(stacks, "ANSWER_LIMIT", 100.0)
    file = tmp_path / "stacks.1"
    if before is not None:
        file.write_text(before)
    command = [sys.executable, "-S", "-c", ANSWERS, str(file), str(int(stacks.STACK_SIGNAL))]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            assert stacks._ask(process.pid, file, time.monotonic() + 1000) == "it stands here"
        finally:
            process.kill()


# py-spy


def a_spy(folder: Path, script: str) -> str:
    spy = folder / "py-spy"
    spy.write_text(f"#!/bin/sh\n{script}\n")
    spy.chmod(0o755)
    return str(spy)


@pytest.mark.parametrize(
    "script, shown",
    [
        ('echo "$@"', "dump --pid 7\n"),
        ('echo "$@"; exit 1', ""),
        ("printf 'a\\377'", ""),
        ("exec sleep 100", ""),
        ('echo "it says" >&2; echo shown', "shown\n"),
    ],
    ids=["shows", "fails", "no text", "hangs", "says"],
)
def test_what_py_spy_shows_counts_only_where_it_could(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], script: str, shown: str
) -> None:
    spy = a_spy(tmp_path, script)
    assert stacks._dump(spy, 7, time.monotonic() + (0.3 if "sleep" in script else 60)) == shown
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "script", ["exec sleep 100", "printf 'a\\377'", "echo shown"], ids=["hangs", "no text", "shows"]
)
def test_what_py_spy_shows_is_read_through_no_file_that_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    spy, begin, begun = a_spy(tmp_path, script), subprocess.Popen, list[subprocess.Popen[str]]()

    def noted(*command: Any, **options: Any) -> subprocess.Popen[str]:
        begun.append(begin(*command, **options))
        return begun[-1]

    monkeypatch.setattr(subprocess, "Popen", noted)
    stacks._dump(spy, 7, time.monotonic() + (0.3 if "sleep" in script else 60))
    (process,) = begun
    assert process.stdout is not None
    assert process.stdout.closed
    assert process.returncode is not None, "it was waited for"


def test_py_spy_is_not_begun_when_its_time_is_over_or_where_it_cannot_be(tmp_path: Path) -> None:
    spy = a_spy(tmp_path, f"touch {tmp_path}/begun; echo shown")
    assert stacks._dump(spy, 7, time.monotonic()) == ""
    assert not (tmp_path / "begun").exists()
    (tmp_path / "py-spy").chmod(0o644)
    assert stacks._dump(spy, 7, time.monotonic() + 60) == ""
    assert stacks._spy([1, 2], None, time.monotonic() + 60) == {}


def test_py_spy_looks_at_four_at_a_time_and_each_has_what_was_shown_of_it(tmp_path: Path) -> None:
    running = tmp_path / "running"
    running.mkdir()
    spy = a_spy(
        tmp_path, f"mkdir {running}/$3; ls {running} | wc -l; sleep 0.05; echo of $3; rmdir {running}/$3"
    )
    found = stacks._spy(range(1, 13), spy, time.monotonic() + 60)
    assert {pid: text.split("\n")[1] for pid, text in found.items()} == {
        pid: f"of {pid}" for pid in range(1, 13)
    }
    assert max(int(text.split("\n")[0]) for text in found.values()) <= 4


# All of it


def printing_at_the_end(first: str) -> subprocess.Popen[str]:
    """Start a program that prints its stacks as it is aborted, once it is ready."""
    script = f"import signal, time\n{first}\nprint('ready', flush=True)\ntime.sleep(100)"
    command = [sys.executable, "-X", "faulthandler", "-S", "-c", script]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_only_processes_that_can_show_nothing_else_are_ended_for_their_stacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sleeper: subprocess.Popen[bytes]
) -> None:
    monkeypatch.setattr(stacks, "ABORT_TIME", 0.05)
    mute = printing_at_the_end("")
    asked = printing_at_the_end(f"signal.signal({int(stacks.STACK_SIGNAL)}, lambda *_: None)")
    spied_on = printing_at_the_end("")
    spy = a_spy(tmp_path, f'[ "$3" = {spied_on.pid} ] && echo "  f1 (a.py:1)"')
    try:
        found = {each.pid: each for each in take(os.getpid(), tmp_path / "stacks", str(Path(spy).parent))}
        assert mute.wait(60) == -signal.SIGABRT
        assert (asked.poll(), spied_on.poll(), sleeper.poll()) == (None, None, None)
    finally:
        for process in (mute, asked, spied_on):
            process.kill()
            _, errors = process.communicate()
            assert ("Fatal Python error: Aborted" in errors) is (process is mute)
    assert {pid: each.text for pid, each in found.items() if each.text} == {spied_on.pid: "  f1 (a.py:1)\n"}
    assert {mute.pid, asked.pid, spied_on.pid, sleeper.pid} <= {*found}
    assert found[sleeper.pid].rank == 12
    assert next(iter(found)) == sleeper.pid, "those with a rank come first"


def test_nothing_is_waited_for_where_no_process_was_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sleeper: subprocess.Popen[bytes]
) -> None:
    monkeypatch.setattr(stacks, "ABORT_TIME", 1000.0)
    assert sleeper.pid in [each.pid for each in take(os.getpid(), tmp_path / "stacks", "")]
