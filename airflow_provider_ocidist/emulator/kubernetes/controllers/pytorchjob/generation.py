"""Generation: what differs between versions of the training operator."""

from __future__ import annotations

from dataclasses import dataclass, replace

NEWEST = "1.9.4"


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """Sources: kubeflow/trainer at the tags of each version; 1.9.4 was also run."""

    torchrun_environment: bool = True
    """Whether PET_* are set beside MASTER_*, RANK and WORLD_SIZE, and nprocPerNode is known; since 1.7."""
    suspends: bool = True
    webhook: bool = True
    """Whether a bad job is refused; before, it is accepted and fails."""
    master_is_localhost: bool = False
    new_labels: bool = True
    old_labels: bool = False
    cleans_all_on_backoff: bool = False
    """Whether all pods are deleted at the backoff limit, whatever cleanPodPolicy says (trainer#3420)."""


_OLD = Generation(
    torchrun_environment=False, suspends=False, webhook=False, old_labels=True, cleans_all_on_backoff=True
)
GENERATIONS = {
    "1.3": replace(_OLD, master_is_localhost=True, new_labels=False),
    "1.4": _OLD,
    "1.5": _OLD,
    "1.6": _OLD,
    "1.7": Generation(webhook=False, cleans_all_on_backoff=True),
    "1.8": Generation(cleans_all_on_backoff=True),
    "1.9.3": Generation(cleans_all_on_backoff=True),
    NEWEST: Generation(),
}


def generation(version: str) -> Generation:
    """Return what a version does; 1.8.1 is as 1.8. Raises ValueError for one that is not known."""
    for known in (version, version.rpartition(".")[0]):
        if known in GENERATIONS:
            return GENERATIONS[known]
    raise ValueError(f"no training operator {version}; there are {', '.join(GENERATIONS)}")
