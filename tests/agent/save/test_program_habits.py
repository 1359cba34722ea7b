"""What programs do around their saves: they link, copy and delete files."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.agent.save import entries
from airflow_provider_ocidist.agent.save.proofs import Moment
from airflow_provider_ocidist.storage.checkpoints import complete, newest
from tests.agent.save.watched import Watched

BEGIN = 1_500_000_000 * 10**9


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    found = Watched(tmp_path)
    yield found
    found.uploader.judge.close()


def put(path: Path, text: str, at: int | None = None) -> Path:
    """Write a file beside its place and rename it; its time is that second, or now."""
    aside = path.with_name(f"{path.name}.tmp")
    aside.write_text(text)
    if at is not None:
        os.utime(aside, ns=(BEGIN + at * 10**9, BEGIN + at * 10**9))
    return aside.rename(path)


def stored(watched: Watched) -> list[tuple[str, set[str]]]:
    """Return the names of the checkpoints in the store, the newest first, each with its files."""
    return [
        (Path(each.uri).name, {path.name for path in Path(each.uri).iterdir()} - {"manifest.json"})
        for each in complete(str(watched.target))
    ]


# Links


@pytest.mark.parametrize("target", ["nowhere", "linked"], ids=["to nowhere", "to itself"])
def test_a_checkpoint_with_a_link_that_leads_nowhere_is_named_and_holds_up_no_other(
    watched: Watched, caplog: pytest.LogCaptureFixture, target: str
) -> None:
    place = watched.begin(5, "model.bin")
    (place / "linked").symlink_to(target)
    watched.announce(checkpoint="step-5")
    watched.step(2)
    assert "the checkpoint step-5 cannot be published" in caplog.text
    assert "has links that lead out of it, or nowhere: linked" in caplog.text
    watched.write(6)
    watched.step(2)
    assert watched.steps == [6]


# A file system that does not answer for a moment


@pytest.mark.parametrize("what", ["names_in", "scan"])
def test_a_checkpoint_that_one_look_cannot_read_is_no_newer_for_it(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    watched.begin(5, "part-0", "part-1")
    watched.step(2)
    put(watched.folder / "best", "begun after it")
    watched.step(2)
    real = getattr(entries, what)

    def stale(path: Path) -> Any:
        if path.name in (watched.folder.name, "step-5"):
            raise OSError(errno.ESTALE, "Stale file handle", str(path))
        return real(path)

    with monkeypatch.context() as patch:
        patch.setattr(entries, what, stale)
        watched.step()
    watched.begin(6, "part-0")
    watched.step(2)
    assert [name for name, _ in stored(watched)] == ["best.save-2", "step-5"]


def test_what_cannot_be_read_at_a_look_is_not_judged_by_it(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = watched.begin(5, "part-0", "part-1")
    watched.announce(checkpoint="step-5")
    watched.step()
    (place / "part-1").write_text("written on")
    real = entries.scan

    def busy(path: Path) -> Any:
        if path.name == "step-5":
            raise FileNotFoundError(errno.ENOENT, "renamed just now", str(path))
        return real(path)

    with monkeypatch.context() as patch:
        patch.setattr(entries, "scan", busy)
        assert watched.uploader._look() == []
    assert watched.uploader._waiting == {}


# Deletions


@pytest.mark.parametrize("moment", Moment)
@pytest.mark.parametrize("seed", range(6))
def test_what_is_left_of_a_checkpoint_that_the_program_deletes_is_no_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, moment: Moment, seed: int
) -> None:
    print("seed", seed)
    dice = random.Random(seed)
    files = [f"part-{number}" for number in range(dice.randint(2, 6))]
    fetched = dice.random() < 0.5
    watched = Watched(tmp_path, keep=1)
    if fetched:
        watched.begin(5, *files)
        watched.uploader.judge.close()
        watched = Watched(tmp_path, keep=1)
    place = watched.begin(5) if fetched else watched.begin(5, *files)
    watched.announce(checkpoint="step-5")
    watched.step(2)
    before = stored(watched)
    assert before == ([] if fetched else [("step-5", set(files))])
    for name in dice.sample(files, dice.randint(1, len(files))):
        (place / name).unlink()
    watched.uploader._moment = moment
    for _ in range(3):
        assert watched.uploader._look() == []
        watched.uploader._upload()
    assert stored(watched) == before
    assert "is not published" not in caplog.text
    watched.uploader.judge.close()


# Copies that keep their time


def a_copy(origin: Path, place: Path) -> None:
    shutil.copy2(origin, place / origin.name)


def test_a_copied_file_of_an_old_time_hides_no_save_that_was_begun_after_another(watched: Watched) -> None:
    tokenizer = put(watched.folder.with_name("tokenizer.txt"), "words", at=0)
    for step in (5, 6, 7):
        place = watched.begin(step)
        a_copy(tokenizer, place)
        (place / "model.bin").write_text("x" * step)
        watched.step(2)
        (place / "optimizer.bin").write_text("y" * step)
        watched.step(2)
    assert watched.steps == [5, 6]


def test_a_save_that_was_renamed_into_place_may_have_been_begun_before_the_last_write_to_another(
    watched: Watched,
) -> None:
    aside = watched.folder / "step-6.tmp"
    aside.mkdir()
    (aside / "model.bin").write_text("begun first")
    watched.begin(5, "model.bin")
    watched.step(2)
    # The kernel stamps a folder by a clock that ticks.
    os.utime(aside, (1, 1))
    aside.rename(watched.folder / "step-6")
    watched.step(2)
    assert watched.steps == [6]


def test_what_is_copied_over_a_checkpoint_with_the_time_of_an_older_one_is_the_newest(
    watched: Watched,
) -> None:
    for step in (1, 2, 3):
        put(watched.folder / f"step-{step}.txt", f"of step {step}", at=step)
    watched.step(2)
    for step in (3, 2):
        shutil.copy2(watched.folder / f"step-{step}.txt", watched.folder / "best.bin.tmp")
        (watched.folder / "best.bin.tmp").rename(watched.folder / "best.bin")
        watched.step(2)
    found = newest(str(watched.target))
    assert found
    assert Path(found.uri, "best.bin").read_text() == "of step 2"
