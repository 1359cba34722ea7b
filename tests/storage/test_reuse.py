"""Of a published checkpoint, what lies in the local folder with the published checksums is not fetched again."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from airflow_provider_ocidist.errors import CheckpointError
from airflow_provider_ocidist.storage.checkpoints import fetch
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
