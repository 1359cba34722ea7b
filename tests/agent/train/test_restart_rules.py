"""When a failed training is launched again: the rule of budgets and crash loops, the switch, the stop request."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

from airflow_provider_ocidist.agent.stopping import Stop, Stopped, StopSwitch
from airflow_provider_ocidist.agent.train.restarts import is_crash_loop, is_of_program, why_no_launch
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.job import Restarts
from airflow_provider_ocidist.model.causes import MEANINGS
from airflow_provider_ocidist.model.report import Restart, StopRequest

SEED = int(os.environ.get("RESTARTS_SEED", "20261123"))


# The rule


def drawn(draw: random.Random) -> Restart:
    cause = draw.choice(list(Cause))
    step, checkpoint = draw.choice([None, 1, 2, 3]), draw.choice([None, "a", "b"])
    killed = cause in (Cause.USER, Cause.NODE) and draw.random() < 0.3
    hang = cause is Cause.HANG or (cause is Cause.NODE and not killed and draw.random() < 0.3)
    return Restart(
        cause=cause,
        message="m",
        rank=draw.randint(0, 3),
        step=step,
        checkpoint=checkpoint,
        killed=killed,
        hang=hang,
    )


def place_of(failure: Restart) -> tuple[object, ...]:
    """Return what has happened, and how far the training had come, as far as anybody knows."""
    what: object = "killed" if failure.killed else Cause.HANG if failure.hang else failure.cause
    return what, failure.step, failure.checkpoint if failure.step is None else None


@pytest.mark.parametrize("number", range(100))
def test_no_history_has_more_restarts_of_a_kind_than_allowed_and_none_again_and_again_at_one_step(
    number: int,
) -> None:
    draw = random.Random(f"{SEED}.{number}")
    print(f"seed {SEED}.{number}")
    budgets = Restarts(program=draw.randint(0, 4), hang=draw.randint(0, 2), node=draw.randint(0, 2))
    history: list[Restart] = []
    for _ in range(20):
        failure = drawn(draw)
        why_not = why_no_launch(budgets, history, failure)
        kind = MEANINGS[failure.cause].restart
        spent = sum(MEANINGS[each.cause].restart == kind for each in history)
        is_preempted = failure.cause is Cause.PREEMPTED
        times = sum(place_of(each) == place_of(failure) for each in history)
        again = not is_preempted and times >= (2 if failure.killed else 1)
        is_free = is_preempted and budgets != Restarts()
        is_paid_for = kind is not None and spent < getattr(budgets, kind)
        assert (why_not is None) == ((is_free or is_paid_for) and not again)
        if why_not is None:
            history.append(failure)


def test_a_crash_loop_is_named_as_one_while_the_budget_is_not_spent() -> None:
    failure = Restart(cause=Cause.USER, message="m", step=40)
    assert why_no_launch(Restarts(program=9), [failure], failure) == (
        "crash loop: USER at step 40 for the second time"
    )


KILLED = Restart(cause=Cause.USER, message="killed by SIGKILL", step=100, checkpoint="a", killed=True)


@pytest.mark.parametrize("step", [None, 100])
@pytest.mark.parametrize(
    "causes", [(Cause.USER,) * 3, (Cause.NODE,) * 3, (Cause.NODE, Cause.USER, Cause.NODE)]
)
def test_two_kills_at_one_step_may_be_chance_and_a_third_is_none(
    causes: tuple[Cause, ...], step: int | None
) -> None:
    # Where a program reports each hundredth step, all that befalls it in between is at one step.
    first, second, third = (replace(KILLED, cause=cause, step=step) for cause in causes)
    budgets = Restarts(program=9, node=9)
    assert why_no_launch(budgets, [first], second) is None
    assert "crash loop: a process was killed" in (why_no_launch(budgets, [first, second], third) or "")
    assert "for the third time" in (why_no_launch(budgets, [first, second], third) or "")
    elsewhere = replace(second, step=200, checkpoint="b")
    assert why_no_launch(budgets, [first, elsewhere], third) is None


def test_an_error_of_the_program_and_a_kill_at_one_step_are_two_failures() -> None:
    own = replace(KILLED, message="ValueError", killed=False)
    budgets = Restarts(program=9)
    assert why_no_launch(budgets, [KILLED, KILLED], own) is None
    assert why_no_launch(budgets, [own, KILLED], KILLED) is None
    assert why_no_launch(budgets, [KILLED, own], own) == "crash loop: USER at step 100 for the second time"


HUNG = Restart(cause=Cause.HANG, message="no step for 30 s", step=7, hang=True)
HUNG_BESIDE_A_FAULT = replace(HUNG, cause=Cause.NODE, message="no step for 30 s; GPU 3 is hot")


@pytest.mark.parametrize(
    "first, second",
    [
        (HUNG, HUNG_BESIDE_A_FAULT),
        (HUNG_BESIDE_A_FAULT, HUNG),
        (HUNG_BESIDE_A_FAULT, HUNG_BESIDE_A_FAULT),
        (replace(HUNG, hang=False), HUNG_BESIDE_A_FAULT),
    ],
)
def test_a_hang_is_the_same_one_whether_a_machine_also_shows_a_fault_or_not(
    first: Restart, second: Restart
) -> None:
    budgets = Restarts(hang=9, node=9)
    assert why_no_launch(budgets, [first], second) == "crash loop: HANG at step 7 for the second time"
    assert why_no_launch(budgets, [first], replace(second, step=8)) is None
    lost = Restart(cause=Cause.NODE, message="node 1 was lost", step=7)
    assert why_no_launch(budgets, [first], lost) is None
    assert why_no_launch(budgets, [lost], second) is None


def test_a_hang_that_the_service_explains_by_a_preemption_is_none_of_the_programs() -> None:
    preempted = replace(HUNG_BESIDE_A_FAULT, cause=Cause.PREEMPTED)
    assert not is_crash_loop([preempted], HUNG)
    assert not is_crash_loop([HUNG], preempted)
    assert not is_of_program(preempted)


def test_a_kill_that_the_loss_of_a_machine_explains_is_that_loss() -> None:
    explained = replace(KILLED, lost=(1,))
    lost = Restart(cause=Cause.NODE, message="node 1 was lost", step=100, rank=1)
    assert is_crash_loop([explained], lost)
    assert not is_crash_loop([explained, explained], KILLED)
    assert not is_of_program(explained)
    assert not is_crash_loop([replace(HUNG_BESIDE_A_FAULT, lost=(1,))], HUNG)


def test_what_a_failure_is_compared_with_need_not_have_cost_a_budget() -> None:
    other = Restart(cause=Cause.USER, message="m", step=1)
    failure = Restart(cause=Cause.USER, message="m", step=2)
    assert why_no_launch(Restarts(program=1), [other], failure, []) is None
    assert why_no_launch(Restarts(program=1), [other], failure) == "all 1 of restarts.program are used"
    assert why_no_launch(Restarts(program=1), [], failure, [other]) == "all 1 of restarts.program are used"
    assert why_no_launch(Restarts(program=1), [failure], failure, []) is not None


@pytest.mark.parametrize(
    "restart, is_programs",
    [
        (KILLED, True),
        (replace(KILLED, cause=Cause.NODE), True),
        (HUNG, True),
        (HUNG_BESIDE_A_FAULT, True),
        *(
            (Restart(cause=cause, message="m"), True)
            for cause in (Cause.USER, Cause.OOM, Cause.DATA, Cause.HANG)
        ),
        *(
            (Restart(cause=cause, message="m"), False)
            for cause in (Cause.NODE, Cause.PREEMPTED, Cause.CAPACITY)
        ),
    ],
)
def test_what_other_machines_do_not_help_against_is_of_the_program(
    restart: Restart, *, is_programs: bool
) -> None:
    assert is_of_program(restart) is is_programs


@pytest.mark.parametrize("step", [None, 40])
def test_preemptions_are_never_a_crash_loop_wherever_they_meet_the_training(step: int | None) -> None:
    preempted = Restart(cause=Cause.PREEMPTED, message="m", step=step, checkpoint="a")
    for times in range(9):
        assert not is_crash_loop([preempted] * times, preempted)
        assert why_no_launch(Restarts(node=1), [preempted] * times, preempted) is None


def test_where_no_step_is_known_a_checkpoint_between_two_failures_shows_progress() -> None:
    first = Restart(cause=Cause.OOM, message="m")
    saved = Restart(cause=Cause.OOM, message="m", checkpoint="a")
    known = Restart(cause=Cause.OOM, message="m", step=4, checkpoint="b")
    allowed = Restarts(program=9)
    assert why_no_launch(allowed, [first], first) == (
        "crash loop: OOM for the second time, with no step and no newer checkpoint since the first"
    )
    assert why_no_launch(allowed, [first], saved) is None
    assert why_no_launch(allowed, [first, saved], saved) is not None
    assert why_no_launch(allowed, [first, saved], known) is None
    assert "at step 4" in (
        why_no_launch(allowed, [known], Restart(cause=Cause.OOM, message="m", step=4)) or ""
    )


@pytest.mark.parametrize(
    "step, checkpoint, is_loop",
    [(97, "a", True), (103, "a", True), (104, "a", False), (97, "b", False), (83, "b", True)],
)
def test_steps_that_another_node_has_reported_are_the_same_where_they_may_be_and_nothing_was_saved_since(
    step: int, checkpoint: str, *, is_loop: bool
) -> None:
    first = Restart(cause=Cause.USER, message="m", step=83, behind=20, checkpoint="a")
    second = replace(first, step=step, checkpoint=checkpoint)
    assert is_crash_loop([first], second) is is_loop
    assert is_crash_loop([replace(first, behind=0)], replace(second, behind=0)) is (step == 83)
    assert not is_crash_loop([first], replace(second, cause=Cause.OOM))
    # Of a launch that has not begun, or had no checkpoint to go on from, no step is known.
    assert not is_crash_loop([first], replace(second, step=None))


@pytest.mark.parametrize("cause", [Cause.CONFIG, Cause.ABANDONED, Cause.CANCELED, Cause.SERVICE])
def test_what_another_launch_cannot_mend_is_never_launched_again(cause: Cause) -> None:
    assert why_no_launch(Restarts(program=9, hang=9, node=9), [], Restart(cause=cause, message="m"))


@pytest.mark.parametrize(
    "cause, allowed",
    [
        (Cause.USER, Restarts(program=1)),
        (Cause.DATA, Restarts(program=1)),
        (Cause.OOM, Restarts(program=1)),
        (Cause.HANG, Restarts(hang=1)),
        (Cause.NODE, Restarts(node=1)),
    ],
)
def test_each_cause_has_the_budget_that_the_documents_name(cause: Cause, allowed: Restarts) -> None:
    failure = Restart(cause=cause, message="m", step=1)
    assert why_no_launch(allowed, [], failure) is None
    rest = Restarts(program=1 - allowed.program, hang=1 - allowed.hang, node=1 - allowed.node)
    assert why_no_launch(rest, [], failure) is not None


# The switch


def test_a_reason_of_an_earlier_launch_ends_no_later_one() -> None:
    past = Stop(message="past", restarts=(Restart(cause=Cause.USER, message="m"),))
    switch = StopSwitch()
    switch.ask(past)
    switch.rearm(1)
    switch.ask(past)
    switch.check()
    switch.ask(Stop(message="now", restarts=past.restarts * 2))
    with pytest.raises(Stopped, match="now"):
        switch.check()


def test_a_node_that_takes_part_later_is_not_ended_for_the_launches_before() -> None:
    before = (Restart(cause=Cause.USER, message="m"),)
    switch = StopSwitch()
    switch.take_part_in(1)
    switch.ask(Stop(message="past", restarts=before))
    switch.check()
    switch.ask(Stop(message="now", restarts=before * 2))
    with pytest.raises(Stopped, match="now"):
        switch.check()


@pytest.mark.parametrize("order", list(itertools.permutations(["signal", "restart"])))
def test_a_signal_is_never_forgotten_for_another_launch(order: tuple[str, ...]) -> None:
    switch = StopSwitch()
    for what in order:
        if what == "signal":
            switch.signalled.set()
            switch.ask(Stop(message="this node was stopped by SIGTERM"))
        else:
            switch.ask(Stop(message="again", restarts=(Restart(cause=Cause.USER, message="m"),)))
    with pytest.raises(Stopped, match="stopped by"):
        switch.rearm(1)


@pytest.mark.parametrize("launch", range(3))
@pytest.mark.parametrize("restarts", range(3))
def test_a_request_concerns_the_launches_before_the_one_that_it_asks_for(launch: int, restarts: int) -> None:
    failures = (Restart(cause=Cause.USER, message="m"),) * restarts
    request = StopRequest(cause=Cause.USER, message="m", restarts=failures)
    assert request.concerns(launch) == (restarts == 0 or launch < restarts)


def test_the_first_reason_counts_and_each_listener_hears_of_it_once_whenever_it_came() -> None:
    switch, heard = StopSwitch(), []
    switch.listen(lambda: heard.append("before"))
    switch.check()
    assert not switch.event.is_set()
    switch.ask(Stop(message="first"))
    switch.ask(Stop(message="second"))
    switch.listen(lambda: heard.append("after"))
    assert heard == ["before", "after"]
    assert switch.event.is_set()
    assert not switch.signalled.is_set()
    with pytest.raises(Stopped, match="first"):
        switch.check()


def test_a_pause_lasts_until_its_end_or_until_there_is_a_reason() -> None:
    switch = StopSwitch()
    began = time.monotonic()
    switch.pause(0.05)
    assert time.monotonic() - began >= 0.05
    threading.Timer(0.1, switch.ask, [Stop(message="enough")]).start()
    with pytest.raises(Stopped, match="enough"):
        switch.pause(600.0)


def test_a_launch_forgets_the_reason_and_the_listeners_of_the_one_before() -> None:
    switch, heard = StopSwitch(), []
    switch.listen(lambda: heard.append("of the launch before"))
    switch.ask(Stop(message="again", restarts=(Restart(cause=Cause.USER, message="m"),)))
    assert heard == ["of the launch before"]
    switch.rearm(1)
    assert not switch.event.is_set()
    switch.listen(lambda: heard.append("of this one"))
    switch.ask(Stop(message="the run ends"))
    assert heard == ["of the launch before", "of this one"]


class Gate(threading.Event):
    """An event that is held while it is being set, until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.came, self.may_go = threading.Event(), threading.Event()

    def set(self) -> None:
        self.came.set()
        assert self.may_go.wait(60)
        super().set()


