"""Names of runs and of their records: made and read back by one piece of code each."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from airflow_provider_ocidist.model.run import RunKey
from airflow_provider_ocidist.model.work_dir import end_of, order_in, record_file

SEED = random.randrange(10_000)
LETTERS = "abcXYZ019-_.é ~gG"


def a_key(dice: random.Random) -> RunKey:
    def text() -> str:
        return "".join(dice.choices(LETTERS, k=dice.randint(1, 60)))

    return RunKey(
        dag_id=text(),
        run_id=text(),
        task_id=dice.choice([text(), "train-g3", "x-a7", "g1-a1"]),
        generation=dice.choice([0, 1, dice.randrange(10_000)]),
        attempt=dice.choice([1, 2, dice.randrange(1, 10_000)]),
    )


@pytest.mark.parametrize("case", range(30))
def test_what_a_name_was_made_of_is_read_back_from_it(case: int) -> None:
    print("seed", SEED + case)
    key = a_key(random.Random(SEED + case))
    assert RunKey.stem_in(key.task_name) == (key.stem, key.generation)
    assert RunKey.attempt_in(key.name) == key.attempt
    assert RunKey.stem_in(replace(key, generation=key.generation + 1).task_name) != RunKey.stem_in(
        key.task_name
    )


@pytest.mark.parametrize("text", ["", "-g1", "run", "run-g", "run-gx", "run-g1x", "a-g1/b"])
def test_what_is_no_name_of_a_tasks_folder_is_read_as_none(text: str) -> None:
    assert RunKey.stem_in(text) is None


@pytest.mark.parametrize("text", ["", "-a1", "run", "run-a", "run-ax", "run-a1 "])
def test_what_is_no_name_of_a_run_has_no_attempt(text: str) -> None:
    assert RunKey.attempt_in(text) is None


@pytest.mark.parametrize("case", range(10))
def test_a_record_names_its_attempt_and_its_end_does_not(case: int) -> None:
    print("seed", SEED + case)
    dice = random.Random(SEED + case)
    age = dice.randrange(100), dice.randrange(1, 100)
    record = record_file(*age, f"{dice.randrange(16**8):08x}")
    assert order_in(record) == age
    assert order_in(end_of(record)) is None


@pytest.mark.parametrize(
    "name", ["", "g1-a1.json", "g1-a1-.json", "g1-a1-x", "1-a1-x.json", "g01-a1-x.json", "g1-a1-x.json.new"]
)
def test_another_file_among_the_records_is_none(name: str) -> None:
    assert order_in(name) is None
