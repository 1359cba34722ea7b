"""The file that lists the nodes of a run for one another; it grows as they come up."""

from __future__ import annotations

import json
from pathlib import Path


class NodesFile:
    """Ranks and addresses of the nodes that are up, in a JSON file that is whole at every moment."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._addresses: dict[int, str] = {}

    def add(self, rank: int, address: str) -> None:
        self._addresses[rank] = address
        nodes = [{"Rank": rank, "IPAddress": where} for rank, where in sorted(self._addresses.items())]
        fresh = self.path.with_suffix(".fresh")
        fresh.write_text(json.dumps(nodes))
        fresh.replace(self.path)
