"""What a batch of copies would read and write is known before any of it is copied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.errors import JobFileError
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
