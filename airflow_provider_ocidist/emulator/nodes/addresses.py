"""Loopback addresses: each live node has its own, on this machine."""

from __future__ import annotations

import socket
import sys

NETWORKS = range(1, 255)
HOSTS = range(1, 255)


class AddressPool:
    """Hands out addresses 127.0.x.y. `seed` picks the first x, so that two emulators seldom meet."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._claims: dict[int, socket.socket | None] = {}
        self._used: set[str] = set()
        self._next = 0

    def take(self) -> str:
        """Return an address that no live node has. Raises LookupError when there is none left."""
        if sys.platform != "linux":
            # Elsewhere an address has to be configured before it can be used, and only this one is.
            return "127.0.0.1"
        for network in (*self._claims, *self._unclaimed()):
            address = self._free(network)
            if address and self._claim(network):
                self._used.add(address)
                return address
        raise LookupError("no loopback address is left")

    def give_back(self, address: str) -> None:
        self._used.discard(address)

    def close(self) -> None:
        for claim in self._claims.values():
            if claim is not None:
                claim.close()
        self._claims.clear()

    def _unclaimed(self) -> list[int]:
        order = [NETWORKS[(self._seed + step) % len(NETWORKS)] for step in range(len(NETWORKS))]
        return [network for network in order if network not in self._claims]

    def _free(self, network: int) -> str | None:
        """Return the next address, not the lowest free one: sockets of a node that just ended may linger."""
        for _ in HOSTS:
            address = f"127.0.{network}.{HOSTS[self._next % len(HOSTS)]}"
            self._next += 1
            if address not in self._used:
                return address
        return None

    def _claim(self, network: int) -> bool:
        """Reserve 127.0.x for this process: an abstract socket is unique on the machine and dies with us."""
        if network in self._claims:
            return True
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0ocidist-emulator-127.0.{network}")
        except OSError:
            claim.close()
            return False
        self._claims[network] = claim
        return True
