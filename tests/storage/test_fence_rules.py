"""Who may save to a place: the latest attempt that has fenced it, whatever is written between a look and a write."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_ocidist.errors import DamagedFence, Fenced, StorageError
from airflow_provider_ocidist.model.fence import LOWEST, Fence
from airflow_provider_ocidist.storage import conditional_writes
from airflow_provider_ocidist.storage.fences import advance_fence, current_fence
from airflow_provider_ocidist.storage.stores.base import Buffer
from airflow_provider_ocidist.storage.stores.local import LocalStore


class Busy(LocalStore):
    """A place at which others act just before something is done; counts what is done."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.before: dict[str, list[Callable[[], object]]] = {}
        self.done: list[str] = []

    def _do(self, verb: str) -> None:
        self.done.append(verb)
        for act in self.before.get(verb, [])[:1]:
            self.before[verb].pop(0)
            act()

    def read(self, name: str) -> bytes:
        self._do("read")
        return super().read(name)

    def stat(self, name: str) -> object:
        self._do("stat")
        return super().stat(name)

    def write_if(self, name: str, data: Buffer, etag: str | None) -> bool:
        self._do("write")
        return super().write_if(name, data, etag)


@pytest.fixture
def store(tmp_path: Path) -> Busy:
    return Busy(tmp_path / "place")


def at(attempt: int, generation: int = 0) -> Fence:
    return Fence(generation=generation, attempt=attempt)


def write(store: LocalStore, fence: Fence) -> None:
    """Advance the fence as another node does, past the one that is watched."""
    advance_fence(LocalStore(store.folder), fence)


def test_a_place_that_nobody_has_fenced_is_distinguished_from_one_of_the_lowest(store: Busy) -> None:
    assert current_fence(store) is None
    advance_fence(store, LOWEST)
    assert current_fence(store) == LOWEST == Fence(generation=0, attempt=0)


def test_a_fence_is_read_as_it_was_made(store: Busy) -> None:
    for fence in (at(1), at(7), at(1, 1), at(12, 3)):
        advance_fence(store, fence)
        assert current_fence(store) == fence
    assert json.loads(LocalStore(store.folder).read("fence.json")) == {"generation": 3, "attempt": 12}


def test_a_launch_is_refused_once_a_later_one_of_its_attempt_saves(store: Busy) -> None:
    first, second = (Fence(attempt=2, launch=launch) for launch in (0, 1))
    advance_fence(store, first)
    advance_fence(store, second)
    assert current_fence(store) == second
    with pytest.raises(Fenced) as caught:
        advance_fence(store, first)
    assert str(caught.value) == (
        f"launch 1 of attempt 2 has begun to save there: launch 0 publishes and deletes nothing in {store.uri} any more"
    )
    advance_fence(store, at(3))
    with pytest.raises(Fenced, match=r"^attempt 3 has begun to save there: attempt 2 publishes"):
        advance_fence(store, second)


def test_a_fence_that_holds_costs_one_look(store: Busy) -> None:
    advance_fence(store, at(2))
    store.done.clear()
    advance_fence(store, at(2))
    assert store.done == ["read"]


@pytest.mark.parametrize("later, earlier", [(at(3), at(2)), (at(1, 2), at(9, 1)), (at(1), LOWEST)])
def test_an_earlier_attempt_is_refused_by_name_and_changes_nothing(
    store: Busy, later: Fence, earlier: Fence
) -> None:
    advance_fence(store, later)
    store.done.clear()
    with pytest.raises(Fenced) as caught:
        advance_fence(store, earlier)
    assert str(caught.value) == (
        f"attempt {later.attempt} has begun to save there: "
        f"attempt {earlier.attempt} publishes and deletes nothing in {store.uri} any more"
    )
    assert caught.value.uri == store.uri
    assert current_fence(store) == later
    assert "write" not in store.done


def test_a_fence_that_another_process_has_just_made_is_not_written_again(store: Busy) -> None:
    store.before["stat"] = [lambda: write(store, at(2))]
    advance_fence(store, at(2))
    assert current_fence(store) == at(2)
    assert "write" not in store.done


def test_numbers_that_no_attempt_has_are_named_as_what_is_wrong(store: Busy) -> None:
    LocalStore(store.folder).write("fence.json", b'{"generation": 0, "attempt": -1}')
    with pytest.raises(DamagedFence, match="its numbers are not those of an attempt"):
        current_fence(store)


