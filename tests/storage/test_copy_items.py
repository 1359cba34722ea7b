"""What a user writes of the data to copy: in which forms it is taken, and what is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.errors import JobFileError
from airflow_provider_ocidist.storage.copy_items import read_items, rules_of
from airflow_provider_ocidist.storage.transfer import CopyRules


def problems_of(data: Any, **rules: Any) -> list[str]:
    with pytest.raises(JobFileError) as raised:
        read_items(data, rules_of(**rules))
    return [str(problem) for problem in raised.value.problems]


def test_items_are_a_list_a_mapping_one_item_or_json_of_them() -> None:
    pair = {"source": "/a", "target": "/b"}
    for data in (
        [pair],
        pair,
        {"/a": "/b"},
        json.dumps([pair]),
        (Path("/a"),) and [{**pair, "source": Path("/a")}],
    ):
        (item,) = read_items(data, CopyRules())
        assert (item.number, item.source, item.target) == (1, "/a", "/b")
    assert read_items([], CopyRules()) == ()


def test_an_item_has_rules_of_its_own_and_the_others_those_of_all() -> None:
    own = {"source": "/a", "target": "/b", "include": "*.csv", "mode": "all", "delete_extra": "true"}
    first, second = read_items(
        [own, {"source": "/c", "target": "/d"}], rules_of(mode="changed", exclude=["*.tmp"])
    )
    assert first.rules == CopyRules(include=("*.csv",), exclude=("*.tmp",), mode="all", delete_extra=True)
    assert second.rules == CopyRules(exclude=("*.tmp",), mode="changed")


def test_several_sources_go_into_one_folder() -> None:
    items = read_items([{"source": ["/a", "/b"], "target": "/c/"}], CopyRules())
    assert [(item.number, item.source) for item in items] == [(1, "/a"), (1, "/b")]


@pytest.mark.parametrize(
    "data, expected",
    [
        ([{"source": "/a"}], "item 1: has no 'target'"),
        (
            [{"source": "/a", "target": "/b"}, {"sorce": "/a", "target": "/c"}],
            "item 2: has the unknown key 'sorce'",
        ),
        ([{"sorce": "/a", "target": "/c"}], "did you mean 'source'?"),
        (["/a"], 'item 1: must be {"source": URI, "target": URI}, not \'/a\''),
        ([{"source": "None", "target": "/b"}], "item 1, source: is 'None': its template has found nothing"),
        ([{"source": "", "target": "/b"}], "item 1, source: an empty string names no place"),
        ([{"source": 3, "target": "/b"}], "item 1, source: must be a URI or a path, not 3"),
        ([{"source": [], "target": "/b/"}], "item 1, source: is an empty list"),
        ([{"source": "oci:///x", "target": "/b"}], "item 1, source: oci:///x names no bucket"),
        ([{"source": ["/a", "/b"], "target": "/c"}], "item 1, target: takes several sources: end it in /"),
        ([{"source": "/a", "target": "/b", "mode": "new"}], "item 1, mode: must be one of all, changed"),
        ([{"source": "/a", "target": "/b", "verify": "maybe"}], "item 1, verify: must be true or false"),
        ([{"source": "/a", "target": "/b", "include": 3}], "item 1, include: must be a list of patterns"),
        ({"/a": "/t", "/b": "/x/../t"}, "item 2, target: is that of item 1 too: end both in /"),
        ("[{'source'", "is text, but not JSON: pass a list, such as `data=task.output`"),
        (None, "None is neither a list of"),
    ],
)
def test_what_is_wrong_is_reported_with_the_number_of_its_item(data: Any, expected: str) -> None:
    assert any(expected in problem for problem in problems_of(data))


def test_all_problems_are_reported_at_once() -> None:
    assert len(problems_of([{"source": "/a"}, 3, {"source": "/a", "target": "/b", "mode": "x"}])) == 3
    assert problems_of([], mode="x") == ["all items, mode: must be one of all, changed, not 'x'"]


@pytest.mark.parametrize("empty", ["", [], [""], ("", "")])
def test_patterns_that_are_empty_choose_everything(empty: Any) -> None:
    assert rules_of(include=empty, exclude=empty) == CopyRules()
    own = {"source": "/a", "target": "/b", "include": empty}
    (item,) = read_items([own], CopyRules())
    assert item.rules == CopyRules()


def test_a_pattern_whose_template_has_found_nothing_is_refused() -> None:
    for patterns in ("None", ["*.csv", "None"]):
        with pytest.raises(JobFileError, match="include: is 'None': its template has found nothing"):
            rules_of(include=patterns)


def test_an_item_is_named_by_its_places_without_their_secrets() -> None:
    (item,) = read_items({"https://user:pw@host/a?key=1": "/b"}, CopyRules())
    assert item.shown == "https://host/a -> /b"


def test_a_target_that_a_template_left_empty_is_named() -> None:
    assert problems_of([{"source": "/a", "target": "None"}]) == [
        "item 1, target: is 'None': its template has found nothing"
    ]


def test_rules_of_all_items_that_are_wrong_are_named_with_what_they_are_of() -> None:
    with pytest.raises(JobFileError, match="the data to copy") as raised:
        rules_of(mode="some", include=["*.csv"])
    (problem,) = raised.value.problems
    assert str(problem).startswith("all items, mode: must be one of ")
