"""Control: the part of `/_emulator` that is about the cluster."""

from __future__ import annotations

from starlette.responses import Response

from airflow_provider_ocidist.emulator.control import BASE, added, filtered, is_span, rule_of
from airflow_provider_ocidist.emulator.errors import invalid
from airflow_provider_ocidist.emulator.faults import Fault
from airflow_provider_ocidist.emulator.kubernetes import users
from airflow_provider_ocidist.emulator.kubernetes.kubelet.pod_faults import PodRule
from airflow_provider_ocidist.emulator.kubernetes.service import Kubernetes
from airflow_provider_ocidist.emulator.wire import Call, Route, answer, encode_json

HERE = f"{BASE}/kubernetes"
MAX_NAME = 253
MAX_SHOWN = 200


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
        return added(self._kubernetes.faults, fault)

    async def remove_faults(self, _: Call) -> Response:
        self._kubernetes.faults.clear()
        self._kubernetes.api.come_back()
        return answer()

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
