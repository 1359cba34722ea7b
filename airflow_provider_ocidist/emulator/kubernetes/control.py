"""Control: the part of `/_emulator` that is about the cluster."""

from __future__ import annotations

import json

from starlette.responses import Response

from airflow_provider_ocidist.emulator.control import BASE, filtered, rule_of
from airflow_provider_ocidist.emulator.errors import invalid
from airflow_provider_ocidist.emulator.faults import Fault
from airflow_provider_ocidist.emulator.kubernetes import users
from airflow_provider_ocidist.emulator.kubernetes.kubelet.pod_faults import PodRule
from airflow_provider_ocidist.emulator.kubernetes.service import Kubernetes
from airflow_provider_ocidist.emulator.wire import Call, Route, answer

HERE = f"{BASE}/kubernetes"


class ClusterControl:
    """The routes below `/_emulator/kubernetes`."""

    def __init__(self, kubernetes: Kubernetes) -> None:
        self._kubernetes = kubernetes

    def routes(self) -> list[Route]:
        return [
            Route("GET", f"{HERE}/calls", self.list_calls, signed=False),
            Route("DELETE", f"{HERE}/calls", self.forget_calls, signed=False),
            Route("POST", f"{HERE}/faults", self.add_fault, signed=False),
            Route("DELETE", f"{HERE}/faults", self.remove_faults, signed=False),
            Route("POST", f"{HERE}/pods", self.add_pod_rule, signed=False),
            Route("DELETE", f"{HERE}/pods", self.remove_pod_rules, signed=False),
            Route("POST", f"{HERE}/away", self.go_away, signed=False),
            Route("POST", f"{HERE}/cut", self.cut, signed=False),
            Route("POST", f"{HERE}/compact", self.compact, signed=False),
            # Signed: it grants the right to run programs as the user who started the emulator.
            Route("POST", f"{HERE}/users", self.add_user),
        ]

    async def list_calls(self, call: Call) -> Response:
        """Return the requests to the API server; `method`, `path` and `host`, who sent them, filter them."""
        return answer(filtered(list(self._kubernetes.api.calls), call.query))

    async def forget_calls(self, _: Call) -> Response:
        self._kubernetes.api.calls.clear()
        return answer()

    async def add_fault(self, call: Call) -> Response:
        """Add a rule for requests to the API server, as `/_emulator/faults` has them for OCI."""
        fault = rule_of(Fault, await call.json())
        if fault.stale_s is not None:
            raise invalid("stale_s is not for Kubernetes.")
        self._kubernetes.faults.add(fault)
        return answer(self._kubernetes.faults.bodies())

    async def remove_faults(self, _: Call) -> Response:
        self._kubernetes.faults.clear()
        self._kubernetes.api.come_back()
        return answer()

    async def add_pod_rule(self, call: Call) -> Response:
        self._kubernetes.pod_faults.add(rule_of(PodRule, await call.json()))
        return answer(self._kubernetes.pod_faults.bodies())

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
        if not isinstance(name, str) or not isinstance(groups, list):
            raise invalid("A user needs a name; groups is a list.")
        user = users.named(name, [str(group) for group in groups])
        token, config = self._kubernetes.new_user(user, _seconds(details, "lifetime_s"))
        return answer({"token": token, "kubeconfig": config})


def _seconds(details: dict[str, object], name: str) -> float | None:
    value = details.get(name)
    if value is not None and type(value) not in (int, float):
        raise invalid(f"{name} must be a number of seconds, not {json.dumps(value)}.")
    return float(str(value)) if value is not None else None
