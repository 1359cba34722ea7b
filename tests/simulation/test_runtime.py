"""The simulated runtime: chance by name, locks, and what each process has of its own in a module."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Any

import pytest

from tests.simulation import runtime
from tests.simulation.runtime import Global, Lock, Process, RLock, World


@pytest.fixture
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(request.node.name)
    monkeypatch.setattr(runtime, "WORLD", made)
    yield made
    made.close()


@pytest.mark.parametrize("key", [("ties",), ("latency", "node 0.1", "store.get", 7), (), ("a/b", 1.5)])
def test_a_number_is_that_of_its_seed_and_name(key: tuple[object, ...]):
    for seed in ("1.0", "suite.7", ""):
        text = f"{seed}/{'/'.join(map(str, key))}".encode()
        expected = int.from_bytes(blake2b(text, digest_size=8).digest(), "big")
        assert [World(seed).number(*key) for _ in range(2)] == [expected] * 2


@pytest.mark.parametrize("kind", [Lock, RLock])
@pytest.mark.parametrize("seed", range(5))
def test_threads_are_in_a_lock_one_at_a_time_in_the_order_in_which_they_came(
    world: World, kind: Callable[[], Any], seed: int
):
    lock, inside, came, had = kind(), [], [], []
    dice = random.Random(seed)

    def use(number: int, first: float, within: float) -> None:
        world.sleep(first)
        came.append(number)
        with lock:
            inside.append(number)
            assert inside == [number]
            world.sleep(within)
            had.append(inside.pop())

    for number in range(6):
        process = Process(world, f"process {number % 3}")
        process.spawn(use, number, dice.uniform(0, 3), dice.choice([0.1, 0.7, 2.0]))
    world.run(60.0, lambda: len(had) == 6)
    assert world.crashes == []
    assert had == came
    assert not lock.locked()


@pytest.mark.parametrize("seed", range(5))
def test_each_process_has_its_own_of_what_a_module_keeps_and_nodes_have_what_travels_to_them(
    world: World, seed: int
):
    dice = random.Random(seed)
    everywhere: dict[str, Any] = {"_kept": None}
    in_airflow: dict[str, Any] = {"_kept": None}
    world.give_globals([Global(everywhere, "_kept", list, True), Global(in_airflow, "_kept", list, False)])
    names = ["node 0.0", "node 0.1", "worker 1.1", "triggerer 1"]
    wrong: list[str] = []

    def keep(name: str) -> None:
        for own in range(1, 9):
            world.sleep(dice.uniform(0.1, 2.0))
            for module in (everywhere,) if name.startswith("node") else (everywhere, in_airflow):
                module["_kept"].append(name)
                wrong.extend([name] if module["_kept"] != [name] * own else [])

    for name in names:
        Process(world, name, runs_package=True).spawn(keep, name)
    world.run(60.0, lambda: False)
    assert world.crashes == []
    assert wrong == []


def story(seed: int, *, pieces: int) -> list[tuple[float, str]]:
    """Return what threads that sleep, wait for each other and begin others have done, in a world run in pieces."""
    world = World(f"story {seed}")
    runtime.WORLD = world
    dice, done, lock = random.Random(seed), [], Lock()

    def live(name: str, generation: int) -> None:
        for _ in range(dice.randint(1, 4)):
            # No two are due at one time: their order is drawn anew where a run ends before them.
            world.sleep(3 * dice.random())
            with lock:
                done.append((world.now, name))
                world.sleep(dice.random())
            if generation < 3 and dice.random() < 0.5:
                world.current.process.spawn(live, f"{name}'", generation + 1, delay=dice.random())

    for number in range(4):
        Process(world, f"process {number}").spawn(live, str(number), 0)
    for piece in range(pieces):
        # Each piece is over by its time, or by the number of steps that are done.
        world.run(60.0 * (piece + 1) / pieces, lambda piece=piece: piece % 2 == 1 and len(done) > 8 * piece)
    world.run(60.0, lambda: False)
    world.close()
    assert world.crashes == []
    return done


@pytest.mark.parametrize("seed", range(20))
def test_a_world_that_is_run_in_pieces_comes_to_the_same(monkeypatch: pytest.MonkeyPatch, seed: int):
    monkeypatch.setattr(runtime, "WORLD", None)
    whole = story(seed, pieces=1)
    assert whole
    assert [at for at, _ in whole] == sorted(at for at, _ in whole)
    assert story(seed, pieces=7) == whole


def test_threads_that_begin_others_do_not_lie_on_each_others_stacks(world: World):
    ended = []

    def begin_another(left: int) -> None:
        if left:
            Process(world, "another").spawn(begin_another, left - 1)
        # Below a function of C, whose frames lie on the stack of the machine.
        ended.extend(map(world.sleep, [1000.0]))

    Process(world, "first").spawn(begin_another, 8000)
    world.run(5000.0, lambda: False)
    assert len(ended) == 8001
