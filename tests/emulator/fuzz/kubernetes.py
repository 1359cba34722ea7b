"""The API server of Kubernetes and its part of the control API, for the fuzzer."""

from __future__ import annotations

import copy
import json
import random
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import yaml

from airflow_provider_ocidist.emulator.kubernetes import core_kinds, fields
from airflow_provider_ocidist.emulator.kubernetes.control import ClusterControl
from airflow_provider_ocidist.emulator.kubernetes.kinds import Kind
from airflow_provider_ocidist.emulator.kubernetes.operators import Operators
from tests.emulator.fuzz import oci, rule_bodies, values
from tests.emulator.fuzz.api import (
    Answer,
    Asking,
    Broken,
    Door,
    Request,
    read_json,
    request,
    undo_of_control,
)
from tests.emulator.fuzz.requests import Known, signed_headers

HERE = "kubernetes"
NAMES = ("a", "a", "b", "b", "c", "default", "none", "r")
NAMESPACES = (*["training"] * 8, "default", "none")
QUERY_NAMES = (
    *("limit", "continue", "labelSelector", "fieldSelector", "watch", "resourceVersion", "timeoutSeconds"),
    *("allowWatchBookmarks", "sendInitialEvents", "dryRun", "fieldValidation", "fieldManager", "force"),
    *("propagationPolicy", "gracePeriodSeconds", "orphanDependents", "container", "follow", "previous"),
    *("sinceSeconds", "sinceTime", "tailLines", "limitBytes", "timestamps", "pretty"),
)
QUERY_VALUES = (
    *("1", "0", "true", "All", "Strict", "Ignore", "Foreground", "Orphan", "a=b,c!=d", "a in (b,c)", "!a"),
    *("metadata.name=a", "status.phase=Running", "2026-01-01T00:00:00Z", "W1tb"),
)
ACCEPTS = (
    *("application/json", "application/json;as=Table;v=v1;g=meta.k8s.io", "*/*"),
    *(
        "application/vnd.kubernetes.protobuf",
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
    ),
)
JSON = "application/json"
PATCHES = (
    *("application/merge-patch+json", "application/json-patch+json"),
    *("application/strategic-merge-patch+json", "application/apply-patch+yaml"),
)
HEADERS = (
    "x-request-id",
    "impersonate-user",
    "impersonate-group",
    "origin",
    "host",
    "accept-encoding",
    "cookie",
)
PLACES = (
    *(
        "/",
        "/api",
        "/apis",
        "/api/v1",
        "/apis/batch",
        "/apis/batch/v1",
        "/version",
        "/healthz",
        "/openapi/v2",
    ),
    *("/openapi/v3", "/openapi/v3/api/v1", "/openapi/v3/apis/batch/v1", "/metrics", "/apis/none/v1/x"),
)
REVIEWS = ("selfsubjectaccessreviews", "selfsubjectrulesreviews")
SUBRESOURCES = (*[""] * 24, *("status", "status", "finalize", "log", "eviction", "token", "exec", "scale"))
IDLE = b'{"effect": "idle", "times": null}'
PATIENCE_S = 60
CONTAINER = {"name": "pytorch", "image": "i", "command": ["true"]}
TEMPLATE = {"spec": {"containers": [CONTAINER], "restartPolicy": "Never"}}
JOB = {"template": TEMPLATE}
SPECS: Mapping[str, Any] = {
    "Pod": {"spec": TEMPLATE["spec"]},
    "Job": {"spec": JOB},
    "PyTorchJob": {"spec": {"pytorchReplicaSpecs": {"Master": {"replicas": 1, "template": TEMPLATE}}}},
    "JobSet": {"spec": {"replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": JOB}}]}},
    "TrainJob": {"spec": {"runtimeRef": {"name": "torch-distributed"}, "trainer": {"numNodes": 2}}},
    "RoleBinding": {"roleRef": {"kind": "Role", "name": "r"}, "subjects": [{"kind": "User", "name": "ann"}]},
    "Role": {"rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]},
    "PersistentVolumeClaim": {
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    },
}
"""What a kind refuses to be without."""
SPARED = ("hostPath", "nodeName")
"""Fields by which pods change what is outside of the state folder, as real ones do."""


