"""The reference to a checkpoint, and what makes one newer than another."""

from __future__ import annotations

from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.model.fence import LOWEST, Fence

Order = tuple[Fence, int, int, float]


@dataclass(frozen=True, kw_only=True)
class CheckpointRef:
    """A complete checkpoint: its manifest was written."""

    uri: str
    """URI of the folder that holds `manifest.json` and the files that it names."""
    step: int | None
    """Step of the checkpoint; None if neither the program nor the name gives one."""
    loss: float | None = None
    fence: Fence = LOWEST
    """Fence of the attempt that published the checkpoint."""
    sequence: int = 0
    """Number among the checkpoints of that attempt, in the order in which they were saved."""
    digest: str | None = None
    """Digest of the content: the name, and the path, size and SHA-256 of each file. None in records of earlier
    versions."""

    @property
    def order(self) -> Order:
        """What is greater for a newer one: the attempt, then the sequence. Steps order what has no sequence."""
        return order_of(self.fence, self.sequence, self.step)

    @property
    def label(self) -> str:
        """Its name in messages: its step, else its folder."""
        return f"step {self.step}" if self.step is not None else self.uri.rstrip("/").rpartition("/")[2]


def order_of(fence: Fence, sequence: int, step: int | None, created_at: float = 0.0) -> Order:
    """Return what is greater for a newer checkpoint; version 1 had neither fence nor sequence, but always a step."""
    return fence, sequence, -1 if sequence or step is None else step, created_at
