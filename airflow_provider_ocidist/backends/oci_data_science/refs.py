"""From a job and its runs back to the gang: the job's environment holds its nodes' configuration. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_ocidist.backends.node_config import expectations, key_in, shared_fields
from airflow_provider_ocidist.backends.oci_data_science.options import KIND
from airflow_provider_ocidist.backends.oci_data_science.plans import TAG_GROWTH, TAG_INCARNATION, TAG_RUN
from airflow_provider_ocidist.backends.oci_data_science.topologies import TOPOLOGIES, topology_of
from airflow_provider_ocidist.errors import Cause, RunNotFound
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.report import Restart
from airflow_provider_ocidist.model.run import RunKey, RunRecord, RunRef

UNRECORDED = "it was replaced by a process that could not record why"


def ref_of(job: Any, key: RunKey) -> RunRef:
    """Return the reference of a gang of which no run is known yet."""
    topology = topology_of(job)
    config = AgentConfig.from_env(topology.environment_of(job))
    logs = job.job_log_configuration_details
    return RunRef(
        backend=KIND,
        key=key,
        topology=topology.kind,
        job_id=str(job.id),
        run_ids=("",) * config.nodes,
        submitted_at=job.time_created.timestamp(),
        compartment_id=job.compartment_id,
        log_group_id=logs.log_group_id if logs else None,
        log_id=logs.log_id if logs else None,
        **shared_fields(config),
    )


def key_of_job(job: Any) -> RunKey:
    """Return whose gang a job is. Raises RunNotFound when ocidist did not start it."""
    try:
        environment = topology_of(job).environment_of(job) or {}
    except (LookupError, TypeError, ValueError, AttributeError):
        environment = {}
    if (key := key_in(environment)) is None:
        raise RunNotFound(f"{job.id} was not started by ocidist", cause=Cause.CONFIG)
    return key


def record_of_job(job: Any, ref: RunRef) -> RunRecord:
    """Return the record of a gang as it was at its start, from its nodes' configuration."""
    config = AgentConfig.from_env(topology_of(job).environment_of(job))
    return RunRecord.of(ref, config, expectations(config))


def with_runs(ref: RunRef, runs: Mapping[int, str], asked_at: Iterable[float] = ()) -> RunRef:
    """Return the reference with the ids of its job runs, which are given by number.

    `asked_at`: when they were created, Unix times. The wait for nodes begins at the first of them: a job
    without any may be old, of a try that found no machine.
    """
    run_of = TOPOLOGIES[ref.topology].run_of
    run_ids = tuple(runs.get(run_of(rank), "") for rank in range(ref.nodes))
    return replace(ref, run_ids=run_ids, submitted_at=min(asked_at, default=ref.submitted_at))


def with_listed(ref: RunRef, runs: Sequence[Any], known: RunRef | None = None) -> RunRef:
    """Return the reference with the runs that the service lists of its job: of each number the last to replace another.

    `known`: what was recorded of the gang, since lists may lag.
    """
    found = {} if known is None else _numbered(known)
    for run in runs:
        number, incarnation = int(run.freeform_tags[TAG_RUN]), _incarnation(run)
        if incarnation >= found.get(number, (0, ""))[0]:
            found[number] = incarnation, str(run.id)
    replaced = known.replaced if known else ()
    grown = {
        (int(run.freeform_tags[TAG_RUN]), _incarnation(run))
        for run in runs
        if TAG_GROWTH in run.freeform_tags
    }
    missing = [
        Restart(
            cause=Cause.CAPACITY if (number, each) in grown else Cause.NODE, message=UNRECORDED, rank=number
        )
        for number, (incarnation, _) in sorted(found.items())
        for each in range(sum(one.rank == number for one in replaced) + 1, incarnation + 1)
    ]
    superseded = [run for run in runs if _incarnation(run) < found[int(run.freeform_tags[TAG_RUN])][0]]
    seconds = sum(map(seconds_of, superseded)) if missing or known is None else known.lost_seconds
    since = [known.submitted_at] if known and any(known.run_ids) else asked_at(runs)
    whole = with_runs(ref, {number: run_id for number, (_, run_id) in found.items()}, since)
    return replace(whole, replaced=(*replaced, *missing), lost_seconds=seconds)


def _numbered(ref: RunRef) -> dict[int, tuple[int, str]]:
    return {number: (ref.incarnation(number), run_id) for number, run_id in runs_of(ref).items()}


def _incarnation(run: Any) -> int:
    return int(run.freeform_tags.get(TAG_INCARNATION, 0))


def asked_at(runs: Iterable[Any]) -> list[float]:
    """Return when runs were asked for, Unix times."""
    return [run.time_accepted.timestamp() for run in runs if run.time_accepted is not None]


def seconds_of(run: Any) -> float:
    """Return for how long a run that has ended has run."""
    if run.time_started is None or run.time_finished is None:
        return 0.0
    return max(0.0, float((run.time_finished - run.time_started).total_seconds()))


def runs_of(ref: RunRef) -> dict[int, str]:
    """Return the ids of the job runs that exist, by number."""
    run_of = TOPOLOGIES[ref.topology].run_of
    return {run_of(rank): run_id for rank, run_id in enumerate(ref.run_ids) if run_id}