class Kubernetes:
    """All of it."""

    name = "kubernetes"
    options: Sequence[str] = ("--kubernetes",)

    def __init__(self) -> None:
        self._kinds: Sequence[Kind] = [*core_kinds.KINDS, *Operators().kinds]
        routes = ClusterControl(None).routes()  # type: ignore[arg-type]  # only its routes are asked for
        self._control = [
            *(Door(route.method, route.template, route.signed) for route in routes),
            Door("POST", "/_emulator/reset", signed=False),
        ]

    def addresses(self, ready: Mapping[str, Any]) -> Mapping[str, str]:
        config = yaml.safe_load(Path(ready["kubeconfig"]).read_text())
        return {"url": ready["url"], HERE: config["clusters"][0]["cluster"]["server"]}

    def begin(self, ready: Mapping[str, Any], ask: Asking) -> None:
        """Let pods run without processes."""
        config = yaml.safe_load(Path(ready["kubeconfig"]).read_text())
        self._token = config["users"][0]["user"]["token"]
        self._known: Known = oci.known_of(ready)
        self._idle(ask)

    @staticmethod
    def _idle(ask: Asking) -> None:
        ask("DELETE", "/_emulator/kubernetes/faults")
        ask("DELETE", "/_emulator/kubernetes/pods")
        ask("POST", "/_emulator/kubernetes/pods", IDLE)

    def request(self, dice: random.Random) -> Request:
        if dice.random() < 0.05:
            return self._to_control(dice)
        kind = dice.choice(self._kinds)
        method = dice.choices(
            ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"), (20, 40, 12, 22, 6, 1, 1)
        )[0]
        path = self._path(kind, method, dice)
        query = _query(dice)
        target = f"{path}?{query}" if query else path
        form, body = JSON, b""
        if method in ("POST", "PUT", "PATCH", "DELETE"):
            form, body = _body(kind, method, path, dice)
        return request(method, target, self._headers(form, dice), body, dice, to=HERE)

    def _to_control(self, dice: random.Random) -> Request:
        door = dice.choice(self._control)
        rule = rule_bodies.body(door, dice)
        body = b"" if rule is None else values.json_bytes(rule, dice)
        headers = [("host", "127.0.0.1"), ("connection", "close")]
        if door.signed:
            headers += signed_headers(door.method, door.template, body, self._known)
        return request(door.method, door.template, headers, body, dice)

    @staticmethod
    def _path(kind: Kind, method: str, dice: random.Random) -> str:
        chance = dice.random()
        if chance < 0.05:
            return dice.choice(PLACES)
        if chance < 0.1:
            return f"/apis/authorization.k8s.io/v1/{dice.choice(REVIEWS)}"
        base = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
        if kind.namespaced and (method == "POST" or dice.random() < 0.9):
            base += f"/namespaces/{dice.choice(NAMESPACES)}"
        parts = [base, kind.plural]
        subresource = dice.choice(SUBRESOURCES)
        if method in ("PUT", "PATCH") or subresource or (method != "POST" and dice.random() < 0.6):
            parts += [dice.choice(NAMES), *([subresource] if subresource else [])]
        if dice.random() < 0.05:
            raw = values.text(dice).encode("utf-8", "surrogatepass")
            parts[dice.randrange(len(parts))] = quote(raw, safe="/" if dice.random() < 0.5 else "")
        path = "/".join(parts)
        return path if path.startswith("/") else f"/{path}"

    def _headers(self, form: str, dice: random.Random) -> list[tuple[str, str]]:
        found = [("host", "127.0.0.1"), ("connection", "close"), ("content-type", form)]
        found.append(("accept", dice.choice(ACCEPTS)))
        for _ in range(dice.choice((0, 0, 0, 0, 1, 2))):
            value = values.text(dice).encode("utf-8", "surrogatepass").decode("latin-1")
            found.append((dice.choice(HEADERS), re.sub(r"[\r\n\0]", " ", value)))
        if dice.random() < 0.95:
            found.append(("authorization", f"Bearer {self._token}"))
        elif dice.random() < 0.5:
            raw = values.text(dice).encode("utf-8", "surrogatepass").decode("latin-1")
            found.append(("authorization", re.sub(r"[\r\n\0]", " ", f"Bearer {raw}")))
        return found

    def check(self, request: Request, answer: Answer) -> None:
        if request.to == HERE:
            check_shape(request, answer)
        else:
            oci.check_shape(request, answer)

    def learn(self, request: Request, answer: Answer, ask: Asking) -> None:
        if request.to == HERE:
            return
        for method, path in undo_of_control(request.method, request.path, answer):
            ask(method, path)
        if "/pods" in request.path or "/reset" in request.path:
            self._idle(ask)

    def check_service(self, ask: Asking) -> None:
        """All lists are there, also as tables; and controllers still make pods of a Job."""
        headers = {"authorization": f"Bearer {self._token}"}
        for kind in self._kinds:
            base = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
            for accept in ACCEPTS[:2]:
                path = f"{base}/{kind.plural}"
                answer = ask("GET", path, to=HERE, headers={**headers, "accept": accept})
                if answer.status != 200:
                    raise Broken(f"the list {path} no longer works: {answer}")
                read_json(answer.body)
        self._run_a_job(ask, headers)

    @staticmethod
    def _run_a_job(ask: Asking, headers: Mapping[str, str]) -> None:
        namespace = {"metadata": {"name": f"checked-{time.time_ns()}"}}
        ask("POST", "/api/v1/namespaces", json.dumps(namespace).encode(), to=HERE, headers=headers)
        place = f"namespaces/{namespace['metadata']['name']}"
        job = {"metadata": {"name": "checked"}, "spec": JOB}
        made = ask("POST", f"/apis/batch/v1/{place}/jobs", json.dumps(job).encode(), to=HERE, headers=headers)
        if made.status != 201:
            raise Broken(f"a Job can no longer be made: {made}")
        deadline = time.monotonic() + PATIENCE_S
        while not json.loads(ask("GET", f"/api/v1/{place}/pods", to=HERE, headers=headers).body)["items"]:
            if time.monotonic() > deadline:
                raise Broken(f"a Job has no pod after {PATIENCE_S} s")
            time.sleep(0.02)


