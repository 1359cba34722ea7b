"""The gangs that benchmarks wait for: as many as are asked for, which train by their pods and their reports."""

from __future__ import annotations

from pathlib import Path

from airflow_provider_ocidist.backends.pytorchjob import PyTorchJob
from airflow_provider_ocidist.model.run import NodeState
from scripts.emulator_process import EmulatorProcess
from scripts.idle_pods import idle_pods
from tests.views import need_views


def test_idle_pods_are_gangs_that_train_without_a_process(tmp_path: Path) -> None:
    need_views()
    with (
        EmulatorProcess(tmp_path, options=("--no-signatures", "--kubernetes")) as emulator,
        idle_pods(emulator, 3, 2) as gangs,
    ):
        gangs.report(gangs.records)
        cluster, oci = gangs.connections.values()
        backend = PyTorchJob.connect({**oci["extra"], **cluster["extra"]})
        gangs.forget_asked()
        statuses = backend.status([record.ref for record in gangs.records])
        assert [[node.state for node in status.nodes] for status in statuses] == [[NodeState.RUNNING] * 2] * 3
        assert all(node.report for status in statuses for node in status.nodes)
        assert len(gangs.asked()) == 3
