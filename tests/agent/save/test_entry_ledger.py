"""A checkpoint folder that outlives an attempt, as on a mounted file system."""

from __future__ import annotations

import signal
from pathlib import Path
from random import Random

import pytest

from airflow_provider_ocidist.agent.save.entries import candidates
from airflow_provider_ocidist.agent.save.entry_ledger import Ledger, aside_of, forget_aside, set_aside
from airflow_provider_ocidist.job import Checkpoints
from tests.agent.gangs import Gang, until

PROGRAM = """
import os, sys, time
from pathlib import Path
folder = Path(os.environ["OCIDIST_CHECKPOINT_DIR"])
folder.mkdir(exist_ok=True)
print("found", sorted(path.name for path in folder.iterdir() if path.name[0] != "."), flush=True)
if sys.argv[1] == "cut":
    folder.joinpath("new.tmp").write_bytes(b"1" * 1000)
    folder.joinpath("new.tmp").rename(folder / "step-1.bin")
    folder.joinpath("step-2.bin").write_bytes(b"2" * 500)
    print("written", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "checkpoints"
    found.mkdir()
    return found


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_half_that_stays_in_the_folder_is_offered_to_no_retry_and_never_published(
    tmp_path: Path, end: signal.Signals
) -> None:
    shared, safe = tmp_path / "mounted", tmp_path / "safe"
    shared.mkdir()
    (shared / "step-0.bin").write_bytes(b"the user's own")
    checkpoints = Checkpoints(path=str(shared), uri=str(safe))
    with Gang(tmp_path / "first", PROGRAM, args=("cut",), checkpoints=checkpoints) as gang:
        (agent,) = gang.start()
        agent.prints("written")
        until(lambda: list(safe.glob("step-1*/manifest.json")))
        agent.signal(end)
        agent.wait()
    assert (shared / "step-2.bin").exists()
    with Gang(tmp_path / "second", PROGRAM, args=("go on",), checkpoints=checkpoints) as gang:
        assert gang.run() == [0]
        assert "found ['step-0.bin', 'step-1.bin']" in gang.agents[0].stdout.read_text()
        assert "step-2.bin was left by an interrupted attempt" in gang.agents[0].stderr.read_text()
    assert (aside_of(shared) / "step-2.bin").stat().st_size == 500
    assert not list(safe.glob("step-2*"))


@pytest.mark.parametrize("seed", range(20))
def test_exactly_what_was_neither_there_before_nor_proved_nor_fetched_is_set_aside(
    folder: Path, seed: int
) -> None:
    random = Random(seed)

    def write(name: str) -> None:
        place = folder / name
        if name.endswith(".pt"):
            place.write_bytes(random.randbytes(random.randint(1, 50)))
        else:
            place.mkdir(exist_ok=True)
            (place / "model.bin").write_bytes(random.randbytes(random.randint(51, 99)))

    names = [f"step-{number}{random.choice(['', '.pt'])}" for number in range(random.randint(1, 12))]
    own = [name for name in names if random.random() < 0.3]
    for name in own:
        write(name)
    first = Ledger(folder)
    assert first.begin() == []
    written = [name for name in names if name not in own]
    proved = [name for name in written if random.random() < 0.5]
    for name in written:
        write(name)
    for item in candidates(folder):
        if item.path.name in proved:
            first.add(item)
    changed = [name for name in own + proved if random.random() < 0.2]
    for name in changed:
        (folder / name / "later.bin" if (folder / name).is_dir() else folder / name).write_bytes(b"x" * 200)
    fetched = {name for name in names if random.random() < 0.2}
    aside = set(Ledger(folder).begin(fetched))
    assert aside == (set(written) - set(proved) | set(changed)) - fetched
    assert {item.path.name for item in candidates(folder)} == set(names) - aside
    # Once more, for a third attempt: what stayed stays.
    assert Ledger(folder).begin() == []
    forget_aside(folder)
    assert not aside_of(folder).exists()


def test_a_ledger_that_cannot_be_read_sets_nothing_aside(folder: Path) -> None:
    Ledger(folder).begin()
    (folder / "step-1.pt").write_bytes(b"half")
    Ledger(folder).file.write_text("{")
    assert Ledger(folder).begin() == []


def test_what_cannot_be_moved_out_of_a_folder_is_hidden_within_it_until_it_is_forgotten(folder: Path) -> None:
    (folder / "step-1.pt").write_bytes(b"half")
    # As where the folder is the root of a mount, nothing can be moved beside it.
    aside_of(folder).write_text("in the way")
    set_aside(folder, ["step-1.pt", "step-2.pt"])
    assert candidates(folder) == []
    (hidden,) = folder.iterdir()
    assert hidden.name.startswith(".")
    assert (hidden / "step-1.pt").read_bytes() == b"half"
    forget_aside(folder)
    assert list(folder.iterdir()) == []
