"""ocifs, as pandas and fsspec users have it."""

from __future__ import annotations

import time
from pathlib import Path

import fsspec
import oci
import pytest


@pytest.fixture
def files(cloud):
    return fsspec.filesystem(
        "oci",
        config=cloud.access.config_file,
        profile=cloud.access.profile,
        config_kwargs={
            "service_endpoint": cloud.access.url,
            "circuit_breaker_strategy": oci.circuit_breaker.NoCircuitBreakerStrategy(),
        },
        skip_instance_cache=True,
        use_listings_cache=False,
    )


@pytest.fixture
def root(cloud) -> str:
    return f"oci://{cloud.access.bucket}@{cloud.access.namespace}"


def test_files_are_put_listed_read_and_removed(files, root, tmp_path):
    local = tmp_path / "in.bin"
    local.write_bytes(b"x" * 9_000_000)
    files.put(str(local), f"{root}/dir/big.bin")
    files.pipe(f"{root}/dir/small é.txt", b"hello")
    assert [name.rpartition("/")[2] for name in files.ls(f"{root}/dir", detail=False)] == [
        "big.bin",
        "small é.txt",
    ]
    assert files.cat(f"{root}/dir/small é.txt") == b"hello"
    files.get(f"{root}/dir/big.bin", str(tmp_path / "out.bin"))
    assert (tmp_path / "out.bin").read_bytes() == local.read_bytes()
    files.rm(f"{root}/dir/big.bin")
    assert not files.exists(f"{root}/dir/big.bin")


def test_info_has_size_etag_and_time(files, root):
    files.pipe(f"{root}/o", b"hello")
    info = files.info(f"{root}/o")
    assert (info["size"], info["type"]) == (5, "file")
    assert info["etag"]
    with pytest.raises(FileNotFoundError):
        files.info(f"{root}/absent")


def test_a_file_is_written_and_read_in_pieces(files, root):
    with files.open(f"{root}/lines", "wb", block_size=5 * 2**20) as file:
        for start in range(0, 1_500_000, 1000):
            file.write(b"".join(b"%07d\n" % number for number in range(start, start + 1000)))
    with files.open(f"{root}/lines", "rb") as file:
        file.seek(8 * 1_234_567)
        assert file.read(8) == b"1234567\n"


def test_rename_and_find_work(files, root):
    files.pipe(f"{root}/a/1", b"1")
    files.pipe(f"{root}/a/b/2", b"2")
    files.rename(f"{root}/a/1", f"{root}/a/3")
    assert [name.partition("/")[2] for name in files.find(f"{root}/a")] == ["a/3", "a/b/2"]
    assert files.isdir(f"{root}/a")


TREE = {
    "plain.txt": b"1",
    "empty": b"",
    "with blank/and + plus.txt": b"2",
    "per%cent/100%25": b"3",
    "ünï çødé/日本.bin": b"4",
    ".hidden/..dots/...": b"5",
    "deep/a/b/c/d/e.txt": b"6",
    "quote's & (brackets)=#?.txt": b"7",
}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_tree_with_odd_names_goes_up_and_down_unchanged(files, root, tmp_path):
    for name, data in TREE.items():
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    files.put(f"{tmp_path}/in/", f"{root}/tree/", recursive=True)
    found = files.find(f"{root}/tree")
    assert sorted(name.partition("/tree/")[2] for name in found) == sorted(TREE)
    files.get(f"{root}/tree/", f"{tmp_path}/out/", recursive=True)
    assert contents(tmp_path / "out") == TREE
    files.rm(f"{root}/tree", recursive=True)
    assert files.find(f"{root}/tree") == []


def test_a_copy_appears_and_the_source_stays(files, root):
    files.pipe(f"{root}/a b", b"hello")
    files.copy(f"{root}/a b", f"{root}/c%d")
    deadline = time.monotonic() + 5
    while not files.exists(f"{root}/c%d"):
        assert time.monotonic() < deadline
    assert (files.cat(f"{root}/a b"), files.cat(f"{root}/c%d")) == (b"hello", b"hello")


def test_bytes_are_read_from_any_place(files, root):
    files.pipe(f"{root}/o", bytes(range(100)))
    assert files.cat_file(f"{root}/o", start=10, end=20) == bytes(range(10, 20))
    assert files.tail(f"{root}/o", 5) == bytes(range(95, 100))
    assert files.head(f"{root}/o", 5) == bytes(range(5))


def test_buckets_are_made_and_removed(files, cloud):
    name = f"oci://made@{cloud.access.namespace}"
    files.mkdir(name, compartment_id=cloud.access.compartment_id)
    assert "made" in [bucket.name for bucket in buckets(cloud)]
    files.rmdir(name)
    assert "made" not in [bucket.name for bucket in buckets(cloud)]


def buckets(cloud) -> list:
    return cloud.objects.list_buckets(cloud.access.namespace, cloud.access.compartment_id).data
