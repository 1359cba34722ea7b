"""The control plane of Run:ai and its control API, for the fuzzer."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, urlencode

from airflow_provider_ocidist.emulator.faults import Faults
from airflow_provider_ocidist.emulator.runai.app import ControlPlane
from airflow_provider_ocidist.emulator.runai.control import RunaiControl
from airflow_provider_ocidist.emulator.runai.tokens import Tokens
from airflow_provider_ocidist.emulator.runai.workloads import SubmittedWorkloads
from airflow_provider_ocidist.emulator.runai_settings import RunaiSettings
from tests.emulator.fuzz import rule_bodies, runai_bodies, values
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

HERE = "runai"
QUERY_NAMES = ("limit", "offset", "filterBy", "sortBy", "sortOrder", "deleted", "method", "path", "host")
FILTERS = (
    "name==a",
    "phase!=Running",
    "createdAt>=2026",
    "projectId==1,name=@w",
    "size==3",
    "name",
    "==",
    ",,",
)
HEADERS = (
    "accept",
    "content-type",
    "origin",
    "sec-fetch-site",
    "host",
    "cookie",
    "x-request-id",
    "expect-ct",
)
PATIENCE_S = 60
KINDS = ("/distributed", "/trainings")
IDLE = b'{"effect": "idle", "times": null}'


class Runai:
    """All of it."""

    name = "runai"
    options: Sequence[str] = ("--runai",)

    def __init__(self) -> None:
        workloads: Any = SubmittedWorkloads([], "", None)  # type: ignore[arg-type]  # only its routes are asked for
        tokens = Tokens((), 0)
        plane = ControlPlane(workloads, tokens, RunaiSettings(), cluster_id="", url="")
        routes = [*RunaiControl(workloads, tokens, Faults(0)).routes(), *plane.routes()]
        self._doors = [Door(route.method, route.template, route.signed) for route in routes]
        self._doors += [door for door in self._doors if door.template.endswith(KINDS)] * 3

    def addresses(self, ready: Mapping[str, Any]) -> Mapping[str, str]:
        return {"url": ready["url"], HERE: ready["runai"]["url"]}

    def begin(self, ready: Mapping[str, Any], ask: Asking) -> None:
        self._access = SimpleNamespace(**ready["runai"])
        ask("DELETE", "/_emulator/faults", to=HERE)
        ask("POST", "/_emulator/reset", to=HERE)
        ask("POST", "/_emulator/kubernetes/pods", IDLE)
        self._renew(ask)
        self._ids = ["1", "2", "none"]

    def _renew(self, ask: Asking) -> None:
        form = {
            "grant_type": "client_credentials",
            "client_id": self._access.client_id,
            "client_secret": self._access.client_secret,
        }
        answer = ask("POST", "/api/v2/token", urlencode(form).encode(), to=HERE)
        self._token = json.loads(answer.body)["access_token"]

    def request(self, dice: random.Random) -> Request:
        door = dice.choice(self._doors)
        method = (
            door.method if dice.random() < 0.97 else dice.choice(("GET", "PUT", "PATCH", "HEAD", "TRACE"))
        )
        path = re.sub(r"\{\w+\}", lambda _: self._id(dice), door.template)
        query = self._query(dice)
        target = f"{path}?{query}" if query else path
        body = self._body(door, dice) if method in ("POST", "PUT", "PATCH") or dice.random() < 0.02 else b""
        return request(method, target, self._headers(door, dice), body, dice, to=HERE)

    def _id(self, dice: random.Random) -> str:
        if dice.random() < 0.1:
            return quote(values.text(dice).encode("utf-8", "surrogatepass"), safe="") or "x"
        return dice.choice(self._ids)

    @staticmethod
    def _query(dice: random.Random) -> str:
        chosen = []
        for _ in range(dice.choice((0, 0, 1, 2, 4))):
            name = dice.choice(QUERY_NAMES)
            known = FILTERS if name == "filterBy" else ("0", "1", "500", "name", "desc", "true")
            value = dice.choice(known) if dice.random() < 0.6 else values.text(dice)
            chosen.append((name, value.encode("utf-8", "surrogatepass")))
        if dice.random() < 0.01:
            chosen *= 500
        return urlencode(chosen)

    def _headers(self, door: Door, dice: random.Random) -> list[tuple[str, str]]:
        found = [("host", "127.0.0.1"), ("connection", "close")]
        for _ in range(dice.choice((0, 0, 0, 1, 2))):
            value = values.text(dice).encode("utf-8", "surrogatepass").decode("latin-1")
            found.append((dice.choice(HEADERS), re.sub(r"[\r\n\0]", " ", value)))
        if door.template.startswith("/api"):
            token = self._token if dice.random() < 0.93 else self._no_token(dice)
            found.append(("authorization", f"Bearer {token}"))
        return found

    def _no_token(self, dice: random.Random) -> str:
        raw = (
            values.spoilt(self._token.encode(), dice)
            if dice.random() < 0.5
            else values.text(dice).encode("utf-8", "surrogatepass")
        )
        return re.sub(r"[\r\n\0]", " ", raw.decode("latin-1"))

    def _body(self, door: Door, dice: random.Random) -> bytes:
        rule = rule_bodies.body(door, dice)
        if rule is not None:
            return values.json_bytes(rule, dice)
        if door.template == "/api/v2/token":
            return values.spoilt(
                urlencode({"grant_type": "client_credentials", "client_id": "x"}).encode(), dice
            )
        if door.template == "/api/v1/token":
            body: Any = {"grantType": "app_token", "appId": dice.choice(values.WRONG[:-1]), "AppSecret": "x"}
            return values.json_bytes(body, dice)
        if door.template.endswith(KINDS):
            kind = door.template.rpartition("/")[2]
            return values.json_bytes(runai_bodies.body(kind, dice, self._access), dice)  # type: ignore[arg-type]  # just looked at
        return dice.choice((b"", b"{}", b"x", b"[]", dice.randbytes(50)))

    def check(self, request: Request, answer: Answer) -> None:
        check_shape(request, answer)

    def learn(self, request: Request, answer: Answer, ask: Asking) -> None:
        for method, path in undo_of_control(request.method, request.path, answer):
            ask(method, path, to=HERE)
        if answer.status == 401 or request.path.startswith("/_emulator/tokens"):
            self._renew(ask)
        with suppress(ValueError, TypeError, KeyError):
            self._ids[3:] = [*self._ids[3:][-20:], json.loads(answer.body)["workloadId"]]

    def check_service(self, ask: Asking) -> None:
        """A workload of somebody else gets to run, and all lists are there."""
        self._renew(ask)
        headers = {"authorization": f"Bearer {self._token}"}
        ask("PUT", "/_emulator/projects/1", b'{"limit": null, "gpus": null}', to=HERE)
        body = {
            "name": "checked",
            "projectId": self._access.project_id,
            "clusterId": self._access.cluster_id,
            "spec": {"image": "i", "command": "true"},
        }
        paths = (
            "workloads?limit=500",
            "workloads?deleted=true",
            "workloads/pods",
            "clusters",
            "org-unit/projects",
        )
        for path in paths:
            answer = ask("GET", f"/api/v1/{path}", to=HERE, headers=headers)
            if answer.status != 200:
                raise Broken(f"the list {path} no longer works: {answer}")
        made = ask("POST", "/api/v1/workloads/trainings", json.dumps(body).encode(), to=HERE, headers=headers)
        if made.status != 202:
            raise Broken(f"workloads can no longer be made: {made}")
        workload_id, deadline = json.loads(made.body)["workloadId"], time.monotonic() + PATIENCE_S
        phase = ""
        while phase != "Running":
            if time.monotonic() > deadline:
                raise Broken(f"a workload is still {phase} after {PATIENCE_S} s")
            seen = ask("GET", f"/api/v1/workloads/{workload_id}", to=HERE, headers=headers)
            phase = json.loads(seen.body)["phase"]


def check_shape(request: Request, answer: Answer) -> None:
    """Raise Broken unless an answer is one that a client of Run:ai understands."""
    if answer.status >= 500:
        raise Broken(f"{answer.status}: {answer.body[:500]!r}")
    if request.method == "HEAD" or not answer.body:
        if answer.status >= 400 and request.method != "HEAD":
            raise Broken(f"{answer.status} without a body")
        return
    body = read_json(answer.body)
    if answer.status < 400:
        return
    is_oauth = (
        "/api/v2/token" in request.path and isinstance(body, dict) and isinstance(body.get("error"), str)
    )
    if not is_oauth and not (
        isinstance(body, dict) and body.get("code") == answer.status and isinstance(body.get("message"), str)
    ):
        raise Broken(f"{answer.status} without code and message: {answer.body[:300]!r}")
