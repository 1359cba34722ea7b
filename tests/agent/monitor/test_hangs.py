"""A hang is found though the program prints; its ranks are named with their stacks; a sick machine is blamed first."""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.agent.diagnose import stacks
from airflow_provider_ocidist.agent.diagnose.flight_records import stuck_collective
from airflow_provider_ocidist.agent.diagnose.stacks import main_frames, odd_ones, two_positions
from airflow_provider_ocidist.agent.monitor.hang import StallTime, is_hung, talks_only
from airflow_provider_ocidist.agent.monitor.progress import ProgressMeter
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.job import LauncherOptions, Limits, Restarts
from airflow_provider_ocidist.model.report import OVER_THE_LONGEST, StackPosition
from tests.agent.gangs import Gang, until

SEED = int(os.environ.get("HANGS_SEED", "20261123"))
BEGINS = """
import json, os, pathlib, sys, threading, time

def print(*words, flush=True):
    # At once: what two threads print in parts would stand in one line.
    os.write(1, (" ".join(map(str, words)) + chr(10)).encode())

node, launch = int(os.environ["OCIDIST_NODE_RANK"]), int(os.environ["OCIDIST_RESTARTS"])

def talk():
    while True:
        print("still here", time.time(), flush=True)
        time.sleep(0.2)

def stuck_here():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
"""


def gang(root: Path, script: str, timeout: float = 5.0, **changes: Any) -> Gang:
    limits = Limits(stop_grace=1.0, join_timeout=60.0, hang_timeout=timeout)
    return Gang(root, BEGINS + script, **{"limits": limits, **changes})


# The rule


@pytest.mark.parametrize("number", range(50))
def test_a_gang_hangs_when_all_who_count_steps_stand_still_or_all_where_nobody_does(number: int) -> None:
    draw = random.Random(f"{SEED}.{number}")
    print(f"seed {SEED}.{number}")
    timeout = draw.uniform(1, 100)
    nodes = [
        StallTime(
            idle=draw.choice([0.0, 0.5, 1.0, 1.5, 5.0]) * timeout,
            by_steps=draw.random() < 0.5,
            longest_step=draw.choice([0.0, 0.1, 1.0]) * timeout,
        )
        for _ in range(draw.randint(1, 6))
    ]
    counts_steps = [node for node in nodes if node.by_steps]
    movers = [
        node
        for node in counts_steps or nodes
        if node.idle < timeout or node.idle < OVER_THE_LONGEST * node.longest_step
    ]
    assert is_hung(nodes, timeout) == (not movers)


def test_lines_are_progress_until_a_second_step_is_seen_and_then_only_what_gets_further(
    tmp_path: Path,
) -> None:
    meter = ProgressMeter(tmp_path)

    def idle_after(text: bytes) -> bool:
        time.sleep(0.05)
        before = meter.idle
        meter.saw(text)
        return meter.idle >= before

    assert not idle_after(b"loading\n")
    assert not idle_after(b"step 1 loss 2.0\n")
    assert not idle_after(b"still here\n"), "one step alone says nothing of the next"
    assert not idle_after(b"step 2 loss 2.0\n")
    assert idle_after(b"still here\n")
    assert idle_after(b"step 2 loss 2.0\n"), "the same step again"
    assert idle_after(b"step 1 loss 2.0\n"), "two processes that repeat their last steps in turn"
    assert not idle_after(b"step 3 loss 2.0\n")
    assert not idle_after(b"Evaluating:  5%|#    | 1/20 [00:05<01:35,  2.00it/s]\n"), "an evaluation's bar"
    assert idle_after(b"Evaluating:  5%|#    | 1/20 [00:05<01:35,  2.00it/s]\n"), "that stands still"
    assert not idle_after(b"Evaluating: 10%|#    | 2/20 [00:05<01:35,  2.00it/s]\n")
    with meter.file.open("a") as file:
        file.write("{}\n")
    before = meter.idle
    meter.read()
    assert meter.idle < before, "the program says itself that it gets further"


