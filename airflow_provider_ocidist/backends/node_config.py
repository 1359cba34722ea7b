"""The configuration that every backend gives its nodes, and the outputs it expects from them. Pure."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from airflow_provider_ocidist.model import codec
from airflow_provider_ocidist.model.agent_config import CONFIG_VARIABLE, AgentConfig
from airflow_provider_ocidist.model.job import TrainingJob
from airflow_provider_ocidist.model.masking import secrets_in
from airflow_provider_ocidist.model.run import Expectations, Plan, RunKey
from airflow_provider_ocidist.model.work_dir import CHECKPOINTS_FOLDER, CODE_ARCHIVE
from airflow_provider_ocidist.storage.locations import join

KEY_VARIABLE = "OCIDIST_KEY"
"""Variable of a node that holds the whole key of its attempt, of which names have only a digest."""


def node_config(
    job: TrainingJob, key: RunKey, source: str | None, *, price: float | None, **own: Any
) -> AgentConfig:
    """Return the configuration of an attempt's nodes. `job.work_dir` is known by now.

    `source` is where they find the code; None: beside the agent. `price`: of a node for an hour, None where it is not
    known. `own`: what only this backend sets.
    """
    kept, stem = job.checkpoints, None
    if kept is not None:
        base = kept.uri or join(str(job.work_dir), CHECKPOINTS_FOLDER)
        stem = join(base, key.stem) if kept.resume_after_clear else None
        kept = replace(kept, uri=join(base, key.task_name))
    return AgentConfig(
        run_name=key.name,
        nodes=job.nodes,
        min_nodes=job.min_nodes,
        run_dir=join(str(job.work_dir), key.name),
        program=replace(job.program, source=source),
        launcher=job.launcher,
        inputs=job.inputs,
        share_inputs=job.share_inputs,
        outputs=job.outputs,
        checkpoints=kept,
        checkpoints_stem=stem,
        generation=key.generation,
        attempt=key.attempt,
        limits=job.limits,
        restarts=job.restarts,
        dependencies=job.dependencies,
        mounts=tuple(mount.path for mount in job.mounts),
        require_training=bool(job.require_training),
        conn_id=job.backend.conn_id,
        price=price,
        **own,
    )


def may_replace(job: TrainingJob) -> bool:
    """Return whether lost nodes are replaced if each is a run of its own: the job allows it, and a process waits."""
    return job.nodes > 1 and job.restarts.node > 0 and bool(job.limits.lease)


def key_text(key: RunKey) -> str:
    """Return an attempt's key as text, from which `key_in` reads it again."""
    return json.dumps(codec.encode(key), separators=(",", ":"))


def key_in(variables: Mapping[str, Any], name: str = KEY_VARIABLE) -> RunKey | None:
    """Return the key of the attempt that variables or annotations hold; None where they hold none."""
    try:
        return codec.decode(RunKey, json.loads(variables[name]))
    except (LookupError, TypeError, ValueError):
        return None


def in_json(text: str) -> str:
    """Return JSON in which nothing looks like a reference, which platforms fill in: `$` is written as its number."""
    return text.replace("$", "\\u0024")


def expectations(config: AgentConfig) -> Expectations:
    """Return the outputs expected at the end, from the nodes' configuration."""
    if not config.reports:
        return Expectations(reports=False)
    return Expectations(
        checkpoint=bool(config.checkpoints and config.checkpoints.required),
        training=config.require_training,
        # Only the nodes know the values of variables; they fail themselves when an output is missing.
        outputs=tuple(
            output.known_folder for output in config.outputs if output.required and output.known_folder
        ),
    )


def plan_of(job: TrainingJob, key: RunKey, config: AgentConfig, **own: Any) -> Plan:
    """Return the plan of an attempt, as far as it follows from its nodes' configuration. `own`: the backend's part."""
    return Plan(
        key=key,
        code=job.program.source if job.program.is_local else None,
        expects=expectations(config),
        **shared_fields(config),
        **own,
    )


def shared_fields(config: AgentConfig) -> dict[str, Any]:
    """Return the fields of a plan and of a reference that follow from the configuration of a gang's nodes."""
    return {
        "nodes": config.nodes,
        "run_dir": config.run_dir,
        "checkpoints_uri": config.checkpoints.uri if config.checkpoints else None,
        "lease": config.limits.lease or None,
        "price": config.price,
        "replaces": config.replaces,
        "conn_id": config.conn_id,
    }


def shared_source(job: TrainingJob, key: RunKey) -> str | None:
    """Return where nodes without a disk of ours find the code: local code is put into their run directory."""
    return join(str(job.work_dir), key.name, CODE_ARCHIVE) if job.program.is_local else job.program.source


def secrets_of_nodes(variables: Iterable[Mapping[str, str]]) -> set[str]:
    """Return the secrets in the variables that nodes have got, and in their configuration among them."""
    return secrets_in([_opened(each) for each in variables])


def _opened(variables: Mapping[str, str]) -> dict[str, Any]:
    """Return variables with the nodes' configuration read, whose parts have names of their own."""
    found: dict[str, Any] = dict(variables)
    if CONFIG_VARIABLE in found:
        with contextlib.suppress(ValueError):
            found[CONFIG_VARIABLE] = json.loads(found[CONFIG_VARIABLE])
    return found
