"""What is fetched before a training begins: by whose credentials, what is noted of it, and when nothing is."""

from __future__ import annotations

import itertools
import logging
import socket
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.agent.save.checkpoints import (
    Brought,
    Fetching,
    checkpoint_folder,
    resume,
    resume_after_clear,
    start_from,
)
from airflow_provider_ocidist.agent.stopping import Stop, Stopped, StopSwitch
from airflow_provider_ocidist.errors import AgentError, Cause, CheckpointError, StorageError, StoreUnavailable
from airflow_provider_ocidist.job import Checkpoints, Program
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage import checkpoints
from airflow_provider_ocidist.storage.checkpoints import Through
from airflow_provider_ocidist.testing import OciEmulator
from tests.storage.published import publish


@pytest.fixture(autouse=True)
def _nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Leave this machine no credentials of its own."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    caplog.set_level(logging.INFO)


@dataclass
class Ways:
    """The three ways to a checkpoint from before, of one task."""

    stem: str
    """Of the places of its generations."""
    folder: Path
    access: OciAccess
    switch: StopSwitch = field(default_factory=StopSwitch)
    brought: Brought = field(default_factory=dict)
    damaged: set[str] = field(default_factory=set)

    def place(self, generation: int) -> str:
        return f"{self.stem}{generation}"

    def resume(self, through: Through | None = None) -> CheckpointRef | None:
        settings = Checkpoints(uri=self.place(0))
        return resume(
            settings,
            Fetching(
                self.folder, self.access, self.switch, self.brought, through=through, damaged=self.damaged
            ),
        )

    def after_clear(self) -> CheckpointRef | None:
        settings = AgentConfig(
            run_name="x",
            nodes=1,
            run_dir="x",
            program=Program(source=None, script="train.py"),
            checkpoints_stem=self.stem,
            generation=2,
        )
        return resume_after_clear(settings, Fetching(self.folder, self.access, self.switch, self.brought))

    def start_from(self, reference: CheckpointRef) -> None:
        settings = Checkpoints(start_from=reference.uri)
        start_from(settings, Fetching(self.folder, self.access, self.switch, self.brought))

    def wanted(self) -> Mapping[str, Callable[[], object]]:
        """Return each way by what is looked for."""
        there = CheckpointRef(uri=f"{self.place(0)}/x", step=1)
        ways = {"to resume from": self.resume, "to resume from ": self.after_clear}
        return {**ways, "to start from": lambda: self.start_from(there)}


@pytest.fixture
def ways(tmp_path: Path) -> Ways:
    return Ways(stem=str(tmp_path / "safe" / "task-g"), folder=tmp_path / "own", access=OciAccess())


def save(source: Path, name: str, *, is_folder: bool = False) -> Path:
    path = source / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if is_folder:
        (path / "weights").mkdir(parents=True)
        (path / "weights" / "model.bin").write_text(f"weights of {name}")
    else:
        path.write_text(f"weights of {name}")
    return path


def test_all_that_is_fetched_is_fetched_by_the_credentials_of_the_run(
    oci_emulator: OciEmulator, tmp_path: Path, ways: Ways, caplog: pytest.LogCaptureFixture
) -> None:
    emulator = oci_emulator.access
    ways.access = OciAccess(config_file=emulator.config_file, endpoint=oci_emulator.url, max_attempts=2)
    ways.stem = f"oci://{emulator.bucket}@{emulator.namespace}/{uuid.uuid4().hex[:8]}/task-g"
    references = {
        name: publish(save(tmp_path / "source", name), ways.place(0), step=10, access=ways.access)
        for name in ("last.ckpt", "epoch=1-step=10.ckpt")
    }
    newest = references["epoch=1-step=10.ckpt"]
    for number, way in enumerate((Ways.resume, Ways.after_clear)):
        own = replace(ways, folder=tmp_path / f"own-{number}", brought={})
        caplog.clear()
        assert way(own) == newest
        assert own.brought == references
        assert set(references) == {path.name for path in own.folder.iterdir()}
        assert f"resuming from step 10: {newest.uri}" in caplog.text
        assert f"also fetched step 10: {references['last.ckpt'].uri}" in caplog.text
    ways.start_from(newest)
    assert set(ways.brought) == {path.name for path in ways.folder.iterdir()} == {"epoch=1-step=10.ckpt"}
    assert f"starting from {newest.uri}" in caplog.text


def test_a_node_that_is_to_end_begins_no_fetch(tmp_path: Path, ways: Ways) -> None:
    reference = publish(save(tmp_path, "step-1.txt"), ways.place(0), step=1)
    ways.switch.ask(Stop(message="enough"))
    for way in (ways.resume, ways.after_clear, lambda: ways.start_from(reference)):
        with pytest.raises(Stopped, match="enough"):
            way()
    assert not ways.brought
    assert not ways.folder.exists()


