"""What all objects have in their metadata: names, labels, owners, times; and what is wrong with them. Pure."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from airflow_provider_ocidist.emulator.kubernetes.kinds import Kind, Obj
from airflow_provider_ocidist.emulator.kubernetes.statuses import Problem

SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""Letters of generated names, as apimachinery's `rand.SafeEncodeString` has them."""
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
SUBDOMAIN_TEXT = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start"
    " and end with an alphanumeric character (e.g. 'example.com', regex used for validation is"
    " '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
LABEL_VALUE_TEXT = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and"
    " end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is"
    " '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
LABEL_TEXT = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic"
    " character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation"
    " is '[a-z]([-a-z0-9]*[a-z0-9])?')"
)


def owners_of(obj: Obj) -> Sequence[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = obj["metadata"].get("ownerReferences") or ()
    return found


def is_controlled_by(obj: Obj, uid: str) -> bool:
    return any(each["uid"] == uid and each.get("controller") for each in owners_of(obj))


def owner_reference(owner: Obj, *, controller: bool = True) -> Obj:
    """Return what makes an object a dependent of another: it goes with it."""
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": controller,
        "blockOwnerDeletion": True,
    }


def stamp(when: datetime) -> str:
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


def now() -> str:
    """Return this moment as Kubernetes writes it."""
    return stamp(datetime.now(timezone.utc))


def moment(text: str) -> datetime:
    """Return the time that a text of `now` or `precisely` names."""
    form = "%Y-%m-%dT%H:%M:%S.%fZ" if "." in text else "%Y-%m-%dT%H:%M:%SZ"
    return datetime.strptime(text, form).replace(tzinfo=timezone.utc)


def suffix() -> str:
    return "".join(random.choices(SUFFIX_LETTERS, k=5))


def name_problems(kind: Kind, name: str) -> list[Problem]:
    pattern, text, most = (LABEL, LABEL_TEXT, 63) if kind.label_named else (SUBDOMAIN, SUBDOMAIN_TEXT, 253)
    shown = f'Invalid value: "{name}": '
    problems = [] if pattern.fullmatch(name) else [Problem("metadata.name", shown + text)]
    if len(name) > most:
        problems.append(Problem("metadata.name", f"{shown}must be no more than {most} characters"))
    return problems


def label_problems(obj: Obj) -> list[Problem]:
    problems = []
    for value in map(str, labels_of(obj).values()):
        shown = f'Invalid value: "{value}": '
        if len(value) > 63:
            problems.append(Problem("metadata.labels", f"{shown}must be no more than 63 characters"))
        if not LABEL_VALUE.fullmatch(value):
            problems.append(Problem("metadata.labels", shown + LABEL_VALUE_TEXT))
    return problems


def owner_problems(obj: Obj) -> Iterator[Problem]:
    for index, each in enumerate(owners_of(obj)):
        for name in ("apiVersion", "kind", "name", "uid"):
            if not each.get(name):
                yield Problem(f"metadata.ownerReferences[{index}].{name}", "Invalid value: must not be empty")


def labels_of(obj: Obj) -> Mapping[str, str]:
    found: Mapping[str, str] = obj["metadata"].get("labels") or {}
    return found
