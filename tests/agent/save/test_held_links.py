"""What is proved can be read until it is sent, whatever is deleted; no look takes the links for checkpoints."""

from __future__ import annotations

import errno
import logging
import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.agent.save import disk_room, uploads
from airflow_provider_ocidist.agent.save.entries import Candidate, candidates, signature
from airflow_provider_ocidist.agent.save.entry_warnings import EntryWarnings
from airflow_provider_ocidist.agent.save.held_links import HeldLinks, holder_of
from airflow_provider_ocidist.storage import checkpoints
from airflow_provider_ocidist.storage.stores.local import LocalStore
from tests.agent.gangs import until
from tests.agent.save.small_disk import small_disk
from tests.agent.save.watched import Watched


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "checkpoints"
    place.mkdir()
    return place


def save(folder: Path, name: str, dice: random.Random) -> Candidate:
    """Write a file, or a folder with files on several levels."""
    place = folder / name
    if name.endswith(".pt"):
        place.write_bytes(dice.randbytes(99))
    else:
        for file in dice.sample(["weights", "state/a", "state/b", "state/deep/er/c"], dice.randint(1, 4)):
            (place / file).parent.mkdir(parents=True, exist_ok=True)
            (place / file).write_bytes(dice.randbytes(99))
    return next(item for item in candidates(folder) if item.path == place)


def content(path: Path) -> dict[str, bytes]:
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return {each.relative_to(path.parent).as_posix(): each.read_bytes() for each in files}


def delete(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def hidden(folder: Path) -> list[Path]:
    return [*folder.parent.glob(".*.held.*"), *folder.glob(".*.held.*")]


LINK = os.link


def links_within(folder: Path, error: int) -> Callable[..., None]:
    """Return a function that links only below a folder, as if its parent were on another file system."""

    def link(source: Any, target: Path, **options: Any) -> None:
        if folder not in Path(target).parents:
            raise OSError(error, os.strerror(error))
        LINK(source, target, **options)

    return link


@pytest.mark.parametrize("seed", range(30))
def test_what_is_held_stays_as_it_was_whatever_is_deleted_and_nothing_shows_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    print("seed", seed)
    dice = random.Random(seed)
    if dice.random() < 0.5:
        error = dice.choice([errno.EXDEV, errno.EACCES, errno.EROFS])
        monkeypatch.setattr(os, "link", links_within(folder, error))
    links, begun = HeldLinks(folder), sorted(folder.parent.rglob("*"))
    held: dict[Path, tuple[Candidate, dict[str, bytes]]] = {}
    for number in range(dice.randint(3, 9)):
        item = save(folder, dice.choice([f"step-{number}", f"step-{number}.pt"]), dice)
        held[item.path] = item, content(item.path)
        for path in dice.sample(sorted(held), max(0, len(held) - 2)):
            del held[path]
        links.keep(item for item, _ in held.values())
        for path in dice.sample(sorted(folder.glob("step-*")), dice.randint(0, 1)):
            delete(path)
        for item, wanted in held.values():
            assert links.holds(item)
            assert content(links.source(item)) == wanted
            assert signature(links.source(item)) == item.signature
        assert {item.path.name for item in candidates(folder)} == {
            path.name for path in folder.glob("step-*")
        }
        EntryWarnings(folder, None).warn_of_names()
        assert not [entry.name for entry in LocalStore(folder.parent).list() if "held" in entry.name]
        # As many as are held lie there once more, and no others.
        assert len([place for root in hidden(folder) for place in root.glob("*/*")]) == len(held)
    links.keep(())
    for path in folder.glob("step-*"):
        assert all(file.stat().st_nlink == 1 for file in [path, *path.rglob("*")] if file.is_file())
        delete(path)
    assert sorted(folder.parent.rglob("*")) == begun
    assert caplog.messages == []


@pytest.mark.parametrize("error", [errno.EPERM, errno.ENOTSUP, errno.ENOSPC, errno.EMLINK, errno.EACCES])
def test_without_hard_links_the_entry_itself_is_read_and_the_log_says_once_what_to_do(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: int
) -> None:
    caplog.set_level(logging.INFO)

    def refused(*_: Any, **__: Any) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "link", refused)
    links = HeldLinks(folder)
    for number in range(3):
        item = save(folder, f"step-{number}", random.Random(number))
        links.keep([item])
        assert not links.holds(item)
        assert links.source(item) == item.path
    (said,) = caplog.messages
    assert said.startswith(f"step-0 cannot be held for its upload by hard links: {os.strerror(error)}. ")
    assert "Remedy: let the program keep more checkpoints" in said
    assert hidden(folder) == []