def test_a_reason_that_a_launch_has_forgotten_leaves_no_event_behind() -> None:
    switch, again = StopSwitch(), Stop(message="again", restarts=(Restart(cause=Cause.USER, message="m"),))
    switch.event = gate = Gate()
    asks = threading.Thread(target=switch.ask, args=(again,))
    rearms = threading.Thread(target=switch.rearm, args=(1,))
    asks.start()
    assert gate.came.wait(60)
    rearms.start()
    rearms.join(0.2)
    gate.may_go.set()
    for each in (asks, rearms):
        each.join(60)
    assert (switch.stop, switch.event.is_set()) == (None, False)
    switch.pause(0.0)


def test_a_listener_of_a_later_launch_does_not_hear_of_the_reason_before() -> None:
    switch, heard, amid = StopSwitch(), list[str](), Gate()
    switch.listen(amid.set)
    again = Stop(message="again", restarts=(Restart(cause=Cause.USER, message="m"),))
    asks = threading.Thread(target=switch.ask, args=(again,))
    asks.start()
    assert amid.came.wait(60)
    switch.rearm(1)
    for name in ("first", "second"):
        switch.listen(lambda name=name: heard.append(name))
    amid.may_go.set()
    asks.join(60)
    assert heard == []


@pytest.mark.parametrize("is_stopped", [True, False])
def test_what_belongs_to_a_launch_stays_stopped_in_the_next(*, is_stopped: bool) -> None:
    switch, again = StopSwitch(), Stop(message="again", restarts=(Restart(cause=Cause.USER, message="m"),))
    if is_stopped:
        switch.ask(again)
    stopped = switch.until_stopped()
    assert stopped.is_set() is is_stopped
    switch.ask(again)
    assert stopped.is_set()
    switch.rearm(1)
    assert stopped.is_set()
    assert not switch.until_stopped().is_set()


