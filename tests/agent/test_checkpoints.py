"""What is carried to safety, and when."""

from __future__ import annotations

import json
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent import checkpoints
from airflow_provider_ocidist.agent.checkpoints import (
    CheckpointCourier,
    candidates,
    is_whole,
    resume,
    resume_after_clear,
    start_from,
)
from airflow_provider_ocidist.agent.config import AgentConfig
from airflow_provider_ocidist.agent.stopping import StopSwitch
from airflow_provider_ocidist.errors import AgentError
from airflow_provider_ocidist.job import Checkpoints, Program
from airflow_provider_ocidist.oci_credentials import OciAccess
from airflow_provider_ocidist.storage.checkpoints import CheckpointRef, newest, publish
from tests.agent.gangs import until


class Watched:
    """A courier over two folders, and what it has published."""

    def __init__(self, root: Path, *, keep: int = 3) -> None:
        self.folder, self.target = root / "checkpoints", root / "safe"
        self.folder.mkdir()
        self.published: list[CheckpointRef] = []
        self.courier = CheckpointCourier(
            self.folder,
            Checkpoints(uri=str(self.target), keep=keep),
            OciAccess(),
            loss_at=lambda step: step / 10,
            on_published=self.published.append,
        )

    @property
    def steps(self) -> list[int]:
        return [reference.step for reference in self.published]

    def write(self, step: int, text: str = "weights") -> Path:
        path = self.folder / f"step-{step}.txt"
        path.write_text(text)
        return path


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    monkeypatch.setattr(checkpoints, "LOOK_INTERVAL", 0.1)
    monkeypatch.setattr(checkpoints, "FIRST_PAUSE", 0.1)
    found = Watched(tmp_path)
    yield found
    found.courier.finish(clean=True, limit=10)


def test_a_checkpoint_that_came_to_rest_is_published_with_its_loss(watched: Watched) -> None:
    watched.courier.start()
    watched.write(5)
    until(lambda: watched.published)
    found = newest(str(watched.target))
    assert found
    assert (found.step, found.loss) == (5, 0.5)


def test_one_that_still_grows_is_left_alone(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "LOOK_INTERVAL", 1.0)
    watched.courier.start()
    for size in range(60):
        watched.write(5, "x" * size)
        time.sleep(0.05)
    assert watched.published == []


def test_names_that_are_hidden_unfinished_or_without_a_number_are_not_candidates(tmp_path: Path) -> None:
    for name in (".step-1.pt", "step-2.tmp", "step-3.pt.part", "last.pt", "step-4.bin", "step-5"):
        (tmp_path / name).write_text("x")
    assert [item.path.name for item in candidates(tmp_path)] == ["step-5", "step-4.bin"]


def test_what_was_there_before_the_start_is_not_published_again(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "step-3.txt").write_text("fetched")
    told = Checkpoints(uri=str(tmp_path / "safe"))
    courier = CheckpointCourier(
        tmp_path / "checkpoints", told, OciAccess(), loss_at=lambda _: None, on_published=lambda _: None
    )
    courier.start()
    assert courier.finish(clean=True, limit=10) is None
    assert newest(str(tmp_path / "safe")) is None


def test_the_newest_goes_first_and_only_as_many_as_are_kept(watched: Watched) -> None:
    for step in range(1, 7):
        watched.write(step)
    watched.courier.start()
    assert watched.courier.finish(clean=True, limit=10) is None
    assert watched.steps == [6, 5, 4]
    assert sorted(folder.name for folder in watched.target.iterdir()) == [
        "step-4.txt",
        "step-5.txt",
        "step-6.txt",
    ]


def test_old_ones_leave_as_new_ones_come(watched: Watched) -> None:
    watched.courier.start()
    for step in range(1, 6):
        watched.write(step)
        until(lambda step=step: step in watched.steps)
    until(lambda: len(list(watched.target.iterdir())) == 3)


def test_an_upload_that_fails_is_tried_again(watched: Watched) -> None:
    watched.target.write_text("in the way")
    watched.courier.start()
    watched.write(5)
    until(lambda: watched.courier.error)
    watched.target.unlink()
    until(lambda: watched.steps == [5])
    assert watched.courier.finish(clean=True, limit=10) is None


def test_a_last_upload_that_fails_is_reported(watched: Watched) -> None:
    watched.target.write_text("in the way")
    watched.write(5)
    watched.courier.start()
    error = watched.courier.finish(clean=True, limit=30)
    assert error
    assert "step-5.txt cannot be carried to safety" in error


def test_a_checkpoint_that_the_program_deletes_meanwhile_is_no_fault(watched: Watched) -> None:
    watched.courier.start()
    watched.write(5)
    until(lambda: watched.steps == [5])
    watched.write(6).unlink()
    assert watched.courier.finish(clean=True, limit=10) is None


