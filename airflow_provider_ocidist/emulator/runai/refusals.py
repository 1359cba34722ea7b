"""Refusal: what the control plane answers instead of what was asked, in its own wording."""

from __future__ import annotations

from typing import Any


class ApiRefusal(Exception):
    """An answer `{code, message}`, or that of OAuth 2 at the endpoints for tokens."""

    def __init__(self, status: int, message: str, **more: Any) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.body = {"code": status, "message": message, **more}


def bad_request(message: str) -> ApiRefusal:
    return ApiRefusal(400, message)


def unfamiliar() -> ApiRefusal:
    """A token that is missing, expired or not ours; the wording is the description's example."""
    return ApiRefusal(401, "Issuer is not familiar.")


def forbidden() -> ApiRefusal:
    return ApiRefusal(403, "You do not have sufficient permissions.")


def not_found() -> ApiRefusal:
    return ApiRefusal(404, "Resource id not found.")


def exists(name: str) -> ApiRefusal:
    return ApiRefusal(409, f"A workload named {name} already exists in the project.")
