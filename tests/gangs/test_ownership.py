"""Which try owns a gang: the latest that is known; an earlier one gives up, and says what to do where that is wrong."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from airflow_provider_ocidist.errors import Overtaken
from airflow_provider_ocidist.gangs.ownership import claim, give_way
from airflow_provider_ocidist.model.attempts import Attempt, End, Place
from airflow_provider_ocidist.model.homes import cancel_command
from airflow_provider_ocidist.model.run import Plan, RunKey, RunRef, Tries
from tests.service_in_memory import FAILED, LIVE, Model
from tests.training_jobs import a_job, a_key

KEY = a_key()


@pytest.fixture
def model() -> Model:
    return Model()


def begun(
    model: Model, key: RunKey, number: int | None, ref: RunRef | None = None, **more: object
) -> Attempt:
    """Return the record of an attempt that a try of this number has begun; None: it has no number."""
    place = Place(backend=model.kind, run_dir=f"runs/{key.name}")
    tries = None if number is None else Tries(try_number=number, max_tries=0)
    return Attempt(**{"key": key, "place": place, "tries": tries, "ref": ref, **more})  # type: ignore[arg-type]  # short


def plan(model: Model) -> Plan:
    return model.plan(a_job(), KEY)


def test_the_later_try_owns_the_gang_and_the_first_one_only_looks(model: Model) -> None:
    ref = model.has(KEY, [LIVE])
    claim(model, ref, 1)
    assert model.done("claim") == []
    for number in (2, 3):
        claim(model, ref, number)
        assert model.claims == {ref.key.name: number}
    for number in (1, 2):
        with pytest.raises(Overtaken) as caught:
            claim(model, ref, number)
        assert caught.value.args[0] == (
            f"try 3 of this task waits for {ref.key.name}, and this is try {number}: "
            "it gives up and does not end the gang"
        )
    claim(model, ref, 3)


def overtaken(model: Model, number: int, *known: Attempt) -> str:
    with pytest.raises(Overtaken) as caught:
        give_way(model, plan(model), known, number)
    return str(caught.value)


@pytest.mark.parametrize("count", [1, 2])
def test_a_try_gives_way_to_a_gang_of_a_later_one_that_lives_and_says_how_to_end_it(
    model: Model, count: int
) -> None:
    keys = [replace(KEY, attempt=attempt) for attempt in range(1, count + 1)]
    refs = [model.has(key, [LIVE]) for key in keys]
    known = [begun(model, key, 5 + at, ref) for at, (key, ref) in enumerate(zip(keys, refs, strict=True))]
    said = overtaken(model, 4, *known)
    commands = " and ".join(cancel_command(ref) for ref in refs)
    assert said == (
        f"try {4 + count} of this task has begun {keys[-1].name}, and this is try 4: it gives up and does not end "
        "that gang. If the DAG run was deleted and created again, so that tries count from 1, "
        f"end it with {commands}, or at the service, then clear the task"
    )


def test_a_try_gives_way_to_one_whose_gang_nobody_sees_yet_and_names_its_record(model: Model) -> None:
    key = replace(KEY, generation=2, attempt=3)
    said = overtaken(model, 1, begun(model, key, 2))
    assert said.endswith(
        f"remove its record, g2-a3-*.json below attempts/{key.task_digest}/ of its work_dir, then clear the task"
    )


def test_of_several_later_tries_the_latest_is_named_wherever_it_stands(model: Model) -> None:
    key = KEY
    attempts = [begun(model, replace(key, attempt=number), 3 + number) for number in (1, 2, 3)]
    for order in itertools.permutations(attempts):
        assert overtaken(model, 1, *order).startswith(
            f"try 6 of this task has begun {attempts[-1].key.name}, "
        )
    with pytest.raises(Overtaken) as caught:
        give_way(model, plan(model), attempts, 1)
    assert caught.value.try_number == 6


def test_nothing_is_looked_for_where_no_later_try_is_known(model: Model) -> None:
    key = KEY
    ref = model.has(key, [LIVE])
    known = [
        begun(model, key, 3, ref),
        begun(model, replace(key, attempt=2), 2),
        begun(model, replace(key, attempt=3), None),
        begun(model, replace(key, attempt=4), 9, end=End(succeeded=False)),
    ]
    give_way(model, plan(model), known, 3)
    assert model.calls == []


def test_what_a_later_try_has_left_ended_keeps_nobody_away(model: Model) -> None:
    ref = model.has(KEY, [FAILED])
    give_way(model, plan(model), [begun(model, KEY, 9, ref)], 1)
    assert model.done("status") == [ref.job_id]


@pytest.mark.parametrize("is_seen", [True, False])
def test_an_attempt_whose_gang_is_not_recorded_yet_is_known_by_its_key(model: Model, is_seen: bool) -> None:
    """A try that is killed may leave a gang of which its record knows nothing; once that is found, its state counts."""
    keys = [replace(KEY, attempt=attempt) for attempt in (1, 2)]
    ended = [model.has(key, [FAILED]) for key in (keys if is_seen else keys[:1])]
    known = [begun(model, keys[0], 8, ended[0]), begun(model, keys[1], 9)]
    if is_seen:
        give_way(model, plan(model), known, 1)
    else:
        assert overtaken(model, 1, *known).startswith(f"try 9 of this task has begun {keys[1].name}, ")


def test_a_gang_that_its_service_does_not_know_any_more_keeps_nobody_away_but_one_at_another_home_does(
    model: Model,
) -> None:
    key = KEY
    ref = model.has(key, [LIVE])
    del model.existing[ref.job_id]
    give_way(model, plan(model), [begun(model, key, 9, ref)], 1)
    elsewhere = begun(model, key, 9, ref, place=Place(backend="another", run_dir="runs"))
    assert "remove its record" in overtaken(model, 1, elsewhere)


def test_a_living_gang_of_an_earlier_try_is_no_reason(model: Model) -> None:
    mine, theirs = model.has(KEY, [LIVE]), model.has(replace(KEY, attempt=2), [FAILED])
    give_way(model, plan(model), [begun(model, mine.key, 1, mine), begun(model, theirs.key, 9, theirs)], 1)
    assert model.done("status") == [theirs.job_id]
