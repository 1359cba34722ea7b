"""From a job to the literal objects of a gang. Pure, but for the namespace, which a kubeconfig may name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from airflow_provider_ocidist.backends.bundle import OLDEST_PYTHON
from airflow_provider_ocidist.backends.fields import missing, options_of
from airflow_provider_ocidist.backends.kubernetes import agent_parts, names
from airflow_provider_ocidist.backends.kubernetes.operator import Operator, RoleVariables
from airflow_provider_ocidist.backends.kubernetes.options import ClusterFields, PodOptions
from airflow_provider_ocidist.backends.kubernetes.pods import (
    INSTANCE,
    PodPlan,
    object_metadata,
    secret_variable,
    variable,
)
from airflow_provider_ocidist.backends.node_config import (
    in_json,
    may_replace,
    node_config,
    plan_of,
    shared_source,
)
from airflow_provider_ocidist.backends.prices import price_of
from airflow_provider_ocidist.errors import JobFileError
from airflow_provider_ocidist.model.agent_config import CONFIG_VARIABLE, AgentConfig
from airflow_provider_ocidist.model.job import TrainingJob
from airflow_provider_ocidist.model.masking import secrets_in
from airflow_provider_ocidist.model.run import Plan, Request, RunKey

INSTANCE_TYPE = "node.kubernetes.io/instance-type"
CONFIG_MAP, SECRET = "CreateConfigMap", "CreateSecret"
UID = "<uid of the object created before>"
"""Placeholder in a plan for the one value that only the API server can give."""


def make_plan(
    operator: Operator,
    kind: str,
    job: TrainingJob,
    key: RunKey,
    *,
    fields: ClusterFields,
    namespace: str,
    endpoint: str | None,
    oci_region: str | None = None,
) -> Plan:
    """Return the plan of a gang. Raises JobFileError when job and connection together are incomplete."""
    options, job = options_of(job, PodOptions, kind), fields.filled(job)
    if problems := missing({"work_dir": job.work_dir}):
        raise JobFileError(problems, job.name)
    namespace = options.namespace or namespace
    name = names.gang_name(key, operator.longest_suffix)
    price = price_of(job, _shape_of(options), fields.prices)
    config = replace(_agent_config(operator, job, key, endpoint, price), oci_region=oci_region)
    variables, secret_data = _variables(job, config, name, apart=operator.roles_apart)
    config_map = agent_parts.config_map() if config.reports else None
    pods = PodPlan(
        name=name,
        key=key,
        run_dir=config.run_dir,
        checkpoints_uri=config.checkpoints.uri if config.checkpoints else None,
        lease=config.limits.lease or None,
        container=operator.container,
        environment=(),
        agent=config_map["metadata"]["name"] if config_map else None,
        replaces=config.replaces,
        conn_id=config.conn_id,
    )
    metadata = {"name": name, "namespace": namespace, **object_metadata(job, options, pods)}
    queued = {
        **metadata,
        "labels": {**metadata["labels"], **({names.QUEUE: options.queue} if options.queue else {})},
    }
    body = operator.manifest(job, pods, variables, queued)
    topology = operator.topology(job)
    requests = [Request(verb=f"Create{operator.kind}", body=body)]
    if config_map:
        requests.insert(0, Request(verb=CONFIG_MAP, body=_shown(config_map, namespace)))
    if secret_data:
        requests.append(Request(verb=SECRET, body=_secret(operator, metadata, secret_data)))
    return plan_of(
        job,
        key,
        config,
        backend=kind,
        topology=topology,
        reason=f"topology {topology}: one {operator.kind} in namespace {namespace}, a pod for each node; "
        + _why(operator, options, config),
        requests=tuple(requests),
        compartment_id=namespace,
        machine=_asked_for(options, namespace),
    )


def without_replacements(plan: Plan) -> Plan:
    """Return the plan of the same gang, in which a lost pod is created again only with all others."""
    requests = tuple(replace(each, body=_as_a_whole(each.body)) for each in plan.requests)
    return replace(plan, requests=requests, replaces=False)


def _as_a_whole(value: Any) -> Any:
    """Return part of an object without what makes nodes wait for others in the places of lost ones."""
    if isinstance(value, list | tuple):
        items = [each for each in value if each != INSTANCE]
        return [_config_as_a_whole(each) if _is_config(each) else _as_a_whole(each) for each in items]
    if not isinstance(value, Mapping):
        return value
    return {
        name: _text_as_a_whole(part) if name == CONFIG_VARIABLE else _as_a_whole(part)
        for name, part in value.items()
        if name != names.REPLACES
    }


def _is_config(entry: Any) -> bool:
    return isinstance(entry, Mapping) and entry.get("name") == CONFIG_VARIABLE and "value" in entry


def _config_as_a_whole(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {**entry, "value": _text_as_a_whole(entry["value"])}


def _text_as_a_whole(text: str) -> str:
    config = AgentConfig.from_env({CONFIG_VARIABLE: text})
    return in_json(replace(config, replaces=False).to_env()[CONFIG_VARIABLE])


def gang_request(plan: Plan) -> Request:
    """Return the request for a gang's object, beside which the plan has what its pods mount and read."""
    (request,) = [each for each in plan.requests if each.verb not in (CONFIG_MAP, SECRET)]
    return request