@pytest.mark.parametrize("last", [True, False])
def test_any_other_reason_outlives_a_launch(*, last: bool) -> None:
    switch = StopSwitch()
    if last:
        switch.ask(Stop(message="the run ends"))
    else:
        switch.signalled.set()
    with pytest.raises(Stopped):
        switch.rearm(1)
    with pytest.raises(Stopped):
        switch.check()


def test_the_end_of_the_run_counts_though_another_launch_was_asked_for_before() -> None:
    switch, heard = StopSwitch(), []
    switch.listen(lambda: heard.append("stop"))
    again = (Restart(cause=Cause.USER, message="m"),)
    switch.ask(Stop(message="again", restarts=again))
    switch.ask(Stop(message="the same hang", cause=Cause.HANG))
    assert switch.stop is not None
    assert switch.stop.message == "again"
    switch.ask(Stop(message="the run ends"))
    switch.ask(Stop(message="once more", restarts=again * 2))
    with pytest.raises(Stopped, match="the run ends"):
        switch.rearm(1)
    assert heard == ["stop"]


SIGNALLED = """
import os, signal, sys
from airflow_provider_ocidist.agent.stopping import Stopped, StopSwitch
# The process that starts this may have blocked them.
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})
switch = StopSwitch()
switch.ask_on_signals()
for _ in range(2):
    os.kill(os.getpid(), int(sys.argv[1]))
try:
    switch.pause(600.0)
except Stopped as stopped:
    print(stopped, switch.signalled.is_set(), stopped.stop.restarts)
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_is_a_reason_and_names_itself(name: str) -> None:
    command = [sys.executable, "-c", SIGNALLED, str(int(signal.Signals[name]))]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240).stdout
    assert printed.strip() == f"this node was stopped by {name} True ()"


ELSEWHERE = """
import os, signal
from airflow_provider_ocidist.agent.stopping import StopSwitch
switch = StopSwitch()
switch.ask_on_signals()
# Only another thread can take them now, as where this one is busy in the kernel or about to wait.
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
os.kill(os.getpid(), signal.SIGTERM)
switch.event.wait()
print(switch.stop.message)
"""


def test_a_signal_that_another_thread_takes_ends_the_wait_of_the_main_one() -> None:
    command = [sys.executable, "-c", ELSEWHERE]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240).stdout
    assert printed.strip() == "this node was stopped by SIGTERM"


def test_a_process_that_waits_for_signals_ends_without_one() -> None:
    program = "from airflow_provider_ocidist.agent.stopping import StopSwitch; StopSwitch().ask_on_signals()"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=240)
