"""Symbolic links at the source and the target of a copy, and in a place for checkpoints: what is behind one is safe."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_ocidist.cli import main
from airflow_provider_ocidist.errors import CheckpointError, StorageError
from airflow_provider_ocidist.storage import catalog, checkpoints
from airflow_provider_ocidist.storage.checkpoints import fetch, newest, verify
from airflow_provider_ocidist.storage.fingerprint import data_version
from airflow_provider_ocidist.storage.stores.local import LocalStore
from airflow_provider_ocidist.storage.stores.opening import open_store
from airflow_provider_ocidist.storage.transfer import CopyReport, copy
from tests.storage.link_worlds import (
    Seen,
    is_behind_link,
    make_files,
    make_links,
    readable_in,
    seen_in,
    stamps_in,
)
from tests.storage.published import keep_last, publish

SEED = int(os.environ.get("LINKS_SEED", "20261127"))


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """A folder for source, target and what is outside both, without a link above it."""
    return Path(os.path.realpath(tmp_path))


def ocidist(*arguments: object) -> int:
    return main(["checkpoints", *map(str, arguments)])


# copies


def test_deleting_what_only_the_target_has_loses_nothing_behind_a_link(world: Path) -> None:
    make(world / "source", {"step-100/model.pt": b"weights"})
    make(world / "target", {"step-100/model.pt": b"weights"})
    (world / "target" / "latest").symlink_to("step-100")
    (world / "target" / "last.pt").symlink_to("step-100/model.pt")
    report = copy(f"{world}/source/", f"{world}/target/", mode="changed", delete_extra=True)
    assert (report.deleted, report.unchanged) == ((), ("step-100/model.pt",))
    assert seen_in(world / "target") == {
        "step-100/model.pt": b"weights",
        "latest": "step-100",
        "last.pt": "step-100/model.pt",
    }


def test_a_copy_that_would_write_behind_a_link_is_refused_before_anything_is_written(world: Path) -> None:
    make(world / "source", {"a": b"1", "step-100/model.pt": b"100", "step-200/model.pt": b"200"})
    (world / "source" / "latest").symlink_to("step-200")
    make(world / "target", {"step-100/model.pt": b"100"})
    (world / "target" / "latest").symlink_to("step-100")
    with pytest.raises(StorageError, match=r"latest is a link to step-100, and nothing behind a link"):
        copy(f"{world}/source/", f"{world}/target/", mode="changed")
    assert seen_in(world / "target") == {"step-100/model.pt": b"100", "latest": "step-100"}
    (world / "target" / "latest").unlink()
    assert copy(f"{world}/source/", f"{world}/target/", mode="changed").files == 3
    assert seen_in(world / "target") == readable_in(world / "source")


@pytest.mark.parametrize("mode", ["all", "changed"])
def test_a_link_that_leads_out_of_the_target_lets_no_file_out(world: Path, mode: str) -> None:
    make(world / "source", {"data/x": b"new"})
    make(world / "outside", {"x": b"old"})
    (world / "target").mkdir()
    (world / "target" / "data").symlink_to("../outside")
    with pytest.raises(StorageError, match="is a link to"):
        copy(f"{world}/source/", f"{world}/target/", mode=mode)  # type: ignore[arg-type] # one of MODES
    assert seen_in(world / "outside") == {"x": b"old"}


def test_a_file_of_the_targets_counts_as_there_only_if_it_is_no_link(world: Path) -> None:
    """Through `best` and `last` the contents are right until one of both files is written."""
    make(world / "source", {"best": b"1", "last": b"2"})
    make(world / "target", {"last": b"1"})
    (world / "target" / "best").symlink_to("last")
    report = copy(f"{world}/source/", f"{world}/target/", mode="changed")
    assert report.unchanged == ()
    assert seen_in(world / "target") == {"best": b"1", "last": b"2"}


@pytest.mark.parametrize("is_linked", ["source", "target", "both"])
def test_a_place_that_is_itself_a_link_is_copied_from_and_to(world: Path, is_linked: str) -> None:
    make(world / "disk" / "from", {"a/x": b"1", "y": b"2"})
    make(world / "disk" / "to", {"gone": b"3"})
    (world / "from").symlink_to("disk/from")
    (world / "to").symlink_to("disk/to")
    source = world / "from" if is_linked != "target" else world / "disk" / "from"
    target = world / "to" if is_linked != "source" else world / "disk" / "to"
    copy(f"{source}/", f"{target}/", delete_extra=True)
    assert copy(f"{source}/", f"{target}/", mode="changed", verify=True).files == 0
    assert seen_in(world / "disk" / "to") == {"a/x": b"1", "y": b"2"}
    copy(f"{source}/y", f"{target}/a/")
    assert (target / "a" / "y").read_bytes() == b"2"
    copy(f"{source}/", f"{world}/to/below/new")
    assert seen_in(world / "disk" / "to" / "below" / "new") == {"a/x": b"1", "y": b"2"}


def test_a_source_that_is_read_behind_links_is_never_written_by_its_own_copy(world: Path) -> None:
    make(world / "run", {"step-1/x": b"1", "archive/old/y": b"2"})
    (world / "run" / "step-last").symlink_to("archive")
    before = seen_in(world / "run")
    with pytest.raises(StorageError, match="cannot be copied into itself"):
        copy(f"{world}/run/step-*", f"{world}/run/archive/")
    assert seen_in(world / "run") == before


@pytest.mark.parametrize("number", range(250))
def test_whatever_links_there_are_a_copy_does_what_it_reports_and_nothing_behind_a_link(
    world: Path, number: int
) -> None:
    chance = random.Random(f"{SEED}-{number}")
    source, target, outside = world / "source", world / "target", world / "outside"
    make_files(outside, chance)
    make_files(source, chance)
    make_links(source, outside, chance)
    if chance.random() < 0.2:
        shutil.copytree(source, target, symlinks=True)
    make_files(target, chance)
    make_links(target, outside, chance)
    source_uri, target_uri = source, target
    if chance.random() < 0.3:
        source_uri, target_uri = world / "from", world / "to"
        source_uri.symlink_to(source)
        target_uri.symlink_to(target)
    rules = {
        "mode": chance.choice(("all", "changed")),
        "delete_extra": chance.random() < 0.5,
        "verify": chance.random() < 0.3,
        "exclude": ["y"] if chance.random() < 0.2 else [],
    }
    untouched = seen_in(outside), seen_in(source)
    wanted = {
        name: content
        for name, content in readable_in(source).items()
        if not (rules["exclude"] and "y" in name.split("/"))
    }
    before = seen_in(target)
    print(f"seed {SEED}-{number}: {rules}\n{untouched}\n{before}")
    try:
        report = copy(f"{source_uri}/", f"{target_uri}/", **rules)  # type: ignore[arg-type] # of a table
    except StorageError as error:
        assert (seen_in(outside), seen_in(source)) == untouched
        _check_refusal(target, wanted, before, str(error))
        return
    assert (seen_in(outside), seen_in(source)) == untouched
    _check_report(report, target, wanted, before)
    stamps = stamps_in(target)
    again = copy(f"{source_uri}/", f"{target_uri}/", **{**rules, "mode": "changed"})  # type: ignore[arg-type] # as above
    assert (again.files, again.deleted, set(again.unchanged)) == (0, (), set(wanted))
    assert stamps_in(target) == stamps


def _check_refusal(target: Path, wanted: dict[str, bytes], before: Seen, error: str) -> None:
    after = seen_in(target)
    if "is a link to" in error:
        assert any(is_behind_link(target, name) for name in wanted), error
        assert after == before
        return
    # A folder is there where a file comes, or a file where a folder comes.
    clash = [name for name in wanted if (target / name).is_dir() or not _has_room(target, name)]
    assert clash or not wanted, error
    changed = {name for name in {*before, *after} if before.get(name) != after.get(name)}
    assert changed <= {*wanted}


def _has_room(target: Path, name: str) -> bool:
    return all(
        (target / above).is_dir() or not os.path.lexists(target / above) for above in Path(name).parents
    )


def _check_report(report: CopyReport, target: Path, wanted: dict[str, bytes], before: Seen) -> None:
    after = seen_in(target)
    assert {name: after[name] for name in wanted} == wanted
    assert not any((target / name).is_symlink() or is_behind_link(target, name) for name in wanted)
    assert report.files == len(wanted) - len(report.unchanged)
    assert all(before[name] == wanted[name] for name in report.unchanged)
    assert all(isinstance(before[name], bytes) for name in report.deleted), "no link is deleted"
    assert before.keys() - after.keys() == {*report.deleted}
    others = {*before} - {*wanted} - {*report.deleted}
    assert {name: after[name] for name in others} == {name: before[name] for name in others}
    assert {*after} == {*wanted} | others


# places for checkpoints


@pytest.fixture
def place(world: Path) -> Path:
    """Three whole checkpoints, 10 to 30."""
    save(world, 10, 20, 30)
    return world / "place"


def test_a_link_to_the_newest_checkpoint_takes_no_part_in_what_is_deleted(place: Path) -> None:
    (place / "latest").symlink_to("step-30")
    assert [item.folder for item in catalog.items(open_store(str(place)))] == [
        "step-30",
        "step-20",
        "step-10",
    ]
    assert ocidist("prune", place, "--keep", 2, "--yes") == 0
    assert steps(place) == [30, 20]
    save(place.parent, 40)
    assert keep_last(str(place), 3) == ()
    assert keep_last(str(place), 2) == ("step-20",)
    assert steps(place) == [40, 30]
    assert (place / "latest").readlink() == Path("step-30")


def test_a_checkpoint_stays_while_a_file_of_another_one_is_a_link_into_it(place: Path) -> None:
    """As programs leave it that replace equal files with links; what nobody could fetch is not the newest."""
    (place / "step-30" / "optimizer.pt").unlink()
    (place / "step-30" / "optimizer.pt").symlink_to("../step-10/optimizer.pt")
    assert steps(place) == [20, 10]
    assert ocidist("prune", place, "--keep", 1, "--yes") == 0
    assert keep_last(str(place), 1) == ()
    assert steps(place) == [20, 10]
    with pytest.raises(CheckpointError, match="is missing"):
        verify(f"{place}/step-30")
    found = newest(str(place))
    assert found is not None
    assert fetch(found.uri, place.parent / "here").name == "step-20"


@pytest.mark.parametrize("leads_to", ["step-10", "../elsewhere", "gone"])
def test_a_checkpoint_is_never_published_behind_a_link_of_its_name(place: Path, leads_to: str) -> None:
    (place.parent / "elsewhere").mkdir()
    (place / "step-40").symlink_to(leads_to)
    before = seen_in(place / "step-10")
    save(place.parent, 40)
    found = newest(str(place))
    assert found is not None
    assert found.uri == f"{place}/step-40.again-2"
    assert seen_in(place / "step-10") == before
    assert seen_in(place.parent / "elsewhere") == {}


def test_unfinished_uploads_behind_a_link_are_nobodys_remains(place: Path) -> None:
    other = place.parent / "other"
    other.mkdir()
    part = other / ".model.pt.0123abcd.part"
    part.write_bytes(b"half")
    os.utime(part, (0, 0))
    (place / "latest").symlink_to("../other")
    keep_last(str(place), 1)
    assert part.exists()


def test_a_place_that_is_a_link_is_saved_to_pruned_and_fetched_from(world: Path) -> None:
    (world / "disk").mkdir()
    (world / "place").symlink_to("disk")
    save(world, 10, 20, 30)
    place = world / "place"
    assert keep_last(str(place), 2) == ("step-10",)
    assert ocidist("prune", place, "--keep", 1, "--yes") == 0
    assert steps(place) == [30]
    assert fetch(f"{place}/step-30", world / "here") == world / "here" / "step-30"
    (world / "newest").symlink_to("disk/step-30")
    assert verify(str(world / "newest")).step == 30
    assert fetch(str(world / "newest"), world / "there") == world / "there" / "step-30"


def test_a_program_that_saves_links_within_its_checkpoint_has_the_files_published(world: Path) -> None:
    program = world / "program" / "step-1"
    make(program, {"shards/0.pt": b"0", "all.pt": b"1"})
    (program / "again").symlink_to("shards")
    (program / "last.pt").symlink_to("all.pt")
    ref = publish(program, str(world / "place"), step=1)
    expected = {"shards/0.pt": b"0", "again/0.pt": b"0", "all.pt": b"1", "last.pt": b"1"}
    assert seen_in(fetch(ref.uri, world / "here")) == expected
    assert newest(str(world / "place")) is not None


@pytest.mark.parametrize("is_above", [True, False])
def test_a_fetch_replaces_a_link_and_shares_no_file_with_what_is_behind_it(
    place: Path, *, is_above: bool
) -> None:
    here, mine = place.parent / "here", place.parent / "mine"
    shutil.copytree(place / "step-30", mine)
    (mine / "manifest.json").unlink()
    if is_above:
        here.mkdir()
        (here / "step-30").symlink_to(mine)
    else:
        (here / "step-30").mkdir(parents=True)
        (here / "step-30" / "shards").symlink_to(mine / "shards")
    before = seen_in(mine)
    fetched = fetch(f"{place}/step-30", here)
    assert not fetched.is_symlink()
    assert seen_in(fetched) == before
    (fetched / "shards" / "0.pt").write_bytes(b"the program writes on")
    assert seen_in(mine) == before
    assert [path.name for path in here.iterdir()] == ["step-30"]


def _prune(place: Path, keep: int) -> None:
    assert ocidist("prune", place, "--keep", keep, "--remains", "--yes") == 0


def _retain(place: Path, keep: int) -> None:
    keep_last(str(place), keep)


@pytest.mark.parametrize("number", range(60))
def test_whatever_links_there_are_the_newest_stay_and_nothing_behind_a_link_is_deleted(
    world: Path, number: int
) -> None:
    chance = random.Random(f"{SEED}-place-{number}")
    outside, place, here = world / "outside", world / "place", world / "here"
    make_files(outside, chance)
    save(world, 10, 20, 30, 40)
    make_links(place, outside, chance, 6)
    if chance.random() < 0.5:
        file = place / f"step-{chance.choice((20, 30, 40))}" / "optimizer.pt"
        file.unlink()
        file.symlink_to(f"../step-{chance.choice((10, 20, 30))}/model.pt")
    if chance.random() < 0.5:
        shutil.copytree(place, here, symlinks=True)
    make_files(here, chance)
    make_links(here, outside, chance)
    untouched, whole, keep = seen_in(outside), steps(place), chance.randint(1, 3)
    print(f"seed {SEED}-place-{number}: keep {keep}\n{seen_in(place)}\n{seen_in(here)}")
    delete: Callable[[Path, int], None] = chance.choice((_prune, _retain))
    delete(place, keep)
    after = steps(place)
    assert after[:keep] == whole[:keep]
    assert len(after) == keep or any(isinstance(each, str) for each in seen_in(place).values())
    assert seen_in(outside) == untouched
    if whole:
        ref = newest(str(place))
        assert ref is not None
        others = {name: content for name, content in seen_in(here).items() if not name.startswith("step-")}
        try:
            fetched = fetch(ref.uri, here)
        finally:
            assert seen_in(outside) == untouched
        assert all(isinstance(content, bytes) for content in seen_in(fetched).values())
        assert others.items() <= seen_in(here).items()


def steps(place: Path) -> list[int | None]:
    return [ref.step for ref in checkpoints.complete(str(place))]


def save(world: Path, *saved: int) -> None:
    for step in saved:
        make(
            world / "program" / f"step-{step}",
            {"model.pt": b"%d" % step, "optimizer.pt": b"same", "shards/0.pt": b"%d." % step},
        )
        publish(world / "program" / f"step-{step}", str(world / "place"), step=step)


def make(root: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


# stores


def test_a_store_deletes_and_writes_nothing_behind_a_link(world: Path) -> None:
    make(world / "store", {"real/x": b"1"})
    (world / "store" / "link").symlink_to("real")
    store = LocalStore(world / "store")
    for change in (
        lambda: store.delete("link/x"),
        lambda: store.write("link/x", b"2"),
        lambda: store.write("link/below/x", b"2"),
        lambda: store.write_if("link/x", b"2", store.stat("link/x").etag),
        lambda: store.upload("link/x", 1, 1),
    ):
        with pytest.raises(StorageError, match=r"link is a link to real"):
            change()
    assert store.read("link/x") == b"1", "reading follows"
    assert seen_in(world / "store") == {"real/x": b"1", "link": "real"}


def test_a_link_is_deleted_and_not_what_it_leads_to(world: Path) -> None:
    make(world / "store", {"real/x": b"1"})
    (world / "store" / "x").symlink_to("real/x")
    LocalStore(world / "store").delete("x")
    assert seen_in(world / "store") == {"real/x": b"1"}


def test_a_partial_file_that_is_a_link_is_not_written_through(world: Path) -> None:
    make(world / "source", {"x": b"1" * 300})
    make(world / "outside", {"y": b"mine"})
    store = LocalStore(world / "target")
    (world / "target").mkdir()
    first = copy_of(world)
    (world / "target" / first).symlink_to("../outside/y")
    with pytest.raises(StorageError, match="symbolic links"):
        copy(f"{world}/source/x", f"{world}/target/x", part_size=100)
    assert not store.exists("x")
    assert seen_in(world / "outside") == {"y": b"mine"}


def copy_of(world: Path) -> str:
    """Return the name of the partial file that a copy of a large file writes."""
    names: set[str] = set()

    def look(_: object) -> None:
        names.update(path.name for path in (world / "target").iterdir())

    copy(f"{world}/source/x", f"{world}/target/x", part_size=100, on_progress=look)
    (world / "target" / "x").unlink()
    return next(
        (name for name in names if name.endswith(".part") and "journal" not in name), ".x.00000000.part"
    )


def test_data_behind_a_link_has_its_part_in_the_version_of_an_input(world: Path) -> None:
    make(world / "data", {"day-1/x": b"1"})
    before = data_version(f"{world}/data/", None)
    (world / "data" / "today").symlink_to("day-1")
    assert data_version(f"{world}/data/", None) != before
