"""`ObjectStoragePath` over a connection, as tasks, the XCom backend and remote logs use it."""

from __future__ import annotations

import json
import uuid

import pytest

from scripts.emulator_process import Access


@pytest.fixture
def folder(emulator: Access, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder that nobody else uses, by the name that Airflow gives it."""
    for name, value in emulator.airflow_env("training").items():
        monkeypatch.setenv(name, value)
    return f"oci://training@{emulator.bucket}/filesystem/{uuid.uuid4().hex[:8]}"


def test_a_path_reads_and_writes_through_its_connection(folder):
    from airflow.sdk import ObjectStoragePath

    path = ObjectStoragePath(folder) / "notes" / "one.txt"
    path.write_text("hello")
    assert path.read_text() == "hello"
    assert path.exists()
    assert path.stat().st_size == 5
    assert [item.name for item in (ObjectStoragePath(folder) / "notes").iterdir()] == ["one.txt"]
    path.unlink()
    assert not path.exists()


def test_a_found_path_can_be_used_like_one_that_was_written_down(folder):
    from airflow.sdk import ObjectStoragePath

    (ObjectStoragePath(folder) / "a" / "b.json").write_text(json.dumps({"x": 1}))
    (found,) = ObjectStoragePath(folder).rglob("*.json")
    assert json.loads(found.read_text()) == {"x": 1}
    assert found == ObjectStoragePath(folder) / "a" / "b.json"


def test_a_path_copies_to_a_local_file(folder, tmp_path):
    from airflow.sdk import ObjectStoragePath

    source = ObjectStoragePath(folder) / "x.bin"
    source.write_bytes(b"0123")
    source.copy(ObjectStoragePath(f"file://{tmp_path}/x.bin"))
    assert (tmp_path / "x.bin").read_bytes() == b"0123"


def test_large_results_of_tasks_are_kept_in_the_bucket(folder, monkeypatch):
    from airflow.providers.common.io.xcom import backend

    monkeypatch.setenv("AIRFLOW__COMMON_IO__XCOM_OBJECTSTORAGE_PATH", f"{folder}/xcom")
    monkeypatch.setenv("AIRFLOW__COMMON_IO__XCOM_OBJECTSTORAGE_THRESHOLD", "100")
    for cached in (backend._get_base_path, backend._get_threshold, backend._get_compression):
        cached.cache_clear()
    try:
        value = {"losses": list(range(200))}
        stored = backend.XComObjectStorageBackend.serialize_value(
            value, key="k", task_id="t", dag_id="d", run_id="r"
        )
        assert "oci://" in stored

        class Row:
            pass

        row = Row()
        row.value = stored
        assert backend.XComObjectStorageBackend.deserialize_value(row) == value
    finally:
        for cached in (backend._get_base_path, backend._get_threshold, backend._get_compression):
            cached.cache_clear()