@pytest.mark.parametrize("with_others", [True, False])
@pytest.mark.parametrize("bad_answers", [1, 2])
def test_what_arrives_damaged_is_read_a_second_time_from_its_store_and_no_third(
    tmp_path: Path,
    ways: Ways,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    bad_answers: int,
    *,
    with_others: bool,
) -> None:
    fetch, asked = checkpoints.fetch, list[tuple[str, bool]]()

    def once_damaged(
        uri: str,
        target: Path,
        access: OciAccess | None = None,
        *,
        through: Through | None = None,
        reuse: bool = True,
        on_read: Callable[[int], object],
        **_more: Any,
    ) -> Path:
        assert reuse
        assert on_read
        asked.append((uri, through is not None))
        if len(asked) <= bad_answers:
            raise CheckpointError("its checksum differs", uri=uri)
        return fetch(uri, target, access)

    monkeypatch.setattr(checkpoints, "fetch", once_damaged)
    former, newest = (
        publish(save(tmp_path, f"step-{step}.txt"), ways.place(0), step=step) for step in (1, 2)
    )
    assert ways.resume((lambda store, *_: store) if with_others else None) == (
        newest if bad_answers == 1 else former
    )
    reads = [(newest.uri, with_others), (newest.uri, False), (former.uri, with_others)]
    assert asked == reads[: 1 + bad_answers]
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert (
        warnings
        == [
            "its checksum differs; reading it again, from the store alone",
            "the checkpoint of step 2 is damaged: its checksum differs",
        ][:bad_answers]
    )
    before = len(asked)
    ways.resume()
    assert asked[before:] == [(newest.uri if bad_answers == 1 else former.uri, False)], "it is known by now"


@pytest.mark.parametrize(
    "is_cancelled, passes, is_damaged, with_others", [*itertools.product([True, False], repeat=4)]
)
def test_only_what_may_be_the_transfers_fault_is_read_a_second_time(
    ways: Ways,
    monkeypatch: pytest.MonkeyPatch,
    is_cancelled: bool,
    passes: bool,
    is_damaged: bool,
    with_others: bool,
) -> None:
    kind = CheckpointError if is_damaged else StorageError
    error, asked = kind("it is not as its manifest says", retryable=passes), list[bool]()
    how = Fetching(
        ways.folder, ways.access, ways.switch, through=(lambda store, *_: store) if with_others else None
    )

    def fails(*_given: object, through: Through | None, **_more: object) -> Path:
        asked.append(through is not None)
        if is_cancelled:
            how.cancel.set()
        raise error

    monkeypatch.setattr(checkpoints, "fetch", fails)
    with pytest.raises(StorageError) as caught:
        how.fetch(ways.place(0))
    assert caught.value is error
    # Others may have sent it wrongly whatever the error is; without them, a store that refuses has no other answer.
    is_again = not is_cancelled and not passes and (is_damaged or with_others)
    assert asked == [with_others, False][: 1 + is_again]


def test_a_companion_that_is_damaged_is_left_out(tmp_path: Path, ways: Ways) -> None:
    companion = publish(save(tmp_path, "last.ckpt"), ways.place(0), step=1)
    newest = publish(save(tmp_path, "step-1.ckpt"), ways.place(0), step=1)
    Path(companion.uri, "last.ckpt").write_text("WEIGHTS of last.ckpt")
    assert ways.resume() == newest
    assert set(ways.brought) == {"step-1.ckpt"}


def test_a_task_that_shall_not_go_on_fetches_nothing(tmp_path: Path, ways: Ways) -> None:
    publish(save(tmp_path, "step-1.txt"), ways.place(0), step=1)
    for settings in (Checkpoints(uri=ways.place(0), resume=False), Checkpoints(uri=None), Checkpoints()):
        assert resume(settings, Fetching(ways.folder, ways.access, ways.switch, ways.brought)) is None
        start_from(settings, Fetching(ways.folder, ways.access, ways.switch, ways.brought))
    assert not ways.brought
    assert not ways.folder.exists()


def test_a_place_that_cannot_be_reached_is_named_with_what_was_wanted_and_why(ways: Ways) -> None:
    ways.access = OciAccess(config_file=str(ways.folder / "none"), max_attempts=1)
    ways.stem = "oci://bucket@namespace/task-g"
    for what, way in ways.wanted().items():
        with pytest.raises(
            AgentError, match=rf"(?s)^the checkpoint {what.strip()} cannot be fetched: .*none"
        ):
            way()


def test_a_store_that_is_down_is_another_cause_than_what_is_damaged(
    oci_emulator: OciEmulator, ways: Ways
) -> None:
    emulator = oci_emulator.access
    ways.stem = f"oci://{emulator.bucket}@{emulator.namespace}/task-g"
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # nobody listens there
        nowhere = f"127.0.0.1:{nobody.getsockname()[1]}"
        ways.access = OciAccess(
            config_file=emulator.config_file, endpoint=f"http://{nowhere}", max_attempts=1
        )
        for what, way in ways.wanted().items():
            with pytest.raises(StoreUnavailable, match=f"^the checkpoint {what.strip()} cannot be") as caught:
                way()
            assert caught.value.cause is Cause.SERVICE
            assert nowhere.partition(":")[0] in str(caught.value)


@pytest.mark.parametrize("is_folder", [True, False])
def test_deepspeeds_pointer_is_written_for_its_checkpoints_only(
    tmp_path: Path, ways: Ways, *, is_folder: bool
) -> None:
    publish(save(tmp_path, "checkpoint-1_states.pt", is_folder=is_folder), ways.place(0), step=1)
    ways.resume()
    assert [path.name for path in ways.folder.iterdir()] == ["checkpoint-1_states.pt"]


@pytest.mark.parametrize(
    "path, is_in",
    [
        (None, "/work/run/checkpoints"),
        ("checkpoints", "/work/run/checkpoints"),
        ("./out/../saves/", "/work/run/saves"),
        ("../saves", "/work/saves"),
        ("/scratch/saves", "/scratch/saves"),
    ],
)
def test_a_program_writes_where_the_job_says_from_its_working_directory_on(
    path: str | None, is_in: str
) -> None:
    settings = None if path is None else Checkpoints(path=path)
    assert checkpoint_folder(settings, Path("/work/run")) == Path(is_in)
