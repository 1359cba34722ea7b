"""What a launch leaves to the next one: only where all that belongs together is still here."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.save.carried import NewestInPlace, fetched_into, renumbered
from airflow_provider_ocidist.agent.save.entries import Candidate, candidates
from airflow_provider_ocidist.agent.save.proofs import Proof
from airflow_provider_ocidist.agent.save.publishing import Whole
from airflow_provider_ocidist.storage.checkpoint_names import Placed

SEED = int(os.environ.get("TEST_SEED", "20261127"))
SERIES = ("model-{}.bin", "optimizer-{}.bin", "last.ckpt", "best-epoch={}.ckpt")


def series_of(placed: Placed) -> str:
    return placed.series


def saved(folder: Path, name: str) -> Candidate:
    (folder / name).write_text(f"{name} {random.random()}")
    (item,) = fetched_into(folder, None, [name])
    return item


@pytest.mark.parametrize("number", range(20))
def test_the_newest_of_each_series_has_to_lie_there_as_it_was_proved(tmp_path: Path, number: int) -> None:
    draw = random.Random(f"{SEED}.{number}")
    print(f"seed {SEED}.{number}")
    there = [saved(tmp_path, pattern.format(0)) for pattern in SERIES if draw.random() < 0.5]
    newest = {item.placed.series: item for item in there}
    known = NewestInPlace(there)
    for begun in range(1, draw.randrange(2, 12)):
        item = saved(tmp_path, draw.choice(SERIES).format(begun))
        known.add(item, begun)
        older = newest.get(item.placed.series)
        newest[item.placed.series] = item
        if older and older.path != item.path and draw.random() < 0.5:
            # A program that keeps the last one.
            older.path.unlink()
    found = known.found(series_of) or ()
    assert {item.path: item.signature for item in found} == {
        item.path: item.signature for item in newest.values()
    }
    touched = draw.choice([*newest.values()]).path
    if draw.random() < 0.5:
        touched.unlink()
    else:
        touched.write_text("half")
    assert known.found(series_of) is None


def test_what_is_here_before_the_program_starts_counts_by_when_it_was_written(tmp_path: Path) -> None:
    for step in (1, 3, 2):
        (tmp_path / f"model-{step}.bin").write_text(str(step))
        os.utime(tmp_path / f"model-{step}.bin", (step, step))
    (found,) = NewestInPlace(candidates(tmp_path)).found(series_of) or ()
    assert found.path.name == "model-3.bin"


def test_what_waits_is_numbered_in_the_order_of_saving(tmp_path: Path) -> None:
    item = saved(tmp_path, "model-1.bin")
    waiting = [Whole(item, Proof("a test"), begun, step=begun) for begun in (7, 2, 5)]
    assert [(each.begun, each.step) for each in renumbered(waiting)] == [(1, 2), (2, 5), (3, 7)]
