"""Reviews: what the API server says of the user who asks, and of what that user may do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.responses import Response

from airflow_provider_ocidist.emulator.kubernetes import fields, roles
from airflow_provider_ocidist.emulator.kubernetes.api.answers import as_json
from airflow_provider_ocidist.emulator.kubernetes.api.calls import Call
from airflow_provider_ocidist.emulator.kubernetes.objects import Cluster
from airflow_provider_ocidist.emulator.kubernetes.roles import Action

ACCESS_REVIEW: Mapping[str, Any] = {
    **fields.ALWAYS,
    "spec": {
        "resourceAttributes": dict.fromkeys(
            ("verb", "group", "version", "resource", "subresource", "namespace", "name"), "str"
        ),
        "nonResourceAttributes": {"path": "str", "verb": "str"},
    },
}
RULES_REVIEW: Mapping[str, Any] = {**fields.ALWAYS, "spec": {"namespace": "str"}}


class Reviews:
    """Answers the three kinds of reviews, none of which is stored."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def review(self, call: Call) -> Callable[[Call], Awaitable[Response]] | None:
        """Return what answers a review; None where the request is none."""
        reviews = {
            "selfsubjectaccessreviews": self._may_i,
            "selfsubjectrulesreviews": self._what_may_i,
            "selfsubjectreviews": self._who_am_i,
        }
        return reviews.get(call.path.rpartition("/")[2])

    async def _may_i(self, call: Call) -> Response:
        review = await call.fields("SelfSubjectAccessReview", ACCESS_REVIEW)
        asked = (review.get("spec") or {}).get("resourceAttributes") or {}
        part, resource = asked.get("subresource"), asked.get("resource", "")
        allowed = not asked or roles.allowed(
            self._cluster,
            call.user,
            Action(
                verb=asked.get("verb", ""),
                group=asked.get("group", ""),
                resource=f"{resource}/{part}" if part else resource,
                namespace=asked.get("namespace", ""),
                name=asked.get("name", ""),
            ),
        )
        return as_json({**review, "metadata": {}, "status": {"allowed": allowed}}, 201)

    async def _what_may_i(self, call: Call) -> Response:
        review = await call.fields("SelfSubjectRulesReview", RULES_REVIEW)
        everything = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
        namespace = (review.get("spec") or {}).get("namespace", "")
        found = [everything] if call.user.is_admin else list(roles.rules(self._cluster, call.user, namespace))
        status = {"resourceRules": found, "nonResourceRules": [], "incomplete": False}
        return as_json({**review, "metadata": {}, "status": status}, 201)

    async def _who_am_i(self, call: Call) -> Response:
        review = await call.fields("SelfSubjectReview", fields.ALWAYS)
        user = {"username": call.user.name, "groups": list(call.user.groups)}
        return as_json({**review, "metadata": {}, "status": {"userInfo": user}}, 201)
