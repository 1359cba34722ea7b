"""P9: 2,000 files of 16 KiB from Object Storage, beside `ocifs`, the command line and a bare HTTP client."""

from __future__ import annotations

from typing import Literal

from benchmarks.comparison import Samples
from benchmarks.transfer import Transfer, Tree


class SmallFiles(Transfer):
    name = "P9"
    title = "2,000 files of 16 KiB down, at 30 ms a request"
    peer_name = "oci os object bulk-download"
    target = "at most 1.4 times the bare client's time, half of the command line's; at most 150 MB"
    action: Literal["down", "up"] = "down"
    tree = Tree(files=2000, size=16 << 10)
    conditions = ("0 ms", "30 ms a request")
    headline = "30 ms a request"
    ocifs_files = 100

    def met(self, samples: Samples) -> bool:  # noqa: ARG002 - it needs more than one row's samples
        fast = (
            self.times_faster(self.headline, "cli").low >= 2
            and self.times_faster(self.headline, "floor").low >= 1 / 1.4
        )
        return fast and self._peak_mb <= 150


ROW = SmallFiles()