NO_NUMBERS = ["x", "7", "", None, True, False, 1.0, 1.5, math.nan, math.inf, -1, 2**31, 10**400, [], [1], {}]
"""What may stand in JSON in place of the number of an attempt."""


def damaged(dice: random.Random) -> bytes:
    """Return what no attempt has written, as somebody's tool, a cut copy or another program may leave it."""
    numbers: dict[str, object] = {
        "generation": dice.randrange(5),
        "attempt": dice.randrange(1, 5),
        "launch": dice.randrange(3),
    }
    whole = json.dumps(numbers).encode()
    kind = dice.randrange(5)
    if kind == 0:
        return whole[: dice.randrange(len(whole))]
    if kind == 1:
        return dice.choice([b"[]", b"5", b'"x"', b"null", b"\xff", b"[" * 100_000, b"{}" + whole, b"\0" * 40])
    for name in dice.sample([*numbers], dice.randint(1, 3)):
        numbers[name] = dice.choice(NO_NUMBERS)
    return json.dumps(numbers).encode()


@pytest.mark.parametrize("seed", range(60))
def test_a_fence_that_cannot_be_understood_permits_nothing_and_is_named_with_the_remedy(
    store: Busy, seed: int
) -> None:
    print("seed", seed)
    content = damaged(random.Random(seed))
    LocalStore(store.folder).write("fence.json", content)
    with pytest.raises(DamagedFence, match="delete it once no node is left that does") as caught:
        advance_fence(store, at(1))
    place = store.uri_of("fence.json")
    assert str(caught.value).startswith(f"{place} does not say which attempt saves there (")
    assert caught.value.uri == place
    assert not caught.value.retryable
    assert LocalStore(store.folder).read("fence.json") == content, "nobody writes over it"
    LocalStore(store.folder).delete("fence.json")
    advance_fence(store, at(1))
    assert current_fence(store) == at(1)


def test_what_a_later_version_adds_to_a_fence_is_no_damage(store: Busy) -> None:
    LocalStore(store.folder).write("fence.json", b'{"attempt": 3, "by": {"node": 1}}')
    assert current_fence(store) == at(3)


@pytest.mark.parametrize("verb", ["read", "stat", "write"])
@pytest.mark.parametrize("other", [at(1), at(2), at(3)])
@pytest.mark.parametrize("first", [None, at(1)])
def test_of_fences_at_any_moment_the_highest_holds(
    store: Busy, verb: str, other: Fence, first: Fence | None
) -> None:
    if first:
        write(store, first)
    store.before = {verb: [lambda: write(store, other)]}
    if other > at(2):
        with pytest.raises(Fenced):
            advance_fence(store, at(2))
        assert current_fence(store) == other
    else:
        advance_fence(store, at(2))
        assert current_fence(store) == at(2)


def test_one_that_is_overtaken_again_and_again_by_earlier_ones_gets_through(store: Busy) -> None:
    store.before = {"write": [lambda number=number: write(store, at(number)) for number in range(1, 15)]}
    advance_fence(store, at(20))
    assert current_fence(store) == at(20)


def test_a_place_that_never_rests_is_an_error_that_may_pass(
    store: Busy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "write_if", lambda *_: store.done.append("write") and False)
    with pytest.raises(StorageError) as caught:
        advance_fence(store, at(1))
    assert str(caught.value) == f"{store.uri_of('fence.json')} keeps changing"
    assert caught.value.retryable
    assert caught.value.uri == store.uri
    assert store.done.count("write") == conditional_writes.TRIES == 20


@pytest.mark.parametrize("seed", range(20))
def test_in_whatever_order_attempts_come_only_the_latest_so_far_holds(store: Busy, seed: int) -> None:
    dice = random.Random(seed)
    order = [at(attempt, generation) for attempt, generation in itertools.product(range(1, 4), range(3))]
    dice.shuffle(order)
    highest = LOWEST
    for fence in order:
        try:
            advance_fence(store, fence)
        except Fenced:
            assert fence < highest, f"seed {seed}"
        else:
            assert fence >= highest, f"seed {seed}"
        highest = max(highest, fence)
        assert current_fence(store) == highest, f"seed {seed}"
