"""Which saves are behind a newer one: by the order of their beginnings, and by the stamps of their files."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_ocidist.agent.save.entries import Candidate, Signature, Stamp
from airflow_provider_ocidist.agent.save.newest_saves import NewestSaves
from airflow_provider_ocidist.storage.checkpoint_names import Placed


def an_item(modified_ns: int, series: str = "step-", name: str = "y") -> Candidate:
    files = (("x", Stamp(1, modified_ns, 1)),)
    return Candidate(Path(name), Placed(series=series), Signature(files), modified_ns)


def saves(*, went_back: bool = False, ahead_of: int = 10**9) -> NewestSaves:
    """Return what knows of no save yet; stamps from `ahead_of` on are ahead of its clock."""
    found = NewestSaves()
    clock: Any = SimpleNamespace()
    clock.went_back = lambda: went_back
    clock.not_ahead = lambda stamp_ns: stamp_ns if stamp_ns < ahead_of else 0
    found.clock = clock
    return found


@pytest.mark.parametrize(
    "number, modified_ns, is_behind",
    [(3, 100, False), (4, 100, False), (3, 101, False), (2, 101, True), (4, 99, True)],
)
def test_a_save_is_behind_one_that_was_begun_or_written_later(
    number: int, modified_ns: int, is_behind: bool
) -> None:
    known = saves()
    assert not known.is_behind(an_item(1), 1), "none is known"
    known.add(an_item(100, name="x"), 3)
    assert known.is_behind(an_item(modified_ns), number) is is_behind
    assert not known.is_behind(an_item(1, "best"), 1), "of another series"


@pytest.mark.parametrize("number, is_behind", [(2, True), (3, False), (4, False)])
def test_what_has_taken_the_place_of_another_is_newer_whatever_its_time(number: int, is_behind: bool) -> None:
    known = saves()
    known.add(an_item(100, name="best.pt"), 3)
    for modified_ns in (1, 99, 101):
        assert known.is_behind(an_item(modified_ns, name="best.pt"), number) is is_behind


def test_the_newest_of_all_series_is_the_one_that_was_written_last() -> None:
    known = saves()
    assert known.written_ns == 0
    for at, series in ((50, "best"), (100, "step-"), (70, "best")):
        known.add(an_item(at, series, name=series), at)
    assert known.written_ns == 100
    assert known.is_behind(an_item(60, "best"), 200)
    assert not known.is_behind(an_item(70, "best"), 200)


@pytest.mark.parametrize("went_back", [False, True])
def test_where_the_clock_is_set_back_the_saves_before_are_newer_than_none(went_back: bool) -> None:
    known = saves(went_back=went_back)
    known.add(an_item(100, name="x"), 3)
    known.begin_look()
    assert known.is_behind(an_item(99), 4) is not went_back
    assert known.written_ns == (0 if went_back else 100)


def test_a_stamp_that_is_ahead_of_the_clock_holds_back_no_later_save() -> None:
    known = saves(ahead_of=100)
    known.add(an_item(100), 3)
    assert known.written_ns == 0
    assert not known.is_behind(an_item(1), 4)
    assert known.is_behind(an_item(1), 2), "the order of the beginnings counts all the same"


def test_while_the_clock_runs_no_save_is_forgotten() -> None:
    known = NewestSaves()
    known.add(an_item(100), 3)
    known.begin_look()
    assert known.written_ns == 100
