"""A version changes with the data, and with nothing else."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from airflow_provider_ocidist.oci_client.credentials import access_of
from airflow_provider_ocidist.storage.fingerprint import data_version
from airflow_provider_ocidist.storage.stores.opening import open_store
from scripts.emulator_process import Access


@pytest.fixture(params=["bucket", "local"])
def folder(request: pytest.FixtureRequest, tmp_path: Path):
    if request.param == "local":
        return f"{tmp_path}/", None
    emulator: Access = request.getfixturevalue("emulator")
    place = f"oci://{emulator.bucket}@{emulator.namespace}/versions/{uuid.uuid4().hex[:8]}/"
    return place, access_of(emulator.connection_fields())


def test_the_version_of_a_folder_changes_with_each_file(folder):
    uri, access = folder
    store = open_store(uri, access)
    versions = [data_version(uri, access)]
    for name, text in (("a.txt", b"1"), ("sub/b.txt", b"2"), ("a.txt", b"33")):
        store.write(name, text)
        assert data_version(uri, access) == data_version(uri, access)
        versions.append(data_version(uri, access))
    assert versions[0] is None
    assert len(set(versions)) == 4


def test_the_version_of_a_file_is_that_of_its_content(folder):
    uri, access = folder
    store = open_store(uri, access)
    assert data_version(f"{uri}a.txt", access) is None
    store.write("a.txt", b"1")
    first = data_version(f"{uri}a.txt", access)
    store.write("b.txt", b"beside it")
    assert data_version(f"{uri}a.txt", access) == first
    store.write("a.txt", b"22")
    assert data_version(f"{uri}a.txt", access) not in (first, None)
