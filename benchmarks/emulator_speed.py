"""P19: how much of a core the emulator takes for a request, beside moto's server and the requests most like ours."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

from benchmarks.comparison import Comparison, Interval, Samples
from benchmarks.http_load import Measured, Operations, Served, request_bytes
from benchmarks.moto_server import moto
from scripts.emulator_process import Access, EmulatorProcess

TARGET_RATE = 2000
TARGET_P99_MS = 5.0
REQUESTS = 2000
PEER_REQUESTS = 300
"""It is that much slower."""
GANG = 8
SMALL = b"x" * 1024


@dataclass(frozen=True, slots=True)
class Side:
    """A server, what it is asked, and how often in one measurement."""

    served: Served
    operations: Callable[[], Operations]
    count: int

    def take(self, count: int | None = None) -> dict[str, Measured]:
        return {
            name: self.served.measure(requests, count or self.count)
            for name, requests in self.operations().items()
        }


@contextmanager
def emulator(folder: Path, *options: str) -> Iterator[Side]:
    """Run an emulator with a gang that waits for capacity, and an object."""
    process = EmulatorProcess(folder, options=options)
    with process as access:
        yield Side(Served(access.url, process.service.pid), _operations(access), REQUESTS)


def _operations(access: Access) -> Callable[[], Operations]:
    """Set the scene with the SDK, and return what signs the requests: a signature is good for minutes only."""
    import oci

    config = oci.config.from_file(access.config_file, access.profile)
    options = {"service_endpoint": access.url}
    jobs = oci.data_science.DataScienceClient(config, **options)
    _control(access, "/nodes", never_starts=True)
    models = oci.data_science.models
    place = {"project_id": access.project_id, "compartment_id": access.compartment_id}
    job = models.CreateJobDetails(
        **place,
        job_configuration_details=models.DefaultJobConfigurationDetails(),
        job_infrastructure_configuration_details=models.StandaloneJobInfrastructureConfigurationDetails(
            shape_name="VM.Standard.E4.Flex", subnet_id=access.subnet_id, block_storage_size_in_gbs=50
        ),
    )
    job_id = jobs.create_job(job).data.id
    jobs.create_job_artifact(job_id, b"pass", content_disposition="attachment; filename=program.py")
    details = models.CreateJobRunDetails(**place, job_id=job_id)
    runs = [jobs.create_job_run(details).data.id for _ in range(GANG)]
    bucket = f"/n/{access.namespace}/b/{access.bucket}/o"
    oci.object_storage.ObjectStorageClient(config, **options).put_object(
        access.namespace, access.bucket, "object", SMALL
    )
    signer = oci.signer.Signer(*(config[name] for name in ("tenancy", "user", "fingerprint", "key_file")))
    listed = f"/20190101/jobRuns?compartmentId={access.compartment_id}&jobId={job_id}&limit=100"
    signed = partial(_signed, signer, access.url)
    return lambda: {
        "get_job_run": [signed("GET", f"/20190101/jobRuns/{run}") for run in runs],
        f"list_job_runs of {GANG}": [signed("GET", listed)],
        "get_object of 1 KiB": [signed("GET", f"{bucket}/object")],
        "put_object of 1 KiB": [signed("PUT", f"{bucket}/put-{number}", SMALL) for number in range(20)],
    }


def _control(access: Access, where: str, **body: Any) -> None:
    url = f"{access.url}/_emulator{where}"
    with urllib.request.urlopen(url, json.dumps(body).encode()):
        pass


def _signed(signer: Any, url: str, method: str, path: str, body: bytes = b"") -> bytes:
    """Return a request as the SDK would put it on the wire."""
    headers = {
        "host": urlsplit(url).netloc,
        "accept": "application/json",
        "accept-encoding": "gzip, deflate",
        "connection": "keep-alive",
        "user-agent": "Oracle-PythonSDK/2.189.0 (python 3.11; x86_64-Linux)",
        "opc-client-info": "Oracle-PythonSDK/2.189.0",
    }
    if body:
        headers |= {"content-type": "application/octet-stream", "content-length": str(len(body))}
    request = SimpleNamespace(method=method, url=url + path, path_url=path, headers=headers, body=None)
    signed = signer.do_request_sign(request, enforce_content_headers=False)
    return request_bytes(method, path, signed.headers, body)


MIX = "a mix of four: get and list job runs, get and put 1 KiB"


COLUMNS: Mapping[str, Callable[[Measured], float]] = {
    "cpu_us": lambda each: each.cpu_us,
    "p50_ms": lambda each: each.load.percentile_ms(50),
    "p99_ms": lambda each: each.load.percentile_ms(99),
    "per_second": lambda each: len(each.load.latencies_s) / each.load.wall_s,
}


class EmulatorSpeed(Comparison):
    name = "P19"
    title = f"the emulator's CPU time for a request as it comes, signatures checked; {MIX}"
    peer_name = "moto's server, which checks none"
    unit = "us"
    target = f"{TARGET_RATE} requests a second and core, p99 below {TARGET_P99_MS:.0f} ms"
    options: tuple[str, ...] = ()
    _ours: Side
    _peer: Side

    def __init__(self) -> None:
        self._details: dict[str, list[Measured]] = {}

    @contextmanager
    def setting(self) -> Iterator[None]:
        """Both servers on one core; what asks them is on another."""
        cores = os.sched_getaffinity(0)
        with ExitStack() as servers, tempfile.TemporaryDirectory() as folder:
            self._ours = servers.enter_context(emulator(Path(folder) / "ours", *self.options))
            served, operations = servers.enter_context(moto(Path(folder) / "moto", jobs=GANG, content=SMALL))
            self._peer = Side(served, lambda: operations, PEER_REQUESTS)
            servers.callback(os.sched_setaffinity, 0, cores)
            os.sched_setaffinity(0, sorted(cores)[1:] or cores)
            for side in (self._ours, self._peer):
                side.take(count=50)
            yield

    def ours(self) -> float:
        return self._take("", self._ours)

    def peer(self) -> float:
        return self._take("moto: ", self._peer)

    def _take(self, prefix: str, side: Side) -> float:
        taken = side.take()
        for name, measured in taken.items():
            self._details.setdefault(prefix + name, []).append(measured)
        return statistics.mean(measured.cpu_us for measured in taken.values())

    def met(self, samples: Samples) -> bool:
        waits = [statistics.median(p99s) for p99s in self._p99s_ms().values()]
        return Interval.of(samples.ours).high <= 1e6 / TARGET_RATE and max(waits) < TARGET_P99_MS

    def _p99s_ms(self) -> dict[str, list[float]]:
        """Of ours."""
        return {
            name: [each.load.percentile_ms(99) for each in measured]
            for name, measured in self._details.items()
            if ":" not in name
        }

    def result(self, samples: Samples) -> dict[str, Any]:
        """Add each operation: CPU time, and what clients saw."""
        details = {
            name: {
                column: Interval.of([value(each) for each in measured]).to_json()
                for column, value in COLUMNS.items()
            }
            for name, measured in self._details.items()
        }
        return {**super().result(samples), "details": details}


ROW = EmulatorSpeed()
