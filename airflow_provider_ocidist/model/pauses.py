"""Pauses: how often, and for how long, to look at what may take long. Pure."""

from __future__ import annotations

SHARE = 1 / 20
"""Share of the time waited so far that a pause takes."""
END_WITHIN = 1800.0
"""Seconds for which the end of a gang is pursued that no task waits for: its cancel is retried, and `limits.stop_grace`
and the last checkpoint are waited for. What is not cancelled by then ends by its lease."""
SAVED_WITHIN = 120.0
"""Seconds after a failure in which nodes may save a checkpoint while a process waits: then that cancels them."""
MOST_DOUBLINGS = 20
"""Most doublings of a pause, enough for any; without a limit the power would overflow in a long outage."""


def pause_after(waited: float, shortest: float, longest: float) -> float:
    """Return the seconds until the next look, after `waited` seconds: a twentieth of them, within the two limits.

    So a short wait is seen to end soon, and a long one does not keep the rate of its first looks.
    """
    return min(longest, max(shortest, waited * SHARE))


def doubling_pause(first: float, longest: float, failures: int) -> float:
    """Return the seconds to wait after so many failures in a row: `first`, then twice as long each time."""
    return min(longest, first * 2.0 ** min(max(failures - 1, 0), MOST_DOUBLINGS))


def next_pause(pause: float, longest: float) -> float:
    """Return the seconds of the pause after this one: twice as many, up to the longest."""
    return min(longest, 2 * pause)