def _query(dice: random.Random) -> str:
    chosen = []
    for _ in range(dice.choice((0, 0, 0, 1, 2, 4))):
        value = dice.choice(QUERY_VALUES) if dice.random() < 0.6 else values.text(dice)
        chosen.append((dice.choice(QUERY_NAMES), value.encode("utf-8", "surrogatepass")))
    if dice.random() < 0.005:
        chosen *= 500
    return urlencode(chosen)


def _body(kind: Kind, method: str, path: str, dice: random.Random) -> tuple[str, bytes]:
    """Return a media type, and a body of it."""
    if path.endswith(REVIEWS):
        body: Any = {"spec": {"resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "a"}}}
    elif path.endswith(("/eviction", "/token")):
        body = {"spec": {"expirationSeconds": 600}, "deleteOptions": {"gracePeriodSeconds": 0}}
    elif method == "DELETE":
        body = {"propagationPolicy": "Background", "gracePeriodSeconds": 0, "preconditions": {"uid": "x"}}
        if dice.random() < 0.5:
            return JSON, b""
    else:
        body = _object(kind, dice)
    body = _with_wrong_parts(body, dice)
    if method == "PATCH" and dice.random() < 0.97:
        form = dice.choice(PATCHES)
        return form, values.json_bytes(_operations(dice) if "json-patch" in form else body, dice)
    chance = dice.random()
    if chance < 0.1:
        return "application/yaml", _yaml(body, dice)
    if chance < 0.15:
        return "application/vnd.kubernetes.protobuf", b"k8s\0" + dice.randbytes(dice.randrange(200))
    return JSON, values.json_bytes(body, dice)


def _yaml(body: Any, dice: random.Random) -> bytes:
    raw = yaml.safe_dump(json.loads(json.dumps(body, skipkeys=True))).encode()
    chance = dice.random()
    if chance < 0.1:
        return b"a: &a [x]\n" + b"".join(b"b%d: &b%d [*a, *a]\n" % (n, n) for n in range(9))
    if chance < 0.2:
        return dice.choice(
            (b"[" * 9_000, b"{a: " * 300, b"- " * 9_000, b"!!set {a}", b"? [a]\n: b", b"a: .nan")
        )
    return values.spoilt(raw, dice) if chance < 0.4 else raw


def _object(kind: Kind, dice: random.Random) -> dict[str, Any]:
    schema = types_of(kind)
    found = {
        name: of_type(wanted, dice, 1)
        for name, wanted in schema.items()
        if name not in ("metadata", "kind", "apiVersion") and dice.random() < 0.6
    }
    found = _merged(found, copy.deepcopy(SPECS.get(kind.name, {})))
    metadata = of_type("V1ObjectMeta", dice, 6) if dice.random() < 0.3 else {}
    metadata["name"] = dice.choice(NAMES)
    metadata.pop("namespace", None)
    return {"apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata, **found}


def _merged(one: Any, other: Any) -> Any:
    """Return both, the other's where both say something."""
    if not isinstance(one, dict) or not isinstance(other, dict):
        return other
    return {**one, **{name: _merged(one.get(name), value) for name, value in other.items()}}


def types_of(kind: Kind) -> Mapping[str, Any]:
    if isinstance(kind.schema, str):
        return fields.types()[kind.schema]
    return kind.schema or {}


def of_type(wanted: Any, dice: random.Random, depth: int) -> Any:
    """Return a value of a type in the notation of `fields`."""
    if isinstance(wanted, str) and (match := fields.CONTAINER.fullmatch(wanted)):
        members = [of_type(match[2], dice, depth + 1) for _ in range(dice.randrange(3))]
        return members if match[1] == "list" else {f"k{number}": each for number, each in enumerate(members)}
    if isinstance(wanted, list):
        return [of_type(wanted[0], dice, depth + 1) for _ in range(dice.randrange(3))]
    plain = {
        "str": lambda: dice.choice(
            ("text", "", "a", "../" * 9 + "a", "Never", "OnFailure", "None", "\N{ROCKET}", "a" * 300)
        ),
        "datetime": lambda: dice.choice(("2026-01-01T00:00:00Z", "soon", "")),
        "bool": lambda: dice.random() < 0.5,
        "int": lambda: dice.choice((0, 1, 2, 5, -1, 10**9, 2**62)),
        "float": lambda: dice.choice((0.0, 1.5, -1, 1e300)),
        "quantity": lambda: dice.choice(("1", "500m", "16Gi", 2, "x", "1e999999")),
        "int_or_str": lambda: dice.choice((1, "1", "auto")),
        "object": lambda: copy.deepcopy(dice.choice(values.WRONG[:-1])),
    }
    if isinstance(wanted, str) and wanted in plain:
        return plain[wanted]()
    known = wanted if isinstance(wanted, Mapping) else fields.types().get(wanted, {})
    share = 0.5 if depth < 4 else 0.15 if depth < 8 else 0.0
    return {
        name: of_type(each, dice, depth + 1)
        for name, each in known.items()
        if isinstance(name, str) and name not in SPARED and dice.random() < share
    }


def _with_wrong_parts(body: Any, dice: random.Random) -> Any:
    for _ in range(dice.choice((0, 0, 0, 1, 2))):
        places = list(values.values_in(body))
        if places:
            holder, key = dice.choice(places)
            holder[key] = copy.deepcopy(dice.choice((*values.WRONG, None)))
    return copy.deepcopy(dice.choice(values.WRONG)) if dice.random() < 0.02 else body


def _operations(dice: random.Random) -> Any:
    paths = (
        *("/metadata/labels", "/metadata/labels/a", "/metadata/annotations", "/metadata/name", "/spec"),
        *(
            "/spec/containers/0/image",
            "/spec/containers/-",
            "/status",
            "/data/a",
            "",
            "/",
            "/metadata/finalizers/9",
        ),
    )
    found = []
    for _ in range(dice.choice((1, 1, 2, 5, 40))):
        operation = {"op": dice.choice(("add", "remove", "replace", "copy", "move", "test", "x"))}
        operation |= {"path": dice.choice(paths), "from": dice.choice(paths)}
        found.append({**operation, "value": dice.choice((*values.WRONG[:-1], {"a": "b"}, None))})
    return _with_wrong_parts(found, dice)


def check_shape(request: Request, answer: Answer) -> None:
    """Raise Broken unless an answer is one that a client of Kubernetes understands."""
    if answer.status >= 500 and answer.status != 501:
        raise Broken(f"{answer.status}: {answer.body[:500]!r}")
    if request.method == "HEAD" or (not answer.body and answer.status < 400):
        return
    if answer.kind.startswith("text/plain") and (
        answer.status < 400 or answer.body == b"404 page not found\n"
    ):
        return
    if not answer.kind.startswith("application/json"):
        raise Broken(f"{answer.status} of type {answer.kind}: {answer.body[:300]!r}")
    if b"\n" in answer.body and request.streams:
        return
    body = read_json(answer.body)
    if answer.status >= 400 and not (
        isinstance(body, dict)
        and (body.get("kind"), body.get("status"), body.get("code")) == ("Status", "Failure", answer.status)
        and isinstance(body.get("message"), str)
    ):
        raise Broken(f"{answer.status} is no Status: {answer.body[:300]!r}")
