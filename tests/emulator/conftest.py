"""An emulator in this process, real OCI clients that speak to it, and a few words to say jobs in."""

from __future__ import annotations

import datetime as dt
import io
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import httpx
import oci
import pytest
from oci.data_science import models

from airflow_provider_ocidist.emulator.access import Access
from airflow_provider_ocidist.emulator.context import Options
from airflow_provider_ocidist.emulator.server import Emulator

OPTIONS = Options(grace_s=0.5, minute_s=0.5)
ENDED = ("SUCCEEDED", "FAILED", "CANCELED")


# One for all: loading certificates and keys would cost a test more than what it does.
HTTP = httpx.Client(trust_env=False)
_signer = lru_cache(oci.signer.Signer)


@dataclass(frozen=True)
class Cloud:
    """The clients of one identity, each without retries and with a breaker of its own."""

    access: Access
    config: dict[str, Any]
    signer: Any = None

    @classmethod
    def of(cls, access: Access) -> Cloud:
        config = oci.config.from_file(access.config_file, access.profile)
        return cls(
            access,
            config,
            _signer(*(config[name] for name in ("tenancy", "user", "fingerprint", "key_file"))),
        )

    def client(self, kind: type, **more: Any) -> Any:
        options = {
            "service_endpoint": self.access.url,
            "circuit_breaker_strategy": oci.circuit_breaker.NoCircuitBreakerStrategy(),
            "retry_strategy": oci.retry.NoneRetryStrategy(),
            **({"signer": self.signer} if self.signer else {}),
            **more,
        }
        return kind(self.config, **options)

    @cached_property
    def jobs(self) -> Any:
        return self.client(oci.data_science.DataScienceClient)

    @cached_property
    def objects(self) -> Any:
        return self.client(oci.object_storage.ObjectStorageClient)

    @cached_property
    def log_search(self) -> Any:
        return self.client(oci.loggingsearch.LogSearchClient)

    @property
    def place(self) -> tuple[str, str]:
        """Namespace and bucket, the first two arguments of every object operation."""
        return self.access.namespace, self.access.bucket

    def job_details(self, *, logging: bool = True, **configuration: Any) -> models.CreateJobDetails:
        access = self.access
        return models.CreateJobDetails(
            project_id=access.project_id,
            compartment_id=access.compartment_id,
            display_name="job",
            job_configuration_details=models.DefaultJobConfigurationDetails(**configuration),
            job_infrastructure_configuration_details=models.StandaloneJobInfrastructureConfigurationDetails(
                shape_name="VM.Standard.E4.Flex", subnet_id=access.subnet_id, block_storage_size_in_gbs=50
            ),
            job_log_configuration_details=models.JobLogConfigurationDetails(
                enable_logging=logging, log_group_id=access.log_group_id, log_id=access.log_id
            ),
        )

    def job(self, program: str | bytes, *, name: str = "program.py", **configuration: Any) -> str:
        """Create a job with an artifact and return its OCID."""
        job_id = self.jobs.create_job(self.job_details(**configuration)).data.id
        content = program.encode() if isinstance(program, str) else program
        self.jobs.create_job_artifact(job_id, content, content_disposition=f"attachment; filename={name}")
        return str(job_id)

    def run_details(self, job_id: str, **more: Any) -> models.CreateJobRunDetails:
        access = self.access
        return models.CreateJobRunDetails(
            project_id=access.project_id, compartment_id=access.compartment_id, job_id=job_id, **more
        )

    def start(self, job_id: str, **more: Any) -> str:
        return str(self.jobs.create_job_run(self.run_details(job_id, **more)).data.id)

    def wait(self, run_id: str, *states: str, timeout: float = 60) -> Any:
        """Return the run once it is in one of the states; without any, once it has ended."""
        deadline = time.monotonic() + timeout
        while True:
            run = self.jobs.get_job_run(run_id).data
            if run.lifecycle_state in (states or ENDED):
                return run
            assert run.lifecycle_state not in ENDED, run
            assert time.monotonic() < deadline, run
            time.sleep(0.02)

    def run(self, program: str | bytes, **configuration: Any) -> Any:
        """Run a program to its end and return its job run."""
        return self.wait(self.start(self.job(program, **configuration)))

    @property
    def log_scope(self) -> str:
        return f"{self.access.compartment_id}/{self.access.log_group_id}/{self.access.log_id}"

    def log(self, run_id: str, *, order: str = "ASC", limit: int = 1000) -> list[dict[str, Any]]:
        """Return the run's log entries in order."""
        query = f"SEARCH \"{self.log_scope}\" | WHERE source = '*{run_id}' | SORT BY datetime {order}"
        return self.search(query, limit=limit)

    def last_entries(self, run_id: str, count: int) -> list[dict[str, Any]]:
        """Return the newest entries of a run, the very newest first."""
        query = f"SEARCH \"{self.log_scope}\" | WHERE source = '*{run_id}' | SORT BY datetime DESC"
        return self.search(query, limit=count, pages=1)

    def search(self, query: str, *, pages: int | None = None, **more: Any) -> list[dict[str, Any]]:
        """Return the entries that a search finds, of so many pages or of all."""
        now = dt.datetime.now(dt.timezone.utc)
        details = oci.loggingsearch.models.SearchLogsDetails(
            time_start=now - dt.timedelta(hours=1),
            time_end=now + dt.timedelta(minutes=1),
            search_query=query,
        )
        entries: list[dict[str, Any]] = []
        page: dict[str, str] | None = {}
        while page is not None and pages != 0:
            pages = None if pages is None else pages - 1
            answer = self.log_search.search_logs(details, **more, **page)
            entries += [result.data["logContent"] for result in answer.data.results]
            page = {"page": answer.next_page} if answer.has_next_page else None
        return entries

    def messages(self, run_id: str) -> list[str]:
        return [entry["data"]["message"] for entry in self.log(run_id)]

    def control(self, verb: str, where: str, /, **body: Any) -> Any:
        """Call the control API and return its answer."""
        response = HTTP.request(verb, f"{self.access.url}/_emulator{where}", json=body)
        response.raise_for_status()
        return response.json() if response.content else None


def zipped(**files: str) -> bytes:
    """Return a zip of files; `__` in a keyword stands for the slash, and `.py` is added."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in files.items():
            archive.writestr(name.replace("__", "/") + ".py", text)
    return buffer.getvalue()


@pytest.fixture(scope="session")
def emulator() -> Iterator[Emulator]:
    """One emulator in this process; unlike other folders' tests, these look inside."""
    with Emulator(options=OPTIONS) as running:
        yield running


@pytest.fixture
def cloud(emulator: Emulator) -> Cloud:
    """The emulator as it is after a fresh start."""
    HTTP.post(f"{emulator.url}/_emulator/reset").raise_for_status()
    return Cloud.of(emulator.access)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"
