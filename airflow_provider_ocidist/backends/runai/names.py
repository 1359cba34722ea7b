"""Names of a gang's workload and pods, and what in a workload says whose it is. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from airflow_provider_ocidist.backends.kubernetes.names import LABEL_LIMIT
from airflow_provider_ocidist.model.agent_config import CONFIG_VARIABLE, AgentConfig
from airflow_provider_ocidist.model.run import RunKey

LONGEST_SUFFIX = "-worker-NNN"
"""Longest suffix that the operator beneath appends to a name; a name that is too long hangs there for ever."""
START_VARIABLE = "OCIDIST_START"
"""Variable with the program that starts the agent; a container with a start of its own lacks it."""
SUSPENSION_VARIABLE = "OCIDIST_WHEN_SUSPENDED"
"""Variable with the meaning of a suspension for the gang, for every process that watches it."""


def workload_name(key: RunKey) -> str:
    """Return the name of an attempt's workload: the same in every process, another for every other attempt."""
    tail = f"-{key.task_digest}-g{key.generation}-a{key.attempt}"
    room = LABEL_LIMIT - len(LONGEST_SUFFIX) - len(tail)
    words = f"{_slug(key.dag_id)[: room // 2]}-{_slug(key.task_id)}"
    return (words if words[0].isalpha() else f"t-{words}")[:room].rstrip("-") + tail


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"


def pod_names(workload: str, nodes: int) -> tuple[str, ...]:
    """Return the names of the pods beneath, by rank."""
    if nodes == 1:
        return (f"{workload}-0-0",)
    return (f"{workload}-master-0", *(f"{workload}-worker-{number}" for number in range(nodes - 1)))


def environment_of(workload: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the plain variables of a workload, from either kind of answer."""
    found = workload.get("environmentVariables") or (workload.get("spec") or {}).get("environmentVariables")
    if isinstance(found, Mapping):
        return found
    return {item["name"]: item.get("value") or "" for item in found or ()}


def config_in(environment: Mapping[str, str]) -> AgentConfig:
    """Return its nodes' configuration. Raises AgentError where there is none."""
    return AgentConfig.from_env({CONFIG_VARIABLE: environment.get(CONFIG_VARIABLE, "")})