def _asked_for(options: PodOptions, namespace: str) -> dict[str, str]:
    asked: dict[str, Any] = {
        "conn_id": options.conn_id,
        "namespace": namespace,
        "queue": options.queue,
        "preset": options.preset,
        "gpus": options.gpus_of_node,
        "gpu_resource": options.resource_of_gpus,
        "cpu": options.cpu,
        "memory": options.memory,
        "priority_class": options.priority_class,
        "node_selector": options.node_selector,
        "affinity": options.affinity,
        "tolerations": options.tolerations,
        "pod_template": options.pod_template,
    }
    return {name: json.dumps(value, sort_keys=True) for name, value in asked.items() if value}


def _shape_of(options: PodOptions) -> str | None:
    """Return the machine type that the pods ask for, by its label at every provider; else the preset's."""
    return options.node_selector.get(INSTANCE_TYPE) or options.preset


def _why(operator: Operator, options: PodOptions, config: AgentConfig) -> str:
    oldest = "{}.{}".format(*OLDEST_PYTHON)
    again = (
        f"a pod that is lost is created again, while the others wait {operator.creates_again_if}".strip()
        if config.replaces
        else "no pod is started again; a retry creates the gang again"
    )
    start = (
        f"a ConfigMap brings the agent into any image with Python {oldest}; {again}"
        if config.reports
        else "the image's own start"
    )
    return f"{start}; the queue {options.queue} holds it back until there is room" if options.queue else start


def _agent_config(
    operator: Operator, job: TrainingJob, key: RunKey, endpoint: str | None, price: float | None
) -> AgentConfig:
    replaces = operator.creates_again(job) and job.container is None and may_replace(job)
    roles = {} if operator.roles_apart else {"main_env": job.main_env, "worker_env": job.worker_env}
    return node_config(
        job,
        key,
        shared_source(job, key),
        price=price,
        **roles,
        ends_others=operator.ends_others and job.nodes > 1,
        starts_again=operator.restarts_pods or replaces,
        replaces=replaces,
        reports=job.container is None,
        oci_endpoint=endpoint,
    )


def _variables(
    job: TrainingJob, config: AgentConfig, secret: str, *, apart: bool
) -> tuple[RoleVariables, dict[str, str]]:
    """Return the variables of both roles, and the data of the Secret that holds those which nobody may read."""
    data: dict[str, str] = {}

    def entries(values: Mapping[str, str], prefix: str = "") -> list[dict[str, Any]]:
        found = []
        for name, value in values.items():
            if secrets_in({name: value}):
                data[prefix + name] = value
                found.append(secret_variable(name, secret, prefix + name))
            else:
                found.append(variable(name, value))
        return found

    shared = entries({**job.env, **{name: in_json(text) for name, text in config.to_env().items()}})
    if not apart:
        return RoleVariables(main=shared, worker=shared), data
    main, worker = entries(job.main_env, "main."), entries(job.worker_env, "worker.")
    return RoleVariables(main=_laid_over(shared, main), worker=_laid_over(shared, worker)), data


def _laid_over(shared: list[dict[str, Any]], own: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return list({entry["name"]: entry for entry in (*shared, *own)}.values())


def _shown(config_map: Mapping[str, Any], namespace: str) -> dict[str, Any]:
    """Return the ConfigMap without its content, which the name is made of."""
    size = len(agent_parts.archive())
    return {
        **config_map,
        "metadata": {**config_map["metadata"], "namespace": namespace},
        "binaryData": {agent_parts.ARCHIVE: f"<the agent, {size} characters of base64>"},
    }


def _secret(operator: Operator, metadata: Mapping[str, Any], data: Mapping[str, str]) -> dict[str, Any]:
    owner = {
        "apiVersion": f"{operator.group}/{operator.version}",
        "kind": operator.kind,
        "name": metadata["name"],
        "uid": UID,
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {**metadata, "ownerReferences": [owner]},
        "type": "Opaque",
        "stringData": dict(data),
    }
