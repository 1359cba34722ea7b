"""Of two outputs that would write the same place, only the first does; what is left out is named."""

from __future__ import annotations

import itertools
import os
import random
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.save.output_places import (
    Clash,
    OthersFolders,
    OutputPlaces,
    absolute,
    lines_of,
    meetings,
)
from airflow_provider_ocidist.model.job import Output

SEED = int(os.environ.get("TEST_SEED", "20261128"))
BUCKET = "oci://bucket@namespace/to"


def write(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"what is in {folder.name}/{name}")
    return folder


def taken(places: OutputPlaces, source: Path, uri: str, *names: str) -> dict[str, str]:
    """Let an output take its places; return the files that are left out, each with whose place it is."""
    clashes = places.add(source.name, source, uri, names)
    assert {clash.output for clash in clashes} <= {source.name}
    return {clash.name: clash.other for clash in clashes}


@pytest.mark.parametrize("is_store", [True, False])
@pytest.mark.parametrize("number", range(20))
def test_each_place_is_written_by_the_first_output_that_has_a_file_for_it(
    tmp_path: Path, number: int, *, is_store: bool
) -> None:
    draw = random.Random(f"{SEED}.{number}")
    print(f"seed {SEED}.{number}")
    root = BUCKET if is_store else str(tmp_path / "to")
    known = ["x", "y", "x/a", "x/b", "y/a/b", "z"]
    places, first, folders = OutputPlaces(), dict[str, str](), dict[str, str]()
    for output in ("one", "two", "three"):
        below = draw.choice(["", "x", "y"])
        names = sorted(draw.sample(known, draw.randrange(1, 5)))
        # On a file system no output has a file and a folder of one name.
        names = [
            name for name in names if is_store or not any(other.startswith(f"{name}/") for other in names)
        ]
        clashes = places.add(output, tmp_path / output, f"{root}/{below}/", names)
        for name in names:
            place = f"{root}/{below}/{name}" if below else f"{root}/{name}"
            above = place_above(place, root, f"{root}/{below}".rstrip("/")) if not is_store else []
            others = {first.get(place), folders.get(place), *(first.get(each) for each in above)}
            others -= {None, output}
            named = [clash for clash in clashes if clash.name == name]
            assert bool(named) is bool(others), (output, name)
            for clash in named:
                assert (clash.output, clash.place, clash.theirs) == (output, place, "")
                assert clash.other in others
            if not named:
                first.setdefault(place, output)
                folders.update(dict.fromkeys(above, output))


def place_above(place: str, root: str, folder: str) -> list[str]:
    """Return the folders below an output's own that a file needs."""
    assert place.startswith(f"{root}/")
    parts = place[len(folder) + 1 :].split("/")
    return [f"{folder}/{'/'.join(parts[:count])}" for count in range(1, len(parts))]


def test_a_file_where_another_output_needs_a_folder_is_left_out_whichever_comes_first(tmp_path: Path) -> None:
    file, folder = tmp_path / "file", tmp_path / "folder"
    places = OutputPlaces()
    assert taken(places, file, f"{tmp_path}/to", "x", "deep/y") == {}
    assert taken(places, folder, f"{tmp_path}/to", "x/1", "x/2/3", "deep/z", "z") == {
        "x/1": "file",
        "x/2/3": "file",
    }
    places = OutputPlaces()
    assert taken(places, folder, f"{tmp_path}/to", "x/1/2", "z") == {}
    assert taken(places, file, f"{tmp_path}/to", "x", "y") == {"x": "folder"}
    assert taken(places, tmp_path / "other", f"{tmp_path}/to/x", "1", "3") == {"1": "folder"}


def test_an_object_store_has_a_file_and_a_folder_of_one_name(tmp_path: Path) -> None:
    places = OutputPlaces()
    assert taken(places, tmp_path / "file", BUCKET, "x") == {}
    assert taken(places, tmp_path / "folder", BUCKET, "x/1") == {}
    assert taken(places, tmp_path / "again", f"{BUCKET}/", "x", "x/1") == {"x": "file", "x/1": "folder"}


def test_what_is_the_same_file_may_go_to_one_place_from_two_outputs(tmp_path: Path) -> None:
    out = write(tmp_path / "out", "model/x", "y")
    (tmp_path / "link").symlink_to(out / "model")
    places = OutputPlaces()
    assert taken(places, out, BUCKET, "model/x", "y") == {}
    assert taken(places, out / "model", f"{BUCKET}/model", "x") == {}
    assert taken(places, tmp_path / "link", f"{BUCKET}/model", "x") == {}
    assert taken(places, out / "model" / "x", f"{BUCKET}/model", "x") == {}, "an output that is a file"
    assert taken(places, out / "y", f"{BUCKET}/model", "x") == {"x": "out"}


def test_a_folder_may_be_an_output_twice_and_its_own_files_may_meet(tmp_path: Path) -> None:
    """`out/sub/x` and `out/x` are two files, though of one path in the job."""
    out = write(tmp_path / "out", "x", "sub/x")
    places = OutputPlaces()
    assert taken(places, out, f"{tmp_path}/to", "x", "sub/x") == {}
    assert taken(places, out, f"{tmp_path}/to/sub", "x", "sub/x") == {"x": "out"}
    assert taken(places, out, f"{tmp_path}/to", "x", "sub/x") == {}, "the same again"
    assert meetings([Output(path="out", uri="/to"), Output(path="out", uri="/to/sub")]) == ["out and out"]


