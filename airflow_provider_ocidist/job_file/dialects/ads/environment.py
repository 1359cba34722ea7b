"""Environment variables in ADS files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from airflow_provider_ocidist.job_file.dialects.base import Draft, Section, Variable, Variables

REFERENCE = re.compile(r"\$(?:\$|\{(\w+)\})")
FROM_THE_FILE = "is set on the nodes from other keys of the file: remove it"


def listed(draft: Draft, section: Section, *, maps: bool = False) -> Variables:
    """Return the variables of a list of name and value, or with `maps` of a section of names and values."""
    entries, path = section.value.get("env"), section.at("env")
    if maps and isinstance(entries, Mapping):
        return {str(name): Variable(f"{path}.{name}", value) for name, value in entries.items()}
    either = "a section or a list" if maps else "a list"
    found: Variables = {}
    for here, entry in draft.listed(section, "env", f"{either} of name and value"):
        if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str) or "value" not in entry:
            draft.complain(here, "must be a section with name and value")
            continue
        draft.keys(entry, here, {"name", "value"})
        if entry["name"] in found:
            draft.complain(f"{here}.name", f"{entry['name']} is there twice")
        found[entry["name"]] = Variable(f"{here}.value", entry["value"])
    return found


def converted(variables: Variables) -> Variables:
    """Return values as ADS converts them to text: `${X}` is another variable, `$$` is `$`, other types are JSON."""
    texts = {name: _text(variable.value) for name, variable in variables.items()}
    return {name: Variable(item.path, _resolved(texts[name], texts, ())) for name, item in variables.items()}


def put(draft: Draft, section: str, variables: Variables, computed: Iterable[str]) -> None:
    """Put variables into `env`, `main_env` or `worker_env`, except those derived from the rest of the file."""
    computed = set(computed)
    for name, variable in variables.items():
        if name in computed:
            draft.complain(variable.path, f"{name} {FROM_THE_FILE}")
            continue
        draft.put_entry(section, name, variable.path, variable.value)
        draft.paths.setdefault(section, variable.path)


def put_variable(draft: Draft, path: str, name: str, value: Any) -> None:
    """Put a variable of ADS that cannot be derived from our form."""
    if value is not None:
        put(draft, "env", {name: Variable(path, value)}, ())


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def _resolved(text: str, texts: Mapping[str, str], seen: tuple[str, ...]) -> str:
    """Replace references recursively; a circular one stays as it is."""

    def value(found: re.Match[str]) -> str:
        name = found[1]
        if name is None:
            return "$"
        if name in seen or name not in texts:
            return found[0]
        return _resolved(texts[name], texts, (*seen, name))

    return REFERENCE.sub(value, text)