def test_what_was_changed_since_its_proof_is_not_held_as_it_is_now(folder: Path) -> None:
    links, dice = HeldLinks(folder), random.Random(1)
    item = save(folder, "step-1", dice)
    file = next(each for each in item.path.rglob("*") if each.is_file())
    file.with_name("new").write_text("of another save")
    file.with_name("new").replace(file)
    gone = save(folder, "step-2.pt", dice)
    gone.path.unlink()
    written = save(folder, "step-3.pt", dice)
    written.path.write_text("of another save")
    links.keep([item, gone, written])
    assert not any(map(links.holds, [item, gone, written]))
    assert hidden(folder) == []


def test_what_is_written_into_a_held_file_shows(folder: Path) -> None:
    links = HeldLinks(folder)
    item = save(folder, "snapshot.pt", random.Random(1))
    links.keep([item])
    item.path.write_text("of the next save")
    assert signature(links.source(item)) != item.signature


def test_a_link_is_held_as_what_it_leads_to_and_a_folder_with_links_is_not(folder: Path) -> None:
    links, dice = HeldLinks(folder), random.Random(1)
    file = save(folder, "step-1.pt", dice)
    (folder / "last.pt").symlink_to("step-1.pt")
    place = save(folder, "step-2", dice)
    (place.path / "link").symlink_to(next(each for each in place.path.rglob("*") if each.is_file()))
    last, entry = (
        next(item for item in candidates(folder) if item.path.name == name) for name in ("last.pt", "step-2")
    )
    wanted = file.path.read_bytes()
    links.keep([last, entry])
    delete(file.path)
    assert links.source(last).read_bytes() == wanted
    assert not links.holds(entry)


def test_what_a_killed_uploader_has_left_is_removed_and_nothing_of_another_folder(tmp_path: Path) -> None:
    begun = Watched(tmp_path)
    left = [HeldLinks(begun.folder) for _ in range(2)]
    item = save(begun.folder, "step-1.pt", random.Random(1))
    left[0].keep([item])
    left[1]._roots = left[1]._roots[::-1]
    left[1].keep([item])
    others = [
        tmp_path / name
        for name in (
            ".checkpoints2.held.00000000.part",
            ".checkpoints.held.notes",
            "checkpoints.held.00000000.part",
        )
    ]
    for other in others:
        other.mkdir()
    assert len(hidden(begun.folder)) == 2 + 2
    begun.start()
    begun.end()
    assert sorted(hidden(begun.folder)) == sorted(others[:2])
    assert others[2].exists()


# A disk without room for another checkpoint


