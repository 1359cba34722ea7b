"""A gang that begins keeps earlier ones from saving; one that an attempt has overtaken does not train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.job import Checkpoints
from airflow_provider_ocidist.model.fence import Fence
from airflow_provider_ocidist.storage import fences
from airflow_provider_ocidist.storage.checkpoints import complete, newest
from airflow_provider_ocidist.storage.stores.opening import open_store
from tests.agent.gangs import Gang, until
from tests.storage.published import publish

PROGRAM = """
import os, sys, time
from pathlib import Path

folder = Path(os.environ["OCIDIST_CHECKPOINT_DIR"])
print("found", sorted(path.name for path in folder.glob("*")), flush=True)
folder.mkdir(parents=True, exist_ok=True)
for step in sys.argv[2:]:
    while not Path(sys.argv[1], step).exists():
        time.sleep(0.05)
    (folder / f".step-{step}.pt").write_text(f"weights of {step}")
    (folder / f".step-{step}.pt").rename(folder / f"step-{step}.txt")
"""


def gang(root: Path, attempt: int, *steps: int, **more: Any) -> Gang:
    """A gang that writes each step once a file called like it appears beside its nodes."""
    root.mkdir(exist_ok=True)
    checkpoints = Checkpoints(uri=str(root.parent / "dag-train-0a-g0"), **more)
    return Gang(root, PROGRAM, args=(str(root), *map(str, steps)), checkpoints=checkpoints, attempt=attempt)


def test_what_an_earlier_gang_still_writes_is_neither_newest_nor_published(tmp_path: Path) -> None:
    safe = str(tmp_path / "dag-train-0a-g0")
    with gang(tmp_path / "early", 1, 100, 200) as early, gang(tmp_path / "late", 2, 5) as late:
        (one,) = early.start()
        (tmp_path / "early" / "100").touch()
        until(lambda: newest(safe))
        (two,) = late.start()
        two.prints("found ['step-100.txt']")
        (tmp_path / "early" / "200").touch()
        one.wait()
        assert "attempt 2 has begun to save there" in one.stderr.read_text()
        assert [found.step for found in complete(safe)] == [100]
        (tmp_path / "late" / "5").touch()
        assert two.wait() == 0, two.stderr.read_text()
    assert [(found.step, found.fence.attempt) for found in complete(safe)] == [(5, 2), (100, 1)]
    assert two.report.checkpoint == newest(safe)


def test_a_gang_that_was_overtaken_before_it_began_does_not_train(tmp_path: Path) -> None:
    safe = str(tmp_path / "dag-train-0a-g0")
    fences.advance_fence(open_store(safe), Fence(attempt=3))
    with gang(tmp_path / "gang", 1, 5) as found:
        (agent,) = found.start()
        assert agent.wait() != 0
        assert agent.report.cause is Cause.SERVICE
        assert "attempt 3 has begun to save there" in (agent.report.message or "")
        assert "delete fence.json there" in (agent.report.message or "")
        assert "found" not in agent.stdout.read_text()


@pytest.mark.parametrize("content", ['{"attempt": "x"}', '{"attempt": -1}', '{"attempt": true}', "{"])
def test_a_gang_that_finds_a_damaged_fence_does_not_train_and_writes_nothing(
    tmp_path: Path, content: str
) -> None:
    place = tmp_path / "dag-train-0a-g0"
    (tmp_path / "step-4.txt").write_text("weights")
    before = publish(tmp_path / "step-4.txt", str(place), step=4, fence=Fence(attempt=1))
    (place / "fence.json").write_text(content)
    with gang(tmp_path / "gang", 2, 5) as found:
        (agent,) = found.start()
        assert agent.wait() != 0
        assert agent.report.cause is Cause.DATA
        assert f"{place / 'fence.json'} does not say which attempt saves there" in (
            agent.report.message or ""
        )
        assert "delete it once no node is left that does" in (agent.report.message or "")
        assert "found" not in agent.stdout.read_text()
    assert (place / "fence.json").read_text() == content
    assert complete(str(place)) == [before]


def test_a_fence_that_is_damaged_meanwhile_is_named_and_what_was_saved_is_published_once_it_is_deleted(
    tmp_path: Path,
) -> None:
    place = tmp_path / "dag-train-0a-g0"
    with gang(tmp_path / "gang", 1, 5, 6) as found:
        (agent,) = found.start()
        (tmp_path / "gang" / "5").touch()
        until(lambda: newest(str(place)))
        (place / "fence.json").write_text('{"attempt": "1"}')
        (tmp_path / "gang" / "6").touch()
        why = f"{place / 'fence.json'} does not say which attempt saves there"
        until(lambda: why in agent.stderr.read_text())
        assert [each.step for each in complete(str(place))] == [5]
        (place / "fence.json").unlink()
        assert agent.wait() == 0, agent.stderr.read_text()
    assert [each.step for each in complete(str(place))] == [6, 5]


@pytest.mark.parametrize("resume", [True, False])
def test_a_gang_goes_on_from_the_last_that_was_saved_whatever_its_step(tmp_path: Path, resume: bool) -> None:
    safe = str(tmp_path / "dag-train-0a-g0")
    for attempt, step in ((1, 900), (2, 3), (2, 2)):
        (tmp_path / f"step-{step}.txt").write_text("weights")
        publish(tmp_path / f"step-{step}.txt", safe, step=step, fence=Fence(attempt=attempt))
    (tmp_path / "gang").mkdir()
    (tmp_path / "gang" / "1").touch()
    with gang(tmp_path / "gang", 3, 1, resume=resume) as found:
        (agent,) = found.start()
        assert agent.wait() == 0, agent.stderr.read_text()
        assert ("found ['step-2.txt']" if resume else "found []") in agent.stdout.read_text()
    assert [each.step for each in complete(safe)] == [1, 2, 3], "three are kept, by order"


def test_what_the_attempt_before_was_sending_is_forgotten(tmp_path: Path) -> None:
    safe = str(tmp_path / "dag-train-0a-g0")
    upload = open_store(safe).upload("step-9.txt/step-9.txt", 10, 10)
    upload.write(0, 0, b"cut off")
    (tmp_path / "gang").mkdir()
    (tmp_path / "gang" / "10").touch()
    with gang(tmp_path / "gang", 2, 10) as found:
        assert found.run() == [0]
    assert not open_store(safe).open_uploads()