@pytest.mark.parametrize("number", range(50))
def test_a_gang_only_talks_while_no_node_has_a_step_and_none_shows_more_than_lines(number: int) -> None:
    draw = random.Random(f"{SEED}.{number}")
    print(f"seed {SEED}.{number}")
    nodes = [
        StallTime(
            idle=0.0, step=draw.choice([None, None, None, 1]), still=draw.choice([0.0, 9.9, 10.0, 50.0])
        )
        for _ in range(draw.randint(1, 4))
    ]
    moves = [node for node in nodes if node.step is not None or node.still < 10.0]
    assert talks_only(nodes, 10.0) == (not moves)


# Real nodes


@pytest.mark.parametrize("counts", [0, 1])
def test_a_deadlock_is_found_though_every_node_talks(tmp_path: Path, counts: int) -> None:
    script = f"""
threading.Thread(target=talk, daemon=True).start()
for step in range(1, 6):
    if node == {counts}:
        print("step", step, flush=True)
    time.sleep(0.1)
stuck_here()
"""
    with gang(tmp_path, script, nodes=2) as two:
        assert two.run() == [75, 143]
        report = two.agents[0].report
        texts = [agent.stderr.read_text() for agent in two.agents]
        kept = [(two.run_dir / f"stacks/launch-0/node-{rank}.txt").read_text() for rank in range(2)]
    assert report.cause is Cause.HANG
    assert "no step or checkpoint on any node for 5 s; the last step was 5" in (report.message or "")
    assert all("in stuck_here" in text for text in texts), "the key lines are in the log"
    assert all("in stuck_here" in text and "in talk" in text for text in kept), "all threads in the store"


def test_a_deadlock_before_the_first_step_of_a_later_launch_is_found_though_a_thread_talks(
    tmp_path: Path,
) -> None:
    script = """
threading.Thread(target=talk, daemon=True).start()
if launch == 0:
    print("step 1\\nstep 2", flush=True)
    raise ValueError("the first launch fails")
stuck_here()
"""
    with gang(tmp_path, script, timeout=2.0, restarts=Restarts(program=1)) as one:
        assert one.run() == [75]
        report = one.agents[0].report
    assert report.cause is Cause.HANG
    assert "no step or checkpoint on any node for 2 s" in (report.message or "")


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_deadlock_after_the_first_step_of_the_first_launch_is_found_though_a_thread_talks(
    tmp_path: Path, nodes: int
) -> None:
    script = """
if node == 0:
    print("step 1", flush=True)
threading.Thread(target=talk, daemon=True).start()
stuck_here()
"""
    with gang(tmp_path, script, timeout=2.0, nodes=nodes) as all_nodes:
        assert all_nodes.run() == [75, 143][:nodes]
        report = all_nodes.agents[0].report
    assert report.cause is Cause.HANG
    assert "no step or checkpoint on any node for 2 s; the last step was 1" in (report.message or "")


def patient_gang(
    root: Path, script: str, first_step: float | None, hang: float = 60.0, **changes: Any
) -> Gang:
    limits = Limits(stop_grace=1.0, join_timeout=60.0, hang_timeout=hang, first_step_timeout=first_step)
    return Gang(root, BEGINS + script, limits=limits, **changes)


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_deadlock_before_any_step_is_found_within_the_time_that_the_job_gives_though_a_thread_talks(
    tmp_path: Path, nodes: int
) -> None:
    script = """
threading.Thread(target=talk, daemon=True).start()
stuck_here()
"""
    with patient_gang(tmp_path, script, 3.0, nodes=nodes) as all_nodes:
        assert all_nodes.run() == [75, 143][:nodes]
        report = all_nodes.agents[0].report
        texts = [agent.stderr.read_text() for agent in all_nodes.agents]
        kept = [(all_nodes.run_dir / f"stacks/launch-0/node-{rank}.txt").read_text() for rank in range(nodes)]
    assert report.cause is Cause.HANG
    assert (
        "no node has reported a step, and for 3 s the program has done no more than print "
        "(limits.first_step_timeout)" in (report.message or "")
    )
    assert all("in stuck_here" in text for text in texts), "the key lines are in the log"
    assert all("in stuck_here" in text and "in talk" in text for text in kept), "all threads in the store"


