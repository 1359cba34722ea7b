"""Exit status: how a shell gives the end of a process."""

from __future__ import annotations


def exit_status(code: int) -> int:
    """Return an exit code of `subprocess` as a shell gives it: 128 + n for signal n, whose code there is -n."""
    return code if code >= 0 else 128 - code
