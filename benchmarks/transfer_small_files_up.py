"""P9b: 2,000 files of 16 KiB to Object Storage."""

from __future__ import annotations

from benchmarks.transfer_small_files import SmallFiles


class SmallFilesUp(SmallFiles):
    name = "P9b"
    title = "2,000 files of 16 KiB up, at 30 ms a request"
    peer_name = "oci os object bulk-upload"
    action = "up"


ROW = SmallFilesUp()
