"""Reading a connection again after refusals: a token may have expired, a key been replaced. No Airflow."""

from __future__ import annotations

from collections.abc import Callable

RENEW_EVERY = 30.0
"""Least seconds between two readings of credentials after refusals; one that comes sooner is raised or waited out."""


def read_again(reconnect: Callable[[], object], warn: Callable[[str, Exception], object]) -> bool:
    """Read a connection again; return whether that succeeded. Raises nothing."""
    try:
        reconnect()
    except Exception as error:  # noqa: BLE001 - Airflow's or the network's; the old connection may still do
        warn("the connection could not be read again: %s", error)
        return False
    return True


class RefusedCredentials:
    """Reads refused credentials again, but not at every refusal."""

    __slots__ = ("_clock", "_read_at")

    def __init__(self, clock: Callable[[], float], read_at: float) -> None:
        """`read_at`: when the credentials were read, by `clock`."""
        self._clock = clock
        self._read_at = read_at

    def renew(self, reconnect: Callable[[], object], warn: Callable[[str, Exception], object]) -> bool:
        """Read the credentials again, unless that was just tried; return whether they were read."""
        if self._clock() - self._read_at < RENEW_EVERY:
            return False
        self._read_at = self._clock()
        return read_again(reconnect, warn)
