"""Which generation a try belongs to, over whole lives of a task: retries, clears, edits, by Airflow's numbers. Pure."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from airflow_provider_ocidist.model.attempts import (
    Attempt,
    End,
    Place,
    generation_of,
    merged_records,
    newest_attempt,
)
from airflow_provider_ocidist.model.run import Plan, RunKey, RunRef, Tries

SEED = random.randrange(1_000_000)
LIVES = 400
KEY = RunKey(dag_id="dag", run_id="run", task_id="train")


def an_attempt(generation: int = 0, attempt: int = 1, **values: object) -> Attempt:
    key = RunKey(dag_id="dag", run_id="run", task_id="train", generation=generation, attempt=attempt)
    return Attempt(**{"key": key, "place": Place(backend="b", run_dir=f"oci://b@n/{key.name}"), **values})


@dataclass
class Task:
    """A task in Airflow 3: how its numbers change, from `taskinstance.py`; and what its tries record."""

    retries: int
    max_tries: int = -1
    number: int = 0
    generation: int | None = None
    known: list[Attempt] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    over: bool = False
    """Whether it has failed for good: only a clear makes another try."""

    def __post_init__(self) -> None:
        self.max_tries = self.retries

    def clear(self) -> None:
        self.max_tries = self.number + self.retries
        self.story.append(f"clear(retries={self.retries})")

    def run(self, *, end: bool | None, final: bool = False) -> None:
        """Run one try; `end`: it sees success or failure of its gang, None: it is killed before.

        `final`: the failure is one after which Airflow makes no retry.
        """
        self.number += 1
        now = Tries(try_number=self.number, max_tries=self.max_tries, retries=self.retries)
        self.generation = generation_of(now, self.known)
        latest = newest_attempt(each for each in self.known if each.key.generation == self.generation)
        failed = latest is not None and latest.end is not None and not latest.end.succeeded
        self.over = bool(end is False and final)
        number = (latest.key.attempt + failed) if latest else 1
        made = an_attempt(self.generation, number)
        seen = latest and latest.end
        if end is not None:
            seen = End(succeeded=end, try_number=self.number, final=self.over)
        record = Attempt(key=made.key, place=made.place, tries=now, end=seen)
        self.known = merged_records(self.known, [record])
        self.story.append(f"try {self.number} of {self.max_tries}: generation {self.generation}, {end}")

    @property
    def succeeded(self) -> bool:
        latest = newest_attempt(self.known)
        return latest is not None and latest.end is not None and latest.end.succeeded


@pytest.mark.parametrize("number", range(LIVES))
def test_a_clear_after_a_success_or_a_failure_for_good_trains_again_whatever_retries_say_and_a_retry_never_does(
    number: int,
) -> None:
    seed = SEED + number
    chance = random.Random(seed)
    task = Task(retries=chance.randint(0, 4))
    for _ in range(chance.randint(2, 12)):
        cleared = bool(task.number) and (chance.random() < 0.4 or task.number > task.max_tries or task.over)
        before, had_succeeded = task.generation, task.succeeded or task.over
        if cleared:
            # Edited or not: what the task says when it is cleared is what its tries then read.
            task.retries = chance.randint(0, 5)
            task.clear()
        task.run(end=chance.choice([True, True, False, None]), final=chance.random() < 0.5)
        told = f"seed {seed}: {'; '.join(task.story)}"
        if before is None:
            continue
        if cleared and had_succeeded:
            assert task.generation > before, told
        if not cleared:
            assert task.generation == before, told
        assert task.generation >= before, told


def test_a_try_that_failed_after_its_training_had_succeeded_goes_on_with_that_success() -> None:
    known = [
        an_attempt(
            2, end=End(succeeded=True, try_number=1), tries=Tries(try_number=1, max_tries=2, retries=2)
        )
    ]
    assert generation_of(Tries(try_number=2, max_tries=2, retries=2), known) == 2


@pytest.mark.parametrize("retries", [0, 1, 2, 4, 5])
def test_editing_retries_amid_a_training_that_has_not_succeeded_begins_nothing_anew(retries: int) -> None:
    known = [an_attempt(3, tries=Tries(try_number=1, max_tries=3, retries=3))]
    assert generation_of(Tries(try_number=2, max_tries=3, retries=retries), known) == 3
    known = [
        an_attempt(
            3, end=End(succeeded=False, try_number=1), tries=Tries(try_number=1, max_tries=3, retries=3)
        )
    ]
    assert generation_of(Tries(try_number=2, max_tries=3, retries=retries), known) == 3


def test_a_clear_that_lowers_max_tries_still_makes_the_generation_grow() -> None:
    known = [an_attempt(5, tries=Tries(try_number=1, max_tries=5, retries=5))]
    assert generation_of(Tries(try_number=2, max_tries=1, retries=0), known) == 6


def test_a_dag_run_that_was_made_again_trains_again() -> None:
    known = [
        an_attempt(
            1, end=End(succeeded=True, try_number=1), tries=Tries(try_number=1, max_tries=1, retries=1)
        )
    ]
    assert generation_of(Tries(try_number=1, max_tries=1, retries=1), known) == 2


def test_what_an_older_version_left_is_of_the_generation_that_airflow_names() -> None:
    assert generation_of(Tries(try_number=2, max_tries=3, retries=3), [an_attempt(3)]) == 3
    assert generation_of(Tries(try_number=3, max_tries=5, retries=3), [an_attempt(3)]) == 5
    assert generation_of(Tries(try_number=1, max_tries=2), []) == 2


def test_a_record_survives_json_and_the_fuller_of_two_wins() -> None:
    ref = RunRef(backend="b", key=KEY, nodes=2, job_id="j", run_ids=("r", ""), run_dir="d", submitted_at=1.0)
    bare = an_attempt(tries=Tries(try_number=1, max_tries=0))
    fuller = Attempt(key=bare.key, place=bare.place, ref=ref)
    ended = Attempt(key=bare.key, place=bare.place, end=End(succeeded=False))
    elsewhere = Attempt(
        key=bare.key, place=Place(backend="b", run_dir=bare.place.run_dir, compartment_id="c")
    )
    assert [Attempt.from_json(each.to_json()) for each in (bare, fuller, ended)] == [bare, fuller, ended]
    assert merged_records([bare], [fuller]) == merged_records([fuller], [bare]) == [fuller]
    assert merged_records([ended], [fuller]) == [ended]
    assert len(merged_records([bare], [elsewhere])) == 2


def tries(number: int, max_tries: int = 3, retries: int | None = 3) -> Tries:
    return Tries(try_number=number, max_tries=max_tries, retries=retries)


@pytest.mark.parametrize(
    "end, now, generation",
    [
        pytest.param(None, tries(2), 2, id="open"),
        pytest.param(End(succeeded=False, try_number=1), tries(2), 2, id="failed"),
        pytest.param(End(succeeded=False, try_number=5), tries(2), 2, id="failed at a later number"),
        pytest.param(End(succeeded=False, try_number=1, final=True), tries(2), 3, id="failed for good"),
        pytest.param(End(succeeded=True, try_number=1), tries(2), 2, id="succeeded, never cleared"),
        pytest.param(End(succeeded=True, try_number=1), tries(2, retries=2), 3, id="cleared after its try"),
        pytest.param(End(succeeded=True, try_number=2), tries(3, retries=2), 2, id="cleared before its try"),
        pytest.param(End(succeeded=True, try_number=2), tries(4, retries=1), 3, id="cleared just after it"),
        pytest.param(End(succeeded=True, try_number=1), tries(2, retries=None), 2, id="retries not known"),
        pytest.param(End(succeeded=True), tries(2, retries=2), 2, id="by a version that names no try"),
        pytest.param(End(succeeded=True, try_number=2), tries(2), 3, id="made again, the same number"),
        pytest.param(End(succeeded=True, try_number=3), tries(2), 3, id="made again, a lower number"),
        pytest.param(End(succeeded=False, try_number=1), tries(2, max_tries=2), 3, id="fewer tries"),
        pytest.param(End(succeeded=False, try_number=1), tries(2, max_tries=4), 4, id="more tries"),
        pytest.param(End(succeeded=True, try_number=1), tries(9, max_tries=9), 9, id="many more tries"),
    ],
)
def test_each_row_of_the_table(end: End | None, now: Tries, generation: int) -> None:
    older = an_attempt(1, attempt=9, end=End(succeeded=True, try_number=9, final=True), tries=tries(1))
    latest = an_attempt(2, attempt=2, end=end, tries=tries(1))
    assert generation_of(now, [latest, older]) == generation_of(now, [older, latest]) == generation
    assert generation_of(now, []) == now.max_tries


def a_plan(key: RunKey = KEY, **changes: Any) -> Plan:
    given: dict[str, Any] = {
        "key": key,
        "backend": "b",
        "nodes": 2,
        "topology": "t",
        "reason": "r",
        "requests": (),
        "run_dir": "oci://b@n/dir",
        "compartment_id": "c",
        "region": "fra",
        "tries": tries(1),
        "candidate": "large",
        **changes,
    }
    return Plan(**given)


def test_a_record_has_the_place_of_its_plan_and_of_a_gang_its_own() -> None:
    made = Attempt.of(a_plan())
    assert made.place == Place(backend="b", run_dir="oci://b@n/dir", compartment_id="c", region="fra")
    assert (made.key, made.tries, made.ref, made.candidate) == (KEY, tries(1), None, "large")
    ref = RunRef(
        backend="b",
        key=KEY,
        nodes=2,
        job_id="j",
        run_ids=("r", "s"),
        run_dir="elsewhere",
        submitted_at=1.0,
        compartment_id="d",
    )
    found = Attempt.of(a_plan(), ref)
    assert found.place == Place(backend="b", run_dir="elsewhere", compartment_id="d", region="fra")
    assert Place.of_gang(ref) == replace(found.place, region=None)
    assert found.ref == ref


def test_an_attempt_is_that_of_a_plan_with_its_key_at_its_place() -> None:
    made = Attempt.of(a_plan())
    assert made.is_that_of(a_plan())
    another = RunKey(dag_id="dag", run_id="run", task_id="train", attempt=2)
    assert not made.is_that_of(a_plan(another))
    for change in ({"backend": "x"}, {"run_dir": "x"}, {"compartment_id": "x"}, {"region": "x"}):
        assert not made.is_that_of(a_plan(**change)), change
    # A record of an earlier version names no region.
    older = replace(made, place=replace(made.place, region=None))
    assert older.is_that_of(a_plan())
    assert older.is_that_of(a_plan(region="x"))


def test_the_name_of_a_place_stays_the_same_from_one_version_to_the_next() -> None:
    assert Place(backend="b", run_dir="d").digest == Place(backend="b", run_dir="d", region="fra").digest
    text = "b\0c\0oci://b@n/dir"
    assert Place.of(a_plan()).digest == hashlib.sha256(text.encode()).hexdigest()[:8]
    assert Place(backend="b", run_dir="d").digest == hashlib.sha256(b"b\0\0d").hexdigest()[:8]


def test_a_record_without_tries_took_the_generation_for_airflows_number() -> None:
    assert an_attempt(4).max_tries == 4
    assert an_attempt(4, tries=tries(1, max_tries=7)).max_tries == 7


def test_the_newest_attempt_is_the_highest_and_of_its_records_the_one_with_a_gang() -> None:
    ref = RunRef(backend="b", key=KEY, nodes=2, job_id="j", run_ids=("r", ""), run_dir="d", submitted_at=1.0)
    with_gang = an_attempt(1, 2, ref=ref)
    known = [an_attempt(0, 9), an_attempt(1, 2), with_gang, an_attempt(1, 1, ref=ref), an_attempt(1, 2)]
    assert newest_attempt(known) is with_gang
    assert newest_attempt([]) is None
    assert [each.order for each in merged_records(known)] == [(0, 9), (1, 1), (1, 2)]


def test_of_two_records_the_one_that_knows_more_nodes_wins_and_of_equals_the_later() -> None:
    def with_nodes(*run_ids: str) -> Attempt:
        ref = RunRef(
            backend="b", key=KEY, nodes=2, job_id="j", run_ids=run_ids, run_dir="d", submitted_at=1.0
        )
        return an_attempt(ref=ref)

    none, one, both = with_nodes("", ""), with_nodes("r", ""), with_nodes("r", "s")
    for less, more in ((an_attempt(), none), (none, one), (one, both)):
        assert merged_records([less], [more]) == merged_records([more], [less]) == [more]
    later = with_nodes("", "s")
    assert merged_records([one, later]) == [later]
    assert merged_records([later, one]) == [one]
    ended = [an_attempt(end=End(succeeded=each)) for each in (True, False)]
    assert merged_records(ended) == ended[1:]


def test_a_record_is_read_by_later_versions_under_the_names_that_it_has() -> None:
    bare = Attempt.from_json(
        {"key": an_attempt().to_json()["key"], "place": {"backend": "b", "run_dir": "d"}}
    )
    assert (bare.tries, bare.ref, bare.end, bare.candidate) == (None, None, None, "")
    assert (bare.place.compartment_id, bare.place.region) == (None, None)
    assert End(succeeded=True) == End(succeeded=True, try_number=None, failure=None, final=False)
    assert (End(succeeded=True).failure, End(succeeded=True).final) == (None, False)
    ended = an_attempt(end=End(succeeded=False, try_number=7)).to_json()["end"]
    assert ended["number"] == 7
