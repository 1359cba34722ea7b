"""Which paths of Object Storage mean files of the checkpoint folder."""

from __future__ import annotations

from pathlib import Path

from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.storage.checkpoint_names import (
    POINTERS,
    UNFINISHED_ENDINGS,
    WEIGHTS_EXTENSIONS,
    place,
)


@dataclass(frozen=True)
class Places:
    """Which file of the checkpoint folder a path of Object Storage means."""

    folder: Path
    uri: str
    """URI below which the job stores its checkpoints, as `oci://bucket@namespace/path`."""
    pattern: str | None = None
    """Regular expression for the whole names of checkpoints, where the job has one."""

    def is_root(self, path: str) -> bool:
        """Whether a path is the URI itself; paths are as ocifs has them, without `oci://`."""
        return self._below(path) == ()

    def file(self, path: str) -> Path | None:
        """Return the file or folder that stands for a path below the URI; None for what is no checkpoint."""
        names = self._below(path)
        if not names or any(name in ("", ".", "..") for name in names):
            return None
        return self.folder.joinpath(*names) if is_checkpoint(names[0], self.pattern) else None

    def _below(self, path: str) -> tuple[str, ...] | None:
        """Return the names that lead from the URI to a path; None where the path is elsewhere."""
        bucket, prefix = _parts(self.uri.partition("://")[2])
        its_bucket, key = _parts(path)
        if not _is_same(bucket, its_bucket) or not f"{key}/".startswith(f"{prefix}/"):
            return None
        rest = key[len(prefix) + 1 :]
        return tuple(rest.split("/")) if rest else ()


def is_checkpoint(name: str, pattern: str | None = None) -> bool:
    """Whether an entry with this name is clearly a checkpoint, or one that is still being written.

    Programs store other things beside their checkpoints, too: a folder whose name has no number may be anything.
    """
    for ending in UNFINISHED_ENDINGS:
        name = name.removesuffix(ending)
    placed = place(name, pattern)
    if placed is None:
        return name in POINTERS
    is_file_of_weights = "." in name and name.rpartition(".")[2].lower() in WEIGHTS_EXTENSIONS
    return pattern is not None or placed.number is not None or is_file_of_weights


def _parts(path: str) -> tuple[str, str]:
    bucket, _, key = path.partition("/")
    return bucket, key.strip("/")


def _is_same(bucket: str, other: str) -> bool:
    """Whether `bucket@namespace` is the same bucket as another; both may lack the namespace."""
    (name, _, namespace), (its_name, _, its_namespace) = bucket.partition("@"), other.partition("@")
    return name == its_name and (namespace == its_namespace or not (namespace and its_namespace))
