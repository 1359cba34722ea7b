"""ocifs, as pandas and fsspec users have it."""

from __future__ import annotations

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


def test_info_tells_size_etag_and_time(files, root):
    files.pipe(f"{root}/o", b"hello")
    info = files.info(f"{root}/o")
    assert (info["size"], info["type"]) == (5, "file")
    assert info["etag"]
    with pytest.raises(FileNotFoundError):
        files.info(f"{root}/absent")


def test_a_file_is_written_and_read_in_pieces(files, root):
    with files.open(f"{root}/lines", "wb", block_size=5 * 2**20) as file:
        for number in range(1_500_000):
            file.write(b"%07d\n" % number)
    with files.open(f"{root}/lines", "rb") as file:
        file.seek(8 * 1_234_567)
        assert file.read(8) == b"1234567\n"


def test_rename_and_find_work(files, root):
    files.pipe(f"{root}/a/1", b"1")
    files.pipe(f"{root}/a/b/2", b"2")
    files.rename(f"{root}/a/1", f"{root}/a/3")
    assert [name.partition("/")[2] for name in files.find(f"{root}/a")] == ["a/3", "a/b/2"]
    assert files.isdir(f"{root}/a")
