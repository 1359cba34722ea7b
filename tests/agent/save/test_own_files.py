"""Which files of a checkpoint count as this node's own, after some were fetched to resume from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.save.own_files import OwnFiles

PART, OTHER_PART = (f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(2))
RANDOM = "rng_state_1.pth"
SECOND = 10**9


def write(folder: Path, name: str, content: bytes = b"x", at: int = 100) -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    os.utime(file, ns=(at * SECOND, at * SECOND))
    return file


@pytest.fixture
def fetched(tmp_path: Path) -> Path:
    """A folder of checkpoints into which one was fetched."""
    for name in (PART, OTHER_PART, RANDOM, "config.json"):
        write(tmp_path / "global_step8", name)
    return tmp_path


def test_of_what_was_fetched_the_parts_of_processes_are_not_own_and_the_rest_is(fetched: Path) -> None:
    own = OwnFiles(fetched)
    entry = fetched / "global_step8"
    assert own.names(entry) == {"config.json"}
    assert own.stale(entry) == {PART, OTHER_PART, RANDOM}


@pytest.mark.parametrize("change", ["size", "time"])
def test_a_part_that_was_written_since_is_own(fetched: Path, change: str) -> None:
    own = OwnFiles(fetched)
    entry = fetched / "global_step8"
    write(entry, PART, *((b"xy", 100) if change == "size" else (b"y", 101)))
    assert own.names(entry) == {"config.json", PART}
    assert own.stale(entry) == {OTHER_PART, RANDOM}


def test_a_part_to_which_a_mount_gives_another_inode_is_not_written_since(fetched: Path) -> None:
    own = OwnFiles(fetched)
    entry = fetched / "global_step8"
    write(entry, "new", at=100).replace(entry / PART)
    assert PART in own.stale(entry)


def test_what_is_deleted_is_neither(fetched: Path) -> None:
    own = OwnFiles(fetched)
    entry = fetched / "global_step8"
    (entry / PART).unlink()
    assert own.names(entry) == {"config.json"}
    assert own.stale(entry) == {OTHER_PART, RANDOM}


def test_all_of_what_was_not_there_at_the_start_is_own(fetched: Path) -> None:
    own = OwnFiles(fetched)
    write(fetched / "global_step9", PART)
    assert own.names(fetched / "global_step9") == {PART}
    assert own.stale(fetched / "global_step9") == set()
    assert own.names(fetched / "missing") == own.stale(fetched / "missing") == set()


def test_an_entry_is_known_by_its_name_wherever_links_to_it_lie(fetched: Path, tmp_path: Path) -> None:
    own = OwnFiles(fetched)
    held = tmp_path / "held" / "global_step8"
    held.mkdir(parents=True)
    for name in (PART, "config.json"):
        os.link(fetched / "global_step8" / name, held / name)
    assert (own.names(held), own.stale(held)) == ({"config.json"}, {PART})


def test_what_the_pattern_leaves_out_was_not_fetched(fetched: Path) -> None:
    own = OwnFiles(fetched, "step-.*")
    assert own.stale(fetched / "global_step8") == set()
