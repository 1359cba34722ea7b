"""Release: what differs between versions of Kubeflow Trainer, whose API breaks with each."""

from __future__ import annotations

from dataclasses import dataclass

NEWEST = "2.3"


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """Source: kubeflow/trainer at the tags; 2.3.0 was also run."""

    patches: str = "runtimePatches"
    """Field that changes the pods of a runtime for one job."""
    counts_processes: bool = True
    """Whether numProcPerNode must be a number; before, it might be "auto" too."""
    has_deadline: bool = True
    has_labels: bool = False
    """Whether there are spec.labels and spec.annotations."""


RELEASES = {
    "2.0": Release(patches="podSpecOverrides", counts_processes=False, has_deadline=False, has_labels=True),
    "2.1": Release(
        patches="podTemplateOverrides", counts_processes=False, has_deadline=False, has_labels=True
    ),
    "2.2": Release(),
    NEWEST: Release(),
}


def release(version: str) -> Release:
    """Return what a version does; 2.2.1 is as 2.2. Raises ValueError for one that is not known."""
    for known in (version, version.rpartition(".")[0]):
        if known in RELEASES:
            return RELEASES[known]
    raise ValueError(f"no Kubeflow Trainer {version}; there are {', '.join(RELEASES)}")
