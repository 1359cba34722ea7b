"""Nothing half-done is ever published: programs that are ended anywhere in a save, in any way; SAVES says how often."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_ocidist.job import Checkpoints, LauncherOptions, Limits
from tests.agent.gangs import Gang
from tests.agent.save.saved import KINDS
from tests.agent.save.small_disk import small_disk
from tests.agent.save.writing import PROGRAM, plan_of, require_whole, size_of, some_saves

TWO = LauncherOptions(kind="torchrun", processes_per_node=2)


def gang_of(root: Path, plan: Path, *, keep: int = 3, path: str = "checkpoints", **changes: object) -> Gang:
    return Gang(
        root,
        PROGRAM,
        args=(str(plan),),
        checkpoints=Checkpoints(path=path, uri=str(root / "safe"), keep=keep),
        limits=Limits(stop_grace=2.0),
        **changes,
    )


def test_what_rank_0_was_writing_when_rank_1_raised_is_not_published(tmp_path: Path) -> None:
    saves = some_saves("accelerate", 2, random.Random(1))
    sizes = [len(data) for _, data in saves[1].files]
    within_optimizer = size_of(saves[0]) + sizes[0] + sizes[1] // 3
    plan = plan_of(
        tmp_path / "plan", saves, end="raise", limit=within_optimizer, far=True, piece=1000, rest=1.5
    )
    with gang_of(tmp_path, plan, launcher=TWO) as gang:
        assert gang.run() != [0]
        log = gang.agents[0].stderr.read_text()
    assert require_whole(tmp_path / "safe", saves) == [0]
    assert "checkpoint_200 is not whole and is not published" in log
    assert "optimizer.bin" in log


@pytest.mark.parametrize("keep", [3, 1])
def test_a_save_that_pauses_is_not_published_in_halves_and_deletes_nothing(tmp_path: Path, keep: int) -> None:
    saves = some_saves("opaque", 3, random.Random(2))
    limit = sum(map(size_of, saves)) - 100
    plan = plan_of(tmp_path / "plan", saves, between=2.5, after=[1, 3], limit=limit, end="kill")
    with gang_of(tmp_path, plan, keep=keep) as gang:
        gang.run()
        log = gang.agents[0].stderr.read_text()
    assert require_whole(tmp_path / "safe", saves) == ([0, 1] if keep == 3 else [1])
    assert "step-300 is not published, for nothing proves that it is whole" in log


def ended_anywhere(tmp_path: Path, kind: str, end: str, seed: int) -> None:
    """Train, end it in this way at a random byte, and look at what is offered."""
    print("seed", seed, kind)
    random_ = random.Random(seed)
    saves = some_saves(kind, 3, random_)
    total = sum(map(size_of, saves))
    plan = plan_of(
        tmp_path / "plan",
        saves,
        end="wait" if end == "sigterm" else end,
        limit=total + 1 if end == "exit" else random_.randrange(total // 4, total),
        piece=random_.choice([500, 5000]),
        pause=random_.choice([0.0, 0.02]),
        between=random_.choice([0.0, 0.6, 1.6]),
        rest=random_.choice([0.0, 1.2]),
        rename=random_.random() < 0.3,
        announce=random_.random() < 0.3,
    )
    with gang_of(tmp_path, plan, keep=random_.choice([1, 3])) as gang:
        (agent,) = gang.start()
        if end == "sigterm":
            agent.prints("the end")
            agent.signal(signal.SIGTERM)
        code = agent.wait()
    assert (code == 0) == (end == "exit")
    found = require_whole(tmp_path / "safe", saves)
    if end == "exit":
        assert 2 in found


@pytest.mark.parametrize(
    "end", ["exit", "raise", "kill", "sigterm"] * (int(os.environ.get("SAVES", "8")) // 4)
)
def test_whatever_ends_a_program_at_any_byte_only_whole_checkpoints_are_offered(
    tmp_path: Path, end: str
) -> None:
    seed = random.randrange(10**6)
    ended_anywhere(tmp_path, random.Random(seed).choice(sorted(KINDS)), end, seed)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "small", "64k") as place:
        yield place


@pytest.mark.parametrize("kind", ["trainer", "last", "opaque"])
def test_what_a_full_disk_has_cut_off_is_not_published(tmp_path: Path, disk: Path, kind: str) -> None:
    saves = some_saves(kind, 40, random.Random(kind))
    plan = plan_of(tmp_path / "plan", saves, piece=4096, rest=0.05)
    with gang_of(tmp_path, plan, path=str(disk / "checkpoints")) as gang:
        gang.run()
    require_whole(tmp_path / "safe", saves)
