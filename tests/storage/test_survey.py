"""What a batch of copies would read and write is known before any of it is copied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.errors import JobFileError, StorageError
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage.copy_items import read_items
from airflow_provider_ocidist.storage.survey import Sides, survey
from airflow_provider_ocidist.storage.transfer import CopyRules
from tests.storage.trees import make_tree


@pytest.mark.parametrize(
    "data, expected",
    [
        ({"a/": "t/", "b/": "t/ "}, None),
        (
            [{"source": "a/", "target": "t/"}, {"source": "c/", "target": "t/"}],
            "would write .*/t/x, and so would item 1",
        ),
        ([{"source": "a/", "target": "b/new"}, {"source": "b/", "target": "t"}], "reads where item 1 writes"),
        (
            [{"source": "a/x", "target": "b/y"}, {"source": "b/y", "target": "t/"}],
            "reads where item 1 writes",
        ),
        (
            [{"source": "a/", "target": "t/"}, {"source": "b/", "target": "t/", "delete_extra": True}],
            "would delete what item 1 copies",
        ),
        (
            [{"source": "b/deep/", "target": "t/"}, {"source": "a/", "target": "b/", "delete_extra": True}],
            "would delete what item 1 reads",
        ),
        (
            [{"source": "b/y", "target": "t/"}, {"source": "a/", "target": "./b/", "delete_extra": True}],
            "would delete what item 1 reads",
        ),
        (
            [{"source": "a/", "target": "t/deep/"}, {"source": "c/", "target": "t/", "delete_extra": True}],
            "would delete what item 1 copies",
        ),
        (
            [{"source": "b/", "target": "t/"}, {"source": "a/", "target": "t/deep/", "delete_extra": True}],
            "would delete what item 1 copies",
        ),
        (
            [{"source": "b/", "target": "t/"}, {"source": "a/", "target": "b/deep/", "delete_extra": True}],
            "would delete what item 1 reads",
        ),
    ],
)
def test_items_that_are_in_each_others_way_are_refused(
    data: Any, expected: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_tree(tmp_path / "a", {"x": 5})
    make_tree(tmp_path / "b", {"y": 5, "deep/z": 5})
    make_tree(tmp_path / "c", {"x": 5})
    items = read_items(data, CopyRules())
    if expected is None:
        assert [one.wanted for one in survey(items, Sides.of())] == [1, 2]
        return
    with pytest.raises(JobFileError, match=expected):
        survey(items, Sides.of())
    assert not (tmp_path / "t").exists()


def surveyed(folder: Path, *items: dict[str, Any]) -> list[tuple[int, int, int]]:
    """Return the number of each item, and how many files and bytes are to be copied."""
    found = survey(
        read_items([{**item, "target": f"{folder}/t/"} for item in items], CopyRules()), Sides.of()
    )
    return [(one.item.number, one.wanted, one.bytes) for one in found]


def test_to_write_into_a_folder_that_another_item_reads_below_deletes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_tree(tmp_path / "a", {"x": 5})
    make_tree(tmp_path / "b", {"y": 5, "deep/z": 5})
    data = [{"source": "b/deep/", "target": "t/"}, {"source": "a/", "target": "b/"}]
    assert [one.wanted for one in survey(read_items(data, CopyRules()), Sides.of())] == [1, 1]


def test_the_bytes_of_what_is_wanted_are_counted(tmp_path: Path) -> None:
    make_tree(tmp_path / "a", {"x": 5, "y": 0, "z.tmp": 7})
    assert surveyed(tmp_path, {"source": f"{tmp_path}/a/", "exclude": "*.tmp"}) == [(1, 2, 5)]


def test_patterns_that_fit_no_file_of_an_item_are_an_error_where_it_has_files(tmp_path: Path) -> None:
    a, b, empty = (f"{tmp_path}/{name}/" for name in ("a", "b", "empty"))
    make_tree(tmp_path / "a", {"x": 5, "y": 5})
    make_tree(tmp_path / "b", {"z": 5})
    (tmp_path / "empty").mkdir()
    assert surveyed(tmp_path, {"source": [a, b], "include": "x"}) == [(1, 1, 5), (1, 0, 0)]
    assert surveyed(tmp_path, {"source": [b, a], "include": "x"}) == [(1, 0, 0), (1, 1, 5)]
    assert surveyed(tmp_path, {"source": empty, "include": "x"}) == [(1, 0, 0)]
    assert surveyed(tmp_path, {"source": a, "exclude": "*"}) == [(1, 0, 0)]
    with pytest.raises(StorageError) as caught:
        surveyed(tmp_path, {"source": b, "include": "z"}, {"source": a, "include": ["q", "r"]})
    assert str(caught.value) == (
        "1 of 2 items cannot be copied, and so nothing was:\n"
        f"  item 2: {a} -> {tmp_path}/t/: none of its 2 files fits include ('q', 'r'): correct the patterns"
    )
    assert not caught.value.retryable


def test_each_side_has_its_own_credentials() -> None:
    mine, theirs = OciAccess(profile="mine"), OciAccess(profile="theirs")
    sides = Sides.of(mine, theirs)
    assert (sides.sources._access, sides.targets._access) == (mine, theirs)
    same = Sides.of(mine, mine)
    assert same.sources is same.targets
    assert same.sources._access == mine
