"""Control: the part of `/_emulator` that is about the cluster."""

from __future__ import annotations

from starlette.responses import Response

from airflow_provider_ocidist.emulator.api_control import ApiControl, no_stale
from airflow_provider_ocidist.emulator.control import BASE
from airflow_provider_ocidist.emulator.control_rules import MAX_SHOWN, added, is_span, rule_of
from airflow_provider_ocidist.emulator.errors import invalid
from airflow_provider_ocidist.emulator.kubernetes import users
from airflow_provider_ocidist.emulator.kubernetes.kubelet.pod_faults import PodRule
from airflow_provider_ocidist.emulator.kubernetes.service import Kubernetes
from airflow_provider_ocidist.emulator.wire import Call, Route, answer, encode_json

HERE = f"{BASE}/kubernetes"
MAX_NAME = 253


class ClusterControl:
    """The routes below `/_emulator/kubernetes`."""

    def __init__(self, kubernetes: Kubernetes) -> None:
        self._kubernetes = kubernetes
        self._api = ApiControl(
            HERE,
            calls=lambda: kubernetes.api.calls,
            faults=lambda: kubernetes.faults,
            stale=no_stale("Kubernetes"),
            after_removal=self._come_back,
        )

    def routes(self) -> list[Route]:
        return [
            *self._api.routes(),
            Route("POST", f"{HERE}/pods", self.add_pod_rule, signed=False),
            Route("DELETE", f"{HERE}/pods", self.remove_pod_rules, signed=False),
            Route("POST", f"{HERE}/away", self.go_away, signed=False),
            Route("POST", f"{HERE}/cut", self.cut, signed=False),
            Route("POST", f"{HERE}/compact", self.compact, signed=False),
            # Signed: it grants the right to run programs as the user who started the emulator.
            Route("POST", f"{HERE}/users", self.add_user),
        ]

    def _come_back(self) -> None:
        self._kubernetes.api.come_back()

    async def add_pod_rule(self, call: Call) -> Response:
        return added(self._kubernetes.pod_faults, rule_of(PodRule, await call.json()))

    async def remove_pod_rules(self, _: Call) -> Response:
        self._kubernetes.pod_faults.forget()
        return answer()

    async def go_away(self, call: Call) -> Response:
        """Cut every connection to the API server for `seconds`."""
        self._kubernetes.api.go_away(_seconds(await call.json(), "seconds") or 0)
        return answer()

    async def cut(self, _: Call) -> Response:
        """End all watches, and all logs that are followed."""
        self._kubernetes.api.cut_watches()
        return answer()

    async def compact(self, _: Call) -> Response:
        """Forget all changes so far: watches and lists that go on from before get 410."""
        self._kubernetes.cluster.compact()
        return answer()

    async def add_user(self, call: Call) -> Response:
        """Return token and kubeconfig of a user who may do what bindings say; for `lifetime_s`, or for ever."""
        details = await call.json()
        name, groups = details.get("name"), details.get("groups") or []
        texts = [name, *groups] if isinstance(groups, list) else [None]
        if not all(isinstance(text, str) and len(text) <= MAX_NAME for text in texts):
            raise invalid(
                f"A user needs a name; groups are a list of names; each has at most {MAX_NAME} characters."
            )
        user = users.named(str(name), groups)
        token, config = self._kubernetes.new_user(user, _seconds(details, "lifetime_s"))
        return answer({"token": token, "kubeconfig": config})


def _seconds(details: dict[str, object], name: str) -> float | None:
    value = details.get(name)
    if value is None:
        return None
    if not is_span(value):
        raise invalid(f"{name} must be a number of seconds, not {encode_json(value)[:MAX_SHOWN]}.")
    return float(str(value))