def test_a_deadlock_before_any_step_is_launched_again_where_the_job_allows_that(tmp_path: Path) -> None:
    script = """
threading.Thread(target=talk, daemon=True).start()
launch or stuck_here()
"""
    with patient_gang(tmp_path, script, 3.0, restarts=Restarts(hang=1)) as one:
        assert one.run() == [0]
        (restart,) = one.agents[0].report.restarts
    assert restart.cause is Cause.HANG


@pytest.mark.parametrize(
    "sign",
    [
        'print(f"Downloading: {done:3}%|#    | {done}/100 [00:05<01:35,  2.00it/s]", flush=True)',
        'open(os.environ["OCIDIST_PROGRESS_FILE"], "a").write("{}\\n")',
    ],
    ids=["a bar", "the progress file"],
)
def test_a_slow_start_that_shows_how_it_gets_on_is_given_all_the_time_it_takes(
    tmp_path: Path, sign: str
) -> None:
    script = f"""
threading.Thread(target=talk, daemon=True).start()
if node == 1:
    for done in range(1, 17):
        {sign}
        time.sleep(0.5)
else:
    time.sleep(9)
print("step 1\\nstep 2", flush=True)
"""
    # A bar is read from whole lines: the other thread must not print into one.
    script = script.replace("threading.Thread", "node or threading.Thread", 1)
    with patient_gang(tmp_path, script, 3.0, nodes=2) as two:
        assert two.run() == [0, 0]


def test_a_program_that_has_reported_a_step_on_any_node_may_talk_after_it(tmp_path: Path) -> None:
    script = """
if node == 1:
    print("step 1\\nstep 2", flush=True)
else:
    threading.Thread(target=talk, daemon=True).start()
time.sleep(8)
"""
    with patient_gang(tmp_path, script, 3.0, nodes=2) as two:
        assert two.run() == [0, 0]


def test_without_that_limit_the_log_says_so_once_and_the_program_goes_on(tmp_path: Path) -> None:
    script = """
threading.Thread(target=talk, daemon=True).start()
time.sleep(8)
"""
    with patient_gang(tmp_path, script, None, hang=2.0) as one:
        assert one.run() == [0]
        said = one.agents[0].stderr.read_text()
    assert said.count("the program has done no more than print: it prepares for long") == 1
    assert "to have such a run ended, set limits.first_step_timeout" in said


def test_an_evaluation_that_shows_its_bar_is_no_hang(tmp_path: Path) -> None:
    script = """
for step in range(1, 4):
    print("step", step, flush=True)
for done in range(1, 35):
    print(f"Evaluating: {done:3}%|#    | {done}/100 [00:05<01:35,  2.00it/s]", flush=True)
    time.sleep(0.25)
"""
    with gang(tmp_path, script) as one:
        assert one.run() == [0]


def test_the_stacks_are_kept_before_the_ranks_are_ended_and_launched_again(tmp_path: Path) -> None:
    script = """
kept = pathlib.Path(os.environ["KEPT"]) / f"node-{node}.txt"
if launch:
    print("kept:", "in stuck_here" in kept.read_text(), flush=True)
    sys.exit()

def ended(*_):
    print("kept before the end:", kept.exists(), flush=True)
    os._exit(1)

import signal
signal.signal(signal.SIGTERM, ended)
print("step 1\\nstep 2", flush=True)
threading.Thread(target=talk, daemon=True).start()
def stuck_here():
    while True:
        time.sleep(0.1)
stuck_here()
"""
    with gang(tmp_path, script, nodes=2, restarts=Restarts(hang=1)) as two:
        assert two.run(KEPT=str(two.run_dir / "stacks" / "launch-0")) == [0, 0]
        said = [agent.stdout.read_text() for agent in two.agents]
        (restart,) = two.agents[0].report.restarts
    assert restart.cause is Cause.HANG
    assert all("kept: True" in text and "kept before the end: True" in text for text in said)


