"""Idle gangs: any number of waiting trainings, in an emulator, without a process on any node."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import httpx

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.backports import UTC
from airflow_provider_ocidist.model.report import NodeReport, Phase, Progress
from airflow_provider_ocidist.model.run import Expectations, RunKey, RunRecord, RunRef
from airflow_provider_ocidist.model.work_dir import NODES_FOLDER
from airflow_provider_ocidist.oci_client import clients
from airflow_provider_ocidist.storage.stores.base import Store
from airflow_provider_ocidist.storage.stores.opening import open_store
from scripts.emulator_process import Access

AT_A_TIME = 16
NAME = "idle"


@dataclass(frozen=True)
class IdleNodes:
    """Gangs that run without a process on any node, each with a run directory of its own."""

    emulator: Access
    records: Sequence[RunRecord]
    store: Store
    """Store of their run directories."""

    @property
    def connections(self) -> dict[str, Any]:
        """Airflow's connections to where they run, as JSON has them, by id; the first is that of the gangs."""
        return {"oci_default": {"conn_type": "oci", "extra": self.emulator.connection_fields()}}

    def report(self, records: Sequence[RunRecord], step: int = 1) -> None:
        """Report every node as training."""
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            list(pool.map(lambda report: self.store.write(*report), self.reports(records, step)))

    def reports(self, records: Sequence[RunRecord], step: int = 1) -> Iterator[tuple[str, bytes]]:
        """Yield the report by which every node shows that it trains: a name in `store`, and its content."""
        now = time.time()
        for record in records:
            folder = record.ref.run_dir.removeprefix(f"{self.store.uri}/")
            for rank in range(record.ref.nodes):
                report = NodeReport(
                    rank=rank,
                    phase=Phase.TRAINING,
                    address="127.0.0.1",
                    started_at=now,
                    heartbeat_at=now,
                    progress=Progress(step=step, steps=1000, loss=1.5, updated_at=now),
                )
                yield f"{folder}/{NODES_FOLDER}/{rank}.json", report.to_json()

    def calls(self, path: str = ".*", **filters: str) -> list[dict[str, object]]:
        """Return the requests that the emulator has answered, but for those for the emulator itself.

        Patterns of the path, the method and the host choose among them.
        """
        wanted = {"path": path, **filters}
        answer = httpx.get(f"{self.emulator.url}/_emulator/calls", params=wanted).raise_for_status()
        return [call for call in answer.json() if not call["path"].startswith("/_emulator")]

    def forget_calls(self) -> None:
        httpx.delete(f"{self.emulator.url}/_emulator/calls").raise_for_status()


@dataclass(frozen=True)
class IdleGangs(IdleNodes):
    """Gangs of one job of OCI Data Science, each with runs of its own."""

    backend: OciDataScience

    def say(self, record: RunRecord, rank: int, lines: Sequence[str]) -> None:
        """Write lines to a node's log, as from the run itself."""
        from oci.loggingingestion import LoggingClient
        from oci.loggingingestion.models import LogEntry, LogEntryBatch, PutLogsDetails

        client = clients.client(self.backend.access, "logging")
        ingestion = LoggingClient(
            client.base_client.config, signer=client.base_client.signer, service_endpoint=self.emulator.url
        )
        now = _oci_time()
        entries = [LogEntry(id=uuid.uuid4().hex, data=line, time=now) for line in lines]
        batch = LogEntryBatch(
            entries=entries, source=record.ref.run_ids[rank], type="stdout", defaultlogentrytime=now
        )
        ingestion.put_logs(record.ref.log_id, PutLogsDetails(specversion="1.0", log_entry_batches=[batch]))


def _oci_time() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@contextmanager
def idle_gangs(emulator: Access, count: int, nodes: int = 1) -> Iterator[IdleGangs]:
    """Create gangs that run until the end of the block, or of the emulator."""
    batch = f"{NAME}-{uuid.uuid4().hex[:8]}"
    rule = {"display_name": f"{batch}.*", "idle": True}
    httpx.post(f"{emulator.url}/_emulator/nodes", json=rule).raise_for_status()
    fields = emulator.connection_fields(work_dir=f"{emulator.work_dir}/{batch}")
    backend = OciDataScience.connect({**fields, "max_attempts": 3})
    client = clients.client(backend.access, "data_science")
    job_id = _job(client, emulator, batch)
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        names = [f"{batch}-{number:04}-{rank}" for number in range(count) for rank in range(nodes)]
        run_ids = list(pool.map(lambda name: _run(client, emulator, job_id, name), names))
    records = [
        _record(emulator, job_id, f"{emulator.work_dir}/{batch}", number, run_ids[number * nodes :][:nodes])
        for number in range(count)
    ]
    store = open_store(f"{emulator.work_dir}/{batch}", backend.access)
    gangs = IdleGangs(emulator, records, store, backend)
    try:
        yield gangs
    finally:
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            list(pool.map(lambda record: backend.cancel(record.ref), records))


def _job(client: Any, emulator: Access, name: str) -> str:
    details = {
        "displayName": name,
        "compartmentId": emulator.compartment_id,
        "projectId": emulator.project_id,
        "jobConfigurationDetails": {"jobType": "DEFAULT"},
        "jobInfrastructureConfigurationDetails": {
            "jobInfrastructureType": "ME_STANDALONE",
            "shapeName": "VM.Standard2.1",
            "blockStorageSizeInGBs": 50,
        },
        "jobEnvironmentConfigurationDetails": {
            "jobEnvironmentType": "OCIR_CONTAINER",
            "image": "iad.ocir.io/x/y:1",
            "entrypoint": ["true"],
        },
        "jobLogConfigurationDetails": {
            "enableLogging": True,
            "logGroupId": emulator.log_group_id,
            "logId": emulator.log_id,
        },
    }
    return str(client.create_job(details).data.id)


def _run(client: Any, emulator: Access, job_id: str, name: str) -> str:
    details = {
        "displayName": name,
        "compartmentId": emulator.compartment_id,
        "projectId": emulator.project_id,
        "jobId": job_id,
    }
    return str(client.create_job_run(details).data.id)


def _record(emulator: Access, job_id: str, work_dir: str, number: int, run_ids: Sequence[str]) -> RunRecord:
    ref = RunRef(
        backend="oci_data_science",
        key=RunKey(dag_id="dag", run_id="run", task_id="train", map_index=number),
        nodes=len(run_ids),
        job_id=job_id,
        run_ids=tuple(run_ids),
        run_dir=f"{work_dir}/gang-{number:04}",
        submitted_at=time.time(),
        compartment_id=emulator.compartment_id,
        log_group_id=emulator.log_group_id,
        log_id=emulator.log_id,
    )
    return RunRecord(
        ref=ref,
        expects=Expectations(checkpoint=False),
        deadline=time.time() + 86400,
        lost_timeout=86400.0,
        hang_timeout=1800.0,
        logs_since=(ref.submitted_at,) * len(run_ids),
    )
