"""Gangs on OCI Data Science Jobs, through the `oci` SDK."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_provider_ocidist.backends.base import LOG_LINES, Backend, LogLine, LogPart
from airflow_provider_ocidist.backends.capabilities import (
    ChecksBeforehand,
    CountsMissing,
    Finding,
    KeepsTime,
    ListsGangs,
    ListsLiveGangs,
    NamesSecrets,
    OpensById,
    PlacesLogs,
    PreparesCancels,
    ReplacesNodes,
    ShowsWhatItCreated,
    SpansRegions,
)
from airflow_provider_ocidist.backends.fields import Beside, beside_in, read_fields
from airflow_provider_ocidist.backends.oci_data_science import mounts
from airflow_provider_ocidist.backends.oci_data_science.calls import list_runs, pages, read_job, read_run
from airflow_provider_ocidist.backends.oci_data_science.cancels import Cancels
from airflow_provider_ocidist.backends.oci_data_science.created import job_request, run_request
from airflow_provider_ocidist.backends.oci_data_science.gang_logs import log_parts
from airflow_provider_ocidist.backends.oci_data_science.gangs import Gangs
from airflow_provider_ocidist.backends.oci_data_science.log_places import LogPlaces
from airflow_provider_ocidist.backends.oci_data_science.log_searches import LINES, LogSearches
from airflow_provider_ocidist.backends.oci_data_science.lookups import completed
from airflow_provider_ocidist.backends.oci_data_science.options import KIND, Defaults
from airflow_provider_ocidist.backends.oci_data_science.plans import TAG_TASK, make_plan
from airflow_provider_ocidist.backends.oci_data_science.refs import (
    key_of_job,
    record_of_job,
    ref_of,
    runs_of,
    with_listed,
)
from airflow_provider_ocidist.backends.oci_data_science.regions import long_name, region_of
from airflow_provider_ocidist.backends.oci_data_science.replacements import Replacements
from airflow_provider_ocidist.backends.oci_data_science.run_states import RunStates
from airflow_provider_ocidist.backends.oci_data_science.service_clients import ServiceClients, urgent
from airflow_provider_ocidist.backends.oci_data_science.status_reader import StatusReader
from airflow_provider_ocidist.backends.oci_data_science.submission import Submission
from airflow_provider_ocidist.backends.oci_data_science.topologies import TOPOLOGIES
from airflow_provider_ocidist.backends.service_clock import ServiceClock
from airflow_provider_ocidist.backports import Self
from airflow_provider_ocidist.errors import BackendError, Cause, JobFileError, Problem, StorageError
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.job import TrainingJob
from airflow_provider_ocidist.model.kept_evidence import Missed
from airflow_provider_ocidist.model.masking import secrets_in
from airflow_provider_ocidist.model.report import Restart
from airflow_provider_ocidist.model.run import (
    Ending,
    Plan,
    Request,
    RunKey,
    RunRecord,
    RunRef,
    RunStatus,
)
from airflow_provider_ocidist.oci_client.credentials import OciAccess, access_of, region_in_profile
from airflow_provider_ocidist.oci_client.errors import oci_errors
from airflow_provider_ocidist.storage.stores.opening import open_store
from airflow_provider_ocidist.work_dir.parallel import in_parallel
from airflow_provider_ocidist.work_dir.run_dir_stores import RunDirStores
from airflow_provider_ocidist.work_dir.run_directories import RunDirectories

if TYPE_CHECKING:
    from airflow_provider_ocidist.storage.stores.base import Store


class OciDataScience(
    Backend,
    OpensById,
    ListsGangs,
    ListsLiveGangs,
    ShowsWhatItCreated,
    PlacesLogs,
    SpansRegions,
    KeepsTime,
    CountsMissing,
    PreparesCancels,
    ReplacesNodes,
    NamesSecrets,
    ChecksBeforehand,
):
    """Gangs for one connection."""

    kind = KIND
    reads = Defaults
    gangs: Gangs

    def __init__(self, access: OciAccess, defaults: Defaults, beside: Beside | None = None) -> None:
        """`beside`: where its connection stands beside that of a task; else its own credentials open `work_dir`."""
        self.access = access
        self.defaults = defaults
        self._beside = beside
        self.conn_id = None if beside is None else beside.conn_id
        self._storage = access if beside is None else access_of(beside.storage)
        self._service_clock = ServiceClock()
        self._clients = ServiceClients(access, self._service_clock)
        self._run_dirs = RunDirStores(self._store)
        self._run_states = RunStates(lambda: self._clients.runs)
        self._log_searches = LogSearches(lambda: self._clients.logs, self.now)
        self._log_places = LogPlaces(lambda: self._clients.log_groups)
        self._statuses = StatusReader(
            self._run_states, self._run_dirs, self._service_clock, lambda: self._storage, lambda: self._region
        )
        # Cancels have connections of their own, and wait seconds at most when the service throttles.
        self._cancel_dirs = RunDirStores(
            lambda run_dir: open_store(run_dir, urgent(self._storage)), urgent=True
        )
        self.directories = RunDirectories(self._run_dirs, self._cancel_dirs)
        self._cancels = Cancels(lambda: self._clients.cancels, self.directories)
        self.gangs = Gangs(
            lambda: self._client,
            self._run_dirs,
            self._submission,
            lambda region: self._in_region(region).gangs,
            lambda: self.defaults.work_dir,
            self._cancels,
            urgent=self._cancel_dirs,
        )
        self._elsewhere: dict[str, Self] = {}

    @classmethod
    def connect(cls, fields: Mapping[str, Any]) -> Self:
        """See OciAccess and Defaults for the fields."""
        return cls(access_of(fields), read_fields(Defaults, fields), beside_in(fields))

    def reconnect(self, fields: Mapping[str, Any]) -> None:
        """Take the credentials as they are now. Watched gangs stay where they are, wherever new ones are created.

        Elsewhere the service answers for them as for what was deleted.
        """
        old, new = self.access, access_of(fields)
        self.access = replace(
            new, region=self._region, endpoint=old.endpoint, tenancy=old.tenancy or new.tenancy
        )
        self.defaults = read_fields(Defaults, fields)
        self._beside = beside_in(fields)
        self._storage = self.access if self._beside is None else self._storage_as_now(self._beside)
        self._clients = ServiceClients(self.access, self._service_clock)
        self._run_dirs.clear()
        self._cancel_dirs.clear()
        self._elsewhere.clear()
        self._log_places.ask_again()

    def _storage_as_now(self, beside: Beside) -> OciAccess:
        """Return the present credentials of the work directory, which stays where it is."""
        old = self._storage
        return replace(access_of(beside.storage), region=old.region, endpoint=old.endpoint)

    @property
    def _region(self) -> str | None:
        """The region of the connection; where only its profile names one, that which a client was made for."""
        return self.access.region or self._clients.region

    @property
    def _client(self) -> Any:
        return self._clients.jobs

    def plan(self, job: TrainingJob, key: RunKey) -> Plan:
        defaults = self.defaults
        if getattr(job.backend, "conda_uri", None) and not defaults.region:
            defaults = replace(defaults, region=region_in_profile(self.access))
        if self._beside is None:
            return make_plan(job, key, defaults, self.access.endpoint)
        buckets = self._region_of_buckets(job, self._storage.region or region_in_profile(self._storage))
        # An environment is in a bucket, too.
        defaults = replace(defaults, conda_region=defaults.conda_region or buckets)
        return make_plan(job, key, defaults, self._storage.endpoint, oci_region=buckets)

    def _region_of_buckets(self, job: TrainingJob, region: str | None) -> str:
        """Return the region of a job's buckets for nodes that may be in another. Raises JobFileError."""
        if region is None:
            why = (
                "needs the task's connection to name its region: nodes at another connection reach work_dir and all "
                "other buckets of the job there"
            )
            raise JobFileError([Problem("backend.conn_id", why)], job.name)
        there = self.access.region or region_in_profile(self.access)
        if there is None or long_name(there) != long_name(region):
            mounted = [index for index, mount in enumerate(job.mounts) if mounts.is_bucket(mount)]
            if mounted:
                why = f"is a bucket of {region}, and nodes of {there} cannot mount it: read it as an input"
                raise JobFileError([Problem(f"mounts.{index}.source", why) for index in mounted], job.name)
        return region

    # submit

    def submit(
        self, plan: Plan, stop: threading.Event | None = None, found: Sequence[RunRef] | None = None
    ) -> RunRef:
        # A submission that fails ends what it has created: at that moment there is no time for credentials.
        with suppress(BackendError, StorageError):
            self._prepare_cancels(plan.run_dir)
        return self.gangs.submit(plan, stop, found)

    def _submission(self, plan: Plan, stop: threading.Event | None = None) -> Submission:
        return Submission(
            self._client,
            plan,
            lambda: self._store(plan.run_dir),
            stop or threading.Event(),
            lambda body: completed(body, self.access),
            self._cancels,
        )

    def near(self, ref: RunRef) -> Self:
        return self._in_region(region_of(ref.job_id))

    def _in_region(self, region: str | None) -> Self:
        """Return the backend that reaches a region with the same credentials; with an endpoint there is one only."""
        own = self._region
        if region is None or own is None or self.access.endpoint or long_name(region) == long_name(own):
            return self
        if region not in self._elsewhere:
            made = type(self)(replace(self.access, region=region), self.defaults, self._beside)
            made.connections = self.connections
            made.gangs.share_evidence(self.gangs)
            self._elsewhere[region] = made
        return self._elsewhere[region]

    def live(self, keys: Sequence[RunKey], place: str | None = None) -> list[RunRef]:
        compartment_id = place or self.defaults.compartment_id
        if compartment_id is None:
            raise _no_compartment()
        return self.gangs.live(keys, compartment_id)

    def open(self, resource_id: str) -> RunRecord:
        job = read_job(self._client, self._job_id_of(resource_id))
        ref = ref_of(job, key_of_job(job))
        return record_of_job(job, with_listed(ref, self._runs_of_job(ref)))

    def current(self, ref: RunRef) -> RunRef:
        return with_listed(ref, self._runs_of_job(ref), ref)

    def replace_nodes(self, ref: RunRef, failures: Sequence[Restart]) -> RunRef:
        return Replacements(lambda: self._client).make(ref, failures)

    def end_nodes(self, ref: RunRef, ranks: Sequence[int]) -> None:
        refused = self._cancels.cancel_runs(ref.run_ids[rank] for rank in ranks)
        if refused:
            raise next(iter(refused.values()))

    def secrets_of(self, ref: RunRef) -> set[str]:
        client = self._clients.runs
        with oci_errors("reading the job"):
            job = client.described_job(ref.job_id)
        found = secrets_in(job)
        run_ids = [run_id for run_id in ref.run_ids if run_id]
        if run_ids and not TOPOLOGIES[ref.topology].is_one_run and _has_secrets_apart(job):
            # All nodes but the main one have the same variables.
            ends = dict.fromkeys((run_ids[0], run_ids[-1]))
            with oci_errors("reading the job run"):
                found |= secrets_in(in_parallel(client.described_run, ends))
        return found

    def _job_id_of(self, resource_id: str) -> str:
        match resource_id.split(".")[:2]:
            case ["ocid1", "datasciencejob"]:
                return resource_id
            case ["ocid1", "datasciencejobrun"]:
                return str(read_run(self._client, resource_id).job_id)
        raise BackendError(f"{resource_id} is not the OCID of a job or of a job run", cause=Cause.CONFIG)

    def recent(self, limit: int, name: str = "") -> list[RunRef]:
        place = self.defaults.compartment_id
        if place is None:
            raise _no_compartment()
        with oci_errors("listing the jobs"):
            jobs = pages(self._client.list_jobs, place, sort_by="timeCreated", sort_order="DESC")
            ours = (job for job in jobs if _is_gang(job) and name in job.display_name)
            wanted = [str(job.id) for job in itertools.islice(ours, limit)]
        return in_parallel(lambda job_id: self.open(job_id).ref, wanted)

    def _runs_of_job(self, ref: RunRef) -> list[Any]:
        return list_runs(lambda: self._client, ref.compartment_id, job_id=ref.job_id)

    # status

    def status(self, refs: Sequence[RunRef]) -> list[RunStatus]:
        return self._statuses.read(refs)

    def now(self) -> float:
        at_the_service = self._service_clock.now()
        return time.time() if at_the_service is None else at_the_service

    def forget(self, ref: RunRef) -> None:
        self._statuses.forget(ref)

    def missed(self, ref: RunRef) -> Mapping[str, Missed]:
        return self._statuses.missed(ref)

    def recall_missed(self, missed: Mapping[str, Missed]) -> None:
        self._statuses.recall(missed)

    def _store(self, run_dir: str) -> Store:
        return open_store(run_dir, self._storage)

    # logs

    def log_place(self, ref: RunRef) -> str:
        return self._log_places.of(ref)

    def logs(self, ref: RunRef, since: Sequence[float]) -> list[LogLine]:
        (part,) = log_parts(self._log_searches, self._log_places.of, [(ref, since)], None)
        return [line for line in part.lines if line.time >= since[line.rank]]

    def logs_of(
        self, wanted: Sequence[tuple[RunRef, Sequence[float]]], most: int = LOG_LINES
    ) -> list[LogPart]:
        return log_parts(self._log_searches, self._log_places.of, wanted, most // LINES)

    def created(self, ref: RunRef) -> tuple[Request, ...]:
        client, run_ids = self._client, [run_id for _, run_id in sorted(runs_of(ref).items())]
        job, runs = read_job(client, ref.job_id), in_parallel(partial(read_run, client), run_ids)
        as_sent = client.base_client.sanitize_for_serialization
        return (job_request(as_sent(job)), *(run_request(as_sent(run)) for run in runs))

    # beforehand

    def preflight(self, job: TrainingJob) -> list[Finding]:
        from airflow_provider_ocidist.backends.oci_data_science.preflight import preflight

        return preflight(job, self.access, self._storage, self.defaults)

    # end

    def cancel(self, ref: RunRef, ending: Ending | None = None) -> None:
        self._cancels.cancel(ref, ending)

    def ready_to_cancel(self, ref: RunRef) -> None:
        self._prepare_cancels(ref.run_dir)

    def _prepare_cancels(self, run_dir: str) -> None:
        """Make the client and the store of cancels. Raises BackendError or StorageError."""
        _ = self._clients.cancels
        self._cancel_dirs.at(run_dir)

    def delete(self, ref: RunRef) -> None:
        with oci_errors("deleting the job"):
            self._client.delete_job(ref.job_id, delete_related_job_runs=True)


def _has_secrets_apart(job: Mapping[str, Any]) -> bool:
    """Whether nodes have secrets of their own, in a job with a run for each node, as the service describes it."""
    return AgentConfig.from_env(job["jobConfigurationDetails"]["environmentVariables"]).secrets_apart


def _no_compartment() -> BackendError:
    return BackendError(
        "the connection names no compartment_id to look in: add it to its extra, or on the command line "
        "--field compartment_id=ocid1.compartment...",
        cause=Cause.CONFIG,
    )


def _is_gang(job: Any) -> bool:
    return TAG_TASK in (job.freeform_tags or {}) and job.lifecycle_state not in ("DELETING", "DELETED")
