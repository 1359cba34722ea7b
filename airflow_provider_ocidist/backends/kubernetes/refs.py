"""The reference and the record of a gang, by its object at the API server. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_ocidist.backends.kubernetes import names
from airflow_provider_ocidist.backends.kubernetes.objects import Obj
from airflow_provider_ocidist.backends.kubernetes.operator import Operator
from airflow_provider_ocidist.backends.node_config import expectations
from airflow_provider_ocidist.backports import unix_time
from airflow_provider_ocidist.model.agent_config import CONFIG_VARIABLE, AgentConfig
from airflow_provider_ocidist.model.job import Program
from airflow_provider_ocidist.model.run import Expectations, Request, RunKey, RunRecord, RunRef


def ref_of(kind: str, operator: Operator, key: RunKey, obj: Obj, now: float) -> RunRef:
    """Return the gang that an object is. `kind`: of the backend; `now`: Unix time, for an object without one."""
    metadata, topology = obj["metadata"], operator.topology_in(obj)
    said, nodes = metadata["annotations"], operator.nodes_in(obj)
    return RunRef(
        backend=kind,
        key=key,
        nodes=nodes,
        job_id=f"{metadata['namespace']}/{metadata['name']}",
        run_ids=tuple(operator.node_name(metadata["name"], rank, topology) for rank in range(nodes)),
        run_dir=said[names.RUN_DIR],
        submitted_at=unix_time(metadata.get("creationTimestamp")) or now,
        checkpoints_uri=said.get(names.CHECKPOINTS_LABEL),
        compartment_id=metadata["namespace"],
        has_own_log=True,
        topology=topology,
        lease=float(said[names.LEASE]) if names.LEASE in said else None,
        replaces=names.REPLACES in said,
        conn_id=said.get(names.CONNECTION),
    )


def is_place_of(ref: RunRef, request: Request) -> bool:
    """Whether a planned request creates its object where a gang is: in its namespace, for nodes that meet there."""
    metadata = request.body["metadata"]
    place = str(metadata["namespace"]), str(metadata["annotations"][names.RUN_DIR])
    return place == (namespace_of(ref), ref.run_dir)


def namespace_of(ref: RunRef) -> str:
    """Return the namespace of a gang's object and of its pods."""
    return str(ref.compartment_id)


def name_of(ref: RunRef) -> str:
    """Return the name of a gang's object."""
    return ref.job_id.rpartition("/")[2]


def record_of(ref: RunRef, variables: Sequence[Mapping[str, Any]]) -> RunRecord:
    """Return the record of a gang by the configuration of its nodes, as far as that is not in a Secret."""
    config = config_in(variables)
    if config is not None:
        return RunRecord.of(ref, config, expectations(config))
    has_config = any(each["name"] == CONFIG_VARIABLE for each in variables)
    unknown = AgentConfig(run_name=ref.key.name, nodes=ref.nodes, run_dir=ref.run_dir, program=Program())
    return RunRecord.of(ref, unknown, Expectations(reports=has_config))


def config_in(variables: Sequence[Mapping[str, Any]]) -> AgentConfig | None:
    """Return the configuration of nodes; None where it is in a Secret, or they have none."""
    entry = next((each for each in variables if each["name"] == CONFIG_VARIABLE), {})
    return AgentConfig.from_env({CONFIG_VARIABLE: entry["value"]}) if "value" in entry else None
