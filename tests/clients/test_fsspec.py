"""`ocifs`, and libraries above fsspec, with plain `oci://` URLs."""

from __future__ import annotations

from tests.clients.processes import PROGRAMS


def test_pandas_and_torch_read_and_write_oci_urls(clients, emulator):
    base = f"oci://{emulator.bucket}@{emulator.namespace}/urls"
    assert clients.run("python", PROGRAMS / "fsspec_urls.py", base) == "all well\n"
