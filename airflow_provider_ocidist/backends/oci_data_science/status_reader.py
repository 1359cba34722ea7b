"""StatusReader: the states of the nodes of many gangs, from their job runs and their reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from airflow_provider_ocidist.backends.oci_data_science.regions import refuse_other_region
from airflow_provider_ocidist.backends.oci_data_science.run_states import RunStates, RunSummary
from airflow_provider_ocidist.backends.oci_data_science.topologies import TOPOLOGIES
from airflow_provider_ocidist.backends.service_clock import ServiceClock
from airflow_provider_ocidist.model.kept_evidence import Missed
from airflow_provider_ocidist.model.run import NodeState, NodeStatus, RunRef, RunStatus
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.work_dir.parallel import in_parallel
from airflow_provider_ocidist.work_dir.reports import Reported, Reports, of_now, signed
from airflow_provider_ocidist.work_dir.run_dir_stores import RunDirStores
from airflow_provider_ocidist.work_dir.stored import StoredCheckpoints


class StatusReader:
    """Reads the states of gangs, in few requests to the service; reads reports only of gangs that have begun."""

    def __init__(
        self,
        run_states: RunStates,
        run_dirs: RunDirStores,
        clock: ServiceClock,
        access: Callable[[], OciAccess],
        region: Callable[[], str | None],
    ) -> None:
        """`access` returns the present credentials, `region` the region that they reach."""
        self._run_states = run_states
        self._reports = Reports(run_dirs)
        self._stored = StoredCheckpoints()
        self._clock = clock
        self._access = access
        self._region = region
        self._states: dict[str, tuple[NodeState, ...]] = {}
        """Last states of the nodes at the service, by run directory."""

    def read(self, refs: Sequence[RunRef]) -> list[RunStatus]:
        """Return the states of gangs, in the order asked for. Raises BackendError."""
        runs = self._runs_of(refs)
        by_service = {ref.run_dir: tuple(TOPOLOGIES[ref.topology].nodes(ref, runs, None)) for ref in refs}
        reported = self._reports.read(self._begun_dirs(by_service))
        at = self._clock.now()
        found = [
            replace(
                _status_of(ref, by_service[ref.run_dir], runs, reported.get(ref.run_dir)),
                at=at,
                lost_seconds=ref.lost_seconds,
            )
            for ref in refs
        ]
        if not any(status.ended for status in found):
            return found
        access = self._access()
        return in_parallel(
            lambda pair: self._stored.with_checkpoint(*pair, access), list(zip(found, refs, strict=True))
        )

    def forget(self, ref: RunRef) -> None:
        """Drop what is kept of a gang between two looks."""
        self._run_states.forget(ref.run_ids)
        self._reports.forget(ref.run_dir)
        self._stored.forget(ref)
        self._states.pop(ref.run_dir, None)

    def missed(self, ref: RunRef) -> dict[str, Missed]:
        return {**self._run_states.missed(ref.run_ids), **self._stored.missed(ref)}

    def recall(self, missed: Mapping[str, Missed]) -> None:
        # What the other one has counted is never looked up.
        self._run_states.recall(missed)
        self._stored.recall(missed)

    def _runs_of(self, refs: Sequence[RunRef]) -> dict[str, RunSummary]:
        """Return the job runs of all gangs, by id. Raises BackendError for one that is in another region."""
        found: dict[str, RunSummary] = {}
        for compartment_id in {ref.compartment_id for ref in refs}:
            here = [ref for ref in refs if ref.compartment_id == compartment_id]
            run_ids = [run_id for ref in here for run_id in ref.run_ids]
            if len(here) == 1:
                found |= self._run_states.of_job(compartment_id, here[0].job_id, run_ids)
            else:
                found |= self._run_states.of_many(compartment_id, run_ids)
        gone = {run_id for ref in refs for run_id in ref.run_ids if run_id} - found.keys()
        if gone and not self._access().endpoint:
            refuse_other_region(min(gone), str(self._region()))
        return found

    def _begun_dirs(self, nodes_of: Mapping[str, Sequence[NodeStatus]]) -> dict[str, bool]:
        """Return the run directories of gangs that have begun, and whether there is news of their nodes."""
        begun: dict[str, bool] = {}
        for run_dir, nodes in nodes_of.items():
            states = tuple(node.state for node in nodes)
            if any(state is not NodeState.PENDING for state in states):
                ended = all(state.terminal for state in states)
                begun[run_dir] = ended or states != self._states.get(run_dir, states)
            self._states[run_dir] = states
        return begun


def _status_of(
    ref: RunRef,
    by_service: tuple[NodeStatus, ...],
    runs: Mapping[str, RunSummary],
    reported: Mapping[int, Reported] | None,
) -> RunStatus:
    """Return the state of a gang; `reported`: its nodes' reports, None where its run directory cannot be read."""
    if all(node.state is NodeState.PENDING for node in by_service):
        return RunStatus(nodes=by_service)
    if reported is None:
        return RunStatus(nodes=by_service, reports_readable=False)
    reported = of_now(reported, ref)
    reports = {rank: each.report for rank, each in reported.items() if each.report is not None}
    nodes = TOPOLOGIES[ref.topology].nodes(ref, runs, reports)
    return RunStatus(nodes=tuple(signed(node, reported.get(node.rank)) for node in nodes))
