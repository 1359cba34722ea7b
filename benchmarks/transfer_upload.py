"""P10: one file of 512 MiB to Object Storage, beside `ocifs`, the OCI command line and a bare HTTP client."""

from __future__ import annotations

from benchmarks.transfer import LargeFile


class Upload(LargeFile):
    name = "P10"
    title = "one file of 512 MiB up, at 60 MB/s a stream"
    peer_name = "oci os object bulk-upload"
    action = "up"


ROW = Upload()
