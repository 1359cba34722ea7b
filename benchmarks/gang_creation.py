"""P1b: creating a gang over an API of 300 ms, a run for each node, beside ADS doing the same; and on a bad day."""

from __future__ import annotations

import json
import logging
import statistics
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import httpx

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.gangs.submission import GangSubmitter
from airflow_provider_ocidist.job_file import parsing
from airflow_provider_ocidist.model.run import RunKey, RunRef
from airflow_provider_ocidist.oci_client import clients, credentials
from benchmarks.comparison import Comparison, Interval, Samples
from scripts.emulator_process import Access, EmulatorProcess

ROOT = Path(__file__).resolve().parent.parent
CLIENTS = ROOT / ".venv-clients" / "bin" / "python"
PROGRAMS = ROOT / "tests" / "e2e" / "programs"
LATENCY_S = 0.3
SERVICES = "/(20190101|n)/.*"
LATENCY = {"path": SERVICES, "latency_s": LATENCY_S}
BAD_DAY = (
    {"path": SERVICES, "probability": 0.05, "status": 429, "code": "TooManyRequests"},
    {"path": SERVICES, "probability": 0.02, "status": 503, "code": "ServiceUnavailable"},
    {"path": SERVICES, "probability": 0.01, "drop": "after"},
)
SIZES = (8, 32)
TIMES_SLOWER = 1.6
IMAGE = "iad.ocir.io/namespace/image:1"

Measured = dict[str, list[float]]


class GangCreation(Comparison):
    """The row is 32 nodes as a run each; 8 nodes, an image instead of an artifact, and the bad day stand beside it."""

    name = "P1b"
    title = "creating a gang of 32 nodes at 300 ms a request, from nothing, as a job run for each node"
    peer_name = "ADS, a run for each node (not its default)"
    unit = "s"
    target = "25 times faster (8 nodes: 7); with 8 % of faults 1.6 times the time, no orphan"
    topology = "job_runs"
    times_faster: ClassVar[Mapping[int, float]] = {8: 7.0, 32: 25.0}
    _access: Access
    _measured: Measured
    _orphans: int

    @contextmanager
    def setting(self) -> Iterator[None]:
        if not CLIENTS.exists():
            raise FileNotFoundError(f"{CLIENTS} is missing: `make test` makes the environment of the clients")
        self._measured, self._orphans = {}, 0
        with tempfile.TemporaryDirectory() as folder, EmulatorProcess(Path(folder)) as self._access:
            self._create(1, self.topology)  # unmeasured: the first one imports
            yield

    def ours(self) -> float:
        for nodes in SIZES:
            self._note(f"ours {nodes}", self._create(nodes, self.topology))
            self._note(f"ours {nodes}, image", self._create(nodes, self.topology, image=IMAGE))
        self._note("ours 32, bad day", self._create(32, self.topology, BAD_DAY))
        return self._measured["ours 32"][-1]

    def peer(self) -> float:
        for nodes in SIZES:
            self._note(f"ADS {nodes}", self._ads(nodes))
        return self._measured["ADS 32"][-1]

    def floor(self) -> float:
        """Job, artifact, runs: each needs the answer to the one before."""
        return 3 * LATENCY_S

    def _note(self, what: str, seconds: float) -> None:
        self._measured.setdefault(what, []).append(seconds)

    def _create(
        self,
        nodes: int,
        topology: str,
        faults: Sequence[dict[str, Any]] = (),
        image: str | None = None,
    ) -> float:
        """Return how long it takes from a connection to a complete gang, everything looked up that must be."""
        self._prepare(faults)
        backend = OciDataScience.connect(self._access.connection_fields())
        gang = GangSubmitter(
            backend, _job(nodes, topology, image), logging.getLogger(), None, threading.Event()
        )
        key = RunKey(dag_id="benchmark", run_id=uuid.uuid4().hex, task_id="train")
        began = time.perf_counter()
        ref = gang.adopt_or_submit(key, None).ref
        taken = time.perf_counter() - began
        self._orphans += self._beyond(ref)
        return taken

    def _prepare(self, faults: Sequence[dict[str, Any]] = ()) -> None:
        self._control("reset", {})
        # No node begins: what is measured is the creation, and this machine is small.
        self._control("nodes", {"never_starts": True})
        for fault in (LATENCY, *faults):
            self._control("faults", fault)

    def _control(self, what: str, body: dict[str, Any]) -> None:
        httpx.post(f"{self._access.url}/_emulator/{what}", json=body).raise_for_status()

    def _beyond(self, ref: RunRef) -> int:
        """Return how many jobs and runs exist that the reference does not know."""
        httpx.delete(f"{self._access.url}/_emulator/faults").raise_for_status()
        client = clients.client(credentials.access_of(self._access.connection_fields()), "data_science")
        jobs = {job.id for job in client.list_jobs(ref.compartment_id, limit=100).data}
        runs = {run.id for run in client.list_job_runs(ref.compartment_id, limit=100).data}
        return len(jobs - {ref.job_id}) + len(runs - set(ref.run_ids))

    def _ads(self, nodes: int) -> float:
        self._prepare()
        names = ("url", "config_file", "profile", "compartment_id", "project_id", "subnet_id")
        settings = {name: getattr(self._access, name) for name in (*names, "log_group_id", "log_id")}
        settings |= {"nodes": nodes, "script": str(PROGRAMS / "steps.py")}
        settings |= {"native": self.topology == "multi_node"}
        command = [str(CLIENTS), str(Path(__file__).with_name("ads_gang.py")), json.dumps(settings)]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise RuntimeError(f"ADS failed: {done.stderr[-2000:]}")
        return float(done.stdout.rpartition("took ")[2])

    def _ratio(self, nodes: int) -> Interval:
        ours, theirs = self._measured[f"ours {nodes}"], self._measured[f"ADS {nodes}"]
        return Interval.of([peer / own for own, peer in zip(ours, theirs, strict=True)])

    def _bad_day(self) -> float:
        medians = [statistics.median(self._measured[f"ours 32{kind}"]) for kind in (", bad day", "")]
        return medians[0] / medians[1]

    def met(self, samples: Samples) -> bool:  # noqa: ARG002 - it needs more than one row's samples
        faster = all(self._ratio(nodes).low >= target for nodes, target in self.times_faster.items())
        return faster and self._bad_day() <= TIMES_SLOWER and self._orphans == 0

    def result(self, samples: Samples) -> dict[str, Any]:
        return {
            **super().result(samples),
            "intervals": {what: Interval.of(times).to_json() for what, times in self._measured.items()},
            "ratio_8": self._ratio(8).median,
            "bad_day_ratio": self._bad_day(),
            "orphans": self._orphans,
        }


def _job(nodes: int, topology: str, image: str | None) -> Any:
    backend = {"kind": "oci_data_science", "shape": "VM.Standard2.1", "topology": topology}
    program = {"source": str(PROGRAMS), "script": "steps.py"}
    return parsing.build(
        {"name": "gang", "nodes": nodes, "program": program, "backend": backend, "image": image}
    )


ROW = GangCreation()
