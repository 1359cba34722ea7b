"""The contract of backends, on this machine and on both topologies of OCI Data Science."""

from __future__ import annotations

import uuid

import pytest

from scripts.emulator_process import Access
from tests.backends.contract import Contract, Home
from tests.training_jobs import BACKEND


class TestLocal(Contract):
    @pytest.fixture(scope="class")
    @classmethod
    def home(cls, tmp_path_factory: pytest.TempPathFactory) -> Home:
        work_dir = tmp_path_factory.mktemp("local") / "work"
        return Home("local", {"work_dir": str(work_dir)}, {"backend": {"kind": "local"}})


def oci(emulator: Access, topology: str) -> Home:
    work_dir = f"oci://{emulator.bucket}@{emulator.namespace}/work/{uuid.uuid4().hex[:8]}"
    fields = emulator.connection_fields(work_dir=work_dir)
    return Home("oci_data_science", fields, {"backend": {**BACKEND, "topology": topology}})


class TestJobRuns(Contract):
    @pytest.fixture(scope="class")
    @classmethod
    def home(cls, emulator: Access) -> Home:
        return oci(emulator, "job_runs")


class TestMultiNode(Contract):
    @pytest.fixture(scope="class")
    @classmethod
    def home(cls, emulator: Access) -> Home:
        return oci(emulator, "multi_node")
