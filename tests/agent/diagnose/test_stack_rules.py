"""What stacks show of a training that hangs: pure rules, each by itself."""

from __future__ import annotations

import random

import pytest

from airflow_provider_ocidist.agent.diagnose.stacks import (
    INNERMOST,
    NAMED,
    ProcessStack,
    as_text,
    frames_shown,
    main_frames,
    odd_ones,
    stack_positions,
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
