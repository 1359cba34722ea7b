"""Which files of two checkpoints are the same, whatever numbers are in their names: of steps, of ranks, of parts."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from airflow_provider_ocidist.agent.save.file_pairing import align


@dataclass(frozen=True)
class Layout:
    """How a program names the files of a checkpoint; the names of a kind differ in ranks and steps alone."""

    kinds: tuple[tuple[tuple[str, ...], tuple[int, ...]], ...]
    """Fields of a name, and the ranks that write such a file on this node."""
    world: int
    width: int
    """To which steps are padded; 0: not at all."""

    def names(self, step: object) -> dict[str, str]:
        """Return each name, and how it is called whatever the step is."""
        shown = f"{step:0{self.width}}" if isinstance(step, int) else str(step)
        return {
            self._name(at, fields, rank, shown): self._name(at, fields, rank, "#")
            for at, (fields, ranks) in enumerate(self.kinds)
            for rank in ranks
        }

    def _name(self, at: int, fields: tuple[str, ...], rank: int, step: str) -> str:
        values = {"step": step, "rank": str(rank), "world": f"{self.world:05}", "fixed": "2"}
        # A letter for each kind, for one program gives different files different names.
        return f"{'abcdef'[at]}/" + "_".join(f"{field}{values[field]}" for field in fields)


def layout_from(dice: random.Random) -> Layout:
    world = dice.randint(1, 6)
    kinds = []
    for _ in range(dice.randint(1, 5)):
        fields = [dice.choice(["step", "world", "fixed"]) for _ in range(dice.randint(1, 3))]
        ranks = [0]
        if dice.random() < 0.7:
            fields.insert(dice.randint(0, len(fields)), "rank")
            ranks = sorted(dice.sample(range(world), dice.randint(1, world)))
        kinds.append((tuple(fields), tuple(ranks)))
    return Layout(tuple(kinds), world, dice.choice([0, 0, 6]))


@pytest.mark.parametrize("seed", range(300))
def test_the_next_has_all_files_of_the_one_before_and_what_it_lacks_is_named(seed: int) -> None:
    print("seed", seed)
    dice = random.Random(seed)
    layout = layout_from(dice)
    # Small steps, which are numbers of ranks too; a program may go back as well.
    its, step = dice.sample(range(8), 2)
    before, whole = layout.names(its), layout.names(step)
    found = align(whole, step, before, its)
    assert found.lacking == ()
    assert set(found.now.values()) == set(found.before.values())
    for missing in whole:
        some = [name for name in whole if name != missing]
        lacking = align(some, step, before, its).lacking
        assert len(lacking) == 1, (missing, lacking)
        # The last of its kind leaves nothing that distinguishes a rank from a step.
        if any(name[0] == missing[0] for name in some):
            assert lacking == (found.now[missing],)


@pytest.mark.parametrize("seed", range(100))
def test_a_file_more_is_seen(seed: int) -> None:
    print("seed", seed)
    dice = random.Random(seed)
    layout = layout_from(dice)
    its, step = dice.sample(range(8), 2)
    found = align([*layout.names(step), "more_9.bin"], step, layout.names(its), its)
    assert found.lacking == ()
    assert set(found.now.values()) - set(found.before.values()) == {"more_9.bin"}


@pytest.mark.parametrize("number, its", [(None, 1), (2, None), (None, None)])
def test_without_a_number_of_a_checkpoint_names_are_compared_as_they_are(
    number: int | None, its: int | None
) -> None:
    assert align(["part_2"], number, ["part_1"], its).lacking == ("part_1",)
    assert align(["part_1"], number, ["part_1"], its).lacking == ()
    assert align([], number, ["part_1"], its).lacking == ("part_1",)


def test_files_of_the_step_before_that_lie_in_the_next_are_none_of_its_own() -> None:
    before = ["global_step2/rank_0", "global_step2/rank_1", "global_step2/rank_2"]
    now = [*before, "global_step3/rank_0", "global_step3/rank_2"]
    assert align(now, 3, before, 2).lacking == ("global_step#/rank_1",)