class Disk:
    """The free space of a disk, as the links read it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free = 10**12
        monkeypatch.setattr(disk_room, "free_bytes", lambda _: self.free, raising=False)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def size_of(item: Candidate) -> int:
    return sum(stamp.size for stamp in item.files.values())


@pytest.mark.parametrize("seed", range(12))
def test_what_the_program_has_deleted_is_let_go_where_another_checkpoint_has_no_room(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, disk: Disk, seed: int
) -> None:
    print("seed", seed)
    dice = random.Random(seed)
    monkeypatch.setattr(disk_room, "SOON_WRITTEN", 0)
    links = HeldLinks(folder)
    items = [save(folder, dice.choice([f"step-{number}", f"step-{number}.pt"]), dice) for number in range(4)]
    links.keep(items)
    gone = dice.sample(items, dice.randint(1, 3))
    for item in gone:
        delete(item.path)
    disk.free = max(map(size_of, items))
    links.make_room()
    assert all(map(links.holds, items)), "there is room for one more"
    assert caplog.messages == []
    disk.free -= 1
    if dice.random() < 0.5:
        links.make_room()
    else:
        links.keep(items)
    assert [links.holds(item) for item in items] == [item not in gone for item in items]
    (said,) = caplog.messages
    assert "is not held for its upload: its disk has less free space than another checkpoint needs" in said
    assert "Remedy: a disk with room for one checkpoint more" in said
    links.keep(())
    assert hidden(folder) == []


def test_as_much_is_let_go_as_gives_room(folder: Path, monkeypatch: pytest.MonkeyPatch, disk: Disk) -> None:
    monkeypatch.setattr(disk_room, "SOON_WRITTEN", 0)
    links, dice = HeldLinks(folder), random.Random(1)
    items = [save(folder, f"step-{number}.pt", dice) for number in range(3)]
    links.keep(items)
    for item in items:
        delete(item.path)
    release, disk.free = links._release, size_of(items[0]) - 1

    def frees(place: Path | None) -> None:
        release(place)
        disk.free += size_of(items[0])

    monkeypatch.setattr(links, "_release", frees)
    links.make_room()
    # The first is being sent.
    assert [links.holds(item) for item in items] == [True, True, False]


def test_where_the_program_may_fill_the_disk_within_a_look_it_is_given_what_it_deletes_at_once(
    folder: Path, disk: Disk
) -> None:
    links = HeldLinks(folder)
    item = save(folder, "step-1.pt", random.Random(1))
    links.keep([item])
    assert links.holds(item)
    disk.free = size_of(item) - 1
    links.make_room()
    assert not links.holds(item)
    assert links.source(item) == item.path
    assert item.path.stat().st_nlink == 1


def test_without_room_for_another_checkpoint_nothing_is_held_until_there_is_some(
    folder: Path, disk: Disk
) -> None:
    links = HeldLinks(folder)
    item = save(folder, "step-1", random.Random(1))
    disk.free = size_of(item) - 1
    links.keep([item])
    assert not links.holds(item)
    disk.free += 1
    links.keep([item])
    assert links.holds(item)


def test_a_file_system_that_does_not_show_its_size_has_room(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, 0))
    links = HeldLinks(folder)
    item = save(folder, "step-1.pt", random.Random(1))
    links.keep([item])
    assert links.holds(item)


@pytest.fixture
def two_checkpoints(tmp_path: Path) -> Iterator[Path]:
    """A disk with room for two checkpoints of 24 KiB, and not for three."""
    with small_disk(tmp_path / "small", "64k") as place:
        for name in ("safe", "meter"):
            (tmp_path / name).mkdir()
            (place / name).symlink_to(tmp_path / name)
        yield place


def test_a_program_that_keeps_one_checkpoint_can_save_on_a_disk_with_room_for_two(
    two_checkpoints: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(uploads, "LOOK_INTERVAL", 0.01)
    sends, goes_on = threading.Event(), threading.Event()
    send = checkpoints._send

    def slow(*arguments: Any) -> Any:
        sends.set()
        goes_on.wait(60)
        return send(*arguments)

    monkeypatch.setattr(checkpoints, "_send", slow)
    watched = Watched(two_checkpoints)
    watched.start()
    before: Path | None = None
    for step in range(1, 5):
        # A file system that is full raises here.
        path = watched.write(step, f"{step}" * 24 * 1024)
        if before:
            before.unlink()
            until(lambda: shutil.disk_usage(two_checkpoints).free >= 24 * 1024, timeout=20)
        before = path
        assert sends.wait(60)
    goes_on.set()
    assert watched.end() is None
    assert watched.steps[-1] == 4
    assert "less free space than another checkpoint needs" in caplog.text
    assert "the program deleted step-1.txt before all of it was sent" in caplog.text
    assert not hidden(watched.folder)


# What is left behind


def test_the_links_of_another_node_of_this_launch_are_not_removed(tmp_path: Path, folder: Path) -> None:
    run, other_run = (LocalStore(tmp_path / name) for name in ("run", "earlier-run"))
    dice = random.Random(1)
    item = save(folder, "step-1.pt", dice)
    mine, others = (HeldLinks(folder, holder_of(run, 1, rank)) for rank in (2, 3))
    left = [
        HeldLinks(folder),
        HeldLinks(folder, holder_of(run, 0, 3)),
        HeldLinks(folder, holder_of(run, 1, 2)),
        HeldLinks(folder, holder_of(other_run, 1, 3)),
    ]
    for links in [others, *left]:
        links.keep([item])
    assert len(hidden(folder)) == 1 + len(left)
    assert not [entry.name for entry in LocalStore(folder.parent).list() if "held" in entry.name]
    mine.remove_left_over()
    assert others.holds(item)
    assert len(hidden(folder)) == 1
    HeldLinks(folder).remove_left_over()
    assert hidden(folder) == []


def test_once_they_are_let_go_links_hold_nothing_more(folder: Path) -> None:
    links = HeldLinks(folder, "00000000-1")
    item = save(folder, "step-1.pt", random.Random(1))
    links.keep([item])
    links.let_go(60)
    assert hidden(folder) == []
    links.keep([item])
    assert hidden(folder) == []
    assert not links.holds(item)


def test_where_the_program_deletes_the_links_the_entry_itself_is_sent(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.write(5)
    watched.uploader._look()
    watched.uploader._look()
    (held,) = hidden(watched.folder)
    shutil.rmtree(held)
    assert watched.uploader._upload()
    assert watched.steps == [5]


@pytest.mark.parametrize("change", ["added", "replaced", "deleted", "one deleted"])
def test_a_save_that_goes_on_after_its_proof_is_not_published_as_half_of_it(
    tmp_path: Path, change: str
) -> None:
    watched = Watched(tmp_path)
    place = watched.begin(5, "part-0", "part-1")
    watched.announce(checkpoint="step-5")
    watched.uploader._look()
    watched.uploader._look()
    assert watched.uploader._links.holds(*[whole.item for whole in watched.uploader._waiting.values()])
    if change == "added":
        (place / "part-2").write_text("more")
    elif change == "replaced":
        (place / "part-1.new").write_text("other")
        (place / "part-1.new").rename(place / "part-1")
    elif change == "deleted":
        delete(place)
    else:
        (place / "part-0").unlink()
    assert watched.uploader._upload()
    assert watched.steps == ([5] if "deleted" in change else [])