# What other nodes and attempts write


def others(**changes: object) -> OthersFolders:
    known = {"output": "logs", "root": BUCKET, "nodes": frozenset({"node-1", "node-2"}), "attempts": True}
    return OthersFolders(**{**known, **changes})


@pytest.mark.parametrize(
    "place, theirs",
    [
        ("node-1/x", "node-1"),
        ("node-2/x/y", "node-2"),
        ("node-3/x", ""),
        ("node-10/x", ""),
        ("failed-1/x", "failed-1"),
        ("failed-12/x", "failed-12"),
        ("failed-1x/x", ""),
        ("failed-/x", ""),
        ("x/node-1/y", ""),
        ("node-1", ""),
    ],
)
def test_a_file_below_a_folder_of_another_node_or_attempt_is_theirs(place: str, theirs: str) -> None:
    assert others().first_of(f"{BUCKET}/{place}") == theirs
    assert others().first_of(f"{BUCKET}-2/{place}") == ""
    assert others(attempts=False).first_of(f"{BUCKET}/{place}") == (theirs if "node" in theirs else "")
    assert others(nodes=frozenset()).first_of(f"{BUCKET}/{place}") == (theirs if "failed" in theirs else "")


def test_on_a_file_system_a_file_in_the_place_of_their_folder_is_theirs_too() -> None:
    assert others(root="/to").first_of("/to/node-1") == "node-1"
    assert others(root="/to").first_of("/to/failed-3") == "failed-3"
    assert others(root="/to").first_of("/to") == ""
    assert others(root="/to").first_of("/tools/node-1") == ""


def test_what_is_theirs_is_left_out_with_the_name_of_the_folder(tmp_path: Path) -> None:
    places = OutputPlaces([others(output="plots", root="/elsewhere"), others()])
    clashes = places.add("out", tmp_path, BUCKET, ["a", "node-1/a", "node-7/a"])
    place = f"{BUCKET}/node-1/a"
    assert clashes == (Clash(output="out", name="node-1/a", place=place, other="logs", theirs="node-1"),)
    # It is nobody's of this node.
    assert taken(places, tmp_path / "late", f"{BUCKET}/node-7", "a", "b") == {"a": "out"}


# Warnings


def test_each_pair_of_outputs_has_a_line_with_its_places_and_what_to_do() -> None:
    def clash(name: str, output: str = "b", other: str = "a", theirs: str = "") -> Clash:
        return Clash(output=output, name=name, place=f"/to/{name}", other=other, theirs=theirs)

    names = "12345"
    found = lines_of(
        [*map(clash, names), clash("x", "c"), clash("node-1/x", "c", "a", "node-1"), clash("y", "c")]
    )
    assert found == [
        (
            "the outputs a and b would both write /to/1, /to/2, /to/3 and 2 more, so that of b is left out: "
            "give them different URIs"
        ),
        "the outputs a and c would both write /to/x, /to/y, so that of c is left out: give them different URIs",
        (
            "the output c would write /to/node-1/x, to which other nodes or attempts copy the output a: "
            "rename node-1, or give them different URIs"
        ),
    ]
    assert lines_of([]) == []


def test_the_places_that_are_told_have_no_secret() -> None:
    place = "https://user:word@host/to/x?token=word"
    (line,) = lines_of([Clash(output="b", name="x", place=place, other="a")])
    assert "word" not in line
    assert "https://host/to/x" in line


def test_outputs_meet_where_one_goes_to_the_folder_of_another_or_below_it(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "to")

    def meet(first: tuple[str, str], second: tuple[str, str]) -> bool:
        found = [
            meetings([Output(path=path, uri=uri) for path, uri in pair])
            for pair in itertools.permutations((first, second))
        ]
        assert found in (
            [[], []],
            [[f"{first[0]} and {second[0]}"], [f"{second[0]} and {first[0]}"]],
        )
        return found != [[], []]

    assert meet(("a", f"{tmp_path}/to"), ("b", f"{tmp_path}/to/"))
    assert meet(("a", f"{tmp_path}/link/x"), ("b", f"{tmp_path}/to/x/y"))
    assert meet(("a", BUCKET), ("b", f"{BUCKET}/"))
    assert meet(("a", BUCKET), ("b", f"{BUCKET}/x/y"))
    assert not meet(("a", BUCKET), ("b", f"{BUCKET}x"))
    assert not meet(("a", f"{BUCKET}/x"), ("b", f"{BUCKET}/y"))
    # The same files never meet, but others of theirs do.
    assert not meet(("out", BUCKET), ("out/", f"{BUCKET}/"))
    assert not meet(("out", BUCKET), ("./out/model", f"{BUCKET}/model"))
    assert meet(("out", BUCKET), ("out/model", f"{BUCKET}/models"))
    assert meet(("out", BUCKET), ("out/model", BUCKET))


def test_one_folder_has_one_name_however_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "to")
    assert (
        absolute(f"{tmp_path}/link/x/")
        == absolute(f"file://{tmp_path}/to/x")
        == os.path.realpath(tmp_path / "to/x")
    )
    assert absolute(f"{BUCKET}/") == absolute(BUCKET) == BUCKET
