"""What a launch does with the fence that it finds where its task saves, step by step, without a gang."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.join.fencing import fence_checkpoints
from airflow_provider_ocidist.errors import AgentError, Cause
from airflow_provider_ocidist.job import Checkpoints, Program
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.fence import Fence
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage import open_uploads
from airflow_provider_ocidist.storage.fences import advance_fence, current_fence
from airflow_provider_ocidist.storage.stores import opening as stores_opening
from airflow_provider_ocidist.storage.stores.base import OpenUpload, Store
from airflow_provider_ocidist.storage.stores.local import LocalStore
from airflow_provider_ocidist.storage.stores.opening import open_store

TASK = "dag-train-0a-g0"
FENCES = [
    Fence(generation=generation, attempt=attempt, launch=launch)
    for generation, attempt, launch in itertools.product((0, 1), (1, 2), (0, 1))
]


def begin(place: Path | str | None, fence: Fence, access: OciAccess | None = None) -> None:
    """Fence the place of a task's checkpoints, as a launch does before it looks for one."""
    uri = None if place is None else str(place)
    config = AgentConfig(
        run_name="run",
        nodes=1,
        run_dir="",
        program=Program(script="program.py"),
        checkpoints=Checkpoints(path="here", uri=uri),
        generation=fence.generation,
        attempt=fence.attempt,
    )
    fence_checkpoints(config, fence, access or OciAccess())


def fence_of(place: Path) -> Fence | None:
    return current_fence(open_store(str(place)))


def cut_off(base: Path, name: str) -> None:
    """Leave an upload as a node does that is killed while it sends."""
    open_store(str(base)).upload(name, 10, 10).write(0, 0, b"cut off")


def open_names(base: Path) -> set[str]:
    return {upload.name for upload in open_store(str(base)).open_uploads()}


@pytest.mark.parametrize("own", FENCES, ids=str)
def test_the_highest_launch_of_the_highest_attempt_has_the_place_and_each_earlier_one_is_refused(
    tmp_path: Path, own: Fence
) -> None:
    for number, other in enumerate(FENCES):
        place = tmp_path / f"{number}" / TASK
        advance_fence(open_store(str(place)), other)
        if own >= other:
            begin(place, own)
            assert fence_of(place) == own
            continue
        with pytest.raises(AgentError) as caught:
            begin(place, own)
        # Airflow tries again: the next attempt has a higher number.
        assert caught.value.cause is Cause.SERVICE
        assert "has begun to save there: " in str(caught.value)
        assert str(caught.value).endswith(
            "; if no node of that attempt lives, delete fence.json there, or try again"
        )
        assert fence_of(place) == other


def test_the_first_attempt_of_a_task_has_the_place_and_nothing_to_abort(tmp_path: Path) -> None:
    # It can only be of a launch before it, or of somebody else.
    names = {f"{TASK}/step-1.pt/x", "dag-train-0a-g9/step-1.pt/x"}
    for name in names:
        cut_off(tmp_path, name)
    begin(tmp_path / TASK, Fence(attempt=1))
    assert fence_of(tmp_path / TASK) == Fence(attempt=1)
    assert open_names(tmp_path) == names


@pytest.mark.parametrize(
    "own, left",
    [
        (Fence(attempt=2), "dag-train-0a-g0/b.pt.attempt-2/x"),
        # After a clear the attempts are counted anew, and all before it are earlier.
        (Fence(generation=1, attempt=1), "dag-train-0a-g1/a.pt/x"),
    ],
    ids=["a retry", "a clear"],
)
def test_a_later_attempt_aborts_what_earlier_ones_were_sending_and_nothing_of_its_own(
    tmp_path: Path, own: Fence, left: str
) -> None:
    for name in ("dag-train-0a-g0/a.pt/x", left):
        cut_off(tmp_path, name)
    begin(tmp_path / f"dag-train-0a-g{own.generation}", own)
    assert open_names(tmp_path) == {left}


@pytest.mark.parametrize("content", ['{"attempt": "x"}', '{"attempt": -1}', "{"])
def test_a_damaged_fence_is_named_as_a_fault_of_the_data_and_stays(tmp_path: Path, content: str) -> None:
    (tmp_path / TASK).mkdir()
    (tmp_path / TASK / "fence.json").write_text(content)
    with pytest.raises(AgentError) as caught:
        begin(tmp_path / TASK, Fence(attempt=2))
    assert caught.value.cause is Cause.DATA
    assert str(caught.value).startswith(
        f"{tmp_path / TASK}/fence.json does not say which attempt saves there"
    )
    assert (tmp_path / TASK / "fence.json").read_text() == content


def test_a_place_that_cannot_be_reached_now_is_left_to_the_first_save_and_nothing_is_aborted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cut_off(tmp_path, "dag-train-0a-g0/a.pt/x")
    (tmp_path / "dag-train-0a-g1").write_text("in the way")
    begin(tmp_path / "dag-train-0a-g1", Fence(generation=1, attempt=2))
    (said,) = [record for record in caplog.records if record.name.endswith("join.fencing")]
    assert said.levelno == logging.WARNING
    why = "the folder of checkpoints cannot be fenced for this attempt yet (the first save tries again): "
    assert said.getMessage().startswith(f"{why}{tmp_path}/dag-train-0a-g1/fence.json: not a directory")
    assert open_names(tmp_path) == {"dag-train-0a-g0/a.pt/x"}


def test_without_a_place_for_checkpoints_nothing_is_fenced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    begin(None, Fence(attempt=2))
    config = AgentConfig(run_name="run", nodes=1, run_dir="", program=Program(script="x"), attempt=2)
    fence_checkpoints(config, Fence(attempt=2), OciAccess())
    assert list(tmp_path.iterdir()) == []


def test_who_has_nothing_to_abort_asks_for_no_uploads_and_each_request_has_the_nodes_own_access(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[tuple[str, OciAccess]] = []
    listed: list[str] = []

    class Noted(LocalStore):
        def open_uploads(self, prefix: str = "") -> Sequence[OpenUpload]:
            listed.append(prefix)
            return super().open_uploads(prefix)

    def opening(uri: str, access: OciAccess) -> Store:
        opened.append((uri, access))
        return Noted(uri)

    monkeypatch.setattr(stores_opening, "open_store", opening)
    monkeypatch.setattr(open_uploads, "open_store", opening)
    own = OciAccess(profile="of this node")
    uri = str(tmp_path / TASK)
    for attempt in (1, 2):
        begin(uri, Fence(attempt=attempt), own)
        assert len(listed) == attempt - 1
    assert opened == [(uri, own), (uri, own), (str(tmp_path), own)]
