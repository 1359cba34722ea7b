"""Pauses: how often to look at what may take long. Pure."""

from __future__ import annotations

SHARE = 1 / 20


def pause_after(waited: float, shortest: float, longest: float) -> float:
    """Return the seconds until the next look, after `waited` seconds: so many looks per minute go on for minutes only.

    What ends is seen late by a twentieth of the time that it took, at most.
    """
    return min(longest, max(shortest, waited * SHARE))
