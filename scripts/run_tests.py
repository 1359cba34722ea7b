"""Runs pytest; in CI, runs the few tests that failed a second time, alone, and wants the checkout as it was before."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

MOST_AGAIN = 3
"""Failures up to which a second look is taken: a change that breaks something breaks more, or breaks it twice."""
FAILED = 1
"""pytest's exit code when tests failed, and nothing worse."""
LAST_FAILED = Path("v", "cache", "lastfailed")
"""Within pytest's cache."""


def main(arguments: Sequence[str]) -> int:
    """Return the exit code of the run, or of the second look at the tests that failed in it."""
    if os.environ.get("CI", "").lower() in ("", "0", "false"):
        return _pytest(arguments)
    before = _changes()
    # A cache of its own: runs that are side by side must not take each other's failures for theirs.
    with tempfile.TemporaryDirectory(prefix="ocidist-pytest-") as cache:
        code = _twice([*arguments, "-o", f"cache_dir={cache}"], Path(cache, LAST_FAILED))
    if left := sorted(_changes() - before):
        print(f"tests have changed the checkout: {', '.join(left)}", flush=True)
    return code or (FAILED if left else 0)


def _twice(arguments: Sequence[str], last_failed: Path) -> int:
    code = _pytest(arguments)
    if code != FAILED:
        return code
    failed = _last_failed(last_failed)
    if not 0 < len(failed) <= MOST_AGAIN:
        return code
    print(f"failed beside others, so run again alone: {', '.join(failed)}", flush=True)
    code = _pytest([*arguments, "-n", "0", "--last-failed", "--last-failed-no-failures", "none"])
    if code == 0:
        print(
            f"FLAKY, to be mended: passed alone after failing beside others: {', '.join(failed)}", flush=True
        )
    return code


def _pytest(arguments: Sequence[str]) -> int:
    with subprocess.Popen([sys.executable, "-m", "pytest", *arguments]) as process:
        # Ctrl-C reaches pytest too, which then prints what has failed.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            return process.wait()
        finally:
            signal.signal(signal.SIGINT, before)


def _changes() -> set[str]:
    """Return the files that git knows nothing of, or otherwise; none where this is no checkout."""
    command = ["git", "status", "--porcelain", "--untracked-files=all"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return set(done.stdout.splitlines())


def _last_failed(path: Path) -> list[str]:
    try:
        return sorted(json.loads(path.read_text()))
    except FileNotFoundError:
        return []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
