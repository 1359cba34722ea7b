"""Of a published checkpoint, what lies in the local folder with the published checksums is not fetched again."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from airflow_provider_ocidist.errors import CheckpointError
from airflow_provider_ocidist.storage.checkpoints import fetch, verify
from airflow_provider_ocidist.storage.reuse import foreign_in
from airflow_provider_ocidist.storage.stores.opening import open_store
from tests.storage.published import publish
from tests.storage.trees import make_tree, read_tree

SEED = int(os.environ.get("REUSE_SEED", "20261124"))
STATES = ("whole", "changed", "shorter", "missing", "linked")


def changed(content: bytes) -> bytes:
    """Return other content of the same length."""
    return bytes(byte ^ 1 for byte in content)


def lay(path: Path, state: str, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if state == "whole":
        path.write_bytes(content)
    elif state == "changed":
        path.write_bytes(changed(content))
    elif state == "shorter":
        path.write_bytes(content[:-1])
    elif state == "linked":
        elsewhere = path.parents[2] / f"elsewhere-{path.name}"
        elsewhere.write_bytes(content)
        path.symlink_to(elsewhere)


@pytest.mark.parametrize("number", range(20))
def test_what_is_whole_here_is_not_fetched_and_all_else_is(tmp_path: Path, number: int) -> None:
    draw = random.Random(f"{SEED}.{number}")
    print(f"seed {SEED}.{number}")
    sizes = {f"part/{index}.bin": draw.randint(1, 4000) for index in range(draw.randint(1, 8))}
    tree = make_tree(tmp_path / "checkpoint-7", sizes)
    ref = publish(tmp_path / "checkpoint-7", str(tmp_path / "kept"), step=7)
    store = open_store(ref.uri)
    for name, content in tree.items():
        state = draw.choice(STATES)
        lay(tmp_path / "in/checkpoint-7" / name, state, content)
        if state == "whole":
            # Who fetched it would find that the store has lost it.
            store.write(name, changed(content))
    if draw.random() < 0.5:
        lay(tmp_path / "in/checkpoint-7/part/of another save.bin", "whole", b"left over")
    fetched = fetch(ref.uri, tmp_path / "in")
    assert read_tree(fetched) == tree
    assert not [path for path in fetched.rglob("*") if path.is_symlink()]
    assert [path.name for path in (tmp_path / "in").iterdir() if path.is_dir()] == ["checkpoint-7"]


@pytest.mark.parametrize("state", STATES)
def test_a_single_file_is_used_where_it_is_whole_and_fetched_where_it_is_not(
    tmp_path: Path, state: str
) -> None:
    content = b"weights" * 100
    (tmp_path / "step-7.pt").write_bytes(content)
    ref = publish(tmp_path / "step-7.pt", str(tmp_path / "kept"), step=7)
    lay(tmp_path / "a/in/step-7.pt", state, content)
    if state == "whole":
        open_store(ref.uri).write("step-7.pt", changed(content))
    fetched = fetch(ref.uri, tmp_path / "a/in")
    assert fetched.read_bytes() == content
    assert not fetched.is_symlink()
    assert [path.name for path in fetched.parent.iterdir()] == ["step-7.pt"]


def test_what_is_whole_in_neither_place_is_refused_and_stays_as_it_was(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "checkpoint-7", {"a": 10, "b": 10})
    ref = publish(tmp_path / "checkpoint-7", str(tmp_path / "kept"), step=7)
    here = tmp_path / "in/checkpoint-7"
    lay(here / "a", "whole", tree["a"])
    lay(here / "b", "changed", tree["b"])
    open_store(ref.uri).write("b", changed(tree["b"]))
    with pytest.raises(CheckpointError, match="checksum"):
        fetch(ref.uri, tmp_path / "in")
    assert read_tree(tmp_path / "in") == {
        "checkpoint-7/a": tree["a"],
        "checkpoint-7/b": changed(tree["b"]),
    }


@pytest.mark.parametrize("number", range(10))
def test_each_byte_that_is_compared_is_reported(tmp_path: Path, number: int) -> None:
    draw = random.Random(f"{SEED}.{number}")
    print(f"seed {SEED}.{number}")
    sizes = {f"part/{index}.bin": draw.randint(1, 3_000_000) for index in range(draw.randint(1, 4))}
    tree = make_tree(tmp_path / "checkpoint-7", sizes)
    ref = publish(tmp_path / "checkpoint-7", str(tmp_path / "kept"), step=7)
    compared = 0
    for name, content in tree.items():
        state = draw.choice(STATES)
        lay(tmp_path / "in/checkpoint-7" / name, state, content)
        compared += len(content) * (state in ("whole", "changed"))
    read: list[int] = []
    fetch(ref.uri, tmp_path / "in", on_read=read.append)
    assert sum(read) == compared


@pytest.mark.parametrize("number", range(5))
def test_what_lies_behind_a_linked_folder_is_fetched_and_shares_no_file_with_it(
    tmp_path: Path, number: int
) -> None:
    """Who writes to the checkpoint later would change the file behind the link."""
    draw = random.Random(f"{SEED}.links.{number}")
    print(f"seed {SEED}.links.{number}")
    sizes = {f"part/deep/{index}.bin": draw.randint(1, 4000) for index in range(draw.randint(1, 4))}
    tree = make_tree(tmp_path / "checkpoint-7", sizes)
    ref = publish(tmp_path / "checkpoint-7", str(tmp_path / "kept"), step=7)
    linked = draw.choice(["checkpoint-7", "checkpoint-7/part", "checkpoint-7/part/deep"])
    for name, content in tree.items():
        lay(tmp_path / "in/checkpoint-7" / name, "whole", content)
    (tmp_path / "in" / linked).rename(tmp_path / "elsewhere")
    (tmp_path / "in" / linked).symlink_to(tmp_path / "elsewhere")
    fetched = fetch(ref.uri, tmp_path / "in")
    assert read_tree(fetched) == tree
    there = {path.stat().st_ino for path in (tmp_path / "elsewhere").rglob("*.bin")}
    assert len(there) == len(tree), "what is behind the link stays"
    assert there.isdisjoint(path.stat().st_ino for path in fetched.rglob("*.bin"))


# What is no part of the checkpoint


@pytest.mark.parametrize("number", range(20))
def test_what_is_not_of_a_checkpoint_is_named_and_what_is_missing_of_it_is_not(
    tmp_path: Path, number: int
) -> None:
    draw = random.Random(f"{SEED}.foreign.{number}")
    print(f"seed {SEED}.foreign.{number}")
    sizes = {f"part/{index}.bin": draw.randint(1, 4000) for index in range(draw.randint(1, 4))}
    tree = make_tree(tmp_path / "checkpoint-7", {**sizes, "top.bin": 10})
    ref = publish(tmp_path / "checkpoint-7", str(tmp_path / "kept"), step=7)
    here = tmp_path / "in/checkpoint-7"
    says = set()
    for name, content in tree.items():
        state = draw.choice([*STATES, *["whole"] * 6])
        lay(here / name, state, content)
        if state not in ("whole", "missing"):
            says.add(f"{name} is not as it was published")
    for name in draw.sample(
        ["more.bin", "part/more.bin", "other/deep/more.bin", "link"], draw.choice([0, 0, 1, 2])
    ):
        lay(here / name, "whole", b"left over") if name != "link" else (here / name).symlink_to(tmp_path)
        says.add(f"{name} is not of the checkpoint")
    (here / "empty").mkdir(parents=True, exist_ok=True)
    assert foreign_in(verify(ref.uri), here) in (says or {None})


@pytest.mark.parametrize(
    "state, says",
    [
        ("whole", None),
        ("missing", None),
        ("changed", "it is not as it was published"),
        ("shorter", "it is not as it was published"),
        ("linked", "it is a link"),
        ("a folder", "more.bin is not of the checkpoint"),
    ],
)
def test_a_single_file_is_of_the_checkpoint_or_it_is_not(
    tmp_path: Path, state: str, says: str | None
) -> None:
    (tmp_path / "step-7.pt").write_bytes(b"weights")
    ref = publish(tmp_path / "step-7.pt", str(tmp_path / "kept"), step=7)
    here = tmp_path / "a/in/step-7.pt"
    if state == "a folder":
        lay(here / "more.bin", "whole", b"weights")
    else:
        lay(here, state, b"weights")
    assert foreign_in(verify(ref.uri), here) == says


def test_a_folder_that_is_a_link_is_foreign_whatever_is_behind_it(tmp_path: Path) -> None:
    make_tree(tmp_path / "checkpoint-7", {"a": 10})
    ref = publish(tmp_path / "checkpoint-7", str(tmp_path / "kept"), step=7)
    (tmp_path / "in").symlink_to(tmp_path / "checkpoint-7")
    assert foreign_in(verify(ref.uri), tmp_path / "in") == "it is a link"
    assert foreign_in(verify(ref.uri), tmp_path / "checkpoint-7") is None
    assert foreign_in(verify(ref.uri), tmp_path / "absent") is None
