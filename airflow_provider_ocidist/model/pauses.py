"""Pauses: how often, and for how long, to look at what may take long. Pure."""

from __future__ import annotations

SHARE = 1 / 20
"""Share of the time waited so far that a pause takes."""
END_WITHIN = 1800.0
"""Seconds for which the end of a gang is pursued that no task waits for: its cancel is retried, and `limits.stop_grace`
and the last checkpoint are waited for. What is not cancelled by then ends by its lease."""


def pause_after(waited: float, shortest: float, longest: float) -> float:
    """Return the seconds until the next look, after `waited` seconds: a twentieth of them, within the two limits.

    So a short wait is seen to end soon, and a long one does not keep the rate of its first looks.
    """
    return min(longest, max(shortest, waited * SHARE))
