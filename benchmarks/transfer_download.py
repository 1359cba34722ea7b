"""P8: one file of 512 MiB from Object Storage, beside `ocifs`, the OCI command line and a bare HTTP client."""

from __future__ import annotations

from benchmarks.transfer import LargeFile


class Download(LargeFile):
    name = "P8"
    title = "one file of 512 MiB down, at 60 MB/s a stream"
    peer_name = "oci os object bulk-download"
    action = "down"


ROW = Download()
