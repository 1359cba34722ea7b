"""The processes of a campaign: one that hangs or is gone costs its own schedule only."""

from __future__ import annotations

import multiprocessing
import os
import time

import pytest

from tests.simulation import command, crew


def square_or_worse(what: int | str) -> str:
    if what == "hangs":
        while True:
            pass
    if what == "is gone":
        os._exit(9)
    return f"{what} done"


def lost(what: int | str, why: str) -> str:
    return f"{what} lost: {why}"


def test_each_item_has_its_answer_though_one_hangs_and_one_ends_its_process():
    items = [1, "hangs", 2, 3, "is gone", 4, 5, 6, 7, 8]
    found = sorted(crew.run_all(items, square_or_worse, lost, 2, limit=0.5))
    assert [text for text in found if text.endswith("done")] == [f"{number} done" for number in range(1, 9)]
    assert [text for text in found if "lost" in text] == [
        "hangs lost: not over after 0 s",
        "is gone lost: its process ended with 9",
    ]


def test_processes_are_replaced_after_so_many_items():
    owners = list(crew.run_all(range(9), lambda _: os.getpid(), lambda *_: 0, 1, replaced_after=3))
    assert len(owners) == 9
    assert len(set(owners)) == 3


def test_what_a_campaign_has_begun_does_not_outlive_it():
    reader, writer = multiprocessing.Pipe(duplex=False)

    def hang(_: int) -> None:
        writer.send(os.getpid())
        time.sleep(600)

    context = multiprocessing.get_context("fork")
    campaign = context.Process(target=lambda: list(crew.run_all([1], hang, lambda *_: None, 1)))
    campaign.start()
    writer.close()
    assert reader.recv() > 0
    campaign.kill()
    campaign.join()
    assert reader.poll(30)
    with pytest.raises(EOFError):
        reader.recv()


def test_a_seed_that_does_not_end_is_a_violation_and_the_campaign_goes_on(monkeypatch, capsys):
    def work(what: tuple[str, bool, str | None]) -> command.Done:
        if what[0] == "7.1":
            time.sleep(60)
        return command.Done(seed=what[0], violations=[])

    monkeypatch.setattr("sys.argv", ["simulation", "--seeds", "3", "--seed", "7", "--processes", "2"])
    assert command.campaign(command.arguments_of(), work, limit=0.3) == 1
    shown = capsys.readouterr().out
    assert "3 schedules" in shown
    assert "VIOLATED does not end: 1 schedules" in shown
    assert "seed 7.1: not over after" in shown


def test_an_answer_that_cannot_be_sent_ends_the_process_and_not_the_campaign():
    results = list(crew.run_all(["a"], lambda _: lambda: 1, lambda item, _: f"{item} lost", 1))
    assert results == ["a lost"]
