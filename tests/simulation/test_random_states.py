"""What a save over the checkpoint of another number of nodes leaves of it, as the rules see it."""

from __future__ import annotations

from tests.simulation.program import Save, files_of, without_stale_states


def save_of(nodes: int, number: int) -> Save:
    name, files, owners = files_of("hf", f"<save{number}>", 4, nodes, 1500)
    return Save(0, number, 4, name, files, owners, 0.0)


def saved_over(old: Save, new: Save, *, but: str = "") -> list[tuple[Save, str]]:
    """Return the files of a folder in which one save was written over another, but for one file."""
    found = dict.fromkeys(old.files, old) | dict.fromkeys(new.files, new)
    return [(old if name == but else save, name) for name, save in found.items()]


def test_random_states_of_another_number_of_nodes_are_no_part_of_the_save_over_them():
    for before, after in ((2, 1), (1, 2), (3, 2)):
        old, new = save_of(before, 1), save_of(after, 2)
        found = without_stale_states(saved_over(old, new))
        assert {save for save, _ in found} == {new}, (before, after)
        assert {name for _, name in found} == set(new.files), (before, after)


def test_what_a_save_has_under_its_own_names_makes_it_a_mixture_if_it_is_older():
    old, new = save_of(2, 1), save_of(2, 2)
    for name in ("rng_state_1.pth", "optimizer.pt"):
        assert {save for save, _ in without_stale_states(saved_over(old, new, but=name))} == {old, new}, name