ONE_SLEEPS = """
# Until it counts steps, it lives as long as it talks: torch may take its time.
threading.Thread(target=talk, daemon=True).start()
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()

def asleep_here():
    time.sleep(1000)

dist.all_reduce(torch.ones(4))
# From here on it counts steps, and nothing else is progress.
print("step 1\\nstep 2", flush=True)
if rank == int(os.environ["SLEEPER"]):
    asleep_here()
dist.all_reduce(torch.ones(4))
"""


@pytest.mark.torch
@pytest.mark.parametrize("sleeper", [0, 1])
def test_the_rank_that_sleeps_is_named_with_where_it_stands(tmp_path: Path, sleeper: int) -> None:
    # Without torchrun, which imports torch before the program can talk.
    with gang(tmp_path, ONE_SLEEPS, nodes=2) as two:
        assert two.run(SLEEPER=str(sleeper)) == [75, 143]
        message = two.agents[0].report.message or ""
        stands = [agent.report.stack_positions for agent in two.agents]
    assert f"rank {sleeper} stands in asleep_here (program.py:" in message
    assert f"rank {1 - sleeper} waits for others, and rank {sleeper} does not" in message
    assert [[each.rank for each in of_node or ()] for of_node in stands] == [[0], [1]]


SICK = """#!/bin/sh
case "$*" in *{prefix}*) echo "0, 0, Not Active, {state}, Active" ;; *) exit 6 ;; esac
"""


@pytest.mark.parametrize(
    "prefix, state, cause",
    [
        ("clocks_event_reasons", "Active", Cause.NODE),
        ("clocks_throttle_reasons", "Not Active", Cause.HANG),
    ],
)
def test_a_machine_that_is_not_well_is_blamed_before_the_program(
    tmp_path: Path, prefix: str, state: str, cause: Cause
) -> None:
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    smi.write_text(SICK.format(prefix=prefix, state=state).replace(', Active"', ', Not Active"'))
    smi.chmod(0o755)
    with gang(tmp_path, "print('step 1\\nstep 2', flush=True)\nstuck_here()", nodes=2) as two:
        two.start(0)
        two.start(1, PATH=f"{smi.parent}:{os.environ['PATH']}")
        codes = [agent.wait() for agent in two.agents]
        report, said = two.agents[0].report, [agent.stderr.read_text() for agent in two.agents]
    assert report.cause is cause
    assert codes[1] == 143
    sick = "a machine is unhealthy (node 1: GPU 0 is slowed down: throttled by the power supply)"
    assert (sick in (report.message or "")) == (cause is Cause.NODE)
    assert all("in stuck_here" in text for text in said), "stacks are shown whatever the cause"


def test_a_sick_machine_leaves_the_budget_for_hangs_to_be_spent(tmp_path: Path) -> None:
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    smi.write_text(SICK.format(prefix="clocks_throttle_reasons", state="Active"))
    smi.chmod(0o755)
    script = "print('step 1\\nstep 2', flush=True)\nlaunch or stuck_here()"
    with gang(tmp_path, script, restarts=Restarts(hang=1)) as one:
        assert one.run(PATH=f"{smi.parent}:{os.environ['PATH']}") == [0]
        (restart,) = one.agents[0].report.restarts
    assert "a machine is unhealthy" in restart.message


# What shows where a process stands


def test_the_programs_own_sitecustomize_runs_too(tmp_path: Path) -> None:
    script = """
import sitecustomize
print("theirs:", sitecustomize.THEIRS, flush=True)
print("step 1\\nstep 2", flush=True)
stuck_here()
"""
    with gang(tmp_path, script) as one:
        one.code(0).mkdir(parents=True)
        (one.code(0) / "sitecustomize.py").write_text("THEIRS = 'has run'\n")
        assert one.run() == [75]
        assert "theirs: has run" in one.agents[0].stdout.read_text()
        assert "in stuck_here" in one.agents[0].stderr.read_text()


