"""OCI's services, the control API and the page of the emulator, for the fuzzer."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization

from scripts.emulator_models import routes
from tests.emulator.fuzz.api import Answer, Asking, Broken, Door, Request, read_json, undo_of_control
from tests.emulator.fuzz.requests import Known, request_of, signed_headers

UI = "/_emulator/ui"
PAGE = (
    *(
        "/",
        f"{UI}/static/{{name}}",
        f"{UI}/overview",
        f"{UI}/jobs",
        f"{UI}/jobs/{{id}}",
        f"{UI}/jobs/{{id}}/logs",
    ),
    *(f"{UI}/buckets", f"{UI}/buckets/{{bucket}}/objects", f"{UI}/buckets/{{bucket}}/objects/{{name...}}"),
    *(f"{UI}/calls", f"{UI}/rules"),
)
LISTS = (
    "/20190101/projects?compartmentId={compartment}",
    "/20190101/jobs?compartmentId={compartment}",
    "/20190101/jobRuns?compartmentId={compartment}",
    "/20160918/users?compartmentId={tenancy}",
    "/20160918/compartments?compartmentId={tenancy}",
    "/20200531/logGroups?compartmentId={compartment}",
    "/n/{namespace}/b?compartmentId={compartment}",
    "/n/{namespace}/b/{bucket}/o",
    "/n/{namespace}/b/{bucket}/u",
    "/n/{namespace}/b/{bucket}/p",
)
IDS = ("compartment_id", "tenancy_id", "project_id", "log_group_id", "log_id", "subnet_id", "secret_id")


class Oci:
    """All of it."""

    name = "oci"
    options: Sequence[str] = ()

    def __init__(self) -> None:
        page = [Door("GET", template, signed=False) for template in PAGE]
        services = [Door(*each) for each in routes()]
        self._doors = sorted([*services, *page], key=lambda door: (door.template, door.method))

    def addresses(self, ready: Mapping[str, Any]) -> Mapping[str, str]:
        return {name: ready[name] for name in ("url", "proxy_url")}

    def begin(self, ready: Mapping[str, Any], ask: Asking) -> None:
        """Let no node run a program."""
        self._ready = ready
        self._idle(ask)
        self.known = known_of(ready)
        self._fixed = len(self.known.ids)

    @staticmethod
    def _idle(ask: Asking) -> None:
        ask("DELETE", "/_emulator/nodes")
        ask("POST", "/_emulator/nodes", b'{"idle": true}')

    def request(self, dice: random.Random) -> Request:
        return request_of(self._doors, self.known, dice)

    def check(self, request: Request, answer: Answer) -> None:
        if request.to == "url":
            check_shape(request, answer)

    def learn(self, request: Request, answer: Answer, ask: Asking) -> None:
        for method, path in undo_of_control(request.method, request.path, answer):
            ask(method, path)
        if request.path.startswith(("/_emulator/nodes", "/_emulator/reset")) and answer.status < 400:
            self._idle(ask)
        # The user that signs may delete itself, which is its right, or its key.
        if request.method == "DELETE" and "/users/" in request.path and answer.status < 400:
            ask("POST", "/_emulator/reset")
            self._idle(ask)
        with suppress(ValueError, AttributeError):
            found = json.loads(answer.body)
            found = found[0] if isinstance(found, list) and found else found
            for name in ("id", "uploadId", "fingerprint"):
                if isinstance(found.get(name), str):
                    ids = self.known.ids
                    ids[self._fixed :] = [*ids[self._fixed :][-20:], found[name]]

    def check_service(self, ask: Asking) -> None:
        ready = self._ready
        names = {
            "compartment": ready["compartment_id"],
            "tenancy": ready["tenancy_id"],
            **{name: ready[name] for name in ("namespace", "bucket")},
        }
        for template in LISTS:
            path = template.format(**names)
            answer = ask("GET", path, headers=dict(signed_headers("GET", path, b"", self.known)))
            # What was made at the start may have been deleted by its owner.
            if answer.status >= 400 and (answer.status >= 500 or "/b/" not in path):
                raise Broken(f"the list {path} no longer works: {answer}")


def known_of(ready: Mapping[str, Any]) -> Known:
    """Return what there is from the start, and the key of the emulator's user."""
    lines = Path(ready["config_file"]).read_text().splitlines()
    config = dict(line.split("=", 1) for line in lines if "=" in line)
    key: Any = serialization.load_pem_private_key(Path(config["key_file"]).read_bytes(), None)
    return Known(
        namespace=ready["namespace"],
        bucket=ready["bucket"],
        ids=[ready[name] for name in IDS],
        key_id=f"{config['tenancy']}/{config['user']}/{config['fingerprint']}",
        key=key,
    )


def check_shape(request: Request, answer: Answer) -> None:
    """Raise Broken unless an answer is one that a client of OCI understands."""
    if answer.status >= 500:
        raise Broken(f"{answer.status}: {answer.body[:500]!r}")
    if len(answer.all("opc-request-id")) != 1:
        raise Broken(f"{answer.status} with opc-request-id {answer.all('opc-request-id')}")
    if answer.status >= 400 and answer.body:
        body = read_json(answer.body)
        if not isinstance(body, dict) or not all(
            isinstance(body.get(name), str) for name in ("code", "message")
        ):
            raise Broken(f"{answer.status} without code and message: {answer.body[:300]!r}")
    elif answer.status >= 400 and request.method != "HEAD":
        raise Broken(f"{answer.status} without a body")
    elif answer.kind == "application/json" and request.method != "HEAD" and "/o/" not in request.path:
        read_json(answer.body)
