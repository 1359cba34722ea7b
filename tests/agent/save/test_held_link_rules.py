"""What links are let go for, how long that is waited for, and which disk is looked at: each rule by itself."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.save.entries import Candidate, candidates
from airflow_provider_ocidist.agent.save.held_links import HeldLinks


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "checkpoints"
    place.mkdir()
    return place


def save(folder: Path, name: str) -> Candidate:
    (folder / name).write_bytes(b"weights")
    return next(item for item in candidates(folder) if item.path.name == name)


@pytest.mark.parametrize("fits", [True, False])
def test_it_is_the_disk_of_the_checkpoints_that_must_have_room_and_the_entry_is_named_where_it_has_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, fits: bool
) -> None:
    free = {folder: 7 if fits else 6}
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(99, 0, free[path]))
    links = HeldLinks(folder)
    item = save(folder, "step-1.pt")
    links.keep([item])
    assert links.holds(item) is fits
    said = [
        message for message in caplog.messages if message.startswith("step-1.pt is not held for its upload: ")
    ]
    assert len(said) == len(caplog.messages) == (0 if fits else 1)


def test_what_the_program_has_deleted_is_let_go_where_its_disk_has_room_no_more(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Less than a program may write between two looks: what it has kept goes too, and what it has deleted anyway.
    free = {folder: 7}
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(99, 0, free[path]))
    links = HeldLinks(folder)
    items = [save(folder, name) for name in ("step-1.pt", "step-2.pt")]
    links.keep(items)
    items[0].path.unlink()
    assert all(map(links.holds, items))
    free[folder] = 6
    links.make_room()
    assert not any(map(links.holds, items))
    (said,) = caplog.messages
    assert said.startswith("step-2.pt is not held for its upload: ")


def test_a_thread_that_holds_the_links_is_waited_for_no_longer_than_is_asked(folder: Path) -> None:
    links, item = HeldLinks(folder), save(folder, "step-1.pt")
    links.keep([item])
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        # As one that waits for a mount which does not answer.
        with links._lock:
            held.set()
            release.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    try:
        links.let_go(0.01)
        assert links.holds(item)
    finally:
        release.set()
        thread.join()
    links.let_go(60)
    assert not links.holds(item)
