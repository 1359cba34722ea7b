"""What is proved can be read until it is sent, whatever is deleted; no look takes the links for checkpoints."""

from __future__ import annotations

import errno
import logging
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.agent.save.entries import Candidate, candidates, signature
from airflow_provider_ocidist.agent.save.entry_warnings import EntryWarnings
from airflow_provider_ocidist.agent.save.held_links import HeldLinks
from airflow_provider_ocidist.storage.stores.local import LocalStore
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
