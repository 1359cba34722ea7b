"""States in which Airflow's tasks have ended."""

from __future__ import annotations

ENDED_STATES = frozenset(("success", "failed", "skipped", "upstream_failed", "removed"))
"""Final states of a task. In any other, also one that only a later Airflow has, it goes on."""
