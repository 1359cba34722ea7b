"""In which order checkpoints that wait are sent, which of them are held meanwhile, and which give way: pure rules."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.save.entries import Candidate, Signature
from airflow_provider_ocidist.agent.save.proofs import Proof
from airflow_provider_ocidist.agent.save.publishing import Whole
from airflow_provider_ocidist.agent.save.upload_order import UploadOrder
from airflow_provider_ocidist.storage.checkpoint_names import place


def whole(name: str, begun: int) -> Whole:
    placed = place(name)
    assert placed
    item = Candidate(path=Path(name), placed=placed, signature=Signature(files=()), begun_ns=begun)
    return Whole(item, Proof("renamed"), begun, placed.step)


class Program:
    """A program whose saves wait, and what has become of them."""

    def __init__(self) -> None:
        self.order = UploadOrder()
        self.waiting: list[Whole] = []
        self.saves = 0

    def save(self, *names: str) -> None:
        for name in names:
            self.saves += 1
            self.waiting = [each for each in self.waiting if each.item.path.name != name]
            self.waiting.append(whole(name, self.saves))
            self.order.add(self.waiting[-1])

    def send(self) -> str:
        """Send what is next; return its name."""
        first = self.order.of(self.waiting)[0]
        self.waiting.remove(first)
        self.order.sent(first, self.waiting)
        return first.item.path.name

    def next(self, *, in_turn: bool = True) -> list[str]:
        return names(self.order.of(self.waiting, in_turn=in_turn))


def names(found: Iterable[Whole]) -> list[str]:
    return [each.item.path.name for each in found]


@pytest.mark.parametrize("in_turn", [True, False])
def test_the_newest_of_each_series_is_before_all_that_is_older(*, in_turn: bool) -> None:
    program = Program()
    program.save("step-1.pt", "last.bin", "step-2.pt", "best.bin", "step-3.pt")
    assert program.next(in_turn=in_turn) == ["step-3.pt", "best.bin", "last.bin", "step-2.pt", "step-1.pt"]
    assert program.order.of([]) == program.order.held([]) == []


def test_by_what_was_begun_last_and_not_by_what_waits_longest_the_newest_is_known() -> None:
    order = UploadOrder()
    late, early = whole("step-9.pt", 2), whole("step-8.pt", 1)
    for waiting in ([late, early], [early, late]):
        assert order.of(waiting) == [late, early]
        assert order.held(waiting) == [late]
        assert order.behind(waiting, late, 1) == [early]


def test_a_series_has_its_turn_once_two_of_others_were_sent_before_it() -> None:
    program = Program()
    program.save("last.bin", "best.bin", "last.bin", "best.bin", "step-1.pt")
    sent = [program.send()]
    program.save("step-2.pt")
    # One was sent before these two: neither is overdue.
    assert program.next() == ["step-2.pt", "best.bin", "last.bin"]
    sent.append(program.send())
    program.save("step-3.pt")
    assert program.next() == ["best.bin", "last.bin", "step-3.pt"]
    assert program.next(in_turn=False) == ["step-3.pt", "best.bin", "last.bin"]
    sent.append(program.send())
    # After what had its turn before a newer one, the newest has its own: a restart needs it.
    assert program.next() == ["step-3.pt", "last.bin"]
    sent.append(program.send())
    assert program.next() == ["last.bin"]
    assert sent == ["step-1.pt", "step-2.pt", "best.bin", "step-3.pt"]


def test_of_two_that_are_overdue_the_one_that_was_passed_more_often_comes_first() -> None:
    program = Program()
    program.save("last.bin", "last.bin", "step-1.pt")
    program.send()
    program.save("best.bin", "best.bin", "step-2.pt")
    program.send()
    program.save("step-3.pt")
    assert program.next() == ["last.bin", "step-3.pt", "best.bin"]
    program.order.sent(whole("step-3.pt", 99), program.waiting)
    program.save("step-4.pt")
    assert program.next() == ["last.bin", "best.bin", "step-4.pt", "step-3.pt"]


def test_what_a_series_was_passed_is_forgotten_once_it_is_sent_or_does_not_wait() -> None:
    for gives_way in (False, True):
        program = Program()
        program.save("last.bin", "last.bin", "step-1.pt")
        program.send()
        program.save("step-2.pt")
        last = next(each for each in program.waiting if each.item.path.name == "last.bin")
        program.waiting.remove(last)
        program.order.sent(program.waiting.pop() if gives_way else last, program.waiting)
        program.save("last.bin", "step-3.pt")
        assert program.send() == "step-3.pt"
        program.save("step-4.pt")
        assert program.next()[:2] == ["step-4.pt", "last.bin"], "it was passed once since"


@pytest.mark.parametrize("singles", [1, 2, 3, 4])
def test_of_names_that_were_used_once_only_the_two_newest_have_a_turn(singles: int) -> None:
    program = Program()
    once = [f"{letter}-{letter}{letter}.pt" for letter in "abcd"[:singles]]
    program.save(*once, "step-1.pt")
    for step in range(2, 4):
        program.send()
        program.save(f"step-{step}.pt")
    overdue = once[::-1][:2]
    assert program.next() == [*overdue, "step-3.pt", *once[::-1][2:]]


def test_no_more_than_four_are_held_and_those_that_are_sent_first() -> None:
    program = Program()
    letters = [f"{letter}.bin" for letter in "abcdef"]
    program.save(*letters, *letters, "step-1.pt")
    assert names(program.order.held(program.waiting)) == ["step-1.pt", "f.bin", "e.bin", "d.bin"]
    program.save("step-2.pt")
    # Of each series only the newest is held.
    assert names(program.order.held(program.waiting)) == ["step-2.pt", "f.bin", "e.bin", "d.bin"]
    for step in range(3, 5):
        program.send()
        program.save(f"step-{step}.pt")
    assert names(program.order.held(program.waiting)) == ["f.bin", "e.bin", "d.bin", "c.bin"]
    assert names(program.order.held(program.waiting, in_turn=False)) == [
        "step-4.pt",
        "f.bin",
        "e.bin",
        "d.bin",
    ]


@pytest.mark.parametrize("keep", [1, 2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_of_a_series_all_but_the_newest_give_way_and_none_of_another(seed: int, keep: int) -> None:
    dice = random.Random(seed)
    waiting = [
        whole(f"{dice.choice(('step', 'model_epoch'))}-{number}.pt", number) for number in range(1, 12)
    ]
    order = UploadOrder()
    for series in ("step", "model_epoch"):
        alike = [each for each in waiting if each.item.path.name.startswith(series)]
        shuffled = dice.sample(waiting, len(waiting))
        if alike:
            assert order.behind(shuffled, alike[0], keep) == alike[:-keep]
            assert len({order.series(each) for each in alike}) == 1


@pytest.mark.parametrize("seed", range(20))
def test_however_slowly_they_are_sent_each_second_one_is_the_newest_and_each_series_has_its_turn(
    seed: int,
) -> None:
    dice = random.Random(seed)
    steady = ["last.bin", "best.bin", "ema.bin"][: dice.randint(1, 3)]
    program, sent, ages = Program(), list[str](), list[int]()
    for step in range(1, 40):
        program.save(*steady, f"step-{step}.pt")
        if step % dice.randint(1, 3) == 0:
            begun = {each.item.path.name: each.begun for each in program.waiting}
            sent.append(program.send())
            ages.append(program.saves - begun[sent[-1]])
    settled = ages[4:]
    assert all(min(pair) == 0 for pair in zip(settled, settled[1:])), (sent, ages)
    for begin in range(4, len(sent) - 2 * len(steady)):
        assert set(steady) <= set(sent[begin : begin + 2 * (len(steady) + 1)]) or begin + 2 * (
            len(steady) + 1
        ) > len(sent), sent
