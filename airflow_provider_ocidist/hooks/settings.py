"""Settings of Airflow that are the defaults of our tasks' arguments."""

from __future__ import annotations

from airflow.providers.common.compat.sdk import conf


def is_deferrable(given: bool | None) -> bool:
    """Return whether a task is to be deferred: as given, else by Airflow's own setting."""
    return conf.getboolean("operators", "default_deferrable", fallback=False) if given is None else given
