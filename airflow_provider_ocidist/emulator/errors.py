"""ApiError: a service's refusal, in the wording of the real one."""

from __future__ import annotations

from collections.abc import Mapping


class ApiError(Exception):
    """A refusal; `app.py` turns it into the JSON body that every OCI client expects."""

    def __init__(
        self, status: int, code: str, message: str, *, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status = status
        self.code = code
        self.message = message
        self.headers = dict(headers or {})


class StartupError(Exception):
    """The emulator cannot serve at all; the text is one line for the terminal."""


def not_authenticated(detail: str) -> ApiError:
    text = "The required information to complete authentication was not provided or was incorrect."
    return ApiError(401, "NotAuthenticated", f"{text} ({detail})")


def not_found() -> ApiError:
    """The service words "absent" and "forbidden" alike, so that clients cannot probe for names."""
    return ApiError(404, "NotAuthorizedOrNotFound", "Authorization failed or requested resource not found.")


def missing(name: str) -> ApiError:
    return ApiError(400, "MissingParameter", f"{name} is required and may not be empty.")


def invalid(message: str) -> ApiError:
    return ApiError(400, "InvalidParameter", message)


def limit_exceeded(message: str) -> ApiError:
    return ApiError(400, "LimitExceeded", message)


def incorrect_state(message: str) -> ApiError:
    return ApiError(409, "IncorrectState", message)


def conflict(message: str) -> ApiError:
    return ApiError(409, "Conflict", message)


def etag_mismatch() -> ApiError:
    return ApiError(412, "NoEtagMatch", "The etag given in if-match is not the current one.")
