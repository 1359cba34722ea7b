"""Where a place is that a DAG names, and what can be done there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_provider_ocidist.hooks import OciHook


@pytest.fixture
def hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OciHook:
    connection = {"conn_type": "oci", "extra": {"work_dir": str(tmp_path)}}
    monkeypatch.setenv("AIRFLOW_CONN_OCI_DEFAULT", json.dumps(connection))
    return OciHook()


@pytest.mark.parametrize("place", ["oci://bucket@namespace/data/", "file:///data", "/data/"])
def test_a_whole_place_stays_as_it_is(hook: OciHook, place: str) -> None:
    assert hook.uri(place) == place


def test_a_relative_place_lies_in_the_work_dir_and_stays_a_folder(hook: OciHook, tmp_path: Path) -> None:
    assert hook.uri("scratch/x/") == f"{tmp_path}/scratch/x/"
    assert hook.uri("scratch/x") == f"{tmp_path}/scratch/x"


def test_files_of_a_place_are_written_listed_read_and_deleted(hook: OciHook, tmp_path: Path) -> None:
    store = hook.store("scratch")
    store.write("a/b.txt", b"content")
    assert (tmp_path / "scratch" / "a" / "b.txt").read_bytes() == store.read("a/b.txt") == b"content"
    assert [entry.name for entry in store.list()] == ["a/b.txt"]
    store.delete("a/b.txt")
    assert store.list() == []
