"""Environment variables of containers, and references to them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_ocidist.job_file.dialects.base import Draft, Section, Variable, Variables
from airflow_provider_ocidist.job_file.schema import value_shown

REFERENCE = re.compile(r"\$\$|\$\((?P<name>[A-Za-z_][\w.-]*)\)")
"""References `$(NAME)`, as Kubernetes fills them in; `$$` is one `$`."""
DOLLAR = "\ue000"
"""Character that stands in a command for a `$` that begins no reference, until the references have been resolved."""
INJECTED = re.compile(r"RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT|PET_\w+")
"""Variables that the operator sets in every container."""
ELSEWHERE = {
    "secretKeyRef": "a variable is plain text at the service: let the program read the secret from the vault",
    "configMapKeyRef": "there is no config map here: write the value",
    "fieldRef": "there is no pod here: the program finds its place in RANK and WORLD_SIZE",
    "resourceFieldRef": "there is no pod here: write the value",
}
"""Sources of values that only a cluster has."""


def stays(entry: object) -> bool:
    """Whether a variable is left in its pod: only the cluster knows its value."""
    if not isinstance(entry, Mapping):
        return False
    return "valueFrom" in entry or (
        isinstance(entry.get("value"), str)
        and any(found["name"] for found in REFERENCE.finditer(entry["value"]))
    )


def variables(draft: Draft, container: Section, *, at_home: bool) -> Variables:
    """Return the variables of a container; as in the cluster, each may use those before it."""
    found: Variables = {}
    for here, entry in draft.listed(container, "env", "a list of name and value"):
        if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
            draft.complain(here, "must be a section with name and value")
            continue
        draft.keys(entry, here, {"name", "value", "valueFrom"})
        if at_home and stays(entry):
            continue
        if "valueFrom" in entry:
            draft.complain(f"{here}.valueFrom", _reason_against(entry["valueFrom"]))
            continue
        value = "" if entry.get("value") is None else entry["value"]
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            draft.complain(f"{here}.value", f"must be text, not {value_shown(value)}: put it in quotes")
            continue
        found[entry["name"]] = Variable(f"{here}.value", expanded(str(value), found))
    return found


def _reason_against(value: Any) -> str:
    source = next(iter(value), None) if isinstance(value, Mapping) else None
    return ELSEWHERE.get(str(source), "cannot be read here: write the value")


def put(draft: Draft, roles: Sequence[Variables]) -> None:
    """Put the variables shared by all nodes into `env`, the rest into `main_env` and `worker_env`."""
    for index, (own, section) in enumerate(zip(roles, ("main_env", "worker_env"), strict=False)):
        for name, variable in own.items():
            shared = all(name in other and other[name].value == variable.value for other in roles)
            if not shared:
                draft.put_entry(section, name, variable.path, variable.value)
            elif index == 0:
                draft.put_entry("env", name, variable.path, variable.value)


def expanded(text: str, known: Variables, dollar: str = "$") -> str:
    """Return a text with known variables replaced; `dollar`: what a `$` becomes that begins no reference."""

    def value(found: re.Match[str]) -> str:
        if not found["name"]:
            return dollar
        name = found["name"]
        return str(known[name].value).replace("$", dollar) if name in known else found[0]

    return REFERENCE.sub(value, text)


def literal(text: str) -> str:
    """Return a text whose references have been looked at, as it is meant."""
    return text.replace(DOLLAR, "$")


def refuse_references(draft: Draft, container: Section, words: Sequence[str]) -> None:
    """Report references that only the operator could replace, in the created pod."""
    for word in words:
        for found in REFERENCE.finditer(word):
            if found["name"] and INJECTED.fullmatch(found["name"]):
                where = container.at("args" if "args" in container.value else "command")
                message = f"$({found['name']}) is not filled in here: the program finds it in its environment"
                draft.complain(where, message)