def test_a_python_that_imports_no_sitecustomize_prints_its_stacks_as_it_ends(tmp_path: Path) -> None:
    inner = "import time\\ndef stuck_inside():\\n    time.sleep(1000)\\nstuck_inside()"
    script = f"""
import subprocess
print("step 1\\nstep 2", flush=True)
subprocess.run([sys.executable, "-S", "-X", "faulthandler", "-c", "{inner}"])
stuck_here()
"""
    with gang(tmp_path, script) as one:
        assert one.run() == [75]
        assert "in stuck_inside" in one.agents[0].stderr.read_text()


def test_what_py_spy_shows_is_taken_before_the_process_is_asked(tmp_path: Path) -> None:
    spy = tmp_path / "py-spy"
    spy.write_text(
        '#!/bin/sh\necho "Thread 7 (idle): \\"MainThread\\""\n'
        'echo "    wait_for_it (program.py:12)"\necho "    <module> (program.py:30)"\n'
        'echo "Thread 8 (active): \\"talks\\""\necho "    talk (program.py:3)"\n'
    )
    spy.chmod(0o755)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"]) as process:
        try:
            found = stacks.take(os.getpid(), tmp_path / "stacks", f"{tmp_path}:{os.environ['PATH']}")
            (own,) = [stack for stack in found if stack.pid == process.pid]
            assert process.poll() is None, "it is not ended"
        finally:
            process.kill()
    assert own.frames == ("wait_for_it (program.py:12)", "<module> (program.py:30)")


def test_a_py_spy_that_hangs_leaves_time_for_each_rank_and_none_is_taken_for_longer_than_all_may_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "TOTAL_LIMIT", 4.0)
    monkeypatch.setattr(stacks, "SPY_LIMIT", 2.0)
    spy, looked = tmp_path / "py-spy", tmp_path / "looked"
    # All but the ranks hang, as on a dead disk.
    spy.write_text(
        f"#!/bin/sh\necho $3 >> {looked}\n"
        'if grep -qz "^RANK=" /proc/$3/environ; then echo "    step (a.py:1)"; else exec sleep 100; fi\n'
    )
    spy.chmod(0o755)
    bare = {name: value for name, value in os.environ.items() if name != "RANK"}
    environs = [*[bare] * 16, *[bare | {"RANK": str(rank)} for rank in range(4)]]
    sleeping = [subprocess.Popen(["sleep", "100"], env=environ) for environ in environs]
    try:
        began = time.monotonic()
        found = stacks.take(os.getpid(), tmp_path / "stacks", f"{tmp_path}:{os.environ['PATH']}")
        took = time.monotonic() - began
    finally:
        for process in sleeping:
            process.kill()
            process.wait()
    assert {each.pid for each in found} >= {process.pid for process in sleeping}, "each is described"
    assert {each.rank for each in found if each.text} == set(range(4))
    # Sixteen at a time of four would take four times SPY_LIMIT.
    assert took < 2 * stacks.TOTAL_LIMIT - 1, took


