"""Bodies with a field of another type: refused at every door, in OCI's words, and never stored."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import uuid
from typing import Any

import pytest
from oci._vendor import requests

from tests.emulator.conftest import Cloud
from tests.emulator.fuzz.values import MODELS, random_body

CASES = int(os.environ.get("FUZZ_CASES", "25"))
"""Bodies for each operation; FUZZ_CASES=2500 sends a hundred thousand in all."""


def test_the_models_are_those_of_the_installed_sdk() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scripts.emulator_models", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("operation", sorted(MODELS["bodies"]))
def test_no_body_is_answered_with_a_fault_of_the_emulator(cloud: Cloud, operation: str) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    dice = random.Random(f"{seed} {operation}")
    method, template = operation.split(" ", 1)
    for _ in range(CASES):
        body = random_body(MODELS["bodies"][operation], dice)
        answer = send(cloud, method, filled(cloud, template, dice), body)
        assert answer.status_code != 500, (body, answer.text)
        assert answer.headers["opc-request-id"]
        if answer.status_code >= 400:
            assert {"code", "message"} <= answer.json().keys(), body


def test_a_wrong_type_is_refused_by_its_path(cloud: Cloud) -> None:
    details = {
        "projectId": cloud.access.project_id,
        "compartmentId": cloud.access.compartment_id,
        "jobConfigurationDetails": {"jobType": "DEFAULT", "environmentVariables": {"A": 1}},
        "jobInfrastructureConfigurationDetails": {},
    }
    answer = send(cloud, "POST", "/20190101/jobs", details)
    assert (answer.status_code, answer.json()["code"]) == (400, "InvalidParameter")
    assert "jobConfigurationDetails.environmentVariables.A" in answer.json()["message"]


@pytest.mark.parametrize("depth", [90, 110, 500])
def test_what_is_nested_too_deep_to_be_written_again_is_refused(cloud: Cloud, depth: int) -> None:
    value: Any = "x"
    for _ in range(depth):
        value = {"a": value}
    body = {"compartmentId": cloud.access.compartment_id, "definedTags": {"a": {"b": value}}}
    answer = send(cloud, "POST", "/20190101/projects", body)
    assert answer.status_code == (200 if depth == 90 else 400)
    cloud.jobs.list_projects(cloud.access.compartment_id)


def test_what_was_refused_breaks_no_list(cloud: Cloud) -> None:
    send(cloud, "POST", "/20160918/users", {"compartmentId": cloud.access.compartment_id, "name": 1})
    namespace, bucket = cloud.place
    send(
        cloud,
        "POST",
        f"/n/{namespace}/b/{bucket}/p",
        {"name": "p", "objectName": 5, "accessType": "ObjectRead", "timeExpires": "2999-01-01T00:00:00Z"},
    )
    for path in (
        f"/20160918/users?compartmentId={cloud.access.tenancy_id}",
        f"/n/{namespace}/b/{bucket}/p",
    ):
        answer = requests.get(f"{cloud.access.url}{path}", auth=cloud.jobs.base_client.signer)
        assert answer.status_code == 200, answer.text


def send(cloud: Cloud, method: str, path: str, body: Any) -> Any:
    return requests.request(
        method,
        f"{cloud.access.url}{path}",
        data=json.dumps(body).encode(),
        auth=cloud.jobs.base_client.signer,
    )


def filled(cloud: Cloud, template: str, dice: random.Random) -> str:
    """Return a path of an operation; sometimes of things that exist."""
    namespace, bucket = cloud.place
    known = iter((namespace, bucket)) if template.startswith("/n/") else iter((cloud.access.log_group_id,))
    use_known = dice.random() < 0.8
    return re.sub(
        r"\{\}",
        lambda _: next(known, "x") if use_known else uuid.UUID(int=dice.getrandbits(128)).hex,
        template,
    )
