"""The gangs that benchmarks wait for, which train by their pods and their reports; how many reports a look reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_ocidist.backends.pytorchjob import PyTorchJob
from airflow_provider_ocidist.model.run import NodeState
from airflow_provider_ocidist.work_dir import reports
from scripts.emulator_process import EmulatorProcess
from scripts.idle_pods import idle_pods
from tests.http_client import http
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


def test_a_slow_store_holds_up_no_look_at_gangs_that_train_and_the_last_reports_of_one_that_is_gone_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_views()
    takes = 0.25
    monkeypatch.setattr(reports, "READING_LIMIT", takes)
    with (
        EmulatorProcess(tmp_path, options=("--no-signatures", "--kubernetes")) as emulator,
        idle_pods(emulator, 24, 2) as gangs,
    ):
        gangs.report(gangs.records)
        cluster, oci = gangs.connections.values()
        backend = PyTorchJob.connect({**oci["extra"], **cluster["extra"]})
        refs = [record.ref for record in gangs.records]
        slow = {"path": ".*nodes.*json", "method": "GET", "latency_s": takes}
        http.post(f"{emulator.url}/_emulator/faults", json=slow).raise_for_status()
        read = 0
        for _ in range(100):
            gangs.forget_calls()
            statuses = backend.status(refs)
            read += (now := len(gangs.calls(slow["path"], method="GET")))
            assert now <= reports.READS_AT_A_TIME
            if all(status.reports_readable for status in statuses):
                break
        assert read == 48
        over = gangs.records[7]
        gangs.report([over], step=2)
        # Nothing is read that need not be.
        monkeypatch.setattr(reports, "READING_LIMIT", -1.0)
        backend.delete(over.ref)
        steps = [node.report.progress.step for node in backend.status(refs)[7].nodes if node.report]
        assert steps == [2, 2]
