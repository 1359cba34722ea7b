"""The list of checkpoints: complete ones only, and each manifest read once."""

from __future__ import annotations

from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.plugin.checkpoint_list import CheckpointList
from airflow_provider_ocidist.storage import checkpoints
from tests.storage.published import publish

ACCESS = OciAccess()


def published(tmp_path, step: int) -> None:
    path = tmp_path / "local" / f"step-{step:06}.pt"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"x" * step)
    publish(path, str(tmp_path / "target"), step=step, loss=1 / step)


def test_complete_checkpoints_are_listed_newest_first_with_size_and_loss(tmp_path):
    for step in (10, 20, 30):
        published(tmp_path, step)
    (tmp_path / "target" / "step-000040.pt").mkdir()
    (tmp_path / "target" / "step-000040.pt" / "part").write_text("not complete")
    found = CheckpointList().read(str(tmp_path / "target"), ACCESS)
    assert [(each.step, each.size, each.loss) for each in found.items] == [
        (30, 30, 1 / 30),
        (20, 20, 1 / 20),
        (10, 10, 1 / 10),
    ]
    assert found.items[0].uri.endswith("target/step-000030.pt")


def test_a_manifest_is_read_once_and_a_retired_checkpoint_leaves_the_list(tmp_path, monkeypatch):
    published(tmp_path, 10)
    published(tmp_path, 20)
    listed = CheckpointList()
    listed.read(str(tmp_path / "target"), ACCESS)
    read = []
    monkeypatch.setattr(checkpoints.Manifest, "from_json", classmethod(lambda cls, text: read.append(text)))
    checkpoints_before = listed.read(str(tmp_path / "target"), ACCESS)
    for path in (tmp_path / "target" / "step-000010.pt").iterdir():
        path.unlink()
    assert [each.step for each in checkpoints_before.items] == [20, 10]
    assert [each.step for each in listed.read(str(tmp_path / "target"), ACCESS).items] == [20]
    assert read == []


def test_a_damaged_one_is_shown_as_such_and_the_newest_is_a_whole_one(tmp_path):
    for step in (10, 20, 30):
        published(tmp_path, step)
    listed = CheckpointList()
    assert [each.fault for each in listed.read(str(tmp_path / "target"), ACCESS).items] == [None, None, None]
    (tmp_path / "target" / "step-000030.pt" / "step-000030.pt").write_bytes(b"half")
    (tmp_path / "target" / "step-000020.pt" / "step-000020.pt").unlink()
    found = listed.read(str(tmp_path / "target"), ACCESS)
    assert [(each.step, each.fault) for each in found.items] == [
        (10, None),
        (30, "step-000030.pt has 4 bytes instead of 30"),
        (20, "step-000020.pt is missing"),
    ]


def test_what_cannot_be_read_is_reported_and_what_was_known_stays(tmp_path):
    published(tmp_path, 10)
    listed = CheckpointList()
    listed.read(str(tmp_path / "target"), ACCESS)
    again = listed.read("nosuch://place", ACCESS)
    assert [each.step for each in again.items] == [10]
    assert "cannot be read now" in again.problem
