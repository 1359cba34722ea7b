"""Which folder a checkpoint gets at its target, and what is taken from where it lies: no place is shared by two."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_ocidist.errors import CheckpointError, Unpublishable
from airflow_provider_ocidist.model.fence import Fence
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage.checkpoints import SaveFacts, complete, published, reserve, verify
from airflow_provider_ocidist.storage.stores.opening import open_store
from tests.storage.published import publish


def save(path: Path, text: str = "weights") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def folder_of(uri: str) -> str:
    return uri.rstrip("/").rpartition("/")[2]


@pytest.mark.parametrize(
    "name, step, folder",
    [
        ("step-5.pt", 5, "step-5.pt"),
        ("step-5.pt", None, "step-5.pt"),
        ("step-5.pt", 6, "step-5.pt.step-6"),
        ("epoch=3.ckpt", 3, "epoch=3.ckpt"),
        ("epoch=3.ckpt", 40, "epoch=3.ckpt.step-40"),
        # An epoch may be saved several times.
        ("epoch=3.ckpt", None, "epoch=3.ckpt.save-7"),
        ("last.ckpt", None, "last.ckpt.save-7"),
        ("last.ckpt", 5, "last.ckpt.step-5"),
        ("a.odd", None, "a.odd.save-7"),
        ("a.odd", 5, "a.odd.step-5"),
    ],
)
@pytest.mark.parametrize("attempt", [1, 3])
def test_a_folder_is_named_after_the_entry_and_what_the_name_does_not_say(
    tmp_path: Path, name: str, step: int | None, folder: str, attempt: int
) -> None:
    target, fence = str(tmp_path / "target"), Fence(attempt=attempt)
    reference = publish(save(tmp_path / name), target, step=step, fence=fence, sequence=7)
    named = folder if attempt == 1 else f"{folder}.attempt-3"
    assert folder_of(reference.uri) == named
    again = publish(save(tmp_path / name, "other"), target, step=step, fence=fence, sequence=7)
    assert folder_of(again.uri) == f"{named}.again-2"
    assert Path(reference.uri, name).read_text() == "weights"


def test_what_an_upload_that_was_cut_off_has_left_is_written_over(tmp_path: Path) -> None:
    half = save(tmp_path / "target" / "step-5.pt" / "step-5.pt", "half")
    reference = publish(save(tmp_path / "step-5.pt"), str(tmp_path / "target"), step=5)
    assert Path(reference.uri) == half.parent
    assert half.read_text() == "weights"


def test_a_folder_into_which_nodes_send_parts_is_empty(tmp_path: Path) -> None:
    target, parts = tmp_path / "target", SaveFacts(step=5, fence=Fence(), sequence=1, proof="a test")
    assert folder_of(reserve(str(target), "step-5", parts)) == "step-5"
    save(target / "step-5" / "optimizer" / "part-0")
    for number in (2, 3):
        place = reserve(str(target), "step-5", parts)
        assert folder_of(place) == f"step-5.again-{number}"
        save(Path(place) / "part-0")


def test_a_file_is_published_without_its_neighbours(tmp_path: Path) -> None:
    save(tmp_path / "program" / "notes.txt")
    save(tmp_path / "program" / "step-4.pt")
    path = save(tmp_path / "program" / "step-5.pt")
    reference = publish(path, str(tmp_path / "target"), step=5)
    assert [item.path for item in verify(reference.uri).files] == ["step-5.pt"]
    assert sorted(each.name for each in Path(reference.uri).iterdir()) == ["manifest.json", "step-5.pt"]


def test_what_cannot_be_published_is_named_with_the_reason(tmp_path: Path) -> None:
    outside, target = save(tmp_path / "outside.pt"), str(tmp_path / "target")
    for name in ("step-5", "step-6"):
        (tmp_path / name).mkdir()
    with pytest.raises(
        CheckpointError, match="step-5 is not a checkpoint: it does not exist, or contains no file"
    ):
        publish(tmp_path / "step-5", target, step=5)
    with pytest.raises(CheckpointError, match="step-9 is not a checkpoint"):
        publish(tmp_path / "step-9", target, step=9)
    (tmp_path / "step-5" / "model.pt").symlink_to(outside)
    save(tmp_path / "step-5" / "optimizer.pt")
    with pytest.raises(Unpublishable, match=r"step-5 has links that lead out of it, or nowhere: model\.pt"):
        publish(tmp_path / "step-5", target, step=5)
    save(tmp_path / "step-6" / "manifest.json")
    with pytest.raises(Unpublishable, match=r"step-6 contains a manifest\.json of its own: rename it"):
        publish(tmp_path / "step-6", target, step=6)
    assert published(target) == complete(target) == []


def test_what_was_published_is_known_also_when_it_is_damaged(
    tmp_path: Path, access: OciAccess, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # this machine has no credentials of its own
    for step in (6, 5, 4):
        publish(save(tmp_path / f"step-{step}.pt"), bucket, step=step, access=access)
    store = open_store(bucket, access)
    store.delete("step-5.pt/step-5.pt")
    store.delete("step-4.pt/manifest.json")
    assert published(bucket, access) == ["step-5.pt", "step-6.pt"]
    assert [found.step for found in complete(bucket, access)] == [6]
