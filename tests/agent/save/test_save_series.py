"""Which saves are of one series, whatever a program calls them."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from airflow_provider_ocidist.agent.save.save_series import SaveSeries
from airflow_provider_ocidist.storage.checkpoint_names import Placed, place
from tests.agent.save.naming import of_several_models, some_names


def placed(name: str) -> Placed:
    found = place(name)
    assert found, name
    return found


def learned(*names: str) -> SaveSeries:
    series = SaveSeries()
    for name in names:
        series.note(placed(name))
    return series


def series_of(series: SaveSeries, names: Iterable[str]) -> set[str]:
    return {series.of(placed(name)) for name in names}


@pytest.mark.parametrize("seed", range(60))
def test_what_a_program_saves_at_each_step_is_one_series_and_no_two_are_one(seed: int) -> None:
    dice = random.Random(seed)
    names = some_names(dice)
    print("seed", seed, [name(1) for name in names])
    series = learned(*(name(save) for save in range(1, 40) for name in names))
    found = [series_of(series, map(name, range(20, 45))) for name in names]
    assert [len(each) for each in found] == [1] * len(names)
    assert len(set.union(*found)) == len(names)
    assert all(series.goes_on(placed(name(40))) for name in names)


@pytest.mark.parametrize("seed", range(20))
def test_a_number_to_which_the_program_comes_back_names_a_model(seed: int) -> None:
    dice = random.Random(seed)
    models = of_several_models(dice, dice.randint(2, 6))
    series = learned(*(name(save) for save in range(1, 9) for name in models))
    found = [series_of(series, map(name, range(5, 12))) for name in models]
    assert [len(each) for each in found] == [1] * len(models)
    assert len(set.union(*found)) == len(models)


@pytest.mark.parametrize(
    "names",
    [
        ["resnet18.pt", "resnet34.pt", "resnet50.pt"],
        ["fold_1.pt", "fold_2.pt", "fold_3.pt", "fold_4.pt"],
        ["vit-b16.pt", "vit-b32.pt"],
        ["wav2vec2.pt", "data2vec.pt"],
    ],
)
def test_names_that_are_used_again_and_again_are_series_of_their_own(names: list[str]) -> None:
    series = learned(*names * 4)
    assert len(series_of(series, names)) == len(names)


def test_a_checkpoint_that_is_added_to_later_is_still_one_of_its_series() -> None:
    names = [
        name for save in range(2, 30) for name in (f"G_{save}000", f"G_{save - 1}000", f"G_{save - 1}000")
    ]
    assert len(series_of(learned(*names), names)) == 1


def test_two_names_may_still_be_those_of_two_models_and_a_third_shows_that_they_are_not() -> None:
    names = ["G_1000.pth", "G_2000.pth", "G_3000.pth"]
    assert len(series_of(learned(*names[:2]), names[:2])) == 2
    assert len(series_of(learned(*names), names)) == 1


def test_a_name_that_was_used_once_does_not_go_on_and_a_recognized_step_does() -> None:
    series = learned("best.pt", "step-1.pt", "step-2.pt", "ckpt-abc.pt", "last.pt", "last.pt")
    assert [series.goes_on(placed(name)) for name in ("best.pt", "step-3.pt", "ckpt-abc.pt", "last.pt")] == [
        False,
        True,
        False,
        True,
    ]


@pytest.mark.parametrize("name", ["G_1000.pth", "G1000.pth", "net12k.pth", "a1b2c3d4.pth", "best.pth"])
def test_a_name_that_was_never_seen_is_of_its_own_series(name: str) -> None:
    assert SaveSeries().of(placed(name)) == placed(name).series


@pytest.mark.parametrize("name", ["{}{}.pth", "{}{}k.pth", "net-{}{}.pth", "{}{}-last.pth"])
def test_letters_beside_a_number_are_a_part_of_the_name(name: str) -> None:
    saves = [name.format(letter, 1000 * save) for save in range(1, 9) for letter in "GD"]
    series = learned(*saves)
    assert [len(series_of(series, saves[first::2])) for first in (0, 1)] == [1, 1]
    assert len(series_of(series, saves)) == 2


def test_what_is_saved_over_several_times_before_the_next_one_is_one_series() -> None:
    names = [f"G_{save}000.pth" for save in range(1, 4)]
    assert len(series_of(learned(*(name for name in names for _ in range(9))), names)) == 1


def test_a_number_names_a_model_once_the_program_has_come_back_more_often_than_it_has_models() -> None:
    names = [f"fold_{number}.pt" for number in range(1, 5)]
    again = [*names, *names]
    assert len(series_of(learned(*again), names)) == 1
    assert len(series_of(learned(*again, names[0]), names)) == 4


@pytest.mark.parametrize("seed", range(5))
def test_models_stay_apart_after_each_single_save(seed: int) -> None:
    dice = random.Random(seed)
    models = of_several_models(dice, 3)
    saves = [name(save) for save in range(1, 12) for name in models]
    for known in range(24, len(saves)):
        series = learned(*saves[:known])
        assert len(series_of(series, saves)) == 3, saves[known - 1]
