"""Settings of the stand-in for Run:ai, the same from start to end."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class Account:
    """A service account of the control plane."""

    client_id: str
    client_secret: str = field(repr=False)
    projects: tuple[str, ...] | None = None
    """Ids of the projects that its access rules open; None: all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunaiSettings:
    """How the stand-in behaves."""

    token_versions: tuple[str, ...] = ("v2", "v1")
    """Versions of the token endpoint. An older control plane has only `v1`."""
    token_lifetime_s: float = 3600.0
    lag_s: float = 1.0
    """Seconds by which the endpoints marked as experimental are late: those for one workload by its kind."""
    shows_variables: bool = True
    """Whether lists, and answers about one workload, have its environment variables; older versions have them only
    among what was submitted."""
    exists_status: int = 409
    """Status for a name that is taken: the description promises 400, some versions answer 409."""
    node_pools: tuple[str, ...] = ("default",)
    """Names of the pools of nodes. Each has room for everything until a test bounds its GPUs."""
    accounts: tuple[Account, ...] = field(default_factory=tuple)
    """Accounts besides the one that `Access` names."""
