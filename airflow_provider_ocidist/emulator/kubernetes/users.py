"""Users: who a bearer token stands for."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from airflow_provider_ocidist.emulator.kubernetes.statuses import KubernetesError

ADMIN = "kubernetes-admin"
MASTERS = "system:masters"
"""Group that may do all."""
SERVICE_ACCOUNT = "system:serviceaccount:"


@dataclass(frozen=True, slots=True)
class User:
    """Who a request is from."""

    name: str
    groups: Sequence[str] = ()

    @property
    def is_admin(self) -> bool:
        return MASTERS in self.groups


@dataclass(slots=True)
class Users:
    """The tokens that this cluster knows."""

    _users: dict[str, tuple[User, float]] = field(default_factory=dict)

    def issue(self, user: User, lifetime_s: float | None = None) -> str:
        """Return a new token; None: it never expires."""
        token = secrets.token_urlsafe(32)
        self._users[token] = (user, float("inf") if lifetime_s is None else time.time() + lifetime_s)
        return token

    def revoke(self, name: str) -> None:
        """Forget the tokens of a user."""
        self._users = {token: entry for token, entry in self._users.items() if entry[0].name != name}

    def of(self, authorization: str) -> User:
        """Return who a request's header stands for. Raises 401."""
        scheme, _, token = authorization.partition(" ")
        user, expires = self._users.get(token.strip(), (None, 0.0))
        if scheme.lower() != "bearer" or user is None or expires <= time.time():
            raise KubernetesError(401, "Unauthorized", "Unauthorized")
        return user


def admin() -> User:
    return User(ADMIN, (MASTERS, "system:authenticated"))


def named(name: str, groups: Sequence[str] = ()) -> User:
    return User(name, (*groups, "system:authenticated"))


def service_account(namespace: str, name: str) -> User:
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
    return User(f"{SERVICE_ACCOUNT}{namespace}:{name}", groups)
