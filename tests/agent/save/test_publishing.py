"""How one checkpoint comes to its place, and what keeps it from there at the last moment."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.agent.save.entries import candidates
from airflow_provider_ocidist.agent.save.proofs import Proof
from airflow_provider_ocidist.agent.save.publishing import Changed, Publisher, Whole
from airflow_provider_ocidist.agent.save.saving import SAVE_LIMIT
from airflow_provider_ocidist.errors import Fenced, StorageError
from airflow_provider_ocidist.job import Checkpoints
from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.model.fence import Fence
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage import open_uploads, retention
from airflow_provider_ocidist.storage.checkpoints import SaveFacts
from airflow_provider_ocidist.storage.fences import FENCE_FILE
from tests.agent.gangs import until

FENCE, ACCESS = Fence(attempt=1), OciAccess(region="of-the-node")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "safe"


@pytest.fixture
def whole(tmp_path: Path) -> Whole:
    """A checkpoint that is proved."""
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    (folder / "step-5.txt").write_text("weights")
    (item,) = candidates(folder)
    return Whole(item, Proof("renamed into place"), begun=1, step=5)


def publisher(target: Path, **options: Any) -> Publisher:
    return Publisher(Checkpoints(uri=str(target)), ACCESS, FENCE, loss_at=lambda _: None, **options)


def files(target: Path) -> set[str]:
    """Return the names of what lies in the place, but for that of the fence."""
    return {path.name for path in target.rglob("*") if path.is_file()} - {FENCE_FILE}


def not_called(reference: CheckpointRef) -> None:
    raise AssertionError(f"{reference} is published")


@pytest.mark.parametrize("change", [None, "written", "deleted"])
def test_what_the_program_has_written_to_or_deleted_since_it_was_proved_is_not_sent(
    target: Path, whole: Whole, change: str | None
) -> None:
    path, published = whole.item.path, list[CheckpointRef]()
    if change:
        path.write_text("of the next save") if change == "written" else path.unlink()
        assert not whole.is_unchanged
        with pytest.raises(Changed, match=r"step-5\.txt changed while it was read") as caught:
            publisher(target).publish(whole, not_called)
        assert caught.value.uri == str(path)
        assert files(target) == set()
    else:
        assert whole.is_unchanged
        publisher(target).publish(whole, published.append)
        assert [each.step for each in published] == [5]


def test_once_another_launch_is_chosen_nothing_is_sent(target: Path, whole: Whole) -> None:
    place = publisher(target)
    place.abandon()
    said = r"^step-5\.txt is not published: the training is launched again from before it$"
    with pytest.raises(Fenced, match=said):
        place.publish(whole, not_called)
    assert files(target) == set()


def test_it_is_said_when_all_files_are_there_and_the_manifest_is_not(target: Path, whole: Whole) -> None:
    seen: list[set[str]] = []
    publisher(target, arrived=lambda: seen.append(files(target))).publish(whole, lambda _: None)
    assert seen == [{"step-5.txt"}]
    assert files(target) == {"step-5.txt", "manifest.json"}


class Offers(threading.Condition):
    """Shows whether what is waited for was true at once, and how long it would have been waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[bool, float | None]] = []

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        self.asked.append((bool(predicate()), timeout))
        return super().wait_for(predicate, timeout)


def test_another_launch_is_chosen_only_when_what_is_being_published_is_reported(
    target: Path, whole: Whole
) -> None:
    place, offers = publisher(target), Offers()
    place._offers = offers
    abandons = threading.Thread(target=place.abandon, daemon=True)

    def then(_: CheckpointRef) -> None:
        abandons.start()
        until(lambda: offers.asked)

    place.publish(whole, then)
    abandons.join(60)
    assert not abandons.is_alive()
    place.abandon()
    assert offers.asked == [(False, SAVE_LIMIT), (True, SAVE_LIMIT)]


class Shards:
    """Gathers the parts of other nodes, during which something happens."""

    meanwhile: Callable[[], object]

    def needs_others(self, _: Path) -> bool:
        return True

    def publish(
        self, _: object, uri: str, save: SaveFacts, *, confirm: Callable[[], object], **_options: Any
    ) -> CheckpointRef:
        self.meanwhile()
        confirm()
        return CheckpointRef(uri=uri, step=save.step)


def test_what_several_nodes_send_is_not_published_either_once_another_launch_is_chosen(
    target: Path, whole: Whole
) -> None:
    shards, arrived = Shards(), list[str]()
    place = publisher(target, shards=shards, arrived=lambda: arrived.append("all"))
    shards.meanwhile = place.abandon
    with pytest.raises(Fenced, match="launched again"):
        place.publish(whole, not_called)
    assert arrived == ["all"]


def test_uploads_that_earlier_attempts_have_left_are_looked_for_once_when_old_checkpoints_can_be_deleted(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[Exception | None] = [StorageError("may not delete"), None, None]
    looked_for: list[Any] = []

    def retain(*_: Any, **__: Any) -> None:
        if error := errors.pop(0):
            raise error

    monkeypatch.setattr(retention, "retain", retain)
    monkeypatch.setattr(
        open_uploads, "abort_left_behind", lambda *given, **how: looked_for.append((*given, how))
    )
    place, once = publisher(target), (str(target), FENCE, ACCESS, {"aside": False})
    for expected in ([], [once], [once]):
        place.retain()
        assert looked_for == expected
