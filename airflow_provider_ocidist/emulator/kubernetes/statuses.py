"""Errors as Kubernetes words them: each becomes a `Status` object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with one field of an object."""

    path: str
    text: str
    """Text such as `Required value` or `Invalid value: 3: must be greater than 5`."""

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


class KubernetesError(Exception):
    """A request that the API server refuses."""

    def __init__(
        self, code: int, reason: str, message: str, details: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = dict(details or {})

    def status(self) -> dict[str, Any]:
        """Return the `Status` object that clients get."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            **({"details": self.details} if self.details else {}),
            "code": self.code,
        }


def not_found(resource: str, name: str) -> KubernetesError:
    """`resource` is the plural with its group, such as `jobs.batch`."""
    return KubernetesError(404, "NotFound", f'{resource} "{name}" not found', _details(resource, name))


def already_exists(resource: str, name: str) -> KubernetesError:
    text = f'{resource} "{name}" already exists'
    return KubernetesError(409, "AlreadyExists", text, _details(resource, name))


def conflict(resource: str, name: str, why: str) -> KubernetesError:
    text = f'Operation cannot be fulfilled on {resource} "{name}": {why}'
    return KubernetesError(409, "Conflict", text, _details(resource, name))


def changed(resource: str, name: str) -> KubernetesError:
    """Someone else wrote the object since the client read it."""
    why = "the object has been modified; please apply your changes to the latest version and try again"
    return conflict(resource, name, why)


def expired(text: str) -> KubernetesError:
    return KubernetesError(410, "Expired", text)


def bad_request(text: str) -> KubernetesError:
    return KubernetesError(400, "BadRequest", text)


def forbidden(resource: str, name: str, why: str) -> KubernetesError:
    subject = f'{resource} "{name}"' if name else resource
    return KubernetesError(403, "Forbidden", f"{subject} is forbidden: {why}", _details(resource, name))


def refused_by_webhook(webhook: str, texts: Sequence[str]) -> KubernetesError:
    """An admission webhook's refusal, such as `vpytorchjob.kb.io`'s."""
    text = f'admission webhook "{webhook}" denied the request: {_listed(texts)}'
    return KubernetesError(403, "Forbidden", text)


def _listed(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"


def unprocessable(kind: str, name: str, problems: Sequence[Problem]) -> KubernetesError:
    """`kind` has its group, such as `Job.batch`."""
    said = _listed([str(problem) for problem in problems])
    causes = [{"reason": _cause(each), "message": each.text, "field": each.path} for each in problems]
    name_of_kind, _, group = kind.partition(".")
    details = {"name": name, "group": group, "kind": name_of_kind, "causes": causes}
    return KubernetesError(
        422, "Invalid", f'{kind} "{name}" is invalid: {said}', {key: v for key, v in details.items() if v}
    )


def _cause(problem: Problem) -> str:
    return f"FieldValue{problem.text.partition(':')[0].removesuffix(' value')}".replace(" ", "")


def _details(resource: str, name: str) -> dict[str, Any]:
    plural, _, group = resource.partition(".")
    return {key: value for key, value in (("name", name), ("group", group), ("kind", plural)) if value}