def test_a_process_that_ends_as_it_is_to_print_its_stacks_does_not_lose_those_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill = os.kill

    def end_before(pid: int, number: int) -> None:
        if number == signal.SIGABRT:
            raise ProcessLookupError
        kill(pid, number)

    monkeypatch.setattr(stacks.os, "kill", end_before)
    script = "print(1, flush=True)\nimport time\ntime.sleep(100)"
    command = [sys.executable, "-X", "faulthandler", "-S", "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            found = stacks.take(os.getpid(), tmp_path / "stacks", "")
        finally:
            process.kill()
    assert process.pid in [each.pid for each in found]


def test_a_process_that_is_stopped_is_described_and_holds_nobody_up(tmp_path: Path) -> None:
    environ = {
        **os.environ,
        "PYTHONPATH": stacks.PROGRAM_FOLDER,
        "OCIDIST_STACK_FILE": str(tmp_path / "stacks"),
        "OCIDIST_STACK_SIGNAL": str(stacks.STACK_SIGNAL),
    }
    script = "import time\ndef stuck_here():\n    print('up', flush=True)\n    time.sleep(100)\nstuck_here()"
    processes = [
        subprocess.Popen([sys.executable, "-c", script], env=environ | {"RANK": str(rank)}, stdout=-1)
        for rank in range(2)
    ]
    try:
        for process in processes:
            assert process.stdout
            process.stdout.readline()
        processes[0].send_signal(19)
        until(lambda: "T (stopped)" in (stacks.process_stack_of(processes[0].pid) or stopped_nowhere()).state)
        found = {stack.rank: stack for stack in stacks.take(os.getpid(), tmp_path / "stacks", "")}
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert found[0].text == ""
    # Interpreters differ in the line that a function's call is counted to.
    frame = found[1].frames[0]
    assert re.fullmatch(r"stuck_here \(<string>:[24]\)", frame)
    assert [position.at[:1] for position in stacks.stack_positions(list(found.values()))] == [
        (),
        (frame,),
    ]


ANSWERS = """
import ctypes, os, signal, sys, threading, time
file = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def begin_a_thread_that_blocks_all_signals():
    blocks = threading.Event()
    def go_on():
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        blocks.set()
        time.sleep(1000)
    threading.Thread(target=go_on, daemon=True).start()
    blocks.wait()
@ctypes.CFUNCTYPE(None, ctypes.c_int)
def answer(number):
    {answer}
libc = ctypes.CDLL(None)
libc.signal(int(sys.argv[2]), answer)
print("ready", flush=True)
while True:
    libc.pause()
"""
SLOWLY = 'for part in (b"one ", b"two ", b"three"): os.write(file, part); time.sleep(0.3)'
STUCK = 'os.write(file, b"one "); time.sleep(1000)'
LATE, PROMPT = 'os.write(file, b"late")', 'os.write(file, b"at once")'
BEGINS_A_THREAD = 'begin_a_thread_that_blocks_all_signals(); os.write(file, b"one")'


@contextlib.contextmanager
def answering(file: Path, answer: str) -> Iterator[subprocess.Popen[str]]:
    """Run a process that does what `answer` says when it is asked for its stacks."""
    script = ANSWERS.replace("{answer}", answer)
    command = [sys.executable, "-c", script, str(file), str(int(stacks.STACK_SIGNAL))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def test_a_process_that_pauses_within_its_answer_is_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "stacks.txt"
    with answering(file, SLOWLY) as process:
        assert stacks._ask(process.pid, file, time.monotonic() + 60) == "one two three"


@pytest.mark.parametrize(
    "answer, limit", [(STUCK, 0.3), (BEGINS_A_THREAD, 1000.0)], ids=["stuck", "begins a thread"]
)
def test_one_process_does_not_use_up_the_time_of_all(
    tmp_path: Path, answer: str, limit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "ANSWER_LIMIT", limit)
    file, of_all = tmp_path / "stacks.txt", time.monotonic() + 10
    with answering(file, answer) as process:
        assert stacks._ask(process.pid, file, of_all).strip() == "one"
    assert time.monotonic() < of_all


def test_a_late_answer_is_not_that_of_the_process_that_is_asked_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "ANSWER_LIMIT", 0.5)
    file = tmp_path / "stacks.txt"
    with answering(file, SLOWLY) as late, answering(file, SLOWLY) as stopped:
        late.send_signal(stacks.STACK_SIGNAL)
        stopped.send_signal(signal.SIGSTOP)
        assert stacks._ask(stopped.pid, file, time.monotonic() + 60) == ""
        until(lambda: file.read_text() == "one two three")


@pytest.mark.parametrize("forked", [True, False])
def test_an_answer_that_comes_while_the_next_process_answers_is_not_taken_for_its(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, forked: bool
) -> None:
    monkeypatch.setattr(stacks, "ANSWER_LIMIT", 0.3)
    stack_file = tmp_path / "stacks"
    files = [tmp_path / "stacks.1", tmp_path / ("stacks.1" if forked else "stacks.2")]
    kill = os.kill
    with answering(files[0], LATE) as late, answering(files[1], PROMPT) as next_one:
        late.send_signal(signal.SIGSTOP)

        def wake_first(pid: int, number: int) -> None:
            if pid == next_one.pid:
                kill(late.pid, signal.SIGCONT)
                until(lambda: "late" in files[0].read_text())
            kill(pid, number)

        monkeypatch.setattr(stacks.os, "kill", wake_first)
        owing: set[Path] = set()
        found = [
            stacks._answer(process.pid, stack_file, time.monotonic() + 60, owing)
            for process in (late, next_one)
        ]
    assert found == ["", "" if forked else "at once"]


def stopped_nowhere() -> stacks.ProcessStack:
    return stacks.ProcessStack(pid=0, rank=None, state="gone", command="")


FAULTHANDLER = """Thread 0x00007f03976666c0 (most recent call first):
  File "/usr/lib/python3/threading.py", line 982 in run

Current thread 0x00007f0397fc7b80 (most recent call first):
  File "/code/train.py", line 4 in reduce
  File "/code/train.py", line 6 in <module>
"""


def test_the_main_threads_stack_is_read_from_both_formats() -> None:
    assert main_frames(FAULTHANDLER) == ("reduce (train.py:4)", "<module> (train.py:6)")
    spied = (
        'Process 9: python\nThread 9 (idle): "MainThread"\n    reduce (a/train.py:4)\n'
        "Thread 10 (idle)\n    x (y.py:1)\n"
    )
    assert main_frames(spied) == ("reduce (train.py:4)",)
    assert main_frames("") == ()


WAITS = ("all_reduce (distributed_c10d.py:3245)", "wrapper (c10d_logger.py:83)", "step (train.py:9)")


@pytest.mark.parametrize("number", range(30))
def test_the_ranks_that_do_not_wait_for_the_others_are_named_and_no_other(number: int) -> None:
    draw = random.Random(f"{SEED}.{number}")
    print(f"seed {SEED}.{number}")
    ranks = list(range(draw.randint(2, 16)))
    odd = set(draw.sample(ranks, draw.randint(1, min(3, len(ranks) // 2))))
    stands = [
        StackPosition(rank=rank, at=("sleep (data.py:3)", "load (data.py:9)") if rank in odd else WAITS)
        for rank in ranks
    ]
    draw.shuffle(stands)
    found = odd_ones(stands) or ""
    assert {int(word.split()[0]) for word in found.split("rank ")[1:]} == odd
    assert f"{len(ranks) - len(odd)} of {len(ranks)} ranks wait for them" in found


def test_nobody_is_named_where_all_stand_alike_or_nothing_is_known() -> None:
    assert odd_ones([]) is None
    assert odd_ones([StackPosition(rank=rank, at=WAITS) for rank in range(4)]) is None
    assert odd_ones([StackPosition(rank=rank, at=(f"f{rank} (a.py:1)",)) for rank in range(4)]) is None
    unlike = [StackPosition(rank=rank, at=("read (a.py:1)",)) for rank in range(3)] + [
        StackPosition(rank=3, at=())
    ]
    assert odd_ones(unlike) == "rank 3 does not answer, while 3 of 4 ranks stand in read (a.py:1)"


@pytest.mark.parametrize("number", range(30))
def test_of_two_ranks_each_is_named_once_with_its_place_and_of_another_number_none(number: int) -> None:
    draw = random.Random(f"{SEED}.{number}")
    print(f"seed {SEED}.{number}")
    places = [WAITS, ("sleep (data.py:3)", "load (data.py:9)"), ()]
    ranks = draw.sample(range(16), draw.choice([0, 1, 2, 2, 2, 3]))
    stands = [StackPosition(rank=rank, at=draw.choice(places)) for rank in ranks]
    found = two_positions(stands)
    assert (found is not None) is (len(stands) == 2)
    waiting = [each.rank for each in stands if each.at == WAITS]
    for each in stands if found else ():
        shown = f"stands in {', in '.join(each.at)}" if each.at else "does not answer"
        assert (found or "").partition(": ")[2].count(f"rank {each.rank} {shown}") == 1
    says = (found or "").partition(": ")[0]
    if found and len(waiting) == 1:
        (other,) = {*ranks} - {*waiting}
        does = "does not" if {each.rank: each.at for each in stands}[other] else "does not answer"
        assert says == f"rank {waiting[0]} waits for others, and rank {other} {does}"
    elif found:
        assert says.startswith("both ranks that run wait" if waiting else "no stack shows")


# Flight records


@pytest.mark.torch
def test_what_torch_records_of_its_collectives_is_read(tmp_path: Path) -> None:
    script = f"""
import pathlib, pickle, torch, torch.distributed as dist
from torch._C import _distributed_c10d as c10d
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
def reduce():
    dist.all_reduce(torch.ones(3, 2))
reduce()
record = pickle.loads(c10d._dump_fr_trace())
for entry in record["entries"]:
    entry["retired"] = False
pathlib.Path({str(tmp_path / "nccl_trace_rank_0")!r}).write_bytes(pickle.dumps(record, 2))
"""
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    found = stuck_collective(tmp_path / "nccl_trace_rank_0") or ""
    assert "all_reduce number 1 is scheduled, sizes [[3, 2]], called in reduce (<string>:" in found


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (os.system, ("touch evil",))


@pytest.mark.parametrize(
    "content", [b"", b"no pickle", pickle.dumps({"entries": [Evil()]}), pickle.dumps({"entries": []})]
)
def test_a_record_that_is_none_is_no_error_and_runs_no_code(
    tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "record").write_bytes(content)
    assert stuck_collective(tmp_path / "record") is None
    assert not (tmp_path / "evil").exists()


NCCL = """
import pickle
folder = pathlib.Path(os.environ["OCIDIST_FLIGHT_RECORDS"])
pipe = folder / "pipe_rank_0.pipe"
os.mkfifo(pipe)
entry = {"profiling_name": "nccl:all_reduce", "collective_seq_id": 41, "state": "started", "input_sizes": [[8]]}

def writes_when_asked():
    with pipe.open("rb") as asked:
        asked.readline()
    (folder / "nccl_trace_rank_0").write_bytes(pickle.dumps({"entries": [entry]}))

threading.Thread(target=writes_when_asked, daemon=True).start()
print("step 1\\nstep 2", flush=True)
time.sleep(1000)
"""


def test_nccls_record_is_asked_for_kept_and_read(tmp_path: Path) -> None:
    with gang(tmp_path, NCCL) as one:
        assert one.run() == [75]
        said = one.agents[0].stderr.read_text()
        kept = (one.run_dir / "stacks" / "launch-0" / "nccl-rank-0").read_bytes()
    assert "rank 0, by its flight record: nccl:all_reduce number 41 is started, sizes [[8]]" in said
    assert pickle.loads(kept)["entries"][0]["collective_seq_id"] == 41


def test_a_record_that_a_failed_training_has_left_is_kept_too(tmp_path: Path) -> None:
    script = NCCL.replace("time.sleep(1000)", "pipe.write_bytes(b'1\\n')\ntime.sleep(1)\nsys.exit(1)")
    with gang(tmp_path, script, timeout=60.0) as one:
        assert one.run() == [1]
        assert (one.run_dir / "stacks" / "launch-0" / "nccl-rank-0").exists()


def test_every_rank_has_the_settings_of_the_recorder_and_keeps_its_own(tmp_path: Path) -> None:
    script = """
names = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
print("size", [os.environ[name] for name in names if name in os.environ])
print("dump", os.environ["TORCH_NCCL_DUMP_ON_TIMEOUT"])
"""
    launcher = LauncherOptions(kind="python")
    with gang(tmp_path, script, launcher=launcher) as one:
        assert one.run(TORCH_NCCL_DUMP_ON_TIMEOUT="0") == [0]
        said = one.agents[0].stdout.read_text()
    assert "size ['2000']" in said
    assert "dump 0" in said
