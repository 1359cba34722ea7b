"""Names, labels and annotations of a gang's objects. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from airflow_provider_ocidist.backends.node_config import key_in, key_text
from airflow_provider_ocidist.model.run import RunKey

LABEL_LIMIT = 63
"""Most characters of a DNS label and of a label's value (RFC 1035; Kubernetes' documentation, Object Names and IDs)."""
DIGEST = 12
"""Hexadecimal digits of a task's digest in a name; the annotations hold the whole key."""

MANAGER = "app.kubernetes.io/managed-by"
OURS = "ocidist"
GANG, TASK, GENERATION, ATTEMPT = "ocidist/gang", "ocidist/task", "ocidist/generation", "ocidist/attempt"
KEY, TOKEN, RUN_DIR = "ocidist/key", "ocidist/request", "ocidist/run-dir"
CHECKPOINTS_LABEL, LEASE, REPLACES = "ocidist/checkpoints", "ocidist/lease", "ocidist/replaces"
CONNECTION = "ocidist/connection"
RESERVED = "ocidist/"
"""Prefix of the labels and annotations that ocidist sets; a person's may not have it."""
QUEUE = "kueue.x-k8s.io/queue-name"
"""Label by which Kueue holds an object back."""
SELECTOR = f"{MANAGER}={OURS}"
"""Label selector of every object that a gang has."""


def any_of(label: str, values: Iterable[str]) -> str:
    """Return the selector of what has one of these values."""
    return f"{label} in ({','.join(sorted(values))})"


def gang_name(key: RunKey, longest_suffix: str) -> str:
    """Return the name of an attempt's objects: a DNS-1035 label, with room for what an operator appends to it.

    The same key has the same name in every process; another attempt, generation or task has another.
    """
    tail = f"{key.task_digest[:DIGEST]}-g{key.generation}-a{key.attempt}"
    room = LABEL_LIMIT - len(longest_suffix) - len(tail) - 1
    each = max(room - 1, 0) // 2
    words = [_slug(text, each) for text in (key.dag_id, key.task_id)]
    # A DNS-1035 label begins with a letter.
    head = "-".join(word for word in words if word) or "t"
    return f"{head}-{tail}" if head[0].isalpha() else f"t{head}"[: max(room, 1)].rstrip("-") + f"-{tail}"


def _slug(text: str, length: int) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:length].strip("-")


def labels_of(key: RunKey, name: str) -> dict[str, str]:
    """Return the labels of all that belongs to a gang."""
    return {
        MANAGER: OURS,
        GANG: name,
        TASK: key.task_digest,
        GENERATION: str(key.generation),
        ATTEMPT: str(key.attempt),
    }


def annotations_of(
    key: RunKey,
    run_dir: str,
    checkpoints: str | None = None,
    lease: float | None = None,
    *,
    replaces: bool = False,
    conn_id: str | None = None,
) -> dict[str, str]:
    """Return the annotations that name an object's gang, its run directory, its checkpoints and its lease.

    `replaces`: whether lost nodes of it are replaced one by one. `conn_id`: connection that it is created with, where
    that is not its task's: several may lead to one cluster.
    """
    optional = {
        CHECKPOINTS_LABEL: checkpoints,
        LEASE: f"{lease:g}" if lease else None,
        REPLACES: "true" if replaces else None,
        CONNECTION: conn_id,
    }
    return {
        KEY: key_text(key),
        TOKEN: key.token("gang"),
        RUN_DIR: run_dir,
        **{name: value for name, value in optional.items() if value is not None},
    }


def key_of_object(obj: Mapping[str, Any]) -> RunKey | None:
    """Return the key of the gang that an object belongs to; None for an object that ocidist has not made."""
    metadata = obj.get("metadata") or {}
    found = metadata.get("annotations") or {}
    return key_in(found, KEY) if (metadata.get("labels") or {}).get(MANAGER) == OURS else None


def is_of(key: RunKey, obj: Mapping[str, Any]) -> bool:
    """Return whether an object was created for this very attempt: by its labels and its token, not by its name."""
    found = (obj.get("metadata") or {}).get("annotations") or {}
    return key_of_object(obj) == key and found.get(TOKEN) == key.token("gang")
