"""The Data Science service: all of its parts, in the order of their dependencies."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_ocidist.emulator.context import Context
from airflow_provider_ocidist.emulator.data_science.artifacts import Artifacts
from airflow_provider_ocidist.emulator.data_science.deletions import CascadingDeletions
from airflow_provider_ocidist.emulator.data_science.job_runs import JobRunLives
from airflow_provider_ocidist.emulator.data_science.jobs import Jobs
from airflow_provider_ocidist.emulator.data_science.notebooks import Notebooks
from airflow_provider_ocidist.emulator.data_science.projects import Projects
from airflow_provider_ocidist.emulator.data_science.resources import found
from airflow_provider_ocidist.emulator.data_science.shapes import Shapes
from airflow_provider_ocidist.emulator.data_science.storage_mounts import StorageMounts
from airflow_provider_ocidist.emulator.data_science.work_requests import DataScienceWorkRequests
from airflow_provider_ocidist.emulator.identity import Identity
from airflow_provider_ocidist.emulator.logs.service import Logs
from airflow_provider_ocidist.emulator.nodes.addresses import AddressPool
from airflow_provider_ocidist.emulator.nodes.capacity import Capacity
from airflow_provider_ocidist.emulator.nodes.rules import NodeRules
from airflow_provider_ocidist.emulator.resource_search import FoundResource
from airflow_provider_ocidist.emulator.retry_tokens import RetryTokens
from airflow_provider_ocidist.emulator.wire import Route


class DataScience:
    """Projects, jobs with their artifacts, job runs with their nodes."""

    def __init__(
        self,
        context: Context,
        identity: Identity,
        logs: Logs,
        retries: RetryTokens,
        rules: NodeRules,
        pool: AddressPool,
        mounts: StorageMounts,
    ) -> None:
        self.projects = Projects(context, identity, retries)
        self.jobs = Jobs(context, identity, logs, self.projects, retries)
        self._artifacts = Artifacts(context, self.jobs, retries)
        capacity = Capacity(rules, pool)
        self.job_runs = JobRunLives(
            context, identity, self.jobs, self._artifacts, logs, retries, capacity, mounts
        )
        self._requests = DataScienceWorkRequests(context, identity)
        self._deletions = CascadingDeletions(
            self.projects, self.jobs, self._artifacts, self.job_runs, self._requests
        )
        self._shapes = Shapes(identity)
        self._notebooks = Notebooks(context, identity)

    def routes(self) -> list[Route]:
        parts = (
            self.job_runs,
            self.jobs,
            self.projects,
            self._artifacts,
            self._deletions,
            self._requests,
            self._shapes,
            self._notebooks,
        )
        return [route for part in parts for route in part.routes()]

    def resources(self) -> Iterator[FoundResource]:
        """Yield what Resource Search finds of this service."""
        projects, jobs, runs = self.projects.all, self.jobs.all, self.job_runs.all
        yield from (found(each, "DataScienceProject") for each in projects.values())
        yield from (found(each, "DataScienceJob") for each in jobs.values())
        yield from (found(each, "DataScienceJobRun") for each in runs.values())
        yield from self._notebooks.resources()

    async def reset(self) -> None:
        await self.job_runs.reset()
        for part in (self._requests, self._artifacts, self.jobs, self.projects):
            part.reset()

    async def close(self) -> None:
        self._requests.close()
        await self.job_runs.close()
