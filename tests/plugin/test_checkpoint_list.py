"""The list of checkpoints: complete ones only, and each manifest read once."""

from __future__ import annotations

import threading

from airflow_provider_ocidist.errors import StorageError
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.plugin import checkpoint_list
from airflow_provider_ocidist.plugin.checkpoint_list import CheckpointList
from airflow_provider_ocidist.storage import checkpoints
from tests.storage.published import publish
from tests.work_dir.hung_mounts import HungMount

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


def test_a_place_that_does_not_answer_is_reported_and_what_was_known_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_list, "LISTED_WITHIN", 0.3)
    published(tmp_path, 10)
    listed, mount = CheckpointList(), HungMount(tmp_path / "mount")
    known = listed.read(str(tmp_path / "target"), ACCESS).items
    monkeypatch.setattr(checkpoint_list, "open_store", lambda uri, _: mount.store(uri))
    found = []
    look = threading.Thread(
        target=lambda: found.extend(listed.read(str(tmp_path / "target"), ACCESS) for _ in range(20)),
        daemon=True,
    )
    look.start()
    look.join(30)
    calls = list(mount.calls)
    mount.close()
    assert len(found) == 20, "the page waits for the place"
    assert all(each.items == known for each in found)
    assert "has not answered" in found[0].problem
    assert len(calls) == 1, "each call that hangs keeps a thread"


def test_a_driver_that_never_connects_is_reported_and_what_was_known_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_list, "OPENED_WITHIN", 0.1, raising=False)
    published(tmp_path, 10)
    listed, connects, found, calls = CheckpointList(), threading.Event(), [], []
    known = listed.read(str(tmp_path / "target"), ACCESS).items

    def connect(uri, _):
        calls.append(uri)
        connects.wait(60)
        raise StorageError("no answer", uri=uri)

    monkeypatch.setattr(checkpoint_list, "open_store", connect)
    look = threading.Thread(
        target=lambda: found.extend(listed.read(str(tmp_path / "target"), ACCESS) for _ in range(5)),
        daemon=True,
    )
    look.start()
    look.join(10)
    asked = len(calls)
    connects.set()
    assert len(found) == 5, "the page waits for the driver"
    assert all(each.items == known for each in found)
    assert "has not answered" in found[0].problem
    assert asked == 1, "each call that hangs keeps a thread"


def test_what_cannot_be_read_is_reported_and_what_was_known_stays(tmp_path):
    published(tmp_path, 10)
    listed = CheckpointList()
    listed.read(str(tmp_path / "target"), ACCESS)
    again = listed.read("nosuch://place", ACCESS)
    assert [each.step for each in again.items] == [10]
    assert "cannot be read now" in again.problem
