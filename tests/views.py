"""What nodes in a stand-in for a cluster need of the machine: a view of the file system of their own."""

from __future__ import annotations

import pytest

from airflow_provider_ocidist.emulator.nodes.processes import can_mount


def need_views() -> None:
    """Skip the test where this machine lets a user make no mount namespaces, as in some containers."""
    if not can_mount():
        pytest.skip("this machine gives processes no view of the file system of their own")