def test_after_a_kill_only_what_had_come_to_rest_is_credible(watched: Watched) -> None:
    watched.courier.start()
    watched.write(5)
    assert watched.courier.finish(clean=False, limit=10) is None
    assert watched.published == []


def test_formats_tell_whether_they_are_whole(tmp_path: Path) -> None:
    whole, cut = tmp_path / "step-1.pt", tmp_path / "step-2.pt"
    with zipfile.ZipFile(whole, "w") as file:
        file.writestr("data.pkl", "x" * 1000)
    cut.write_bytes(whole.read_bytes()[:-10])
    assert (is_whole(whole), is_whole(cut)) == (True, False)

    header = json.dumps({"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode()
    tensors = tmp_path / "step-3.safetensors"
    tensors.write_bytes(len(header).to_bytes(8, "little") + header + b"1234")
    assert is_whole(tensors)
    tensors.write_bytes(tensors.read_bytes()[:-1])
    assert is_whole(tensors) is False

    sharded = tmp_path / "step-4"
    sharded.mkdir()
    (sharded / "__0_0.distcp").write_text("x")
    assert is_whole(sharded) is False
    (sharded / ".metadata").write_text("x")
    assert is_whole(sharded)
    assert is_whole(tmp_path / "step-5.bin") is None


def damage(reference: str) -> None:
    """Change a byte, as a bad disk would, so that only its checksum tells."""
    (file,) = [path for path in Path(reference).iterdir() if path.name != "manifest.json"]
    file.write_bytes(b"X" + file.read_bytes()[1:])


def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path: Path, caplog) -> None:
    source, safe, target = tmp_path / "source", str(tmp_path / "safe"), tmp_path / "target"
    source.mkdir()
    published = []
    for step in (1, 2):
        (source / f"step-{step}.txt").write_text(f"weights of {step}")
        published.append(publish(source / f"step-{step}.txt", safe, step=step))
    told = Checkpoints(uri=safe)
    damage(published[1].uri)
    found = resume(target, told, OciAccess(), StopSwitch())
    assert found == published[0]
    assert [path.name for path in target.iterdir()] == ["step-1.txt"]
    assert "the checkpoint of step 2 is damaged" in caplog.text

    damage(published[0].uri)
    with pytest.raises(AgentError, match=r"all 2 checkpoints below .* are damaged: delete them"):
        resume(target, told, OciAccess(), StopSwitch())


def test_after_a_clear_the_newest_life_that_had_a_checkpoint_is_gone_on_from(tmp_path: Path) -> None:
    stem = str(tmp_path / "safe" / "dag-train-0a-g")

    def again(generation: int) -> CheckpointRef | None:
        program = Program(source=None, script="train.py")
        told = AgentConfig(
            run_name="x",
            nodes=1,
            run_dir="x",
            program=program,
            checkpoints_stem=stem,
            generation=generation,
        )
        return resume_after_clear(tmp_path / "own", told, OciAccess(), StopSwitch())

    assert again(3) is None
    for generation, step in ((1, 30), (12, 10), (14, 99)):
        (tmp_path / f"step-{step}.txt").write_text("weights")
        publish(tmp_path / f"step-{step}.txt", f"{stem}{generation}", step=step)
    assert [found and found.step for found in map(again, (1, 2, 13))] == [None, 30, 10]


def test_deepspeed_is_told_which_checkpoint_to_go_on_from(tmp_path: Path) -> None:
    saved = tmp_path / "global_step8"
    saved.mkdir()
    (saved / "mp_rank_00_model_states.pt").write_bytes(b"weights")
    publish(saved, str(tmp_path / "safe"), step=8, loss=None)
    resume(tmp_path / "fetched", Checkpoints(uri=str(tmp_path / "safe")), OciAccess(), StopSwitch())
    assert (tmp_path / "fetched" / "latest").read_text() == "global_step8"


def test_a_run_starts_from_the_checkpoint_of_another(tmp_path: Path) -> None:
    (tmp_path / "step-20.txt").write_text("weights")
    other = publish(tmp_path / "step-20.txt", str(tmp_path / "other"), step=20)
    start_from(tmp_path / "own", Checkpoints(start_from=other.uri), OciAccess(), StopSwitch())
    assert [path.name for path in (tmp_path / "own").iterdir()] == ["step-20.txt"]

    damage(other.uri)
    with pytest.raises(AgentError, match=r"(?s)cannot be fetched: .*correct checkpoints\.start_from"):
        start_from(tmp_path / "own", Checkpoints(start_from=other.uri), OciAccess(), StopSwitch())


def test_a_program_beside_the_checkpoints_is_none(tmp_path: Path) -> None:
    (tmp_path / "zero_to_fp32.py").write_text("# DeepSpeed puts it there")
    assert candidates(tmp_path) == []
